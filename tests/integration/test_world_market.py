"""What the coordinator tells the pages of demand, from real jobs; and that few people's is not shown."""

from __future__ import annotations

import httpx2
import pytest
from sqlalchemy import update

from coordinator.catalogue.cards import load_catalogue
from coordinator.jobs.models import Attempt, Job
from coordinator.world_market import EXAMPLES, catalogue_market, lent_macs, market_of, settled_work
from ledger.ratecard import DAY_US
from node_agent.sizing import estimate
from node_agent.sizing.hosts import MacSpec, PodSpec, usable_memory
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import Coordinator, fee_of, price_of
from tests.fixtures.scripted_node import ScriptedNode, always
from web_world.market import GIB, MEMORY_CLASSES, TOKENS_CONTEXT, Mac, Settled, advance

pytestmark = pytest.mark.anyio

JOB = estimate.Job(TOKENS_CONTEXT - TOKENS_CONTEXT // 4, TOKENS_CONTEXT // 4)


async def test_settled_work_of_a_stranger_is_demand_and_earnings(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    runtime = coordinator.runtime
    before = market_of(runtime)
    assert before.settled == ()
    assert [mac.earned_umlx for mac in before.lent] == [0]
    node.behaviour = always("four")
    assert (await sam.post("/v1/completions", json=completion("abcdef"))).status_code == 200
    await wait_until(lambda: coordinator.posted("Ada") > 0, "Ada to be paid")
    after = market_of(runtime)
    price = price_of(6, 4)
    served = next(iter(after.settled)).model
    assert [(found.day_tokens, found.earlier_tokens) for found in after.settled] == [(10, 0)]
    assert served in {offer.id for offer in after.models if offer.is_served}
    (mac,) = after.lent
    assert (mac.earned_umlx, mac.is_connected) == (price - fee_of(price), True)
    # One sender and one owner: nobody is told anything.
    market = advance(None, after)
    found = market.model(served)
    assert found is not None
    assert (found.day_tokens, found.month_tokens, found.macs_now) == (None, None, None)
    assert {each.earned_umlx for each in market.classes} == {None}


async def test_work_for_oneself_public_work_and_old_work_are_no_demand(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("four")
    assert (await sam.post("/v1/completions", json=completion("abcdef"))).status_code == 200
    await wait_until(lambda: coordinator.posted("Ada") > 0, "Ada to be paid")
    database = coordinator.database

    def earned_and_settled() -> tuple[int, tuple[Settled, ...]]:
        facts = market_of(coordinator.runtime)
        return sum(mac.earned_umlx for mac in facts.lent), facts.settled

    assert earned_and_settled()[0] > 0
    with database.write() as session:
        session.execute(update(Attempt).values(is_linked=True))
    assert earned_and_settled() == (0, ())
    with database.write() as session:
        session.execute(update(Attempt).values(is_linked=False))
        session.execute(update(Job).values(payer="pool:availability"))
    assert earned_and_settled() == (0, ())


async def test_work_grows_old_it_leaves_the_day_and_then_the_month(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("four")
    assert (await sam.post("/v1/completions", json=completion("abcdef"))).status_code == 200
    await wait_until(lambda: coordinator.posted("Ada") > 0, "Ada to be paid")
    with coordinator.database.read() as session:
        now_us = coordinator.database.now_us(session)
        later = [settled_work(session, now_us + days * DAY_US) for days in (0, 2, 31)]
        earned = [
            [mac.earned_umlx > 0 for mac in lent_macs(session, now_us + days * DAY_US, frozenset())]
            for days in (0, 29, 31)
        ]
    assert [[(each.day_tokens, each.earlier_tokens) for each in found] for found in later] == [
        [(10, 0)],
        [(0, 10)],
        [],
    ]
    # A Mac that was not seen for a month counts no more.
    assert earned == [[True], [True], []]


def test_speeds_and_sizes_are_those_that_place_jobs() -> None:
    catalogue = load_catalogue()
    facts = catalogue_market(catalogue)
    assert {offer.id for offer in facts.models} == {*catalogue.cards, *catalogue.unpinned}
    assert {offer.id for offer in facts.models if offer.is_served} == set(catalogue.cards)
    card = catalogue.unpinned["qwen3-30b-a3b-4bit"]
    for mac in EXAMPLES:
        spec = MacSpec(chip=mac.chip, gpu_cores=mac.gpu_cores, memory_bytes=mac.memory_bytes)
        alone = estimate.estimate_mac(card, spec, JOB)
        found = facts.forecast(card.id, mac, 1)
        assert (found.write_tokens_per_second, found.fits) == (alone.tokens_per_second, alone.fits)
        best = estimate.estimate_pod(card, PodSpec(members=(spec, spec)), JOB)[0]
        pair = facts.forecast(card.id, mac, 2)
        assert (pair.mode, pair.read_tokens_per_second) == (best.mode, best.prompt_tokens_per_second)
    with pytest.raises(KeyError):
        facts.forecast("nothing", Mac("M4", 10, 16 * GIB), 1)


def test_the_smallest_mac_holds_the_model_and_the_next_smaller_does_not() -> None:
    for offer in catalogue_market(load_catalogue()).models:
        least = offer.least_memory_bytes
        smaller = [each for each in MEMORY_CLASSES if least is None or each < least]
        assert all(usable_memory(each).bytes < offer.needed_bytes for each in smaller), offer.id
        if least is not None:
            assert usable_memory(least).bytes >= offer.needed_bytes, offer.id
        for mac, speed in zip(EXAMPLES, offer.writes, strict=True):
            assert (speed is not None) == (least is not None and mac.memory_bytes >= least), offer.id
