"""Corrections of the books: carried out when two operators have signed the very correction."""

from __future__ import annotations

from sqlalchemy.orm import Session

from coordinator.errors import ApiError
from coordinator.policy.documents import AdjustmentDocument
from coordinator.policy.operators import signers_of
from coordinator.policy.rate_cards import card_in_force
from coordinator.policy.records import record_of
from ledger import book
from ledger.commands import Adjust, Applied, Conflict, Rejected
from ledger.signatures import SignatureError


def adjust(session: Session, document: AdjustmentDocument, *, now_us: int) -> Applied:
    """Apply the correction, and log the digest of its signed document beside it.

    The two operators that it names must have signed, by keys in use. Raises SignatureError,
    DocumentError, and 400 or 409 if the ledger refuses; nothing is written then.
    """
    command = document.value
    what = f"adjustment {command.id}"
    card = card_in_force(session, now_us)
    signers = signers_of(session, what, document.message, document.signature_bytes, card)
    missing = sorted(set(command.operators) - set(signers))
    if missing:
        raise SignatureError(f"{what} is not validly signed by {', '.join(missing)}, whom it names")
    log = record_of(f"adjustment:{command.id}", document.digest)
    outcome, _ = book.apply(session.connection(), [command, log], now_us=now_us)
    match outcome:
        case Applied():
            return outcome
        case Conflict():
            raise ApiError(
                409,
                "adjustment_id_reused",
                f"Invalid 'adjustment.id': {command.id} was used for another command; draft it again.",
                type="conflict_error",
                param="adjustment.id",
            )
        case Rejected():
            raise _rejected(command, outcome)


def _rejected(command: Adjust, outcome: Rejected) -> ApiError:
    if outcome.reason == "unknown_account":
        return ApiError(
            400,
            "unknown_account",
            "Invalid 'adjustment.legs': one of these is no account of the ledger: "
            f"{', '.join(account for account, _ in command.legs)}.",
            param="adjustment.legs",
        )
    return ApiError(
        409,
        "adjustment_refused",
        f"The ledger refuses it ({outcome.reason}): {outcome.needed_umlx} uMLX are needed and "
        f"{outcome.available_umlx} are there. Nobody goes below zero by a correction.",
        type="conflict_error",
        param="adjustment.legs",
    )
