"""Refunds by operators: where they come from, that they come once, and never more than was charged.

10 tokens in and 4 out cost 40, fee 4, so the owner has 36.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from coordinator.cli import app
from coordinator.statements_cli import umlx_of
from tests.fixtures.coordinator import RICH_UMLX, Coordinator
from tests.fixtures.scripted_node import NewNode
from tests.integration.records import error_of
from tests.integration.settling import check_sums, entries, give, has, release
from tests.integration.test_held_pay import answered, get, rows

pytestmark = pytest.mark.anyio


async def refund(
    coordinator: Coordinator, job_id: str, who: str = "Operator", *, key: str | None = "k1", **changes: Any
) -> Any:
    body = {"job_id": job_id, "reason": "wrong model", **changes}
    headers = {} if key is None else {"Idempotency-Key": key}
    return await coordinator.client(who).post("/v1/ledger/refunds", json=body, headers=headers)


async def test_a_whole_refund_leaves_everybody_as_before(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    give(coordinator, "treasury", 100)
    job_id = await answered(await new_node("Ada"), sam)
    answer = await refund(coordinator, job_id)
    ada = coordinator.people["Ada"].ledger_account
    assert (answer.status_code, answer.json()) == (
        201,
        {
            "object": "refund",
            "job_id": job_id,
            "refunded_umlx": "40",
            "owed_umlx": "0",
            "from": [{"account": ada, "amount_umlx": "36"}, {"account": "treasury", "amount_umlx": "4"}],
        },
    )
    assert (has(coordinator, "Sam"), has(coordinator, "Ada")) == (RICH_UMLX - 100, 0)
    assert has(coordinator, "treasury") == 96
    coordinator.check_books()
    spent = await get(coordinator, "Sam", "spending")
    assert (spent["total_umlx"], spent["refunded_umlx"]) == ("0", "40")
    earned = await get(coordinator, "Ada", "earnings")
    assert (earned["total_umlx"], earned["other_entries"]) == (
        "36",
        [{"kind": "refund", "amount_umlx": "-36"}],
    )
    references = [
        entry["reference"]
        for entry in (await get(coordinator, "Sam", "statement"))["entries"]
        if entry["kind"] == "refund"
    ]
    mark = hashlib.sha256(b"k1").hexdigest()[:16]
    assert references == [f"refund:{job_id}:40:{mark}:wrong model"] * 2


async def test_the_same_key_gives_back_once(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    job_id = await answered(await new_node("Ada"), sam)
    asked = [refund(coordinator, job_id, amount_umlx="10") for _ in range(4)]
    answers = await asyncio.gather(*asked)
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert len({answer.text for answer in answers}) == 1
    assert has(coordinator, "Sam") == RICH_UMLX - 40 + 9  # 36 x 10 / 40; the treasury has nothing
    assert answers[0].json()["owed_umlx"] == "1"
    for other in ({"amount_umlx": "11"}, {"amount_umlx": "10", "reason": "else"}):
        assert error_of(await refund(coordinator, job_id, **other))[:2] == (409, "idempotency_key_reused")
    # Another key is another refund, up to the charge.
    assert (await refund(coordinator, job_id, amount_umlx="10", key="k2")).json()["refunded_umlx"] == "9"
    assert has(coordinator, "Ada") == 18
    coordinator.check_books()


async def test_nobody_goes_below_zero_and_what_is_lacking_is_said(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    give(coordinator, "treasury", 3)
    job_id = await answered(await new_node("Ada"), sam)
    give(coordinator, coordinator.people["Bo"].ledger_account, 30, source="Ada")
    done = (await refund(coordinator, job_id)).json()
    assert (done["refunded_umlx"], done["owed_umlx"]) == ("9", "31")
    assert (has(coordinator, "Ada"), has(coordinator, "treasury"), has(coordinator, "Bo")) == (0, 0, 30)
    again = await refund(coordinator, job_id, key="k2")
    assert error_of(again)[:2] == (409, "nothing_to_refund_from")
    give(coordinator, "treasury", 100)
    assert (await refund(coordinator, job_id, key="k3")).json()["refunded_umlx"] == "31"
    assert error_of(await refund(coordinator, job_id, key="k4")) == (400, "invalid_value", "amount_umlx")
    coordinator.check_books()


async def test_held_back_pay_is_taken_first_and_the_rest_of_it_still_comes(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    give(coordinator, "treasury", 100)
    node = await new_node("Ada", lent_days=1)
    job_id, other_id = await answered(node, sam), await answered(node, sam)
    done = (await refund(coordinator, job_id, amount_umlx="20")).json()
    escrow = f"escrow:{coordinator.people['Ada'].account_id}"
    assert done["from"] == [
        {"account": escrow, "amount_umlx": "18"},
        {"account": "treasury", "amount_umlx": "2"},
    ]
    assert {row.job_id: row.amount_umlx for row in rows(coordinator)} == {job_id: 18, other_id: 36}
    assert (await get(coordinator, "Ada", "earnings"))["held_umlx"] == "54"
    done = (await refund(coordinator, job_id, key="k2")).json()
    assert done["from"][0] == {"account": escrow, "amount_umlx": "18"}
    # The other job's pay is not touched.
    assert [(row.job_id, row.amount_umlx) for row in rows(coordinator)] == [(other_id, 36)]
    assert await release(coordinator, later_us=10 * 86_400_000_000) == 1
    assert (has(coordinator, "Ada"), has(coordinator, "escrow:Ada")) == (36, 0)
    coordinator.check_books()


async def test_what_cannot_be_refunded_is_refused_by_name(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    node = await new_node("Ada")
    job_id = await answered(node, sam)
    before = coordinator.balances()
    refused: list[tuple[dict[str, Any], int, str, str | None]] = [
        ({"amount_umlx": "41"}, 400, "invalid_value", "amount_umlx"),
        ({"amount_umlx": "0"}, 400, "invalid_value", "amount_umlx"),
        ({"amount_umlx": "-1"}, 400, "invalid_value", "amount_umlx"),
        ({"amount_umlx": "1.5"}, 400, "invalid_value", "amount_umlx"),
        ({"amount_umlx": 5}, 400, "invalid_value", "amount_umlx"),
        ({"reason": ""}, 400, "invalid_value", "reason"),
        ({"reason": "x" * 81}, 400, "invalid_value", "reason"),
        ({"key": None}, 400, "missing_required_parameter", "Idempotency-Key"),
        ({"key": "x" * 256}, 400, "invalid_value", "Idempotency-Key"),
        ({"job_id": "job_" + "0" * 32}, 404, "job_not_found", None),
        ({"more": 1}, 400, "unknown_parameter", "more"),
    ]
    for changes, status, code, param in refused:
        answer = await refund(coordinator, **{"job_id": job_id, **changes})
        assert error_of(answer) == (status, code, param), changes
    for who in ("Sam", "Ada"):
        assert (await refund(coordinator, job_id, who)).status_code == 403
    cancelled = await sam.post(
        "/v1/jobs", json={"kind": "completions", "request": {"model": "tiny", "prompt": "abc"}}
    )
    free_id = cancelled.json()["id"]
    await sam.post(f"/v1/jobs/{free_id}/cancel")
    await check_sums(coordinator, free_id)
    assert error_of(await refund(coordinator, free_id))[:2] == (409, "job_not_charged")
    assert coordinator.balances() == before


async def test_an_operator_refunds_on_the_command_line(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(coordinator, "treasury", 100)
    job_id = await answered(await new_node("Ada"), sam)
    monkeypatch.setenv("MLXNET_URL", coordinator.url)
    monkeypatch.setenv("MLXNET_API_KEY", coordinator.people["Operator"].key)

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(CliRunner().invoke, app, ["ledger", "refund", job_id, *arguments])

    done = await run("--reason", "wrong model", "--mlx", "0.00001")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"gave back 0.000010 MLX of {job_id}")
    wrong = await run("--reason", "wrong model", "--mlx", "0.0000001")
    assert (wrong.exit_code, "at most 6 decimals" in wrong.stderr) == (2, True)
    much = await run("--reason", "wrong model", "--mlx", "1")
    assert (much.exit_code, "at most 30" in much.stderr) == (1, True)
    assert (await run("--reason", "wrong model")).exit_code == 0
    assert has(coordinator, "Ada") == 0
    assert [kind for kind, _, _ in entries(coordinator, job_id)] == ["capture", *["refund"] * 4]


@pytest.mark.parametrize(("text", "umlx"), [("1", 1_000_000), ("0.25", 250_000), ("12.000001", 12_000_001)])
def test_an_amount_in_mlx_is_exact(text: str, umlx: int) -> None:
    assert umlx_of(text) == umlx


@pytest.mark.parametrize("text", ["", ".5", "1.", "-1", "1e3", "0.0000001", "\u0661", "1,5", "0x10"])
def test_an_amount_that_is_not_exact_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="decimals"):
        umlx_of(text)
