"""A Mac that holds several models: each has its slot, one is at work, and what goes is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sqlalchemy import select

from coordinator.catalogue.cards import read_card
from coordinator.jobs.models import Job
from coordinator.nodes.models import Node, Slot
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from node_agent.sizing.memory import needed_bytes
from tests.fixtures.asking import wait_until
from tests.fixtures.coordinator import CARD_ID, Coordinator, Shelf, StartCoordinator, write_card
from tests.fixtures.scripted_node import ScriptedNode
from tests.integration.attempts import ask, close

pytestmark = pytest.mark.anyio

OTHER = "other"
GIB = 1 << 30


@pytest.fixture
def two_models(start_coordinator: StartCoordinator, shelf: Shelf, tmp_path: Path) -> Coordinator:
    """A coordinator that serves two tiny models and asks nobody to hold one."""
    cards = tmp_path / "cards"
    cards.mkdir()
    _ = write_card(shelf.models / CARD_ID, cards, card_id=OTHER)
    coordinator = start_coordinator(catalogue_dirs=(shelf.cards, cards), residency_seconds=3600.0)
    tiny, other = both_cards(coordinator)
    # The tokenizer is the same; it lies under each card's name.
    folder = coordinator.settings.home / "tokenizers"
    _ = shutil.copytree(
        folder / f"{tiny.id}-{tiny.revision[:16]}", folder / f"{other.id}-{other.revision[:16]}"
    )
    return coordinator


def both_cards(coordinator: Coordinator) -> tuple[ModelCard, ModelCard]:
    other = read_card(coordinator.settings.catalogue_dirs[1] / f"{OTHER}.toml")
    assert isinstance(other, ModelCard)
    return coordinator.shelf.card, other


async def joined(coordinator: Coordinator, *, lent_bytes: int, models_max: int = 3) -> ScriptedNode:
    node = ScriptedNode(coordinator, "Ada", name="several", lent_bytes=lent_bytes)
    node.hardware = node.hardware.model_copy(update={"models_max": models_max})
    await node.enrol()
    _ = await node.connect()
    return node


async def says_loaded(node: ScriptedNode, *cards: ModelCard) -> None:
    slots = tuple(
        wire.SlotReport(card_id=card.id, card_revision=card.revision, bytes=10_000_000, width=8, live=0)
        for card in cards
    )
    await node.send(wire.Heartbeat(mode="ready", free_bytes=8 * GIB, slots=slots))


def slots_of(coordinator: Coordinator, node: ScriptedNode) -> dict[str, int]:
    """Attempts by model; the slots together keep within what is lent."""
    with coordinator.database.read() as session:
        found = session.scalars(select(Slot).where(Slot.node_id == node.node_id)).all()
        row = session.get_one(Node, node.node_id)
        assert row.reserved_bytes == sum(slot.bytes for slot in found) <= row.lent_bytes
        assert len({slot.card_id for slot in found}) == len(found)
        return {slot.card_id: slot.live for slot in found}


def queued(coordinator: Coordinator) -> list[str]:
    with coordinator.database.read() as session:
        return list(session.scalars(select(Job.card_id).where(Job.state == "queued")))


async def test_each_model_that_is_loaded_has_its_slot_and_one_is_at_work(
    two_models: Coordinator, closing_clients: None
) -> None:
    coordinator = two_models
    tiny, other = both_cards(coordinator)
    node = await joined(coordinator, lent_bytes=16 * GIB)
    await says_loaded(node, tiny, other)
    await wait_until(lambda: slots_of(coordinator, node) == {CARD_ID: 0, OTHER: 0}, "both slots")
    sam = coordinator.client("Sam")
    first = ask(sam, model=CARD_ID)
    offer = await node.offered()
    assert offer.card.id == CARD_ID
    await node.accept(offer)
    await node.say(offer, "a")
    second, third = ask(sam, model=OTHER), ask(sam, model=CARD_ID, prompt="beside the first")
    beside = await node.offered()
    assert beside.card.id == CARD_ID, "the other model waits"
    await wait_until(lambda: queued(coordinator) == [OTHER], "the other model's job to wait")
    assert slots_of(coordinator, node) == {CARD_ID: 2, OTHER: 0}
    await node.answer(beside, "b")
    await node.finish(offer, "a")
    last = await node.offered()
    assert (last.card.id, last.evict) == (OTHER, ())
    await node.answer(last, "c")
    assert [(await one.whole()).text for one in (first, third, second)] == ["a", "b", "c"]
    with coordinator.database.read() as session:
        assert set(session.scalars(select(Slot.card_id))) == {CARD_ID, OTHER}, "neither went"
    await close(node)
    coordinator.check_books()


async def test_where_memory_is_short_the_offer_says_what_goes(
    two_models: Coordinator, closing_clients: None
) -> None:
    coordinator = two_models
    tiny, other = both_cards(coordinator)
    node = await joined(coordinator, lent_bytes=needed_bytes(tiny, context_tokens=512, width=1) * 3 // 2)
    await says_loaded(node, tiny)
    await wait_until(lambda: slots_of(coordinator, node) == {CARD_ID: 0}, "its slot")
    reading = ask(coordinator.client("Sam"), model=OTHER)
    offer = await node.offered()
    assert (offer.card.id, offer.evict) == (OTHER, (tiny.revision,))
    assert slots_of(coordinator, node) == {OTHER: 1}
    await node.answer(offer, "ok")
    assert (await reading.whole()).text == "ok"
    # It kept what it was told might go: that gets its slot back only where there is room.
    await says_loaded(node, tiny, other)
    await wait_until(lambda: slots_of(coordinator, node) == {OTHER: 0}, "the attempt's end")
    await close(node)
    coordinator.check_books()


async def test_a_node_that_holds_one_model_drops_it_for_the_next(
    two_models: Coordinator, closing_clients: None
) -> None:
    coordinator = two_models
    tiny, _ = both_cards(coordinator)
    node = await joined(coordinator, lent_bytes=16 * GIB, models_max=1)
    await says_loaded(node, tiny)
    await wait_until(lambda: slots_of(coordinator, node) == {CARD_ID: 0}, "its slot")
    reading = ask(coordinator.client("Sam"), model=OTHER)
    offer = await node.offered()
    assert offer.evict == (tiny.revision,)
    assert slots_of(coordinator, node) == {OTHER: 1}
    await node.answer(offer, "ok")
    assert (await reading.whole()).text == "ok"
    await close(node)
