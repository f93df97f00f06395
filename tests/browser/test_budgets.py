"""Each page within its budget: bytes, requests, nothing from elsewhere, nothing that jumps."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.browser.budgets import (
    PAGE_GZIP_BYTES_MAX,
    REQUESTS_MAX,
    SHIFT_MAX,
    SNAPSHOT_GZIP_BYTES_MAX,
    cost_of,
)
from tests.browser.conftest import NewVisit, serve
from tests.browser.measure import snapshot_bytes
from web_world.pages import PAGES, Page
from web_world.texts import BY_CODE, LANGUAGES, Language

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def large_world() -> Generator[str]:
    """The pages over as many Macs as `mlx-network world` shows."""
    yield from serve(20_000)


@pytest.mark.parametrize(
    ("language", "device"),
    [*((language, "desktop") for language in LANGUAGES), (BY_CODE["ur"], "phone")],
    ids=lambda value: value if isinstance(value, str) else value.code,
)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.slug or "world")
def test_a_page_costs_no_more_than_it_may(
    large_world: str, visit: NewVisit, page: Page, language: Language, device: str
) -> None:
    context = visit(**(PHONE if device == "phone" else {})).page.context
    cost = cost_of(context, large_world + page.address(language))
    assert cost.gzip_bytes <= PAGE_GZIP_BYTES_MAX
    assert len(cost.asked) <= REQUESTS_MAX, cost.asked
    assert [address for address in cost.asked if not address.startswith(f"{large_world}/")] == []
    assert cost.shift < SHIFT_MAX


def test_bytes_are_counted(large_world: str, visit: NewVisit) -> None:
    cost = cost_of(visit().page.context, f"{large_world}/en/")
    # The script, the land and the snapshot alone are more than this.
    assert cost.gzip_bytes > 30_000
    assert len(cost.asked) >= 5


def test_the_snapshot_of_a_large_network_stays_short() -> None:
    assert 5_000 < snapshot_bytes(100_000) <= SNAPSHOT_GZIP_BYTES_MAX
