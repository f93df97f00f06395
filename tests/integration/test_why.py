"""What a Mac was looked at for, told to its owner and to itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, update
from typer.testing import CliRunner

from coordinator.nodes.models import DevicePace
from coordinator.nodes.pace_book import drop_old_paces
from coordinator.nodes.why import NONCE_HEADER
from coordinator.placement.learning import DECODED_TOKENS_MIN
from node_agent.cli import app as node_app
from node_agent.identity import Identity
from node_agent.protocol import messages as wire
from node_agent.protocol.signing import why_statement
from node_agent.settings import NodeConfig, save_config
from node_agent.why_cli import Why, WhyError, ask_why, why_lines
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import Coordinator, StartCoordinator
from tests.fixtures.scripted_node import Behaviour, NewNode, ScriptedNode, always
from tests.integration.asking_why import away, looked_at, submitted
from tests.integration.records import error_of

pytestmark = pytest.mark.anyio

HOUR_US = 3_600_000_000


@pytest.fixture
def coordinator(start_coordinator: StartCoordinator) -> Coordinator:
    """One that waits for silent Macs however slow this machine is: what a test sees is its own doing."""
    return start_coordinator(node_suspect_seconds=600.0, node_lost_seconds=900.0, offer_seconds_max=60.0)


async def why_of(client: httpx2.AsyncClient, node: ScriptedNode) -> dict[str, Any]:
    answer = await client.get(f"/v1/nodes/{node.node_id}/why")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_owner_is_told_what_a_mac_was_looked_at_for(
    coordinator: Coordinator, node: ScriptedNode, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    ada = coordinator.client("Ada")
    assert (await why_of(ada, node))["seen"] == 0
    node.behaviour = always("x")
    assert (await sam.post("/v1/completions", json=completion())).status_code == 200
    await away(coordinator, node)
    job_id = await submitted(sam)
    await looked_at(coordinator, job_id)
    found = await why_of(ada, node)
    assert (found["seen"], found["taken"], found["state"]) == (2, 1, "away")
    (reason,) = found["rejected"]
    assert (reason["reason"], reason["jobs"], reason["can_change"]) == ("owner_present", 1, True)
    assert sum(hour["seen"] for hour in found["hours"]) == 2
    for other in ("Bo", "Sam", "Operator"):
        refused = await coordinator.client(other).get(f"/v1/nodes/{node.node_id}/why")
        assert error_of(refused) == (404, "node_not_found", None)


async def test_a_refused_job_shows_how_much_more_memory_would_have_brought_it(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    small = await new_node(lent_bytes=1 << 20)
    await wait_until(lambda: coordinator.runtime.dispatcher.book.table.count, "the table of Macs")
    for _ in range(3):
        answer = await sam.post("/v1/completions", json=completion())
        assert error_of(answer) == (422, "job_unservable", "model")
    ada = coordinator.client("Ada")
    found = await why_of(ada, small)
    assert (found["seen"], found["lend_more"]) == (1, [{"gib": 1, "jobs": 1}])
    assert "--lend-gib" in found["rejected"][0]["change"]


def slowly(text: str, *, pause_seconds: float) -> Behaviour:
    """Answer every offer with `text`, each of its tokens after a pause."""

    async def behave(node: ScriptedNode, offer: wire.Offer) -> None:
        await node.accept(offer)
        for index, token_id in enumerate(node.coordinator.shelf.ids(text)):
            await node.chunk(offer, index, [token_id])
            await asyncio.sleep(pause_seconds)
        await node.finish(offer, text)

    return behave


async def test_a_slow_mac_is_timed_reckoned_with_and_told(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    ada, text = coordinator.client("Ada"), "one two three four five six seven eight nine ten"
    assert len(coordinator.shelf.ids(text)) > DECODED_TOKENS_MIN
    before = (await why_of(ada, node))["speed"]
    assert (before["decode_of_forecast"], before["decode_timed"], before["change"]) == (1.0, 0, None)
    # So slow that no machine's own delays matter: the model is small, and forecast to be fast.
    node.behaviour = slowly(text, pause_seconds=0.03)
    answer = await sam.post("/v1/completions", json=completion(max_tokens=200))
    assert answer.status_code == 200, answer.text
    found = (await why_of(ada, node))["speed"]
    assert (found["decode_timed"], found["prefill_timed"]) == (1, 0)
    assert found["decode_of_forecast"] < 0.5
    assert "low power mode" in found["change"]
    told = why_lines(Why.model_validate(await why_of(ada, node)))
    assert told[1].startswith(
        f"speed against the forecast for its kind: answers {found['decode_of_forecast']:.0%}"
    )

    def stored() -> DevicePace | None:
        with coordinator.database.read() as session:
            return session.scalars(select(DevicePace)).one_or_none()

    await wait_until(lambda: stored() is not None, "its pace on record")
    assert drop_old_paces(coordinator.database) == 0
    coordinator.stop()
    _ = coordinator.start()
    _ = await node.connect()
    kept = (await why_of(ada, node))["speed"]
    assert kept["decode_timed"] == 1
    assert kept["decode_of_forecast"] == pytest.approx(found["decode_of_forecast"], abs=0.05)
    book = coordinator.runtime.dispatcher.book

    def reckoned() -> float:
        row = book.row(node.node_id)
        return 1.0 if row is None else book.table.speeds.machine(int(book.table.classes[row])).decode_factor

    await wait_until(lambda: reckoned() < 0.5, "the table of Macs")
    with coordinator.database.write() as session:
        _ = session.execute(update(DevicePace).values(at_us=DevicePace.at_us - 25 * HOUR_US))
    assert drop_old_paces(coordinator.database) == 1
    assert stored() is None


async def test_the_mac_itself_asks_with_its_key(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("x")
    assert (await sam.post("/v1/completions", json=completion())).status_code == 200
    identity = Identity(node.key)

    def ask(who: Identity) -> Any:
        with httpx2.Client(timeout=10, trust_env=False) as client:
            return ask_why(client, coordinator.url, who)

    found = await asyncio.to_thread(ask, identity)
    assert (found.seen, found.taken, found.name) == (1, 1, node.name)
    assert any("seen 1, taken 1" in line for line in why_lines(found))
    stranger = ScriptedNode(coordinator, "Bo", name="stranger")
    with pytest.raises(WhyError, match="not enrolled here"):
        await asyncio.to_thread(ask, Identity(stranger.key))


async def test_the_command_on_the_mac(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient, tmp_path: Path
) -> None:
    await away(coordinator, node)
    await looked_at(coordinator, await submitted(sam))
    home = tmp_path / "node"
    config = NodeConfig(coordinator=coordinator.url, node_id=node.node_id, name=node.name)
    save_config(home, config)
    (home / "node.key").write_bytes(node.key.private_bytes_raw())
    (home / "node.key").chmod(0o600)
    shown = await asyncio.to_thread(CliRunner().invoke, node_app, ["why", "--home", str(home)])
    assert shown.exit_code == 0, shown.output
    assert "seen in the last 24 hours" in shown.output
    assert "1 x owner_present: its owner uses it" in shown.output
    assert "to change: leave it idle for longer" in shown.output
    found = await asyncio.to_thread(CliRunner().invoke, node_app, ["why", "--home", str(home), "--json"])
    assert (json.loads(found.output)["seen"], json.loads(found.output)["taken"]) == (1, 0)
    nowhere = await asyncio.to_thread(CliRunner().invoke, node_app, ["why", "--home", str(tmp_path / "none")])
    assert nowhere.exit_code == 1


async def test_a_wrong_proof_tells_nothing(coordinator: Coordinator, node: ScriptedNode) -> None:
    anybody = coordinator.client(None)
    path = "/nodes/v1/why"
    first = await anybody.get(path)
    assert first.status_code == 401
    nonce = first.headers["www-authenticate"].partition('"')[2].rstrip('"')
    statement = why_statement(audience=coordinator.url, node_id=node.node_id, nonce=nonce)
    good = {"Authorization": f"MLX-Node {node.node_id} {node.sign(statement)}", NONCE_HEADER: nonce}
    stranger = ScriptedNode(coordinator, "Bo", name="stranger")
    forged = good | {"Authorization": f"MLX-Node {node.node_id} {stranger.sign(statement)}"}
    assert (await anybody.get(path, headers=forged)).status_code == 403
    for changes in ({NONCE_HEADER: nonce[:-1] + "A"}, {NONCE_HEADER: "x"}, {NONCE_HEADER: ""}):
        assert (await anybody.get(path, headers=good | changes)).status_code in {401, 403}
    other = (await anybody.get(path)).headers["www-authenticate"].partition('"')[2].rstrip('"')
    assert (await anybody.get(path, headers=good | {NONCE_HEADER: other})).status_code == 403
    # What was forged has not used the nonce up; the answer does, for whoever overheard it.
    both = await asyncio.gather(*(anybody.get(path, headers=good) for _ in range(2)))
    assert sorted(answer.status_code for answer in both) == [200, 401]
    again = await anybody.get(path, headers=good)
    assert again.status_code == 401 and nonce not in again.headers["www-authenticate"]
