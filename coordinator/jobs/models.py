"""Jobs, their attempts, the log of their transitions, and their encrypted payloads."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db import Base

LIVE_ATTEMPT_SQL = "state IN ('offered', 'accepted', 'loading', 'prefill', 'decoding')"


class Job(Base):
    """One request for whole work. Holds no prompt and no answer; those lie in `job_payloads`."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("account_id", "idempotency_key"),
        CheckConstraint("charge_umlx <= bound_umlx", name="charge_within_bound"),
        CheckConstraint("fee_ppm BETWEEN 0 AND 1000000", name="fee_within_charge"),
        Index(
            "ix_jobs_queue",
            "created_us",
            "id",
            sqlite_where=text("state = 'queued'"),
            postgresql_where=text("state = 'queued'"),
        ),
        Index("ix_jobs_account_created", "account_id", "created_us"),
        Index(
            "ix_jobs_commons",
            "created_us",
            sqlite_where=text("payer = 'pool:availability'"),
            postgresql_where=text("payer = 'pool:availability'"),
        ),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    api_key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    kind: Mapped[str] = mapped_column(String(20))
    state: Mapped[str] = mapped_column(String(12))
    is_async: Mapped[bool]
    card_id: Mapped[str] = mapped_column(String(64))
    card_revision: Mapped[str] = mapped_column(String(64))
    prompt_tokens: Mapped[int] = mapped_column(Integer)
    max_tokens: Mapped[int] = mapped_column(Integer)
    output_tokens: Mapped[int] = mapped_column(Integer, default=0)
    finish_reason: Mapped[str | None] = mapped_column(String(20))
    error_code: Mapped[str | None] = mapped_column(String(40))
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_digest: Mapped[str] = mapped_column(String(64))
    output_digest: Mapped[str | None] = mapped_column(String(64))
    hold_id: Mapped[str | None] = mapped_column(String(36), unique=True)
    payer: Mapped[str] = mapped_column(String(128))
    """The ledger account whose hold pays: the submitter's, or a pool's for public work."""
    rate_card_id: Mapped[str] = mapped_column(String(64))
    fee_ppm: Mapped[int] = mapped_column(Integer)
    factor_ppm: Mapped[int] = mapped_column(Integer)
    bound_umlx: Mapped[int] = mapped_column(BigInteger)
    charge_umlx: Mapped[int] = mapped_column(BigInteger, default=0)
    fence: Mapped[int] = mapped_column(Integer, default=0)
    created_us: Mapped[int] = mapped_column(BigInteger)
    started_us: Mapped[int | None] = mapped_column(BigInteger)
    ended_us: Mapped[int | None] = mapped_column(BigInteger)


class Attempt(Base):
    """One try of a job on one host. `fence` counts from 1 within the job."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("job_id", "fence"),
        CheckConstraint("received_tokens BETWEEN 0 AND delivered_tokens", name="received_within_delivered"),
        Index(
            "uq_attempts_one_live",
            "job_id",
            unique=True,
            sqlite_where=text(LIVE_ATTEMPT_SQL),
            postgresql_where=text(LIVE_ATTEMPT_SQL),
        ),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    fence: Mapped[int] = mapped_column(Integer)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), index=True)
    slot_id: Mapped[str | None] = mapped_column(String(40))
    state: Mapped[str] = mapped_column(String(12))
    reason: Mapped[str | None] = mapped_column(String(40))
    forecast_ms: Mapped[int] = mapped_column(BigInteger)
    owner_account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    """Who owned the node when the attempt was offered, and is paid for it."""
    is_held: Mapped[bool] = mapped_column(Boolean, default=False)
    is_linked: Mapped[bool] = mapped_column(Boolean, default=False)
    check_result: Mapped[str] = mapped_column(String(10), default="none")
    delivered_tokens: Mapped[int] = mapped_column(Integer, default=0)
    received_tokens: Mapped[int] = mapped_column(Integer, default=0)
    share_umlx: Mapped[int] = mapped_column(BigInteger, default=0)
    reading_umlx: Mapped[int] = mapped_column(BigInteger, default=0)
    """What the pool paid for reading the prompt once more."""
    zero_reason: Mapped[str | None] = mapped_column(String(20))
    node_signature: Mapped[str | None] = mapped_column(String(100))
    offered_us: Mapped[int] = mapped_column(BigInteger)
    accepted_us: Mapped[int | None] = mapped_column(BigInteger)
    first_token_us: Mapped[int | None] = mapped_column(BigInteger)
    ended_us: Mapped[int | None] = mapped_column(BigInteger)


class JobEvent(Base):
    """One transition of a job or of one of its attempts; append-only."""

    __tablename__ = "job_events"

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    fence: Mapped[int | None] = mapped_column(Integer)
    from_state: Mapped[str] = mapped_column(String(12))
    to_state: Mapped[str] = mapped_column(String(12))
    reason: Mapped[str | None] = mapped_column(String(40))
    at_us: Mapped[int] = mapped_column(BigInteger)


class JobPayload(Base):
    """Request, delivered prefix or unfetched result of a job, encrypted; gone when the job is."""

    __tablename__ = "job_payloads"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    part: Mapped[str] = mapped_column(String(10), primary_key=True)
    wrapped_key: Mapped[bytes] = mapped_column(LargeBinary)
    ciphertext: Mapped[bytes] = mapped_column(LargeBinary)
    expires_us: Mapped[int | None] = mapped_column(BigInteger, index=True)
