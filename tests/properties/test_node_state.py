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
from node_agent.state import NodeState

WIDTH: Final = 2
FREE: Final = 1 << 40


def make_card(name: str) -> ModelCard:
    digest = "0" * 64
    return ModelCard.model_validate(
        {
            "id": name,
            "name": name,
            "kind": "chat",
            "licence": "apache-2.0",
            "context_tokens": 512,
            "weights_bytes": 1000,
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
JOBS: Final = ("job_a", "job_b", "job_c")

jobs = st.sampled_from(JOBS)
rarely = st.sampled_from([False, False, False, True])
# Fences around the latest one that was offered: old, current, new.
steps = st.sampled_from([0, 0, 0, -1, 1])


class Child:
    """A runner child that obeys, late or never, as the test says."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.is_ready = False
        self.runs: dict[str, runner.Run] = {}
        self.stopping: set[str] = set()


class NodeMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.core = NodeState(CoreSettings(lent_bytes=FREE, width=WIDTH), lambda _: "signature")
        self.child: Child | None = None
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
        self.give(FactsMeasured(free_bytes=FREE, disk_free_bytes=FREE))
        self.connect()

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
            case StartRunner(generation=generation):
                assert self.child is None, "two children at once"
                assert not self.closing, "a child before the older one has gone"
                self.child = Child(generation)
            case CloseRunner(generation=generation):
                assert self.child is not None
                assert self.child.generation == generation
                self.closing.append(self.child)
                self.child = None
            case StartRun(generation=generation, run=run):
                self.start(generation, run)
            case StopRun(generation=generation, key=key):
                assert self.child is not None
                assert self.child.generation == generation
                self.child.stopping.add(key)
            case Drained():
                self.drained = True
            case StartSelfTest() | StopSelfTest():
                raise AssertionError("nobody asked for a self-test")

    def start(self, generation: int, run: runner.Run) -> None:
        assert self.child is not None
        assert self.child.generation == generation
        assert self.child.is_ready
        owner = next(a for a in self.core.book.attempts.values() if a.key == run.key)
        job = owner.offer.job_id
        others = [self.key_of[key][0] for key in self.child.runs]
        assert job not in others, "two runs for one job"
        assert len(others) < WIDTH
        self.child.runs[run.key] = run
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
        card=st.sampled_from([CARDS[0], CARDS[0], CARDS[1]]),
        deadline=st.sampled_from([10.0, 60.0]),
    )
    def offer(self, job: str, step: int, card: ModelCard, deadline: float) -> None:
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
        )
        self.offers.append(offer)
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
    @rule(card=st.sampled_from(CARDS))
    def hold(self, card: ModelCard) -> None:
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

    def say(self, message: runner.FromRunner) -> None:
        assert self.child is not None
        self.give(RunnerSaid(self.child.generation, message))

    @precondition(lambda self: self.child is not None and not self.child.is_ready)
    @rule()
    def child_ready(self) -> None:
        assert self.child is not None
        self.child.is_ready = True
        self.say(
            runner.Ready(load_seconds=1.0, active_bytes=10, vocab=100, mlx_version="1", mlx_lm_version="1")
        )

    @precondition(lambda self: self.child is not None and bool(self.child.runs))
    @rule(data=st.data(), count=st.integers(1, 5))
    def child_tokens(self, data: st.DataObject, count: int) -> None:
        assert self.child is not None
        self.child_makes(data.draw(st.sampled_from(sorted(self.child.runs))), count)

    def child_makes(self, key: str, count: int) -> None:
        made = self.generated[self.key_of[key]]
        ids = tuple(range(len(made), len(made) + count))
        attempt = self.core.book.attempts.get(self.key_of[key][0])
        if attempt is not None and attempt.key == key and attempt.is_running:
            made.extend(ids)
        self.say(runner.Tokens(key=key, ids=ids))

    @precondition(lambda self: self.child is not None and bool(self.child.runs))
    @rule(data=st.data(), fails=st.booleans())
    def child_ends(self, data: st.DataObject, fails: bool) -> None:
        assert self.child is not None
        key = data.draw(st.sampled_from(sorted(self.child.runs)))
        del self.child.runs[key]
        if fails:
            self.say(runner.RunFailed(key=key, code="internal", message="a fault"))
        else:
            stopped = key in self.child.stopping
            self.say(runner.Ended(key=key, finish_reason="cancelled" if stopped else "eos"))

    @precondition(lambda self: self.child is not None)
    @rule(dies=rarely)
    def child_dies(self, dies: bool) -> None:
        assert self.child is not None
        if not dies:
            return
        generation, self.child = self.child.generation, None
        self.give(RunnerExited(generation, "killed"))

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
        elif self.child is not None and not self.child.is_ready:
            self.child_ready()
        elif self.child is not None and self.child.runs:
            self.child_makes(min(self.child.runs), 2)

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

    @precondition(lambda self: self.now > 60)
    @rule(drains=rarely)
    def drain(self, drains: bool) -> None:
        if drains:
            self.give(DrainRequested())

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def the_core_knows_exactly_the_childs_runs(self) -> None:
        if not hasattr(self, "core"):
            return
        known = set(self.core.keeper.runs)
        assert known == (set(self.child.runs) if self.child is not None else set())
        running = [a for a in self.core.book.attempts.values() if a.is_running]
        assert {attempt.key for attempt in running} <= known
        assert self.core.live_count <= WIDTH

    @invariant()
    def whoever_lives_is_being_served(self) -> None:
        if not hasattr(self, "core") or self.core.draining is not None:
            return
        if self.core.live_count:
            assert self.core.keeper.slot is not None

    def teardown(self) -> None:
        """However it went, a drain ends within its bound, with nothing left running."""
        if not hasattr(self, "core"):
            return
        self.give(DrainRequested())
        self.now += 6.0
        self.give(Tick())
        assert self.drained
        assert self.child is None, "a child was left"
        assert self.core.live_count == 0


NodeMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestNodeState = NodeMachine.TestCase
