"""Chat templates run in processes of their own, under limits of time, memory and output.

A template comes with a model, so it is a stranger's program: it runs in Jinja's sandbox, in a
child that has no secrets in its environment and may write no file, and that is killed and
replaced when it overruns. This one file is both sides: `TemplateWorkers` in the parent; run as a
script it is the child, which reads and writes one JSON object a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any, Final, cast, final

from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEXT_CHARACTERS_MAX: Final = 16 << 20
TEMPLATES_KEPT: Final = 32
READ_BYTES: Final = 1 << 16
WAIT_FOR_WORKER_FACTOR: Final = 5


class TemplateError(Exception):
    """The template could not be rendered; the text never quotes a message."""


class TemplateRefusedError(TemplateError):
    """The template itself refused the messages (`raise_exception`): the caller's to mend."""


class TemplateBusyError(TemplateError):
    """No worker came free in time."""


# -- parent --------------------------------------------------------------------------------------


@final
class TemplateWorkers:
    """A few long-lived children that render templates, one at a time each. Thread safe."""

    def __init__(
        self, *, limit_seconds: float = 2.0, memory_bytes: int = 512 << 20, workers: int = 2
    ) -> None:
        """`limit_seconds` bounds one rendering; children start when first needed."""
        self._limit_seconds: Final = limit_seconds
        self._memory_bytes: Final = memory_bytes
        self._free: Final[queue.LifoQueue[_Child | None]] = queue.LifoQueue()
        self._lock: Final = threading.Lock()
        self._children: Final[set[_Child]] = set()
        self._closed = False
        for _ in range(workers):
            self._free.put(None)

    def render(self, template: str, variables: Mapping[str, object]) -> str:
        """Render `template` with JSON-like `variables`.

        Raises `TemplateRefusedError` when the template says no, `TemplateError` when it is
        broken, overruns, or its child dies (which is replaced), `TemplateBusyError` when all
        children stay taken.
        """
        line = json.dumps({"template": template, "variables": variables}).encode("ascii") + b"\n"
        try:
            child = self._free.get(timeout=self._limit_seconds * WAIT_FOR_WORKER_FACTOR)
        except queue.Empty:
            raise TemplateBusyError("every template worker is busy") from None
        try:
            if child is None:
                child = self._start()
            answer = child.exchange(line, self._limit_seconds)
        except BaseException:
            if child is not None:
                self._end(child)
            child = None
            raise
        finally:
            self._free.put(child)
        return _text_of(answer)

    def pids(self) -> list[int]:
        """Process ids of the children there are."""
        with self._lock:
            return [child.pid for child in self._children]

    def close(self) -> None:
        """End every child. Renderings under way fail, and so do later ones."""
        with self._lock:
            self._closed = True
            # Pipes in use are closed by their user, who sees the child's end.
            for child in self._children:
                child.terminate()
        idle: list[_Child | None] = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._free.get_nowait())
        for child in idle:
            if child is not None:
                self._end(child)
            self._free.put(None)

    def _start(self) -> _Child:
        child = _Child(self._memory_bytes)
        with self._lock:
            if not self._closed:
                self._children.add(child)
                return child
        child.kill()
        raise TemplateError("the template workers are closed")

    def _end(self, child: _Child) -> None:
        with self._lock:
            self._children.discard(child)
        child.kill()


def _text_of(answer: Mapping[str, object]) -> str:
    text = answer.get("text")
    if isinstance(text, str):
        return text
    if "refused" in answer:
        raise TemplateRefusedError(str(answer["refused"]))
    raise TemplateError(f"the chat template failed ({answer.get('failed', 'no reason')})")


