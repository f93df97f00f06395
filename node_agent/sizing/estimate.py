"""What a job would take on a host: bytes and seconds by part, and whether it fits, or why not.

The same functions decide placement; here they are put together for one card and one Mac or pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from node_agent.protocol.cards import ModelFacts
from node_agent.sizing import pods, ranks, sharding, speed
from node_agent.sizing.hosts import Limit, MacSpec, PodSpec, Usable
from node_agent.sizing.memory import PREFILL_CHUNK_TOKENS, MemoryParts, needed_parts
from node_agent.sizing.work import Machine, work_of

LIMITS: Final[dict[Limit, str]] = {
    "working_set": "macOS lets a process use",
    "wired_limit": "its raised limit lets a process use",
    "lent": "its owner lends",
    "free": "is free now",
    "memory": "it has",
}


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds by part for all sequences: the model loaded, their prompts read one after the other,
    their answers decoded together. `download` is 0 unless the model must be fetched first."""

    download: float
    load: float
    prefill: float
    decode: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.download + self.load + self.prefill + self.decode


@dataclass(frozen=True, slots=True)
class RankEstimate:
    """Bytes on one Mac of the plan."""

    name: str
    layers: int
    needed: MemoryParts
    usable: Usable


@dataclass(frozen=True, slots=True)
class Estimate:
    """One way of running the job. `reason` is None if it fits. `seconds` are what they would be if
    it did. Speeds in tokens a second: of one sequence, of all together, of reading a prompt."""

    mode: ranks.Mode
    fits: bool
    reason: str | None
    ranks: tuple[RankEstimate, ...]
    seconds: Seconds
    tokens_per_second: float
    tokens_per_second_all: float
    prompt_tokens_per_second: float

    def as_json(self) -> dict[str, Any]:
        """As documented in docs/placement.md."""
        return {
            "mode": self.mode,
            "fits": self.fits,
            "reason": self.reason,
            "bytes": _largest(self.ranks),
            "ranks": [_rank_json(rank) for rank in self.ranks],
            "seconds": {**asdict(self.seconds), "total": self.seconds.total},
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_all": self.tokens_per_second_all,
            "prompt_tokens_per_second": self.prompt_tokens_per_second,
        }


def _rank_json(rank: RankEstimate) -> dict[str, Any]:
    parts = rank.needed
    return {
        "name": rank.name,
        "layers": rank.layers,
        "weights": parts.weights_bytes,
        "kv": parts.kv_bytes,
        "activations": parts.activation_bytes,
        "reserve": parts.reserve_bytes,
        "needed": parts.total_bytes,
        "usable": rank.usable.bytes,
        "limited_by": rank.usable.limited_by,
    }


def _largest(found: Sequence[RankEstimate]) -> dict[str, Any]:
    """The bytes of the rank that has least to spare."""
    tightest = min(found, key=lambda rank: rank.usable.bytes - rank.needed.total_bytes)
    table = _rank_json(tightest)
    return {key: value for key, value in table.items() if key not in {"name", "layers"}}


@dataclass(frozen=True, slots=True)
class Job:
    """Tokens of a prompt and an answer, and how many such sequences run together."""

    prompt_tokens: int
    generate_tokens: int
    concurrency: int = 1

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.generate_tokens < 1 or self.concurrency < 1:
            raise ValueError("prompt, generate and concurrency must be at least 1")

    @property
    def tokens(self) -> int:
        """The longest that a sequence becomes."""
        return self.prompt_tokens + self.generate_tokens

    @property
    def middle_tokens(self) -> float:
        """The context that a decoding step has on average."""
        return self.prompt_tokens + self.generate_tokens / 2


def beyond_context(card: ModelFacts, job: Job) -> str | None:
    """Why the job is longer than its model's context, whatever the Mac; None if it is not."""
    if job.tokens <= card.context_tokens:
        return None
    return (
        f"context: a prompt of {job.prompt_tokens} tokens with an answer of {job.generate_tokens} does not"
        f" fit the context of {card.context_tokens} tokens"
    )


def estimate_mac(card: ModelFacts, mac: MacSpec, job: Job) -> Estimate:
    """The job on one Mac."""
    needed = needed_parts(
        card,
        job.tokens,
        job.concurrency,
        chunk_tokens=mac.prefill_chunk_tokens or PREFILL_CHUNK_TOKENS,
    )
    rank = RankEstimate(mac.name, card.shape.layers, needed, mac.usable())
    if mac.accelerated:
        machine, work = mac.machine(), work_of(card)
        prompt = speed.prompt_seconds(work, machine, job.prompt_tokens)
        step = speed.step_seconds(work, machine, context_tokens=job.middle_tokens, batch=job.concurrency)
    else:
        hardware, context = mac.hardware(), int(job.middle_tokens)
        prompt = speed.prefill_seconds(card, job.prompt_tokens, hardware)
        step = speed.decode_seconds_per_token(card, hardware, context_tokens=context, batch=job.concurrency)
    return _assembled(card, "single", (rank,), None, job, _loading(card, [mac], [rank]), prompt, step)


