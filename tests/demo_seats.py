"""Three Macs of one kind over three simulated days, in an idle, a dedicated and an Ultra seat.

Run `python -m tests.demo_seats` (or `make demo-seats`). The hardware is declared for the test; rates,
settlements, pool, ledger and statements are the product's own, on an SQLite file. Prints the order
of earnings and each statement's arithmetic, and fails if anything does not add up.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID, uuid5

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.db import Database, make_engine, migrate
from ledger import book, statements
from ledger.availability import SlotFacts, SlotPayment, pay_slot, points_ppm, slot_pool_umlx
from ledger.budgets import Budget, Draw, SignedBudget, check_signatures, top_up_pool
from ledger.commands import Applied, Capture, Command, Mint, OpenHold, Transfer, settlement_id
from ledger.plaintext import mlx
from ledger.pricing import PER_MILLION, bound_umlx
from ledger.ratecard import CARD, DAY_US, GIBIBYTE, HOUR_US, SLOT_US, Seat, prices_for
from ledger.rewards import AttemptFacts, JobFacts, Member, settle
from ledger.seats import SeatFacts, Upkeep, granted_seat, service_ppm, upkeep_seconds
from ledger.views import AttemptShare, SpendRow, cost_of
from tests.chip_hours import chip_lines

DAYS: Final = 3
START_US: Final = 20_513 * DAY_US  # 2026-03-01
GB: Final = 10**9
# A model of 8 GB read per token and 10 GB resident; one job an hour on each Mac.
RATE: Final = prices_for(8 * GB, 10 * GB)
INPUT_TOKENS, OUTPUT_TOKENS = 1_000, 500
BUSY_SECONDS: Final = 9  # 500 tokens x 8 GB / (0.6 x 819 GB/s), and the prompt
_IDS: Final = UUID("5f0a0c57-02a8-54c8-9d68-0d9e30f6b7aa")


@dataclass(frozen=True)
class Mac:
    """One Mac of the demo. The owner of the Ultra seat announces two hours of upkeep on day 2."""

    seat: Seat
    owner: str
    lent_hours: range
    upkeep: tuple[Upkeep, ...] = ()

    @property
    def node_id(self) -> str:
        return f"node_{self.seat}"


UPKEEP: Final = Upkeep(START_US, START_US + DAY_US + 2 * HOUR_US, START_US + DAY_US + 4 * HOUR_US)
MACS: Final = (
    Mac("idle", "ann", range(24)),
    Mac("dedicated", "bob", range(24)),
    Mac("ultra", "cem", range(24), (UPKEEP,)),
)
BANDWIDTH, MEASURED, LENT_BYTES = 819 * GB, 737 * GB, 256 * GIBIBYTE


@dataclass
class Earned:
    """What the simulation paid one Mac, kept apart from the ledger to be compared with it."""

    work_umlx: int = 0
    second_readings_umlx: int = 0
    slots: list[SlotPayment] = field(default_factory=list[SlotPayment])
    services_ppm: list[int] = field(default_factory=list[int])

    @property
    def total_umlx(self) -> int:
        return self.work_umlx + self.second_readings_umlx + sum(slot.amount_umlx for slot in self.slots)


def main() -> None:
    """Print the chip table, the simulated days, and the statements."""
    for line in (*chip_lines(), "", *simulated_lines()):
        print(line)


def slot_of(mac: Mac, start_us: int, **facts: int) -> SlotFacts:
    return SlotFacts(
        device=f"device_{mac.seat}",
        owner=mac.owner,
        seat=mac.seat,
        slot_start_us=start_us,
        measured_bandwidth_bytes_per_second=MEASURED,
        specified_bandwidth_bytes_per_second=BANDWIDTH,
        lent_bytes=LENT_BYTES,
        trust="audited",
        present_seconds=facts.pop("present_seconds", 600),
        **facts,  # pyright: ignore[reportArgumentType]
    )


def simulated_lines() -> Iterator[str]:
    """Three days through a real ledger, then each statement against what was paid."""
    with tempfile.TemporaryDirectory(prefix="mlx-demo-seats-") as folder:
        engine = make_engine(f"sqlite:///{Path(folder) / 'ledger.db'}")
        migrate(engine)
        database = Database(engine)
        earned = simulate(database)
        yield from report(database, earned)
        database.close()


def simulate(database: Database) -> dict[str, Earned]:
    """Run the days; returns what each owner was paid, by owner."""
    accounts = ("user:sue", "pool:availability", *(f"user:{mac.owner}" for mac in MACS))
    with database.write() as session:
        book.ensure_accounts(session.connection(), accounts, now_us=START_US)
    apply(database, START_US, Mint(id=uuid5(_IDS, "sue"), account_id="user:sue", amount_umlx=100_000_000))
    for mac in MACS:
        assert granted_seat(seat_facts(mac), mac.seat, CARD) == mac.seat
    earned = {mac.owner: Earned() for mac in MACS}
    drawn_umlx = 0
    for day in range(DAYS):
        drawn_umlx += fill_pool(database, day, drawn_umlx)
        services = {mac.owner: service_of(mac, day) for mac in MACS}
        for mac in MACS:
            earned[mac.owner].services_ppm.append(services[mac.owner])
        for hour in range(24):
            at_us = START_US + day * DAY_US + hour * HOUR_US
            pay = run_jobs(database, at_us, earned)
            for index in range(6):
                start_us = at_us + index * SLOT_US
                pay_macs(database, start_us, services, pay if index == 0 else {}, earned)
    return earned


def seat_facts(mac: Mac) -> SeatFacts:
    return SeatFacts(
        promised_seconds_per_day=20 * 3600,
        promised_days=7,
        owner_may_interrupt=mac.seat == "idle",
        warm_bandwidths_bytes_per_second=(MEASURED,) * 3,
        installed_bytes=LENT_BYTES,
        lent_bytes=LENT_BYTES,
        checks_passed=10,
    )


def fill_pool(database: Database, day: int, drawn_umlx: int) -> int:
    """Top the pool up under a budget that two operators signed; the amount."""
    budget = Budget(
        id="budget_1",
        purpose="availability",
        reason="Standing ready in March",
        cap_umlx=100_000_000_000,
        valid_from_us=START_US,
        expires_us=START_US + 31 * DAY_US,
    )
    keys = {
        name: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
        for name in ("x", "y")
    }
    signed = SignedBudget(budget, {name: key.sign(budget.message) for name, key in keys.items()})
    check_signatures(signed, {name: key.public_key().public_bytes_raw() for name, key in keys.items()}, CARD)
    now_us = START_US + day * DAY_US
    draw = top_up_pool(
        budget,
        pool_balance_umlx=posted_umlx(database, "pool:availability"),
        day=f"2026-03-{day + 1:02}",
        drawn_umlx=drawn_umlx,
        now_us=now_us,
        card=CARD,
    )
    assert isinstance(draw, Draw), draw
    mint = Mint(
        id=uuid5(_IDS, draw.reference),
        reference=draw.reference,
        account_id=draw.account_id,
        amount_umlx=draw.amount_umlx,
    )
    apply(database, now_us, mint)
    return draw.amount_umlx


def is_up(mac: Mac, at_us: int) -> bool:
    in_upkeep = any(window.start_us <= at_us < window.end_us for window in mac.upkeep)
    return (at_us // HOUR_US) % 24 in mac.lent_hours and not in_upkeep


def service_of(mac: Mac, day: int) -> int:
    start_us = START_US + day * DAY_US
    up = sum(600 for slot in range(144) if is_up(mac, start_us + slot * SLOT_US))
    upkeep = upkeep_seconds(mac.upkeep, START_US, start_us, start_us + DAY_US, CARD)
    return service_ppm(up, upkeep, CARD.seats.dedicated_seconds_per_day)


def run_jobs(database: Database, at_us: int, earned: dict[str, Earned]) -> dict[str, int]:
    """One job on each Mac that is up; in the evening Ann comes back and the next Mac continues."""
    pay: dict[str, int] = {}
    for index, mac in enumerate(MACS):
        if not is_up(mac, at_us):
            continue
        is_reclaimed = mac.seat == "idle" and (at_us // HOUR_US) % 24 == 20
        attempts = (
            (attempt(1, mac, "reclaimed", 200), attempt(2, MACS[index + 1], "finished", OUTPUT_TOKENS - 200))
            if is_reclaimed
            else (attempt(1, mac, "finished", OUTPUT_TOKENS),)
        )
        job_id = f"job_{mac.seat}_{at_us // HOUR_US}"
        for owner, amount in settle_job(database, at_us, job_id, attempts, earned).items():
            pay[owner] = pay.get(owner, 0) + amount
    return pay


def attempt(fence: int, mac: Mac, ending: str, tokens: int) -> AttemptFacts:
    return AttemptFacts(
        fence=fence,
        members=(Member(node_id=mac.node_id, owner=mac.owner, held_ppm=PER_MILLION),),
        ending="reclaimed" if ending == "reclaimed" else "finished",
        delivered_tokens=tokens,
        received_tokens=tokens,
    )


def job_facts(job_id: str, attempts: tuple[AttemptFacts, ...]) -> JobFacts:
    return JobFacts(
        job_id=job_id,
        payer="user:sue",
        rate=RATE,
        fee_ppm=CARD.fees.fee_ppm,
        bound_umlx=bound_umlx(RATE, INPUT_TOKENS, OUTPUT_TOKENS),
        outcome="finished",
        input_tokens=INPUT_TOKENS,
        cached_tokens=0,
        attempts=attempts,
    )


def settle_job(
    database: Database, at_us: int, job_id: str, attempts: tuple[AttemptFacts, ...], earned: dict[str, Earned]
) -> dict[str, int]:
    """Hold, capture and the pool's second readings; returns the pay out of the charge by owner."""
    facts = job_facts(job_id, attempts)
    result = settle(facts)
    hold = OpenHold(
        id=settlement_id(job_id, 0, "hold"),
        reference=job_id,
        account_id="user:sue",
        amount_umlx=facts.bound_umlx,
        expires_us=at_us + HOUR_US,
    )
    capture = Capture(
        id=settlement_id(job_id, 0, "capture"), reference=job_id, hold_id=hold.id, pays=result.capture_pays()
    )
    readings = [
        Transfer(
            id=settlement_id(job_id, payment.fence, f"reading {payment.node_id}"),
            reference=job_id,
            source=payment.source,
            target=payment.account_id,
            amount_umlx=payment.amount_umlx,
        )
        for payment in result.extra_pays()
    ]
    apply(database, at_us, hold, capture, *readings)
    for payment in result.extra_pays():
        earned[payment.owner].second_readings_umlx += payment.amount_umlx
    for share in result.shares:
        earned[share.owner].work_umlx += share.amount_umlx
    return {share.owner: share.amount_umlx for share in result.shares}


