"""Statements and tokens over HTTP and on the command line; what each figure is stands in `money`."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from beancount import loader
from typer.testing import CliRunner, Result

from coordinator.cli import app
from tests.fixtures.asking import in_ci
from tests.fixtures.coordinator import CARD_ID, Coordinator
from tests.fixtures.scripted_node import NewNode, ScriptedNode
from tests.integration.money import shared_job, this_month, two_jobs
from tests.integration.records import error_of

pytestmark = pytest.mark.anyio


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
    # Ada's pay stays hers, under the Mac that earned it, which she can no longer name.
    kept = (await ada.get("/v1/earnings")).json()
    assert (kept["total_umlx"], kept["by_node"]) == (
        "71",
        [{"key": node.node_id, "name": None, "amount_umlx": "71"}],
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
