"""Rate cards: two signatures and two weeks of notice; what was quoted keeps its card."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, update

from coordinator.jobs.models import Job
from coordinator.nodes.models import Node
from coordinator.policy.documents import RateCardDocument, sign
from coordinator.policy.models import RateCardRow
from coordinator.policy.rate_cards import card_by_id, card_in_force, cards, ensure_first_card
from coordinator.seats.models import CreditedSlot, SelfTest
from ledger.ratecard import CARD, DAY_US, SLOT_US, FeeRates, PriceRates, RateCard
from tests.fixtures.asking import completion
from tests.fixtures.coordinator import Coordinator, price_of
from tests.fixtures.scripted_node import ScriptedNode, always
from tests.integration import policies
from tests.integration.policies import TWO, add_operators, assert_sound, now_us
from tests.integration.records import error_of
from tests.integration.settling import settled

pytestmark = pytest.mark.anyio

SECOND = replace(
    CARD, version=2, fees=FeeRates(fee_ppm=50_000), prices=PriceRates(read_umlx_per_million_per_gb=20_000_000)
)


def announcement(
    card: RateCard = SECOND, *, days: float = 15, signed_by: tuple[str, ...] = TWO
) -> dict[str, Any]:
    effective_us = now_us() + int(days * DAY_US)
    document = RateCardDocument(card=json.loads(card.body), effective_us=effective_us)
    for name in signed_by:
        document = sign(document, name, policies.OPERATORS[name])
    return document.model_dump(mode="json")


@pytest.fixture
def operator(coordinator: Coordinator, sam: httpx2.AsyncClient) -> httpx2.AsyncClient:
    add_operators(coordinator.database, ("olga", "otto", "omar"))
    return coordinator.client("Operator")


async def test_a_card_needs_two_signatures_and_notice(
    coordinator: Coordinator, operator: httpx2.AsyncClient
) -> None:
    one = await operator.post("/v1/rates", json=announcement(signed_by=("olga",)))
    assert error_of(one) == (403, "signatures_missing", "signatures")
    later = announcement() | {"effective_us": now_us() + 20 * DAY_US}
    assert error_of(await operator.post("/v1/rates", json=later))[0] == 403, "the date is signed, too"
    for bad, said in (
        (announcement(days=13.99), "at least 14 days"),
        (announcement(replace(SECOND, version=1)), "version"),
    ):
        refused = await operator.post("/v1/rates", json=bad)
        assert refused.status_code == 400 and said in refused.text
    broken = announcement()
    del broken["card"]["fees"]["fee_ppm"]
    refused = await operator.post("/v1/rates", json=broken)
    assert refused.status_code == 400 and "fee_ppm is missing" in refused.text

    body = announcement()
    done = await operator.post("/v1/rates", json=body)
    assert done.status_code == 201
    again = await operator.post("/v1/rates", json=body)
    assert (again.status_code, again.json()) == (201, done.json())
    earlier = await operator.post("/v1/rates", json=announcement(replace(SECOND, version=3), days=14.5))
    assert earlier.status_code == 400 and "after that of the card announced before" in earlier.text
    found = (await coordinator.client(None).get("/v1/rates")).json()
    assert (found["in_force"]["version"], found["past"]) == (1, [])
    (coming,) = found["coming"]
    assert coming["id"] == SECOND.id and RateCard.from_body(coming["body"]) == SECOND
    assert coming["changes"] == [
        {"rate": "fees.fee_ppm", "now": 100_000, "then": 50_000},
        {"rate": "prices.read_umlx_per_million_per_gb", "now": 10_000_000, "then": 20_000_000},
    ]
    tokens = (await coordinator.client(None).get("/v1/tokens")).json()
    assert [card["version"] for card in tokens["coming_rate_cards"]] == [2]
    assert f"rate_card:2={SECOND.id}" in policies.records(coordinator.database)
    assert_sound(coordinator.database)


async def test_quoted_jobs_keep_their_card_and_new_ones_take_the_next(
    coordinator: Coordinator, operator: httpx2.AsyncClient, sam: httpx2.AsyncClient, new_node: Any
) -> None:
    queued = (
        await sam.post("/v1/jobs", json={"kind": "completions", "request": completion("abcdef")})
    ).json()["id"]
    assert (await operator.post("/v1/rates", json=announcement())).status_code == 201
    with coordinator.database.write() as session:
        session.execute(update(RateCardRow).where(RateCardRow.version == 2).values(effective_us=now_us() - 1))
    with coordinator.database.read() as session:
        assert card_in_force(session, now_us()) == SECOND
        assert card_by_id(session, CARD.id) == CARD
    node: ScriptedNode = await new_node()
    node.behaviour = always("four")
    fresh = await sam.post("/v1/completions", json=completion("abcdef"))
    old, new = await settled(coordinator, queued), await settled(coordinator, fresh.headers["x-job-id"])
    assert [(job.rate_card_id, job.fee_ppm) for job in (old, new)] == [
        (CARD.id, 100_000),
        (SECOND.id, 50_000),
    ]
    price = price_of(6, 4)
    fees = (price + 9) // 10 + (price + 19) // 20
    assert coordinator.balances()["fee"] == (fees, 0)
    found = (await coordinator.client(None).get("/v1/rates")).json()
    assert (found["in_force"]["version"], [card["version"] for card in found["past"]]) == (2, [1])
    assert_sound(coordinator.database)


async def test_the_effect_on_an_owner(
    coordinator: Coordinator, operator: httpx2.AsyncClient, sam: httpx2.AsyncClient, node: ScriptedNode
) -> None:
    ada, bo = coordinator.client("Ada"), coordinator.client("Bo")
    assert (await ada.get("/v1/rates/effect")).json() == {"object": "rates.effect", "coming": None}
    node.behaviour = always("four")
    answer = await sam.post("/v1/completions", json=completion("abcdef"))
    _ = await settled(coordinator, answer.headers["x-job-id"])
    slot_us = now_us() // SLOT_US * SLOT_US - 6 * SLOT_US
    with coordinator.database.write() as session:
        owner = session.scalars(select(Node.account_id).where(Node.id == node.node_id)).one()
        session.add(
            SelfTest(
                id="test_1",
                node_id=node.node_id,
                at_us=slot_us,
                bandwidth_bytes_per_second=200 * 10**9,
                is_warm=True,
            )
        )
        session.add(
            CreditedSlot(
                device="a" * 64,
                slot_start_us=slot_us,
                node_id=node.node_id,
                owner_account_id=owner,
                seat="idle",
                paid_as="idle",
                rate_card_id=CARD.id,
                points_ppm=1,
                present_seconds=600,
                busy_seconds=0,
                job_pay_umlx=0,
                claim_umlx=5,
                amount_umlx=5,
            )
        )
    dearer = replace(SECOND, availability=replace(CARD.availability, idle_umlx_per_point_hour=24_000))
    assert (await operator.post("/v1/rates", json=announcement(dearer))).status_code == 201
    found = (await ada.get("/v1/rates/effect")).json()
    assert (found["coming"]["version"], found["jobs"], found["slots"], found["jobs_left_out"]) == (2, 1, 1, 0)
    work, then = int(found["work_now_umlx"]), int(found["work_then_umlx"])
    # A job at the least charge pays the owner 90 of it now and 95 then.
    assert (work, then) == (90, 95)
    stood = int(found["availability_now_umlx"])
    assert int(found["availability_then_umlx"]) == pytest.approx(1.2 * stood, abs=2)
    assert int(found["availability_now_umlx"]) > 0
    assert int(found["difference_umlx"]) == then - work + int(found["availability_then_umlx"]) - int(
        found["availability_now_umlx"]
    )
    nothing = (await bo.get("/v1/rates/effect")).json()
    assert (nothing["jobs"], nothing["slots"], nothing["difference_umlx"]) == (0, 0, "0")


async def test_the_first_card_is_stored_once(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    with coordinator.database.write() as session:
        ensure_first_card(session, now_us())
    with coordinator.database.read() as session:
        found = cards(session)
        assert [(dated.card, dated.effective_us) for dated in found] == [(CARD, 0)]
        assert card_in_force(session, now_us()) == CARD and card_by_id(session, "0" * 64) is None
        assert session.scalars(select(Job.id)).all() == []
