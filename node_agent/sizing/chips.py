"""Apple's chips as a table: memory bandwidth, and arithmetic where a claim is known."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

from pydantic import BaseModel, ConfigDict, Field


class Chip(BaseModel):
    """One variant of a chip. Bandwidth in bytes per second; arithmetic as the maker claims it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    gpu_cores: int = Field(gt=0)
    bandwidth_bytes_per_second: int = Field(gt=0)
    fp16_tflops: float | None = Field(default=None, gt=0)
    note: str = ""


@cache
def all_chips() -> tuple[Chip, ...]:
    """The table, read once: it is part of the package, so it is the same on both sides."""
    text = resources.files(__package__ or "node_agent.sizing").joinpath("chips.toml").read_text()
    return tuple(Chip.model_validate(entry) for entry in tomllib.loads(text)["chip"])


def find_chip(name: str, gpu_cores: int) -> Chip | None:
    """The variant of `name` ("Apple M4 Pro" or "M4 Pro") with that many GPU cores.

    Without an exact match the slowest variant of the name; None for an unknown chip.
    """
    short = name.removeprefix("Apple ").strip()
    named = [chip for chip in all_chips() if chip.name == short]
    exact = [chip for chip in named if chip.gpu_cores == gpu_cores]
    return min(exact or named, key=lambda chip: chip.bandwidth_bytes_per_second, default=None)
