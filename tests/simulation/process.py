"""The coordinator as a simulated process: the real runtime, started, stopped and killed at will.

What differs from production is listed in `substitutes`: the engine and its migration (shared by
all worlds of this operating system process), the lock on the database, the writer without its
thread, the tokenizers, and the thread pool, whose work runs in place after a virtual moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Final, Protocol, TypeVar, final
from unittest.mock import patch

import anyio.to_thread
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from coordinator import clock, runtime
from coordinator.commits import GroupCommit, Write
from coordinator.db import Database, DatabaseBusy, DatabaseFull, DatabaseUnavailable
from coordinator.dispatch import Dispatcher
from coordinator.recovery import recover
from coordinator.runtime import Runtime
from coordinator.settings import Settings
from coordinator.upkeep import SCHEDULE
from ledger import store_sqlite
from tests.simulation.loop import Life, ProcessDied, VirtualLoop
from tests.simulation.model import CATALOGUE, ScriptedTokenizer
from tests.simulation.storage import Storage

T = TypeVar("T")

LOOK: Final = "_read"

CHORE_SECONDS_LEAST: Final = 30.0
CLOSE_RESTART: Final = 1012  # what uvicorn closes sockets with when it ends
DATABASE_ERRORS: Final = (DatabaseBusy, DatabaseFull, DatabaseUnavailable)


class Mishaps(Protocol):
    """What may befall a transaction; each may raise a database error or `ProcessDied`."""

    def on_read(self) -> None:
        """Before it begins."""
        ...

    def before_commit(self) -> None:
        """All statements have run; it is undone if this raises."""
        ...

    def after_commit(self) -> None:
        """It is committed, whatever this raises."""
        ...


@final
class SimulatedDatabase(Database):
    """The real database, where transactions meet mishaps."""

    mishaps: Mishaps
    version = 0

    @contextlib.contextmanager
    def write(self) -> Generator[Session]:
        """As in production."""
        with super().write() as session:
            yield session
            self.mishaps.before_commit()
        SimulatedDatabase.version += 1
        self.mishaps.after_commit()

    @contextlib.contextmanager
    def read(self) -> Generator[Session]:
        """As in production."""
        self.mishaps.on_read()
        with super().read() as session:
            yield session


@final
class SimulatedCommits(GroupCommit):
    """The real group commit without its thread: what has gathered is committed a moment later."""

    draws: Random

    def __init__(self, database: Database) -> None:
        super().__init__(database, has_thread=False)
        self._is_due = False

    def write(self, write: Write[T]) -> T:
        """For what runs in a thread in production: with all that waits, at once."""
        future = self.submit(write)
        self.commit_waiting()
        return future.result()

    async def written(self, write: Write[T]) -> T:
        """For tasks."""
        if not self._is_due:
            self._is_due = True
            _ = asyncio.get_running_loop().call_later(self.draws.uniform(0.0, 0.02), self._commit_due)
        return await super().written(write)

    def _commit_due(self) -> None:
        self._is_due = False
        self.commit_waiting()


class _Unlocked:
    def __init__(self, engine: Any) -> None:
        del engine

    def acquire(self) -> None: ...

    def release(self) -> None: ...


class _ScriptedTokenizers:
    def __init__(self, *_: object, **__: object) -> None: ...

    def get(self, card: object) -> ScriptedTokenizer:
        del card
        return ScriptedTokenizer()

    def close(self) -> None: ...


def _remembered_look(read: Callable[..., Any]) -> Callable[..., Any]:
    """The dispatcher looks each second; while nothing was committed it sees what it saw."""
    seen: dict[str, Any] = {}

    def look(dispatcher: Dispatcher, node_ids: Sequence[str], after: tuple[int, str]) -> Any:
        asked = (SimulatedDatabase.version, tuple(node_ids), after)
        if seen.get("by") is not dispatcher or seen["asked"] != asked:
            seen["answer"] = read(dispatcher, node_ids, after)
            seen["by"], seen["asked"] = dispatcher, asked
        jobs, slots = seen["answer"]
        return list(jobs), dict(slots)

    return look


def _always(answer: Any) -> Callable[[object], Any]:
    return lambda _asked: answer


@contextlib.contextmanager
def substitutes(
    loop: VirtualLoop, storage: Storage, sources: clock.Sources, mishaps: Mishaps, draws: Random
) -> Generator[None]:
    """Everything that stands in a simulated coordinator for something else."""

    async def run_sync(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        await asyncio.sleep(draws.choice((0.0, 0.001, 0.001, 0.03)) * draws.random())
        done = work(*args)
        await asyncio.sleep(draws.choice((0.0, 0.001, 0.03)) * draws.random())
        return done

    SimulatedDatabase.mishaps, SimulatedCommits.draws = mishaps, draws
    SimulatedDatabase.version = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(clock.replaced_by(sources))
        stand_ins: list[tuple[Any, str, Any]] = [
            (anyio.to_thread, "run_sync", run_sync),
            (store_sqlite, "time", SimpleNamespace(time_ns=sources.wall_ns)),
            (runtime, "make_engine", _always(storage.engine)),
            (runtime, "migrate", _always(None)),
            (runtime, "SoleUse", _Unlocked),
            (runtime, "Database", SimulatedDatabase),
            (runtime, "GroupCommit", SimulatedCommits),
            (runtime, "load_catalogue", _always(CATALOGUE)),
            (runtime, "Tokenizers", _ScriptedTokenizers),
            (Dispatcher, LOOK, _remembered_look(getattr(Dispatcher, LOOK))),
        ]
        for place, name, stand_in in stand_ins:
            stack.enter_context(patch.object(place, name, stand_in))
        yield


@final
class Coordinator:
    """One coordinator: what runs now, and how it comes and goes."""

    def __init__(
        self, loop: VirtualLoop, settings: Settings, draws: Random, tell: Callable[[str, object], None]
    ) -> None:
        self._loop: Final = loop
        self._settings: Final = settings
        self._draws: Final = draws
        self._tell: Final = tell
        self._runs = 0
        self._is_stopping = False
        self.life: Life | None = None
        self.runtime: Runtime | None = None
        self.is_serving = False
        self.app: Final = SimpleNamespace(state=SimpleNamespace(runtime=None))
        self.on_gone: Callable[[int], None] = lambda _: None

    def start(self) -> None:
        """Start a process, unless one runs."""
        if self.life is None:
            self._runs += 1
            self.life = Life(f"coordinator {self._runs}")
            _ = self._loop.start(self._boot(self.life), self.life)

    async def _boot(self, life: Life) -> None:
        await asyncio.sleep(self._draws.uniform(0.05, 2.0))
        try:
            self.runtime = Runtime(self._settings)
            await recover(self.runtime)
            await self.runtime.start()
        except DATABASE_ERRORS as error:
            self._tell("coordinator", f"cannot start: {type(error).__name__}")
            _ = self._loop.after(1.0, self.start)
            self._end(life, CLOSE_RESTART)
            return
        self.app.state.runtime = self.runtime
        self.is_serving = True
        self._tell("coordinator", "serves")
        await self._keep_up(self.runtime)

    async def _keep_up(self, runtime: Runtime) -> None:
        due = {chore.name: self._loop.time() + chore.every_seconds for chore in SCHEDULE}
        while True:
            await asyncio.sleep(CHORE_SECONDS_LEAST)
            for chore in SCHEDULE:
                if due[chore.name] <= self._loop.time():
                    due[chore.name] = self._loop.time() + chore.every_seconds
                    with contextlib.suppress(*DATABASE_ERRORS):
                        await run_in_threadpool(chore.run, runtime.database, runtime.settings)

    def crash(self) -> None:
        """Die at once: nothing is cleaned up."""
        if self.life is not None:
            self._tell("coordinator", "dies")
            self._end(self.life, CLOSE_RESTART)

    def crash_inside(self) -> None:
        """Die in the middle of what runs now."""
        self.crash()
        raise ProcessDied

    def _end(self, life: Life, code: int) -> None:
        self._loop.end(life)
        if self.life is life:
            self.life = self.runtime = None
            self.is_serving = self._is_stopping = False
            self.on_gone(code)

    def stop(self) -> None:
        """End in order."""
        if self.life is not None and self.is_serving and self.runtime and not self._is_stopping:
            self._is_stopping = True
            self._tell("coordinator", "stops")
            _ = self._loop.start(self._stop(self.life, self.runtime), self.life)

    async def _stop(self, life: Life, runtime: Runtime) -> None:
        await runtime.drain()
        self.is_serving = False
        self.on_gone(CLOSE_RESTART)
        await runtime.stop()
        self._end(life, CLOSE_RESTART)
