"""The node as a real process with a real model, against a scripted coordinator."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tomllib
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from node_agent.models.store import ModelStore
from node_agent.protocol import messages as wire
from node_agent.protocol.cards import ModelCard
from node_agent.protocol.signing import decode_bytes, is_signed_by, result_statement, tokens_digest
from tests.unit.node.coordinator_double import CoordinatorDouble, coordinator_double

ROOT = Path(__file__).parents[3]
CARD = ModelCard.model_validate(
    tomllib.loads((ROOT / "coordinator/catalogue/cards/smollm2-135m-f32.toml").read_text())
)
# "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n"
PROMPT_IDS = (1, 4093, 198, 8720, 1296, 7375, 30, 2, 198, 1, 520, 9531, 198)

pytestmark = [
    pytest.mark.skipif(
        ModelStore().folder_of(CARD) is None,
        reason="needs the model: python -m node_agent.models fetch --card"
        " coordinator/catalogue/cards/smollm2-135m-f32.toml",
    ),
    pytest.mark.timeout(180),
]


@dataclass
class Node:
    process: asyncio.subprocess.Process
    home: Path
    double: CoordinatorDouble

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@asynccontextmanager
async def node(home: Path) -> AsyncGenerator[Node]:
    async with coordinator_double() as double:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "node_agent", "join", double.origin, "--name", "attic"),
            *("--home", str(home), "--json"),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        try:
            yield Node(process, home, double)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def offer(job: str = "job_1", fence: int = 1, **changes: Any) -> wire.Offer:
    facts: dict[str, Any] = {
        "job_id": job,
        "fence": fence,
        "card": CARD,
        "card_revision": CARD.revision,
        "prompt_ids": PROMPT_IDS,
        "max_tokens": 12,
        "stop_token_ids": (2,),
        "sampling": wire.Sampling(temperature=0.0, seed=1),
        "progress_deadline_seconds": 60.0,
    }
    return wire.Offer(**(facts | changes))


def is_finished(message: wire.ToCoordinator) -> bool:
    return isinstance(message, wire.Finished | wire.Failed)


def is_chunk(message: wire.ToCoordinator) -> bool:
    return isinstance(message, wire.Chunk)


def joined(frames: list[wire.ToCoordinator]) -> list[int]:
    """The tokens of contiguous chunks from offset 0; fails on a gap."""
    ids: list[int] = []
    for frame in frames:
        if isinstance(frame, wire.Chunk):
            assert frame.offset == len(ids)
            ids.extend(frame.token_ids)
    return ids


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_enrols_runs_an_offer_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path / "home") as attic:
            double = attic.double
            await double.wait_connected(1)
            await double.send(offer())
            frames = await double.until(is_finished)
            kinds = [frame.type for frame in frames if frame.type != "heartbeat"]
            assert kinds[0] == "accept"
            ids = joined(frames)
            finished = frames[-1]
            assert isinstance(finished, wire.Finished), finished
            assert finished.token_count == len(ids) > 0
            assert finished.output_digest == tokens_digest(ids)
            statement = result_statement(
                job_id="job_1",
                fence=1,
                card_revision=CARD.revision,
                token_count=len(ids),
                output_digest=finished.output_digest,
            )
            key = decode_bytes(double.hellos[0].public_key)
            assert is_signed_by(key, finished.signature, statement)
            # It repeats its report until the end is settled.
            again = await double.until(is_finished)
            assert again[-1] == finished
            await double.send(wire.Settled(job_id="job_1", fence=1))
            children = attic.children()
            assert children
            attic.process.send_signal(signal.SIGTERM)
            await double.until(lambda frame: isinstance(frame, wire.Goodbye), 10)
            assert await asyncio.wait_for(attic.process.wait(), 10) == 0
            assert psutil.wait_procs(children, timeout=3)[1] == []
            mode = (attic.home / "node.key").stat().st_mode & 0o777
            assert mode == 0o600
            status = json.loads((attic.home / "status.json").read_text())
            assert status["state"] == "stopped"

    run(work())


def test_heartbeats_say_once_what_is_on_the_disk(tmp_path: Path) -> None:
    def is_beat(message: wire.ToCoordinator) -> bool:
        return isinstance(message, wire.Heartbeat)

    async def work() -> None:
        async with node(tmp_path / "home") as attic:
            await attic.double.wait_connected(1)
            first = (await attic.double.until(is_beat))[-1]
            again = (await attic.double.until(is_beat))[-1]
            assert isinstance(first, wire.Heartbeat)
            assert isinstance(again, wire.Heartbeat)
            assert CARD.revision[: wire.REVISION_DIGITS] in (first.on_disk or ())
            assert again.on_disk is None
            assert (first.disk_free_bytes or 0) > 0
            # One that has just joined knows nothing of its owner's habits.
            assert first.survival is None

    run(work())


def test_a_drain_hands_a_running_attempt_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path / "home") as attic:
            double = attic.double
            await double.wait_connected(1)
            await double.send(offer(max_tokens=2000, stop_token_ids=()))
            before = await double.until(is_chunk)
            attic.process.send_signal(signal.SIGINT)
            frames = before + await double.until(lambda frame: isinstance(frame, wire.Goodbye), 10)
            failed = [frame for frame in frames if isinstance(frame, wire.Failed)]
            assert [frame.code for frame in failed] == ["reclaimed"]
            joined(frames)
            assert await asyncio.wait_for(attic.process.wait(), 10) == 0

    run(work())


def test_resumes_on_a_new_socket_where_the_coordinator_says(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path / "home") as attic:
            double = attic.double
            await double.wait_connected(1)
            await double.send(offer(max_tokens=24, stop_token_ids=()))
            await double.until(is_chunk)
            assert double.socket is not None
            await double.socket.close(1012)
            await double.wait_connected(2)
            live = double.hellos[1].live
            assert [(attempt.job_id, attempt.fence) for attempt in live] == [("job_1", 1)]
            while not double.frames.empty():
                double.frames.get_nowait()
            await double.send(wire.Resume(job_id="job_1", fence=1, offset=0))
            frames = await double.until(lambda frame: isinstance(frame, wire.Finished))
            finished = frames[-1]
            assert isinstance(finished, wire.Finished)
            first = next(i for i, frame in enumerate(frames) if isinstance(frame, wire.Chunk))
            ids = joined(frames[first:])
            assert len(ids) == 24
            assert finished.output_digest == tokens_digest(ids)

    run(work())


def test_a_killed_runner_fails_its_attempt_and_the_next_offer_runs(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path / "home") as attic:
            double = attic.double
            await double.wait_connected(1)
            await double.send(offer(max_tokens=2000, stop_token_ids=()))
            await double.until(is_chunk)
            for child in attic.children():
                if "node_agent.runner.worker" in child.cmdline():
                    os.kill(child.pid, signal.SIGKILL)
            frames = await double.until(is_finished)
            failed = frames[-1]
            assert isinstance(failed, wire.Failed)
            assert failed.code == "runner_crashed"
            await double.send(offer(fence=2))
            frames = await double.until(lambda frame: isinstance(frame, wire.Finished))
            assert frames[-1].model_dump()["fence"] == 2

    run(work())


def test_a_revoked_node_says_so_and_ends(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path / "home") as attic:
            attic.double.close_with = 4403
            output, _ = await asyncio.wait_for(attic.process.communicate(), 30)
            assert attic.process.returncode == 3
            last = json.loads(output.decode().splitlines()[-1])
            assert "has revoked this node" in last["message"]

    run(work())


def test_leave_tells_the_coordinator_and_forgets(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path / "home") as attic:
            await attic.double.wait_connected(1)
            while not (attic.home / "status.json").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert await mlx_node("status", attic.home) == 0
            assert await mlx_node("leave", attic.home) == 1, "left while it runs"
            attic.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(attic.process.wait(), 10) == 0
            assert await mlx_node("status", attic.home) == 1
            assert await mlx_node("leave", attic.home) == 0
            frames = await attic.double.until(
                lambda frame: isinstance(frame, wire.Goodbye) and frame.reason == "leave"
            )
            assert frames
            assert not (attic.home / "config.json").exists()
            assert (attic.home / "node.key").exists()

    run(work())


async def mlx_node(command: str, home: Path) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "node_agent", command, "--home", str(home), "--json"), cwd=ROOT
    )
    return await asyncio.wait_for(process.wait(), 30)