@final
class _Child:
    """One child process. Not for several threads at once."""

    def __init__(self, memory_bytes: int) -> None:
        # -I keeps environment and working directory out; the file needs jinja2 and no more.
        self._process: Final = subprocess.Popen(
            [sys.executable, "-I", __file__, str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin: Final[IO[bytes]] = self._process.stdin
        self._stdout: Final[IO[bytes]] = self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        self._is_warm = False

    def exchange(self, line: bytes, limit_seconds: float) -> Mapping[str, object]:
        """Send a line, get a line. Raises `TemplateError` on overrun and on a dead child, which
        must then be killed.
        """
        if not self._is_warm:
            # Starting Python is not the template's fault, so it has its own, longer limit.
            _ = self._await_line(b"", time.monotonic() + 10 * limit_seconds + 10)
            self._is_warm = True
        answer = self._await_line(line, time.monotonic() + limit_seconds)
        return cast("Mapping[str, object]", json.loads(answer))

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def terminate(self) -> None:
        """End the process alone; whoever talks to it sees its end."""
        self._process.kill()

    def kill(self) -> None:
        """End the process and close its pipes."""
        self._process.kill()
        with contextlib.suppress(OSError):
            self._stdin.close()
        _ = self._process.wait()
        self._stdout.close()

    def _await_line(self, out: bytes, deadline: float) -> bytes:
        poll = select.poll()
        stdin, stdout = self._stdin.fileno(), self._stdout.fileno()
        poll.register(stdout, select.POLLIN)
        if out:
            poll.register(stdin, select.POLLOUT)
        rest, parts = memoryview(out), bytearray()
        while True:
            left_ms = (deadline - time.monotonic()) * 1000
            events = poll.poll(left_ms) if left_ms > 0 else []
            if not events:
                raise TemplateError("the chat template ran over its time limit")
            for descriptor, _ in events:
                if descriptor == stdin:
                    rest = rest[self._write(rest) :]
                    if not rest:
                        poll.unregister(stdin)
                else:
                    parts += self._read()
            if parts.endswith(b"\n"):
                return bytes(parts)

    def _write(self, rest: memoryview) -> int:
        try:
            return os.write(self._stdin.fileno(), rest[:READ_BYTES])
        except BlockingIOError:
            return 0
        except OSError:
            raise TemplateError("the template worker died") from None

    def _read(self) -> bytes:
        part = os.read(self._stdout.fileno(), READ_BYTES)
        if not part:
            raise TemplateError("the chat template ended its worker, perhaps for want of memory")
        return part


# -- child ---------------------------------------------------------------------------------------


def _child_main(memory_bytes: int) -> None:
    environment = template_environment()
    limit_this_process(memory_bytes)
    compiled: dict[str, Any] = {}
    write = sys.stdout.buffer
    _ = write.write(b"{}\n")
    write.flush()
    for line in sys.stdin.buffer:
        answer = json.dumps(_answer(environment, compiled, line)).encode("ascii")
        _ = write.write(answer + b"\n")
        write.flush()


def _answer(environment: Any, compiled: dict[str, Any], line: bytes) -> dict[str, str]:
    request = json.loads(line)
    source: str = request["template"]
    try:
        template = compiled.get(source)
        if template is None:
            if len(compiled) >= TEMPLATES_KEPT:
                compiled.clear()
            template = compiled[source] = environment.from_string(source)
        text: str = template.render(**request["variables"])
    except _RefusedByTemplateError as refusal:
        # Only words of the template's own: an interpolated message could quote the prompt.
        why = str(refusal)[:200]
        return {"refused": why if why in source else "they do not fit its rules"}
    except Exception as error:  # noqa: BLE001
        # A template may raise whatever Python can; its text could quote a message.
        return {"failed": type(error).__name__}
    if len(text) > TEXT_CHARACTERS_MAX:
        return {"failed": "its text is too long"}
    return {"text": text}


class _RefusedByTemplateError(Exception):
    pass


def template_environment() -> Any:
    """Jinja as chat templates expect it: trimmed blocks, loop controls, `tojson` without HTML
    escapes, `raise_exception`, `strftime_now`, and `generation` blocks taken as their content.
    """
    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(Extension):
    tags = {"generation"}  # noqa: RUF012  # Declared so by the base class.

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise _RefusedByTemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return time.strftime(pattern)


def limit_this_process(memory_bytes: int) -> None:
    """Bound this process's memory, and forbid it to write files.

    macOS does not enforce RLIMIT_AS; there a thread watches the peak and ends the process.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "darwin":
        threading.Thread(target=_watch_memory, args=(memory_bytes,), daemon=True).start()
    else:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _watch_memory(memory_bytes: int) -> None:
    import resource

    while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < memory_bytes:
        time.sleep(0.02)
    os._exit(1)


if __name__ == "__main__":
    _child_main(int(sys.argv[1]))
