"""A made-up fleet, the same for the same seed: for looking at the pages and for tests.

Towns, shares and hardware are invented for the picture; nothing here is measured.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from web_world.cells import area_at
from web_world.source import NOWHERE, MacFacts, Place, Pulse

GIB: Final = 1 << 30
GB: Final = 10**9
SPREAD_DEGREES: Final = 0.6  # people lend from towns around the large ones, too
PLACE_SHARES: Final = (("area", 0.62), ("country", 0.83))  # what is left shows no place
BUSY_SHARE: Final = 0.35


class Town(NamedTuple):
    country: str
    latitude: float
    longitude: float
    weight: float


# Country, then (latitude, longitude, weight) of towns; degrees to a hundredth.
TOWNS_TEXT: Final = """
US 37.77 -122.42 90; 34.05 -118.24 70; 40.71 -74.01 80; 47.61 -122.33 45; 41.88 -87.63 35; 30.27 -97.74 40
US 42.36 -71.06 38; 39.74 -104.99 22; 33.75 -84.39 22; 38.91 -77.04 26; 32.72 -117.16 18; 45.52 -122.68 16
US 44.98 -93.27 14; 33.45 -112.07 14; 29.76 -95.37 16; 25.76 -80.19 14; 35.78 -78.64 12; 40.76 -111.89 12
CN 31.23 121.47 50; 39.90 116.41 46; 22.54 114.06 44; 30.27 120.16 22; 30.57 104.07 18; 23.13 113.26 18
IN 12.97 77.59 46; 19.08 72.88 30; 28.61 77.21 30; 17.39 78.49 24; 13.08 80.27 16; 18.52 73.86 16
JP 35.68 139.69 48; 34.69 135.50 20; 35.18 136.91 9; 33.59 130.40 7; 43.06 141.35 5
DE 52.52 13.40 30; 48.14 11.58 24; 53.55 9.99 14; 50.94 6.96 14; 50.11 8.68 14; 48.78 9.18 9
GB 51.51 -0.13 46; 53.48 -2.24 12; 55.95 -3.19 9; 51.45 -2.59 8; 52.20 0.12 9
FR 48.86 2.35 36; 45.76 4.84 10; 43.60 1.44 7; 44.84 -0.58 6; 43.30 5.37 6
PL 52.23 21.01 22; 50.06 19.94 13; 51.11 17.04 11; 54.35 18.65 9; 52.41 16.93 8; 50.26 19.02 6
PK 31.55 74.34 16; 24.86 67.01 16; 33.68 73.05 14; 31.42 73.09 4; 34.01 71.58 3
SA 24.71 46.68 14; 21.49 39.19 9; 26.42 50.09 5
AE 25.20 55.27 13; 24.45 54.38 6
EG 30.04 31.24 12; 31.20 29.92 4
CA 43.65 -79.38 26; 49.28 -123.12 16; 45.50 -73.57 14; 51.05 -114.07 6; 45.42 -75.70 6
AU -33.87 151.21 22; -37.81 144.96 20; -27.47 153.03 9; -31.95 115.86 6
NL 52.37 4.90 20; 51.92 4.48 8
SE 59.33 18.07 14; 57.71 11.97 6; 55.60 13.00 5
CH 47.38 8.54 13; 46.20 6.14 6
ES 40.42 -3.70 14; 41.39 2.17 14; 39.47 -0.38 4
IT 45.46 9.19 13; 41.90 12.50 9; 45.07 7.69 4
KR 37.57 126.98 22; 35.18 129.08 4
TW 25.03 121.57 14; 22.63 120.30 3
SG 1.35 103.82 14
HK 22.32 114.17 10
BR -23.55 -46.63 20; -22.91 -43.17 8; -30.03 -51.23 4; -19.92 -43.94 4
MX 19.43 -99.13 10; 20.67 -103.35 5; 25.69 -100.32 4
AR -34.60 -58.38 8
CL -33.45 -70.67 5
CO 4.71 -74.07 6; 6.24 -75.58 3
TR 41.01 28.98 12; 39.93 32.86 5
IL 32.09 34.78 11
JO 31.95 35.93 4
LB 33.89 35.50 2
MA 33.57 -7.59 4
TN 36.81 10.18 3
DZ 36.75 3.06 3
NG 6.52 3.38 6
KE -1.29 36.82 5
ZA -26.20 28.05 7; -33.92 18.42 6
ID -6.21 106.85 9
MY 3.14 101.69 6
TH 13.76 100.50 7
VN 10.82 106.63 7; 21.03 105.85 5
PH 14.60 120.98 6
BD 23.81 90.41 5
NP 27.72 85.32 2
LK 6.93 79.86 2
AT 48.21 16.37 8
CZ 50.08 14.44 8
DK 55.68 12.57 9
NO 59.91 10.75 8
FI 60.17 24.94 8
IE 53.35 -6.26 8
PT 38.72 -9.14 7
BE 50.85 4.35 7
RO 44.43 26.10 6; 46.77 23.59 4
UA 50.45 30.52 7; 49.84 24.03 4
HU 47.50 19.04 4
GR 37.98 23.73 4
BG 42.70 23.32 4
RS 44.82 20.46 3
EE 59.44 24.75 3
LT 54.69 25.28 3
KZ 43.24 76.95 2
NZ -36.85 174.76 6; -41.29 174.78 3
IS 64.15 -21.94 1
UY -34.90 -56.16 1
CR 9.93 -84.08 0.6
GH 5.60 -0.19 0.6
MT 35.90 14.51 0.25
BH 26.23 50.59 0.3
FJ -18.14 178.44 0.03
MV 4.18 73.51 0.02
"""
# Memory in GiB, bandwidth in GB/s, whether an Ultra, weight.
MODELS: Final = (
    (16, 100, False, 22),
    (24, 120, False, 16),
    (32, 153, False, 10),
    (36, 273, False, 12),
    (48, 273, False, 10),
    (64, 410, False, 12),
    (128, 546, False, 9),
    (96, 819, True, 4),
    (256, 819, True, 2),
    (512, 819, True, 1.4),
)


def _towns() -> tuple[Town, ...]:
    found: list[Town] = []
    for line in TOWNS_TEXT.strip().splitlines():
        country, rest = line.split(maxsplit=1)
        for entry in rest.split(";"):
            latitude, longitude, weight = (float(value) for value in entry.split())
            found.append(Town(country, latitude, longitude, weight))
    return tuple(found)


def demo_fleet(
    count: int, *, seed: int, now_us: int, spread_degrees: float = SPREAD_DEGREES
) -> tuple[MacFacts, ...]:
    """`count` Macs that were all seen just now; one owner has one to four of them."""
    draw = random.Random(seed)  # noqa: S311 - a picture, not a secret
    towns = _towns()
    weights = [town.weight for town in towns]
    macs: list[MacFacts] = []
    while len(macs) < count:
        town = draw.choices(towns, weights)[0]
        owner = f"owner{len(macs)}"
        place = _place(draw, town, spread_degrees)
        size = draw.choices((1, 2, 3, 4), (80, 14, 3, 3))[0]
        pod = f"pod{len(macs)}" if size > 1 and draw.random() < 0.5 else ""
        models = draw.choices(MODELS, [model[3] for model in MODELS], k=size)
        for memory, bandwidth, is_ultra, _ in models[: count - len(macs)]:
            macs.append(
                MacFacts(
                    mac=f"mac{len(macs)}",
                    owner=owner,
                    seen_us=now_us,
                    place=place,
                    memory_bytes=memory * GIB,
                    bandwidth_bytes_per_second=bandwidth * GB,
                    is_measured=draw.random() < 0.7,
                    is_attested=draw.random() < 0.06,
                    is_ultra_seat=is_ultra and draw.random() < 0.8,
                    pod=pod,
                )
            )
    return tuple(macs)


def _place(draw: random.Random, town: Town, spread_degrees: float) -> Place:
    chance = draw.random()
    if chance < PLACE_SHARES[0][1]:
        latitude = max(-85.0, min(85.0, draw.gauss(town.latitude, spread_degrees)))
        longitude = draw.gauss(town.longitude, spread_degrees)
        return Place("area", town.country, area_at(latitude, longitude))
    return Place("country", town.country) if chance < PLACE_SHARES[1][1] else NOWHERE


class DemoWork:
    """Work that goes up and down by itself, so that the page has something to show."""

    def __init__(self, macs: tuple[MacFacts, ...], *, seed: int) -> None:
        self._draw: Final = random.Random(seed)  # noqa: S311
        self._macs: Final = [mac.mac for mac in macs]
        self._share = BUSY_SHARE
        self._jobs = 0.0
        self._tokens = 0.0

    def step(self, seconds: float) -> Pulse:
        """Let time pass and tell how things stand."""
        self._share = min(0.8, max(0.05, self._share + self._draw.gauss(0, 0.01)))
        busy = frozenset(self._draw.sample(self._macs, round(self._share * len(self._macs))))
        self._jobs += len(busy) * seconds / 14  # a job takes a Mac about a quarter of a minute
        self._tokens += len(busy) * seconds * 31
        return Pulse(
            busy=busy,
            connected=len(self._macs),
            jobs_ended=int(self._jobs),
            tokens_relayed=int(self._tokens),
        )
