"""What the public gets: one view of a roster, and its bytes. Holds no id and nothing to link by."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from web_world.cells import centre, is_folded
from web_world.countries import middles
from web_world.privacy import (
    OWNERS_FOR_BUSY,
    STAR,
    Figures,
    Roster,
    Spot,
    figures_at,
    tells_figures,
    world_figures,
)
from web_world.source import Checkpoint, Pulse

VERSION: Final = 1
STEPS_PER_DEGREE: Final = 10  # a tenth of a degree is 11 km; the smallest cell is 130 km wide
BUSY_TENTHS: Final = 10
APART_DEGREES: Final = 0.4
GIB: Final = 1 << 30
GZIP_LEVEL: Final = 9


@dataclass(frozen=True, slots=True)
class PlaceView:
    """A spot with a number, or the one light of a country (`is_at_least`)."""

    spot: Spot
    latitude: float
    longitude: float
    lights: int
    busy_tenths: int | None
    ultra_seats: int
    pod_macs: int
    is_at_least: bool = False


@dataclass(frozen=True, slots=True)
class CountryView:
    """A row of the table: all lights of one country. `is_at_least`: there may be more."""

    code: str
    lights: int
    is_at_least: bool
    ultra_seats: int
    memory_bytes: int | None
    busy_tenths: int | None


@dataclass(frozen=True, slots=True)
class Minutes:
    """Jobs ended and tokens relayed in each of the last minutes, oldest first; None: not seen."""

    jobs: tuple[int | None, ...] = ()
    tokens: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class WorldView:
    """One moment of the network as anybody may see it."""

    at_us: int
    lights: int
    stars: int
    busy: int | None
    figures: Figures | None
    places: tuple[PlaceView, ...]
    countries: tuple[CountryView, ...]
    minutes: Minutes
    checkpoint: Checkpoint | None


def view_of(
    roster: Roster, pulse: Pulse, minutes: Minutes, checkpoint: Checkpoint | None, *, now_us: int
) -> WorldView:
    """What may be seen of the roster now. Countries come with most lights first."""
    lights = roster.lights()
    placed = sorted(spot for spot in lights if spot != STAR)
    places = tuple(_place_view(roster, spot, lights[spot], pulse.busy) for spot in _known(placed))
    by_country: dict[str, list[Spot]] = defaultdict(list)
    for place in places:
        by_country[place.spot.country].append(place.spot)
    rows = [_country_view(roster, code, spots, lights, pulse.busy) for code, spots in by_country.items()]
    is_told = tells_figures(roster)
    return WorldView(
        at_us=now_us,
        lights=len(roster.spots),
        stars=len(roster.spots) - sum(place.lights for place in places),
        busy=len(pulse.busy & roster.spots.keys()) if is_told else None,
        figures=world_figures(roster),
        places=_apart(places),
        countries=tuple(sorted(rows, key=lambda row: (-row.lights, row.code))),
        minutes=minutes if is_told else Minutes((None,) * len(minutes.jobs), (None,) * len(minutes.tokens)),
        checkpoint=checkpoint,
    )


def _known(spots: Sequence[Spot]) -> list[Spot]:
    return [spot for spot in spots if spot.country in middles()]


def _place_view(roster: Roster, spot: Spot, macs: list[str], busy: frozenset[str]) -> PlaceView:
    latitude, longitude = centre(spot.cell) if spot.kind == "cell" else middles()[spot.country]
    figures = figures_at(roster, spot) if spot.kind != "alone" else None
    return PlaceView(
        spot=spot,
        latitude=latitude,
        longitude=longitude,
        lights=len(macs),
        busy_tenths=_busy_tenths(roster, macs, busy),
        ultra_seats=figures.ultra_seats if figures is not None else 0,
        pod_macs=figures.pod_macs if figures is not None else 0,
        is_at_least=spot.kind == "alone",
    )


def _busy_tenths(roster: Roster, macs: Sequence[str], busy: frozenset[str]) -> int | None:
    if roster.owners(macs) < OWNERS_FOR_BUSY:
        return None
    return round(BUSY_TENTHS * sum(mac in busy for mac in macs) / len(macs))


def _country_view(
    roster: Roster, code: str, spots: list[Spot], lights: dict[Spot, list[str]], busy: frozenset[str]
) -> CountryView:
    numbered = [spot for spot in spots if spot.kind != "alone"]
    told = [found for spot in numbered if (found := figures_at(roster, spot)) is not None]
    macs = [mac for spot in numbered for mac in lights[spot]]
    return CountryView(
        code=code,
        lights=sum(len(lights[spot]) for spot in spots),
        is_at_least=len(numbered) < len(spots),
        ultra_seats=sum(part.ultra_seats for part in told),
        memory_bytes=sum(part.memory_bytes for part in told) if told else None,
        busy_tenths=_busy_tenths(roster, macs, busy) if macs else None,
    )


def _apart(places: tuple[PlaceView, ...]) -> tuple[PlaceView, ...]:
    """Places that would lie on one another (a cell on a border, a cell and its parent) moved apart."""
    seen: dict[tuple[float, float], int] = defaultdict(int)
    found: list[PlaceView] = []
    for place in places:
        at = (round(place.latitude, 1), round(place.longitude, 1))
        shift = APART_DEGREES * seen[at]
        seen[at] += 1
        found.append(
            PlaceView(
                place.spot,
                place.latitude,
                place.longitude + shift,
                place.lights,
                place.busy_tenths,
                place.ultra_seats,
                place.pod_macs,
                place.is_at_least,
            )
        )
    return tuple(found)


# -- bytes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Encoded:
    """A snapshot as it goes over the wire, encoded once for all who ask."""

    plain: bytes
    gzipped: bytes
    etag: str


def encode(view: WorldView) -> Encoded:
    """Columns of whole numbers, positions as differences in tenths of a degree; see docs/world.md."""
    plain = json.dumps(_json(view), separators=(",", ":")).encode()
    return Encoded(plain, gzip.compress(plain, GZIP_LEVEL, mtime=0), hashlib.sha256(plain).hexdigest()[:16])


def totals_json(view: WorldView) -> dict[str, Any]:
    """The network's figures, those that may be told."""
    figures = view.figures
    told: dict[str, Any] = {"macs_seen": view.lights, "stars": view.stars, "working": view.busy}
    if figures is not None:
        told |= {
            "figures_of_macs": figures.macs,
            "measured": figures.measured,
            "attested": figures.attested,
            "memory_gib": figures.memory_bytes // GIB,
            "bandwidth_gb_per_second": figures.bandwidth_bytes_per_second // 10**9,
            "ultra_seats": figures.ultra_seats,
            "pods": figures.pods,
        }
    return told


