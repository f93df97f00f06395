"""Words on a picture: shaped, in reading direction, broken into lines that fit.

One font holds Latin and Arabic letters. Urdu is set in Nastaliq, whose font holds Arabic letters
alone; what is not Arabic in an Urdu line is set in the other font, run by run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from PIL import ImageDraw, ImageFont, features

from web_world.texts import Language

FOLDER: Final = Path(__file__).parent
PLAIN_FONT: Final = FOLDER / "data" / "fonts" / "vazirmatn.woff2"
NASTALIQ: Final = {
    False: FOLDER / "static" / "fonts" / "nastaliq.woff2",
    True: FOLDER / "static" / "fonts" / "nastaliq-bold.woff2",
}
PLAIN_WEIGHTS: Final = {False: 450, True: 750}
BOLD_LINE: Final = 1.16
PLAIN_LINE: Final = 1.4
NASTALIQ_LINE: Final = 2.05
ARABIC_LINE: Final = 1.45
SIZE_STEP: Final = 2
# Marks of direction; here each run is set in its own direction anyhow.
MARKS: Final = re.compile("[\u200e\u200f\u2066-\u2069]")
ARABIC: Final = r"\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufeff\u200c\u200d"
# A run of Arabic words, one that reads from left to right, or a sign or space between them.
RUNS: Final = re.compile(
    rf"(?P<arabic>[{ARABIC}](?:[{ARABIC} ]*[{ARABIC}])?)"
    rf"|(?P<latin>[^\W{ARABIC}](?:[^{ARABIC}]*[^\W{ARABIC}])?)"
    r"|(?P<sign>.)"
)

Font = ImageFont.FreeTypeFont


@lru_cache(maxsize=1)
def can_shape() -> bool:
    """Whether Arabic can be joined and set from right to left here: Raqm with FriBidi."""
    return bool(features.check("raqm")) and bool(features.check("fribidi"))


@dataclass(frozen=True, slots=True)
class Style:
    """How a text looks: `size` in pixels."""

    language: Language
    size: int
    is_bold: bool

    @property
    def line_pixels(self) -> float:
        """From one baseline to the next."""
        if self.language.code == "ur":
            return NASTALIQ_LINE * self.size
        if self.language.direction == "rtl":
            return ARABIC_LINE * self.size
        return (BOLD_LINE if self.is_bold else PLAIN_LINE) * self.size


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a line in one font and one direction."""

    text: str
    font: Font
    direction: Literal["ltr", "rtl"] | None
    language: str | None

    def pixels(self) -> float:
        return self.font.getlength(self.text, direction=self.direction, language=self.language)


@lru_cache(maxsize=64)
def _font(path: Path, size: int, weight: int | None) -> Font:
    made = ImageFont.truetype(path, size)
    if weight is not None:
        made.set_variation_by_axes([weight])
    return made


def _plain(style: Style) -> Font:
    return _font(PLAIN_FONT, style.size, PLAIN_WEIGHTS[style.is_bold])


def runs_of(text: str, style: Style) -> list[Run]:
    """A line's runs in the order in which they are read."""
    text = MARKS.sub("", text)
    language = style.language
    if not can_shape():
        return [Run(text, _plain(style), None, None)]
    if language.code != "ur":
        return [Run(text, _plain(style), language.direction, language.code)]
    nastaliq = _font(NASTALIQ[style.is_bold], style.size, None)
    found: list[Run] = []
    for part in RUNS.finditer(text):
        if part["arabic"] is not None:
            found.append(Run(part["arabic"], nastaliq, "rtl", "ur"))
        else:
            found.append(Run(part[0], _plain(style), "ltr" if part["latin"] else "rtl", "en"))
    return found


def line_pixels(text: str, style: Style) -> float:
    """How wide a line is."""
    return sum(run.pixels() for run in runs_of(text, style))


def wrapped(text: str, style: Style, width: float) -> list[str]:
    """The text's lines, none wider than `width` unless one word is; about equally long."""
    greedy = _greedy(text, style, width)
    for share in range(60, 100, 4):
        narrow = _greedy(text, style, width * share / 100)
        is_fit = all(line_pixels(line, style) <= width for line in narrow)
        if len(narrow) == len(greedy) and is_fit:
            return narrow
    return greedy


def _greedy(text: str, style: Style, width: float) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and line_pixels(longer, style) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def fitted(text: str, style: Style, width: float, height: float) -> tuple[list[str], Style]:
    """The text's lines in the largest size, from `style`'s down, in which they fill no more."""
    while True:
        lines = wrapped(text, style, width)
        is_wide = any(line_pixels(line, style) > width for line in lines)
        if style.size <= SIZE_STEP or (not is_wide and len(lines) * style.line_pixels <= height):
            return lines, style
        style = Style(style.language, style.size - SIZE_STEP, style.is_bold)


def put(
    draw: ImageDraw.ImageDraw, line: str, style: Style, *, start: float, base: float, colour: str
) -> None:
    """Draw a line on the baseline `base`, from `start`: its left edge, or where its language reads
    from right to left the right one."""
    is_rtl = style.language.direction == "rtl"
    x = start
    for run in runs_of(line, style):
        x -= run.pixels() if is_rtl else 0
        draw.text(
            (x, base),
            run.text,
            fill=colour,
            font=run.font,
            anchor="ls",
            direction=run.direction,
            language=run.language,
        )
        x += 0 if is_rtl else run.pixels()
