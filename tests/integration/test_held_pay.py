"""Pay that is held back: into escrow, shown with its day, paid out once, or forfeited.

A token in costs 2 uMLX, a token out 5; 10 in and 4 out are 40, fee 4, so the owner gets 36.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, update

from coordinator.jobs.models import Attempt
from coordinator.nodes.models import Node
from coordinator.policy import held
from coordinator.policy.held import release_held_pay
from coordinator.policy.models import HeldPayRow
from ledger.policy import coming_on
from ledger.ratecard import DAY_US
from node_agent.protocol import messages as wire
from tests.fixtures.coordinator import Coordinator
from tests.fixtures.scripted_node import NewNode, ScriptedNode
from tests.integration.attempts import ask, who_is_asked
from tests.integration.settling import (
    Pay,
    change_node,
    check_sums,
    checks_passed,
    entries,
    give,
    has,
    pays,
    release,
)

pytestmark = pytest.mark.anyio

PROMPT = "0123456789"


async def answered(node: ScriptedNode, sam: httpx2.AsyncClient, text: str = "abcd") -> str:
    """One whole answer; the job's id."""
    reading = ask(sam, prompt=PROMPT)
    offer = await node.offered()
    await node.answer(offer, text)
    await node.expect(wire.Settled)
    await reading.whole()
    return offer.job_id


def rows(coordinator: Coordinator) -> list[HeldPayRow]:
    with coordinator.database.read() as session:
        found = session.scalars(select(HeldPayRow).order_by(HeldPayRow.earned_us, HeldPayRow.id)).all()
        session.expunge_all()
        return list(found)


