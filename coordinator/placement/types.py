"""Frozen facts that placement decides from, and the values that it returns.

Fields with a default may be left out: what they ask for is then not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from coordinator.placement.reject import PASSING_REASONS, REASONS, RejectReason
from node_agent.protocol.cards import ModelCard, ModelFacts
from node_agent.protocol.messages import Hardware
from node_agent.sizing.speed import DISK_BYTES_PER_SECOND

__all__ = [
    "PASSING_REASONS",
    "REASONS",
    "Forecast",
    "HostFacts",
    "JobFacts",
    "NotPlaced",
    "Outlook",
    "Placed",
    "Policy",
    "RejectReason",
    "SlotFacts",
    "SlotPlan",
]


@dataclass(frozen=True)
class SlotFacts:
    """A slot as the database knows it.

    `clear_seconds` until its model is loaded and the prompts of its attempts are read, as forecast:
    the next prompt waits for that. A slot that is to be clear is being loaded already, if it is not
    warm.
    """

    slot_id: str
    card_revision: str
    bytes: int
    width: int
    tokens_max: int
    live: int
    is_warm: bool
    clear_seconds: float = 0.0


@dataclass(frozen=True)
class HostFacts:
    """One host at the moment of decision.

    `standing` follows from its faults: paused takes nothing, on probation one job at a time.
    `is_kept_apart`: it runs a job that shares no host.
    `given_seconds` is work given lately, decayed, in seconds of this host; without it
    `given_tokens` over its bandwidth stands for it.
    `free_bytes` is what is free for slots now, those it has included; None: all that is lent.
    `slots_max`: how many models it holds at the same time; one of them is at work.
    `kinds` of models it runs, `on_disk` the revisions that it has, `disk_free_bytes` room for
    more; None: any, all, enough. Without `network_bytes_per_second` it fetches none.
    `decode_factor` and `prefill_factor` are its self-test's speed over the forecast's.
    `hungry_seconds`: how long it has been free for work and been given none.
    `seat_free_seconds` until a seat of a full slot is expected to be free, `idle_in_seconds` until
    nothing runs there; None: not known.
    `survival`: for each hour of the week (168, from Monday 0:00 UTC) the chance that its owner,
    away when it begins, is away when it ends; empty: not known.
    """

    node_id: str
    owner_id: str
    hardware: Hardware
    lent_bytes: int
    is_online: bool
    is_suspect: bool
    mode: Literal["ready", "busy", "draining", "away"]
    slots: tuple[SlotFacts, ...] = ()
    given_tokens: int = 0
    standing: Literal["sound", "paused", "on_probation"] = "sound"
    is_kept_apart: bool = False
    given_seconds: float | None = None
    free_bytes: int | None = None
    slots_max: int = 1
    kinds: frozenset[str] | None = None
    on_disk: frozenset[str] | None = None
    disk_free_bytes: int | None = None
    disk_bytes_per_second: int = DISK_BYTES_PER_SECOND
    network_bytes_per_second: int | None = None
    decode_factor: float = 1.0
    prefill_factor: float = 1.0
    region: str = ""
    price_factor_ppm: int = 1_000_000
    is_proven: bool = True
    is_held_for_older: bool = False
    hungry_seconds: float = 0.0
    seat_free_seconds: float | None = None
    idle_in_seconds: float | None = None
    survival: tuple[float, ...] = ()

    @property
    def live(self) -> int:
        """Attempts running on this host."""
        return sum(slot.live for slot in self.slots)


@dataclass(frozen=True)
class JobFacts:
    """What a job needs. `tokens` is prompt and answer together at most.

    `is_kept_apart`: it may be what crashed a host, and shares the next one with no other.
    `card_revision` saves computing it from the card's content, where the caller knows it.
    `answer_tokens_expected` is what the time is forecast from; None: the longest answer.
    `cached` names hosts that hold the beginning of the prompt, each with how many tokens of it.
    `submitter_id` and `waited_seconds` order a queue, `submitter_id` also says which Macs are own.
    `is_overdue`: it has waited so long that nothing else is weighed against it.
    Wishes: `deadline_seconds` from now, `tokens_per_second_min`, `regions` (empty: any),
    `only_node_ids` (empty: any), `own` Macs preferred, alone or not minded, and
    `price_factor_max_ppm`.
    """

    job_id: str
    card: ModelFacts
    prompt_tokens: int
    max_tokens: int
    excluded_node_ids: frozenset[str] = frozenset()
    is_kept_apart: bool = False
    card_revision: str | None = None
    answer_tokens_expected: int | None = None
    cached: tuple[tuple[str, int], ...] = ()
    submitter_id: str = ""
    waited_seconds: float = 0.0
    is_overdue: bool = False
    is_sealed: bool = False
    deadline_seconds: float = inf
    tokens_per_second_min: float = 0.0
    regions: frozenset[str] = frozenset()
    only_node_ids: frozenset[str] = frozenset()
    own: Literal["any", "prefer", "only"] = "any"
    price_factor_max_ppm: int | None = None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens

    @property
    def answer_tokens(self) -> int:
        """Tokens of the answer that time is forecast for."""
        expected = self.answer_tokens_expected
        return self.max_tokens if expected is None else min(expected, self.max_tokens)

    @property
    def revision(self) -> str:
        """The card's revision; a card without pinned files has none and is known by its id."""
        if self.card_revision is not None:
            return self.card_revision
        return self.card.revision if isinstance(self.card, ModelCard) else self.card.id


