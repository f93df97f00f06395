"""Three Macs of one kind over three simulated days, in an idle, a dedicated and an Ultra seat.

Run `python -m tests.demo_seats` (or `make demo-seats`). The hardware is declared for the test, and the
clock is moved; seats, standing time, slots, fees, pools, ledger and statements are the coordinator's
own, on an SQLite file. Prints the order of earnings and each statement's arithmetic, and fails if
anything does not add up.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from coordinator.db import make_engine, migrate
from coordinator.nodes.models import Node
from coordinator.policy.budgets import submit_budget
from coordinator.policy.documents import BudgetDocument, BudgetText, sign
from coordinator.policy.grants import top_up_pools
from coordinator.policy.operators import add_operator_key
from coordinator.seats.credit import GRACE_US, credit_slots
from coordinator.seats.fees import split_fees
from coordinator.seats.models import CreditedSlot
from coordinator.seats.service import grant_seats
from coordinator.seats.standing import Stood
from coordinator.seats.standing_rows import StandingRows
from coordinator.seats.views import seat_view
from ledger import book, statements
from ledger.commands import FEE, TREASURY, Applied, Capture, Command, OpenHold, Transfer, settlement_id
from ledger.plaintext import mlx
from ledger.pricing import PER_MILLION, bound_umlx
from ledger.ratecard import CARD, DAY_US, HOUR_US, SLOT_US, Seat, prices_for
from ledger.rewards import AUDIT_POOL, AttemptFacts, JobFacts, Member, settle
from ledger.views import AttemptShare, SpendRow, cost_of
from node_agent.protocol.signing import encode_bytes
from tests.chip_hours import chip_lines
from tests.integration.macs import MONDAY_US, ULTRA_BANDWIDTH, Macs

DAYS: Final = 3
START_US: Final = MONDAY_US
SLOTS_PER_DAY: Final = 144
GB: Final = 10**9
# A model of 8 GB read per token and 10 GB resident; one job an hour on each Mac.
RATE: Final = prices_for(8 * GB, 10 * GB)
INPUT_TOKENS, OUTPUT_TOKENS = 1_000, 500
BUSY_SECONDS: Final = 9  # 500 tokens x 8 GB / (0.6 x 819 GB/s), and the prompt
GRANT_UMLX: Final = 100_000_000
_IDS: Final = UUID("5f0a0c57-02a8-54c8-9d68-0d9e30f6b7aa")

SEATS: Final[tuple[tuple[str, Seat], ...]] = (("ann", "idle"), ("bob", "dedicated"), ("cem", "ultra"))
UPKEEP: Final = range(SLOTS_PER_DAY + 12, SLOTS_PER_DAY + 24)
"""Slots in which Cem's Mac is down on the second day: two hours, announced the day before."""


@dataclass(frozen=True)
class Mac:
    """One Mac of the demo."""

    seat: Seat
    owner: str
    node_id: str

    def is_up(self, slot: int) -> bool:
        """Whether it is there in a slot, counted from the first."""
        return not (self.owner == "cem" and slot in UPKEEP)


@dataclass
class Earned:
    """What jobs paid one Mac, kept apart from the ledger to be compared with it."""

    work_umlx: int = 0
    second_readings_umlx: int = 0


@dataclass
class Simulation:
    """The world after its days."""

    macs: Macs
    fleet: tuple[Mac, ...]
    sue: str
    days: int
    earned: dict[str, Earned] = field(default_factory=dict[str, Earned])
    services: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def slots_of(self, mac: Mac) -> list[CreditedSlot]:
        """What its slots came to, in order."""
        rows = select(CreditedSlot).where(CreditedSlot.node_id == mac.node_id)
        with self.macs.database.read() as session:
            return list(session.scalars(rows.order_by(CreditedSlot.slot_start_us)))

    def total_umlx(self, mac: Mac) -> int:
        """All that it brought its owner, by jobs' rule and slots' rows."""
        earned = self.earned[mac.owner]
        standing = sum(slot.amount_umlx for slot in self.slots_of(mac))
        return earned.work_umlx + earned.second_readings_umlx + standing


def main() -> None:
    """Print the chip table, the simulated days, and the statements."""
    for line in (*chip_lines(), "", *simulated_lines()):
        print(line)


def simulated_lines() -> Iterator[str]:
    """Three days through a real coordinator's functions, then each statement against what was paid."""
    with tempfile.TemporaryDirectory(prefix="mlx-demo-seats-") as folder:
        url = f"sqlite:///{Path(folder) / 'coordinator.db'}"
        engine = make_engine(url)
        migrate(engine)
        engine.dispose()
        macs = Macs(url)
        yield from report(simulate(macs))
        macs.database.close()


# -- the days ------------------------------------------------------------------------------------


