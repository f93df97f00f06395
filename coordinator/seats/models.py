"""Seats and standing ready: what was promised, what was measured, what each slot came to."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, CheckConstraint, ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db import Base


class SeatTerm(Base):
    """A seat that a node held from `since_us` on, until `until_us` (None: it still does)."""

    __tablename__ = "seat_terms"
    __table_args__ = (CheckConstraint("until_us IS NULL OR until_us >= since_us", name="ends_after_start"),)

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    since_us: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    seat: Mapped[str] = mapped_column(String(10))
    until_us: Mapped[int | None] = mapped_column(BigInteger)


class UpkeepWindow(Base):
    """A time in which the owner keeps the Mac up; counts as kept if it was announced before."""

    __tablename__ = "upkeep_windows"
    __table_args__ = (
        CheckConstraint("end_us > start_us", name="ends_after_start"),
        Index("ix_upkeep_windows_node_start", "node_id", "start_us"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    announced_us: Mapped[int] = mapped_column(BigInteger)
    start_us: Mapped[int] = mapped_column(BigInteger)
    end_us: Mapped[int] = mapped_column(BigInteger)


class SelfTest(Base):
    """One memory-bandwidth test that a node ran at our challenge."""

    __tablename__ = "self_tests"
    __table_args__ = (Index("ix_self_tests_node_at", "node_id", "at_us"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    at_us: Mapped[int] = mapped_column(BigInteger)
    bandwidth_bytes_per_second: Mapped[int] = mapped_column(BigInteger)
    is_warm: Mapped[bool] = mapped_column(Boolean)


class StandingTime(Base):
    """Seconds of one slot of ten minutes in which a node was there, and in which it worked."""

    __tablename__ = "standing_times"
    __table_args__ = (
        CheckConstraint("present_seconds BETWEEN 0 AND 600", name="present_within_slot"),
        CheckConstraint("busy_seconds >= 0 AND linked_busy_seconds >= 0", name="busy_not_negative"),
        Index("ix_standing_times_slot", "slot_start_us"),
    )

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    slot_start_us: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    present_seconds: Mapped[int] = mapped_column(Integer, default=0)
    busy_seconds: Mapped[int] = mapped_column(Integer, default=0)
    linked_busy_seconds: Mapped[int] = mapped_column(Integer, default=0)
    has_demanded_model: Mapped[bool] = mapped_column(Boolean, default=False)


class CreditedSlot(Base):
    """What a device was paid for a slot, once and for all; a zero has its reason."""

    __tablename__ = "credited_slots"
    __table_args__ = (Index("ix_credited_slots_owner_slot", "owner_account_id", "slot_start_us"),)

    device: Mapped[str] = mapped_column(String(64), primary_key=True)
    slot_start_us: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    owner_account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    seat: Mapped[str] = mapped_column(String(10))
    paid_as: Mapped[str] = mapped_column(String(10))
    rate_card_id: Mapped[str] = mapped_column(String(64))
    points_ppm: Mapped[int] = mapped_column(BigInteger)
    present_seconds: Mapped[int] = mapped_column(Integer)
    busy_seconds: Mapped[int] = mapped_column(Integer)
    job_pay_umlx: Mapped[int] = mapped_column(BigInteger)
    claim_umlx: Mapped[int] = mapped_column(BigInteger)
    amount_umlx: Mapped[int] = mapped_column(BigInteger)
    reason: Mapped[str | None] = mapped_column(String(20))
