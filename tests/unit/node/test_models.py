"""Several models side by side: what stays, what goes, in which order, and that one is at work."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from node_agent.events import (
    CloseRunner,
    DrainRequested,
    FactsMeasured,
    FetchEnded,
    FetchFailed,
    FetchModel,
    Instruction,
    LimitRunner,
    RunnerExited,
    StartRun,
    StartRunner,
    StartSelfTest,
)
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from node_agent.runner import messages as runner
from node_agent.sizing.memory import PROCESS_BYTES, needed_bytes
from tests.properties.test_node_state import make_card
from tests.unit.node.test_state import FREE, Core, kinds, offer, sent, the_decline

GIB: Final = 1 << 30
A, B, C, D = (make_card(name, 2 * GIB) for name in ("a-model", "b-model", "c-model", "d-model"))
TINY: Final = make_card("tiny", GIB // 4)
LARGE: Final = make_card("large", 5 * GIB)
SPARE: Final = GIB


def said_ready(core: Core, generation: int, card: ModelCard) -> list[Instruction]:
    ready = runner.Ready(
        load_seconds=1.0, active_bytes=card.weights_bytes, vocab=100, mlx_version="1", mlx_lm_version="1"
    )
    return core.said(ready, generation)


def hold(core: Core, card: ModelCard) -> list[Instruction]:
    """Ask for it and let it load; gives what the asking made the node do."""
    asked = core.frame(wire.Hold(card=card))
    started = core.give(FetchEnded(card.revision, Path("/models") / card.id))
    for instruction in asked:
        if isinstance(instruction, CloseRunner):
            started += core.give(RunnerExited(instruction.generation))
    for instruction in started:
        if isinstance(instruction, StartRunner):
            said_ready(core, instruction.generation, card)
    return asked


def holding(*cards: ModelCard, **settings: int) -> Core:
    """A node that holds these, as generations 1, 2, ..., used in this order."""
    core = Core(**settings)
    for card in cards:
        hold(core, card)
    assert [slot.card_id for slot in core.state.slots()] == [card.id for card in reversed(cards)]
    return core


def closed(instructions: list[Instruction]) -> list[int]:
    return [item.generation for item in instructions if isinstance(item, CloseRunner)]


def held(core: Core) -> set[str]:
    return {slot.card.id for slot in core.state.keeper.slots.values()}


def free_is(core: Core, free_bytes: int) -> list[Instruction]:
    return core.give(FactsMeasured(free_bytes=free_bytes, disk_free_bytes=1000))


def end_the_run(core: Core, key: str, generation: int) -> None:
    core.said(runner.Ended(key=key, finish_reason="eos"), generation)


# -- side by side --------------------------------------------------------------------------------


def test_a_second_model_is_loaded_beside_the_first_and_neither_again() -> None:
    core = holding(A, B)
    for number, (card, generation) in enumerate(((A, 1), (B, 2), (A, 1)), 1):
        instructions = core.frame(offer(f"job_{number}", card=card))
        (run,) = [item for item in instructions if isinstance(item, StartRun)]
        assert run.generation == generation
        assert not {FetchModel, StartRunner, CloseRunner} & set(kinds(instructions))
        end_the_run(core, f"r{number}", generation)
    assert held(core) == {A.id, B.id}


def test_every_loaded_model_is_reported_and_only_the_one_at_work_has_attempts() -> None:
    core = holding(A, B)
    core.frame(wire.Hold(card=C))
    core.frame(offer("job_1", card=A))
    core.frame(offer("job_2", card=A))
    found = {slot.card_id: (slot.bytes, slot.live) for slot in core.state.slots()}
    assert found == {A.id: (A.weights_bytes, 2), B.id: (B.weights_bytes, 0)}
    assert core.state.mode == "busy"


def test_another_model_at_work_is_busy_also_while_a_run_that_was_left_is_in_its_child() -> None:
    core = holding(A, B)
    core.frame(offer("job_1", card=A))
    assert the_decline(core.frame(offer("job_2", card=B))).reason == "busy"
    core.frame(wire.Cancel(job_id="job_1", fence=1, reason="lost"))
    assert core.state.live_count == 0
    assert the_decline(core.frame(offer("job_3", card=B))).reason == "busy"
    end_the_run(core, "r1", 1)
    assert StartRun in kinds(core.frame(offer("job_4", card=B)))


def test_a_hold_is_refused_while_something_is_at_work_unless_it_is_held_already() -> None:
    core = holding(A, B)
    core.frame(offer("job_1", card=A))
    (refused,) = sent(core.frame(wire.Hold(card=C)))
    assert isinstance(refused, wire.HoldReport)
    assert (refused.phase, refused.detail) == ("failed", "busy: another model is at work")
    (known,) = sent(core.frame(wire.Hold(card=B)))
    assert isinstance(known, wire.HoldReport)
    assert known.phase == "ready"


# -- room for the next ---------------------------------------------------------------------------


def test_with_room_nothing_goes_whatever_the_coordinator_takes_to_be_gone() -> None:
    core = holding(A, B)
    assert closed(core.frame(offer(card=C, evict=(A.revision, B.revision)))) == []


def test_beyond_the_owners_number_the_least_recently_used_goes() -> None:
    core = holding(A, B, C, models_max=3)
    core.frame(offer("job_1", card=A))
    end_the_run(core, "r1", 1)
    assert closed(core.frame(offer("job_2", card=D))) == [2]
    assert held(core) == {A.id, C.id, D.id}


def test_what_the_coordinator_names_goes_first_and_more_if_it_does_not_suffice() -> None:
    core = holding(A, B, C, models_max=3)
    assert closed(core.frame(offer(card=D, evict=(C.revision,)))) == [3]
    core = holding(A, B, C, lent_bytes=9 * GIB)
    assert closed(core.frame(offer(card=LARGE, evict=(C.revision,)))) == [3, 1]
    assert held(core) == {B.id, LARGE.id}


def test_one_too_small_to_matter_stays_although_it_is_the_oldest() -> None:
    lent = TINY.weights_bytes + PROCESS_BYTES + needed_bytes(LARGE, 12, 1)
    core = holding(TINY, A, lent_bytes=lent)
    assert closed(core.frame(offer(card=LARGE))) == [2]
    assert held(core) == {TINY.id, LARGE.id}


def test_the_bytes_that_are_lent_bound_all_models_together() -> None:
    needed = needed_bytes(B, 12, 1)
    enough = A.weights_bytes + PROCESS_BYTES + needed
    assert closed(holding(A, lent_bytes=enough).frame(offer(card=B))) == []
    assert closed(holding(A, lent_bytes=enough - 1).frame(offer(card=B))) == [1]


def test_the_bytes_that_are_free_bound_them_too_with_some_to_spare() -> None:
    needed = needed_bytes(B, 12, 1)
    core = holding(A)
    free_is(core, needed + SPARE)
    assert closed(core.frame(offer(card=B))) == []
    core = holding(A)
    free_is(core, needed + SPARE - 1)
    assert closed(core.frame(offer(card=B))) == [1]


def test_a_model_that_loads_counts_with_what_it_will_need() -> None:
    coming, needed = needed_bytes(A, 1, 1), needed_bytes(B, 12, 1)
    for free, is_dropped in ((coming + needed + SPARE, False), (coming + needed + SPARE - 1, True)):
        core = Core(free_bytes=free)
        core.frame(wire.Hold(card=A))
        instructions = core.frame(offer(card=B))
        assert (A.id not in held(core)) is is_dropped
        reports = [item for item in sent(instructions) if isinstance(item, wire.HoldReport)]
        assert [report.phase for report in reports] == (["failed"] if is_dropped else [])
    core = Core(free_bytes=coming + needed + SPARE)
    core.frame(wire.Hold(card=A))
    core.give(FetchEnded(A.revision, Path("/models/a")))
    # Half of it is read: it is not free any more, and does not come any more.
    core.said(runner.Loading(done_bytes=GIB, total_bytes=2 * GIB))
    free_is(core, coming + needed + SPARE - GIB)
    core.frame(offer(card=B))
    assert held(core) == {A.id, B.id}


def test_a_longer_job_of_the_model_at_work_makes_the_idle_ones_give_way() -> None:
    small, large = needed_bytes(A, 2, 1), needed_bytes(A, 500, 2)
    assert large > small
    core = holding(B, A, lent_bytes=B.weights_bytes + PROCESS_BYTES + large - 1)
    assert closed(core.frame(offer("job_1", card=A, prompt_ids=(5,), max_tokens=1))) == []
    instructions = core.frame(offer("job_2", card=A, prompt_ids=(5,), max_tokens=499))
    assert closed(instructions) == [1]
    # It begins when the memory of the other one is back.
    assert StartRun not in kinds(instructions)
    assert StartRun in kinds(core.give(RunnerExited(1)))


def test_an_offer_that_cannot_fit_is_declined_and_nothing_goes() -> None:
    core = holding(A, B, lent_bytes=needed_bytes(LARGE, 12, 1) - 1)
    instructions = core.frame(offer(card=LARGE, evict=(A.revision,)))
    assert the_decline(instructions).reason == "memory_short"
    assert held(core) == {A.id, B.id}
    (report,) = sent(core.frame(wire.Hold(card=make_card("huge", 90 * GIB))))
    assert isinstance(report, wire.HoldReport)
    assert report.phase == "failed"
    assert held(core) == {A.id, B.id}


def test_a_hold_makes_room_as_an_offer_does_and_may_have_to_give_way() -> None:
    core = holding(A, B, models_max=2)
    assert closed(hold(core, C)) == [1]
    assert held(core) == {B.id, C.id}
    assert closed(core.frame(offer(card=D))) == [2]
    assert held(core) == {C.id, D.id}


def test_no_child_starts_before_the_memory_of_those_that_go_is_back() -> None:
    core = holding(A, B, models_max=2)
    assert closed(core.frame(offer(card=LARGE, evict=(B.revision,)))) == [2]
    assert core.give(FetchEnded(LARGE.revision, Path("/models/large"))) == []
    (start,) = core.give(RunnerExited(2))
    assert start == StartRunner(3, LARGE, Path("/models/large"))


# -- what goes wrong -----------------------------------------------------------------------------


def test_an_idle_models_crash_takes_that_model_alone() -> None:
    core = holding(A, B)
    core.frame(offer("job_1", card=A))
    assert sent(core.give(RunnerExited(2, "killed"))) == []
    assert held(core) == {A.id}
    assert core.state.live_count == 1


def test_a_crash_at_work_leaves_the_idle_models() -> None:
    core = holding(A, B)
    core.frame(offer("job_1", card=A))
    (report,) = sent(core.give(RunnerExited(1, "killed")))
    assert isinstance(report, wire.Failed)
    assert report.code == "runner_crashed"
    assert held(core) == {B.id}


def test_a_fetch_that_fails_touches_no_attempt_of_another_model() -> None:
    core = holding(A)
    core.frame(wire.Hold(card=B))
    core.frame(offer("job_1", card=A))
    (report,) = sent(core.give(FetchFailed(B.revision, "no network")))
    assert isinstance(report, wire.HoldReport)
    assert (report.phase, report.detail) == ("failed", "no network")
    assert core.state.live_count == 1
    assert held(core) == {A.id}


def test_a_child_that_does_not_stop_is_closed_alone() -> None:
    core = holding(A, B)
    core.frame(offer("job_1", card=A))
    core.frame(wire.Cancel(job_id="job_1", fence=1, reason="client"))
    assert closed(core.after(10.1)) == [1]
    assert held(core) == {B.id}
    assert core.state.live_count == 0


def test_progress_of_one_models_loading_is_no_progress_of_anothers_attempt() -> None:
    core = Core()
    core.frame(wire.Hold(card=B))
    core.frame(offer("job_1", card=A, progress_deadline_seconds=10.0))
    for revision in (A.revision, B.revision):
        core.give(FetchEnded(revision, Path("/models/x")))
    # Of the two children that start at once, A's is the second.
    generation = next(s.generation for s in core.state.keeper.slots.values() if s.card == B)
    assert generation is not None
    core.now = 7.0
    core.said(runner.Loading(done_bytes=1, total_bytes=2), generation)
    (report,) = sent(core.after(1.1))
    assert isinstance(report, wire.Failed)
    assert report.code == "load_failed"
    assert held(core) == {B.id}


def test_a_load_that_fails_is_told_to_who_asked_for_it() -> None:
    core = Core()
    core.frame(wire.Hold(card=A))
    core.give(FetchEnded(A.revision, Path("/models/a")))
    (report,) = sent(core.give(RunnerExited(1, "no first token")))
    assert isinstance(report, wire.HoldReport)
    assert (report.phase, report.detail) == ("failed", "no first token")


def test_a_drain_closes_every_child() -> None:
    core = holding(A, B, C)
    assert closed(core.give(DrainRequested())) == [1, 2, 3]
    assert held(core) == set()


# -- the owner's memory --------------------------------------------------------------------------


def test_memory_that_others_need_for_a_while_is_given_back_oldest_first() -> None:
    core = holding(A, B, C)
    assert free_is(core, GIB // 2) == []
    core.now += 10
    assert free_is(core, GIB // 2 - 1) == []
    core.now += 3.9
    assert free_is(core, GIB // 2 - 1) == []
    core.now += 0.2
    # One suffices: what its child gives back is counted.
    assert closed(free_is(core, GIB // 2 - 1)) == [1]
    core.now += 10
    assert free_is(core, GIB // 2 - 1) == []
    core.give(RunnerExited(1))
    assert free_is(core, GIB) == []
    assert held(core) == {B.id, C.id}


def test_a_moments_need_of_memory_costs_no_model() -> None:
    core = holding(A, B)
    for _ in range(5):
        free_is(core, 0)
        core.now += 3
        assert free_is(core, 0) == []
        free_is(core, GIB)
    assert held(core) == {A.id, B.id}


def test_as_many_go_as_must_but_never_the_one_at_work() -> None:
    core = holding(A, TINY, B)
    core.frame(offer("job_1", card=A))
    free_is(core, 0)
    core.now += 4
    # A is the last used, TINY too little, so B goes too.
    assert closed(free_is(core, 0)) == [2, 3]
    core.give(RunnerExited(2))
    core.give(RunnerExited(3))
    core.now += 60
    assert closed(free_is(core, 0)) == []
    assert core.state.live_count == 1


def test_a_model_that_outgrew_its_plan_pushes_an_idle_one_out_of_what_is_lent() -> None:
    core = holding(A, B, lent_bytes=2 * (2 * GIB + PROCESS_BYTES) + GIB)
    assert free_is(core, FREE) == []
    core.said(runner.Alive(active_bytes=4 * GIB, steps=1), 2)
    assert closed(free_is(core, FREE)) == [1]


def test_the_child_at_work_is_told_what_the_others_leave() -> None:
    lent = 20 * GIB
    core = holding(A, B, lent_bytes=lent)
    instructions = core.frame(offer("job_1", card=A))
    left = lent - B.weights_bytes - PROCESS_BYTES
    assert kinds(instructions)[-2:] == [LimitRunner, StartRun]
    assert LimitRunner(1, left) in instructions
    assert LimitRunner not in kinds(core.frame(offer("job_2", card=A)))
    end_the_run(core, "r2", 1)
    core.give(RunnerExited(2, "killed"))
    assert LimitRunner(1, lent) in core.frame(offer("job_3", card=A))


def test_alone_a_child_is_told_nothing_as_it_may_have_all_that_is_lent() -> None:
    assert LimitRunner not in kinds(holding(A, lent_bytes=20 * GIB).frame(offer(card=A)))


# -- self-tests ----------------------------------------------------------------------------------

ASKED: Final = wire.SelfTest(nonce="nonce-of-the-test-1")


def test_a_self_test_runs_beside_idle_models_in_what_is_free() -> None:
    core = holding(A, B)
    free_is(core, GIB)
    (start,) = core.frame(ASKED)
    assert isinstance(start, StartSelfTest)
    assert start.size_bytes == GIB // 3
    core.frame(wire.Hold(card=C))
    core = holding(A, B)
    core.frame(wire.Hold(card=C))
    assert core.frame(ASKED) == [], "a model is on its way"


@pytest.mark.parametrize("models_max", [1, 2, 4])
def test_any_number_of_models_serves_any_order_of_jobs(models_max: int) -> None:
    core = Core(models_max=models_max)
    loads = 0
    for number, card in enumerate([A, B, A, C, B, A] * 2, 1):
        instructions = core.frame(offer(f"job_{number}", card=card))
        for generation in closed(instructions):
            core.give(RunnerExited(generation))
        started = core.give(FetchEnded(card.revision, Path("/models/x")))
        for item in started:
            assert isinstance(item, StartRunner)
            said_ready(core, item.generation, card)
        loads += len(started)
        slot = core.state.keeper.slots[card.revision]
        assert slot.generation is not None
        end_the_run(core, f"r{number}", slot.generation)
        assert core.state.live_count == 0
        assert len(core.state.slots()) <= models_max
    # Alone, each change is a load; of two, three times the older goes in each half; three fit.
    assert loads == {1: 11, 2: 8, 4: 3}[models_max]