def estimate_pod(card: ModelFacts, pod: PodSpec, job: Job) -> tuple[Estimate, ...]:
    """Every way of running the job on a pod, the best first: one of its Macs alone, tensor
    parallel, as a pipeline. What fits comes before what does not, then the soonest done."""
    alone = [estimate_mac(card, mac, job) for mac in pod.members]
    found = [min(alone, key=_order), _tensor(card, pod, job), _pipeline(card, pod, job)]
    return tuple(sorted(found, key=_order))


def _order(found: Estimate) -> tuple[bool, float]:
    # Loading is paid once, and says nothing of the jobs after it.
    return (not found.fits, found.seconds.prefill + found.seconds.decode)


def _tensor(card: ModelFacts, pod: PodSpec, job: Job) -> Estimate:
    count, work, link = len(pod.members), work_of(card), pod.link.link()
    parts = ranks.tensor_parts(card, job.tokens, job.concurrency, count)
    found = tuple(RankEstimate(mac.name, card.shape.layers, parts, mac.usable()) for mac in pod.members)
    slowest = _slowest([mac.machine() for mac in pod.members])
    single = 1 / pod.single_tokens_per_second if pod.single_tokens_per_second else None
    step = pods.tensor_step_seconds(
        work,
        slowest,
        count,
        link,
        context_tokens=job.middle_tokens,
        batch=job.concurrency,
        single_seconds=single if job.concurrency == 1 else None,
    )
    prompt = pods.tensor_prompt_seconds(work, slowest, count, job.prompt_tokens, link)
    refused = sharding.why_not_tensor(card.shape, count)
    return _assembled(card, "tensor", found, refused, job, _loading(card, pod.members, found), prompt, step)


def _pipeline(card: ModelFacts, pod: PodSpec, job: Job) -> Estimate:
    count, work, link = len(pod.members), work_of(card), pod.link.link()
    usable = [mac.usable() for mac in pod.members]
    split = ranks.pipeline_split(card, job.tokens, job.concurrency, [each.bytes for each in usable])
    dealt = split or ranks.even_split(card.shape.layers, count)
    parts = ranks.pipeline_parts(card, job.tokens, job.concurrency, dealt)
    found = tuple(
        RankEstimate(mac.name, layers, part, each)
        for mac, layers, part, each in zip(pod.members, dealt, parts, usable, strict=True)
    )
    machines = [mac.machine() for mac in pod.members]
    step = pods.pipeline_step_seconds(
        work, machines, dealt, link, context_tokens=job.middle_tokens, batch=job.concurrency
    )
    prompt = pods.pipeline_prompt_seconds(work, machines, dealt, job.prompt_tokens, link)
    refused = sharding.why_not_pipeline(card.shape, count)
    loading = _loading(card, pod.members, found)
    return _assembled(card, "pipeline", found, refused, job, loading, prompt, step)


def _slowest(machines: Sequence[Machine]) -> Machine:
    """A machine that is in each respect as slow as the slowest: ranks wait for each other."""
    slow = min(machines, key=lambda m: m.bandwidth_bytes_per_second * m.decode_factor)
    return replace(slow, prefill_factor=min(machine.prefill_factor for machine in machines))


def _loading(card: ModelFacts, macs: Sequence[MacSpec], found: Sequence[RankEstimate]) -> tuple[float, float]:
    """(download, load) seconds: of the Mac that takes longest, all working at once."""
    times: list[tuple[float, float]] = []
    for mac, rank in zip(macs, found, strict=True):
        rate = mac.network_bytes_per_second
        download = card.weights_bytes / rate if mac.model_is == "absent" and rate else 0.0
        read = rank.needed.weights_bytes / mac.disk_bytes_per_second
        load = 0.0 if mac.model_is == "in_memory" else speed.RUNNER_START_SECONDS + read
        times.append((download, load))
    return max(times, key=sum)


def _assembled(
    card: ModelFacts,
    mode: ranks.Mode,
    found: tuple[RankEstimate, ...],
    refused: str | None,
    job: Job,
    loading: tuple[float, float],
    prompt_seconds: float,
    step_seconds: float,
) -> Estimate:
    reason = refused or _why_not(card, job, found)
    seconds = Seconds(
        *loading,
        prefill=prompt_seconds * job.concurrency,
        decode=step_seconds * job.generate_tokens,
    )
    return Estimate(
        mode=mode,
        fits=reason is None,
        reason=reason,
        ranks=found,
        seconds=seconds,
        tokens_per_second=1 / step_seconds,
        tokens_per_second_all=job.concurrency / step_seconds,
        prompt_tokens_per_second=job.prompt_tokens / prompt_seconds,
    )


def _why_not(card: ModelFacts, job: Job, found: Sequence[RankEstimate]) -> str | None:
    if (beyond := beyond_context(card, job)) is not None:
        return beyond
    for rank in found:
        short = rank.needed.total_bytes - rank.usable.bytes
        if short > 0:
            name = f"{rank.name}: " if rank.name else ""
            limit = LIMITS[rank.usable.limited_by]
            return (
                f"memory: {name}{rank.needed.total_bytes} bytes are needed, {limit}"
                f" {rank.usable.bytes}; {short} bytes short"
            )
    return None
