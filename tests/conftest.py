"""Fixtures for all tests."""

from __future__ import annotations

pytest_plugins = ["tests.fixtures.databases"]
