"""The runner child: one model, one continuous batch, JSON lines on stdin and stdout.

    python -m node_agent.runner.worker --model FOLDER [--width 8] [--prefill-step 512]

It loads weights only: tokens come in and tokens go out. It has no network, no secrets and no
names. The main thread loads the model and steps the batch, because MLX's streams belong to the
thread that made them; a second thread reads commands and ends the process when they end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Final, cast

import mlx.core as mx
from pydantic import ValidationError

from node_agent.runner import engine, hygiene
from node_agent.runner.batch import Batch
from node_agent.runner.messages import (
    Alive,
    Limit,
    LoadFailed,
    Loading,
    Ready,
    Run,
    RunFailed,
    Stop,
    to_runner,
)
from node_agent.runner.outbox import Outbox

ALIVE_SECONDS: Final = 1.0
# Runs that were asked for together arrive a fraction of this apart; read together, their prompts
# and tokens cost less.
GATHER_SECONDS: Final = 0.002
GATHER_SECONDS_MAX: Final = 0.01
LOAD_FAILED_EXIT: Final = 3

# What the reading thread hands over; a `RunFailed` is a run that was not even well-formed.
Command = Run | Stop | Limit | RunFailed


def parse_command(line: bytes) -> Command | None:
    """The command of one line; None, and a note on stderr, if not even its key can be read."""
    try:
        return to_runner.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        reason = f"{place or 'line'}: {first['msg']}"
    try:
        key = cast("dict[str, object]", json.loads(line))["key"]
    except (ValueError, KeyError, TypeError):
        key = None
    if isinstance(key, str):
        return RunFailed(key=key, code="request_invalid", message=reason[:300])
    hygiene.note(f"a command was ignored: {reason}")
    return None


def read_commands(descriptor: int, commands: queue.SimpleQueue[Command]) -> None:
    """Read until the agent closes the pipe or dies, then end the process, whatever it is doing."""
    try:
        with os.fdopen(descriptor, "rb") as lines:
            for line in lines:
                command = parse_command(line)
                if command is not None:
                    commands.put(command)
    finally:
        # Not sys.exit: the main thread may be deep in a computation.
        os._exit(0)


class Loop:
    """Steps the batch while it has work, and waits for commands while it has none."""

    def __init__(self, batch: Batch, outbox: Outbox, commands: queue.SimpleQueue[Command]) -> None:
        self._batch, self._outbox, self._commands = batch, outbox, commands
        self._steps = self._rested_steps = 0
        self._alive_at = time.monotonic()
        self._step_seconds = 0.0

    def run_forever(self) -> None:
        while True:
            self._take_commands()
            if len(self._batch):
                self._step()

    def _take_commands(self) -> None:
        if not len(self._batch):
            self._rest()
            self._obey(self._commands.get())
            self._alive_at = time.monotonic()
            self._gather()
        elif self._commands.empty():
            return
        while not self._commands.empty():
            self._obey(self._commands.get())
        # What a command has ended is told before the next step, which may be long.
        self._outbox.settle(time.monotonic(), 0.0)

    def _rest(self) -> None:
        """Give back what the last runs took; what is left is what an idle model costs."""
        self._outbox.flush(time.monotonic())
        mx.clear_cache()
        if self._steps > self._rested_steps:
            self._rested_steps = self._steps
            self._outbox.send(Alive(active_bytes=mx.get_active_memory(), steps=self._steps))
            self._outbox.flush(time.monotonic())

    def _gather(self) -> None:
        """Before the first step: take what comes in the same moment as the first run."""
        until = time.monotonic() + GATHER_SECONDS_MAX
        with contextlib.suppress(queue.Empty):
            while len(self._batch) and time.monotonic() < until:
                self._obey(self._commands.get(timeout=GATHER_SECONDS))

    def _obey(self, command: Command) -> None:
        match command:
            case Run():
                self._batch.add(command)
            case Stop():
                self._batch.stop(command.key)
            case Limit():
                mx.set_memory_limit(command.memory_bytes)
                hygiene.cap_memory(command.memory_bytes)
            case RunFailed():
                self._outbox.failed(command.key, command.code, command.message)

    def _step(self) -> None:
        began = time.monotonic()
        self._batch.step()
        self._steps += 1
        now = time.monotonic()
        if now - self._alive_at >= ALIVE_SECONDS:
            self._alive_at = now
            self._outbox.send(Alive(active_bytes=mx.get_active_memory(), steps=self._steps))
        self._outbox.settle(now, now - began)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; end the process if nobody reads any more."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except BrokenPipeError:
        os._exit(0)


def serve(options: argparse.Namespace, reading: int, writing: int) -> int:
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(reading, commands), daemon=True).start()
    outbox = Outbox(lambda data: write_all(writing, data), options.gather_ms / 1000)

    def report(done_bytes: int, total_bytes: int) -> None:
        outbox.send(Loading(done_bytes=done_bytes, total_bytes=total_bytes))
        outbox.flush(time.monotonic())

    began = time.monotonic()
    mx.set_cache_limit(hygiene.CACHE_BYTES)
    if options.memory_bytes is not None:
        mx.set_memory_limit(options.memory_bytes)
    try:
        model = engine.load(options.model, report)
        engine.warm_up(model)
    except engine.LoadFailedError as error:
        outbox.send(LoadFailed(message=str(error)[:300]))
        outbox.flush(time.monotonic())
        return LOAD_FAILED_EXIT
    mlx_version, mlx_lm_version = engine.versions()
    outbox.send(
        Ready(
            load_seconds=time.monotonic() - began,
            active_bytes=mx.get_active_memory(),
            vocab=model.limits.vocab,
            mlx_version=mlx_version,
            mlx_lm_version=mlx_lm_version,
        )
    )
    batch = Batch(model, outbox, width=options.width, prefill_step=options.prefill_step)
    Loop(batch, outbox, commands).run_forever()
    return 0


def positive(text: str) -> int:
    """A positive whole number, for argparse."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="runner", description="Serve one model over pipes.")
    parser.add_argument("--model", type=Path, required=True, help="an mlx-lm folder")
    parser.add_argument("--width", type=positive, default=8, help="runs decoded together")
    parser.add_argument("--prefill-step", type=positive, default=512, help="prompt tokens a chunk")
    parser.add_argument("--gather-ms", type=float, default=20.0, help="tokens gathered a write")
    parser.add_argument("--memory-bytes", type=positive, default=None, help="private memory at most")
    options = parser.parse_args(arguments)
    hygiene.limit_self(options.memory_bytes)
    hygiene.die_with_parent()
    if not hygiene.leave_network():
        hygiene.note("this system does not let a process give up its network")
    reading, writing = hygiene.claim_pipes()
    return serve(options, reading, writing)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # The reading thread waits in a read that only the agent can end.
    os._exit(status)
