"""A fleet and its jobs as files tell them: the same facts, with names for people. Pure."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coordinator.placement.queue import Entry
from coordinator.placement.reject import EXPLAINED
from coordinator.placement.types import HostFacts, JobFacts, Outlook, Placed, SlotFacts
from node_agent.protocol.cards import ModelCard, ModelFacts
from node_agent.sizing import memory
from node_agent.sizing.hosts import MacSpec

Name = Annotated[str, Field(min_length=1, max_length=64)]
Models = Callable[[str], ModelFacts]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SlotSpec(_Part):
    """A model that a host holds, how many attempts it takes and how many run."""

    model: Name
    width: Annotated[int, Field(ge=1, le=255)] = 8
    live: Annotated[int, Field(ge=0, le=255)] = 0
    tokens_max: Annotated[int, Field(gt=0)] | None = None
    bytes: Annotated[int, Field(gt=0)] | None = None
    is_warm: bool = True


class HostSpec(_Part):
    """A Mac as `estimate` takes it, under `mac`, and what the network knows of it beside."""

    id: Name
    mac: MacSpec
    owner: Annotated[str, Field(max_length=64)] = ""
    mode: Literal["ready", "busy", "draining", "away"] = "ready"
    online: bool = True
    suspect: bool = False
    standing: Literal["sound", "paused", "on_probation"] = "sound"
    kept_apart: bool = False
    slots: tuple[SlotSpec, ...] = ()
    slots_max: Annotated[int, Field(ge=1, le=255)] = 1
    width: Annotated[int, Field(ge=1, le=64)] = 8
    kinds: frozenset[Literal["chat", "completion", "embedding", "finetune", "evaluation"]] | None = None
    on_disk: frozenset[Name] | None = None
    disk_free_bytes: Annotated[int, Field(ge=0)] | None = None
    region: Annotated[str, Field(max_length=64)] = ""
    price_factor_ppm: Annotated[int, Field(ge=0, le=10**9)] = 1_000_000
    proven: bool = True
    given_seconds: Seconds = 0.0
    hungry_seconds: Seconds = 0.0
    seat_free_seconds: Seconds | None = None
    idle_in_seconds: Seconds | None = None
    survival: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()

    @model_validator(mode="after")
    def _check(self) -> HostSpec:
        if len(self.survival) not in {0, 168}:
            raise ValueError("survival: give 168 chances, one for each hour of the week, or none")
        if self.mac.self_test is not None:
            raise ValueError("mac.self_test: give decode_factor and prefill_factor instead")
        if self.mac.engine != "mlx":
            raise ValueError("mac.engine: jobs run on mlx alone")
        if self.mac.model_is != "on_disk":
            raise ValueError("mac.model_is: say it by model, in slots and on_disk")
        return self


class FleetSpec(_Part):
    """The hosts, and the moment: seconds of the week, and what is asked for beside the jobs."""

    hosts: tuple[HostSpec, ...]
    week_seconds: Annotated[float, Field(ge=0, lt=604_800)] | None = None
    big_needs: tuple[Annotated[int, Field(gt=0)], ...] = ()

    @model_validator(mode="after")
    def _check_ids(self) -> FleetSpec:
        seen: set[str] = set()
        for host in self.hosts:
            if host.id in seen:
                raise ValueError(f"hosts: the id {host.id!r} is there twice")
            seen.add(host.id)
        return self

    def outlook(self) -> Outlook:
        """What is true of the moment."""
        return Outlook(self.big_needs, self.week_seconds)


class JobSpec(_Part):
    """A job and its submitter's wishes."""

    id: Name
    model: Name
    prompt_tokens: Annotated[int, Field(ge=1, le=10**8)]
    max_tokens: Annotated[int, Field(ge=1, le=10**8)]
    answer_tokens_expected: Annotated[int, Field(ge=1)] | None = None
    submitter: Annotated[str, Field(max_length=64)] = ""
    waited_seconds: Seconds = 0.0
    excluded: frozenset[Name] = frozenset()
    kept_apart: bool = False
    sealed: bool = False
    cached: dict[Name, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    deadline_seconds: Annotated[float, Field(gt=0)] | None = None
    tokens_per_second_min: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    regions: frozenset[str] = frozenset()
    only_hosts: frozenset[Name] = frozenset()
    own: Literal["any", "prefer", "only"] = "any"
    price_factor_max_ppm: Annotated[int, Field(ge=0, le=10**9)] | None = None


class JobsSpec(_Part):
    """The queue, and how much each submitter used lately, in bytes read (decayed)."""

    jobs: tuple[JobSpec, ...]
    usage: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_ids(self) -> JobsSpec:
        seen: set[str] = set()
        for job in self.jobs:
            if job.id in seen:
                raise ValueError(f"jobs: the id {job.id!r} is there twice")
            seen.add(job.id)
        return self


def revision_of(card: ModelFacts) -> str:
    """The revision of a card that can be served, the id of one that is known only."""
    return card.revision if isinstance(card, ModelCard) else card.id


def host_facts(spec: HostSpec, models: Models) -> HostFacts:
    """The host as placement sees it: it lends what macOS lets a process use, unless less is lent.

    Raises whatever `models` raises for a name that it does not know.
    """
    mac = spec.mac
    whole = mac.model_copy(update={"free_bytes": None, "free_gib": None})
    lent, now = whole.usable().bytes, mac.usable().bytes
    hardware = mac.hardware().model_copy(update={"width": spec.width, "lent_bytes": max(lent, 1)})
    on_disk = spec.on_disk
    return HostFacts(
        node_id=spec.id,
        owner_id=spec.owner,
        hardware=hardware,
        lent_bytes=lent,
        is_online=spec.online,
        is_suspect=spec.suspect,
        mode=spec.mode,
        slots=tuple(_slot(spec.id, n, slot, models) for n, slot in enumerate(spec.slots)),
        standing=spec.standing,
        is_kept_apart=spec.kept_apart,
        given_seconds=spec.given_seconds,
        free_bytes=None if now == lent else now,
        slots_max=spec.slots_max,
        kinds=None if spec.kinds is None else frozenset(spec.kinds),
        on_disk=None if on_disk is None else frozenset(revision_of(models(name)) for name in on_disk),
        disk_free_bytes=spec.disk_free_bytes,
        disk_bytes_per_second=mac.disk_bytes_per_second,
        network_bytes_per_second=mac.network_bytes_per_second,
        decode_factor=mac.decode_factor,
        prefill_factor=mac.prefill_factor,
        region=spec.region,
        price_factor_ppm=spec.price_factor_ppm,
        is_proven=spec.proven,
        hungry_seconds=spec.hungry_seconds,
        seat_free_seconds=spec.seat_free_seconds,
        idle_in_seconds=spec.idle_in_seconds,
        survival=spec.survival,
    )


def _slot(host: str, number: int, spec: SlotSpec, models: Models) -> SlotFacts:
    card = models(spec.model)
    tokens = spec.tokens_max or min(card.context_tokens, 8192)
    held = spec.bytes or memory.needed_bytes(card, context_tokens=tokens, width=spec.width)
    # Ids of hosts may be longer than those of slots.
    slot_id = f"{host[:40]}/{number}"
    return SlotFacts(slot_id, revision_of(card), held, spec.width, tokens, spec.live, spec.is_warm)


def job_facts(spec: JobSpec, models: Models) -> JobFacts:
    """The job as placement sees it. Raises whatever `models` raises for an unknown name."""
    card = models(spec.model)
    return JobFacts(
        job_id=spec.id,
        card=card,
        prompt_tokens=spec.prompt_tokens,
        max_tokens=spec.max_tokens,
        excluded_node_ids=spec.excluded,
        is_kept_apart=spec.kept_apart,
        card_revision=revision_of(card),
        answer_tokens_expected=spec.answer_tokens_expected,
        cached=tuple(sorted(spec.cached.items())),
        submitter_id=spec.submitter,
        waited_seconds=spec.waited_seconds,
        is_sealed=spec.sealed,
        deadline_seconds=inf if spec.deadline_seconds is None else spec.deadline_seconds,
        tokens_per_second_min=spec.tokens_per_second_min,
        regions=spec.regions,
        only_node_ids=spec.only_hosts,
        own=spec.own,
        price_factor_max_ppm=spec.price_factor_max_ppm,
    )


def entry_json(entry: Entry, host_ids: tuple[str, ...]) -> dict[str, Any]:
    """What became of one job, as documented in docs/placement.md. `host_ids` by row."""
    choice = entry.decision.choice
    reasons = {
        host: reason
        for row, host in enumerate(host_ids)
        if (reason := entry.decision.reason(row)) is not None
    }
    found: dict[str, Any] = {
        "id": entry.job.job_id,
        "overdue": entry.job.is_overdue,
        "host": choice.node_id if isinstance(choice, Placed) else None,
        "rejected": dict(sorted(choice.rejected.items())),
        "reasons": reasons,
    }
    if isinstance(choice, Placed):
        plan, forecast = choice.new_slot, choice.forecast
        found["slot"] = choice.slot_id
        found["new_slot"] = plan and {
            "bytes": plan.bytes,
            "width": plan.width,
            "tokens_max": plan.tokens_max,
            "evicts": list(plan.evict_slot_ids),
        }
        found["seconds"] = {
            "wait": forecast.wait_seconds,
            "load": forecast.load_seconds,
            "prefill": forecast.prefill_seconds,
            "decode": forecast.decode_seconds,
            "total": forecast.total_seconds,
        }
        found["tokens_per_second"] = forecast.tokens_per_second
        return found
    found["ever"] = choice.is_ever
    found["needed_bytes"] = choice.needed_bytes
    found["largest_lent_bytes"] = choice.largest_lent_bytes
    found["soonest"] = choice.soonest_node_id and {
        "host": choice.soonest_node_id,
        "seconds": choice.soonest_seconds,
    }
    found["holds"] = host_ids[entry.held_row] if entry.held_row >= 0 else None
    return found


def meanings(rejected: dict[str, int]) -> list[str]:
    """The counted reasons in words, the most frequent first."""
    words: dict[str, str] = {**EXPLAINED}
    order = sorted(rejected.items(), key=lambda item: (-item[1], item[0]))
    return [f"{count} x {reason}: {words[reason]}" for reason, count in order]
