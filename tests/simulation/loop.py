"""An event loop whose time is virtual: where others wait, its clock jumps.

One thread, no sockets. Tasks and futures are hashed by the order in which they were made, not by
their address, so that a set of them is walked in the same order in every run. A `Life` is one run
of a simulated process: once it is over, nothing that it had begun goes on, and none of its
clean-up runs, as after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar, cast, final

T = TypeVar("T")

START_SECONDS: Final = 1000.0
STEPS_MAX: Final = 400_000  # a seed takes some thousand


class StuckError(RuntimeError):
    """Everybody waits and no timer runs, or nobody ever stops."""


@final
class Life:
    """One run of one simulated process."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.is_over = False
        self.context: Final = contextvars.Context()
        self.context.run(_life.set, self)


_life: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)
_numbers: Final = itertools.count(1)


@final
class _Future(asyncio.Future[Any]):
    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = next(_numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


@final
class _Task(asyncio.Task[Any]):
    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._number = next(_numbers)
        super().__init__(coro, loop=loop, context=context)
        # Those of a process that died stay pending for ever; that is no mistake.
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._number


@final
class _Timer(asyncio.TimerHandle):
    """Of two that are due at the same time the one that was made first goes first."""

    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: Any) -> None:
        super().__init__(when, callback, args, loop, context)
        self._number = next(_numbers)

    def __lt__(self, other: Any) -> bool:
        return (self._when, self._number) < (other._when, other._number)


@final
class _Jump:
    """Stands where a loop has its selector: instead of waiting it moves the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise StuckError("everybody waits and no timer runs")
        self._loop.jump(timeout)
        return []


@final
class VirtualLoop(BaseEventLoop):
    """Time starts at 1000 s and passes only when nothing is left to do."""

    def __init__(self) -> None:
        super().__init__()
        self._now = START_SECONDS
        self._steps = 0
        self._selector = _Jump(self)
        self._outside: Final = contextvars.Context()
        self._tasks: Final[list[_Task]] = []
        self.set_task_factory(cast("Any", self._make_task))
        self.set_exception_handler(self._on_fault)
        self._faults: Final[list[str]] = []

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Move the clock on. Raises `StuckError` in a world that never comes to rest."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise StuckError(f"no end after {STEPS_MAX} steps")
        self._now += seconds

    def after(self, seconds: float, call: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """Call later, on nobody's behalf: it happens whichever process dies."""
        return self.call_at(self._now + seconds, call, *args, context=self._outside)

    def start(self, work: Coroutine[Any, Any, T], life: Life | None = None) -> asyncio.Task[T]:
        """A task of that process; without one, of the world outside."""
        context = life.context if life is not None else self._outside
        return self.create_task(work, context=context.copy())

    def end(self, life: Life) -> None:
        """The process dies here and now."""
        life.is_over = True
        # Both queues are the base class's own; it has no other way to look through them.
        for queue in (self._ready, self._scheduled):  # type: ignore[attr-defined]
            for handle in cast("Any", queue):
                if handle._context.get(_life) is life:
                    handle.cancel()

    # -- what the base class calls ---------------------------------------------------------------

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any],
        context: contextvars.Context | None = None,
    ) -> _Task:
        task = _Task(coro, loop=loop, context=context)
        self._tasks.append(task)
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if _is_dead(context):
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        if not _is_dead(context):
            heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
            timer._scheduled = True
        return timer

    def _process_events(self, event_list: list[Any]) -> None:  # pyright: ignore[reportUnusedFunction]
        del event_list

    def _write_to_self(self) -> None:  # pyright: ignore[reportUnusedFunction]
        pass

    def _on_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, ProcessDied):
            self._faults.append(f"{context.get('message')}: {type(error).__name__}: {error}")

    def take_faults(self) -> list[str]:
        """What went wrong in callbacks and tasks since the last time."""
        found, self._faults[:] = list(self._faults), []
        left: list[_Task] = []
        for task in self._tasks:
            if not task.done():
                left.append(task)
            elif not task.cancelled() and task._log_traceback:
                error = task.exception()
                if not isinstance(error, ProcessDied):
                    found.append(f"{task.get_name()}: {type(error).__name__}: {error}")
        self._tasks[:] = left
        return found

    def discard(self) -> None:
        """Close what is left of all tasks, so that the next world starts clean."""
        for task in self._tasks:
            if not task.done():
                with contextlib.suppress(BaseException):
                    cast("Coroutine[Any, Any, Any]", task.get_coro()).close()
        self._tasks.clear()
        self.close()


class ProcessDied(BaseException):
    """Unwinds the code of a process that has just died; nothing of it may go on."""


def _is_dead(context: contextvars.Context | None) -> bool:
    life = _life.get() if context is None else context.get(_life)
    return life is not None and life.is_over


@contextlib.contextmanager
def running(loop: VirtualLoop) -> Generator[None]:
    """Make the loop the thread's own while the block runs, and discard it after."""
    try:
        yield
    finally:
        loop.discard()
