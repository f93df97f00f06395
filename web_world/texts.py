"""The pages' languages: texts (Fluent), numbers, sizes and names (CLDR), and their direction.

Digits are those of the pinned numbering system, the same on the server and in every browser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from babel.numbers import format_compact_decimal, format_currency, format_decimal, format_percent
from babel.units import format_unit
from fluent.runtime import FluentBundle, FluentResource
from markupsafe import Markup, escape

LOCALES: Final = Path(__file__).parent / "locales"
NUMBERING: Final = "latn"
WEIGHT: Final = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")  # as HTTP has it; `float` also takes nan
CLIENT_FILE: Final = "client"
"""This file's messages are sent to the browser, too."""

Direction = Literal["ltr", "rtl"]


class TextMissingError(LookupError):
    """A message is not there or lacks a variable; the text names both."""


@dataclass(frozen=True, slots=True)
class Language:
    """One language of the pages. `name` is what it calls itself."""

    code: str
    name: str
    direction: Direction

    @property
    def tag(self) -> str:
        """BCP 47, with the digits pinned: what `Intl` in the browser is given."""
        return f"{self.code}-u-nu-{NUMBERING}"


LANGUAGES: Final = (
    Language("en", "English", "ltr"),
    Language("ar", "العربية", "rtl"),
    Language("pl", "Polski", "ltr"),
    Language("ur", "اردو", "rtl"),
)
BY_CODE: Final = {language.code: language for language in LANGUAGES}
DEFAULT: Final = LANGUAGES[0]


