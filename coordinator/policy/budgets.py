"""Budgets in the database: taken in with two signatures, drawn from by rule, each draw one mint.

A draw locks its budget's row, so that the cap holds however many processes draw. Signatures are
checked at every draw: a budget whose signers' keys were revoked mints nothing any more, until
other operators sign it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.policy.documents import BudgetDocument, BudgetText
from coordinator.policy.models import BudgetDraw, SignedBudgetRow, VoucherRow
from coordinator.policy.operators import active_keys, signers_of
from coordinator.policy.rate_cards import card_in_force
from coordinator.policy.records import log_record
from ledger import book
from ledger.budgets import Budget, BudgetError, Draw, DrawRefused, Purpose, SignedBudget, check_signatures
from ledger.commands import Applied, Mint, settlement_id
from ledger.ratecard import RateCard
from ledger.signatures import valid_signers
from node_agent.protocol.signing import decode_bytes

DRAW_PURPOSE: Final = "draw"

Decide = Callable[[Budget, int], Draw | DrawRefused]
"""The rule of a draw, from the budget and all that was drawn from it before, in uMLX."""


@dataclass(frozen=True)
class BudgetState:
    """A budget as everyone may see it. `promised_umlx` lies in vouchers that are still open."""

    document: BudgetDocument
    signers: tuple[str, ...]
    drawn_umlx: int
    promised_umlx: int
    created_us: int

    @property
    def left_umlx(self) -> int:
        """What may still be drawn or promised."""
        return max(0, int(self.document.budget.cap_umlx) - self.drawn_umlx - self.promised_umlx)


def submit_budget(session: Session, document: BudgetDocument, *, now_us: int) -> SignedBudgetRow:
    """Take a signed budget in, or further signatures of one that is known; logged in the ledger.

    Only valid signatures are kept. Raises BudgetError, SignatureError, DocumentError.
    """
    budget = document.value
    if budget.expires_us <= now_us:
        raise BudgetError("expires_us is in the past; draft the budget again")
    row = session.get(SignedBudgetRow, budget.id, with_for_update=True)
    if row is not None and budget_of(row) != budget:
        raise BudgetError(f"id {budget.id} belongs to another budget; draft this one again")
    gathered = {**(row.signatures if row is not None else {}), **document.signatures}
    raw = {name: decode_bytes(text) for name, text in gathered.items()}
    signers = signers_of(session, f"budget {budget.id}", budget.message, raw, card_in_force(session, now_us))
    signatures = {name: gathered[name] for name in signers}
    if row is None:
        row = SignedBudgetRow(
            id=budget.id,
            purpose=budget.purpose,
            reason=budget.reason,
            cap_umlx=budget.cap_umlx,
            valid_from_us=budget.valid_from_us,
            expires_us=budget.expires_us,
            created_us=now_us,
            signatures=signatures,
        )
        session.add(row)
    row.signatures = signatures
    log_record(session, f"budget:{budget.id}", document_of(row).digest, now_us=now_us)
    return row


def budget_of(row: SignedBudgetRow) -> Budget:
    """The budget of a row."""
    return Budget(
        id=row.id,
        purpose=cast("Purpose", row.purpose),
        reason=row.reason,
        cap_umlx=row.cap_umlx,
        valid_from_us=row.valid_from_us,
        expires_us=row.expires_us,
    )


def document_of(row: SignedBudgetRow) -> BudgetDocument:
    """The document of a row: what its record in the ledger is the digest of."""
    return BudgetDocument(
        budget=BudgetText(
            id=row.id,
            purpose=cast("Purpose", row.purpose),
            reason=row.reason,
            cap_umlx=str(row.cap_umlx),
            valid_from_us=row.valid_from_us,
            expires_us=row.expires_us,
        ),
        signatures=row.signatures,
    )


def lock_budget(session: Session, budget_id: str, card: RateCard) -> Budget:
    """The budget, its row locked, its signatures checked anew. Raises BudgetError."""
    row = session.get(SignedBudgetRow, budget_id, with_for_update=True, populate_existing=True)
    if row is None:
        raise BudgetError(f"no budget is named {budget_id!r}; see 'mlx-network budget list'")
    budget = budget_of(row)
    raw = {name: decode_bytes(text) for name, text in row.signatures.items()}
    _ = check_signatures(SignedBudget(budget, raw), active_keys(session), card)
    return budget


def drawn_umlx(session: Session, budget_id: str) -> int:
    """All that was drawn from a budget so far."""
    query = select(func.coalesce(func.sum(BudgetDraw.amount_umlx), 0))
    return int(session.execute(query.where(BudgetDraw.budget_id == budget_id)).scalar_one())


def draw_from(
    session: Session, budget_id: str, decide: Decide, *, now_us: int, about: str = ""
) -> Draw | DrawRefused:
    """Draw by the rule `decide`: the mint and its row, in the caller's transaction.

    At most one budget in a transaction, and nothing else is locked after it: the ledger comes last.
    The mint's reference is the draw's, `about` if any (as a node's id), and the budget. Raises
    BudgetError if the budget may not be drawn from at all; nothing is written then.
    """
    budget = lock_budget(session, budget_id, card_in_force(session, now_us))
    decision = decide(budget, drawn_umlx(session, budget_id))
    if isinstance(decision, DrawRefused):
        return decision
    if session.get(BudgetDraw, decision.reference) is not None:
        return DrawRefused("already_drawn")
    session.add(
        BudgetDraw(
            reference=decision.reference,
            budget_id=budget.id,
            account=decision.account_id,
            amount_umlx=decision.amount_umlx,
            at_us=now_us,
        )
    )
    session.flush()
    mint = Mint(
        id=settlement_id(decision.reference, 0, DRAW_PURPOSE),
        reference=" ".join(part for part in (decision.reference, about, budget.id) if part),
        account_id=decision.account_id,
        amount_umlx=decision.amount_umlx,
    )
    connection = session.connection()
    book.ensure_accounts(connection, [decision.account_id], now_us=now_us)
    (outcome,) = book.apply(connection, [mint], now_us=now_us)
    if not isinstance(outcome, Applied):
        raise BudgetError(f"the ledger refused the draw {decision.reference}: {outcome}")
    return decision


def usable_budgets(session: Session, purpose: Purpose, *, now_us: int) -> Sequence[str]:
    """Ids of the budgets of a purpose that are in their time, those that end first first."""
    return session.scalars(
        select(SignedBudgetRow.id)
        .where(
            SignedBudgetRow.purpose == purpose,
            SignedBudgetRow.valid_from_us <= now_us,
            SignedBudgetRow.expires_us > now_us,
        )
        .order_by(SignedBudgetRow.expires_us, SignedBudgetRow.id)
    ).all()


def draw_by_purpose(
    session: Session, purpose: Purpose, decide: Decide, *, now_us: int, about: str = ""
) -> Draw | DrawRefused | None:
    """`draw_from` the one budget of this purpose that is to be used up first and has room; None if
    no budget of this purpose may be drawn from, or the refusal of the last one tried.
    """
    refusal: DrawRefused | None = None
    for budget_id in usable_budgets(session, purpose, now_us=now_us):
        try:
            decision = draw_from(session, budget_id, decide, now_us=now_us, about=about)
        except BudgetError:
            # Signed by someone whose key was revoked: the next one may do.
            continue
        if isinstance(decision, Draw) or decision.reason != "cap_reached":
            return decision
        refusal = decision
    return refusal


def promised_umlx(session: Session, budget_id: str, *, now_us: int) -> int:
    """What open vouchers of a budget promise: neither redeemed nor expired."""
    query = select(func.coalesce(func.sum(VoucherRow.amount_umlx), 0)).where(
        VoucherRow.budget_id == budget_id, VoucherRow.redeemed_us.is_(None), VoucherRow.expires_us > now_us
    )
    return int(session.execute(query).scalar_one())


def budget_states(session: Session, *, now_us: int) -> list[BudgetState]:
    """All budgets, newest first, with what was drawn and who has validly signed."""
    draws = session.execute(
        select(BudgetDraw.budget_id, func.sum(BudgetDraw.amount_umlx)).group_by(BudgetDraw.budget_id)
    )
    drawn = {budget_id: int(total) for budget_id, total in draws}
    vouchers = session.execute(
        select(VoucherRow.budget_id, func.sum(VoucherRow.amount_umlx))
        .where(VoucherRow.redeemed_us.is_(None), VoucherRow.expires_us > now_us)
        .group_by(VoucherRow.budget_id)
    )
    promised = {budget_id: int(total) for budget_id, total in vouchers}
    keys = active_keys(session)
    rows = session.scalars(select(SignedBudgetRow).order_by(SignedBudgetRow.created_us.desc()))
    return [
        BudgetState(
            document=document_of(row),
            signers=valid_signers(
                budget_of(row).message,
                {name: decode_bytes(text) for name, text in row.signatures.items()},
                keys,
            ),
            drawn_umlx=drawn.get(row.id, 0),
            promised_umlx=promised.get(row.id, 0),
            created_us=row.created_us,
        )
        for row in rows
    ]