def simulate(macs: Macs, days: int = DAYS) -> Simulation:
    """Enrol the Macs, ask for their seats, and let the days pass."""
    fleet = tuple(Mac(seat, owner, macs.add(owner)) for owner, seat in SEATS)
    world = Simulation(macs, fleet, macs.owner("sue"), days)
    macs.fill(f"user:{world.sue}", GRANT_UMLX)
    sign_budget(macs)
    for mac in fleet:
        world.earned[mac.owner], world.services[mac.owner] = Earned(), []
        macs.ask(mac.node_id, mac.seat)
    macs.announce_upkeep(fleet[2].node_id, UPKEEP.start * 600, len(UPKEEP) * 600)
    for slot in range(days * SLOTS_PER_DAY):
        pass_slot(world, slot)
        if (slot + 1) % SLOTS_PER_DAY == 0:
            for mac in fleet:
                service = view_of(world, mac)["service"]["last_24_hours"]["service_ppm"]
                world.services[mac.owner].append(service)
    return world


def sign_budget(macs: Macs) -> None:
    """Leave to fill the availability pool, which two operators sign."""
    keys = {
        name: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
        for name in ("op-x", "op-y")
    }
    text = BudgetText(
        id=f"budget_{1:032x}",
        purpose="availability",
        reason="Standing ready in March",
        cap_umlx=str(100_000_000_000),
        valid_from_us=START_US,
        expires_us=START_US + 31 * DAY_US,
    )
    document = BudgetDocument(budget=text)
    with macs.writing() as session:
        for name, key in keys.items():
            public_key = encode_bytes(key.public_key().public_bytes_raw())
            _ = add_operator_key(session, name, public_key, now_us=macs.now_us)
            document = sign(document, name, key)
        _ = submit_budget(session, document, now_us=macs.now_us)


def pass_slot(world: Simulation, slot: int) -> None:
    """Ten minutes: jobs in the first of each hour, standing time, and the chores at the hour's end."""
    macs, start_us = world.macs, START_US + slot * SLOT_US
    macs.now_us = start_us
    is_first = slot % 6 == 0
    if is_first:
        _ = top_up_pools(macs.database), grant_seats(macs.database)
        run_jobs(world, slot)
    stood = [
        Stood(
            mac.node_id,
            start_us,
            600 if mac.is_up(slot) else 0,
            BUSY_SECONDS if is_first and mac.is_up(slot) else 0,
            0,
            has_demanded_model=True,
        )
        for mac in world.fleet
    ]
    macs.now_us = start_us + SLOT_US + GRACE_US
    with macs.writing() as session:
        StandingRows().write(session, stood, now_us=macs.now_us)
    if slot % 6 == 5:
        _ = credit_slots(macs.database), split_fees(macs.database)


def run_jobs(world: Simulation, slot: int) -> None:
    """One job on each Mac that is up; in the evening Ann comes back and the next Mac continues."""
    for index, mac in enumerate(world.fleet):
        if not mac.is_up(slot):
            continue
        is_reclaimed = mac.seat == "idle" and slot // 6 % 24 == 20
        attempts = (
            continued(mac, world.fleet[index + 1])
            if is_reclaimed
            else (attempt(1, mac, "finished", OUTPUT_TOKENS),)
        )
        settle_job(world, f"job_{mac.seat}_{slot}", attempts)


def continued(first: Mac, second: Mac) -> tuple[AttemptFacts, ...]:
    """The first Mac delivers 200 tokens, then its owner comes back; the second goes on."""
    return (attempt(1, first, "reclaimed", 200), attempt(2, second, "finished", OUTPUT_TOKENS - 200))


def attempt(fence: int, mac: Mac, ending: str, tokens: int) -> AttemptFacts:
    return AttemptFacts(
        fence=fence,
        members=(Member(node_id=mac.node_id, owner=mac.owner, held_ppm=PER_MILLION),),
        ending="reclaimed" if ending == "reclaimed" else "finished",
        delivered_tokens=tokens,
        received_tokens=tokens,
    )


def job_facts(job_id: str, payer: str, attempts: tuple[AttemptFacts, ...]) -> JobFacts:
    return JobFacts(
        job_id=job_id,
        payer=payer,
        rate=RATE,
        fee_ppm=CARD.fees.fee_ppm,
        bound_umlx=bound_umlx(RATE, INPUT_TOKENS, OUTPUT_TOKENS),
        outcome="finished",
        input_tokens=INPUT_TOKENS,
        cached_tokens=0,
        attempts=attempts,
    )


def settle_job(world: Simulation, job_id: str, attempts: tuple[AttemptFacts, ...]) -> None:
    """Hold, capture and the pool's second readings by the ledger's rule, and the attempts' rows."""
    macs, payer = world.macs, f"user:{world.sue}"
    accounts = {f"user:{mac.owner}": f"user:{macs.owner(mac.owner)}" for mac in world.fleet}
    facts = job_facts(job_id, payer, attempts)
    result = settle(facts)
    hold = OpenHold(
        id=settlement_id(job_id, 0, "hold"),
        reference=job_id,
        account_id=payer,
        amount_umlx=facts.bound_umlx,
        expires_us=macs.now_us + HOUR_US,
    )
    pays = tuple((accounts.get(name, name), amount) for name, amount in result.capture_pays())
    capture = Capture(id=settlement_id(job_id, 0, "capture"), reference=job_id, hold_id=hold.id, pays=pays)
    readings = [
        Transfer(
            id=settlement_id(job_id, payment.fence, f"reading {payment.node_id}"),
            reference=job_id,
            source=payment.source,
            target=accounts[payment.account_id],
            amount_umlx=payment.amount_umlx,
        )
        for payment in result.extra_pays()
    ]
    apply(macs, hold, capture, *readings)
    second = {payment.fence: payment.amount_umlx for payment in result.extra_pays()}
    for share in result.shares:
        reading = second.get(share.fence, 0)
        world.earned[share.owner].work_umlx += share.amount_umlx
        world.earned[share.owner].second_readings_umlx += reading
        macs.work(
            share.node_id,
            macs.now_us + BUSY_SECONDS * 1_000_000,
            share.amount_umlx,
            reading_umlx=reading,
            asker="sue",
        )


