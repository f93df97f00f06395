"""Vouchers, gifts and corrections over HTTP: each moves what it says once, or nothing at all."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from coordinator.policy.documents import AdjustmentDocument, sign
from coordinator.policy.models import VoucherRow
from ledger import statements
from tests.fixtures.asking import completion
from tests.fixtures.coordinator import POOR_UMLX, RICH_UMLX, Coordinator
from tests.integration import policies
from tests.integration.policies import MLX, add_budget, add_operators, assert_sound
from tests.integration.records import error_of

pytestmark = pytest.mark.anyio


def posted(coordinator: Coordinator, *names: str) -> list[int]:
    return [coordinator.posted(name) for name in names]


@pytest.fixture(autouse=True)
def _closing(sam: httpx2.AsyncClient) -> None:
    """At its end this client's fixture closes all others, too."""


@pytest.fixture
def operated(coordinator: Coordinator) -> Coordinator:
    """A network with two operators of its own and a budget for three vouchers of 5 MLX."""
    add_operators(coordinator.database)
    add_budget(coordinator.database, "vouchers", 15 * MLX)
    return coordinator


async def issue(coordinator: Coordinator, **body: Any) -> httpx2.Response:
    wanted = {"amount_umlx": str(5 * MLX), "days": 30, **body}
    return await coordinator.client("Operator").post("/v1/vouchers", json=wanted)


# -- vouchers ------------------------------------------------------------------------------------


async def test_a_voucher_is_redeemed_once(operated: Coordinator) -> None:
    before = policies.supply(operated.database)
    answer = await issue(operated, count=2)
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    codes = [voucher["code"] for voucher in answer.json()["data"]]
    assert len(set(codes)) == 2 and all(len(code.replace("-", "")) == 27 for code in codes)
    sam, pat = operated.client("Sam"), operated.client("Pat")
    typed = f" {codes[0].lower().replace('-', ' ')} "
    found = await sam.post("/v1/vouchers/redeem", json={"code": typed})
    assert (found.status_code, found.json()["amount_umlx"]) == (200, str(5 * MLX))
    again = await sam.post("/v1/vouchers/redeem", json={"code": codes[0]})
    assert (again.json(), again.headers["idempotency-hit"]) == (found.json(), "true")
    other = await pat.post("/v1/vouchers/redeem", json={"code": codes[0]})
    assert error_of(other) == (409, "voucher_not_usable", "code")
    wrong = await pat.post("/v1/vouchers/redeem", json={"code": "MLX-AAAAAA-AAAAAA-AAAAAA-AAAAAA"})
    assert error_of(wrong) == (404, "voucher_not_found", "code")
    assert posted(operated, "Sam", "Pat") == [RICH_UMLX + 5 * MLX, POOR_UMLX]
    assert policies.supply(operated.database) == before + 5 * MLX
    assert codes[0] not in operated.logs.getvalue()
    assert_sound(operated.database)


async def test_one_voucher_shown_at_once_by_two_pays_one(operated: Coordinator) -> None:
    code = (await issue(operated)).json()["data"][0]["code"]
    clients = [operated.client(name) for name in ("Sam", "Pat", "Ada", "Bo")]
    answers = await asyncio.gather(
        *(client.post("/v1/vouchers/redeem", json={"code": code}) for client in clients)
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    assert sum(posted(operated, "Sam", "Pat", "Ada", "Bo")) == RICH_UMLX + POOR_UMLX + 5 * MLX
    assert_sound(operated.database)


async def test_vouchers_are_covered_when_issued(operated: Coordinator) -> None:
    assert error_of(await issue(operated, count=4))[:2] == (409, "no_budget")
    assert (await issue(operated, count=3)).status_code == 201
    refused = await issue(operated, amount_umlx="1")
    assert error_of(refused)[:2] == (409, "no_budget") and "cap_reached" in refused.text
    public = (await operated.client(None).get("/v1/budgets")).json()["data"]
    vouchers = next(found for found in public if found["purpose"] == "vouchers")
    assert (vouchers["promised_umlx"], vouchers["left_umlx"]) == (str(15 * MLX), "0")
    # What expired unredeemed is promised no more.
    with operated.database.write() as session:
        session.execute(update(VoucherRow).values(expires_us=1))
    assert (await issue(operated, count=3)).status_code == 201


async def test_an_expired_voucher_says_so(operated: Coordinator) -> None:
    code = (await issue(operated)).json()["data"][0]["code"]
    with operated.database.write() as session:
        session.execute(update(VoucherRow).values(expires_us=1))
    late = await operated.client("Sam").post("/v1/vouchers/redeem", json={"code": code})
    assert error_of(late) == (409, "voucher_not_usable", "code") and "its time is over" in late.text
    assert posted(operated, "Sam") == [RICH_UMLX]


async def test_guessing_codes_is_slow(operated: Coordinator) -> None:
    pat, sam = operated.client("Pat"), operated.client("Sam")
    for _ in range(20):
        assert (await pat.post("/v1/vouchers/redeem", json={"code": "x"})).status_code == 404
    slow = await pat.post("/v1/vouchers/redeem", json={"code": "x"})
    assert slow.status_code == 429 and int(slow.headers["retry-after"]) > 3500
    assert (await sam.post("/v1/vouchers/redeem", json={"code": "x"})).status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"amount_umlx": "0"}, "amount_umlx"),
        ({"amount_umlx": "-1"}, "amount_umlx"),
        ({"days": 0}, "days"),
        ({"days": 1.5}, "days"),
        ({"count": 101}, "count"),
    ],
)
async def test_bad_vouchers_are_named(operated: Coordinator, body: dict[str, Any], param: str) -> None:
    assert error_of(await issue(operated, **body)) == (400, "invalid_value", param)


