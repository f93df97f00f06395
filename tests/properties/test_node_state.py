"""The node's core under random frames, duplicated, reordered and late, and random child messages."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
    FetchProgressed,
    FrameReceived,
    Instruction,
    LimitRunner,
    LinkDown,
    LinkUp,
    RunnerExited,
    RunnerSaid,
    Send,
    StartRun,
    StartRunner,
    StartSelfTest,
    StopRun,
    StopSelfTest,
    Tick,
)
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from node_agent.protocol.signing import tokens_digest
from node_agent.runner import messages as runner
from node_agent.sizing.memory import PROCESS_BYTES, needed_bytes
from node_agent.state import NodeState

WIDTH: Final = 2
FREE: Final = 1 << 40


def make_card(name: str, weights_bytes: int = 1000) -> ModelCard:
    digest = "0" * 64
    return ModelCard.model_validate(
        {
            "id": name,
            "name": name,
            "kind": "chat",
            "licence": "apache-2.0",
            "context_tokens": 512,
            "weights_bytes": weights_bytes,
            "source": {
                "type": "folder",
                "folder": name,
                "files": [{"name": "model.safetensors", "bytes": 1, "sha256": digest}],
            },
            "shape": {
                "model_type": "llama",
                "layers": 1,
                "hidden": 8,
                "intermediate": 8,
                "heads": 1,
                "kv_heads": 1,
                "head_dim": 8,
                "vocab": 100,
            },
            "tokenizer": {"eos_ids": [2], "tokenizer_sha256": digest},
            "price": {
                "input_umlx_per_million": 1,
                "cached_input_umlx_per_million": 1,
                "output_umlx_per_million": 1,
            },
        }
    )


CARDS: Final = (make_card("one"), make_card("two"))
GIB: Final = 1 << 30
SIZED: Final = tuple(make_card(name, size * GIB) for name, size in (("big", 6), ("mid", 3), ("small", 1)))
LENT: Final = 12 * GIB
JOBS: Final = ("job_a", "job_b", "job_c")

jobs = st.sampled_from(JOBS)
rarely = st.sampled_from([False, False, False, True])
# Fences around the latest one that was offered: old, current, new.
steps = st.sampled_from([0, 0, 0, -1, 1])


class Child:
    """A runner child that obeys, late or never, as the test says."""

    def __init__(self, generation: int, card: ModelCard) -> None:
        self.generation = generation
        self.card = card
        self.is_ready = False
        self.bytes = 0
        self.limit_bytes = LENT
        self.runs: dict[str, runner.Run] = {}
        self.stopping: set[str] = set()


class NodeMachine(RuleBasedStateMachine):
    @initialize(models_max=st.integers(1, 3))
    def begin(self, models_max: int) -> None:
        self.now = 0.0
        self.limits = CoreSettings(lent_bytes=LENT, width=WIDTH, models_max=models_max)
        self.core = NodeState(self.limits, lambda _: "signature")
        self.children: dict[int, Child] = {}
        self.closing: list[Child] = []
        self.fetching: list[ModelCard] = []
        self.link_is_up = False
        self.latest: dict[str, int] = defaultdict(int)
        # What the coordinator holds of each attempt since the last time it said where to go on.
        self.received: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.generated: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.key_of: dict[str, tuple[str, int]] = {}
        self.settled: set[tuple[str, int]] = set()
        self.asked: tuple[str, int] | None = None
        self.accepted: dict[tuple[str, int], bool] = {}
        self.said_goodbye = False
        self.drained = False
        self.offers: list[wire.Offer] = []
        # What other programs leave of the machine; our children take of it, too.
        self.machine_bytes = LENT + 4 * GIB
        self.measure()
        self.connect()

    @property
    def loaded(self) -> list[Child]:
        return [child for child in self.children.values() if child.is_ready]

    @property
    def working(self) -> Child | None:
        """The child that has runs."""
        return next((child for child in self.children.values() if child.runs), None)

    def measure(self) -> None:
        held = sum(child.bytes for child in (*self.children.values(), *self.closing))
        self.give(FactsMeasured(free_bytes=max(0, self.machine_bytes - held), disk_free_bytes=FREE))

    # -- carrying out ----------------------------------------------------------------------------

    def give(self, event: Event) -> None:
        for instruction in self.core.handle(event, self.now):
            self.perform(instruction)

    def perform(self, instruction: Instruction) -> None:
        match instruction:
            case Send(message=message):
                assert self.link_is_up
                assert not self.said_goodbye
                self.hear(message)
            case FetchModel(card=card):
                self.fetching.append(card)
            case StartRunner(generation=generation, card=card):
                assert not self.closing, "a child before the older one has gone"
                held = [child.card.id for child in self.children.values()]
                assert card.id not in held, "two children of one model"
                assert len(held) < self.limits.models_max, "more models than the owner allows"
                self.children[generation] = Child(generation, card)
            case CloseRunner(generation=generation):
                self.closing.append(self.children.pop(generation))
            case LimitRunner(generation=generation, memory_bytes=memory_bytes):
                self.children[generation].limit_bytes = memory_bytes
            case StartRun(generation=generation, run=run):
                self.start(self.children[generation], run)
            case StopRun(generation=generation, key=key):
                self.children[generation].stopping.add(key)
            case Drained():
                self.drained = True
            case StartSelfTest() | StopSelfTest():
                raise AssertionError("nobody asked for a self-test")

    def start(self, child: Child, run: runner.Run) -> None:
        assert child.is_ready
        assert not self.closing, "a run before the memory is back"
        assert self.working in {None, child}, "two models at work"
        # The one that grows stays within what the others leave of the memory that is lent.
        others = sum(other.bytes for other in self.children.values() if other is not child)
        assert child.limit_bytes + others <= LENT
        owner = next(a for a in self.core.book.attempts.values() if a.key == run.key)
        job = owner.offer.job_id
        assert owner.offer.card == child.card
        assert job not in [self.key_of[key][0] for key in child.runs], "two runs for one job"
        assert len(child.runs) < WIDTH
        child.runs[run.key] = run
        self.key_of[run.key] = (job, owner.offer.fence)

    def hear(self, message: wire.Message) -> None:
        job = getattr(message, "job_id", None)
        if job is None:
            self.said_goodbye = isinstance(message, wire.Goodbye)
            return
        place = (job, getattr(message, "fence", 0))
        if place in self.settled:
            # Who asks about what is over is told so; nothing else is said of it.
            assert self.asked == place, "something was sent after settled"
            assert isinstance(message, wire.Failed)
            return
        match message:
            case wire.Chunk(offset=offset, token_ids=ids):
                assert offset == len(self.received[place]), "chunks are not contiguous"
                self.received[place].extend(ids)
            case wire.Finished():
                made = self.generated[place]
                assert message.token_count == len(made)
                assert message.output_digest == tokens_digest(made)
            case wire.Accept():
                assert self.accepted.get(place) is not False, "accepted after a decline"
                self.accepted[place] = True
            case wire.Decline():
                assert self.accepted.get(place) is not True, "declined after an accept"
                self.accepted[place] = False
            case _:
                pass

    def ask(self, job: str, fence: int, message: wire.Cancel | wire.Resume) -> None:
        """A frame that must be answered, also about what is over."""
        self.asked = (job, fence)
        self.give(FrameReceived(message))
        self.asked = None

    def fence_near(self, job: str, step: int) -> int:
        return max(1, self.latest[job] + step)

    def connect(self) -> None:
        self.link_is_up = True
        self.give(LinkUp())

    # -- the coordinator -------------------------------------------------------------------------

    @precondition(lambda self: self.link_is_up)
    @rule(
        job=jobs,
        step=st.sampled_from([1, 1, 0, -1]),
        card=st.sampled_from(SIZED),
        deadline=st.sampled_from([10.0, 60.0]),
        evict=st.lists(st.sampled_from([card.revision for card in SIZED]), max_size=3),
    )
    def offer(self, job: str, step: int, card: ModelCard, deadline: float, evict: list[str]) -> None:
        fence = self.fence_near(job, step)
        self.latest[job] = max(self.latest[job], fence)
        offer = wire.Offer(
            job_id=job,
            fence=fence,
            card=card,
            card_revision=card.revision,
            prompt_ids=(1, 2, 3),
            max_tokens=40,
            stop_token_ids=(2,),
            sampling=wire.Sampling(seed=1),
            progress_deadline_seconds=deadline,
            evict=tuple(evict),
        )
        self.offers.append(offer)
        self.measure()
        self.give(FrameReceived(offer))

    @precondition(lambda self: self.link_is_up and bool(self.offers))
    @rule(data=st.data())
    def repeat_an_offer(self, data: st.DataObject) -> None:
        self.give(FrameReceived(data.draw(st.sampled_from(self.offers))))

    @precondition(lambda self: self.link_is_up)
    @rule(job=jobs, step=steps, reason=st.sampled_from(["client", "stop_string", "lost"]))
    def cancel(self, job: str, step: int, reason: str) -> None:
        fence = self.fence_near(job, step)
        message = {"type": "cancel", "job_id": job, "fence": fence, "reason": reason}
        self.ask(job, fence, wire.Cancel.model_validate(message))

    @precondition(lambda self: self.link_is_up)
    @rule(job=jobs, step=steps, back=st.integers(0, 50))
    def resume(self, job: str, step: int, back: int) -> None:
        fence = self.fence_near(job, step)
        held = self.received[job, fence]
        del held[max(0, len(held) - back) :]
        self.ask(job, fence, wire.Resume(job_id=job, fence=fence, offset=len(held)))

    @precondition(lambda self: self.link_is_up and any(self.accepted.values()))
    @rule(job=jobs, step=steps, early=rarely)
    def settle(self, job: str, step: int, early: bool) -> None:
        fence = self.fence_near(job, step)
        attempt = self.core.book.attempts.get(job)
        if attempt is not None and attempt.is_live and not early:
            return
        if self.accepted.get((job, fence)):
            self.settled.add((job, fence))
        self.give(FrameReceived(wire.Settled(job_id=job, fence=fence)))

    @precondition(lambda self: self.link_is_up)
    @rule(card=st.sampled_from(SIZED))
    def hold(self, card: ModelCard) -> None:
        self.measure()
        self.give(FrameReceived(wire.Hold(card=card)))

    @rule(loses=rarely, tokens_lost=st.integers(0, 3))
    def lose_or_find_the_link(self, loses: bool, tokens_lost: int) -> None:
        if self.link_is_up and loses:
            self.link_is_up = False
            # What was in flight is gone: the coordinator's prefix is shorter than what was sent.
            for held in self.received.values():
                del held[max(0, len(held) - tokens_lost) :]
            self.give(LinkDown())
        elif not self.link_is_up:
            self.connect()

    # -- files and children ----------------------------------------------------------------------

    @precondition(lambda self: bool(self.fetching))
    @rule(outcome=st.sampled_from(["ended", "ended", "failed", "progressed"]))
    def fetch(self, outcome: str) -> None:
        card = self.fetching[0]
        if outcome == "progressed":
            self.give(FetchProgressed(card.revision, 1, 2))
            return
        self.fetching.pop(0)
        if outcome == "ended":
            self.give(FetchEnded(card.revision, Path("/models") / card.id))
        else:
            self.give(FetchFailed(card.revision, "no network"))

    def say(self, child: Child, message: runner.FromRunner) -> None:
        self.give(RunnerSaid(child.generation, message))

    def draw_child(self, data: st.DataObject, of: list[Child]) -> Child:
        return data.draw(st.sampled_from(sorted(of, key=lambda child: child.generation)))

    @precondition(lambda self: len(self.loaded) < len(self.children))
    @rule(data=st.data(), is_whole=st.booleans())
    def child_loads(self, data: st.DataObject, is_whole: bool) -> None:
        loading = [child for child in self.children.values() if not child.is_ready]
        child = self.draw_child(data, loading)
        size = child.card.weights_bytes
        if is_whole:
            self.child_ready(child)
        else:
            child.bytes = size // 2
            self.say(child, runner.Loading(done_bytes=child.bytes, total_bytes=size))

    def child_ready(self, child: Child) -> None:
        child.is_ready, child.bytes = True, child.card.weights_bytes
        ready = runner.Ready(
            load_seconds=1.0, active_bytes=child.bytes, vocab=100, mlx_version="1", mlx_lm_version="1"
        )
        self.say(child, ready)

    @precondition(lambda self: self.working is not None)
    @rule(data=st.data(), count=st.integers(1, 5))
    def child_tokens(self, data: st.DataObject, count: int) -> None:
        assert self.working is not None
        self.child_makes(self.working, data.draw(st.sampled_from(sorted(self.working.runs))), count)

    def child_makes(self, child: Child, key: str, count: int) -> None:
        made = self.generated[self.key_of[key]]
        ids = tuple(range(len(made), len(made) + count))
        attempt = self.core.book.attempts.get(self.key_of[key][0])
        if attempt is not None and attempt.key == key and attempt.is_running:
            made.extend(ids)
        self.say(child, runner.Tokens(key=key, ids=ids))

    @precondition(lambda self: self.working is not None)
    @rule(data=st.data(), fails=st.booleans())
    def child_ends(self, data: st.DataObject, fails: bool) -> None:
        child = self.working
        assert child is not None
        key = data.draw(st.sampled_from(sorted(child.runs)))
        del child.runs[key]
        if fails:
            self.say(child, runner.RunFailed(key=key, code="internal", message="a fault"))
        else:
            stopped = key in child.stopping
            self.say(child, runner.Ended(key=key, finish_reason="cancelled" if stopped else "eos"))

    @precondition(lambda self: bool(self.children))
    @rule(data=st.data(), dies=rarely)
    def child_dies(self, data: st.DataObject, dies: bool) -> None:
        if dies:
            child = self.draw_child(data, list(self.children.values()))
            del self.children[child.generation]
            self.give(RunnerExited(child.generation, "killed"))

    @precondition(lambda self: bool(self.closing))
    @rule()
    def child_closes(self) -> None:
        self.give(RunnerExited(self.closing.pop(0).generation))

    @rule(generation=st.integers(-3, -1))
    def ghost_speaks(self, generation: int) -> None:
        self.give(RunnerSaid(generation, runner.Tokens(key="r1", ids=(1,))))
        self.give(RunnerExited(generation))

    def take_the_natural_step(self) -> None:
        """What would happen next if nothing went wrong, so that runs get somewhere."""
        if self.closing:
            self.child_closes()
        elif self.fetching:
            card = self.fetching.pop(0)
            self.give(FetchEnded(card.revision, Path("/models") / card.id))
        elif len(self.loaded) < len(self.children):
            self.child_ready(next(child for child in self.children.values() if not child.is_ready))
        elif self.working is not None:
            self.child_makes(self.working, min(self.working.runs), 2)

    @rule()
    def step_once(self) -> None:
        self.take_the_natural_step()

    @rule(count=st.integers(2, 4))
    def step_often(self, count: int) -> None:
        for _ in range(count):
            self.take_the_natural_step()

    # -- time ------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.3, 0.3, 3.0, 9.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.give(Tick())

    @rule(gib=st.sampled_from([6, 10, 14, 16]), again_seconds=st.sampled_from([0.0, 5.0]))
    def other_programs_take_memory(self, gib: int, again_seconds: float) -> None:
        self.machine_bytes = gib * GIB
        self.measure()
        self.now += again_seconds
        self.measure()

    @precondition(lambda self: self.now > 60)
    @rule(drains=rarely)
    def drain(self, drains: bool) -> None:
        if drains:
            self.give(DrainRequested())

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def the_core_knows_exactly_the_childrens_runs(self) -> None:
        if not hasattr(self, "core"):
            return
        known = set(self.core.keeper.runs)
        assert known == {key for child in self.children.values() for key in child.runs}
        running = [a for a in self.core.book.attempts.values() if a.is_running]
        assert {attempt.key for attempt in running} <= known
        assert self.core.live_count <= WIDTH

    @invariant()
    def one_model_is_at_work(self) -> None:
        if not hasattr(self, "core"):
            return
        assert sum(bool(child.runs) for child in self.children.values()) <= 1
        live = [a.revision for a in self.core.book.attempts.values() if a.is_live]
        assert len(set(live)) <= 1, "attempts of two models"
        reported = [report for report in self.core.slots() if report.live]
        assert sum(report.live for report in reported) <= len(live)
        assert {report.card_revision for report in reported} <= set(live)

    @invariant()
    def what_is_planned_fits(self) -> None:
        if not hasattr(self, "core"):
            return
        keeper = self.core.keeper
        assert len(keeper.slots) <= self.limits.models_max
        if len(keeper.slots) > 1:
            assert self.planned_bytes() <= LENT
        # Of what is there in truth: no more children than weights fit.
        held = sum(child.bytes for child in (*self.children.values(), *self.closing))
        assert held <= LENT

    def planned_bytes(self) -> int:
        """Worked out here from what the children truly hold and what live attempts may need."""
        total = 0
        for revision, slot in self.core.keeper.slots.items():
            live = [a for a in self.core.book.attempts.values() if a.is_live and a.revision == revision]
            if live:
                total += needed_bytes(slot.card, max(a.context_tokens for a in live), len(live))
            elif slot.phase.value == "ready":
                total += slot.card.weights_bytes + PROCESS_BYTES
            else:
                total += needed_bytes(slot.card, 1, 1)
        return total

    @invariant()
    def whoever_lives_is_being_served(self) -> None:
        if not hasattr(self, "core") or self.core.draining is not None:
            return
        for attempt in self.core.book.attempts.values():
            assert not attempt.is_live or attempt.revision in self.core.keeper.slots

    def teardown(self) -> None:
        """However it went, it settles: what is fetched loads, and a drain ends with nothing left."""
        if not hasattr(self, "core"):
            return
        if self.core.draining is None:
            self.settle_down()
        self.give(DrainRequested())
        self.now += 6.0
        self.give(Tick())
        assert self.drained
        assert not self.children, "a child was left"
        assert self.core.live_count == 0

    def settle_down(self) -> None:
        """When nothing goes wrong any more, every model loads and every waiting attempt runs."""
        while self.closing or self.fetching or len(self.loaded) < len(self.children):
            self.take_the_natural_step()
        assert {slot.phase.value for slot in self.core.keeper.slots.values()} <= {"ready"}
        occupied = {self.key_of[key][0] for child in self.children.values() for key in child.runs}
        for attempt in self.core.book.attempts.values():
            is_kept_waiting = attempt.offer.job_id in occupied or len(self.core.keeper.runs) >= WIDTH
            assert not attempt.is_waiting or is_kept_waiting


NodeMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestNodeState = NodeMachine.TestCase
