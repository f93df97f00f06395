"""What the public map shows of this Mac: chosen here by its owner, made coarse here, told as chosen.

A position never leaves this machine: what is sent is a country's code or one H3 cell of about
12,400 km². Nothing is asked of location services or of anybody's address book of addresses; towns
and countries come from the time zone tables that lie on every Mac (`zone.tab`, `iso3166.tab`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import httpx2
from pydantic import BaseModel

from node_agent.identity import Identity
from node_agent.protocol.signing import place_statement

PlaceKind = Literal["none", "country", "area"]

ZONES: Final = Path("/usr/share/zoneinfo")
LOCAL_ZONE: Final = Path("/etc/localtime")
AREA_RESOLUTION: Final = 3  # H3; about 12,400 km², edge 69 km
HTTP_TIMEOUT: Final = httpx2.Timeout(20.0, connect=10.0)
HTTP_OK: Final = 200
HTTP_CONFLICT: Final = 409
WIDTH: Final = 88
POSITION: Final = re.compile(r"\s*(-?\d{1,2}(?:\.\d+)?)\s*[,; ]\s*(-?\d{1,3}(?:\.\d+)?)\s*")
ZONE_POSITION: Final = re.compile(r"([+-])(\d{2})(\d{2})(?:\d{2})?([+-])(\d{3})(\d{2})(?:\d{2})?")


class PlaceError(ValueError):
    """A place cannot be chosen like this; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Town:
    """A town that names a time zone, degrees."""

    country: str
    latitude: float
    longitude: float


@dataclass(frozen=True, slots=True)
class Atlas:
    """What this machine knows of the Earth: towns by their zone, countries' names by code."""

    towns: Mapping[str, Town]
    countries: Mapping[str, str]

    def country_name(self, code: str) -> str:
        """The country's English name, or its code."""
        return self.countries.get(code, code)


@dataclass(frozen=True, slots=True)
class Place:
    """A choice as it is told to the coordinator."""

    kind: PlaceKind = "none"
    country: str = ""
    cell: str = ""


def parse_atlas(zone_tab: str, iso3166_tab: str) -> Atlas:
    """The two tables of the tz database, in their own format. Lines that are not theirs are left out."""
    towns: dict[str, Town] = {}
    for columns in _rows(zone_tab):
        at = ZONE_POSITION.fullmatch(columns[1]) if len(columns) > 2 else None
        if at is not None:
            latitude = (int(at[2]) + int(at[3]) / 60) * (-1 if at[1] == "-" else 1)
            longitude = (int(at[5]) + int(at[6]) / 60) * (-1 if at[4] == "-" else 1)
            towns[columns[2]] = Town(columns[0], latitude, longitude)
    return Atlas(towns, {columns[0]: columns[1] for columns in _rows(iso3166_tab) if len(columns) > 1})


def _rows(table: str) -> list[list[str]]:
    return [line.split("\t") for line in table.splitlines() if line and not line.startswith("#")]


def read_atlas(folder: Path = ZONES) -> Atlas:
    """This machine's tables; an empty atlas where there are none."""
    try:
        return parse_atlas((folder / "zone.tab").read_text(), (folder / "iso3166.tab").read_text())
    except OSError:
        return Atlas({}, {})


def suggested_country(atlas: Atlas, local_zone: Path = LOCAL_ZONE) -> str:
    """The country of this machine's time zone, "" if it does not say."""
    try:
        zone = str(local_zone.readlink()).partition("zoneinfo/")[2]
    except OSError:
        return ""
    town = atlas.towns.get(zone)
    return town.country if town is not None else ""


def choose(kind: str, *, country: str | None, near: str | None, atlas: Atlas, suggestion: str) -> Place:
    """The place for what the owner typed. Raises `PlaceError`.

    `near` is a town that names a time zone ("Warsaw") or "LATITUDE,LONGITUDE" in degrees.
    """
    match kind:
        case "none":
            return Place()
        case "country":
            return Place("country", _country(country or suggestion, atlas))
        case "area":
            town = _near(near, atlas)
            code = country or town.country or suggestion
            return Place("area", _country(code, atlas), cell_at(town.latitude, town.longitude))
        case _:
            raise PlaceError(f"--place: {kind!r} is none of country, area, none")


