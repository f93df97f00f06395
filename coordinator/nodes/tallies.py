"""What each Mac was asked for: jobs seen, taken, and every reason why not, by hour.

An observer of the dispatcher. A job is counted once for every Mac that it was decided over: by its
first decision, and by the one that placed it for the Mac that got it. So taken and the reasons
together are always what was seen. A job that waited into another hour, or whose attempt was lost,
is seen again by the Mac that takes it.

In memory only: it begins anew when the coordinator starts. Hosts are columns of arrays in the
current hour (200 bytes each); a past hour keeps only what is not zero. Thread safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from coordinator import clock
from coordinator.placement.fleet import Fleet, tie_of
from coordinator.placement.match import Decision, decide
from coordinator.placement.queue import Entry
from coordinator.placement.reject import CODES, REASONS, RejectReason
from coordinator.placement.types import JobFacts, NotPlaced, Placed
from node_agent.sizing import memory

GIB: Final = 1 << 30
HOUR_US: Final = 3_600_000_000
HOURS: Final = 24
# How much more a Mac would have to lend: up to so many GiB, and what is beyond the last.
LEND_STEPS_GIB: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TAKEN: Final = 0
SHORT: Final = len(REASONS) + 1  # the first column of memory that lacks
COLUMNS: Final = SHORT + len(LEND_STEPS_GIB) + 1
JOBS_MAX: Final = 65_536  # remembered as counted; older ones count anew
CODES_BYTES_MAX: Final = 64 << 20  # of waiting jobs' first decisions

_STEPS: Final = np.asarray([step * GIB for step in LEND_STEPS_GIB], dtype=np.int64)


@dataclass(frozen=True)
class Tally:
    """One Mac in one hour (or more). `short` are jobs that lacked memory, by the step of
    `LEND_STEPS_GIB` that would have been enough, and last those for which none would."""

    start_us: int
    taken: int
    rejected: dict[RejectReason, int]
    short: tuple[int, ...]

    @property
    def seen(self) -> int:
        """Jobs that the Mac was looked at for."""
        return self.taken + sum(self.rejected.values())


def tally_of(start_us: int, counts: NDArray[np.int64]) -> Tally:
    """A column of counts with their names."""
    found: dict[RejectReason, int] = {
        reason: int(counts[code]) for reason, code in CODES.items() if counts[code]
    }
    return Tally(start_us, int(counts[TAKEN]), found, tuple(int(count) for count in counts[SHORT:]))


@dataclass(frozen=True)
class _Hour:
    """What is not zero of an hour, column after column: numbers of hosts and their counts. `ties` are
    the hosts' ids, hashed; the same host may stand there more than once."""

    hour: int
    ties: NDArray[np.uint64]
    starts: NDArray[np.int64]
    hosts: NDArray[np.int32]
    counts: NDArray[np.unsignedinteger]

    def of(self, tie: int) -> NDArray[np.int64]:
        """All columns of one host."""
        found = np.zeros(COLUMNS, dtype=np.int64)
        for host in np.flatnonzero(self.ties == np.uint64(tie)):
            at = np.flatnonzero(self.hosts == host)
            found[np.searchsorted(self.starts, at, "right") - 1] += self.counts[at]
        return found

    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.ties.nbytes + self.starts.nbytes + self.hosts.nbytes + self.counts.nbytes


def _packed(hour: int, ties: NDArray[np.uint64], counts: NDArray[np.uint32]) -> _Hour:
    """`counts` by column and host, without its zeros. Some milliseconds for 100,000 hosts."""
    hosts = [np.flatnonzero(column) for column in counts]
    values = np.concatenate([column[at] for column, at in zip(counts, hosts, strict=True)])
    starts = np.cumsum([0, *(len(at) for at in hosts[:-1])])
    is_small = not len(values) or int(values.max()) <= np.iinfo(np.uint16).max
    kind = np.uint16 if is_small else np.uint32
    return _Hour(hour, ties, starts, np.concatenate(hosts).astype(np.int32), values.astype(kind))


@dataclass(frozen=True)
class _First:
    """A waiting job's first decision: when it was counted, and the reasons by row."""

    hour: int
    number: int
    codes: NDArray[np.uint8]


