"""The picture that a shared link carries: the globe with its lights, in the page's language.

Drawn when it is asked for, once an hour for each page and language, in a thread; nothing but what
the snapshot tells is on it.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import structlog
from PIL import Image, ImageDraw
from starlette.concurrency import run_in_threadpool

from web_world.feed import Feed
from web_world.pages import WORLD_PAGE, Page
from web_world.privacy import HOUR_US
from web_world.share_globe import Frame, Look, backdrop, look_at
from web_world.share_words import Style, can_shape, fitted, line_pixels, put
from web_world.snapshot import WorldView
from web_world.texts import DEFAULT, Language, texts_of

log = structlog.get_logger()

WIDTH: Final = 1200
HEIGHT: Final = 630
BYTES_MAX: Final = 200_000
QUALITIES: Final = (90, 82, 72, 60, 45)
MARGIN: Final = 64
TEXT_WIDTH: Final = 500
GLOBE_X: Final = 868
GLOBE_RADIUS: Final = 272
INK: Final = "#f4f8ff"
SOFT: Final = "#b3c0d8"
WARM: Final = "#ffcf70"
MARK_PIXELS: Final = 36
NUMBER_SIZE: Final = 124
HOST_SIZE: Final = 24
GAP: Final = 14
RISE: Final = 0.74  # of a line lies above its baseline
# Each language sees first the part of the Earth where most of its readers are.
LOOKS: Final = {
    "en": Look(-38, 26),
    "ar": Look(40, 24),
    "pl": Look(16, 30),
    "ur": Look(68, 26),
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A JPEG of `WIDTH` by `HEIGHT` pixels, at most `BYTES_MAX` long."""

    data: bytes
    etag: str


class Pictures:
    """Draws and keeps the pictures of one hour. Its methods run on the event loop."""

    def __init__(self, feed: Feed, *, host: str) -> None:
        """`host` is shown as the pages' address; "" shows none."""
        self._feed: Final = feed
        self._host: Final = host
        self._hour = -1
        self._kept: Final[dict[tuple[str, str], Picture]] = {}
        # Fonts may not be used by two threads at once, and one core is enough for pictures.
        self._drawing: Final = asyncio.Lock()
        if not can_shape():
            log.warning("shared_pictures_without_words", missing="libfribidi", languages=["ar", "ur"])

    async def get(self, page: Page, language: Language) -> Picture:
        """This hour's picture of the page; who asks while it is drawn waits for it."""
        async with self._drawing:
            view = await self._feed.view()
            if view.at_us // HOUR_US != self._hour:
                self._hour = view.at_us // HOUR_US
                self._kept.clear()
            key = (page.slug, language.code)
            if key not in self._kept:
                self._kept[key] = await run_in_threadpool(draw, page, language, view, self._host)
            return self._kept[key]


def draw(page: Page, language: Language, view: WorldView, host: str) -> Picture:
    """The picture of this page in this language. Blocks for about a fifth of a second.

    Where Arabic cannot be shaped, the pictures in Arabic and Urdu hold the globe and the number of
    Macs alone: letters that do not join cannot be read.
    """
    is_rtl = language.direction == "rtl"
    frame = Frame(WIDTH, HEIGHT, WIDTH - GLOBE_X if is_rtl else GLOBE_X, HEIGHT / 2, GLOBE_RADIUS)
    image = backdrop(view, look_at(view, LOOKS[language.code]), frame)
    pen = ImageDraw.Draw(image)
    if is_rtl and not can_shape():
        count = Line(texts_of(language.code).number(view.lights), Style(DEFAULT, NUMBER_SIZE, True), INK)
        _put_block(pen, (count,), is_rtl=True)
        return _encoded(image)
    _put_name(image, pen, language)
    _put_block(pen, _lines(page, language, view), is_rtl=is_rtl)
    if host:
        lines, style = fitted(host, Style(DEFAULT, HOST_SIZE, False), TEXT_WIDTH, 2 * HOST_SIZE)
        start = _start(lines[0], style, is_rtl=is_rtl)
        put(pen, lines[0], style, start=start, base=HEIGHT - MARGIN, colour=SOFT)
    return _encoded(image)


