"""Grants and the daily filling of the availability pool: what is drawn from budgets by itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Select, exists, func, literal, select
from sqlalchemy.orm import Session

from coordinator.accounts.models import Account
from coordinator.db import Database
from coordinator.nodes.models import Node
from coordinator.policy.budgets import draw_by_purpose
from coordinator.policy.models import BudgetDraw
from coordinator.policy.rate_cards import card_in_force
from coordinator.seats.models import SelfTest, StandingTime
from ledger import statements
from ledger.availability import POOL
from ledger.budgets import Budget, Draw, DrawRefused, FirstHour, draw, grant_first_hour, top_up_pool
from ledger.ratecard import SLOT_US

NODES_AT_ONCE: Final = 200
FIRST_HOUR: Final = "grant:first_hour:"
US_PER_SECOND: Final = 1_000_000


def starting_grant(
    session: Session, account: Account, amount_umlx: int, *, now_us: int
) -> Draw | DrawRefused | None:
    """A starting balance from a budget for grants, once an account; None if there is no budget."""

    def decide(budget: Budget, drawn_umlx: int) -> Draw | DrawRefused:
        return draw(
            budget,
            purpose="grants",
            account_id=account.ledger_account,
            amount_umlx=amount_umlx,
            drawn_umlx=drawn_umlx,
            now_us=now_us,
            reference=f"grant:start:{account.id}",
        )

    return draw_by_purpose(session, "grants", decide, now_us=now_us)


def top_up_pools(database: Database) -> int:
    """Fill the availability pool, once a day (UTC), under a budget for it. Returns how often."""
    with database.write() as session:
        now_us = database.now_us(session)
        day = f"{datetime.fromtimestamp(now_us // US_PER_SECOND, tz=UTC):%Y-%m-%d}"
        if session.get(BudgetDraw, f"top_up:{day}") is not None:
            return 0
        card = card_in_force(session, now_us)

        def decide(budget: Budget, drawn_umlx: int) -> Draw | DrawRefused:
            # Read here, behind the budget's lock: another process may just have filled it.
            balance = statements.balance(session.connection(), POOL)
            return top_up_pool(
                budget,
                pool_balance_umlx=0 if balance is None else balance.posted_umlx,
                day=day,
                drawn_umlx=drawn_umlx,
                now_us=now_us,
                card=card,
            )

        return int(isinstance(draw_by_purpose(session, "availability", decide, now_us=now_us), Draw))


def grant_first_hours(database: Database) -> int:
    """Grant the first verified hour to owners and Macs that have had none. Returns how many."""
    with database.read() as session:
        waiting = session.execute(_ungranted()).all()
    granted = 0
    for node_id, owner, device in waiting:
        # A transaction each: what refuses one Mac holds no other up.
        with database.write() as session:
            decision = _grant_first_hour(session, node_id, owner, device, now_us=database.now_us(session))
            granted += isinstance(decision, Draw)
    return granted


def _ungranted() -> Select[str, str, str]:
    """Macs with a valid check and some lent time, whose device and owner were granted nothing."""
    reference, account = literal(FIRST_HOUR) + Node.device, literal("user:") + Node.account_id
    return (
        select(Node.id, Node.account_id, Node.device)
        .where(
            Node.first_lent_us.is_not(None),
            Node.checks_passed > 0,
            ~exists().where(BudgetDraw.reference == reference),
            ~exists().where(BudgetDraw.account == account, BudgetDraw.reference.startswith(FIRST_HOUR)),
        )
        .order_by(Node.first_lent_us, Node.id)
        .limit(NODES_AT_ONCE)
    )


def _grant_first_hour(
    session: Session, node_id: str, owner: str, device: str, *, now_us: int
) -> Draw | DrawRefused | None:
    lent_us = _lent_while_measured_us(session, node_id)
    card = card_in_force(session, now_us)

    def decide(budget: Budget, drawn_umlx: int) -> Draw | DrawRefused:
        facts = FirstHour(
            owner=owner,
            device=device,
            lent_us=lent_us or 0,
            is_measured=lent_us is not None,
            has_passed_check=True,
            owner_was_granted=_was_granted(session, owner),
            device_was_granted=session.get(BudgetDraw, f"{FIRST_HOUR}{device}") is not None,
        )
        return grant_first_hour(facts, budget, drawn_umlx=drawn_umlx, now_us=now_us, card=card)

    return draw_by_purpose(session, "grants", decide, now_us=now_us, about=node_id)


def _was_granted(session: Session, owner: str) -> bool:
    query = select(BudgetDraw.reference).where(
        BudgetDraw.account == f"user:{owner}", BudgetDraw.reference.startswith(FIRST_HOUR)
    )
    return session.scalar(query.limit(1)) is not None


def _lent_while_measured_us(session: Session, node_id: str) -> int | None:
    """Time that a Mac was there, from the slot of its first warm self-test on; None before one."""
    measured_us = session.scalar(
        select(func.min(SelfTest.at_us)).where(SelfTest.node_id == node_id, SelfTest.is_warm)
    )
    if measured_us is None:
        return None
    seconds = session.scalar(
        select(func.sum(StandingTime.present_seconds)).where(
            StandingTime.node_id == node_id,
            StandingTime.slot_start_us >= measured_us // SLOT_US * SLOT_US,
        )
    )
    return int(seconds or 0) * US_PER_SECOND
