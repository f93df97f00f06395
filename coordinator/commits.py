"""Group commit: writes that come at the same time share one transaction.

A durable commit costs the same for one job as for a hundred. On the two hot paths, submit and
end, each request hands in a `Write`; a thread runs what has gathered as one transaction and
answers each by value. There is no timer: batches grow by themselves under load.

On PostgreSQL there are two such threads. They take turns at deciding, and one decides while the
other waits for its commit. The ledger's chain row keeps their order; a batch that fails takes
nothing from the one behind it, which reads only when that row is free.

A `Write` reads what it needs under lock, refuses by raising `Refused` *before it changes
anything*, and returns its value with the ledger commands that belong to it. The commands of all
writes go to the ledger together and last, since its chain row is held from there to the commit.
Anything else that goes wrong (a constraint, a command that the ledger rejects) undoes the batch,
and its writes run again one by one, so that only the one at fault fails; all fail if the database
was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from coordinator.db import Database, DatabaseUnavailable
from ledger import book
from ledger.commands import Applied, Command, Outcome, Rejected

log = structlog.get_logger()

T = TypeVar("T")

WRITES_MAX: Final = 200  # a batch stays well under a tenth of a second
THREADS: Final = 2  # on PostgreSQL
STOP_SECONDS_MAX: Final = 30.0


class Refused(Exception):
    """A write that changed nothing and will not; `error` is what its caller gets."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error: Final = error


class LedgerRefusedError(RuntimeError):
    """The ledger rejected a command of this write; nothing of the write was kept."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(str(outcome))
        self.outcome: Final = outcome


OnRefusal = Callable[[Session], None]
"""What to write if the ledger refuses a command; in the same transaction, behind the ledger."""


@dataclass(frozen=True)
class Written(Generic[T]):
    """What a write comes to, and the ledger commands that commit with it.

    A command in `refusable`, by its id, may be refused for want of money without undoing the rest.
    """

    value: T
    commands: tuple[Command, ...] = ()
    refusable: Mapping[UUID, OnRefusal] = field(default_factory=dict[UUID, OnRefusal])


Write = Callable[[Session], Written[T]]


class _ThreadAnswer:
    """The answer of one write, for a thread that waits."""

    def __init__(self) -> None:
        self.future: Final[Future[Any]] = Future()

    def give(self, result: Any) -> None:
        """The value, or the error. Does nothing if nobody waits any more."""
        if self.future.set_running_or_notify_cancel():
            _give(self.future, result)


class _LoopAnswer:
    """The answer of one write, for a task that waits; `give` is called in its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self.future: Final[asyncio.Future[Any]] = loop.create_future()

    def give(self, result: Any) -> None:
        """The value, or the error. Does nothing if nobody waits any more."""
        if not self.future.done():
            _give(self.future, result)


def _give(future: Future[Any] | asyncio.Future[Any], result: Any) -> None:
    if isinstance(result, _Failed):
        future.set_exception(result.error)
    else:
        future.set_result(result)


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


@dataclass(frozen=True, slots=True)
class _Waiting:
    write: Write[Any]
    answer: _ThreadAnswer | _LoopAnswer


