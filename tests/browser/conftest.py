"""A real Chromium on the real pages, over a made-up fleet. Skipped where no Chromium is installed."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from coordinator.world_demo import demo_market
from web_world.demo import SPREAD_DEGREES
from web_world.demo_server import demo_app
from web_world.privacy import HOUR_US

CANDIDATES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC_CHROME: Final = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
START_SECONDS_MAX: Final = 30.0
WAIT_MS: Final = 30_000  # a busy machine is no fault of the page
NOW_US: Final = 500_000 * HOUR_US
SEED: Final = 2
FLEET: Final = 2_000
FEW: Final = 3


def chromium() -> str | None:
    """The Chromium or Chrome of this machine; CHROMIUM names another one."""
    named = os.environ.get("CHROMIUM")
    found = named or next((path for name in CANDIDATES if (path := shutil.which(name))), None)
    return found or (str(MAC_CHROME) if MAC_CHROME.exists() else None)


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    """One browser for a file's tests; without a GPU, whose emulation would be slower than none.

    Not for longer: while playwright's loop runs in this thread, no other test can run its own.
    """
    path = chromium()
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium, or set CHROMIUM to its path")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--disable-gpu", "--no-sandbox"])
        yield made
        made.close()


def serve(
    macs: int,
    *,
    spread_degrees: float = SPREAD_DEGREES,
    is_still: bool = False,
    shown_origin: str | None = None,
) -> Generator[str]:
    """Serve the pages over `macs` Macs; yields where. `is_still`: no time passes, so that each start
    shows the same. `shown_origin` is what the pages say their address is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    origin = f"http://127.0.0.1:{port}"
    app = demo_app(
        macs,
        seed=SEED,
        now_us=NOW_US,
        origin=shown_origin or origin,
        spread_degrees=spread_degrees,
        market=demo_market(macs, SEED),
    )
    config = uvicorn.Config(
        app,
        port=port,
        log_level="error",
        timeout_graceful_shutdown=1,
        ws="none",
        lifespan="off" if is_still else "on",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + START_SECONDS_MAX
    while not server.started:
        assert time.monotonic() < deadline, "the pages' server did not start"
        time.sleep(0.05)
    yield origin
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def world() -> Generator[str]:
    """The pages over 2,000 Macs; the origin."""
    yield from serve(FLEET)


@pytest.fixture(scope="module")
def small_world() -> Generator[str]:
    """The pages over 3 Macs."""
    yield from serve(FEW)


class Visit:
    """One page in one context, and all that it said and asked for."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Final[Page] = context.new_page()
        self.asked: Final[list[str]] = []
        self.said: Final[list[str]] = []
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

    def go(self, address: str) -> Page:
        """Open the page and wait until its globe has its lights."""
        self.page.goto(address)
        self.until("document.querySelector('mlx-globe')?.dataset.lights > 0")
        return self.page

    def until(self, condition: str) -> None:
        """Wait for a condition, looked at from here: the page's policy allows no evaluated code."""
        deadline = time.monotonic() + WAIT_MS / 1000
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, f"waited in vain for {condition}; said: {self.said}"
            time.sleep(0.05)


NewVisit = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser) -> Generator[NewVisit]:
    """Opens contexts with options of the test's choice."""
    opened: list[BrowserContext] = []

    def new(**options: Any) -> Visit:
        wanted: dict[str, Any] = {
            "viewport": {"width": 1280, "height": 800},
            "reduced_motion": "reduce",
            "timezone_id": "Europe/Warsaw",
            "locale": "en-GB",
            **options,
        }
        context = browser.new_context(**wanted)
        opened.append(context)
        return Visit(context)

    yield new
    for context in opened:
        context.close()
