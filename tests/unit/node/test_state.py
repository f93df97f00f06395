"""The core's rules one by one: what an event makes the node do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.settings import Settings
from node_agent.agent import TICK_SECONDS
from node_agent.attempt_book import CoreSettings
from node_agent.events import (
    CloseRunner,
    Drained,
    DrainRequested,
    Event,
    FactsMeasured,
    FetchEnded,
    FetchFailed,
    FetchModel,
    FrameReceived,
    Instruction,
    Lane,
    LinkDown,
    LinkUp,
    RunnerExited,
    RunnerSaid,
    Send,
    StartRun,
    StartRunner,
    StopRun,
    Tick,
)
from node_agent.protocol import messages as wire
from node_agent.runner import messages as runner
from node_agent.settings import LinkSettings
from node_agent.sizing.memory import needed_bytes
from node_agent.state import NodeState
from tests.properties.test_node_state import CARDS

ONE, TWO = CARDS
FREE = 1 << 40
READY = runner.Ready(load_seconds=1.0, active_bytes=500, vocab=100, mlx_version="1", mlx_lm_version="1")


class Core:
    """The core with a clock, connected unless told otherwise."""

    def __init__(
        self, *, width: int = 2, free_bytes: int = FREE, lent_bytes: int = FREE, models_max: int = 4
    ) -> None:
        settings = CoreSettings(lent_bytes=lent_bytes, width=width, models_max=models_max)
        self.state = NodeState(settings, lambda _: "signature")
        self.now = 0.0
        self.give(FactsMeasured(free_bytes=free_bytes, disk_free_bytes=1000))
        self.give(LinkUp())

    def give(self, event: Event) -> list[Instruction]:
        return self.state.handle(event, self.now)

    def frame(self, message: wire.ToNode, fetch_bytes: int = 0) -> list[Instruction]:
        return self.give(FrameReceived(message, fetch_bytes))

    def said(self, message: runner.FromRunner, generation: int = 1) -> list[Instruction]:
        return self.give(RunnerSaid(generation, message))

    def after(self, seconds: float) -> list[Instruction]:
        self.now += seconds
        return self.give(Tick())

    def running(self, *offers: wire.Offer) -> Core:
        """Model `one` loaded and these offers started, as runs r1, r2, ..."""
        for each in offers or (offer(),):
            self.frame(each)
        self.give(FetchEnded(ONE.revision, Path("/models/one")))
        self.said(READY)
        return self


def offer(job: str = "job_a", fence: int = 1, **changes: Any) -> wire.Offer:
    card = changes.get("card", ONE)
    facts: dict[str, Any] = {
        "job_id": job,
        "fence": fence,
        "card": card,
        "card_revision": card.revision,
        "prompt_ids": (5, 6),
        "max_tokens": 10,
        "stop_token_ids": (2,),
        "sampling": wire.Sampling(seed=1),
        "progress_deadline_seconds": 10.0,
    }
    return wire.Offer(**(facts | changes))


def sent(instructions: list[Instruction]) -> list[wire.Message]:
    return [item.message for item in instructions if isinstance(item, Send)]


def kinds(instructions: list[Instruction]) -> list[type[Instruction]]:
    return [type(item) for item in instructions]


def the_decline(instructions: list[Instruction]) -> wire.Decline:
    (message,) = sent(instructions)
    assert isinstance(message, wire.Decline)
    return message


def test_an_offer_is_accepted_fetched_loaded_run_and_reported() -> None:
    core = Core()
    assert kinds(core.frame(offer())) == [Send, FetchModel]
    (start,) = core.give(FetchEnded(ONE.revision, Path("/models/one")))
    assert start == StartRunner(1, ONE, Path("/models/one"))
    (run,) = core.said(READY)
    assert isinstance(run, StartRun)
    assert run.run.prompt_ids == (5, 6)
    assert "job" not in run.run.key
    assert sent(core.said(runner.Prefilled(key="r1", done_tokens=1, total_tokens=2)))
    (chunk,) = core.said(runner.Tokens(key="r1", ids=(7, 8)))
    assert isinstance(chunk, Send)
    assert chunk.lane is Lane.DATA
    (report,) = sent(core.said(runner.Ended(key="r1", finish_reason="eos")))
    assert isinstance(report, wire.Finished)
    assert report.token_count == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"card_revision": "0" * 64}, "card_mismatch"),
        ({"prompt_ids": (5, 100)}, "card_mismatch"),
        ({"prompt_ids": (-1,)}, "card_mismatch"),
        ({"prompt_ids": ()}, "card_mismatch"),
        ({"prefix_ids": (100,)}, "card_mismatch"),
        ({"max_tokens": 511}, "context_too_long"),
    ],
)
def test_an_offer_that_contradicts_its_card_is_declined(changes: dict[str, Any], reason: str) -> None:
    assert the_decline(Core().frame(offer(**changes))).reason == reason


def test_memory_is_what_is_lent_and_free() -> None:
    needed = needed_bytes(ONE, 12, 1)
    assert the_decline(Core(free_bytes=needed - 1).frame(offer())).reason == "memory_short"
    assert the_decline(Core(lent_bytes=needed - 1).frame(offer())).reason == "memory_short"
    assert not isinstance(sent(Core(free_bytes=needed).frame(offer()))[0], wire.Decline)


def test_memory_of_the_loaded_model_counts_as_free_for_its_own_attempts() -> None:
    needed = needed_bytes(ONE, 12, 2)
    core = Core(free_bytes=needed - 500).running(offer(max_tokens=1))
    assert isinstance(sent(core.frame(offer("job_b")))[0], wire.Accept)


def test_a_full_disk_is_a_reason() -> None:
    assert the_decline(Core().frame(offer(), fetch_bytes=1001)).reason == "disk_short"


def test_a_full_width_or_another_model_at_work_is_busy() -> None:
    core = Core(width=1).running()
    assert the_decline(core.frame(offer("job_b"))).reason == "busy"
    core = Core().running()
    assert the_decline(core.frame(offer("job_b", card=TWO))).reason == "busy"


def test_an_idle_node_of_one_model_turns_to_another_after_the_old_child_has_gone() -> None:
    core = Core(models_max=1).running()
    core.said(runner.Ended(key="r1", finish_reason="eos"))
    instructions = core.frame(offer("job_b", card=TWO))
    assert kinds(instructions) == [Send, CloseRunner, FetchModel]
    assert core.give(FetchEnded(TWO.revision, Path("/models/two"))) == []
    (start,) = core.give(RunnerExited(1))
    assert start == StartRunner(2, TWO, Path("/models/two"))


def test_the_same_offer_twice_is_one_run_and_two_accepts() -> None:
    core = Core().running()
    (again,) = core.frame(offer())
    assert isinstance(again, Send)
    assert isinstance(again.message, wire.Accept)


def test_a_newer_fence_ends_the_older_run_before_its_own_starts() -> None:
    core = Core().running()
    core.said(runner.Tokens(key="r1", ids=(7,)))
    instructions = core.frame(offer(fence=2))
    assert StopRun(1, "r1") in instructions
    assert StartRun not in kinds(instructions)
    assert core.said(runner.Tokens(key="r1", ids=(8,))) == []
    (start,) = core.said(runner.Ended(key="r1", finish_reason="cancelled"))
    assert isinstance(start, StartRun)
    assert core.frame(offer(fence=1)) == []


def test_a_declined_offer_is_declined_again_the_same_way() -> None:
    core = Core(width=1).running()
    first = the_decline(core.frame(offer("job_b")))
    core.said(runner.Ended(key="r1", finish_reason="eos"))
    assert the_decline(core.frame(offer("job_b"))) == first


def test_a_cancel_ends_between_two_tokens_with_what_was_made() -> None:
    core = Core().running()
    core.said(runner.Tokens(key="r1", ids=(7,)))
    stop = wire.Cancel(job_id="job_a", fence=1, reason="client")
    assert core.frame(stop) == [StopRun(1, "r1")]
    assert core.frame(stop) == []
    (report,) = sent(core.said(runner.Ended(key="r1", finish_reason="cancelled")))
    assert isinstance(report, wire.Finished)
    assert (report.finish_reason, report.token_count) == ("cancelled", 1)


def test_a_cancel_that_overtakes_its_offer_still_counts() -> None:
    core = Core()
    core.frame(wire.Cancel(job_id="job_a", fence=1, reason="client"))
    assert core.frame(offer()) == []


def test_the_report_is_repeated_more_and_more_seldom_until_settled() -> None:
    core = Core().running()
    core.said(runner.Ended(key="r1", finish_reason="eos"))
    times: list[float] = []
    while core.now < 100:
        if sent(core.after(0.5)):
            times.append(core.now)
    assert times == [2.0, 6.0, 14.0, 30.0, 60.0, 90.0]
    core.frame(wire.Settled(job_id="job_a", fence=1))
    assert core.state.live() == ()
    assert core.after(100) == []


def test_the_nodes_deadline_is_shorter_than_the_coordinators() -> None:
    core = Core().running()
    core.after(7.9)
    core.said(runner.Tokens(key="r1", ids=(7,)))
    assert core.after(7.9) == []
    instructions = core.after(0.2)
    (report,) = sent(instructions)
    assert isinstance(report, wire.Failed)
    assert report.code == "runner_stalled"
    assert StopRun(1, "r1") in instructions
    # A child that does not even stop is closed.
    assert CloseRunner(1) in core.after(10.1)


def test_a_crash_fails_what_ran_and_loads_once_more_for_what_waited() -> None:
    core = Core(width=2).running()
    core.frame(offer(fence=2))  # waits for the end of r1
    (start,) = core.give(RunnerExited(1, "killed"))
    assert start == StartRunner(2, ONE, Path("/models/one"))
    core = Core().running()
    (report,) = sent(core.give(RunnerExited(1, "killed")))
    assert isinstance(report, wire.Failed)
    assert report.code == "runner_crashed"
    assert FetchModel in kinds(core.frame(offer("job_b")))


def test_a_failed_fetch_fails_its_attempts_and_is_not_tried_again_at_once() -> None:
    core = Core()
    core.frame(offer())
    (report,) = sent(core.give(FetchFailed(ONE.revision, "no network")))
    assert isinstance(report, wire.Failed)
    assert report.code == "download_failed"
    decline = the_decline(core.frame(offer(fence=2)))
    assert (decline.reason, decline.detail) == ("model_unavailable", "no network")
    core.after(61)
    assert isinstance(sent(core.frame(offer(fence=3)))[0], wire.Accept)


def test_after_a_reconnect_nothing_is_sent_before_resume() -> None:
    core = Core().running()
    core.said(runner.Tokens(key="r1", ids=(7, 8)))
    core.give(LinkDown())
    assert core.said(runner.Tokens(key="r1", ids=(9,))) == []
    assert [attempt.offset for attempt in core.state.live()] == [3]
    core.give(LinkUp())
    assert core.said(runner.Tokens(key="r1", ids=(10,))) == []
    (chunk,) = sent(core.frame(wire.Resume(job_id="job_a", fence=1, offset=1)))
    assert isinstance(chunk, wire.Chunk)
    assert (chunk.offset, chunk.token_ids) == (1, (8, 9, 10))
    (chunk,) = sent(core.said(runner.Tokens(key="r1", ids=(11,))))
    assert isinstance(chunk, wire.Chunk)
    assert chunk.offset == 4


def test_resume_of_an_ended_attempt_brings_its_report_again() -> None:
    core = Core().running()
    core.said(runner.Tokens(key="r1", ids=(7, 8)))
    core.give(LinkDown())
    core.said(runner.Ended(key="r1", finish_reason="eos"))
    core.give(LinkUp())
    messages = sent(core.frame(wire.Resume(job_id="job_a", fence=1, offset=0)))
    assert [message.model_dump()["type"] for message in messages] == ["chunk", "finished"]


def test_resume_of_an_attempt_that_was_given_up_is_answered() -> None:
    core = Core().running()
    core.give(LinkDown())
    core.after(60.0)
    core.give(LinkUp())
    (answer,) = sent(core.frame(wire.Resume(job_id="job_a", fence=1, offset=0)))
    assert isinstance(answer, wire.Failed)
    assert answer.code == "given_up"


def test_without_the_coordinator_work_stops_before_its_deadline_there() -> None:
    core = Core().running()
    core.give(LinkDown())
    core.now += 7.9
    core.said(runner.Tokens(key="r1", ids=(7,)))
    assert core.after(0.05) == []
    assert core.after(0.1) == [StopRun(1, "r1")]
    assert core.state.live() == ()


def test_silence_before_the_loss_of_the_socket_counts() -> None:
    core = Core().running()
    core.give(LinkDown(silent_seconds=7.0))
    core.now += 0.9
    core.said(runner.Tokens(key="r1", ids=(7,)))
    assert core.after(0.05) == []
    assert core.after(0.1) == [StopRun(1, "r1")]


def test_a_long_deadline_does_not_keep_work_that_the_coordinator_has_given_away() -> None:
    core = Core()
    core.frame(offer().model_copy(update={"progress_deadline_seconds": 1000.0}))
    core.give(LinkDown())
    kept = core.state.settings.keep_seconds
    core.after(kept - 0.1)
    assert len(core.state.live()) == 1
    core.after(0.2)
    assert core.state.live() == ()


def test_the_nodes_deadlines_are_shorter_than_the_coordinators() -> None:
    node, link, coordinator = CoreSettings(lent_bytes=1), LinkSettings(), Settings()
    assert node.keep_seconds + TICK_SECONDS < coordinator.node_lost_seconds
    assert link.ping_seconds + link.pong_seconds < node.keep_seconds
    # Its report of a stall, and a tick, fit between its own deadline and the coordinator's.
    spare = (1 - node.deadline_share) * coordinator.progress_floor_seconds
    assert spare > 2 * TICK_SECONDS + coordinator.heartbeat_seconds
    assert coordinator.node_suspect_seconds >= 3 * coordinator.heartbeat_seconds


def test_a_drain_hands_back_and_says_goodbye_last() -> None:
    core = Core().running()
    assert core.give(DrainRequested()) == [StopRun(1, "r1")]
    assert the_decline(core.frame(offer("job_b"))).reason == "draining"
    instructions = core.said(runner.Ended(key="r1", finish_reason="cancelled"))
    (report,) = sent(instructions)
    assert isinstance(report, wire.Failed)
    assert report.code == "reclaimed"
    assert CloseRunner(1) in instructions
    goodbye, drained = core.give(RunnerExited(1))
    assert goodbye == Send(wire.Goodbye(reason="shutdown"), Lane.DATA)
    assert isinstance(drained, Drained)


def test_a_drain_does_not_wait_for_a_child_that_hangs() -> None:
    core = Core().running()
    core.give(DrainRequested())
    instructions = core.after(5.1)
    assert CloseRunner(1) in instructions
    assert isinstance(instructions[-1], Drained)


def test_a_model_can_be_held_ready_without_an_offer() -> None:
    core = Core()
    core.frame(wire.Hold(card=ONE))
    core.give(FetchEnded(ONE.revision, Path("/models/one")))
    (report,) = sent(core.said(READY))
    assert isinstance(report, wire.HoldReport)
    assert report.phase == "ready"
    assert core.state.slots()[0].bytes == 500
    core.frame(offer())
    (refused,) = sent(core.frame(wire.Hold(card=TWO)))
    assert isinstance(refused, wire.HoldReport)
    assert refused.phase == "failed"
