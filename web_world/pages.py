"""Pages as HTML: one layout, one template a page, in four languages. No page needs JavaScript.

A new page is one `Page` in `PAGES` and its template; its texts lie beside the others in `locales/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from babel.dates import format_date, format_time, get_datetime_format
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from web_world import calculator, calculator_form
from web_world.claims import APPLE_NOTE, CLAIMS, MLX_FAULT, MLX_GUIDE, Quantity
from web_world.countries import country_name
from web_world.feed import Standing
from web_world.market import MEMORY_CLASSES, TOKENS_CONTEXT, Market
from web_world.snapshot import WorldView
from web_world.source import Terms
from web_world.texts import CLIENT_FILE, LANGUAGES, Language, Texts, sources_of, texts_of

TEMPLATES: Final = Path(__file__).parent / "templates"
STATIC: Final = Path(__file__).parent / "static"
AREA_KM2: Final = 12_000
SOURCES: Final = {"note": APPLE_NOTE, "guide": MLX_GUIDE, "fault": MLX_FAULT}
CHART_HEIGHT: Final = 100
# Fetched with the page, not after its style: text that changes its font moves all that is below it.
FONTS: Final = {"ar": ("vazirmatn-arabic.woff2",), "ur": ("nastaliq.woff2", "nastaliq-bold.woff2")}


@dataclass(frozen=True, slots=True)
class Page:
    """One public page: `slug` is its address under each language, "" for the first page."""

    slug: str
    template: str
    title_key: str
    nav_key: str
    has_form: bool = False
    """Whether it answers what was typed into it, as an address's query."""

    def address(self, language: Language) -> str:
        """The page's path in this language."""
        return f"/{language.code}/{self.slug}"

    def picture(self, language: Language) -> str:
        """The path of the picture that a link to the page carries."""
        return f"/world/share/{language.code}/{self.slug or 'world'}.jpg"


WORLD_PAGE: Final = Page("", "world.html", "world-title", "nav-world")
PAGES: Final = (
    WORLD_PAGE,
    Page("about", "about.html", "about-page-title", "nav-about"),
    Page("privacy", "privacy.html", "privacy-page-title", "nav-privacy"),
    Page("ultra", "ultra.html", "ultra-page-title", "nav-ultra"),
    Page("models", "models.html", "models-page-title", "nav-models"),
    Page("calculator", "calculator.html", "calculator-page-title", "nav-calculator", has_form=True),
    Page("clusters", "clusters.html", "clusters-page-title", "nav-clusters"),
    Page("status", "status.html", "status-page-title", "nav-status"),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One minute of a chart: `height` of `CHART_HEIGHT`, and its value if it was seen."""

    height: float
    value: int | None


def bars(values: tuple[int | None, ...]) -> list[Bar]:
    """The minutes of a chart, the largest of them as high as the chart."""
    peak = max((value or 0 for value in values), default=0) or 1
    return [Bar(round(CHART_HEIGHT * (value or 0) / peak, 1), value) for value in values]


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["json"] = _json_for_html
    made.filters["unbroken"] = _unbroken
    return made


def _unbroken(command: str) -> Markup:
    """A command, as a template rendered it, whose words the style keeps whole: `--place` stays one."""
    # Text that joins itself would escape the tags, so it becomes a plain one before.
    return Markup(re.sub(r"\S+", r"<span>\g<0></span>", str(command)))  # noqa: S704 - rendered, so escaped


def _json_for_html(value: Any) -> Markup:
    """JSON for inside a script element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - escaped the line above


ENVIRONMENT: Final = _environment()


def render(
    page: Page,
    language: Language,
    view: WorldView,
    *,
    terms: Terms,
    standing: Standing,
    etag: str,
    origin: str,
    version: str,
    market: Market | None = None,
    query: Mapping[str, str] | None = None,
) -> bytes:
    """The page in this language, showing this view. `version` marks the style's and script's.

    `query` is what was typed into a page that has a form.
    """
    market = market or Market()
    texts = texts_of(language.code)
    context: dict[str, Any] = {
        "page": page,
        "pages": PAGES,
        "language": language,
        "languages": LANGUAGES,
        "t": texts.text,
        "h": texts.html,
        "texts": texts,
        "view": view,
        "terms": terms,
        "standing": standing,
        "origin": origin,
        "version": version,
        "fonts": FONTS.get(language.code, ()),
        "area_km2": AREA_KM2,
        "bars": bars,
        "market": market,
        "reckoning": calculator,
        "form_rules": calculator_form,
        "memory_classes": MEMORY_CLASSES,
        "tokens_context": TOKENS_CONTEXT,
        "form": partial(calculator_form.read_form, query or {}, market, language.code),
        "example": partial(_example, market, language.code),
        "claims": CLAIMS,
        "sources": SOURCES,
        "quantities": partial(_quantities, texts=texts),
        "name": partial(country_name, language=language.code),
        "when": partial(_when, texts=texts),
        "config": _config(language, etag),
    }
    return ENVIRONMENT.get_template(page.template).render(context).encode()


def _config(language: Language, etag: str) -> dict[str, str]:
    return {"language": language.tag, "etag": etag, "messages": sources_of(language)[CLIENT_FILE]}


def _quantities(figures: Mapping[str, Quantity], texts: Texts) -> dict[str, str]:
    return {name: texts.quantity(value, unit) for name, (value, unit) in figures.items()}


def _example(market: Market, language: str) -> str:
    return urlencode(calculator_form.example(market, language))


def _when(moment_us: int, texts: Texts) -> str:
    moment = datetime.fromtimestamp(moment_us / 1e6, UTC)
    # Shorter Arabic dates are figures alone, and Polish months lose their ending; English fits a phone.
    length = "medium" if texts.language.code == "en" else "long"
    date = format_date(moment, length, locale=texts.language.code)
    # The time with its zone keeps its order where text runs from right to left, and stays on a line.
    time = f"\u2068{format_time(moment, 'HH:mm', locale=texts.language.code)}\u00a0UTC\u2069"
    joined = str(get_datetime_format("medium", locale=texts.language.code))
    return joined.replace("{1}", date).replace("{0}", time).replace("'", "")
