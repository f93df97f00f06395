"""The agent's side of a runner child: start it, feed it, hear it, and notice when it dies or hangs.

No mlx here. The child's death ends its runs with `runner_crashed`; a generation loop that has
work but says nothing for too long is killed and its runs end with `runner_stalled`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, Literal

from node_agent.protocol.messages import FailureCode
from node_agent.runner.environment import runner_environment
from node_agent.runner.messages import (
    Alive,
    Ended,
    FromRunner,
    Limit,
    LoadFailed,
    Loading,
    Prefilled,
    Ready,
    Run,
    RunFailed,
    RunnerMessage,
    Stop,
    Tokens,
    encode_line,
    from_runner,
)

READ_BYTES: Final = 1 << 16
# No honest line is near this: a gathered line of tokens is some kilobytes.
LINE_BYTES_MAX: Final = 8 << 20
STDERR_TAIL_BYTES: Final = 4096
CLOSE_SECONDS: Final = 2.0


class RunnerStartError(RuntimeError):
    """The child did not become ready; the text says why."""


class RunnerGoneError(RuntimeError):
    """A run was given to a child that is not there any more, or not ready."""


class Gone(RunnerMessage):
    """The last event: the child is no more. Its live runs have been failed before this."""

    type: Literal["gone"] = "gone"
    reason: Literal["closed", "crashed", "stalled"]
    message: str


RunnerEvent = Prefilled | Tokens | Ended | RunFailed | Alive | Gone
Reason = Literal["closed", "crashed", "stalled"]

_FAILURES: Final[dict[Reason, FailureCode]] = {
    "closed": "runner_crashed",
    "crashed": "runner_crashed",
    "stalled": "runner_stalled",
}


def describe_exit(returncode: int) -> str:
    """An exit status in words, the signal named."""
    if returncode >= 0:
        return f"exited with status {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


class RunnerProcess:
    """One child with one model. Use from one event loop; `start` once, `close` always."""

    def __init__(
        self,
        *,
        accelerated: bool,
        width: int = 8,
        prefill_step: int = 512,
        gather_ms: float = 20.0,
        memory_bytes: int | None = None,
        stall_seconds: float = 60.0,
        load_stall_seconds: float = 300.0,
    ) -> None:
        """`memory_bytes` bounds the child's private memory for good.

        `stall_seconds` must exceed the longest step, a prompt chunk of `prefill_step` tokens.

        `load_stall_seconds` bounds the time between two signs of progress while loading.
        """
        self._arguments = ["--width", str(width), "--prefill-step", str(prefill_step)]
        self._arguments += ["--gather-ms", str(gather_ms)]
        if memory_bytes is not None:
            self._arguments += ["--memory-bytes", str(memory_bytes)]
        self._accelerated = accelerated
        self._stall_seconds = stall_seconds
        self._load_stall_seconds = load_stall_seconds
        self._events: asyncio.Queue[RunnerEvent] = asyncio.Queue()
        self._live: set[str] = set()
        self._child: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: asyncio.Future[Ready] | None = None
        self._on_loading: Callable[[Loading], None] | None = None
        self._silent_seconds = 0.0
        self._end: Reason | None = None
        self._over = False
        self._stderr = bytearray()

    @property
    def live(self) -> frozenset[str]:
        """Keys of the runs that have not ended."""
        return frozenset(self._live)

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def stderr_tail(self) -> str:
        """The last of what the child wrote to stderr; it never holds prompts or answers."""
        return self._stderr.decode(errors="replace")

    async def start(self, folder: Path, on_loading: Callable[[Loading], None] | None = None) -> Ready:
        """Start the child on an mlx-lm folder and wait until it has made a token.

        Raises `RunnerStartError` if the folder is refused, or the child dies or makes no
        progress; the child is then gone.
        """
        if self._child is not None:
            raise RuntimeError("start: this runner was already started")
        self._on_loading = on_loading
        self._ready = asyncio.get_running_loop().create_future()
        self._child = await asyncio.create_subprocess_exec(
            *self._command(folder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=runner_environment(os.environ, accelerated=self._accelerated),
            cwd="/",
            # The terminal's Ctrl-C is for the agent, which then closes this child.
            start_new_session=True,
        )
        work = (self._read(self._child), self._read_stderr(self._child), self._watch(self._child))
        self._tasks = [asyncio.create_task(part) for part in work]
        try:
            return await self._ready
        except BaseException:
            await self.close()
            raise

    def _command(self, folder: Path) -> list[str]:
        # -P: nothing is imported from the working folder.
        module = [sys.executable, "-P", "-m", "node_agent.runner.worker"]
        return [*module, "--model", str(folder.resolve()), *self._arguments]

    async def run(self, run: Run) -> None:
        """Give the child a run. Raises `RunnerGoneError`, or `ValueError` if its key is live."""
        if run.key in self._live:
            raise ValueError("run: this key is already live")
        if self._over or self._ready is None or not self._ready.done():
            raise RunnerGoneError("run: the runner is not ready or has gone")
        if not self._live:
            self._silent_seconds = 0.0
        self._live.add(run.key)
        await self._send(run)

    async def stop(self, key: str) -> None:
        """Ask for a run's end between two tokens; `Ended` (cancelled) follows if it was live."""
        if key in self._live:
            await self._send(Stop(key=key))

    async def limit(self, limit: Limit) -> None:
        """Tell the child what it may hold from now on, within the `memory_bytes` it began with."""
        await self._send(limit)

    async def events(self) -> AsyncIterator[RunnerEvent]:
        """What the child says, in order, up to and with `Gone`. For one consumer."""
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, Gone):
                return

    async def close(self) -> None:
        """End the child, at once if it is generating; live runs are failed. May be repeated."""
        if self._child is None:
            return
        self._end = self._end or "closed"
        if self._child.stdin is not None:
            self._child.stdin.close()
        await self._wait_or_kill(self._child)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait_or_kill(self, child: asyncio.subprocess.Process) -> int:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                return await child.wait()
        except TimeoutError:
            self._kill(child)
        return await child.wait()

    def _kill(self, child: asyncio.subprocess.Process) -> None:
        # Not child.kill(): it polls, and so takes the exit status from asyncio's own watcher.
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    async def _send(self, message: RunnerMessage) -> None:
        if self._child is None or self._child.stdin is None:
            raise RunnerGoneError("the runner has gone")
        # A broken pipe is not an error here: the reader sees the child's end and fails its runs.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._child.stdin.write(encode_line(message))
            await self._child.stdin.drain()

    async def _read(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        rest = b""
        try:
            while data := await child.stdout.read(READ_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                self._silent_seconds = 0.0
                # A line without end is cut off, and so does not parse.
                if len(rest) > LINE_BYTES_MAX:
                    lines.append(rest)
                for line in lines:
                    self._hear(from_runner.validate_json(line))
        except ValueError:
            # Both ends are one build: such a line means that the child's memory is corrupt.
            self._stderr += b"\nrunner process: an unreadable line, killed\n"
            self._kill(child)
        finally:
            self._finish(await self._wait_or_kill(child))

    def _hear(self, message: FromRunner) -> None:
        match message:
            case Tokens() | Prefilled() | Alive():
                self._events.put_nowait(message)
            case Ended() | RunFailed():
                self._live.discard(message.key)
                self._events.put_nowait(message)
            case Loading():
                if self._on_loading is not None:
                    self._on_loading(message)
            case Ready():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message)
            case LoadFailed():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_exception(RunnerStartError(message.message))

    def _finish(self, returncode: int) -> None:
        reason: Reason = self._end or "crashed"
        how = describe_exit(returncode)
        words = {
            "closed": "the runner was closed",
            "crashed": f"the runner {how}",
            "stalled": f"the runner made no progress for {self._stall_seconds:g} s and was killed",
        }
        self._over = True
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(RunnerStartError(words[reason]))
        for key in sorted(self._live):
            failed = RunFailed(key=key, code=_FAILURES[reason], message=words[reason])
            self._events.put_nowait(failed)
        self._live.clear()
        self._events.put_nowait(Gone(reason=reason, message=words[reason]))

    async def _read_stderr(self, child: asyncio.subprocess.Process) -> None:
        assert child.stderr is not None
        while data := await child.stderr.read(READ_BYTES):
            self._stderr += data
            del self._stderr[:-STDERR_TAIL_BYTES]

    async def _watch(self, child: asyncio.subprocess.Process) -> None:
        """Count silence while there is work, in ticks: a stop of the agent itself counts little."""
        tick_seconds = min(1.0, self._stall_seconds / 10, self._load_stall_seconds / 10)
        while child.returncode is None and not self._over:
            began = time.monotonic()
            await asyncio.sleep(tick_seconds)
            loading = self._ready is not None and not self._ready.done()
            if not loading and not self._live:
                self._silent_seconds = 0.0
                continue
            self._silent_seconds += min(time.monotonic() - began, 2 * tick_seconds)
            limit_seconds = self._load_stall_seconds if loading else self._stall_seconds
            if self._silent_seconds > limit_seconds:
                self._end = self._end or "stalled"
                self._kill(child)
                return
