"""The globe of a shared link's picture: sea, land, night and lights, computed point by point.

Pure: a view in, pixels out. Arrays are float32 of shape (height, width), colours from 0 to 255.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from web_world.snapshot import WorldView

Plane = npt.NDArray[np.float32]
Colour = tuple[float, float, float]

LAND: Final = Path(__file__).parent / "static" / "land-fine.json"
STEPS_PER_DEGREE: Final = 6
SPACE: Final[Colour] = (5, 7, 13)
SPACE_LIT: Final[Colour] = (16, 32, 66)
SEA: Final[Colour] = (13, 39, 80)
SEA_LIT: Final[Colour] = (30, 80, 150)
GROUND: Final[Colour] = (62, 118, 182)
NIGHT: Final[Colour] = (2, 6, 22)
AIR: Final[Colour] = (76, 141, 255)
LIGHT: Final[Colour] = (255, 198, 92)
STAR: Final[Colour] = (255, 223, 158)
NIGHT_DEPTH: Final = 0.66
AIR_PIXELS: Final = 34.0
# The sine of the sun's height at dusk and where it is quite dark, as on the map.
DUSK: Final = 0.04
DARK: Final = -0.28
GLOW_REACHES: Final = 7
STARS_MAX: Final = 600
FEW_STARS: Final = 60  # so few stand out by their size
FEW_PLACES: Final = 40  # with so few the globe is turned to them


@dataclass(frozen=True, slots=True)
class Frame:
    """Size of the picture, and the globe's middle and radius in it, in pixels."""

    width: int
    height: int
    x: float
    y: float
    radius: float


@dataclass(frozen=True, slots=True)
class Look:
    """The place that the middle of the globe shows, in degrees."""

    longitude: float
    latitude: float


def look_at(view: WorldView, usual: Look) -> Look:
    """Where to look from: at the lights while there are few, else as usual."""
    if not 0 < len(view.places) < FEW_PLACES:
        return usual
    x, y, z = np.sum([_direction(place.longitude, place.latitude) for place in view.places], axis=0)
    latitude = math.degrees(math.atan2(z, math.hypot(x, y)))
    return Look(math.degrees(math.atan2(y, x)), max(-30.0, min(38.0, latitude)))


def backdrop(view: WorldView, look: Look, frame: Frame) -> Image.Image:
    """The picture without its words: space with a star for each Mac without a place (at most
    `STARS_MAX`), and the globe with a light for each place that faces us."""
    rows, columns = np.mgrid[0 : frame.height, 0 : frame.width].astype(np.float32)
    right, up = (columns - frame.x) / frame.radius, (frame.y - rows) / frame.radius
    out = np.hypot(right, up)
    colours = _space(columns, rows, frame)
    _add(colours, _stars(view.stars, frame), STAR)
    _add(colours, 0.62 * np.exp(-np.maximum(0, out - 1) * frame.radius / AIR_PIXELS), AIR)
    inside = np.sqrt(np.maximum(0, 1 - out**2))
    is_sea = np.clip((1 - out) * frame.radius + 0.5, 0, 1)
    globe = _globe(right, up, inside, look, view.at_us)
    for channel in range(3):
        colours[channel] += is_sea * (globe[channel] - colours[channel])
    _add(colours, is_sea * 0.55 * np.clip((out - 0.86) / 0.14, 0, 1) ** 2.5, AIR)
    _add(colours, 1 - np.exp(-1.5 * _lights(view, look, frame)), LIGHT)
    return Image.fromarray(np.clip(np.stack(colours, axis=-1), 0, 255).astype(np.uint8), "RGB")


def _space(columns: Plane, rows: Plane, frame: Frame) -> list[Plane]:
    near = np.hypot((columns - frame.x) / (0.62 * frame.width), (rows - frame.y) / (0.8 * frame.height))
    share: Plane = (np.clip(1 - near, 0, 1) ** 1.4).astype(np.float32)
    colours: list[Plane] = []
    for dark, lit in zip(SPACE, SPACE_LIT, strict=True):
        colours.append(dark + share * (lit - dark))
    return colours


