"""The agent's child processes: one that runs a model, and one that fetches a model's files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast, final

import structlog

from node_agent.events import (
    Event,
    FetchEnded,
    FetchFailed,
    FetchProgressed,
    RunnerExited,
    RunnerSaid,
)
from node_agent.protocol.cards import ModelCard
from node_agent.runner.messages import Limit, Run
from node_agent.runner.process import Gone, RunnerGoneError, RunnerProcess, RunnerStartError

log = structlog.get_logger()

PID_POLL_SECONDS: Final = 0.02

OnEvent = Callable[[Event], None]


@final
class RunnerHost:
    """One runner child as a stream of events; commands keep their order."""

    def __init__(self, generation: int, process: RunnerProcess, folder: Path, on_event: OnEvent) -> None:
        self._generation = generation
        self._process = process
        self._folder = folder
        self._on_event = on_event
        self._commands: asyncio.Queue[Run | Limit | str] = asyncio.Queue()
        self._is_over = False

    def run(self, run: Run) -> None:
        self._commands.put_nowait(run)

    def stop(self, key: str) -> None:
        self._commands.put_nowait(key)

    def limit(self, memory_bytes: int) -> None:
        self._commands.put_nowait(Limit(memory_bytes=memory_bytes))

    async def serve(self) -> None:
        """Start the child and report all it says; its exit is the last that is reported."""
        detail = ""
        try:
            ready = await self._process.start(
                self._folder, lambda said: self._on_event(RunnerSaid(self._generation, said))
            )
            log.info("runner_ready", load_seconds=round(ready.load_seconds, 2))
            self._on_event(RunnerSaid(self._generation, ready))
            detail = await self._hear()
        except RunnerStartError as error:
            detail = str(error)
        finally:
            self._is_over = True
        # Reported in the same step as the failures of its runs, so that no new offer falls
        # between them and is given to a child that has gone.
        self._on_event(RunnerExited(self._generation, detail))
        log.info("runner_exited", detail=detail)
        await self._process.close()

    async def _hear(self) -> str:
        feeder = asyncio.create_task(self._feed())
        try:
            async for said in self._process.events():
                if isinstance(said, Gone):
                    return said.message
                self._on_event(RunnerSaid(self._generation, said))
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)
        return ""

    async def _feed(self) -> None:
        while True:
            command = await self._commands.get()
            # A child that has just gone is reported by its exit.
            with contextlib.suppress(RunnerGoneError):
                if isinstance(command, str):
                    await self._process.stop(command)
                elif isinstance(command, Limit):
                    await self._process.limit(command)
                else:
                    await self._process.run(command)

    async def close(self) -> None:
        """End the child; `serve` then reports its exit."""
        # The process says nothing when it gets its pid; this lasts for some milliseconds at most.
        while self._process.pid is None and not self._is_over:  # noqa: ASYNC110
            await asyncio.sleep(PID_POLL_SECONDS)
        await self._process.close()


async def fetch_model(card: ModelCard, cache: Path, models_dir: Path | None, on_event: OnEvent) -> None:
    """Fetch a card's files in a child, so that hashing and unpacking never hold up the agent."""
    revision = card.revision
    last = "the fetching process ended without a word"
    with tempfile.TemporaryDirectory(prefix="mlx-node-") as scratch:
        path = Path(scratch) / "card.json"
        path.write_text(card.model_dump_json(), encoding="utf-8")
        child = await _start_fetch(path, cache, models_dir)
        assert child.stdout is not None
        try:
            async for line in child.stdout:
                said = _parse_line(line)
                if said.get("event") == "progress":
                    done, total = said.get("done_bytes"), said.get("total_bytes")
                    if isinstance(done, int) and isinstance(total, int):
                        on_event(FetchProgressed(revision, done, total))
                elif said.get("event") == "done":
                    last = ""
                    on_event(FetchEnded(revision, Path(str(said.get("folder")))))
                elif said.get("event") == "error":
                    last = str(said.get("message"))
            await child.wait()
        finally:
            _kill_group(child)
    if last:
        log.warning("fetch_failed", card=card.id, reason=last)
        on_event(FetchFailed(revision, last))


async def _start_fetch(card: Path, cache: Path, models_dir: Path | None) -> asyncio.subprocess.Process:
    arguments = ["fetch", "--card", str(card), "--cache", str(cache), "--json"]
    if models_dir is not None:
        arguments += ["--models-dir", str(models_dir)]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "node_agent.models", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        # A group of its own: a conversion that it started ends with it.
        start_new_session=True,
    )


def _kill_group(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def _parse_line(line: bytes) -> dict[str, object]:
    try:
        said = cast("object", json.loads(line))
    except ValueError:
        return {}
    return cast("dict[str, object]", said) if isinstance(said, dict) else {}