@final
class Tallies:
    """Counts of the last 24 hours and the one that runs."""

    def __init__(self, wall_us: Callable[[], int] = clock.wall_us) -> None:
        self._wall_us: Final = wall_us
        self._lock: Final = threading.Lock()
        self.since_us: Final = wall_us()
        self._hour = self.since_us // HOUR_US
        self._past: Final[deque[_Hour]] = deque(maxlen=HOURS)
        self._number = 0  # of observations
        # By row of the fleet: the hash of the host's id, since which observation it is there, counts.
        self._ties: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self._since: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._counts: NDArray[np.uint32] = np.zeros((COLUMNS, 0), dtype=np.uint32)
        self._left: Final[dict[int, NDArray[np.uint32]]] = {}
        self._seen: Final[OrderedDict[str, _First | None]] = OrderedDict()
        self._codes_bytes = 0

    def __call__(self, entry: Entry, fleet: Fleet) -> None:
        """Count one decision. Raises nothing that the arguments do not."""
        with self._lock:
            self._roll()
            self._follow(fleet)
            choice, job_id = entry.decision.choice, entry.job.job_id
            if job_id not in self._seen:
                self._count(entry.job, entry.decision, fleet)
                self._remember(job_id, entry.decision if isinstance(choice, NotPlaced) else None)
            elif isinstance(choice, Placed):
                self._take(job_id, entry.decision.row)

    def count_refused(self, job: JobFacts, fleet: Fleet) -> None:
        """Count a job that was refused at the door since no host could ever run it: once for each
        submitter, model and size in GiB, however often it is sent."""
        size = memory.needed_bytes(job.card, context_tokens=max(job.tokens, 1), width=1) // GIB
        key = f"refused {job.submitter_id} {job.card.id} {size}"
        with self._lock:
            self._roll()
            self._follow(fleet)
            if key not in self._seen:
                self._count(job, decide(job, fleet), fleet)
                self._remember(key, None)

    def of(self, node_id: str) -> list[Tally]:
        """The hours in which the Mac saw a job, the oldest first; the last may still run."""
        tie = tie_of(node_id.encode())
        with self._lock:
            self._roll()
            past = tuple(self._past)
            hour = self._hour
            now = np.zeros(COLUMNS, dtype=np.int64)
            for row in np.flatnonzero(self._ties == np.uint64(tie)):
                now += self._counts[:, row]
            if tie in self._left:
                now += self._left[tie]
        found = [*((one.hour, one.of(tie)) for one in past), (hour, now)]
        return [tally_of(at * HOUR_US, counts) for at, counts in found if counts.any()]

    def nbytes(self) -> int:
        """Bytes of all that is kept, but for the ids of jobs."""
        with self._lock:
            here = self._ties.nbytes + self._since.nbytes + self._counts.nbytes
            left = sum(counts.nbytes for counts in self._left.values())
            return here + left + self._codes_bytes + sum(past.nbytes() for past in self._past)

    # -- counting --------------------------------------------------------------------------------

    def _count(self, job: JobFacts, decision: Decision, fleet: Fleet) -> None:
        codes = decision.codes[: len(self._ties)]
        for reason in decision.choice.rejected:
            column = self._counts[CODES[reason], : len(codes)]
            np.add(column, (codes == CODES[reason]).view(np.uint8), out=column)
        if isinstance(decision.choice, Placed):
            self._counts[TAKEN, decision.row] += 1
        if "memory_lent_short" in decision.choice.rejected:
            rows = np.flatnonzero(codes == CODES["memory_lent_short"])
            needed = memory.needed_bytes(job.card, context_tokens=max(job.tokens, 1), width=1)
            step = np.searchsorted(_STEPS, needed - fleet.lent[rows], "left")
            self._counts[SHORT + step, rows] += 1

    def _take(self, job_id: str, row: int) -> None:
        """A job that had been counted is placed: what the host was counted under becomes taken."""
        first = self._seen[job_id]
        if first is not None:
            self._codes_bytes -= first.codes.nbytes
            self._seen[job_id] = None
            was_there = row < len(first.codes) and self._since[row] <= first.number
            code = int(first.codes[row]) if was_there else 0
            is_here = first.hour == self._hour and 0 < code < SHORT
            if is_here and code != CODES["memory_lent_short"] and self._counts[code, row]:
                self._counts[code, row] -= 1
        self._counts[TAKEN, row] += 1

    def _remember(self, job_id: str, waiting: Decision | None) -> None:
        first = None
        if waiting is not None:
            first = _First(self._hour, self._number, waiting.codes)
            self._codes_bytes += waiting.codes.nbytes
        self._seen[job_id] = first
        while len(self._seen) > JOBS_MAX:
            _, dropped = self._seen.popitem(last=False)
            self._codes_bytes -= dropped.codes.nbytes if dropped is not None else 0
        if self._codes_bytes > CODES_BYTES_MAX:
            self._forget_codes()

    def _forget_codes(self) -> None:
        """Keep half of what may be kept: of the jobs that wait longest the codes go first."""
        for job_id, first in self._seen.items():
            if first is not None:
                self._seen[job_id] = None
                self._codes_bytes -= first.codes.nbytes
            if self._codes_bytes <= CODES_BYTES_MAX // 2:
                return

    # -- rows and hours --------------------------------------------------------------------------

    def _follow(self, fleet: Fleet) -> None:
        """Know which host stands in which row now; what another had counted there goes with it."""
        self._number += 1
        rows = fleet.rows
        if rows > len(self._ties):
            self._grow(rows + rows // 4)
        changed = np.flatnonzero(self._ties[:rows] != fleet.tie[:rows])
        if not len(changed):
            return
        for row in changed[self._counts[:, changed].any(axis=0)]:
            left = self._left.setdefault(int(self._ties[row]), np.zeros(COLUMNS, dtype=np.uint32))
            left += self._counts[:, row]
            self._counts[:, row] = 0
        self._ties[changed] = fleet.tie[changed]
        self._since[changed] = self._number

    def _grow(self, rows: int) -> None:
        known = len(self._ties)
        ties, since = np.zeros(rows, dtype=np.uint64), np.zeros(rows, dtype=np.int64)
        counts = np.zeros((COLUMNS, rows), dtype=np.uint32)
        ties[:known], since[:known], counts[:, :known] = self._ties, self._since, self._counts
        self._ties, self._since, self._counts = ties, since, counts

    def _roll(self) -> None:
        """Close the hour if it is over. A wall clock that is set back changes nothing."""
        hour = self._wall_us() // HOUR_US
        if hour <= self._hour:
            return
        ties, counts = self._ties.copy(), self._counts
        if self._left:
            ties = np.concatenate([ties, np.asarray(list(self._left), dtype=np.uint64)])
            counts = np.concatenate([counts, np.asarray(list(self._left.values())).T], axis=1)
        self._past.append(_packed(self._hour, ties, counts))
        self._counts[:] = 0
        self._left.clear()
        self._hour = hour
        while self._past and self._past[0].hour < hour - HOURS:
            self._past.popleft()
