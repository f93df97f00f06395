"""Accounts of people and the API keys they hold."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db import Base


class Account(Base):
    """A person or organisation: submits jobs, owns nodes, or both."""

    __tablename__ = "accounts"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    is_operator: Mapped[bool] = mapped_column(Boolean, default=False)
    may_ask_commons: Mapped[bool] = mapped_column(Boolean, default=False)
    """Whether its jobs may be public work, which the availability pool pays for."""
    created_us: Mapped[int] = mapped_column(BigInteger)

    @property
    def ledger_account(self) -> str:
        """The account's name in the ledger."""
        return f"user:{self.id}"

    @property
    def escrow_account(self) -> str:
        """Where the account's held-back pay lies in the ledger."""
        return f"escrow:{self.id}"


class ApiKey(Base):
    """One API key. Only the SHA-256 of its secret is stored; the key itself is shown once."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    name: Mapped[str] = mapped_column(String(100))
    secret_sha256: Mapped[str] = mapped_column(String(64))
    created_us: Mapped[int] = mapped_column(BigInteger)
    expires_us: Mapped[int | None] = mapped_column(BigInteger)
    revoked_us: Mapped[int | None] = mapped_column(BigInteger)
