"""Fixtures for all tests."""

from __future__ import annotations

import pytest

pytest_plugins = [
    "tests.fixtures.coordinator",
    "tests.fixtures.databases",
    "tests.fixtures.network",
    "tests.fixtures.redis_server",
    "tests.fixtures.scripted_node",
]


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the product does."""
    return "asyncio"