async def get(coordinator: Coordinator, name: str, what: str, **params: Any) -> dict[str, Any]:
    answer = await coordinator.client(name).get(f"/v1/{what}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_new_owners_pay_is_shown_with_its_day_and_then_comes(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    node = await new_node("Ada", lent_days=5)
    job_id = await answered(node, sam)
    await check_sums(coordinator, job_id)
    assert pays(coordinator, job_id) == [Pay(36, 0, None, 4, 4)]
    assert (has(coordinator, "Ada"), has(coordinator, "escrow:Ada")) == (0, 36)
    (row,) = rows(coordinator)
    with coordinator.database.read() as session:
        first_lent_us = session.get_one(Node, node.node_id).first_lent_us
    assert first_lent_us is not None
    assert (row.amount_umlx, row.reason, row.release_us) == (36, "new_owner", first_lent_us + 7 * DAY_US)
    coming = {
        "shown": coming_on(row.release_us),
        "release_us": row.release_us,
        "reason": "new_owner",
        "amount_umlx": "36",
    }
    earned = await get(coordinator, "Ada", "earnings")
    assert (earned["total_umlx"], earned["paid_umlx"], earned["held_umlx"]) == ("36", "0", "36")
    assert (earned["coming"], earned["released"]) == ([coming], [])
    assert (await get(coordinator, "Ada", "statement"))["held_back"] == [coming]
    assert (await get(coordinator, "Ada", "statement", node=node.node_id))["closing_umlx"] == "36"

    assert await release(coordinator, later_us=2 * DAY_US - 60_000_000) == 0
    assert await release(coordinator, later_us=2 * DAY_US) == 1
    assert await release(coordinator, later_us=2 * DAY_US) == 0
    assert (has(coordinator, "Ada"), has(coordinator, "escrow:Ada")) == (36, 0)
    coordinator.check_books()
    earned = await get(coordinator, "Ada", "earnings")
    assert (earned["total_umlx"], earned["paid_umlx"], earned["held_umlx"]) == ("36", "36", "0")
    assert (earned["coming"], earned["other_entries"]) == ([], [])
    until_us = 2**62
    later = await get(coordinator, "Ada", "earnings", until_us=until_us)
    assert later["released"] == []  # it came in the future, as this clock has it
    assert (await get(coordinator, "Ada", "statement"))["held_back"] == []


async def test_what_came_is_shown_in_the_period_in_which_it_came(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    node = await new_node("Ada", lent_days=None)
    job_id = await answered(node, sam)
    (row,) = rows(coordinator)
    # Who has not lent a whole slot yet is as new as can be.
    assert row.release_us == row.earned_us + 7 * DAY_US
    with coordinator.database.write() as session:
        session.get_one(HeldPayRow, row.id).release_us = row.earned_us + 1
    assert await release(coordinator) == 1
    earned = await get(coordinator, "Ada", "earnings")
    (released,) = earned["released"]
    assert (released["job_id"], released["node_id"]) == (job_id, node.node_id)
    assert (released["amount_umlx"], released["earned_us"]) == ("36", row.earned_us)


async def test_how_an_attempt_is_paid_is_fixed_when_it_is_offered(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    node = await new_node("Ada", lent_days=1)
    reading = ask(sam, prompt=PROMPT)
    offer = await node.offered()
    with coordinator.database.read() as session:
        now_us = coordinator.database.now_us(session)
    change_node(coordinator, node, first_lent_us=now_us - 30 * DAY_US)  # its probation ends meanwhile
    await node.answer(offer, "abcd")
    await reading.whole()
    await check_sums(coordinator, offer.job_id)
    (row,) = rows(coordinator)
    assert row.release_us == row.earned_us
    assert await release(coordinator) == 1
    assert has(coordinator, "Ada") == 36


async def test_new_owners_get_no_more_for_second_readings_than_the_fee(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    give(coordinator, "pool:availability", 1_000)
    nodes = [await new_node("Ada", lent_days=0), await new_node("Bo", lent_days=0)]
    reading = ask(sam, prompt=PROMPT)
    first, offer = await who_is_asked(*nodes)
    await first.accept(offer)
    await first.say(offer, "abc")
    await reading.until_text("abc")
    await first.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="reclaimed"))
    second, again = await who_is_asked(*nodes)
    await second.answer(again, "defg")
    await reading.whole()
    await check_sums(coordinator, offer.job_id)
    # 55 in all, fee 6; the second reading is worth 23.
    assert pays(coordinator, offer.job_id) == [Pay(21, 0, None, 3, 3), Pay(28, 6, None, 4, 4)]
    assert has(coordinator, f"escrow:{second.owner}") == 28 + 6
    earned = await get(coordinator, second.owner, "earnings")
    assert {row["key"]: row["amount_umlx"] for row in earned["by_kind"]} == {
        "work": "28",
        "second_reading": "6",
    }
    assert (earned["held_umlx"], earned["by_node"][0]["key"]) == ("34", second.node_id)
    assert await release(coordinator, later_us=8 * DAY_US) == 3
    assert has(coordinator, second.owner) == 34
    coordinator.check_books()


async def test_a_pool_that_is_empty_leaves_nothing_held(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada", lent_days=0), await new_node("Bo", lent_days=0)]
    reading = ask(sam, prompt=PROMPT)
    first, offer = await who_is_asked(*nodes)
    await first.accept(offer)
    await first.say(offer, "abc")
    await reading.until_text("abc")
    await first.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="reclaimed"))
    second, again = await who_is_asked(*nodes)
    await second.answer(again, "defg")
    await reading.whole()
    await check_sums(coordinator, offer.job_id)
    assert pays(coordinator, offer.job_id)[1] == Pay(28, 0, "pool_empty", 4, 4)
    assert sorted(row.amount_umlx for row in rows(coordinator)) == [21, 28]


async def test_a_failed_check_forfeits_what_the_mac_has_not_got_yet(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    liar = await new_node("Ada", lent_days=1)
    change_node(coordinator, liar, checks_passed=3)
    came = await answered(liar, sam)
    with coordinator.database.write() as session:
        for row in session.scalars(select(HeldPayRow)):
            row.release_us = 1
    assert await release(coordinator) == 1
    await answered(liar, sam, "ab")  # 10 x 2 + 2 x 5 = 30, fee 3: 27 held back
    reading = ask(sam, prompt=PROMPT)
    offer = await liar.offered()
    other = await new_node("Ada", lent_days=1)
    change_node(coordinator, other, checks_passed=3)
    await liar.accept(offer)
    await liar.say(offer, "abc")
    await reading.until_text("abc")
    await liar.finish(offer, "abc", signature=liar.sign(b"something else"))
    again = await other.offered()
    await other.answer(again, "defg")
    await reading.whole()
    await check_sums(coordinator, offer.job_id)
    assert (has(coordinator, "pool:audit"), has(coordinator, "escrow:Ada"), has(coordinator, "Ada")) == (
        27,
        36,
        36,
    )
    assert (checks_passed(coordinator, liar), checks_passed(coordinator, other)) == (0, 3)
    earned = await get(coordinator, "Ada", "earnings")
    assert (earned["total_umlx"], earned["paid_umlx"]) == ("99", "36")
    assert (earned["held_umlx"], earned["forfeited_umlx"]) == ("36", "27")
    assert earned["other_entries"] == [{"kind": "forfeit", "amount_umlx": "-27"}]
    assert "check_failed: result_not_proven" in [zero["reason"] for zero in earned["zeros"]]
    # What was forfeited never comes.
    assert await release(coordinator, later_us=8 * DAY_US) == 1
    assert (has(coordinator, "Ada"), has(coordinator, "escrow:Ada")) == (72, 0)
    assert [kind for kind, _, _ in entries(coordinator, came)] == ["capture", "transfer"]
    coordinator.check_books()


async def test_a_suspected_result_waits_for_its_check_at_most_three_days(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    node = await new_node("Ada")
    reading = ask(sam, prompt=PROMPT)
    offer = await node.offered()
    await node.accept(offer)
    with coordinator.database.write() as session:
        session.execute(
            update(Attempt).where(Attempt.job_id == offer.job_id).values(check_result="suspected")
        )
    await node.say(offer, "abcd")
    await node.finish(offer, "abcd")
    await reading.whole()
    job = await check_sums(coordinator, offer.job_id)
    assert (job.charge_umlx, has(coordinator, "Ada"), has(coordinator, "escrow:Ada")) == (40, 0, 36)
    (row,) = rows(coordinator)
    assert (row.reason, row.release_us) == ("under_check", row.earned_us + 3 * DAY_US)
    assert (await get(coordinator, "Ada", "earnings"))["coming"][0]["reason"] == "under_check"
    assert await release(coordinator, later_us=3 * DAY_US + 60_000_000) == 1
    coordinator.check_books()


# -- paying out ----------------------------------------------------------------------------------


def hold_many(coordinator: Coordinator, node: ScriptedNode, count: int) -> None:
    """So many payments of 1 uMLX that are due."""
    ada = coordinator.people["Ada"].account_id
    give(coordinator, f"escrow:{ada}", count)
    with coordinator.database.write() as session:
        session.add_all(
            HeldPayRow(
                id=f"test:{number:06}",
                owner_account_id=ada,
                node_id=node.node_id,
                amount_umlx=1,
                earned_us=number,
                release_us=number // 3,
                reason="new_owner",
            )
            for number in range(count)
        )


async def test_more_than_one_part_is_paid_out_and_each_once(
    coordinator: Coordinator, new_node: NewNode
) -> None:
    hold_many(coordinator, await new_node("Ada"), 1_203)

    def at_once() -> list[int]:
        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(release_held_pay, coordinator.database) for _ in range(2)]
            return [one.result() for one in found]

    assert sum(await asyncio.to_thread(at_once)) + await release(coordinator) == 1_203
    assert (has(coordinator, "Ada"), has(coordinator, "escrow:Ada")) == (1_203, 0)
    coordinator.check_books()


async def test_a_crash_in_the_middle_pays_nothing_and_the_next_run_all(
    coordinator: Coordinator, new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_many(coordinator, await new_node("Ada"), 3)
    apply = held.book.apply

    def crash(*arguments: Any, **options: Any) -> Any:
        apply(*arguments, **options)
        raise RuntimeError("the power is gone")

    monkeypatch.setattr(held.book, "apply", crash)
    with pytest.raises(RuntimeError, match="power"):
        await release(coordinator)
    monkeypatch.undo()
    assert (has(coordinator, "Ada"), has(coordinator, "escrow:Ada")) == (0, 3)
    assert await release(coordinator) == 3
    assert has(coordinator, "Ada") == 3
