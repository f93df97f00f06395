"""Idle Macs are asked to hold what is in demand, and what they hold is placed on."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from coordinator.catalogue.cards import read_card
from coordinator.nodes.models import Node, Slot
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from tests.fixtures.asking import wait_until
from tests.fixtures.coordinator import CARD_ID, Coordinator, Shelf, StartCoordinator, write_card
from tests.fixtures.scripted_node import ScriptedNode, always
from tests.integration.attempts import ask

pytestmark = pytest.mark.anyio

OTHER = "other"


@pytest.fixture
def two_models(start_coordinator: StartCoordinator, shelf: Shelf, tmp_path: Path) -> Coordinator:
    """A coordinator that serves two tiny models; nodes are greeted with the other one."""
    cards = tmp_path / "cards"
    cards.mkdir()
    _ = write_card(shelf.models / CARD_ID, cards, card_id=OTHER)
    return start_coordinator(catalogue_dirs=(shelf.cards, cards), residency_seconds=0.2)


def other_card(coordinator: Coordinator) -> ModelCard:
    card = read_card(coordinator.settings.catalogue_dirs[1] / f"{OTHER}.toml")
    assert isinstance(card, ModelCard)
    return card


async def says_loaded(node: ScriptedNode, card: ModelCard) -> None:
    """A heartbeat of a node that has this model loaded and nothing to do."""
    slot = wire.SlotReport(card_id=card.id, card_revision=card.revision, bytes=10_000_000, width=8, live=0)
    await node.send(wire.Heartbeat(mode="ready", free_bytes=1 << 30, slots=(slot,)))


def slots_of(coordinator: Coordinator, node: ScriptedNode) -> list[tuple[str, int]]:
    with coordinator.database.read() as session:
        found = session.scalars(select(Slot).where(Slot.node_id == node.node_id))
        return [(slot.card_id, slot.live) for slot in found]


async def test_what_is_asked_lately_is_held_by_an_idle_mac_and_found_there(
    two_models: Coordinator, closing_clients: None
) -> None:
    coordinator, tiny = two_models, two_models.shelf.card
    first = ScriptedNode(coordinator, "Ada", name="first")
    await first.enrol()
    await first.connect()
    assert (await first.expect(wire.Hold)).card.id == OTHER  # nothing is in demand yet
    first.behaviour = always("abc")
    sam = coordinator.client("Sam")
    _ = await ask(sam).whole()
    # As far as it says, nothing is loaded there.
    assert (await first.expect(wire.Hold)).card.id == CARD_ID
    await says_loaded(first, tiny)
    # One that comes now is told at once what is in demand, unless there is enough of it.
    await first.drop()
    second = ScriptedNode(coordinator, "Bo", name="second")
    await second.enrol()
    await second.connect()
    assert (await second.expect(wire.Hold)).card.id == CARD_ID
    assert slots_of(coordinator, second) == []
    await says_loaded(second, tiny)
    await wait_until(lambda: slots_of(coordinator, second) == [(CARD_ID, 0)], "its slot")
    second.behaviour = always("abc")
    _ = await ask(sam).whole()
    assert slots_of(coordinator, second)[0][0] == CARD_ID
    await first.close()
    await second.close()


async def test_a_mac_that_loaded_another_model_has_the_slot_of_that_one(two_models: Coordinator) -> None:
    coordinator = two_models
    node = ScriptedNode(coordinator, "Ada", name="one")
    await node.enrol()
    await node.connect()
    for card in (coordinator.shelf.card, other_card(coordinator)):
        await says_loaded(node, card)
        await wait_until(lambda card=card: slots_of(coordinator, node) == [(card.id, 0)], "its slot")
    with coordinator.database.read() as session:
        row = session.get_one(Node, node.node_id)
        slot = session.scalars(select(Slot)).one()
        assert 0 < row.reserved_bytes == slot.bytes <= row.lent_bytes
    await node.close()


async def test_what_a_mac_could_not_make_ready_is_not_asked_of_it_again(
    two_models: Coordinator, closing_clients: None
) -> None:
    coordinator = two_models
    node = ScriptedNode(coordinator, "Ada", name="one")
    await node.enrol()
    await node.connect()
    _ = await node.expect(wire.Hold)
    node.behaviour = always("abc")
    _ = await ask(coordinator.client("Sam")).whole()
    asked = (await node.expect(wire.Hold)).card
    report = wire.HoldReport(card_id=asked.id, card_revision=asked.revision, phase="failed", detail="no")
    await node.send(report)
    steps = coordinator.runtime.dispatcher.residency.steps
    await wait_until(lambda: coordinator.runtime.dispatcher.residency.steps >= steps + 5, "some more steps")
    assert not node.has(wire.Hold)
    await node.close()


async def test_a_full_disk_is_not_filled_further_in_advance(
    two_models: Coordinator, closing_clients: None
) -> None:
    coordinator, tiny = two_models, two_models.shelf.card
    node = ScriptedNode(coordinator, "Ada", name="one")
    await node.enrol()
    await node.connect()
    _ = await node.expect(wire.Hold)
    beat = wire.Heartbeat(mode="ready", free_bytes=1 << 30, disk_free_bytes=1 << 30, on_disk=())
    await node.send(beat)
    node.behaviour = always("abc")
    _ = await ask(coordinator.client("Sam")).whole()
    residency = coordinator.runtime.dispatcher.residency
    steps = residency.steps
    await wait_until(lambda: residency.steps >= steps + 3, "some steps")
    assert not node.has(wire.Hold)
    await node.send(beat.model_copy(update={"on_disk": (tiny.revision[: wire.REVISION_DIGITS],)}))
    assert (await node.expect(wire.Hold)).card.id == CARD_ID
    await node.close()
