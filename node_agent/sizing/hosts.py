"""A Mac or a pod as a file tells it, and how much memory a model may use there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from node_agent.protocol.messages import Hardware
from node_agent.sizing.chips import find_chip
from node_agent.sizing.constants import Engine
from node_agent.sizing.pods import TCP, Link
from node_agent.sizing.speed import DISK_BYTES_PER_SECOND
from node_agent.sizing.work import Machine, machine_of

GIB: Final = 1 << 30
MIB: Final = 1 << 20
# What Metal lets one process wire, as macOS sets it: two thirds of the memory of Macs up to 36 GB,
# three quarters above. A Mac that has been asked says it exactly.
SMALL_MAC_BYTES: Final = 36 * GIB
# A raised limit that leaves macOS less than this is refused by the system or ends in a panic.
SYSTEM_BYTES: Final = 4 * GIB

Limit = Literal["working_set", "wired_limit", "lent", "free", "memory"]


@dataclass(frozen=True, slots=True)
class Usable:
    """Bytes that a model may use, and what keeps it from more."""

    bytes: int
    limited_by: Limit


def usable_memory(
    memory_bytes: int,
    *,
    working_set_bytes: int | None = None,
    wired_limit_bytes: int | None = None,
    lent_bytes: int | None = None,
    free_bytes: int | None = None,
    accelerated: bool = True,
) -> Usable:
    """The least of what macOS allows, the owner lends, and is free now.

    `working_set_bytes` is Metal's own figure; without it the rule above holds, or a raised
    `wired_limit_bytes` (0 or None: not raised), of which the system keeps 4 GiB in any case.
    """
    if memory_bytes <= 0:
        raise ValueError("memory_bytes must be positive")
    share = memory_bytes * 2 // 3 if memory_bytes <= SMALL_MAC_BYTES else memory_bytes * 3 // 4
    limits: list[tuple[int, Limit]] = []
    if not accelerated:
        limits.append((memory_bytes, "memory"))
    elif wired_limit_bytes:
        limits.append((min(wired_limit_bytes, max(memory_bytes - SYSTEM_BYTES, 0)), "wired_limit"))
    else:
        limits.append((working_set_bytes or share, "working_set"))
    if lent_bytes is not None:
        limits.append((lent_bytes, "lent"))
    if free_bytes is not None:
        limits.append((free_bytes, "free"))
    least, limited_by = min(limits, key=lambda limit: limit[0])
    return Usable(least, limited_by)


# Far above any Mac, and far below where arithmetic overflows.
INTEGER_MAX: Final = 1 << 60
NUMBER_MAX: Final = 1e15
FACTOR_MAX: Final = 1000.0


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SelfTest(_Part):
    """What a Mac was measured to do with a model: its card's id, or a path to it, and its speeds."""

    card: str
    tokens_per_second: Annotated[float, Field(gt=0, le=NUMBER_MAX)] | None = None
    context_tokens: Annotated[int, Field(ge=0, le=INTEGER_MAX)] = 0
    prompt_tokens: Annotated[int, Field(gt=0, le=INTEGER_MAX)] = 512
    prompt_tokens_per_second: Annotated[float, Field(gt=0, le=NUMBER_MAX)] | None = None