def pay_macs(
    database: Database,
    start_us: int,
    services: dict[str, int],
    job_pay: dict[str, int],
    earned: dict[str, Earned],
) -> None:
    slot = [
        slot_of(
            mac,
            start_us,
            present_seconds=600 if is_up(mac, start_us) else 0,
            busy_seconds=BUSY_SECONDS if mac.owner in job_pay and is_up(mac, start_us) else 0,
            job_pay_umlx=job_pay.get(mac.owner, 0),
            service_ppm=services[mac.owner],
        )
        for mac in MACS
    ]
    pool = slot_pool_umlx(posted_umlx(database, "pool:availability"), CARD)
    payments = pay_slot(slot, pool, CARD)
    for payment in payments:
        earned[payment.owner].slots.append(payment)
    transfers = [
        Transfer(
            id=payment.id,
            reference=f"slot:{payment.slot_start_us}",
            source="pool:availability",
            target=payment.account_id,
            amount_umlx=payment.amount_umlx,
        )
        for payment in payments
        if payment.amount_umlx
    ]
    apply(database, start_us + SLOT_US, *transfers)


def apply(database: Database, now_us: int, *commands: Command) -> None:
    with database.write() as session:
        outcomes = book.apply(session.connection(), commands, now_us=now_us)
    assert all(isinstance(outcome, Applied) for outcome in outcomes), outcomes