def _country(code: str, atlas: Atlas) -> str:
    known = code.strip().upper()
    if len(known) != 2 or (atlas.countries and known not in atlas.countries):
        raise PlaceError(
            f"--country: {code!r} is no country's code of two letters, like PL or PK"
            if code
            else "--country: this Mac's time zone does not tell a country; give its code of two letters"
        )
    return known


def _near(near: str | None, atlas: Atlas) -> Town:
    if near is None:
        raise PlaceError(
            '--near: an area needs a town or a position, like --near Lahore or --near "52.2,21.0"'
        )
    at = POSITION.fullmatch(near)
    if at is not None:
        latitude, longitude = float(at[1]), float(at[2])
        if abs(latitude) > 90 or abs(longitude) > 180:
            raise PlaceError(f"--near: {near!r} lies outside the Earth; latitude first, then longitude")
        return Town("", latitude, longitude)
    wanted = near.strip().replace(" ", "_").casefold()
    for zone, town in atlas.towns.items():
        if zone.rpartition("/")[2].casefold() == wanted:
            return town
    raise PlaceError(
        f"--near: {near!r} is not among the towns that this Mac knows;"
        ' give a position in degrees instead, like "52.2,21.0"'
    )


def cell_at(latitude: float, longitude: float) -> str:
    """The coarse cell that holds this position; the only form in which it is sent."""
    import h3

    made: Any = h3
    return str(made.latlng_to_cell(latitude, longitude, AREA_RESOLUTION))


def middle_of(cell: str) -> tuple[float, float]:
    """Latitude and longitude of a cell's middle, degrees."""
    import h3

    made: Any = h3
    latitude, longitude = made.cell_to_latlng(cell)
    return float(latitude), float(longitude)


def preview(place: Place, atlas: Atlas) -> str:
    """What the public will see of this Mac, for its owner to read before it is told."""
    country = atlas.country_name(place.country)
    match place.kind:
        case "none":
            text = (
                "The map shows no place for this Mac. It counts as one star beside the globe, among all"
                " that are somewhere on Earth."
            )
        case "country":
            text = (
                f"The map shows this Mac in {country} ({place.country}). While fewer than seven owners show"
                f" Macs there it says only that {country} has at least one Mac, without number, state or"
                " hardware, for seven days after it was last seen. With more owners it is one of a number."
            )
        case "area":
            latitude, longitude = middle_of(place.cell)
            text = (
                f"The map shows this Mac in one area of about 12,400 km² round {_degrees(latitude, 'NS')}"
                f" {_degrees(longitude, 'EW')} once seven owners show Macs in it. With fewer it counts for a"
                f" larger area, then for {country} ({place.country}), and if they are too few there, too, the"
                f" map says only that {country} has at least one Mac. Nothing finer leaves this Mac."
            )
    return textwrap.fill(text, WIDTH)


def _degrees(value: float, signs: str) -> str:
    return f"{abs(value):.1f}° {signs[value < 0]}"


class Taken(BaseModel):
    """The coordinator's answer: the choice's number, and which light is this Mac's now."""

    sequence: int
    kind: str
    light: str | None = None


class _Refusal(BaseModel):
    class Error(BaseModel):
        message: str = ""

    error: Error = Error()


def tell(client: httpx2.Client, origin: str, identity: Identity, place: Place, *, sequence: int) -> Taken:
    """Tell the coordinator, with a number above the last one's. Raises `PlaceError`."""
    statement = place_statement(
        audience=origin,
        node_id=identity.node_id,
        sequence=sequence,
        kind=place.kind,
        country=place.country,
        cell=place.cell,
    )
    body = {"sequence": sequence, "kind": place.kind, "country": place.country, "cell": place.cell}
    headers = {"Authorization": f"MLX-Node {identity.node_id} {identity.sign(statement)}"}
    try:
        response = client.post(f"{origin}/nodes/v1/place", json=body, headers=headers)
    except httpx2.HTTPError as error:
        raise PlaceError(
            f"{origin} could not be reached ({type(error).__name__}); the map still shows what it did."
            " Try again with mlx-node place"
        ) from error
    if response.status_code != HTTP_OK:
        raise PlaceError(f"{origin} did not take the place: {_reason(response)}")
    try:
        return Taken.model_validate_json(response.content)
    except ValueError:
        raise PlaceError(f"{origin} does not answer like an MLX Network coordinator") from None


def _reason(response: httpx2.Response) -> str:
    try:
        return _Refusal.model_validate_json(response.content).error.message or f"HTTP {response.status_code}"
    except ValueError:
        return f"HTTP {response.status_code}"