class _Turn:
    """The right to gather and decide, of one thread at a time. Waits for it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock: Final = lock
        self._is_over = False
        lock.acquire()

    def end(self) -> None:
        """Let the other thread begin; does nothing the second time."""
        if not self._is_over:
            self._is_over = True
            self._lock.release()


class GroupCommit:
    """The writer threads of one process. Thread safe.

    Without a thread (simulation) `commit_waiting` does its work.
    """

    def __init__(self, database: Database, *, writes_max: int = WRITES_MAX, has_thread: bool = True) -> None:
        self._database: Final = database
        self._writes_max: Final = writes_max
        self._waiting: Final[queue.SimpleQueue[_Waiting | None]] = queue.SimpleQueue()
        self._lock: Final = threading.Lock()
        self._is_stopped = False
        self._gathering: Final = threading.Lock()
        self._turn: Final = threading.Lock()
        self.batches = 0
        self.writes = 0
        # SQLite has one writer at a time; a second thread would only wait for its file.
        count = THREADS if database.engine.dialect.name == "postgresql" else 1
        self._threads: Final = [
            threading.Thread(target=self._run, name=f"commits-{number}", daemon=True)
            for number in range(count if has_thread else 0)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, write: Write[T]) -> Future[T]:
        """Hand in a write. The future ends after the commit, with the value, with the error of a
        `Refused`, or with what went wrong. Raises `RuntimeError` after `stop`."""
        answer = _ThreadAnswer()
        self._hand_in(_Waiting(write, answer))
        return answer.future

    def _hand_in(self, waiting: _Waiting) -> None:
        with self._lock:
            if self._is_stopped:
                raise RuntimeError("the writer has stopped")
            self._waiting.put(waiting)

    def write(self, write: Write[T]) -> T:
        """`submit`, and wait. Blocking."""
        return self.submit(write).result()

    async def written(self, write: Write[T]) -> T:
        """`submit`, and wait in an event loop, which is woken once for all answers of a batch.

        A waiter that is cancelled does not take its write back.
        """
        answer = _LoopAnswer(asyncio.get_running_loop())
        self._hand_in(_Waiting(write, answer))
        return await answer.future

    def stop(self) -> None:
        """Commit what was handed in, then end. Blocking."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._waiting.put(None)
        for thread in self._threads:
            thread.join(STOP_SECONDS_MAX)

    # -- the threads -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._gathering:
                first = self._waiting.get()
                if first is None:
                    # The other thread ends by it, too.
                    self._waiting.put(None)
                    return
                turn = _Turn(self._turn)
                batch = self._gather(first)
            self._commit(batch, turn)

    def commit_waiting(self) -> None:
        """Commit what was handed in, in batches, here and now. Blocking."""
        while True:
            try:
                first = self._waiting.get_nowait()
            except queue.Empty:
                return
            if first is not None:
                self._commit(self._gather(first), _Turn(self._turn))

    def _gather(self, first: _Waiting) -> list[_Waiting]:
        """What waits already."""
        batch = [first]
        while len(batch) < self._writes_max:
            try:
                following = self._waiting.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._waiting.put(None)
                break
            batch.append(following)
        return batch

    def _commit(self, batch: Sequence[_Waiting], turn: _Turn) -> None:
        self.batches += 1
        self.writes += len(batch)
        try:
            results = self._try(batch, turn)
        except Exception as error:  # noqa: BLE001
            turn.end()
            # Nobody knows whether a lost database has committed: a second try could do all twice.
            if len(batch) == 1 or isinstance(error, DatabaseUnavailable):
                _answer([(waiting.answer, _Failed(error)) for waiting in batch])
                return
            log.info("batch_undone", writes=len(batch), error=type(error).__name__)
            for waiting in batch:
                self._commit([waiting], _Turn(self._turn))
            return
        _answer([(waiting.answer, result) for waiting, result in zip(batch, results, strict=True)])

    def _try(self, batch: Sequence[_Waiting], turn: _Turn) -> list[Any]:
        """One transaction for the whole batch: a value or `_Failed` for each write. Ends the turn
        when nothing is left but to commit. Raises whatever undoes the batch."""
        results: list[Any] = []
        commands: list[Command] = []
        refusable: dict[UUID, OnRefusal] = {}
        with self._database.write() as session:
            for waiting in batch:
                try:
                    written = waiting.write(session)
                except Refused as refusal:
                    results.append(_Failed(refusal.error))
                    continue
                results.append(written.value)
                commands.extend(written.commands)
                refusable.update(written.refusable)
            session.flush()
            if commands:
                with book.journeys(session.connection()) as commit:
                    refused = _hand_over(session, commands, refusable)
                    if not refused:
                        turn.end()
                        commit()
                for on_refusal in refused:
                    on_refusal(session)
                    session.flush()
            turn.end()
        return results


def _hand_over(
    session: Session, commands: Sequence[Command], refusable: Mapping[UUID, OnRefusal]
) -> list[OnRefusal]:
    """Let the ledger carry out the commands; what is to be written about those that it refused and
    may refuse. Raises `LedgerRefusedError` for any other that it refused."""
    refused: list[OnRefusal] = []
    for start in range(0, len(commands), book.MAX_COMMANDS):
        for outcome in book.apply(session.connection(), commands[start : start + book.MAX_COMMANDS]):
            if isinstance(outcome, Rejected) and outcome.id in refusable:
                refused.append(refusable[outcome.id])
            elif not isinstance(outcome, Applied):
                raise LedgerRefusedError(outcome)
    return refused


def _answer(results: Sequence[tuple[_ThreadAnswer | _LoopAnswer, Any]]) -> None:
    """Give each its result; an event loop is woken once, since each time is a system call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_LoopAnswer, Any]]] = {}
    for answer, result in results:
        if isinstance(answer, _LoopAnswer):
            by_loop.setdefault(answer.loop, []).append((answer, result))
        else:
            answer.give(result)
    for loop, of_loop in by_loop.items():
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_give_all, of_loop)


def _give_all(results: Sequence[tuple[_LoopAnswer, Any]]) -> None:
    for answer, result in results:
        answer.give(result)
