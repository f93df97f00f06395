"""Two real models in two real children of one real node: both answer, neither is loaded again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx-network[node]'")

from coordinator.catalogue.adding import Wishes, look_at_folder, make_card
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from node_agent.runner.messages import Alive, Limit
from node_agent.status import read_status
from tests.fixtures.runners import RunnerHarness, make_run
from tests.fixtures.tiny_models import make_tiny_model
from tests.unit.node.coordinator_double import CoordinatorDouble, coordinator_double

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def cards(models_dir: Path) -> tuple[ModelCard, ModelCard]:
    made: list[ModelCard] = []
    for family in ("llama", "qwen3"):
        folder = make_tiny_model(models_dir / f"tiny-{family}", family=family)
        wishes = Wishes(id=f"tiny-{family}", licence="apache-2.0")
        made.append(make_card(look_at_folder(folder), wishes))
    return made[0], made[1]


@dataclass
class Node:
    process: asyncio.subprocess.Process
    home: Path
    double: CoordinatorDouble
    events: list[dict[str, Any]]

    def count(self, event: str) -> int:
        """How often this was logged."""
        return sum(line.get("event") == event for line in self.events)

    def workers(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "node_agent.runner.worker" in child.cmdline():
                    found.append(child)
        return found


async def read_log(process: asyncio.subprocess.Process, events: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))


@asynccontextmanager
async def node(home: Path, models_dir: Path, *options: str) -> AsyncGenerator[Node]:
    async with coordinator_double() as double:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "node_agent", "join", double.origin, "--name", "attic"),
            *("--home", str(home), "--json", "--models-dir", str(models_dir), *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | {"MLXNET_CACHE": str(home / "cache")},
        )
        events: list[dict[str, Any]] = []
        reader = asyncio.create_task(read_log(process, events))
        try:
            yield Node(process, home, double, events)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await reader


async def answer(attic: Node, job: str, card: ModelCard) -> list[int]:
    """One job's tokens, settled, and its model idle again."""
    offer = wire.Offer(
        job_id=job,
        fence=1,
        card=card,
        card_revision=card.revision,
        prompt_ids=(1, 40, 50, 60),
        max_tokens=12,
        stop_token_ids=(),
        sampling=wire.Sampling(temperature=0.0, seed=1),
        progress_deadline_seconds=120.0,
    )
    await attic.double.send(offer)
    frames = await attic.double.until(
        lambda frame: isinstance(frame, wire.Finished | wire.Failed | wire.Decline) and frame.job_id == job,
        120,
    )
    assert isinstance(frames[-1], wire.Finished), frames[-1]
    await attic.double.send(wire.Settled(job_id=job, fence=1))
    chunks = [frame for frame in frames if isinstance(frame, wire.Chunk) and frame.job_id == job]
    return [token for chunk in chunks for token in chunk.token_ids]


async def wait_for_status(home: Path, card_ids: list[str]) -> None:
    """Until the file that `mlx-node status` shows has these, the last used first, and none at work."""
    async with asyncio.timeout(30):
        while True:
            status = await asyncio.to_thread(read_status, home)
            models = status.models if status is not None else ()
            found = [model.card_id for model in models]
            # The file may be a moment old: then the second model is still to come.
            is_still = all(model.phase == "ready" and not model.at_work for model in models)
            if found == card_ids and is_still:
                assert status is not None
                assert status.card_id == card_ids[0]
                assert all(model.bytes for model in models)
                return
            await asyncio.sleep(0.1)


def test_two_models_answer_in_turn_without_a_second_load(
    tmp_path: Path, models_dir: Path, cards: tuple[ModelCard, ModelCard]
) -> None:
    def reports_both(frame: wire.ToCoordinator) -> bool:
        return isinstance(frame, wire.Heartbeat) and len(frame.slots) == 2

    async def work() -> None:
        async with node(tmp_path / "home", models_dir) as attic:
            await attic.double.wait_connected(1)
            assert attic.double.hellos[0].hardware.models_max == 4
            first = [await answer(attic, f"job_{n}", card) for n, card in enumerate(cards)]
            assert first[0] != first[1]
            pids = {worker.pid for worker in attic.workers()}
            assert len(pids) == 2
            again = [await answer(attic, f"job_again_{n}", card) for n, card in enumerate(cards)]
            assert again == first
            assert {worker.pid for worker in attic.workers()} == pids
            beat = (await attic.double.until(reports_both))[-1]
            assert isinstance(beat, wire.Heartbeat)
            assert {slot.card_id for slot in beat.slots} == {card.id for card in cards}
            await wait_for_status(attic.home, [cards[1].id, cards[0].id])
            attic.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                assert await attic.process.wait() == 0
        assert attic.count("runner_ready") == 2

    asyncio.run(work())


def test_an_owner_who_wants_one_model_at_a_time_has_one(
    tmp_path: Path, models_dir: Path, cards: tuple[ModelCard, ModelCard]
) -> None:
    async def work() -> None:
        async with node(tmp_path / "home", models_dir, "--models-max", "1") as attic:
            await attic.double.wait_connected(1)
            assert attic.double.hellos[0].hardware.models_max == 1
            for number, card in enumerate((*cards, cards[0])):
                await answer(attic, f"job_{number}", card)
                assert len(attic.workers()) == 1
        assert attic.count("runner_ready") == 3

    asyncio.run(work())


def test_an_idle_child_holds_its_weights_alone_and_obeys_its_limit(tmp_path: Path) -> None:
    def wait_idle(harness: RunnerHarness) -> Alive:
        while not isinstance(event := harness.next_event(), Alive):
            pass
        return event

    with RunnerHarness(make_tiny_model(tmp_path / "llama"), memory_bytes=8 * GIB) as harness:
        weights: int = harness.ready.active_bytes
        runs = [make_run(f"run-{n}", range(3, 400), max_tokens=100) for n in range(4)]
        harness.answer(*runs)
        assert wait_idle(harness).active_bytes < weights * 1.1
        harness.limit(Limit(memory_bytes=4 * GIB))
        harness.start(make_run("stopped", range(3, 400), max_tokens=1500))
        harness.wait_tokens("stopped", 10)
        if sys.platform == "linux":
            assert harness.process.pid is not None
            soft, hard = resource.prlimit(harness.process.pid, resource.RLIMIT_DATA)
            assert (soft, hard) == (4 * GIB, 8 * GIB)
        harness.stop("stopped")
        harness.finish()
        assert wait_idle(harness).active_bytes < weights * 1.1
