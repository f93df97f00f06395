"""What the coordinator tells MLX World. None of these values leaves the process as it is.

`privacy` makes from them what may be seen, and `snapshot` the bytes that are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

PlaceKind = Literal["none", "country", "area"]
SERIES_MINUTES: Final = 30


@dataclass(frozen=True, slots=True)
class Place:
    """What a Mac's owner chose to show: nothing, a country, or a coarse area in a country.

    `country` is an ISO 3166 code of two letters, `cell` an H3 cell of resolution 3.
    """

    kind: PlaceKind = "none"
    country: str = ""
    cell: str = ""


NOWHERE: Final = Place()


@dataclass(frozen=True, slots=True)
class MacFacts:
    """One Mac. `mac` and `owner` are for counting and for telling the owner; never published."""

    mac: str
    owner: str
    seen_us: int
    place: Place = NOWHERE
    memory_bytes: int = 0
    bandwidth_bytes_per_second: int = 0
    is_measured: bool = False
    is_attested: bool = False
    is_ultra_seat: bool = False
    pod: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The ledger's newest signed checkpoint."""

    entries: int
    root: str
    signed_us: int


@dataclass(frozen=True, slots=True)
class Pulse:
    """The network's work in one moment: Macs working, and jobs and tokens since the start."""

    busy: frozenset[str] = frozenset()
    connected: int = 0
    jobs_ended: int = 0
    tokens_relayed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How long what was asked and answered is kept, and who asked for a code, as is set now."""

    stream_seconds: int
    result_seconds: int
    enrolment_seconds: int


@dataclass(frozen=True, slots=True)
class SeatExample:
    """What a Mac that stands ready earns in an hour in each seat, measured, audited, from a full
    pool; `ultra_umlx` is None if the Mac cannot have that seat."""

    mac: str
    lent_bytes: int
    idle_umlx: int
    dedicated_umlx: int
    ultra_umlx: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatTerms:
    """What the seats ask for and pay by the rate card in force. Parts are parts per million."""

    dedicated_seconds_per_day: int
    dedicated_days: int
    upkeep_seconds_per_week: int
    ultra_bandwidth_bytes_per_second: int
    ultra_self_tests: int
    ultra_lent_ppm: int
    ultra_lent_bytes: int
    checks_passed: int
    idle_umlx_per_point_hour: int
    dedicated_umlx_per_point_hour: int
    ultra_umlx_per_point_hour: int
    bandwidth_bytes_per_second_per_point: int
    memory_bytes_per_point: int
    measured_ppm: int
    service_levels: tuple[tuple[int, int], ...]
    examples: tuple[SeatExample, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """What the pages state as the rule; the rules themselves are the coordinator's."""

    keeping: Keeping
    seats: SeatTerms


@dataclass(frozen=True, slots=True)
class WorldFacts:
    """Everything that a snapshot is made from. `macs` are those not removed, seen in 7 days."""

    now_us: int
    macs: tuple[MacFacts, ...]
    terms: Terms
    pulse: Pulse = field(default_factory=Pulse)
    checkpoint: Checkpoint | None = None
