"""Pay that is held back: who is in probation, what lies in escrow, when it comes, how it is lost.

Each row of `held_pay` stands for an amount in its owner's escrow account, from the same
transaction that paid it there, so that rows and account agree at every commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast
from uuid import UUID

import structlog
from sqlalchemy import select, tuple_, update
from sqlalchemy.orm import Session

from coordinator.db import Database
from coordinator.nodes.models import Node
from coordinator.policy.models import HeldPayRow
from coordinator.policy.rate_cards import card_by_id
from ledger import book
from ledger.commands import Applied, Transfer, settlement_id
from ledger.policy import HoldReason, Person, hold_back, link_between, probation_ends_us
from ledger.ratecard import CARD, RateCard
from ledger.rewards import AUDIT_POOL
from ledger.views import Coming, coming_by_day

log = structlog.get_logger()

RELEASES_MAX: Final = book.MAX_COMMANDS

ExtraKind = Literal["reading", "fault"]


@dataclass(frozen=True)
class Standing:
    """What is fixed for an attempt when it is offered: whose it is, and how it will be paid.

    `is_held`: its owner is in probation. `is_linked`: submitter and owner look like one person.
    """

    owner_account_id: str
    is_held: bool
    is_linked: bool


def standings(
    session: Session, pairs: Sequence[tuple[str, str]], *, card_ids: Sequence[str], now_us: int
) -> list[Standing | None]:
    """The standing of each (submitter's account, node), by the rate card of the job.

    None for a node that does not exist. Called when attempts are offered, and never again for
    them: an owner can then see from the offer on how it will be paid, and nothing that either side
    does meanwhile (selling the Mac, enrolling it under another name) changes it.
    """
    nodes = select(Node.id, Node.account_id).where(Node.id.in_({node for _, node in pairs}))
    owners = {row.id: row.account_id for row in session.execute(nodes)}
    people = _people(session, {account for account, _ in pairs} | set(owners.values()))
    nobody = _KnownPerson(frozenset(), None)
    found: list[Standing | None] = []
    for (submitter, node_id), card_id in zip(pairs, card_ids, strict=True):
        owner = owners.get(node_id)
        if owner is None:
            found.append(None)
            continue
        known = people.get(owner, nobody)
        link = link_between(
            Person(account_id=submitter, devices=people.get(submitter, nobody).devices),
            Person(account_id=owner, devices=known.devices),
        )
        ends_us = _probation_ends_us(known.first_lent_us, rate_card(session, card_id), now_us)
        found.append(Standing(owner, is_held=now_us < ends_us, is_linked=link is not None))
    return found


@dataclass(frozen=True)
class _KnownPerson:
    devices: frozenset[str]
    first_lent_us: int | None


def _people(session: Session, account_ids: Iterable[str]) -> dict[str, _KnownPerson]:
    """What the Macs of accounts tell of them; Macs that were removed count, too."""
    rows = session.execute(
        select(Node.account_id, Node.device, Node.first_lent_us).where(Node.account_id.in_(set(account_ids)))
    )
    devices: dict[str, set[str]] = {}
    first: dict[str, int] = {}
    for account_id, device, first_lent_us in rows:
        devices.setdefault(account_id, set()).add(device)
        if first_lent_us is not None:
            first[account_id] = min(first_lent_us, first.get(account_id, first_lent_us))
    return {name: _KnownPerson(frozenset(found), first.get(name)) for name, found in devices.items()}


def rate_card(session: Session, card_id: str) -> RateCard:
    """The rate card that a job names; jobs from before there were cards have the first."""
    # A card's id is the digest of its content, so the first one need not be looked up.
    return CARD if card_id == CARD.id else card_by_id(session, card_id) or CARD


def _probation_ends_us(first_lent_us: int | None, card: RateCard, now_us: int) -> int:
    """Who has not lent yet begins now at the earliest."""
    since_us = now_us if first_lent_us is None else first_lent_us
    return probation_ends_us(since_us, card, is_attested=False)


def probation_end_us(session: Session, owner_account_id: str, card: RateCard, *, now_us: int) -> int:
    """When the owner's pay is no longer held back (UTC microseconds)."""
    known = _people(session, [owner_account_id]).get(owner_account_id)
    return _probation_ends_us(known.first_lent_us if known else None, card, now_us)


# -- holding -------------------------------------------------------------------------------------


def share_id(job_id: str, fence: int, node_id: str) -> str:
    """The row's id of an attempt's share that a capture paid into escrow."""
    return f"work:{settlement_id(job_id, fence, f'held {node_id}')}"


def transfer_row_id(reference: str, transfer_id: UUID) -> str:
    """The row's id of pay that a transfer of its own paid into escrow: `reading:...`, `slot:...`.

    The first word of a transfer's reference says what it pays for.
    """
    return f"{reference.partition(':')[0]}:{transfer_id}"


def hold_pay(
    session: Session,
    *,
    row_id: str,
    owner_account_id: str,
    node_id: str,
    job_id: str | None,
    amount_umlx: int,
    earned_us: int,
    is_suspected: bool,
    card: RateCard,
) -> HeldPayRow:
    """Note pay that goes into escrow in this transaction, and when it comes.

    If its owner's probation has ended since the offer it comes with the next release.
    """
    end_us = probation_end_us(session, owner_account_id, card, now_us=earned_us)
    held = hold_back(
        owner_account_id,
        amount_umlx,
        earned_us,
        probation_end_us=end_us,
        is_suspected=is_suspected,
        card=card,
    )
    row = HeldPayRow(
        id=row_id,
        owner_account_id=owner_account_id,
        node_id=node_id,
        job_id=job_id,
        amount_umlx=amount_umlx,
        earned_us=earned_us,
        release_us=held.release_us if held is not None else earned_us,
        reason=held.reason if held is not None else "new_owner",
    )
    session.add(row)
    return row


def forfeit(
    session: Session, *, node_id: str, owner_account_id: str, job_id: str, fence: int, now_us: int
) -> Transfer | None:
    """Take what the Mac earned its owner and what has not come yet: a check of its work failed.

    Marks the rows; the transfer to the audit pool must commit with them. None if nothing is held.
    """
    session.flush()
    amounts = session.scalars(
        update(HeldPayRow)
        .where(
            HeldPayRow.node_id == node_id,
            HeldPayRow.owner_account_id == owner_account_id,
            HeldPayRow.released_us.is_(None),
            HeldPayRow.forfeited_us.is_(None),
        )
        .values(forfeited_us=now_us)
        .returning(HeldPayRow.amount_umlx)
        .execution_options(synchronize_session=False)
    ).all()
    if not amounts:
        return None
    return Transfer(
        id=settlement_id(job_id, fence, f"forfeit {node_id}"),
        reference=f"forfeit:{job_id}:{fence}:{node_id}",
        source=f"escrow:{owner_account_id}",
        target=AUDIT_POOL,
        amount_umlx=sum(amounts),
    )


def held_now(session: Session, owner_account_id: str) -> list[Coming]:
    """The owner's pay that is held back now, by the day on which it comes and the reason."""
    rows = session.execute(
        select(HeldPayRow.release_us, HeldPayRow.reason, HeldPayRow.amount_umlx).where(
            HeldPayRow.owner_account_id == owner_account_id,
            HeldPayRow.released_us.is_(None),
            HeldPayRow.forfeited_us.is_(None),
        )
    )
    return coming_by_day((at_us, cast("HoldReason", reason), amount) for at_us, reason, amount in rows)


# -- releasing -----------------------------------------------------------------------------------


def release_held_pay(database: Database) -> int:
    """Pay out what has been held back long enough. Returns how many payments came.

    Each part is one transaction, so a crash leaves nothing half done; two at once wait for each
    other, and a payment has one id whoever makes it.
    """
    released = 0
    after: tuple[int, str] = (-1, "")
    while True:
        with database.write() as session:
            rows = _due(session, after, database.now_us(session))
            released += _release(session, rows, database.now_us(session))
            if len(rows) < RELEASES_MAX:
                return released
            # What the ledger would not pay is not asked for again and again.
            after = (rows[-1].release_us, rows[-1].id)


def _due(session: Session, after: tuple[int, str], now_us: int) -> Sequence[HeldPayRow]:
    query = (
        select(HeldPayRow)
        .where(
            HeldPayRow.release_us <= now_us,
            HeldPayRow.released_us.is_(None),
            HeldPayRow.forfeited_us.is_(None),
            tuple_(HeldPayRow.release_us, HeldPayRow.id) > after,
        )
        .order_by(HeldPayRow.release_us, HeldPayRow.id)
        .limit(RELEASES_MAX)
        .with_for_update()
    )
    return session.scalars(query).all()


def _release(session: Session, rows: Sequence[HeldPayRow], now_us: int) -> int:
    commands = [
        Transfer(
            id=settlement_id(row.id, 0, "release"),
            reference=f"release:{row.job_id or ''}:{row.node_id}",
            source=f"escrow:{row.owner_account_id}",
            target=f"user:{row.owner_account_id}",
            amount_umlx=row.amount_umlx,
        )
        for row in rows
    ]
    done = 0
    for row, outcome in zip(rows, book.apply(session.connection(), commands, now_us=now_us), strict=True):
        if isinstance(outcome, Applied):
            row.released_us = now_us
            done += 1
        else:
            log.error("held_pay_refused", id=row.id, outcome=type(outcome).__name__)
    return done
