"""What a submitter may wish of the Macs that take a job, as headers of the request say it. Pure.

Wishes are stored with the job's request and end with it. They never change a price: they only say
which Macs are asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar, cast, get_args

from coordinator import errors
from coordinator.numbers import decimal_of, whole_of
from coordinator.placement.types import JobFacts

Own = Literal["any", "prefer", "only"]

DEADLINE_SECONDS_MAX: Final = 7 * 86_400.0
TOKENS_PER_SECOND_MAX: Final = 10_000.0
NAMED_MAX: Final = 64  # nodes or regions in one header

DEADLINE: Final = "x-mlxnet-deadline"
SPEED: Final = "x-mlxnet-min-tokens-per-second"
REGIONS: Final = "x-mlxnet-regions"
NODES: Final = "x-mlxnet-nodes"
OWN: Final = "x-mlxnet-own"
MAX_CHARGE: Final = "x-mlxnet-max-charge-umlx"

_REGION: Final = re.compile(r"[A-Z]{2}")
_NODE: Final = re.compile(r"node_[0-9a-f]{64}")

T = TypeVar("T")


@dataclass(frozen=True)
class Wishes:
    """Empty fields wish for nothing. `deadline_seconds` count from when the job was queued."""

    deadline_seconds: float = math.inf
    tokens_per_second_min: float = 0.0
    regions: frozenset[str] = frozenset()
    node_ids: frozenset[str] = frozenset()
    own: Own = "any"

    def to_json(self) -> dict[str, Any]:
        """What is wished for, for the payload box."""
        found: dict[str, Any] = {}
        if math.isfinite(self.deadline_seconds):
            found["deadline_seconds"] = self.deadline_seconds
        if self.tokens_per_second_min:
            found["tokens_per_second_min"] = self.tokens_per_second_min
        if self.regions:
            found["regions"] = sorted(self.regions)
        if self.node_ids:
            found["node_ids"] = sorted(self.node_ids)
        if self.own != "any":
            found["own"] = self.own
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Wishes:
        """Inverse of `to_json`."""
        lists: dict[str, Any] = {
            name: frozenset(found[name]) for name in ("regions", "node_ids") if name in found
        }
        return cls(**{**found, **lists})


NO_WISHES: Final = Wishes()


def read_wishes(headers: Mapping[str, str]) -> Wishes:
    """The wishes of a request. Raises 400, naming the header, for one that is not right."""

    def read(name: str, parse: Callable[[str], T], default: T) -> T:
        text = headers.get(name)
        return default if text is None else parse(text)

    return Wishes(
        deadline_seconds=read(DEADLINE, _number(DEADLINE, 1.0, DEADLINE_SECONDS_MAX), math.inf),
        tokens_per_second_min=read(SPEED, _number(SPEED, 0.0, TOKENS_PER_SECOND_MAX), 0.0),
        regions=read(REGIONS, _names(REGIONS, _REGION, "country codes as DE,PL"), frozenset[str]()),
        node_ids=read(NODES, _names(NODES, _NODE, "node ids, with commas between them"), frozenset[str]()),
        own=read(OWN, _own, "any"),
    )


def read_max_charge_umlx(headers: Mapping[str, str]) -> int | None:
    """The most that the job may cost, or None. Raises 400."""
    text = headers.get(MAX_CHARGE)
    if text is None:
        return None
    found = whole_of(text)
    if found is None:
        raise errors.invalid_value(MAX_CHARGE, "must be a whole number of uMLX")
    return found


def with_wishes(job: JobFacts, wishes: Wishes, *, has_begun: bool = False) -> JobFacts:
    """What placement decides from, wishes included; `job` says how long it has waited.

    An answer that has begun is not dropped for being late: its deadline is forgotten.
    """
    if wishes == NO_WISHES:
        return job
    left = math.inf if has_begun else max(wishes.deadline_seconds - job.waited_seconds, 0.0)
    return replace(
        job,
        deadline_seconds=left,
        tokens_per_second_min=wishes.tokens_per_second_min,
        regions=wishes.regions,
        only_node_ids=wishes.node_ids,
        own=wishes.own,
    )


def _number(name: str, least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = decimal_of(text)
        if value is None or not least <= value <= most:
            raise errors.invalid_value(name, f"must be a number from {least:g} to {most:g}")
        return value

    return parse


def _names(name: str, pattern: re.Pattern[str], what: str) -> Callable[[str], frozenset[str]]:
    def parse(text: str) -> frozenset[str]:
        found = [part.strip(" \t") for part in text.split(",")]
        if len(found) > NAMED_MAX or not all(pattern.fullmatch(part) for part in found):
            raise errors.invalid_value(name, f"must be 1 to {NAMED_MAX} {what}")
        return frozenset(found)

    return parse


def _own(text: str) -> Own:
    if text.lower() not in get_args(Own):
        raise errors.invalid_value(OWN, "must be 'any', 'prefer' or 'only'")
    return cast("Own", text.lower())
