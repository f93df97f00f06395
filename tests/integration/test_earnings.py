"""Earnings and spending over HTTP: sums of what the ledger posted, each by its Mac, key and model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from coordinator.db import database_now_us
from coordinator.jobs.models import Job
from ledger import book
from ledger.commands import Applied, Refund, Transfer
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import CARD_ID, INPUT_UMLX, OUTPUT_UMLX, Coordinator
from tests.fixtures.scripted_node import NewNode, ScriptedNode
from tests.integration.money import LONG_UMLX, SHORT_UMLX, shared_job, table, this_month, two_jobs
from tests.integration.records import error_of

pytestmark = pytest.mark.anyio


# -- earnings ------------------------------------------------------------------------------------


async def test_earnings_are_the_ledgers_postings_by_mac_model_and_day(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    one = await new_node("Ada")
    await two_jobs(one, sam)
    one.behaviour = None
    two = await new_node("Ada")
    await shared_job([one, two], sam)
    ada = coordinator.client("Ada")
    found = (await ada.get("/v1/earnings", params={"month": this_month()})).json()
    # 53 + 18 of the two jobs on the first Mac; 11 and 16 of the shared one.
    assert (found["total_umlx"], found["paid_umlx"], found["held_umlx"]) == ("98", "98", "0")
    assert sorted(table(found["by_node"]).values()) in (["16", "82"], ["11", "87"])
    assert {row["name"] for row in found["by_node"]} == {"Mac 0", "Mac 1"}
    assert table(found["by_model"]) == {CARD_ID: "98"}
    # The second reading was Ada's own doing, so the pool pays nothing for it.
    assert table(found["by_kind"]) == {"work": "98", "second_reading": "0"}
    assert found["zeros"] == [{"reason": "own_break", "count": 1}]
    assert sum(int(amount) for amount in table(found["by_day"]).values()) == 98
    assert all(day % 86_400_000_000 == 0 for day in table(found["by_day"]))
    assert (found["coming"], found["other_entries"]) == ([], [])
    hourly = (await ada.get("/v1/earnings", params={"per": "hour"})).json()
    assert "by_day" not in hourly
    assert sum(int(amount) for amount in table(hourly["by_hour"]).values()) == 98
    statement = (await ada.get("/v1/statement", params={"month": this_month()})).json()
    assert sum(int(entry["amount_umlx"]) for entry in statement["entries"]) == 98
    # A period between the jobs has what the ledger posted in it.
    second_us = statement["entries"][1]["recorded_us"]
    part = (await ada.get("/v1/earnings", params={"since_us": second_us})).json()
    assert part["total_umlx"] == "45"
    part = (await ada.get("/v1/earnings", params={"until_us": second_us})).json()
    assert part["total_umlx"] == "53"


async def test_zeros_carry_their_reasons(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    asked = asyncio.create_task(sam.post("/v1/completions", json=completion()))
    offer = await node.offered()
    await node.decline(offer, "busy")
    await node.answer(await node.offered(), "ok")
    assert (await asked).status_code == 200
    ada = coordinator.client("Ada")
    found = (await ada.get("/v1/earnings")).json()
    # 3 x 2 + 2 x 5 = 16, below the least of 20; fee 2.
    assert (found["total_umlx"], found["zeros"]) == ("18", [{"reason": "declined: busy", "count": 1}])


async def test_pay_that_is_no_share_and_gifts_are_told_apart(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    ada_account, sam_account = (coordinator.people[name].ledger_account for name in ("Ada", "Sam"))
    pool, node_id, job_id = "pool:availability", "node_" + "1" * 64, "job_" + "2" * 32
    with coordinator.database.write() as session:
        connection, at_us = session.connection(), database_now_us(session)
        book.ensure_accounts(connection, [pool], now_us=at_us)
        moves = [
            (sam_account, pool, 1_000, "fill"),
            (pool, ada_account, 30, f"slot:7:{node_id}"),
            (pool, ada_account, 4, f"second:{job_id}"),
            (sam_account, ada_account, 500, "a gift"),
            (ada_account, sam_account, 100, "a gift"),
        ]
        commands = [
            Transfer(id=uuid4(), source=source, target=target, amount_umlx=amount, reference=reference)
            for source, target, amount, reference in moves
        ]
        book.apply(connection, commands, now_us=at_us)
    found = (await coordinator.client("Ada").get("/v1/earnings")).json()
    assert table(found["by_kind"]) == {"availability": "30", "second_reading": "4"}
    assert table(found["by_node"]) == {node_id: "30", "": "4"}
    assert found["total_umlx"] == "34"
    assert found["other_entries"] == [{"kind": "transfer", "amount_umlx": "400"}]
    sams = (await sam.get("/v1/earnings")).json()
    assert sams["total_umlx"] == "0"
    assert sams["other_entries"] == [
        {"kind": "mint", "amount_umlx": "10000000"},
        {"kind": "transfer", "amount_umlx": "-1400"},
    ]


async def test_a_job_on_ones_own_mac_is_neither_earned_nor_spent(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    own = await new_node("Sam")
    await two_jobs(own, sam)
    earned, spent = [(await sam.get(f"/v1/{what}")).json() for what in ("earnings", "spending")]
    assert (earned["total_umlx"], spent["total_umlx"]) == ("0", "0")
    assert earned["zeros"] == [{"reason": "own_mac", "count": 2}]
    entries = (await sam.get("/v1/statement")).json()["entries"]
    assert [entry["amount_umlx"] for entry in entries] == ["10000000"]


# -- spending ------------------------------------------------------------------------------------


async def test_each_cost_is_its_sum(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    long, short = await two_jobs(node, sam)
    found = (await sam.get("/v1/spending", params={"month": this_month()})).json()
    assert (found["total_umlx"], found["charged_umlx"], found["refunded_umlx"]) == ("79", "79", "0")
    assert [(row["name"], row["amount_umlx"]) for row in found["by_key"]] == [("test", "79")]
    assert table(found["by_model"]) == {CARD_ID: "79"}
    assert table(found["by_month"]) == {this_month(): "79"}
    assert (found["has_more"], found["not_charged"]) == (False, [])
    newest, oldest = found["jobs"]
    assert (newest["job_id"], oldest["job_id"]) == (short, long)
    assert oldest["card_revision"] == coordinator.shelf.card.revision
    assert (oldest["charge_umlx"], oldest["fee_umlx"], oldest["why"]) == ("59", "6", None)
    assert oldest["sum"]["lines"] == [
        {"what": "input tokens", "tokens": 12, "umlx_per_million_tokens": "2000000", "exact_umlx": "24"},
        {"what": "output tokens", "tokens": 7, "umlx_per_million_tokens": "5000000", "exact_umlx": "35"},
    ]
    assert (oldest["sum"]["exact_umlx"], oldest["sum"]["rule"]) == ("59", "sum")
    assert oldest["shares"] == [{"fence": 1, "node_id": node.node_id, "tokens": 7, "amount_umlx": "53"}]
    assert (newest["charge_umlx"], newest["sum"]["exact_umlx"]) == ("20", "7")
    assert (newest["sum"]["rule"], newest["sum"]["minimum_applied"]) == ("minimum", True)
    one = (await sam.get("/v1/spending", params={"limit": 1})).json()
    assert (one["has_more"], len(one["jobs"]), one["total_umlx"]) == (True, 1, "79")


async def test_a_shared_jobs_shares_and_fee_sum_to_its_charge(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    first, second, job_id = await shared_job(nodes, sam)
    (job,) = (await sam.get("/v1/spending")).json()["jobs"]
    assert (job["job_id"], job["charge_umlx"], job["fee_umlx"]) == (job_id, "31", "4")
    assert job["shares"] == [
        {"fence": 1, "node_id": first.node_id, "tokens": 2, "amount_umlx": "11"},
        {"fence": 2, "node_id": second.node_id, "tokens": 3, "amount_umlx": "16"},
    ]
    for node, amount in ((first, "11"), (second, "16")):
        owner = coordinator.client(node.owner)
        assert (await owner.get("/v1/earnings")).json()["total_umlx"] == amount


async def test_a_refund_is_taken_off_the_job_that_it_gives_back(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    long, _ = await two_jobs(node, sam)
    await wait_until(lambda: coordinator.posted("Ada") == 71, "Ada to be paid")
    with coordinator.database.write() as session:
        hold_id = UUID(session.get_one(Job, long).hold_id)
        ada = coordinator.people["Ada"].ledger_account
        refund = Refund(id=uuid4(), reference=long, hold_id=hold_id, source=ada, amount_umlx=9)
        (outcome,) = book.apply(session.connection(), [refund], now_us=database_now_us(session))
        assert isinstance(outcome, Applied)
    found = (await sam.get("/v1/spending")).json()
    assert (found["total_umlx"], found["charged_umlx"], found["refunded_umlx"]) == ("70", "79", "9")
    assert [(job["charge_umlx"], job["refunded_umlx"]) for job in found["jobs"]] == [("20", "0"), ("59", "9")]
    assert [(row["name"], row["amount_umlx"]) for row in found["by_key"]] == [("test", "70")]
    earned = (await coordinator.client("Ada").get("/v1/earnings")).json()
    assert (earned["total_umlx"], earned["other_entries"]) == (
        "71",
        [{"kind": "refund", "amount_umlx": "-9"}],
    )


async def test_a_job_that_cost_nothing_says_why(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    headers = {"x-mlxnet-max-wait": "0"}
    assert (await sam.post("/v1/completions", json=completion(), headers=headers)).status_code == 503
    found = (await sam.get("/v1/spending")).json()
    assert (found["total_umlx"], found["jobs"]) == ("0", [])
    assert found["not_charged"] == [{"reason": "no_host_available", "count": 1}]


async def test_another_account_sees_nothing(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    await two_jobs(node, sam)
    await wait_until(lambda: coordinator.posted("Ada") == 71, "Ada to be paid")
    for name, earned, spent in (("Ada", "71", "0"), ("Sam", "0", "79"), ("Bo", "0", "0"), ("Pat", "0", "0")):
        client = coordinator.client(name)
        earnings, spending = [(await client.get(f"/v1/{what}")).json() for what in ("earnings", "spending")]
        assert (name, earnings["total_umlx"], spending["total_umlx"]) == (name, earned, spent)
        if earned == "0":
            assert earnings["by_node"] == earnings["by_model"] == earnings["zeros"] == []
        if spent == "0":
            assert spending["jobs"] == spending["by_key"] == spending["not_charged"] == []
    anybody = coordinator.client(None)
    for what in ("statement", "earnings", "spending"):
        assert error_of(await anybody.get(f"/v1/{what}"))[:2] == (401, "missing_api_key")


async def test_a_card_that_left_the_catalogue_leaves_the_charge(
    start_coordinator: Any, tmp_path: Path
) -> None:
    first: Coordinator = start_coordinator()
    node = ScriptedNode(first, "Ada", name="Mac")
    await node.enrol()
    await node.connect()
    async with first.client("Sam") as sam:
        await two_jobs(node, sam)
    await node.close()
    first.stop()
    (tmp_path / "empty").mkdir()
    second: Coordinator = start_coordinator(catalogue_dirs=(tmp_path / "empty",))
    second.people = first.people
    async with second.client("Sam") as sam:
        found = (await sam.get("/v1/spending")).json()
    assert (found["total_umlx"], table(found["by_model"])) == ("79", {CARD_ID: "79"})
    assert [(job["charge_umlx"], job["sum"]) for job in found["jobs"]] == [("20", None), ("59", None)]
    assert all("no longer in the catalogue" in job["why"] for job in found["jobs"])


def test_the_prices_are_those_that_the_sums_above_use() -> None:
    assert (INPUT_UMLX, OUTPUT_UMLX) == (2, 5)
    assert (LONG_UMLX, SHORT_UMLX) == (59, 20)
