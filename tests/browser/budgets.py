"""What a page may cost, and what one visit to it does cost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from playwright.sync_api import BrowserContext, Response

# Script, style and data as they are sent, compressed; without fonts.
PAGE_GZIP_BYTES_MAX: Final = 70_000
REQUESTS_MAX: Final = 12
SHIFT_MAX: Final = 0.05
SNAPSHOT_GZIP_BYTES_MAX: Final = 35_000
DRAW_MS_MAX: Final = 16.0
READER_MICROSECONDS_MAX: Final = 50.0
SETTLE_MS: Final = 1_200
COUNTED: Final = re.compile(r"\.(js|css|json)\b")
# Sum of layout shifts that no input of the reader caused.
SHIFTS: Final = """() => new Promise((done) => {
    let sum = 0;
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) if (!entry.hadRecentInput) sum += entry.value;
    }).observe({type: 'layout-shift', buffered: true});
    setTimeout(() => done(sum), 200);
})"""


@dataclass(frozen=True, slots=True)
class Cost:
    """One visit: bytes of script, style and data over the wire; all addresses asked; shifts."""

    gzip_bytes: int
    asked: tuple[str, ...]
    shift: float


def cost_of(context: BrowserContext, address: str) -> Cost:
    """Open the address in a context that has visited nothing yet, and count until it rests."""
    page = context.new_page()
    answers: list[Response] = []
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    # Playwright marks its handlers, which a method of a list does not let it do.
    page.on("response", lambda answer: answers.append(answer))  # noqa: PLW0108
    answer = page.goto(address)
    assert answer is not None
    assert answer.ok, f"{address}: {answer.status}"
    page.wait_for_timeout(SETTLE_MS)
    shift: Any = page.evaluate(SHIFTS)
    counted = [answer for answer in answers if COUNTED.search(answer.url)]
    sizes = [answer.request.sizes()["responseBodySize"] for answer in counted]
    page.close()
    return Cost(sum(sizes), tuple(asked), float(shift))