def posted_umlx(database: Database, account_id: str) -> int:
    with database.read() as session:
        found = statements.balance(session.connection(), account_id)
    return 0 if found is None else found.posted_umlx


def report(database: Database, earned: dict[str, Earned]) -> Iterator[str]:
    """Each Mac's arithmetic and statement, the order, and the books as a whole."""
    yield f"{DAYS} days of three M3 Ultra with 256 GB (declared for the test), rate card {CARD.id[:12]}"
    for mac in MACS:
        yield from report_mac(database, mac, earned[mac.owner])
    yield "a job of sue's that two Macs served"
    yield from (f"  {line}" for line in cost_of(continued_job()).as_text())
    totals = [earned[mac.owner].total_umlx for mac in MACS]
    if totals != sorted(set(totals)):
        raise SystemExit(f"the order of earnings is wrong: {totals}")
    yield f"order: idle {mlx(totals[0])} < dedicated {mlx(totals[1])} < ultra {mlx(totals[2])} MLX"
    with database.read() as session:
        drift = statements.reconcile(session.connection())
        total = statements.total_umlx(session.connection())
    if drift or total:
        raise SystemExit(f"the books do not add up: {drift}, sum {total}")
    yield f"books: all accounts sum to {total}, nothing drifts"


def continued_job() -> SpendRow:
    """Ann's Mac delivers 200 tokens, then she comes back; Bob's goes on."""
    attempts = (attempt(1, MACS[0], "reclaimed", 200), attempt(2, MACS[1], "finished", OUTPUT_TOKENS - 200))
    facts = job_facts("job_idle_evening", attempts)
    result = settle(facts)
    return SpendRow(
        ended_us=START_US,
        job_id=facts.job_id,
        key_id="key_1",
        card_id="model-of-8-gb",
        card_revision="1",
        rate_card=CARD.id,
        rate=RATE,
        factor_ppm=facts.factor_ppm,
        input_tokens=facts.input_tokens,
        cached_tokens=facts.cached_tokens,
        output_tokens=result.paid_tokens,
        bound_umlx=facts.bound_umlx,
        charge_umlx=result.charge_umlx,
        refunded_umlx=0,
        fee_umlx=result.fee_umlx,
        shares=tuple(
            AttemptShare(
                fence=share.fence, node_id=share.node_id, tokens=share.tokens, amount_umlx=share.amount_umlx
            )
            for share in result.shares
        ),
    )


