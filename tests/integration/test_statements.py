"""Statements, earnings, spending and tokens over HTTP and on the command line.

One Mac charges 2 uMLX a token in and 5 a token out, at least 20; the fee is a tenth, rounded up.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from beancount import loader
from typer.testing import CliRunner, Result

from coordinator.cli import app
from coordinator.db import database_now_us
from coordinator.jobs.models import Job
from ledger import book
from ledger.commands import Applied, Refund, Transfer
from node_agent.protocol import messages as wire
from tests.fixtures.asking import Reading, completion, in_ci, wait_until
from tests.fixtures.coordinator import CARD_ID, INPUT_UMLX, OUTPUT_UMLX, Coordinator
from tests.fixtures.scripted_node import NewNode, ScriptedNode, always
from tests.integration.attempts import who_is_asked
from tests.integration.records import error_of

pytestmark = pytest.mark.anyio

# Sam asks Ada's Mac twice: 12 tokens in and 7 out, then 1 in and 1 out at the minimum.
LONG_UMLX = 12 * 2 + 7 * 5  # 59, fee 6, Ada 53
SHORT_UMLX = 20  # fee 2, Ada 18


def now_us() -> int:
    return int(datetime.now(tz=UTC).timestamp() * 1e6)


def this_month() -> str:
    return f"{datetime.now(tz=UTC):%Y-%m}"


def table(rows: list[dict[str, Any]]) -> dict[Any, str]:
    return {row["key"]: row["amount_umlx"] for row in rows}


async def two_jobs(node: ScriptedNode, sam: httpx2.AsyncClient) -> list[str]:
    """The long and the short job; their ids."""
    node.behaviour = always("seven77")
    long = await sam.post("/v1/completions", json=completion("twelve bytes", max_tokens=9))
    node.behaviour = always("b")
    short = await sam.post("/v1/completions", json=completion("a", max_tokens=1))
    assert (long.status_code, short.status_code) == (200, 200)
    return [long.headers["x-job-id"], short.headers["x-job-id"]]


async def shared_job(
    nodes: list[ScriptedNode], sam: httpx2.AsyncClient
) -> tuple[ScriptedNode, ScriptedNode, str]:
    """3 tokens in, 5 out; the first Mac delivers 2 and is lost, the second delivers 3."""
    reading = Reading(sam, "POST", "/v1/completions", json=completion(stream=True, max_tokens=5))
    first, offer = await who_is_asked(*nodes)
    await first.accept(offer)
    await first.say(offer, "ab")
    await reading.until_text("ab")
    await first.close()
    second, offer = await who_is_asked(*[node for node in nodes if node is not first])
    await second.accept(offer)
    await second.say(offer, "cde")
    await second.finish(offer, "cde", "length")
    assert (await reading.whole()).text == "abcde"
    await second.expect(wire.Settled)
    return first, second, reading.job_id


# -- statements ----------------------------------------------------------------------------------


async def test_a_month_opens_where_the_last_one_closed(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    await two_jobs(node, sam)
    answer = await sam.get("/v1/statement", params={"month": this_month()})
    found = answer.json()
    assert answer.headers["content-disposition"] == f'attachment; filename="statement-{this_month()}.json"'
    assert [entry["amount_umlx"] for entry in found["entries"]] == ["10000000", "-59", "-20"]
    assert (found["opening_umlx"], found["closing_umlx"], found["month"]) == ("0", "9999921", this_month())
    middle_us = found["entries"][1]["recorded_us"]
    later = (await sam.get("/v1/statement", params={"since_us": middle_us})).json()
    assert (later["opening_umlx"], later["closing_umlx"]) == ("10000000", "9999921")
    earlier = (await sam.get("/v1/statement", params={"until_us": middle_us})).json()
    assert (earlier["closing_umlx"], len(earlier["entries"])) == ("10000000", 1)
    before = (await sam.get("/v1/statement", params={"month": "2001-02"})).json()
    assert (before["entries"], before["opening_umlx"], before["closing_umlx"]) == ([], "0", "0")
    assert (before["since_us"], before["until_us"]) == (980_985_600_000_000, 983_404_800_000_000)


async def test_csv_runs_from_opening_to_closing(node: ScriptedNode, sam: httpx2.AsyncClient) -> None:
    jobs = await two_jobs(node, sam)
    answer = await sam.get("/v1/statement", params={"month": this_month(), "format": "csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8; header=present"
    assert answer.headers["content-disposition"] == f'attachment; filename="statement-{this_month()}.csv"'
    head, opening, grant, *lines = [line.split(",") for line in answer.text.splitlines()]
    assert head == ["seq", "recorded_us", "kind", "reference", "amount_umlx", "balance_umlx", "recorded_utc"]
    assert (opening[2], opening[4:6], grant[4:6]) == ("opening", ["0", "0"], ["10000000", "10000000"])
    assert [line[2:6] for line in lines] == [
        ["capture", jobs[0], "-59", "9999941"],
        ["capture", jobs[1], "-20", "9999921"],
        ["closing", "", "0", "9999921"],
    ]


async def test_beancount_accepts_a_statement_and_no_other_sum(
    node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    await two_jobs(node, sam)
    middle_us = (await sam.get("/v1/statement")).json()["entries"][2]["recorded_us"]
    for params in ({"month": this_month()}, {"since_us": middle_us}):
        answer = await sam.get("/v1/statement", params={**params, "format": "beancount"})
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["content-disposition"].endswith('.beancount"')
        assert "9.999921 ~ 0 MLX" in answer.text
        assert loader.load_string(answer.text)[1] == []  # pyright: ignore[reportUnknownMemberType]
        wrong = answer.text.replace("-0.000020 MLX", "-0.000021 MLX").replace("0.000020", "0.000021")
        assert loader.load_string(wrong)[1] != []  # pyright: ignore[reportUnknownMemberType]


async def test_hledger_accepts_a_statement_and_no_other_sum(
    node: ScriptedNode, sam: httpx2.AsyncClient, tmp_path: Path
) -> None:
    await two_jobs(node, sam)
    answer = await sam.get("/v1/statement", params={"month": this_month(), "format": "hledger"})
    assert answer.headers["content-disposition"].endswith('.journal"')
    assert "= 9.999921 MLX" in answer.text
    if shutil.which("hledger") is None:
        assert not in_ci(), "CI must have hledger"
        pytest.skip("hledger is not installed")

    def checks(text: str) -> bool:
        path = tmp_path / "statement.journal"
        path.write_text(text, "utf-8")
        command = ["hledger", "-f", str(path), "check"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert checks(answer.text)
    assert not checks(answer.text.replace("-0.000059 MLX", "-0.000058 MLX").replace(" 0.000059", " 0.000058"))


async def test_one_macs_statement_has_its_shares_alone(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Ada")]
    first, second, job_id = await shared_job(nodes, sam)
    ada = coordinator.client("Ada")
    # 3 x 2 + 5 x 5 = 31, fee 4, owners 27: 27 x 2 / 5 = 10.8 and 16.2, by largest remainder 11 and 16.
    for node, share in ((first, "11"), (second, "16")):
        found = (await ada.get("/v1/statement", params={"node": node.node_id})).json()
        assert [(entry["reference"], entry["amount_umlx"]) for entry in found["entries"]] == [(job_id, share)]
        assert (found["opening_umlx"], found["closing_umlx"], found["node"]) == ("0", share, node.node_id)
        at_us = found["entries"][0]["recorded_us"]
        after = (await ada.get("/v1/statement", params={"node": node.node_id, "since_us": at_us + 1})).json()
        assert (after["opening_umlx"], after["entries"], after["closing_umlx"]) == (share, [], share)
    whole = (await ada.get("/v1/statement")).json()
    assert [entry["amount_umlx"] for entry in whole["entries"]] == ["27"]
    text = (await ada.get("/v1/statement", params={"node": second.node_id, "format": "beancount"})).text
    assert loader.load_string(text)[1] == []  # pyright: ignore[reportUnknownMemberType]
    assert "0.000016 ~ 0 MLX" in text
    for name in ("Bo", "Sam"):
        others = await coordinator.client(name).get("/v1/statement", params={"node": second.node_id})
        assert error_of(others) == (404, "node_not_found", None)


async def test_a_mac_that_changed_hands_shows_no_earlier_owners_pay(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    await two_jobs(node, sam)
    ada, bo = coordinator.client("Ada"), coordinator.client("Bo")
    assert (await ada.delete(f"/v1/nodes/{node.node_id}")).status_code == 200
    node.owner = "Bo"
    await node.enrol()
    mine = (await bo.get("/v1/statement", params={"node": node.node_id})).json()
    assert (mine["entries"], mine["closing_umlx"]) == ([], "0")
    assert (await bo.get("/v1/earnings")).json()["total_umlx"] == "0"
    # Ada's pay stays hers, only not under a Mac that is no longer hers.
    kept = (await ada.get("/v1/earnings")).json()
    assert (kept["total_umlx"], kept["by_node"]) == (
        "71",
        [{"key": "", "name": None, "amount_umlx": "71"}],
    )


@pytest.mark.parametrize("path", ["statement", "earnings", "spending"])
@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"month": "2026-13"}, "month"),
        ({"month": "2026-3"}, "month"),
        ({"month": "march"}, "month"),
        ({"month": ""}, "month"),
        ({"month": "9999-12"}, "month"),
        ({"month": "2026-03", "since_us": 5}, "month"),
        ({"since_us": 6, "until_us": 5}, "until_us"),
        ({"since_us": -1}, "since_us"),
        ({"until_us": 2**63}, "until_us"),
    ],
)
async def test_a_bad_period_is_named(
    sam: httpx2.AsyncClient, path: str, params: dict[str, Any], param: str
) -> None:
    assert error_of(await sam.get(f"/v1/{path}", params=params)) == (400, "invalid_value", param)


async def test_other_bad_parameters_are_named(sam: httpx2.AsyncClient) -> None:
    for path, params, param in (
        ("statement", {"format": "pdf"}, "format"),
        ("earnings", {"per": "week"}, "per"),
        ("spending", {"limit": -1}, "limit"),
        ("spending", {"limit": 1001}, "limit"),
    ):
        assert error_of(await sam.get(f"/v1/{path}", params=params)) == (400, "invalid_value", param)
    nothing = await sam.get("/v1/statement", params={"node": "node_" + "0" * 64})
    assert error_of(nothing)[:2] == (404, "node_not_found")


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
    assert table(found["by_kind"]) == {"work": "98"}
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


async def test_a_job_on_ones_own_mac_is_earned_and_spent(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    own = await new_node("Sam")
    await two_jobs(own, sam)
    earned, spent = [(await sam.get(f"/v1/{what}")).json() for what in ("earnings", "spending")]
    assert (earned["total_umlx"], spent["total_umlx"]) == ("71", "79")
    assert table(earned["by_node"]) == {own.node_id: "71"}
    entries = (await sam.get("/v1/statement")).json()["entries"]
    assert [entry["amount_umlx"] for entry in entries] == ["10000000", "-6", "-2"]


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


# -- tokens --------------------------------------------------------------------------------------


async def test_everyone_may_know_what_a_token_is(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    await two_jobs(node, sam)
    found = (await coordinator.client(None).get("/v1/tokens")).json()
    models = {model["id"]: model for model in found["models"]}
    # 5 uMLX a token: 1,000,000 / 5. The other card: 10**12 / 5,398,911 = 185,222.6.
    assert models[CARD_ID]["output_tokens_per_mlx"] == 200_000
    assert models["smollm2-135m-f32"]["output_tokens_per_mlx"] == 185_222
    assert models[CARD_ID]["aliases"] == ["small"]
    # Granted: 10,000,000 to Sam and 60 to Pat; the fee took 6 and 2.
    assert (found["supply_umlx"], found["fee_ppm"]) == ("10000060", 100_000)
    assert {"account": "fee", "balance_umlx": "8"} in found["network_accounts"]
    assert len(found["rate_card"]["id"]) == 64
    assert not [row for row in found["network_accounts"] if row["account"].startswith(("user:", "escrow:"))]
    assert "not bought, not sold" in found["what"]


# -- the command line ----------------------------------------------------------------------------


@pytest.fixture
def run(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs `mlx-network` for a person in a thread, as the test's loop serves the node."""
    monkeypatch.setenv("MLXNET_URL", coordinator.url)
    monkeypatch.setenv("MLXNET_HOME", str(coordinator.settings.home))
    monkeypatch.setenv("COLUMNS", "200")

    async def go(name: str | None, *arguments: str) -> Result:
        if name is None:
            monkeypatch.delenv("MLXNET_API_KEY", raising=False)
        else:
            monkeypatch.setenv("MLXNET_API_KEY", coordinator.people[name].key)
        return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))

    yield go


