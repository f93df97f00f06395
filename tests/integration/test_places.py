"""A place on the public map: told by the Mac's key alone, never finer than allowed, never another's."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from coordinator.nodes.models import Node
from coordinator.world import facts_of, feed_of
from node_agent.protocol.signing import place_statement
from tests.fixtures.asking import wait_until
from tests.fixtures.coordinator import Coordinator
from tests.fixtures.scripted_node import NewNode, ScriptedNode
from tests.integration.records import error_of
from web_world.cells import area_at
from web_world.privacy import Spot
from web_world.source import NOWHERE, Place

pytestmark = pytest.mark.anyio

WARSAW = area_at(52.23, 21.01)


async def tell(node: ScriptedNode, sequence: int, *, signed: Any = None, **choice: str) -> httpx2.Response:
    """Send a choice as the node does; `signed` is what the signature is over, if not the choice."""
    body = {"kind": "none", "country": "", "cell": "", **choice}
    parts = {"kind": "none", "country": "", "cell": "", **(signed or choice)}
    statement = place_statement(
        audience=node.coordinator.url, node_id=node.node_id, sequence=sequence, **parts
    )
    headers = {"Authorization": f"MLX-Node {node.node_id} {node.sign(statement)}"}
    async with node.coordinator.client(None) as anybody:
        return await anybody.post("/nodes/v1/place", json={"sequence": sequence, **body}, headers=headers)


def place_of(coordinator: Coordinator, node: ScriptedNode) -> Place:
    return next(mac.place for mac in facts_of(coordinator.runtime).macs if mac.mac == node.node_id)


async def test_a_node_tells_its_place_changes_it_and_withdraws_it(
    coordinator: Coordinator, node: ScriptedNode
) -> None:
    assert place_of(coordinator, node) == NOWHERE
    assert (await tell(node, 1, kind="country", country="PL")).json()["kind"] == "country"
    assert place_of(coordinator, node) == Place("country", "PL")
    assert (await tell(node, 2, kind="area", country="PL", cell=WARSAW)).status_code == 200
    assert place_of(coordinator, node) == Place("area", "PL", WARSAW)
    view = await feed_of(coordinator.runtime).view()
    # Alone in its area and its country: one light there, without number or anything else.
    assert [(place.spot, place.lights, place.is_at_least) for place in view.places] == [
        (Spot("alone", "PL"), 1, True)
    ]
    assert (view.lights, view.busy, view.figures) == (1, None, None)
    assert (await tell(node, 7)).status_code == 200
    assert place_of(coordinator, node) == NOWHERE


async def test_nobody_else_can_tell_it_and_no_choice_counts_twice(
    coordinator: Coordinator, node: ScriptedNode, new_node: NewNode
) -> None:
    assert (await tell(node, 3, kind="country", country="PL")).status_code == 200
    assert (await tell(node, 4)).status_code == 200
    again = await tell(node, 3, kind="country", country="PL")
    assert error_of(again) == (409, "place_sequence_used", None)
    forged = await tell(node, 9, kind="country", country="PK", signed={"kind": "country", "country": "PL"})
    assert error_of(forged)[:2] == (403, "permission_denied")
    other = await new_node("Bo")
    other.node_id = node.node_id  # speaks for a Mac whose key it does not have
    assert error_of(await tell(other, 10, kind="country", country="PK"))[:2] == (403, "permission_denied")
    assert place_of(coordinator, node) == NOWHERE


@pytest.mark.parametrize(
    "choice",
    [
        {"kind": "area", "country": "PL", "cell": "891f53c8d53ffff"},  # a block of houses
        {"kind": "area", "country": "PL"},
        {"kind": "country", "country": "XX"},
        {"kind": "country", "country": "pl"},
        {"kind": "country"},
        {"kind": "none", "country": "PL"},
        {"kind": "town", "country": "PL"},
    ],
)
async def test_nothing_finer_or_else_is_taken(
    coordinator: Coordinator, node: ScriptedNode, choice: dict[str, str]
) -> None:
    answer = await tell(node, 1, **choice)
    assert error_of(answer)[:2] == (400, "invalid_value")
    assert place_of(coordinator, node) == NOWHERE


async def test_only_the_owner_learns_which_light_it_is(coordinator: Coordinator, node: ScriptedNode) -> None:
    path = f"/v1/nodes/{node.node_id}/light"
    async with coordinator.client(node.owner) as owner, coordinator.client("Pat") as other:
        assert error_of(await other.get(path)) == (404, "node_not_found", None)
        assert (await owner.get(path)).json()["kind"] == "none"


async def test_another_owner_starts_without_a_place(coordinator: Coordinator, node: ScriptedNode) -> None:
    assert (await tell(node, 1, kind="country", country="PL")).status_code == 200
    async with coordinator.client(node.owner) as owner:
        assert (await owner.delete(f"/v1/nodes/{node.node_id}")).status_code == 200
    node.owner = "Bo" if node.owner != "Bo" else "Ada"
    await node.enrol()
    with coordinator.database.read() as session:
        kept = session.get_one(Node, node.node_id)
        assert (kept.place_kind, kept.place_country, kept.place_cell) == ("none", None, None)


async def test_a_mac_without_a_place_is_a_star_at_once(coordinator: Coordinator, node: ScriptedNode) -> None:
    assert node.node_id in coordinator.runtime.fleet.channels

    def stars() -> bool:
        answer = httpx2.get(f"{coordinator.url}/world/v1/snapshot.json", trust_env=False)
        totals = answer.json()["totals"]
        assert node.node_id not in answer.text
        return (totals["macs_seen"], totals["stars"]) == (1, 1)

    await wait_until(stars, "the star", seconds=12)