def report_mac(database: Database, mac: Mac, earned: Earned) -> Iterator[str]:
    with database.read() as session:
        found = statements.statement(
            session.connection(), f"user:{mac.owner}", START_US, START_US + DAYS * DAY_US + 1
        )
    standing = sum(slot.amount_umlx for slot in earned.slots)
    zeros = sorted({slot.reason for slot in earned.slots if slot.reason is not None})
    services = ", ".join(f"{part / 10_000:g} %" for part in earned.services_ppm)
    points = points_ppm(slot_of(mac, 0), CARD)
    paid = sum(slot.amount_umlx > 0 for slot in earned.slots)
    whole_slot = points * CARD.umlx_per_point_hour(mac.seat) // (6 * PER_MILLION)
    yield f"{mac.seat} seat of {mac.owner}"
    yield f"  service of each day, upkeep counted: {services}"
    yield (
        f"  standing: {mlx(points)} points x {mlx(CARD.umlx_per_point_hour(mac.seat))} MLX / 6"
        f" = {mlx(whole_slot)} a slot; {paid} slots paid = {mlx(standing)}"
    )
    yield f"  not paid: {len(earned.slots) - paid} slots ({', '.join(zeros) or 'none'}), {mlx(paid * whole_slot - standing)} while busy"
    yield f"  work {mlx(earned.work_umlx)} + second readings {mlx(earned.second_readings_umlx)}"
    yield (
        f"  statement: opening {mlx(found.opening_umlx)} + {len(found.entries)} entries"
        f" {mlx(sum(entry.amount_umlx for entry in found.entries))} = closing {mlx(found.closing_umlx)} MLX"
    )
    if found.closing_umlx != earned.total_umlx:
        raise SystemExit(f"{mac.owner}: statement {found.closing_umlx}, paid {earned.total_umlx}")


if __name__ == "__main__":
    main()
