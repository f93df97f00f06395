"""What each idle Mac should hold next, so that jobs find their model loaded. Pure.

Greedy by gain: the demand of each model, in seconds of work an hour, is set against the hosts that
hold it; the model and host whose change saves jobs the most seconds of waiting and loading, less
what the change itself costs, comes first, and each choice lowers what the next of the same model
would save. A host is left alone until `dwell_seconds` after its last change, and a plan makes at
most `changes_max` changes: demand is known from the past only.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from node_agent.protocol.cards import ModelFacts
from node_agent.protocol.messages import Hardware
from node_agent.sizing import memory, speed

Step = Literal["load", "fetch"]

HORIZON_SECONDS: Final = 3600.0
DWELL_SECONDS: Final = 1800.0
CHANGES_MAX: Final = 50
CONTEXT_TOKENS: Final = 8192  # a slot is sized for at least this much, or the model's own context


@dataclass(frozen=True)
class Demand:
    """What was asked of one model lately: jobs an hour, waiting ones included, and a usual job."""

    card: ModelFacts
    revision: str
    jobs_per_hour: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True)
class IdleHost:
    """A Mac on which nothing runs. `on_disk`, `loaded` and `refused` are revisions, the last those
    that it could not make ready lately; `changed_seconds` ago its last change of model. Without
    `network_bytes_per_second` it fetches nothing. It holds up to `models_max` models, one of them at
    work at a time; those that it holds take `held_bytes`."""

    node_id: str
    hardware: Hardware
    lent_bytes: int
    loaded: frozenset[str] = frozenset()
    on_disk: frozenset[str] = frozenset()
    disk_free_bytes: int = 0
    disk_bytes_per_second: int = speed.DISK_BYTES_PER_SECOND
    network_bytes_per_second: int | None = None
    changed_seconds: float = float("inf")
    refused: frozenset[str] = frozenset()
    models_max: int = 1
    held_bytes: int = 0


@dataclass(frozen=True)
class Directive:
    """Hold this model next: load it from disk, or fetch it first. `gain_seconds` over the horizon."""

    node_id: str
    revision: str
    step: Step
    gain_seconds: float
    cost_seconds: float


@dataclass(frozen=True)
class ResidencyPolicy:
    """Numbers of a plan, in seconds and counts."""

    horizon_seconds: float = HORIZON_SECONDS
    dwell_seconds: float = DWELL_SECONDS
    changes_max: int = CHANGES_MAX


POLICY: Final = ResidencyPolicy()


@dataclass(frozen=True)
class _Market:
    """What is asked, what each host could serve of it, and what all serve together.

    `rates` in jobs an hour by host and model, of models that fit the host; `supply` by model.
    """

    wanted: Mapping[str, Demand]
    rates: Mapping[tuple[str, str], float]
    supply: dict[str, float]
    horizon_seconds: float

    def add(self, changes: Mapping[str, float]) -> None:
        """Serve so many more jobs an hour."""
        for revision, jobs_per_hour in changes.items():
            self.supply[revision] = self.supply.get(revision, 0.0) + jobs_per_hour

    def served(self, host: IdleHost, held: frozenset[str]) -> dict[str, float]:
        """Jobs an hour that a host with these models serves of each that is asked for."""
        found = {
            revision: self.rates[host.node_id, revision]
            for revision in sorted(held)
            if (host.node_id, revision) in self.rates
        }
        return {revision: rate / len(found) for revision, rate in found.items()}

    def changes(self, host: IdleHost, demand: Demand) -> dict[str, float]:
        """By model, how many more or fewer jobs an hour a host serves that takes the new one."""
        before = self.served(host, host.loaded)
        after = self.served(host, (host.loaded - self.goes(host, demand)) | {demand.revision})
        return {
            revision: after.get(revision, 0.0) - before.get(revision, 0.0)
            for revision in sorted(before.keys() | after.keys())
        }

    def goes(self, host: IdleHost, demand: Demand) -> frozenset[str]:
        """What a host drops for another model: all where it holds one, else what is missed least,
        until there is room."""
        if host.models_max == 1 or not host.loaded:
            return host.loaded
        free, going = host.lent_bytes - host.held_bytes, set[str]()
        needed = _needed_bytes(demand)
        for revision in sorted(host.loaded, key=lambda one: (self._missed(one), one)):
            if free >= needed and len(host.loaded) - len(going) < host.models_max:
                break
            going.add(revision)
            known = self.wanted.get(revision)
            free += memory.weights_bytes(known.card) if known else host.held_bytes // len(host.loaded)
        return frozenset(going)

    def _missed(self, revision: str) -> float:
        """Seconds that jobs would wait more if nobody held the model."""
        return self._saved(revision, 0.0, self.supply.get(revision, 0.0)) if revision in self.wanted else 0.0

    def _saved(self, revision: str, before: float, after: float) -> float:
        """Seconds that jobs of a model wait less with more capacity."""
        demand, horizon = self.wanted[revision], self.horizon_seconds
        return _waiting(demand, before, horizon) - _waiting(demand, after, horizon)

    def gain(self, host: IdleHost, demand: Demand) -> float:
        """Seconds saved by giving the host this model, less those lost by what goes or has less time."""
        cost, horizon = _change_seconds(host, demand), self.horizon_seconds
        if cost >= horizon:
            return 0.0
        gain = 0.0
        for revision, rate in self.changes(host, demand).items():
            has = self.supply.get(revision, 0.0)
            more = rate * (1 - cost / horizon) if revision == demand.revision else rate
            gain += self._saved(revision, has, max(has + more, 0.0))
        return gain - cost


def plan(
    hosts: Sequence[IdleHost],
    demands: Sequence[Demand],
    *,
    busy_jobs_per_hour: Mapping[str, float] | None = None,
    policy: ResidencyPolicy = POLICY,
) -> list[Directive]:
    """Changes by falling gain, at most one a host.

    `busy_jobs_per_hour` is what hosts at work serve of each revision: they count as supply and are
    not changed. A host keeps what it holds unless another model saves more than those that it would
    lose. What it holds shares its time. The order of `hosts` and `demands` does not matter.
    """
    wanted = {demand.revision: demand for demand in demands}
    rates = {
        (host.node_id, demand.revision): jobs_per_hour(host, demand)
        for host in hosts
        for demand in demands
        if _fits(host, demand)
    }
    market = _Market(wanted, rates, dict(busy_jobs_per_hour or {}), policy.horizon_seconds)
    for host in hosts:
        market.add(market.served(host, host.loaded))
    by_id = {host.node_id: host for host in hosts if host.changed_seconds >= policy.dwell_seconds}
    heap = [
        (-gain, node_id, revision)
        for node_id, revision in rates
        if node_id in by_id
        and revision not in by_id[node_id].loaded
        and (gain := market.gain(by_id[node_id], wanted[revision])) > 0
    ]
    heapq.heapify(heap)
    found: list[Directive] = []
    while heap and len(found) < policy.changes_max:
        _, node_id, revision = heapq.heappop(heap)
        if node_id not in by_id:
            continue
        host, demand = by_id[node_id], wanted[revision]
        gain = market.gain(host, demand)
        if heap and gain < -heap[0][0]:
            # Less than when it was entered, as others serve the model now: look again in its turn.
            if gain > 0:
                heapq.heappush(heap, (-gain, node_id, revision))
            continue
        if gain <= 0:
            continue
        del by_id[node_id]
        found.append(_directive(host, demand, gain))
        market.add(market.changes(host, demand))
    return found


def _directive(host: IdleHost, demand: Demand, gain: float) -> Directive:
    step: Step = "load" if demand.revision in host.on_disk else "fetch"
    return Directive(host.node_id, demand.revision, step, gain, _change_seconds(host, demand))


def _fits(host: IdleHost, demand: Demand) -> bool:
    """Whether memory and disk take it, for the usual job and for a context worth loading for."""
    if demand.revision in host.refused or _needed_bytes(demand) > host.lent_bytes:
        return False
    if demand.revision in host.on_disk or demand.revision in host.loaded:
        return True
    is_room = host.disk_free_bytes >= memory.weights_bytes(demand.card)
    return host.network_bytes_per_second is not None and is_room


def _needed_bytes(demand: Demand) -> int:
    usual = demand.prompt_tokens + demand.answer_tokens
    context = min(max(usual, CONTEXT_TOKENS), demand.card.context_tokens)
    return memory.needed_bytes(demand.card, context_tokens=context, width=1)


def _service_seconds(host: IdleHost, demand: Demand) -> float:
    context = demand.prompt_tokens + demand.answer_tokens // 2
    step = speed.decode_seconds_per_token(demand.card, host.hardware, context_tokens=context)
    prompt = speed.prefill_seconds(demand.card, demand.prompt_tokens, host.hardware)
    return prompt + step * demand.answer_tokens


def jobs_per_hour(host: IdleHost, demand: Demand) -> float:
    """How many usual jobs of the model the host serves, one after the other."""
    return 3600 / max(_service_seconds(host, demand), 1e-9)


def _change_seconds(host: IdleHost, demand: Demand) -> float:
    """Until the model is in memory."""
    seconds = speed.load_seconds(demand.card, disk_bytes_per_second=host.disk_bytes_per_second)
    if demand.revision not in host.on_disk and host.network_bytes_per_second is not None:
        seconds += memory.weights_bytes(demand.card) / host.network_bytes_per_second
    return seconds


def _waiting(demand: Demand, capacity: float, horizon: float) -> float:
    """Seconds that jobs of a model wait, over the horizon, where `capacity` jobs an hour are served.

    Each unserved job would load the model where it is placed. Below full use the wait of a queue,
    use / (1 - use) of a service, is what capacity still saves.
    """
    asked = demand.jobs_per_hour * horizon / 3600
    load = speed.load_seconds(demand.card)
    if capacity <= 0:
        return asked * (load + horizon / 2)
    use = demand.jobs_per_hour / capacity
    unserved = max(0.0, 1 - 1 / use) if use > 0 else 0.0
    queueing = min(use, 0.95) / (1 - min(use, 0.95)) * 3600 / capacity
    return asked * (unserved * (load + horizon / 2) + (1 - unserved) * min(queueing, horizon / 2))