def apply(macs: Macs, *commands: Command) -> None:
    with macs.writing() as session:
        outcomes = book.apply(session.connection(), commands, now_us=macs.now_us)
    assert all(isinstance(outcome, Applied) for outcome in outcomes), outcomes


def view_of(world: Simulation, mac: Mac) -> dict[str, Any]:
    """The seat as its owner sees it now."""
    with world.macs.database.read() as session:
        return seat_view(session, session.get_one(Node, mac.node_id), now_us=world.macs.now_us)


# -- the report ----------------------------------------------------------------------------------


def report(world: Simulation) -> Iterator[str]:
    """Each Mac's arithmetic and statement, the order, and the books as a whole."""
    yield (
        f"{world.days} days of three M3 Ultra with 256 GB (declared for the test),"
        f" {ULTRA_BANDWIDTH // GB} GB/s measured, rate card {CARD.id[:12]}"
    )
    for mac in world.fleet:
        yield from report_mac(world, mac)
    yield "a job of sue's that two Macs served"
    yield from (f"  {line}" for line in cost_of(continued_job(world)).as_text())
    totals = [world.total_umlx(mac) for mac in world.fleet]
    if totals != sorted(set(totals)):
        raise SystemExit(f"the order of earnings is wrong: {totals}")
    yield f"order: idle {mlx(totals[0])} < dedicated {mlx(totals[1])} < ultra {mlx(totals[2])} MLX"
    posted = {name: world.macs.posted(name) for name in (FEE, TREASURY, AUDIT_POOL)}
    yield "fees, cut each day: " + ", ".join(f"{name} {mlx(umlx)}" for name, umlx in posted.items())
    with world.macs.database.read() as session:
        drift = statements.reconcile(session.connection())
        total = statements.total_umlx(session.connection())
    if drift or total:
        raise SystemExit(f"the books do not add up: {drift}, sum {total}")
    yield f"books: all accounts sum to {total}, nothing drifts"


def continued_job(world: Simulation) -> SpendRow:
    """What Sue is shown of the first evening's job."""
    job_id = f"job_idle_{20 * 6}"
    facts = job_facts(job_id, f"user:{world.sue}", continued(*world.fleet[:2]))
    result = settle(facts)
    return SpendRow(
        ended_us=START_US + 20 * HOUR_US,
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
                fence=share.fence,
                node_id=share.node_id[:13],
                tokens=share.tokens,
                amount_umlx=share.amount_umlx,
            )
            for share in result.shares
        ),
    )


def report_mac(world: Simulation, mac: Mac) -> Iterator[str]:
    account = f"user:{world.macs.owner(mac.owner)}"
    with world.macs.database.read() as session:
        found = statements.statement(session.connection(), account, START_US, world.macs.now_us + 1)
    earned, slots = world.earned[mac.owner], world.slots_of(mac)
    standing = sum(slot.amount_umlx for slot in slots)
    zeros = sorted({slot.reason for slot in slots if slot.reason is not None})
    services = ", ".join(f"{part / 10_000:g} %" for part in world.services[mac.owner])
    rate, points = CARD.umlx_per_point_hour(mac.seat), slots[0].points_ppm
    paid = sum(slot.amount_umlx > 0 for slot in slots)
    whole_slot = points * rate // (6 * PER_MILLION)
    yield f"{mac.seat} seat of {mac.owner}"
    yield f"  promise kept in each 24 hours, upkeep counted: {services}"
    yield (
        f"  standing: {mlx(points)} points x {mlx(rate)} MLX / 6 = {mlx(whole_slot)} a slot;"
        f" {paid} slots paid = {mlx(standing)}"
    )
    yield (
        f"  not paid: {len(slots) - paid} slots ({', '.join(zeros) or 'none'}),"
        f" {mlx(paid * whole_slot - standing)} while busy"
    )
    yield f"  work {mlx(earned.work_umlx)} + second readings {mlx(earned.second_readings_umlx)}"
    yield (
        f"  statement: opening {mlx(found.opening_umlx)} + {len(found.entries)} entries"
        f" {mlx(sum(entry.amount_umlx for entry in found.entries))} = closing {mlx(found.closing_umlx)} MLX"
    )
    if found.closing_umlx != world.total_umlx(mac):
        raise SystemExit(f"{mac.owner}: statement {found.closing_umlx}, paid {world.total_umlx(mac)}")


if __name__ == "__main__":
    main()
