"""H3 cells: which may be sent, which one contains which, and where their middles are.

Sizes: resolution 3 has about 12,400 km² (edge 69 km), resolution 2 about 86,800 km² (edge 183 km);
h3geo.org, table of cell statistics.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import h3

AREA_RESOLUTION: Final = 3
FOLDED_RESOLUTION: Final = 2

_h3: Any = h3  # ships no types


def is_area(cell: str) -> bool:
    """Whether this is an H3 cell of the one resolution that an owner's Mac may send."""
    return bool(_h3.is_valid_cell(cell)) and _h3.get_resolution(cell) == AREA_RESOLUTION


@lru_cache(maxsize=50_000)
def folded(cell: str) -> str:
    """The cell of the next coarser kind that holds this area."""
    return str(_h3.cell_to_parent(cell, FOLDED_RESOLUTION))


@lru_cache(maxsize=50_000)
def centre(cell: str) -> tuple[float, float]:
    """Latitude and longitude of a cell's middle, in degrees."""
    latitude, longitude = _h3.cell_to_latlng(cell)
    return float(latitude), float(longitude)


def is_folded(cell: str) -> bool:
    """Whether the cell is of the coarser kind."""
    return _h3.get_resolution(cell) == FOLDED_RESOLUTION


def area_at(latitude: float, longitude: float) -> str:
    """The area that holds this point, degrees."""
    return str(_h3.latlng_to_cell(latitude, longitude, AREA_RESOLUTION))
