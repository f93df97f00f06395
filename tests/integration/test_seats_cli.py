"""The commands for seats and upkeep, against a real coordinator."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner, Result

from coordinator.cli import app
from tests.fixtures.coordinator import Coordinator
from tests.fixtures.scripted_node import ScriptedNode

pytestmark = pytest.mark.anyio


async def ran(coordinator: Coordinator, *arguments: str, who: str = "Ada") -> Result:
    """A command's outcome, run beside the event loop that holds the node's socket."""
    access = ["--url", coordinator.url, "--api-key", coordinator.people[who].key]
    return await asyncio.to_thread(CliRunner().invoke, app, [*arguments, *access])


async def test_a_seat_is_asked_for_and_shown(coordinator: Coordinator, node: ScriptedNode) -> None:
    asked = await ran(coordinator, "seat", node.node_id, "--seat", "ultra", "--hours", "24")
    assert asked.exit_code == 0, asked.output
    text = " ".join(asked.output.split())
    assert "idle seat, from the next slot on dedicated; wanted: ultra" in text
    assert "self_tests: found 0 warm self-tests, needed 3 warm self-tests." in text
    assert "hardware claimed: 0 GB/s measured, 120 GB/s specified" in text
    assert "upkeep left this week: 120 min" in text
    shown = await ran(coordinator, "seat", node.node_id, "--json")
    assert json.loads(shown.output)["promised_seconds_per_day"] == 86_400


async def test_a_promise_without_a_seat_is_no_wish(coordinator: Coordinator, node: ScriptedNode) -> None:
    refused = await ran(coordinator, "seat", node.node_id, "--days", "30")
    assert refused.exit_code == 1


async def test_upkeep_is_announced_listed_and_taken_back(
    coordinator: Coordinator, node: ScriptedNode
) -> None:
    made = await ran(coordinator, "upkeep", node.node_id, "--in", "10", "--for", "90", "--json")
    assert made.exit_code == 0, made.output
    (window,) = json.loads(made.output)["windows"]
    shown = await ran(coordinator, "upkeep", node.node_id)
    assert "30 of 120 minutes are left this week" in shown.output
    assert window["id"] in shown.output
    back = await ran(coordinator, "upkeep", node.node_id, "--cancel", window["id"], "--json")
    assert json.loads(back.output)["windows"] == []
    strange = await ran(coordinator, "upkeep", node.node_id, who="Bo")
    assert strange.exit_code == 1