async def test_a_field_that_vouchers_do_not_have_is_named(operated: Coordinator) -> None:
    assert error_of(await issue(operated, colour="red")) == (400, "unknown_parameter", "colour")


# -- gifts ---------------------------------------------------------------------------------------


async def give(client: httpx2.AsyncClient, key: str | None = "k", **body: Any) -> httpx2.Response:
    wanted = {"to": "Pat", "amount_umlx": "1000", **body}
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.post("/v1/transfers", json=wanted, headers=headers)


async def test_a_gift_moves_once(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    first = await give(sam, note="for lunch")
    assert first.status_code == 201 and "idempotency-hit" not in first.headers
    again = await give(sam, note="for lunch")
    assert (again.json(), again.headers["idempotency-hit"]) == (first.json(), "true")
    other = await give(sam, note="for dinner")
    assert error_of(other)[:2] == (409, "idempotency_key_reused")
    by_id = await give(sam, "k2", to=coordinator.people["Ada"].account_id, amount_umlx=5)
    assert by_id.json()["to_name"] == "Ada"
    assert posted(coordinator, "Sam", "Pat", "Ada") == [RICH_UMLX - 1005, POOR_UMLX + 1000, 5]
    statement = (await coordinator.client("Pat").get("/v1/statement")).json()
    assert [entry["reference"] for entry in statement["entries"]][1:] == ["gift: for lunch"]
    # Another giver's keys are others.
    assert (await give(coordinator.client("Pat"), to="Sam", note="for lunch")).status_code == 201
    assert_sound(coordinator.database)


@pytest.mark.parametrize("amount", [0, -1, 1.5, "1.5", "0", "-3", 2**63, str(2**63), 10**30, True, "01", ""])
async def test_a_bad_amount_moves_nothing(
    sam: httpx2.AsyncClient, coordinator: Coordinator, amount: Any
) -> None:
    assert error_of(await give(sam, amount_umlx=amount)) == (400, "invalid_value", "amount_umlx")
    assert posted(coordinator, "Sam", "Pat") == [RICH_UMLX, POOR_UMLX]


async def test_bad_gifts_are_named_and_move_nothing(
    sam: httpx2.AsyncClient, coordinator: Coordinator
) -> None:
    assert error_of(await give(sam, to="Nobody")) == (404, "account_not_found", "to")
    assert error_of(await give(sam, to="Sam")) == (400, "invalid_value", "to")
    assert error_of(await give(sam, to=coordinator.people["Sam"].account_id)) == (400, "invalid_value", "to")
    assert error_of(await give(sam, note="ä")) == (400, "invalid_value", "note")
    assert error_of(await give(sam, note="x" * 101)) == (400, "invalid_value", "note")
    assert error_of(await give(sam, None)) == (400, "missing_required_parameter", "Idempotency-Key")
    assert error_of(await give(sam, amount_umlx=str(RICH_UMLX + 1))) == (
        402,
        "insufficient_balance",
        "amount_umlx",
    )
    assert posted(coordinator, "Sam", "Pat") == [RICH_UMLX, POOR_UMLX]
    # A refusal is not remembered: the same gift can be given when there is enough.
    assert (await give(sam, amount_umlx=str(RICH_UMLX))).status_code == 201


async def test_what_a_job_holds_cannot_be_given(sam: httpx2.AsyncClient, coordinator: Coordinator) -> None:
    job = (await sam.post("/v1/jobs", json={"kind": "completions", "request": completion()})).json()
    free = RICH_UMLX - int(job["bound_umlx"])
    assert error_of(await give(sam, amount_umlx=str(free + 1)))[:2] == (402, "insufficient_balance")
    assert (await give(sam, amount_umlx=str(free))).status_code == 201
    assert posted(coordinator, "Pat") == [POOR_UMLX + free]


async def test_gifts_at_once_never_overdraw(sam: httpx2.AsyncClient, coordinator: Coordinator) -> None:
    amount = RICH_UMLX // 3 + 1
    answers = await asyncio.gather(*(give(sam, f"k{index}", amount_umlx=amount) for index in range(6)))
    assert sorted(answer.status_code for answer in answers) == [201, 201, 402, 402, 402, 402]
    assert posted(coordinator, "Sam", "Pat") == [RICH_UMLX - 2 * amount, POOR_UMLX + 2 * amount]
    assert_sound(coordinator.database)


# -- corrections ---------------------------------------------------------------------------------


def correction(coordinator: Coordinator, *, signed_by: tuple[str, ...], **changes: Any) -> dict[str, Any]:
    sam, ada = (coordinator.people[name].ledger_account for name in ("Sam", "Ada"))
    content = policies.legs((sam, -100), (ada, 100)) | changes
    document = AdjustmentDocument.model_validate({"kind": "adjustment", "adjustment": content})
    for name in signed_by:
        document = sign(document, name, policies.OPERATORS[name])
    return document.model_dump(mode="json")


async def test_a_correction_takes_the_two_that_it_names(coordinator: Coordinator) -> None:
    add_operators(coordinator.database, ("olga", "otto", "omar"))
    operator = coordinator.client("Operator")
    for signed_by in ((), ("olga",), ("olga", "omar")):
        body = correction(coordinator, signed_by=signed_by)
        refused = await operator.post("/v1/ledger/adjustments", json=body)
        assert error_of(refused) == (403, "signatures_missing", "signatures"), signed_by
    body = correction(coordinator, signed_by=("olga", "otto"))
    changed = {**body, "adjustment": {**body["adjustment"], "reason": "Another one"}}
    assert error_of(await operator.post("/v1/ledger/adjustments", json=changed))[0] == 403
    done = await operator.post("/v1/ledger/adjustments", json=body)
    again = await operator.post("/v1/ledger/adjustments", json=body)
    assert (done.status_code, again.json(), again.headers["idempotency-hit"]) == (201, done.json(), "true")
    assert posted(coordinator, "Sam", "Ada") == [RICH_UMLX - 100, 100]
    record = f"adjustment:{body['adjustment']['id']}={done.json()['digest']}"
    assert policies.records(coordinator.database).count(record) == 1
    pat = await coordinator.client("Pat").post("/v1/ledger/adjustments", json=body)
    assert pat.status_code == 403
    assert_sound(coordinator.database)


async def test_bad_corrections_change_nothing(coordinator: Coordinator) -> None:
    add_operators(coordinator.database)
    operator, two = coordinator.client("Operator"), ("olga", "otto")
    sam, ada = (coordinator.people[name].ledger_account for name in ("Sam", "Ada"))

    async def answer(*pairs: tuple[str, int]) -> httpx2.Response:
        legs = policies.legs(*pairs)["legs"]
        body = correction(coordinator, signed_by=two, legs=legs)
        return await operator.post("/v1/ledger/adjustments", json=body)

    assert error_of(await answer((ada, -1), (sam, 1))) == (409, "adjustment_refused", "adjustment.legs")
    assert error_of(await answer((sam, -1), ("user:nobody", 1))) == (
        400,
        "unknown_account",
        "adjustment.legs",
    )
    body = correction(coordinator, signed_by=two)
    body["adjustment"]["legs"][0]["amount_umlx"] = "-99"
    unbalanced = await operator.post("/v1/ledger/adjustments", json=body)
    assert unbalanced.status_code == 400 and "sum to zero" in unbalanced.text
    body["adjustment"]["legs"] = []
    assert error_of(await operator.post("/v1/ledger/adjustments", json=body))[2] == "adjustment.legs"
    assert posted(coordinator, "Sam", "Ada") == [RICH_UMLX, 0]
    with coordinator.database.read() as session:
        assert statements.reconcile(session.connection()) == []


async def test_keys_and_cards_are_logged(coordinator: Coordinator, node: Any) -> None:
    logged = policies.records(coordinator.database)
    card = coordinator.shelf.card
    assert f"card:{card.id}={card.revision}" in logged
    assert f"node_key:{node.node_id}={node.node_id.removeprefix('node_')}" in logged
    assert any(record.startswith("rate_card:1=") for record in logged)
    assert len(logged) == len(set(logged))
