"""Macs of declared hardware on a real database with a clock that tests move: for seats and slots."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.accounts.service import create_account
from coordinator.db import Database, DatabaseUnavailable, make_engine
from coordinator.jobs.models import Attempt, Job
from coordinator.nodes.models import Node
from coordinator.seats import service, upkeep_windows
from coordinator.seats.credit import GRACE_US
from coordinator.seats.models import CreditedSlot, SelfTest
from coordinator.seats.standing import Stood
from coordinator.seats.standing_rows import StandingRows
from ledger import book, statements
from ledger.availability import POOL, SlotFacts, claim_umlx
from ledger.commands import Applied, Mint
from ledger.ratecard import CARD, DAY_US, GIBIBYTE, HOUR_US, SLOT_US, Seat, Trust
from node_agent.protocol.ids import make_id

MONDAY_US: Final = 20_514 * DAY_US  # 2026-03-02
ULTRA_BANDWIDTH: Final = 737 * 10**9
RICH_UMLX: Final = 10**12
NOON: Final = MONDAY_US + 12 * HOUR_US
"""The slot that most tests pay."""


def hardware_of(chip: str, gpu_cores: int, memory_bytes: int) -> dict[str, object]:
    """What a node says of itself."""
    return {"chip": chip, "gpu_cores": gpu_cores, "memory_bytes": memory_bytes}


@dataclass
class Macs:
    """A database, its clock, and who owns what on it."""

    url: str
    now_us: int = MONDAY_US
    owners: dict[str, str] = field(default_factory=dict[str, str])
    is_away: bool = False
    _count: int = 0
    _tests: int = 0

    def __post_init__(self) -> None:
        self.database = self.open()

    def open(self) -> Database:
        """The database as another process has it open."""
        return Database(make_engine(self.url), clock_us=self._clock_us)

    def _clock_us(self) -> int:
        # In the middle of a transaction, so what it had written is undone.
        if self.is_away:
            raise DatabaseUnavailable("the database is away")
        return self.now_us

    @contextmanager
    def writing(self) -> Generator[Session]:
        with self.database.write() as session:
            yield session

    # -- people and Macs -------------------------------------------------------------------------

    def owner(self, name: str) -> str:
        """The account of a person, made when first named."""
        if name not in self.owners:
            with self.writing() as session:
                self.owners[name] = create_account(session, name).id
        return self.owners[name]

    def add(
        self,
        owner: str,
        *,
        chip: str = "Apple M3 Ultra",
        gpu_cores: int = 80,
        memory_bytes: int = 256 * GIBIBYTE,
        tests: tuple[int, ...] = (ULTRA_BANDWIDTH,) * 3,
        checks_passed: int = 10,
        device: str | None = None,
        lent_since_us: int | None = MONDAY_US - 30 * DAY_US,
    ) -> str:
        """A Mac that lends all of its memory; its owner is past probation unless told otherwise."""
        self._count += 1
        digest = hashlib.sha256(f"mac {self._count}".encode()).hexdigest()
        account_id = self.owner(owner)
        with self.writing() as session:
            session.add(
                Node(
                    id=f"node_{digest}",
                    account_id=account_id,
                    public_key=digest[:43],
                    name=f"Mac {self._count}",
                    state="ready",
                    device=device or digest,
                    checks_passed=checks_passed,
                    first_lent_us=lent_since_us,
                    hardware=hardware_of(chip, gpu_cores, memory_bytes),
                    lent_bytes=memory_bytes,
                    created_us=self.now_us + self._count,
                    seen_us=self.now_us,
                )
            )
            session.flush()
            self._add_tests(session, f"node_{digest}", tests)
        return f"node_{digest}"

    def _add_tests(self, session: Session, node_id: str, tests: tuple[int, ...]) -> None:
        for bandwidth in tests:
            self._tests += 1
            at_us = self.now_us - DAY_US + self._tests
            test = SelfTest(id=f"test_{uuid4().hex}", node_id=node_id, at_us=at_us, is_warm=True)
            test.bandwidth_bytes_per_second = bandwidth
            session.add(test)

    def test_again(self, node_id: str, *bandwidths: int) -> None:
        """More warm self-tests, newest last."""
        with self.writing() as session:
            self._add_tests(session, node_id, bandwidths)

    def change(self, node_id: str, **values: object) -> None:
        """Set columns of the node's row."""
        with self.writing() as session:
            node = session.get_one(Node, node_id)
            for name, value in values.items():
                setattr(node, name, value)

    def ask(self, node_id: str, seat: Seat, **promise: int | bool) -> None:
        """What its owner asks for."""
        with self.writing() as session:
            wish = service.Wish(seat=seat, **promise)  # pyright: ignore[reportArgumentType]
            _ = service.ask_for_seat(session, session.get_one(Node, node_id), wish, now_us=self.now_us)

    def announce_upkeep(self, node_id: str, starts_in_seconds: int, seconds: int) -> str:
        """Announce upkeep; the window's id."""
        with self.writing() as session:
            window = upkeep_windows.announce(
                session,
                session.get_one(Node, node_id),
                starts_in_seconds=starts_in_seconds,
                seconds=seconds,
                card=CARD,
                now_us=self.now_us,
            )
            return window.id

    def node(self, node_id: str) -> Node:
        with self.database.read() as session:
            return session.get_one(Node, node_id)

    # -- time and work ---------------------------------------------------------------------------

    def stand(
        self,
        node_id: str,
        slot_start_us: int,
        present: int = 600,
        *,
        busy: int = 0,
        linked_busy: int = 0,
        is_warm: bool = True,
    ) -> None:
        """Standing time of a slot, as the watching process stores it."""
        row = Stood(node_id, slot_start_us, present, busy, linked_busy, has_demanded_model=is_warm)
        with self.writing() as session:
            StandingRows().write(session, [row], now_us=slot_start_us + SLOT_US)

    def stand_for(self, node_id: str, slots: range, *, down: range = range(0)) -> None:
        """Whole slots, counted from Monday's first; in those of `down` nobody was there."""
        rows = [
            Stood(
                node_id,
                MONDAY_US + index * SLOT_US,
                0 if index in down else 600,
                0,
                0,
                has_demanded_model=True,
            )
            for index in slots
        ]
        with self.writing() as session:
            StandingRows().write(session, rows, now_us=MONDAY_US + slots.stop * SLOT_US)

    def work(
        self,
        node_id: str,
        ended_us: int,
        share_umlx: int,
        *,
        reading_umlx: int = 0,
        is_linked: bool = False,
        asker: str = "asker",
    ) -> None:
        """An attempt that ended and was paid. `share_umlx` is what its row says; no money moves."""
        asker = self.owner(asker)
        unix_ms, mark = (ended_us - 1_000_000) // 1000, uuid4().bytes[:10]
        job_id, attempt_id = (make_id(p, unix_ms=unix_ms, random_bytes=mark) for p in ("job", "att"))
        with self.writing() as session:
            job = Job(id=job_id, account_id=asker, kind="chat", state="done", is_async=False)
            job.card_id, job.card_revision, job.request_digest = "tiny", "r", "d"
            job.prompt_tokens = job.max_tokens = 1
            job.payer, job.rate_card_id, job.fee_ppm, job.factor_ppm = (
                f"user:{asker}",
                CARD.id,
                100_000,
                10**6,
            )
            job.bound_umlx = job.charge_umlx = share_umlx
            job.created_us, job.ended_us = ended_us - 1_000_000, ended_us
            session.add(job)
            session.flush()
            attempt = Attempt(id=attempt_id, job_id=job_id, fence=1, node_id=node_id, state="done")
            attempt.owner_account_id = session.get_one(Node, node_id).account_id
            attempt.forecast_ms, attempt.share_umlx, attempt.reading_umlx = 1, share_umlx, reading_umlx
            attempt.is_linked = is_linked
            attempt.offered_us, attempt.ended_us = ended_us - 1_000_000, ended_us
            session.add(attempt)

    # -- money -----------------------------------------------------------------------------------

    def fill(self, account: str = POOL, amount_umlx: int = RICH_UMLX) -> None:
        """Mint into an account."""
        with self.writing() as session:
            connection = session.connection()
            book.ensure_accounts(connection, [account], now_us=self.now_us)
            mint = Mint(id=uuid4(), account_id=account, amount_umlx=amount_umlx)
            (outcome,) = book.apply(connection, [mint], now_us=self.now_us)
        assert isinstance(outcome, Applied)

    def posted(self, account: str) -> int:
        with self.database.read() as session:
            found = statements.balance(session.connection(), account)
        return 0 if found is None else found.posted_umlx

    def earned(self, owner: str) -> int:
        """What the ledger posted to the owner, escrow included."""
        account_id = self.owner(owner)
        return self.posted(f"user:{account_id}") + self.posted(f"escrow:{account_id}")

    def credited(self) -> dict[tuple[str, int], CreditedSlot]:
        """Rows by node and slot."""
        with self.database.read() as session:
            return {(row.node_id, row.slot_start_us): row for row in session.scalars(select(CreditedSlot))}

    def check_books(self) -> None:
        with self.database.read() as session:
            assert statements.total_umlx(session.connection()) == 0
            assert statements.reconcile(session.connection()) == []


def claim(
    seat: Seat = "idle",
    present: int = 600,
    *,
    busy: int = 0,
    job_pay: int = 0,
    linked_busy: int = 0,
    trust: Trust = "audited",
) -> int:
    """What the rule says of the Macs of these tests, put together here by hand."""
    facts = SlotFacts(
        device="d",
        owner="o",
        seat=seat,
        slot_start_us=0,
        measured_bandwidth_bytes_per_second=ULTRA_BANDWIDTH,
        specified_bandwidth_bytes_per_second=819 * 10**9,
        lent_bytes=256 * GIBIBYTE,
        trust=trust,
        present_seconds=present,
        busy_seconds=busy,
        job_pay_umlx=job_pay,
        linked_busy_seconds=linked_busy,
    )
    return claim_umlx(facts, CARD)


def after(macs: Macs, slot_start_us: int) -> None:
    """Move the clock to where the slot can be paid."""
    macs.now_us = slot_start_us + SLOT_US + GRACE_US