def _json(view: WorldView) -> dict[str, Any]:
    codes = [row.code for row in view.countries]
    index = {code: position for position, code in enumerate(codes)}
    places = view.places
    return {
        "version": VERSION,
        "at": view.at_us // 1_000_000,
        "totals": totals_json(view),
        "minutes": {"jobs": view.minutes.jobs, "tokens": view.minutes.tokens},
        "checkpoint": _checkpoint_json(view.checkpoint),
        "countries": {
            "code": codes,
            "latitude": [round(middles()[code][0], 1) for code in codes],
            "longitude": [round(middles()[code][1], 1) for code in codes],
            "lights": [row.lights for row in view.countries],
            "at_least": [int(row.is_at_least) for row in view.countries],
            "ultra_seats": [row.ultra_seats for row in view.countries],
            "memory_gib": [_gib(row.memory_bytes) for row in view.countries],
            "busy_tenths": [row.busy_tenths for row in view.countries],
        },
        "places": {
            "country": _differences([index[place.spot.country] for place in places]),
            "latitude": _differences([_steps(place.latitude) for place in places]),
            "longitude": _differences([_steps(place.longitude) for place in places]),
            "lights": [place.lights for place in places],
            # 0 an area, 1 a larger cell, 2 a country, 3 the one light of a country
            "kind": [_kind(place.spot) for place in places],
            "busy_tenths": [place.busy_tenths for place in places],
            "ultra_seats": [place.ultra_seats for place in places],
            "pod_macs": [place.pod_macs for place in places],
        },
    }


def _checkpoint_json(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    if checkpoint is None:
        return None
    return {
        "entries": checkpoint.entries,
        "root": checkpoint.root,
        "signed": checkpoint.signed_us // 1_000_000,
    }


def _kind(spot: Spot) -> int:
    if spot.kind == "cell":
        return int(is_folded(spot.cell))
    return 2 if spot.kind == "country" else 3


def _gib(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else size_bytes // GIB


def _steps(degrees: float) -> int:
    return round(degrees * STEPS_PER_DEGREE)


def _differences(values: list[int]) -> list[int]:
    return [*values[:1], *(after - before for before, after in pairwise(values))]
