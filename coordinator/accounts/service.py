"""Accounts, API keys and who a request comes from."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

from sqlalchemy import literal, select
from sqlalchemy.orm import Session

from coordinator import errors
from coordinator.accounts.models import Account, ApiKey
from coordinator.db import database_now_us
from coordinator.ids import new_id
from coordinator.policy.grants import starting_grant
from ledger import book
from ledger.budgets import Draw
from ledger.limits import MAX_AMOUNT_UMLX
from ledger.models import accounts as ledger_accounts
from ledger.rewards import AUDIT_POOL, AVAILABILITY_POOL
from node_agent.protocol.signing import encode_bytes

KEY_PATTERN: Final = re.compile(r"^mlx_sk_([0-9a-f]{32})_([A-Za-z0-9_-]{43})$")
NAME_PATTERN: Final = re.compile(r"^[\w][\w .@+-]{0,99}$")


@dataclass(frozen=True)
class Caller:
    """Who sent a request: an account by one of its keys."""

    account_id: str
    key_id: str
    is_operator: bool


class AccountError(ValueError):
    """An account that cannot be made; the text names the field and what to do."""


def create_account(session: Session, name: str, *, grant_umlx: int = 0, is_operator: bool = False) -> Account:
    """Make an account and its ledger accounts; a grant is drawn from a budget for grants.

    Raises `AccountError` for a bad or taken name, a grant out of range, or one without a budget.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise AccountError("name: use letters, digits, spaces and . _ @ + -, at most 100 characters")
    if not 0 <= grant_umlx <= MAX_AMOUNT_UMLX:
        raise AccountError(f"grant: must be from 0 to {MAX_AMOUNT_UMLX} uMLX")
    if session.scalar(select(Account.id).where(Account.name == name)) is not None:
        raise AccountError(f"name: there is already an account named {name!r}; choose another")
    now_us = database_now_us(session)
    account = Account(id=new_id("acct"), name=name, is_operator=is_operator, created_us=now_us)
    session.add(account)
    session.flush()
    names = (account.ledger_account, account.escrow_account)
    book.ensure_accounts(session.connection(), names, now_us=now_us)
    if grant_umlx:
        grant(session, account, grant_umlx)
    return account


def ensure_ledger_accounts(session: Session, now_us: int) -> None:
    """Make the pools, and the escrow of accounts from before there was any. May run twice at once."""
    has_escrow = select(ledger_accounts.c.id).where(ledger_accounts.c.id == literal("escrow:") + Account.id)
    without = session.scalars(select(Account.id).where(~has_escrow.exists()))
    names = [AVAILABILITY_POOL, AUDIT_POOL, *(f"escrow:{account_id}" for account_id in without)]
    book.ensure_accounts(session.connection(), names, now_us=now_us)


def grant(session: Session, account: Account, amount_umlx: int) -> None:
    """Mint a starting balance under a budget for grants; once an account. Raises `AccountError`."""
    drawn = starting_grant(session, account, amount_umlx, now_us=database_now_us(session))
    if drawn is None:
        raise AccountError(
            "grant: no budget for grants is in force; two operators sign one: see 'mlx-network budget draft'"
        )
    if not isinstance(drawn, Draw):
        raise AccountError(
            f"grant: the budget refuses it ({drawn.reason}); 'mlx-network budget list' shows what is left"
        )


def create_key(session: Session, account: Account, name: str) -> str:
    """Make an API key and return it; it is not shown again."""
    key_id = new_id("key")
    secret = encode_bytes(secrets.token_bytes(32))
    session.add(
        ApiKey(
            id=key_id,
            account_id=account.id,
            name=name,
            secret_sha256=_digest(secret),
            created_us=database_now_us(session),
        )
    )
    return f"mlx_sk_{key_id.removeprefix('key_')}_{secret}"


def authenticate(session: Session, authorization: str | None) -> Caller:
    """The caller that an Authorization header names. Raises 401, the same for every bad key."""
    if not authorization:
        raise errors.missing_api_key()
    scheme, _, token = authorization.partition(" ")
    found = KEY_PATTERN.fullmatch(token.strip()) if scheme.lower() == "bearer" else None
    if found is None:
        raise errors.invalid_api_key()
    key = session.get(ApiKey, f"key_{found[1]}")
    # Compared even without a row, so that an answer's time does not tell whether the id exists.
    expected = key.secret_sha256 if key is not None else "0" * 64
    is_right = hmac.compare_digest(expected, _digest(found[2]))
    if key is None or not is_right or not _is_valid_now(session, key):
        raise errors.invalid_api_key()
    account = session.get_one(Account, key.account_id)
    return Caller(account.id, key.id, account.is_operator)


def _is_valid_now(session: Session, key: ApiKey) -> bool:
    if key.revoked_us is not None:
        return False
    return key.expires_us is None or database_now_us(session) < key.expires_us


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("ascii")).hexdigest()