class MacSpec(_Part):
    """One Mac. Sizes in bytes, or in GiB where that is easier to write; rates in bytes a second.

    Left out: `gpu_cores` is that of the chip's smallest variant, bandwidth and memory limits those
    of the tables. `engine` is for comparing with figures that others have published.
    """

    name: Annotated[str, Field(max_length=100)] = ""
    chip: Annotated[str, Field(min_length=1, max_length=100)]
    gpu_cores: Annotated[int, Field(ge=0, le=1024)] = 0
    memory_bytes: Annotated[int, Field(gt=0, le=INTEGER_MAX)] | None = None
    memory_gib: Annotated[float, Field(gt=0, le=NUMBER_MAX)] | None = None
    lent_bytes: Annotated[int, Field(gt=0, le=INTEGER_MAX)] | None = None
    lent_gib: Annotated[float, Field(gt=0, le=NUMBER_MAX)] | None = None
    free_bytes: Annotated[int, Field(ge=0, le=INTEGER_MAX)] | None = None
    free_gib: Annotated[float, Field(ge=0, le=NUMBER_MAX)] | None = None
    working_set_bytes: Annotated[int, Field(gt=0, le=INTEGER_MAX)] | None = None
    wired_limit_mib: Annotated[int, Field(ge=0, le=INTEGER_MAX)] = 0
    bandwidth_bytes_per_second: Annotated[int, Field(gt=0, le=INTEGER_MAX)] | None = None
    disk_bytes_per_second: Annotated[int, Field(gt=0, le=INTEGER_MAX)] = DISK_BYTES_PER_SECOND
    network_bytes_per_second: Annotated[int, Field(gt=0, le=INTEGER_MAX)] | None = None
    model_is: Literal["in_memory", "on_disk", "absent"] = "on_disk"
    accelerated: bool = True
    engine: Engine = "mlx"
    prefill_chunk_tokens: Annotated[int, Field(ge=0, le=INTEGER_MAX)] = 0
    decode_factor: Annotated[float, Field(gt=0, le=FACTOR_MAX)] = 1.0
    prefill_factor: Annotated[float, Field(gt=0, le=FACTOR_MAX)] = 1.0
    self_test: SelfTest | None = None

    @model_validator(mode="after")
    def _check_memory(self) -> MacSpec:
        if (self.memory_bytes is None) == (self.memory_gib is None):
            raise ValueError("give one of memory_bytes and memory_gib")
        for name in ("lent", "free"):
            if getattr(self, f"{name}_bytes") is not None and getattr(self, f"{name}_gib") is not None:
                raise ValueError(f"give one of {name}_bytes and {name}_gib")
        if self.model_is == "absent" and self.network_bytes_per_second is None:
            raise ValueError("network_bytes_per_second is needed where the model is absent")
        if self.bandwidth_bytes_per_second is None and find_chip(self.chip, self.gpu_cores) is None:
            raise ValueError(f"chip: {self.chip!r} is not in the table; give bandwidth_bytes_per_second")
        return self

    @property
    def memory(self) -> int:
        """Installed memory in bytes."""
        return _bytes(self.memory_bytes, self.memory_gib) or 0

    @property
    def lent(self) -> int | None:
        """Bytes that the owner lends, or None for no limit of his own."""
        return _bytes(self.lent_bytes, self.lent_gib)

    @property
    def bandwidth(self) -> int:
        """Peak memory bandwidth in bytes a second, given or from the table."""
        known = find_chip(self.chip, self.gpu_cores)
        return self.bandwidth_bytes_per_second or (known.bandwidth_bytes_per_second if known else 0)

    def usable(self) -> Usable:
        """Bytes that a model may use here."""
        return usable_memory(
            self.memory,
            working_set_bytes=self.working_set_bytes,
            wired_limit_bytes=self.wired_limit_mib * MIB,
            lent_bytes=self.lent,
            free_bytes=_bytes(self.free_bytes, self.free_gib),
            accelerated=self.accelerated,
        )

    def hardware(self) -> Hardware:
        """The same as a node would say it."""
        return Hardware(
            chip=self.chip,
            memory_bytes=self.memory,
            lent_bytes=min(self.lent or self.memory, self.memory),
            bandwidth_bytes_per_second=self.bandwidth,
            gpu_cores=self.gpu_cores,
            accelerated=self.accelerated,
        )

    def machine(self) -> Machine:
        """The same as arithmetic."""
        return machine_of(
            self.hardware(),
            engine=self.engine,
            decode_factor=self.decode_factor,
            prefill_factor=self.prefill_factor,
            chunk_tokens=self.prefill_chunk_tokens,
        )


class LinkSpec(_Part):
    """How a pod's Macs are joined; measured costs take the place of the backend's usual ones."""

    backend: Literal["rdma", "tcp"] = "rdma"
    alpha_us: Annotated[float, Field(gt=0, le=NUMBER_MAX)] | None = None
    hop_us: Annotated[float, Field(gt=0, le=NUMBER_MAX)] | None = None
    bytes_per_second: Annotated[float, Field(gt=0, le=NUMBER_MAX)] | None = None

    def link(self) -> Link:
        """The same as arithmetic."""
        usual = Link() if self.backend == "rdma" else TCP
        return Link(
            alpha_seconds=self.alpha_us / 1e6 if self.alpha_us else usual.alpha_seconds,
            hop_seconds=self.hop_us / 1e6 if self.hop_us else usual.hop_seconds,
            bytes_per_second=self.bytes_per_second or usual.bytes_per_second,
            is_measured=self.alpha_us is not None,
        )


class PodTest(_Part):
    """One measured row of a pod: tensor parallel over all members, and one Mac alone if it fits."""

    card: str
    tokens_per_second: Annotated[float, Field(gt=0, le=NUMBER_MAX)]
    single_tokens_per_second: Annotated[float, Field(gt=0, le=NUMBER_MAX)] | None = None
    context_tokens: Annotated[int, Field(ge=0, le=INTEGER_MAX)] = 0


class PodSpec(_Part):
    """Macs of one owner, cabled together; the first is the leader.

    `single_tokens_per_second`: what one member alone was measured to do with the model in question.
    """

    name: Annotated[str, Field(max_length=100)] = ""
    members: Annotated[tuple[MacSpec, ...], Field(min_length=2, max_length=16)]
    link: LinkSpec = LinkSpec()
    measured: PodTest | None = None
    single_tokens_per_second: Annotated[float, Field(gt=0, le=NUMBER_MAX)] | None = None


def _bytes(exact: int | None, gib: float | None) -> int | None:
    return exact if exact is not None else None if gib is None else round(gib * GIB)
