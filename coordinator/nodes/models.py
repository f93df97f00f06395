"""Nodes, how they enrol, and the slots on which attempts run."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, CheckConstraint, ForeignKey, Integer, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db import Base, PortableJson


class Enrolment(Base):
    """A node that has shown its key and waits for its owner's approval."""

    __tablename__ = "enrolments"

    code: Mapped[str] = mapped_column(String(9), primary_key=True)
    poll_sha256: Mapped[str] = mapped_column(String(64))
    node_id: Mapped[str] = mapped_column(String(69), index=True)
    public_key: Mapped[str] = mapped_column(String(43))
    name: Mapped[str] = mapped_column(String(100))
    device: Mapped[str] = mapped_column(String(64))
    hardware: Mapped[dict[str, Any]] = mapped_column(PortableJson)
    state: Mapped[str] = mapped_column(String(10))
    account_id: Mapped[str | None] = mapped_column(ForeignKey("accounts.id"))
    created_us: Mapped[int] = mapped_column(BigInteger)
    expires_us: Mapped[int] = mapped_column(BigInteger)


class Node(Base):
    """One Mac, known by its key. `reserved_bytes` is what its slots hold together."""

    __tablename__ = "nodes"
    __table_args__ = (
        CheckConstraint("reserved_bytes >= 0", name="reserved_not_negative"),
        CheckConstraint("reserved_bytes <= lent_bytes", name="reserved_within_lent"),
    )

    id: Mapped[str] = mapped_column(String(69), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    public_key: Mapped[str] = mapped_column(String(43), unique=True)
    name: Mapped[str] = mapped_column(String(100))
    state: Mapped[str] = mapped_column(String(12))
    state_reason: Mapped[str | None] = mapped_column(String(40))
    device: Mapped[str] = mapped_column(String(64), index=True)
    """Digest of the Mac's own identity, so that one Mac counts once whatever nodes it was."""
    seat: Mapped[str] = mapped_column(String(10), default="idle")
    wanted_seat: Mapped[str] = mapped_column(String(10), default="idle")
    promised_seconds_per_day: Mapped[int] = mapped_column(Integer, default=0)
    promised_days: Mapped[int] = mapped_column(Integer, default=0)
    owner_may_interrupt: Mapped[bool] = mapped_column(Boolean, default=True)
    checks_passed: Mapped[int] = mapped_column(Integer, default=0)
    """Valid checked results since the last failed one."""
    first_lent_us: Mapped[int | None] = mapped_column(BigInteger)
    hardware: Mapped[dict[str, Any]] = mapped_column(PortableJson)
    place_kind: Mapped[str] = mapped_column(String(7), default="none", server_default="none")
    """What its owner shows of where it is: none, country or area."""
    place_country: Mapped[str | None] = mapped_column(String(2))
    place_cell: Mapped[str | None] = mapped_column(String(15))
    place_sequence: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    """The number of the last choice taken, so that an older one cannot be played again."""
    lent_bytes: Mapped[int] = mapped_column(BigInteger)
    reserved_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    created_us: Mapped[int] = mapped_column(BigInteger)
    seen_us: Mapped[int] = mapped_column(BigInteger)
    revoked_us: Mapped[int | None] = mapped_column(BigInteger)


class Slot(Base):
    """A model revision on a host: weights and reserve charged once, `width` sequences of at most
    `tokens_max` tokens each charged with them, so that `live <= width` bounds the memory."""

    __tablename__ = "slots"
    __table_args__ = (
        UniqueConstraint("node_id", "card_revision"),
        CheckConstraint("live >= 0", name="live_not_negative"),
        CheckConstraint("live <= width", name="live_within_width"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), index=True)
    card_id: Mapped[str] = mapped_column(String(64))
    card_revision: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    width: Mapped[int] = mapped_column(Integer)
    tokens_max: Mapped[int] = mapped_column(Integer)
    live: Mapped[int] = mapped_column(Integer, default=0)
    created_us: Mapped[int] = mapped_column(BigInteger)


class DispatcherLease(Base):
    """Who may reserve. Its epoch is checked in every reservation."""

    __tablename__ = "dispatcher_lease"

    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    epoch: Mapped[int] = mapped_column(BigInteger)
    expires_us: Mapped[int] = mapped_column(BigInteger)


class DeviceHealth(Base):
    """What a Mac did wrong lately, whatever node it goes by: it is given work again by degrees."""

    __tablename__ = "device_health"
    __table_args__ = (CheckConstraint("faults >= 0", name="faults_not_negative"),)

    device: Mapped[str] = mapped_column(String(64), primary_key=True)
    faults: Mapped[int] = mapped_column(Integer)
    """Faults in a row since the last good result."""
    last_fault: Mapped[str] = mapped_column(String(40))
    last_fault_us: Mapped[int] = mapped_column(BigInteger)
    paused_until_us: Mapped[int] = mapped_column(BigInteger)


class DevicePace(Base):
    """How fast a Mac was seen to be, whatever node it goes by: speed over the forecast's, in ppm.

    Medians of the last observations, and how many these were.
    """

    __tablename__ = "device_paces"

    device: Mapped[str] = mapped_column(String(64), primary_key=True)
    decode_median_ppm: Mapped[int] = mapped_column(Integer)
    decode_seen: Mapped[int] = mapped_column(Integer)
    prefill_median_ppm: Mapped[int] = mapped_column(Integer)
    prefill_seen: Mapped[int] = mapped_column(Integer)
    at_us: Mapped[int] = mapped_column(BigInteger)