def _globe(right: Plane, up: Plane, inside: Plane, look: Look, at_us: int) -> list[Plane]:
    eastward, northward, outward = _axes(look)
    x, y, z = (right * eastward[axis] + up * northward[axis] + inside * outward[axis] for axis in range(3))
    is_land = _sampled(np.degrees(np.arctan2(y, x)), np.degrees(np.arcsin(np.clip(z, -1, 1))))
    lit = np.clip(1 - np.hypot(right + 0.35, up - 0.45) / 1.35, 0, 1)
    sun = _direction(*subsolar(at_us))
    height = x * sun[0] + y * sun[1] + z * sun[2]
    dark = np.clip((DUSK - height) / (DUSK - DARK), 0, 1)
    dark = NIGHT_DEPTH * dark * dark * (3 - 2 * dark)
    colours: list[Plane] = []
    for sea, sea_lit, ground, night in zip(SEA, SEA_LIT, GROUND, NIGHT, strict=True):
        water = sea + lit * (sea_lit - sea)
        surface = water + is_land * (ground - water)
        colours.append(surface + dark * (night - surface))
    return colours


def _sampled(longitude: Plane, latitude: Plane) -> Plane:
    """How much of each point is land, from 0 to 1, smoothed between the mask's steps."""
    mask = land_mask()
    height, width = mask.shape
    column = (longitude + 180) * STEPS_PER_DEGREE - 0.5
    row = np.clip((90 - latitude) * STEPS_PER_DEGREE - 0.5, 0, height - 1.001)
    left, top = np.floor(column).astype(np.int32), np.floor(row).astype(np.int32)
    east, south = column - left, row - top
    found = np.zeros_like(longitude)
    for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
        weight = (east if dx else 1 - east) * (south if dy else 1 - south)
        found += weight * mask[top + dy, (left + dx) % width]
    return found / np.float32(255)


@lru_cache(maxsize=1)
def land_mask() -> npt.NDArray[np.uint8]:
    """Land as 255 and sea as 0, by latitude from the north and longitude from the west."""
    wire: dict[str, Any] = json.loads(LAND.read_text())
    image = Image.new("L", (360 * STEPS_PER_DEGREE, 180 * STEPS_PER_DEGREE))
    draw = ImageDraw.Draw(image)
    for polygon in wire["polygons"]:
        for index, flat in enumerate(polygon):
            ring = _unrolled(np.array(flat, dtype=np.int64).reshape(-1, 2) * wire["step"])
            for turn in (-360, 0, 360):
                corners = (ring * (1, -1) + (180 + turn, 90)) * STEPS_PER_DEGREE
                draw.polygon([(float(x), float(y)) for x, y in corners], fill=0 if index else 255)
    return np.asarray(image)