@dataclass(frozen=True, slots=True)
class Line:
    """One text of the middle of a picture: at most so large and so high."""

    text: str
    style: Style
    colour: str
    height: float = 4 * NUMBER_SIZE


def _lines(page: Page, language: Language, view: WorldView) -> tuple[Line, ...]:
    texts = texts_of(language.code)
    count, macs = texts.number(view.lights), texts.text("headline", count=view.lights)
    if page == WORLD_PAGE:
        return (
            Line(count, Style(DEFAULT, NUMBER_SIZE, True), INK),
            Line(macs, Style(language, 42, True), INK, 110),
            Line(texts.text("every-mac"), Style(language, 34, False), WARM, 110),
        )
    heading = texts.text(f"{page.slug}-heading")
    return (
        Line(heading, Style(language, 68, True), INK, 290),
        Line(f"{count} {macs}", Style(language, 32, False), WARM, 110),
    )


def _put_block(pen: ImageDraw.ImageDraw, block: Sequence[Line], *, is_rtl: bool) -> None:
    """Texts one below the other, together in the middle of the picture's height."""
    made = [(*fitted(line.text, line.style, TEXT_WIDTH, line.height), line.colour) for line in block]
    height = sum(len(lines) * style.line_pixels for lines, style, _ in made) + GAP * (len(made) - 1)
    top = (HEIGHT - height) / 2
    for lines, style, colour in made:
        for index, line in enumerate(lines):
            base = top + (index + RISE) * style.line_pixels
            start = _start(line, style, is_rtl=is_rtl)
            put(pen, line, style, start=start, base=base, colour=colour)
        top += len(lines) * style.line_pixels + GAP


def _start(line: str, style: Style, *, is_rtl: bool) -> float:
    """Where a line begins. What reads from left to right stands on the right side all the same where
    the page's language reads from right to left."""
    if not is_rtl:
        return MARGIN
    is_other = style.language.direction == "ltr"
    return WIDTH - MARGIN - (line_pixels(line, style) if is_other else 0)


def _put_name(image: Image.Image, pen: ImageDraw.ImageDraw, language: Language) -> None:
    """The pages' mark and their name beside it."""
    is_rtl = language.direction == "rtl"
    left = WIDTH - MARGIN - MARK_PIXELS if is_rtl else MARGIN
    image.paste(WARM, (left, MARGIN), _mark())
    indent = MARK_PIXELS + 14
    start = WIDTH - MARGIN - indent if is_rtl else MARGIN + indent
    name = texts_of(language.code).text("site-name")
    put(pen, name, Style(language, 30, True), start=start, base=MARGIN + 29, colour=INK)


@lru_cache(maxsize=1)
def _mark() -> Image.Image:
    """The mark as a mask: a globe's outline with its lights, drawn large and made small."""
    side = MARK_PIXELS * 8
    made = Image.new("L", (side, side))
    pen = ImageDraw.Draw(made)
    pen.ellipse((8, 8, side - 8, side - 8), outline=255, width=26)
    for x, y, radius in ((0.38, 0.36, 0.1), (0.65, 0.5, 0.12), (0.42, 0.67, 0.085)):
        box = ((x - radius) * side, (y - radius) * side, (x + radius) * side, (y + radius) * side)
        pen.ellipse(box, fill=255)
    return made.resize((MARK_PIXELS, MARK_PIXELS), Image.Resampling.LANCZOS)


def _encoded(image: Image.Image) -> Picture:
    """The best JPEG that is short enough."""
    data = b""
    for quality in QUALITIES:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality, optimize=True, progressive=True, subsampling=0)
        data = buffer.getvalue()
        if len(data) <= BYTES_MAX:
            break
    return Picture(data, hashlib.sha256(data).hexdigest()[:16])