async def test_the_command_line_shows_and_writes_it_all(
    run: Any, node: ScriptedNode, sam: httpx2.AsyncClient, tmp_path: Path
) -> None:
    jobs = await two_jobs(node, sam)
    shown = (await run("Sam", "statement")).stdout
    assert "-0.000059" in shown and "9.999921" in shown
    file = tmp_path / "month.csv"
    done = await run("Sam", "statement", "--month", this_month(), "--format", "csv", "--out", str(file))
    assert (done.exit_code, done.stdout) == (0, "")
    assert file.read_text("utf-8").splitlines()[-1].split(",")[5] == "9999921"
    text = (await run("Sam", "statement", "--format", "beancount")).stdout
    assert loader.load_string(text)[1] == []  # pyright: ignore[reportUnknownMemberType]
    as_json = json.loads((await run("Ada", "statement", "--format", "json", "--node", node.node_id)).stdout)
    assert as_json["closing_umlx"] == "71"

    shown = (await run("Ada", "earnings", "--per", "hour")).stdout
    assert "earned 0.000071 MLX" in shown and "Mac 0" in shown and CARD_ID in shown
    assert json.loads((await run("Ada", "earnings", "--json")).stdout)["total_umlx"] == "71"
    shown = (await run("Sam", "spending")).stdout
    assert "spent 0.000079 MLX" in shown and jobs[0] in shown
    assert "12 input tokens x 2000000 uMLX per million = 24 uMLX" in shown
    assert "sum 7 uMLX -> 20 uMLX (the least that a job costs)" in shown
    assert json.loads((await run("Sam", "spending", "--json")).stdout)["total_umlx"] == "79"

    shown = (await run(None, "tokens")).stdout
    assert "200,000" in shown and "10.000060 MLX" in shown and "fee 10 %" in shown
    assert json.loads((await run(None, "tokens", "--json")).stdout)["supply_umlx"] == "10000060"


async def test_mistakes_on_the_command_line_are_explained(run: Any, tmp_path: Path) -> None:
    for arguments, words in (
        (["statement", "--out", str(tmp_path / "x")], "--format"),
        (["statement", "--month", "2026-13"], "month"),
        (["statement", "--format", "csv", "--out", str(tmp_path / "no" / "x")], "No such file"),
        (["earnings", "--month", "soon"], "month"),
    ):
        done = await run("Sam", *arguments)
        assert done.exit_code != 0 and words in done.stderr, done.output
    assert (await run(None, "spending")).exit_code == 1


def test_the_prices_are_those_that_the_sums_above_use() -> None:
    assert (INPUT_UMLX, OUTPUT_UMLX) == (2, 5)
    assert (LONG_UMLX, SHORT_UMLX) == (59, 20)
