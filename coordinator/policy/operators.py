"""Operators' keys for what needs two of them: budgets, rate cards, adjustments.

Whoever can write to the database adds keys; each change is logged in the ledger, where it stays.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.policy.models import OperatorKey
from coordinator.policy.records import log_record
from ledger.ratecard import RateCard
from ledger.signatures import SignatureError, require_signers
from node_agent.protocol.signing import decode_bytes, is_weak_key

NAME_PATTERN: Final = re.compile(r"^[A-Za-z0-9_.@+-]{1,100}$")
KEY_PATTERN: Final = re.compile(r"^[A-Za-z0-9_-]{43}$")
LOCAL_NAMES: Final = ("local-1", "local-2")
"""Both keys of a network on one machine lie in its home folder: one person, who needs no second."""


class OperatorError(ValueError):
    """A key that cannot be added or revoked; the text names the field and what to do."""


def add_operator_key(session: Session, name: str, public_key: str, *, now_us: int) -> list[str]:
    """Let `name` sign with this key (43 characters of base64url). Returns whose keys it revoked.

    The first operator from outside revokes the keys of the local network, and with them all that
    these have signed. Raises OperatorError.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise OperatorError("name: use letters, digits and _ . @ + -, at most 100 characters")
    key = decode_bytes(public_key) if KEY_PATTERN.fullmatch(public_key) else b""
    if len(key) != 32 or is_weak_key(key):
        raise OperatorError("public key: give the 43 characters that 'operators keygen' printed")
    known = session.scalars(
        select(OperatorKey).where((OperatorKey.name == name) | (OperatorKey.public_key == public_key))
    ).first()
    if known is not None and known.name == name:
        raise OperatorError(f"name: {name!r} has or had a key; a new key goes by a new name")
    if known is not None:
        raise OperatorError(f"public key: {known.name!r} has it; two operators need two keys")
    revoked: list[str] = []
    if name not in LOCAL_NAMES:
        revoked = [local for local in LOCAL_NAMES if local in active_keys(session)]
        for local in revoked:
            revoke_operator_key(session, local, now_us=now_us)
    session.add(OperatorKey(name=name, public_key=public_key, added_us=now_us))
    session.flush()
    log_record(session, f"operator_key:{name}", hashlib.sha256(key).hexdigest(), now_us=now_us)
    return revoked


def revoke_operator_key(session: Session, name: str, *, now_us: int) -> None:
    """Signatures by this key count no more, earlier ones too. Raises OperatorError."""
    row = session.get(OperatorKey, name, with_for_update=True)
    if row is None or row.revoked_us is not None:
        raise OperatorError(f"name: no operator's key in use is named {name!r}; see 'operators key list'")
    row.revoked_us = now_us
    session.flush()
    digest = hashlib.sha256(decode_bytes(row.public_key)).hexdigest()
    log_record(session, f"operator_key_revoked:{name}", digest, now_us=now_us)


def operator_keys(session: Session) -> Sequence[OperatorKey]:
    """All keys, revoked ones too, by name."""
    return session.scalars(select(OperatorKey).order_by(OperatorKey.name)).all()


def active_keys(session: Session) -> Mapping[str, bytes]:
    """The raw public keys whose signatures count, by operator."""
    rows = session.execute(
        select(OperatorKey.name, OperatorKey.public_key).where(OperatorKey.revoked_us.is_(None))
    )
    return {name: decode_bytes(public_key) for name, public_key in rows}


def signers_of(
    session: Session, what: str, message: bytes, signatures: Mapping[str, bytes], card: RateCard
) -> tuple[str, ...]:
    """Who validly signed `message`, if they are enough by the card. Raises SignatureError."""
    keys = active_keys(session)
    needed = card.policy.budget_signatures
    try:
        return require_signers(what, message, signatures, keys, needed=needed)
    except SignatureError as error:
        unknown = sorted(signatures.keys() - keys.keys())
        note = f"; no operator's key is known for {', '.join(unknown)}" if unknown else ""
        raise SignatureError(f"{error}{note}") from None
