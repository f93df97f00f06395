"""What the map costs: bytes, requests, drawing, and the server's work for a thousand readers.

`python -m tests.browser.measure` prints a table with the budgets beside, and its figures as JSON on the last line.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

import httpx2
import psutil
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, sync_playwright

from tests.browser.budgets import (
    DRAW_MS_MAX,
    PAGE_GZIP_BYTES_MAX,
    READER_MICROSECONDS_MAX,
    REQUESTS_MAX,
    SHIFT_MAX,
    SNAPSHOT_GZIP_BYTES_MAX,
    cost_of,
)
from tests.browser.conftest import chromium, serve
from web_world.demo import DemoWork, demo_fleet
from web_world.pages import PAGES
from web_world.privacy import HOUR_US, advance
from web_world.snapshot import Minutes, encode, view_of
from web_world.texts import LANGUAGES

READERS: Final = 1_000
TICK_SECONDS: Final = 0.5
MEASURE_SECONDS: Final = 10.0
PAINTS: Final = 40
NOW_US: Final = 500_000 * HOUR_US
AXE_SETTLE_MS: Final = 700
BUDGETS: Final = {
    "page_gzip_bytes": PAGE_GZIP_BYTES_MAX,
    "requests": REQUESTS_MAX,
    "requests_outside": 0,
    "layout_shift": SHIFT_MAX,
    "axe_violations": 0,
    "draw_ms_2500_cells": DRAW_MS_MAX,
    "snapshot_gzip_bytes_100k": SNAPSHOT_GZIP_BYTES_MAX,
    "sse_us_per_reader_and_frame": READER_MICROSECONDS_MAX,
}
WIDE_DEGREES: Final = 4.0
SERVER: Final = """
import sys, uvicorn
from web_world import feed
feed.TICK_SECONDS = float(sys.argv[2])
from web_world.demo_server import demo_app
uvicorn.run(demo_app(200, seed=1), port=int(sys.argv[1]), log_level="error", backlog=2048)
"""


def main() -> None:
    """Measure everything and print it."""
    path = chromium()
    if path is None:
        raise SystemExit("no Chromium: apt-get install chromium, or set CHROMIUM to its path")
    figures: dict[str, float] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--disable-gpu", "--no-sandbox"])
        with contextmanager(serve)(20_000) as origin:
            figures |= page_figures(browser, origin)
        figures |= drawing_figures(browser)
        browser.close()
    figures["snapshot_gzip_bytes_100k"] = snapshot_bytes(100_000)
    figures["sse_us_per_reader_and_frame"] = reader_microseconds()
    for name, value in figures.items():
        most = BUDGETS.get(name)
        told = "" if most is None else f"{most:>12,.2f}" + ("  OVER" if value > most else "")
        sys.stdout.write(f"{name:32} {value:>12,.2f} {told}\n")
    sys.stdout.write(json.dumps(figures) + "\n")


def page_figures(browser: Browser, origin: str) -> dict[str, float]:
    """Requests of the English page, bytes of its style, script and data, and what axe finds on all
    pages together."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    cost = cost_of(context, f"{origin}/en/")
    context.close()
    violations = 0
    for theme in ("light", "dark"):
        context = browser.new_context(color_scheme=theme, reduced_motion="reduce")
        page = context.new_page()
        for language in LANGUAGES:
            for shown in PAGES:
                _ = page.goto(origin + shown.address(language))
                page.wait_for_timeout(AXE_SETTLE_MS)
                axe: Any = Axe()
                violations += int(axe.run(page).violations_count)
        context.close()
    outside = sum(not address.startswith(f"{origin}/") for address in cost.asked)
    return {
        "page_gzip_bytes": cost.gzip_bytes,
        "requests": len(cost.asked),
        "requests_outside": outside,
        "layout_shift": cost.shift,
        "axe_violations": violations,
    }


