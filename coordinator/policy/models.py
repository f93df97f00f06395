"""Leave to mint, vouchers, pay that is held back, and the rate cards of the network."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db import Base, PortableJson


class SignedBudgetRow(Base):
    """A budget as operators signed it; `signatures` maps operator names to base64url."""

    __tablename__ = "budgets"
    __table_args__ = (
        CheckConstraint("cap_umlx > 0", name="cap_positive"),
        CheckConstraint("expires_us > valid_from_us", name="ends_after_start"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    purpose: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str] = mapped_column(String(200))
    cap_umlx: Mapped[int] = mapped_column(BigInteger)
    valid_from_us: Mapped[int] = mapped_column(BigInteger)
    expires_us: Mapped[int] = mapped_column(BigInteger)
    signatures: Mapped[dict[str, Any]] = mapped_column(PortableJson)
    created_us: Mapped[int] = mapped_column(BigInteger)


class BudgetDraw(Base):
    """One draw from a budget: the ledger command that minted it, and what for."""

    __tablename__ = "budget_draws"
    __table_args__ = (CheckConstraint("amount_umlx > 0", name="amount_positive"),)

    reference: Mapped[str] = mapped_column(String(200), primary_key=True)
    """What was drawn for (`grant:first_hour:DEVICE`, `top_up:DAY`, `voucher:ID`): once each."""
    budget_id: Mapped[str] = mapped_column(ForeignKey("budgets.id"), index=True)
    account: Mapped[str] = mapped_column(String(128))
    amount_umlx: Mapped[int] = mapped_column(BigInteger)
    at_us: Mapped[int] = mapped_column(BigInteger)


class VoucherRow(Base):
    """A voucher; only the digest of its code is stored."""

    __tablename__ = "vouchers"
    __table_args__ = (CheckConstraint("amount_umlx > 0", name="amount_positive"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    budget_id: Mapped[str] = mapped_column(ForeignKey("budgets.id"), index=True)
    code_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    amount_umlx: Mapped[int] = mapped_column(BigInteger)
    issued_us: Mapped[int] = mapped_column(BigInteger)
    expires_us: Mapped[int] = mapped_column(BigInteger)
    redeemed_us: Mapped[int | None] = mapped_column(BigInteger)
    redeemed_by: Mapped[str | None] = mapped_column(ForeignKey("accounts.id"))


class HeldPayRow(Base):
    """Pay in an owner's escrow: it comes at `release_us`, or is forfeited by a failed check."""

    __tablename__ = "held_pay"
    __table_args__ = (
        CheckConstraint("amount_umlx > 0", name="amount_positive"),
        Index("ix_held_pay_owner_release", "owner_account_id", "release_us"),
        Index("ix_held_pay_release", "release_us"),
    )

    id: Mapped[str] = mapped_column(String(100), primary_key=True)
    """Derived from what it was earned by, so that it is held once."""
    owner_account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    amount_umlx: Mapped[int] = mapped_column(BigInteger)
    earned_us: Mapped[int] = mapped_column(BigInteger)
    release_us: Mapped[int] = mapped_column(BigInteger)
    reason: Mapped[str] = mapped_column(String(20))
    released_us: Mapped[int | None] = mapped_column(BigInteger)
    forfeited_us: Mapped[int | None] = mapped_column(BigInteger)


class RateCardRow(Base):
    """A rate card: announced, then in force from `effective_us` until the next one is."""

    __tablename__ = "rate_cards"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, unique=True)
    body: Mapped[str] = mapped_column(Text)
    announced_us: Mapped[int] = mapped_column(BigInteger)
    effective_us: Mapped[int] = mapped_column(BigInteger, index=True)


class OperatorKey(Base):
    """An operator's key for what needs two: budgets, adjustments."""

    __tablename__ = "operator_keys"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    public_key: Mapped[str] = mapped_column(String(43), unique=True)
    added_us: Mapped[int] = mapped_column(BigInteger)
    revoked_us: Mapped[int | None] = mapped_column(BigInteger)
