"""Fixtures for all tests."""

from __future__ import annotations

import inspect
import os

import pytest
from hypothesis import settings

# A busy machine is no fault of the code, and CI must not fail by a draw: new draws are for desks.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

pytest_plugins = [
    "tests.fixtures.coordinator",
    "tests.fixtures.databases",
    "tests.fixtures.network",
    "tests.fixtures.redis_server",
    "tests.fixtures.scripted_node",
]


@pytest.fixture(autouse=True)
def leave_no_client_open(request: pytest.FixtureRequest) -> None:
    """Asynchronous tests with a coordinator may make clients as they like; all are closed."""
    if "start_coordinator" in request.fixturenames and inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("closing_clients")


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the product does."""
    return "asyncio"