def drawing_figures(browser: Browser) -> dict[str, float]:
    """CPU milliseconds of one picture with the places of 2,500 cells, whole Earth and near."""
    found: dict[str, float] = {}
    with contextmanager(serve_wide)() as origin:
        context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
        page = context.new_page()
        _ = page.goto(f"{origin}/en/")
        page.wait_for_timeout(4000)
        tools: Any = context.new_cdp_session(page)
        # Time of this thread alone: what else runs on the machine does not count.
        tools.send("Performance.enable", {"timeDomain": "threadTicks"})
        for name, camera in (
            ("draw_ms_2500_cells", {"longitude": 10, "latitude": 40, "zoom": 1, "isFlat": False}),
            ("draw_ms_flat", {"longitude": 0, "latitude": 0, "zoom": 1, "isFlat": True}),
            ("draw_ms_near", {"longitude": 10, "latitude": 50, "zoom": 9, "isFlat": False}),
        ):
            page.evaluate("(camera) => { document.querySelector('mlx-globe').camera = camera }", camera)
            page.wait_for_timeout(1500)
            before = thread_seconds(tools)
            page.evaluate(
                """(paints) => {
                    const globe = document.querySelector('mlx-globe');
                    for (let index = 0; index < paints; index += 1) globe.paint();
                }""",
                PAINTS,
            )
            found[name] = 1000 * (thread_seconds(tools) - before) / PAINTS
        context.close()
    return found


def thread_seconds(tools: Any) -> float:
    """CPU seconds that the page's thread has spent."""
    metrics: list[dict[str, Any]] = tools.send("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def serve_wide() -> Generator[str]:
    return serve(100_000, spread_degrees=WIDE_DEGREES)


def snapshot_bytes(count: int) -> int:
    """A snapshot's size with many cells, gzip."""
    fleet = demo_fleet(count, seed=3, now_us=NOW_US, spread_degrees=WIDE_DEGREES)
    roster = advance(None, fleet, NOW_US)
    minutes = Minutes((12_345,) * 30, (3_456_789,) * 30)
    view = view_of(roster, DemoWork(fleet, seed=1).step(5), minutes, None, now_us=NOW_US)
    return len(encode(view).gzipped)


def reader_microseconds() -> float:
    """CPU microseconds of the server for each reader and frame, with 1,000 readers; an upper bound,
    since what it does without readers is in it."""
    with contextmanager(server_process)() as (port, cpu_seconds):
        return asyncio.run(_read(port, cpu_seconds))


def server_process() -> Generator[tuple[int, Callable[[], float]]]:
    port = 18_473
    command = [sys.executable, "-c", SERVER, str(port), str(TICK_SECONDS)]
    server = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": "."})
    process = psutil.Process(server.pid)

    def cpu_seconds() -> float:
        times = process.cpu_times()
        return times.user + times.system

    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                _ = httpx2.get(f"http://127.0.0.1:{port}/en/", trust_env=False)
                break
            except httpx2.TransportError:
                assert time.monotonic() < deadline, "the pages' server did not start"
                time.sleep(0.2)
        yield port, cpu_seconds
    finally:
        server.terminate()
        _ = server.wait(timeout=20)


async def _read(port: int, cpu_seconds: Callable[[], float]) -> float:
    frames = 0

    async def read() -> None:
        nonlocal frames
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /world/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while chunk := await reader.read(1 << 16):
            frames += chunk.count(b"event: ")

    readers = [asyncio.create_task(read()) for _ in range(READERS)]
    await asyncio.sleep(5)
    before, seen = cpu_seconds(), frames
    await asyncio.sleep(MEASURE_SECONDS)
    spent, sent = cpu_seconds() - before, frames - seen
    for task in readers:
        _ = task.cancel()
    _ = await asyncio.gather(*readers, return_exceptions=True)
    return math.inf if sent == 0 else 1e6 * spent / sent


if __name__ == "__main__":
    main()
