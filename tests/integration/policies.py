"""What tests of the policy of tokens share: operators, signed documents, and what is minted."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select

from coordinator.db import Database
from coordinator.ids import new_id
from coordinator.policy.budgets import submit_budget
from coordinator.policy.documents import BudgetDocument, BudgetText, sign
from coordinator.policy.models import BudgetDraw
from coordinator.policy.operator_keyfile import public_key_of
from coordinator.policy.operators import add_operator_key
from ledger import models, statements
from ledger.budgets import Purpose
from ledger.ratecard import DAY_US

MLX = 1_000_000
OPERATORS = {
    name: Ed25519PrivateKey.from_private_bytes(bytes([index]) * 32)
    for index, name in enumerate(("olga", "otto", "omar"), 1)
}
TWO = ("olga", "otto")


def now_us() -> int:
    return time.time_ns() // 1000


def add_operators(database: Database, names: Sequence[str] = TWO) -> None:
    with database.write() as session:
        for name in names:
            _ = add_operator_key(session, name, public_key_of(OPERATORS[name]), now_us=now_us())


def budget(
    purpose: Purpose = "grants",
    cap_umlx: int = 100 * MLX,
    *,
    days: int = 30,
    signed_by: Sequence[str] = TWO,
    **changes: Any,
) -> BudgetDocument:
    start_us = now_us() - DAY_US
    values: dict[str, Any] = {
        "id": new_id("budget"),
        "purpose": purpose,
        "reason": "For a test",
        "cap_umlx": str(cap_umlx),
        "valid_from_us": start_us,
        "expires_us": start_us + (days + 1) * DAY_US,
        **changes,
    }
    document = BudgetDocument(budget=BudgetText(**values))
    for name in signed_by:
        document = sign(document, name, OPERATORS[name])
    return document


def add_budget(database: Database, purpose: Purpose = "grants", cap_umlx: int = 100 * MLX) -> str:
    """A signed budget in the database: its id."""
    with database.write() as session:
        return submit_budget(session, budget(purpose, cap_umlx), now_us=now_us()).id


def legs(*pairs: tuple[str, int], operators: Sequence[str] = TWO) -> dict[str, Any]:
    """The content of a correction."""
    return {
        "id": str(uuid4()),
        "reference": "",
        "legs": [{"account": account, "amount_umlx": str(amount)} for account, amount in pairs],
        "operators": list(operators),
        "reason": "Paid to the wrong account",
    }


def drawn(database: Database) -> int:
    with database.read() as session:
        return int(session.scalar(select(func.coalesce(func.sum(BudgetDraw.amount_umlx), 0))) or 0)


def supply(database: Database) -> int:
    """All that was minted less all that was burned."""
    with database.read() as session:
        balance = statements.balance(session.connection(), "issuance")
    return 0 if balance is None else -balance.posted_umlx


def records(database: Database) -> list[str]:
    """Subjects of the ledger's records, in order."""
    with database.read() as session:
        bodies = session.execute(
            select(models.journal.c.body)
            .where(models.journal.c.kind == "record")
            .order_by(models.journal.c.seq)
        ).scalars()
        return [f"{json.loads(body)['subject']}={json.loads(body)['content_sha256']}" for body in bodies]


def assert_sound(database: Database) -> None:
    with database.read() as session:
        assert statements.reconcile(session.connection()) == []
