"""What must hold after every commit, judged from the rows alone and from what was seen before.

Nothing of the product's code is used here: states, transitions and sums are written a second time.
The rules' names are those of the design: I for the ledger, L for leases.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

LIVE_ATTEMPT: Final = frozenset({"offered", "accepted", "loading", "prefill", "decoding"})
FINAL_JOB: Final = frozenset({"done", "failed", "cancelled", "expired"})
# Ways of losing an attempt that are the node's fault: it is not asked again for a while.
FAULTS: Final = frozenset(
    {
        "offer_unanswered",
        "no_progress",
        "node_restarted",
        "too_many_tokens",
        "bad_chunk",
        "cancelled_by_node",
        "result_not_proven",
        "logprobs_missing",
        "runner_crashed",
        "runner_stalled",
        "load_failed",
        "download_failed",
        "internal",
    }
)
# What an honest node is never told: these say that it broke the protocol.
ACCUSATIONS: Final = frozenset({"too_many_tokens", "bad_chunk", "cancelled_by_node", "result_not_proven"})
# What speaks against a Mac; an offer that nobody answers does so only if it has spoken since.
BLAME: Final = FAULTS - {"offer_unanswered", "download_failed"}
PAUSE_SECONDS: Final = 30.0
# The pause counts from the loss, and is seen here when the loss was written.
PAUSE_SLACK_SECONDS: Final = 15.0
EPSILON_SECONDS: Final = 1e-6


class JobRow(NamedTuple):
    """One row of `jobs`, as far as it is looked at."""

    id: str
    account_id: str
    state: str
    is_async: int
    card_id: str
    prompt_tokens: int
    max_tokens: int
    output_tokens: int
    error_code: str | None
    hold_id: str | None
    bound_umlx: int
    charge_umlx: int
    fence: int


class AttemptRow(NamedTuple):
    """One row of `attempts`."""

    job_id: str
    fence: int
    node_id: str
    slot_id: str | None
    state: str
    reason: str | None
    delivered_tokens: int
    received_tokens: int
    share_umlx: int
    zero_reason: str | None
    check_result: str

    @property
    def lasting(self) -> tuple[object, ...]:
        """What never changes again once the attempt has ended."""
        return self[: self._fields.index("received_tokens")]


@dataclass
class Books:
    """The ledger as added up here, entry by entry."""

    seq: int = 0
    posted: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    holds: dict[str, tuple[str, int, str]] = field(default_factory=dict[str, tuple[str, int, str]])
    endings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


@final
class Oracle:
    """Looks at each commit. `violate(rule, why)` is called for each thing that must not be."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        now: Callable[[], float],
        violate: Callable[[str, str], None],
        tell: Callable[[str, object], None],
        honest: frozenset[str],
    ) -> None:
        self._connection: Final = connection
        self._now: Final = now
        self._violate: Final = violate
        self._tell: Final = tell
        self._honest: Final = honest
        # Honest nodes on whose Macs nothing has gone wrong yet but the network.
        self.blameless: Final = set(honest)
        self.jobs: dict[str, JobRow] = {}
        self.attempts: dict[tuple[str, int], AttemptRow] = {}
        self.books: Final = Books()
        # Attempts whose nodes told this coordinator, in time, that their owners are back.
        self.owner_returned: Final[set[tuple[str, int]]] = set()
        self._paused_until: dict[tuple[str, str], float] = {}
        self._seen_ended: set[tuple[str, int]] = set()
        self.commits = 0

    def forget_process(self) -> None:
        """The coordinator is a new process: who failed before, or was being told of, is unknown to it."""
        self._paused_until.clear()
        self.owner_returned.clear()

    def look(self) -> None:
        """Something was committed."""
        self.commits += 1
        jobs = {
            row[0]: JobRow(*row)
            for row in self._connection.execute(
                "SELECT id, account_id, state, is_async, card_id, prompt_tokens, max_tokens, output_tokens,"
                " error_code, hold_id, bound_umlx, charge_umlx, fence FROM jobs"
            )
        }
        attempts = {
            (row[0], row[1]): AttemptRow(*row)
            for row in self._connection.execute(
                "SELECT job_id, fence, node_id, slot_id, state, reason, delivered_tokens, received_tokens,"
                " share_umlx, zero_reason, check_result"
                " FROM attempts ORDER BY job_id, fence"
            )
        }
        self._look_at_books()
        self._look_at_jobs(jobs, attempts)
        self._look_at_slots(attempts)
        self.jobs, self.attempts = jobs, attempts

    # -- jobs and attempts -----------------------------------------------------------------------

    def _look_at_jobs(self, jobs: dict[str, JobRow], attempts: dict[tuple[str, int], AttemptRow]) -> None:
        live: dict[str, list[AttemptRow]] = defaultdict(list)
        fences: dict[str, list[int]] = defaultdict(list)
        for key, attempt in attempts.items():
            fences[attempt.job_id].append(attempt.fence)
            if attempt.state in LIVE_ATTEMPT:
                live[attempt.job_id].append(attempt)
            before = self.attempts.get(key)
            if before != attempt:
                self._look_at_attempt(before, attempt)
        for job in jobs.values():
            before = self.jobs.get(job.id)
            if before != job:
                self._look_at_job(before, job)
            expected = 1 if job.state == "running" else 0
            if len(live[job.id]) != expected:
                found = [f"#{one.fence} {one.state}" for one in live[job.id]]
                self._violate("L1 one live attempt", f"{job.id} is {job.state} with {found}")
            if fences[job.id] != list(range(1, job.fence + 1)):
                self._violate("L1 fences rise", f"{job.id} at {job.fence} has {fences[job.id]}")
            self._look_at_hold(job)
        for lost in self.jobs.keys() - jobs.keys():
            self._violate("durability", f"{lost} has vanished")

    def _look_at_job(self, before: JobRow | None, job: JobRow) -> None:
        self._tell("database", f"{job.id} {before.state if before else ''} -> {job.state}")
        if before is None:
            if job.state != "queued":
                self._violate("L3 states", f"{job.id} begins as {job.state}")
            return
        if before.state in FINAL_JOB:
            self._violate("L3 ends once", f"{job.id}: {before} became {job}")
        if job.fence < before.fence:
            self._violate("L1 fences rise", f"{job.id}: {before.fence} to {job.fence}")
        if job.charge_umlx > job.bound_umlx:
            self._violate("L3 within the hold", f"{job.id}: {job.charge_umlx} of {job.bound_umlx}")

    def _look_at_attempt(self, before: AttemptRow | None, attempt: AttemptRow) -> None:
        name = f"{attempt.job_id} #{attempt.fence}"
        if before is None:
            self._tell("database", f"{name} on {attempt.node_id[:9]} -> {attempt.state}")
            until = self._paused_until.get((attempt.job_id, attempt.node_id), 0.0)
            if self._now() < until:
                self._violate("L5 excluded", f"{name} is on the node that failed before")
            return
        if before.state not in LIVE_ATTEMPT:
            # Its pay is worked out when the job ends; nothing else changes.
            if attempt.lasting != before.lasting or before.share_umlx:
                self._violate("L2 ended attempts stay", f"{name}: {before} became {attempt}")
            return
        self._tell("database", f"{name} {before.state} -> {attempt.state} {attempt.reason or ''}")
        if attempt.state in LIVE_ATTEMPT:
            return
        if (attempt.job_id, attempt.fence) in self.owner_returned and attempt.state != "reclaimed":
            self._violate("L7 owner first", f"{name}: its owner's return is {attempt.state} {attempt.reason}")
        if attempt.reason in FAULTS and attempt.state in {"lost", "failed"}:
            until = self._now() + PAUSE_SECONDS - PAUSE_SLACK_SECONDS
            self._paused_until[attempt.job_id, attempt.node_id] = until
        if attempt.reason in ACCUSATIONS and attempt.node_id in self._honest:
            self._violate("L7 nobody is blamed", f"{name}: an honest node is told {attempt.reason}")
        if attempt.reason in BLAME and attempt.node_id in self.blameless:
            self._violate("L7 nobody is blamed", f"{name}: the network's loss is {attempt.reason}")

    # -- memory and seats ------------------------------------------------------------------------

    def _look_at_slots(self, attempts: dict[tuple[str, int], AttemptRow]) -> None:
        counts: dict[str | None, int] = defaultdict(int)
        for attempt in attempts.values():
            if attempt.state in LIVE_ATTEMPT:
                counts[attempt.slot_id] += 1
        held: dict[str, int] = defaultdict(int)
        at_work: dict[str, int] = defaultdict(int)
        for slot_id, node_id, size, width, live in self._connection.execute(
            "SELECT id, node_id, bytes, width, live FROM slots"
        ):
            held[node_id] += size
            at_work[node_id] += live > 0
            if not live == counts.pop(slot_id, 0) <= width:
                self._violate("L4 seats", f"{slot_id} counts {live} of {width}")
        if counts:
            self._violate("L4 seats", f"attempts run in slots that are gone: {dict(counts)}")
        for node_id, lent, reserved in self._connection.execute(
            "SELECT id, lent_bytes, reserved_bytes FROM nodes"
        ):
            if not held[node_id] == reserved <= lent:
                self._violate("L4 memory", f"{node_id}: {held[node_id]}, {reserved} of {lent}")
            if at_work[node_id] > 1:
                self._violate("L4 one model", f"{node_id}: {at_work[node_id]} are at work")

    # -- money -----------------------------------------------------------------------------------

    def _look_at_hold(self, job: JobRow) -> None:
        hold = self.books.holds.get((job.hold_id or "").replace("-", ""))
        is_open = hold is not None and hold[2] == "open"
        if hold is None or is_open == (job.state in FINAL_JOB):
            self._violate("L3 holds", f"{job.id} is {job.state}, its hold {hold}")
        elif is_open and hold[1] < job.bound_umlx:
            self._violate("L3 holds", f"{job.id} is bound to {job.bound_umlx}, held {hold[1]}")

    def _look_at_books(self) -> None:
        (seq,) = self._connection.execute("SELECT seq FROM ledger_chain").fetchone()
        if seq == self.books.seq:
            return
        self._add_entries(seq)
        held: dict[str, int] = defaultdict(int)
        holds: dict[str, tuple[str, int, str]] = {}
        for hold_id, account, amount, state, captured in self._connection.execute(
            "SELECT id, account_id, amount_umlx, state, captured_umlx FROM ledger_holds"
        ):
            held[account] += amount if state == "open" else 0
            holds[hold_id] = (account, amount, state)
            before = self.books.holds.get(hold_id)
            if before is not None and before[2] != "open" and before[2] != state:
                self._violate("I5 a hold ends once", f"{hold_id}: {before[2]} to {state}")
            if captured > amount:
                self._violate("I5 captured", f"{hold_id}: {captured} of {amount}")
        self.books.holds = holds
        for account, floor, posted, account_held in self._connection.execute(
            "SELECT id, floor_umlx, posted_umlx, held_umlx FROM ledger_accounts"
        ):
            if posted != self.books.posted[account] or account_held != held[account]:
                self._violate("I3 balances", f"{account}: {posted}/{account_held}")
            if floor is not None and posted - account_held < floor:
                self._violate("I4 floor", f"{account}: {posted} - {account_held}")
        if sum(self.books.posted.values()):
            self._violate("I2 sum", f"{sum(self.books.posted.values())} at entry {seq}")

    def _add_entries(self, seq: int) -> None:
        legs: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for number, account, amount in self._connection.execute(
            "SELECT seq, account_id, amount_umlx FROM ledger_postings WHERE seq > ?", (self.books.seq,)
        ):
            legs[number].append((account, amount))
            self.books.posted[account] += amount
        found = self._connection.execute(
            "SELECT seq, kind, reference, result FROM ledger_journal WHERE seq > ? ORDER BY seq",
            (self.books.seq,),
        ).fetchall()
        if [row[0] for row in found] != list(range(self.books.seq + 1, seq + 1)):
            self._violate("I9 gapless", f"entries after {self.books.seq}: {[row[0] for row in found]}")
        for number, kind, reference, result in found:
            of_entry = legs[number]
            if sum(amount for _, amount in of_entry) or any(not amount for _, amount in of_entry):
                self._violate("I1 entry sums", f"entry {number}: {of_entry}")
            if result != "posted" and of_entry:
                self._violate("I8 refused", f"entry {number} is {result} and moves {of_entry}")
            if kind in {"capture", "void_hold", "expire_hold"} and result == "posted":
                self.books.endings[reference].append(kind)
        self.books.seq = seq
