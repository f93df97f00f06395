"""Fixtures that several integration tests share."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.integration.macs import Macs


@pytest.fixture
def macs(database_url: str) -> Generator[Macs]:
    """Macs of declared hardware on a database with a clock that the test moves."""
    world = Macs(database_url)
    yield world
    world.database.close()