class Texts:
    """The messages of one language."""

    def __init__(self, language: Language, sources: Iterable[str]) -> None:
        self.language: Final = language
        self._bundle: Final[Any] = FluentBundle([language.code])
        for source in sources:
            self._bundle.add_resource(FluentResource(source))

    def text(self, key: str, **values: Any) -> str:
        """The message as plain text. Raises `TextMissingError`."""
        if not self._bundle.has_message(key):
            raise TextMissingError(f"{self.language.code}: no message {key}")
        made, faults = self._bundle.format_pattern(self._bundle.get_message(key).value, values)
        if faults:
            raise TextMissingError(f"{self.language.code}: {key}: {faults[0]}")
        return str(made)

    def html(self, key: str, **values: Any) -> Markup:
        """The message for a page: what it is given is escaped, its own tags are kept."""
        safe = {name: escape(value) if isinstance(value, str) else value for name, value in values.items()}
        return Markup(self.text(key, **safe))  # noqa: S704 - messages are our own files

    def number(self, value: float) -> str:
        """A whole number with the language's grouping."""
        return format_decimal(value, format="#,##0", locale=self.language.code, numbering_system=NUMBERING)

    def short(self, value: float) -> str:
        """A large number in few characters: 1.2M, 1.2 مليون, 1,2 mln, 12 لاکھ."""
        digits = 0 if value < 1000 or 10_000 <= value < 1_000_000 else 1
        return format_compact_decimal(
            value, fraction_digits=digits, locale=self.language.code, numbering_system=NUMBERING
        )

    def tenths(self, value: int) -> str:
        """Tenths as a percentage."""
        return format_percent(value / 10, locale=self.language.code, numbering_system=NUMBERING)

    def percent(self, ppm: int) -> str:
        """Parts per million as a percentage."""
        return format_percent(
            ppm / 1e6, format="#,##0.#%", locale=self.language.code, numbering_system=NUMBERING
        )

    def mlx(self, umlx: int, digits: int) -> str:
        """An amount of uMLX in MLX, rounded to so many digits behind the point."""
        return format_decimal(
            umlx / 1e6, format=f"#,##0.{'0' * digits}", locale=self.language.code, numbering_system=NUMBERING
        )

    def quantity(self, value: float, unit: str) -> str:
        """A number with its unit's sign, two digits behind the point at most; "x" is how many times."""
        number = format_decimal(
            value, format="#,##0.##", locale=self.language.code, numbering_system=NUMBERING
        )
        # The marks keep the sign behind the number where text runs from right to left.
        return f"\u200e{number}\u00d7\u200e" if unit == "x" else f"{number}\u00a0{unit}"

    def money(self, value: float, currency: str) -> str:
        """An amount in a currency (ISO 4217), small ones with three digits that count."""
        digits = 2 if value == 0 or value >= 1 else 2 - Decimal(value).adjusted()
        return format_currency(
            round(Decimal(value), digits),
            currency,
            locale=self.language.code,
            currency_digits=False,
            decimal_quantization=False,
            numbering_system=NUMBERING,
        )

    def amount(self, value: float) -> str:
        """A number with three digits that count, more only before the point."""
        digits = 0 if value == 0 else max(0, 2 - Decimal(value).adjusted())
        return format_decimal(
            round(Decimal(value), digits),
            format="#,##0.######",
            locale=self.language.code,
            numbering_system=NUMBERING,
        )

    def unit(self, value: float, unit: str) -> str:
        """An amount with a unit of CLDR ("power-watt"), times in words and others in short."""
        told = round(Decimal(value), 0 if value >= 100 else 1)
        return format_unit(
            # Plural forms differ between 36 and 36.0.
            int(told) if told == int(told) else told,
            unit,
            length="long" if unit.startswith("duration-") else "short",
            locale=self.language.code,
            numbering_system=NUMBERING,
        )

    def memory(self, size_bytes: int) -> str:
        """Bytes in the largest fitting of GB, TB and PB (binary steps, as memory is sold)."""
        value, unit = size_bytes / (1 << 30), "GB"
        for larger in ("TB", "PB"):
            if value < 1024:
                break
            value, unit = value / 1024, larger
        return self.text("measure", value=self._measured(value), unit=unit)

    def bandwidth(self, bytes_per_second: int) -> str:
        """Bytes a second in GB/s, TB/s or PB/s (decimal steps, as bandwidth is told)."""
        value, unit = bytes_per_second / 1e9, "GB/s"
        for larger in ("TB/s", "PB/s"):
            if value < 1000:
                break
            value, unit = value / 1000, larger
        return self.text("measure", value=self._measured(value), unit=unit)

    def duration(self, seconds: int) -> str:
        """A length of time in the largest unit of day, hour and minute that it is whole in, else in
        seconds; up to 48 hours are told in hours."""
        unit, size = "second", 1
        for larger, larger_size in (("minute", 60), ("hour", 3600), ("day", 86_400)):
            if seconds and seconds % larger_size == 0 and (larger != "day" or seconds > 2 * 86_400):
                unit, size = larger, larger_size
        return format_unit(
            seconds // size, f"duration-{unit}", locale=self.language.code, numbering_system=NUMBERING
        )

    def _measured(self, value: float) -> str:
        pattern = "#,##0.#" if value < 100 else "#,##0"
        return format_decimal(value, format=pattern, locale=self.language.code, numbering_system=NUMBERING)


def sources_of(language: Language) -> Mapping[str, str]:
    """The language's message files by name, without their ending."""
    return {path.stem: path.read_text() for path in sorted((LOCALES / language.code).glob("*.ftl"))}


@lru_cache(maxsize=len(LANGUAGES))
def texts_of(code: str) -> Texts:
    """The texts of one of the four languages."""
    language = BY_CODE[code]
    return Texts(language, sources_of(language).values())


def choose(cookie: str | None, accepted: str | None) -> Language:
    """The language for an address that names none: the reader's own choice, then the browser's."""
    if cookie in BY_CODE:
        return BY_CODE[cookie]
    ranked: list[tuple[float, str]] = []
    for part in (accepted or "").split(","):
        tag, _, weight = part.strip().partition(";q=")
        if WEIGHT.fullmatch(weight or "1"):
            ranked.append((float(weight or 1), tag.partition("-")[0].lower()))
    for weight, code in sorted(ranked, key=lambda entry: -entry[0]):
        if code in BY_CODE and weight > 0:
            return BY_CODE[code]
    return DEFAULT
