"""Countries: which codes there are, where their one light stands, what they are called.

Names are CLDR's, as they are, in every language; no borders are drawn. The middles are those of
each country's largest part, from Natural Earth (public domain), built by `src/build.mjs`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from babel import Locale
from babel.core import get_global

DATA: Final = Path(__file__).parent / "data" / "countries.json"


@lru_cache(maxsize=1)
def middles() -> dict[str, tuple[float, float]]:
    """Latitude and longitude, degrees, by ISO 3166 code of two letters."""
    aliases: Any = get_global("territory_aliases")
    found: dict[str, tuple[float, float]] = {}
    for key, (latitude, longitude) in json.loads(DATA.read_text()).items():
        code = key if key.isalpha() else next(iter(aliases.get(key, ())), "")
        if code:
            found[code] = (latitude, longitude)
    return found


def is_country(code: str) -> bool:
    """Whether a Mac may be shown in it."""
    return code in middles()


@lru_cache(maxsize=2048)
def country_name(code: str, language: str) -> str:
    """The country's name in the language; its code if CLDR has none."""
    names: Any = Locale(language).territories
    return str(names.get(code, code))