def _unrolled(differences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A ring's points from their differences, without jumps at the date line; a ring that goes all
    round the Earth (the Antarctic) is closed over its pole."""
    steps = differences.copy()
    steps[1:, 0] = (steps[1:, 0] + 180) % 360 - 180
    ring = np.cumsum(steps, axis=0)
    home = _wrapped(float(ring[0, 0] - ring[-1, 0]))
    if abs(ring[-1, 0] + home - ring[0, 0]) < 180:
        return ring
    pole = -90.0 if ring[:, 1].mean() < 0 else 90.0
    end = ring[-1, 0] + home
    return np.concatenate((ring, [(end, ring[0, 1]), (end, pole), (ring[0, 0], pole)]))


def _lights(view: WorldView, look: Look, frame: Frame) -> Plane:
    """Brightness of all lights together; one that holds many Macs is larger and brighter."""
    found = np.zeros((frame.height, frame.width), np.float32)
    eastward, northward, outward = _axes(look)
    is_many = len(view.places) >= FEW_PLACES
    for place in view.places:
        at = _direction(place.longitude, place.latitude)
        if at @ outward <= 0:
            continue
        size = math.log10(1 + place.lights)
        reach = 1.4 + 0.6 * size if is_many else 4.0 + 1.1 * size
        x, y = frame.x + frame.radius * (at @ eastward), frame.y - frame.radius * (at @ northward)
        _kindle(found, float(x), float(y), reach, 0.5 + 0.3 * size if is_many else 1.6)
    return found


def _kindle(plane: Plane, x: float, y: float, reach: float, brightness: float) -> None:
    room = int(GLOW_REACHES * reach) + 1
    left, top = max(0, int(x) - room), max(0, int(y) - room)
    part = plane[top : int(y) + room + 1, left : int(x) + room + 1]
    rows, columns = np.ogrid[top : top + part.shape[0], left : left + part.shape[1]]
    squared = ((columns - x) ** 2 + (rows - y) ** 2) / reach**2
    part += (brightness * (np.exp(-squared) + 0.16 * np.exp(-squared / 9))).astype(np.float32)


def _stars(count: int, frame: Frame) -> Plane:
    found = np.zeros((frame.height, frame.width), np.float32)
    draw = random.Random(7)  # noqa: S311 - the same sky for everybody
    is_few = count <= FEW_STARS
    for _ in range(min(count, STARS_MAX)):
        x, y = draw.uniform(0, frame.width - 1), draw.uniform(0, frame.height - 1)
        brightness = 0.9 if is_few else 0.15 + 0.5 * draw.random() ** 2
        _kindle(found, x, y, 1.6 if is_few else 0.9, brightness)
    return found


def _add(colours: list[Plane], brightness: Plane, colour: Colour) -> None:
    """Let light of a colour fall over what is there: it brightens, but never beyond white."""
    for channel, strength in enumerate(colour):
        share = np.clip(brightness, 0, 1) * (strength / 255)
        colours[channel] += share * (255 - colours[channel])


def _axes(look: Look) -> tuple[npt.NDArray[np.float32], ...]:
    """Unit vectors to the right, up and out of the picture."""
    longitude, latitude = math.radians(look.longitude), math.radians(look.latitude)
    east = (-math.sin(longitude), math.cos(longitude), 0.0)
    north = (
        -math.sin(latitude) * math.cos(longitude),
        -math.sin(latitude) * math.sin(longitude),
        math.cos(latitude),
    )
    out = _direction(look.longitude, look.latitude)
    return np.array(east, np.float32), np.array(north, np.float32), out


def _direction(longitude: float, latitude: float) -> npt.NDArray[np.float32]:
    lam, phi = math.radians(longitude), math.radians(latitude)
    return np.array((math.cos(phi) * math.cos(lam), math.cos(phi) * math.sin(lam), math.sin(phi)), np.float32)


def subsolar(at_us: int) -> tuple[float, float]:
    """Longitude and latitude in degrees where the sun stands overhead, to about a quarter of a
    degree: the Astronomical Almanac's low-precision formulas for the sun's coordinates."""
    days = at_us / 86_400e6 - 10_957.5
    mean = math.radians(280.46 + 0.9856474 * days)
    anomaly = math.radians(357.528 + 0.9856003 * days)
    ecliptic = mean + math.radians(1.915 * math.sin(anomaly) + 0.02 * math.sin(2 * anomaly))
    tilt = math.radians(23.439)
    ascension = math.atan2(math.cos(tilt) * math.sin(ecliptic), math.cos(ecliptic))
    equation = _wrapped(math.degrees(mean - ascension))
    hours = at_us / 3_600e6 % 24
    declination = math.asin(math.sin(tilt) * math.sin(ecliptic))
    return _wrapped(-15 * (hours - 12) - equation), math.degrees(declination)


def _wrapped(degrees: float) -> float:
    return (degrees + 180) % 360 - 180
