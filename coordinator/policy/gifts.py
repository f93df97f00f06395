"""Gifts: an account gives tokens to another, at once and for good."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator import errors
from coordinator.accounts.models import Account
from coordinator.errors import ApiError
from ledger import book
from ledger.commands import Applied, Conflict, Rejected, Transfer, settlement_id
from ledger.limits import MAX_AMOUNT_UMLX

NOTE_PATTERN: Final = re.compile(r"^[\x20-\x7e]{0,100}$")
AMOUNT_PATTERN: Final = re.compile(r"^[1-9][0-9]{0,18}$")


@dataclass(frozen=True)
class Gift:
    """A gift that was made: the ledger's entry, and who got it."""

    transfer: Transfer
    to: Account
    seq: int
    recorded_us: int
    is_replay: bool


def read_amount(field: str, value: object) -> int:
    """An amount from a body: an integer, or one as a decimal string, of uMLX. Raises 400."""
    if value is None:
        raise errors.missing_parameter(field)
    if isinstance(value, str) and AMOUNT_PATTERN.fullmatch(value):
        value = int(value)
    if type(value) is not int or not 0 < value <= MAX_AMOUNT_UMLX:
        raise errors.invalid_value(
            field, f"must be a whole number of uMLX from 1 to {MAX_AMOUNT_UMLX}, as a decimal string"
        )
    return value


def give(
    session: Session, giver_id: str, *, to: str, amount_umlx: int, note: str, key: str, now_us: int
) -> Gift:
    """Move the amount from the giver to the account named `to` (its id or its name).

    `key` makes it happen once: the same gift again gets the first answer, another one 409. Held
    money cannot be given. Raises 400, 402, 404, 409; nothing has moved then.
    """
    if not NOTE_PATTERN.fullmatch(note):
        raise errors.invalid_value("note", "must be at most 100 printable ASCII characters")
    giver, receiver = session.get_one(Account, giver_id), _account(session, to)
    if receiver.id == giver.id:
        raise errors.invalid_value("to", "is your own account; name another one")
    transfer = Transfer(
        id=settlement_id(giver.id, 0, f"gift:{key}"),
        # The word in front keeps a note from passing for a reference of ours.
        reference=f"gift: {note}" if note else "gift",
        source=giver.ledger_account,
        target=receiver.ledger_account,
        amount_umlx=amount_umlx,
    )
    (outcome,) = book.apply(session.connection(), [transfer], now_us=now_us)
    match outcome:
        case Applied(seq=seq, recorded_us=recorded_us, replayed=replayed):
            return Gift(transfer, receiver, seq, recorded_us, is_replay=replayed)
        case Conflict():
            raise errors.idempotency_key_reused()
        case Rejected(reason="insufficient_funds"):
            raise ApiError(
                402,
                "insufficient_balance",
                f"Invalid 'amount_umlx': {outcome.needed_umlx} uMLX are more than the "
                f"{outcome.available_umlx} uMLX that are free; what jobs hold cannot be given.",
                type="insufficient_quota",
                param="amount_umlx",
                should_retry=False,
            )
        case Rejected():
            raise errors.invalid_value("amount_umlx", f"the ledger refuses it ({outcome.reason})")


def _account(session: Session, to: str) -> Account:
    found = session.get(Account, to) or session.scalars(select(Account).where(Account.name == to)).first()
    if found is None:
        raise ApiError(
            404,
            "account_not_found",
            f"Invalid 'to': no account has the name or id '{errors.shown_name(to)}'.",
            type="not_found_error",
            param="to",
        )
    return found