@dataclass(frozen=True)
class Policy:
    """Numbers that placement weighs with. Seconds unless the name says another unit.

    `band`: hosts whose cost is within this factor of the best are equals, and the one that is owed
    most goes first: forecasts are no better than this.
    `hungry_after` without work a host's own band begins to widen; at `hungry_full` it may end a job
    `trial_seconds` later than the best host, and for a `trial_share` of jobs (by their ids) each
    further such span is `hungry_stretch` times as wide as the last: that is the guaranteed share of
    new and small Macs, and the jobs that lose least by it come first. No host is hungry beyond a
    job's deadline.
    `keep_factor`: a host whose memory is kept for big jobs counts as so many times slower.
    An owner's return costs a job `leave_seconds`, its prompt read anew, and `leave_factor` of its
    time: a pause for the submitter, and a seat of another host.
    `hold_factor`: a job waits for a busy host if it ends so many times sooner there.
    `own_factor`: own Macs are preferred up to so many times the best one's seconds.
    `switch_factor`: a model that goes to make room costs so many times the new one's load besides:
    the Mac does nothing meanwhile, and what went is asked for again.
    `lost_factor`: and so many times the load of the model that goes, divided by how many hold it,
    and halved for each `lost_half` in which the host was given nothing, and for each `lost_patience`
    that the job has waited: it will be asked for again, and where jobs queue any Mac is better at work.
    `beside_factor`: what the attempts of a slot lose by one more counts so many times, since those
    that come later lose it too.
    """

    band: float = 1.15
    hungry_after: float = 300.0
    hungry_full: float = 900.0
    hungry_stretch: float = 3.0
    trial_seconds: float = 2.0
    trial_share: float = 1.0
    keep_factor: float = 3.0
    leave_seconds: float = 10.0
    leave_factor: float = 1.0
    hold_factor: float = 1.3
    own_factor: float = 3.0
    switch_factor: float = 0.5
    beside_factor: float = 1.25
    lost_factor: float = 2.0
    lost_half: float = 600.0
    lost_patience: float = 10.0


@dataclass(frozen=True)
class Outlook:
    """What is true of the moment rather than of a job or a host.

    `big_needs`: bytes of memory that waiting or expected jobs need, one entry a job.
    `week_seconds` since Monday 0:00 UTC, for the owners' habits; None: they are left aside.
    """

    big_needs: tuple[int, ...] = ()
    week_seconds: float | None = None


@dataclass(frozen=True)
class Forecast:
    """Seconds until the whole answer is there, in its parts, and the speed when it flows."""

    load_seconds: float
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float
    wait_seconds: float = 0.0

    @property
    def total_seconds(self) -> float:
        return self.wait_seconds + self.load_seconds + self.prefill_seconds + self.decode_seconds


@dataclass(frozen=True)
class SlotPlan:
    """A slot to make on the host, after its idle slots named here have gone, and with them models."""

    bytes: int
    width: int
    tokens_max: int
    evict_slot_ids: tuple[str, ...]
    evict_revisions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Placed:
    """The chosen host, in an existing slot or in one that is to be made, and why not the others."""

    node_id: str
    slot_id: str | None
    new_slot: SlotPlan | None
    forecast: Forecast
    rejected: Mapping[RejectReason, int] = field(default_factory=dict[RejectReason, int])


@dataclass(frozen=True)
class NotPlaced:
    """No host now. `is_ever` says whether any host could take it once it is free.

    `soonest_node_id` is the busy host that is expected to end it first, `soonest_seconds` from now
    until then; None where no host says when it will be free.
    """

    rejected: Mapping[RejectReason, int] = field(default_factory=dict[RejectReason, int])
    is_ever: bool = False
    needed_bytes: int = 0
    largest_lent_bytes: int = 0
    soonest_node_id: str | None = None
    soonest_seconds: float | None = None
