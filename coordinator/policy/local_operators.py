"""The two operators of a network on one machine: keys in its home folder, budgets signed by both.

So that a newcomer's network mints by the same rule as any other. The first operator whose key is
added revokes them, and their budgets with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.orm import Session

from coordinator.ids import new_id
from coordinator.policy.budgets import budget_states, submit_budget
from coordinator.policy.documents import BudgetDocument, BudgetText, sign
from coordinator.policy.operator_keyfile import make_key, public_key_of, read_key
from coordinator.policy.operators import LOCAL_NAMES, add_operator_key, operator_keys
from ledger.budgets import Purpose
from ledger.ratecard import DAY_US

KEYS_FOLDER: Final = "operators"
LOCAL_CAP_UMLX: Final = 10**12
"""A million MLX for each purpose: more than one machine can work off."""
LOCAL_DAYS: Final = 3650
PURPOSES: Final[tuple[Purpose, ...]] = ("grants", "availability", "vouchers")


def ensure_local_budgets(
    session: Session, home: Path, *, now_us: int, purposes: Sequence[Purpose] = PURPOSES
) -> bool:
    """Make the local operators and their budgets, where they are missing.

    False, and nothing is done, in a network with operators of its own: there a budget needs them.
    Raises KeyFileError, OSError.
    """
    known = {row.name: row for row in operator_keys(session)}
    if any(name not in LOCAL_NAMES or row.revoked_us is not None for name, row in known.items()):
        return False
    keys = {name: _key(home / KEYS_FOLDER / f"{name}.key") for name in LOCAL_NAMES}
    if any(known[name].public_key != public_key_of(keys[name]) for name in known):
        return False
    for name in LOCAL_NAMES:
        if name not in known:
            _ = add_operator_key(session, name, public_key_of(keys[name]), now_us=now_us)
    with_room = {
        state.document.budget.purpose
        for state in budget_states(session, now_us=now_us)
        if state.left_umlx and state.document.budget.expires_us > now_us
    }
    for purpose in purposes:
        if purpose not in with_room:
            _ = submit_budget(session, _signed(purpose, keys, now_us=now_us), now_us=now_us)
    return True


def _key(path: Path) -> Ed25519PrivateKey:
    if path.exists():
        return read_key(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return make_key(path)


def _signed(purpose: Purpose, keys: dict[str, Ed25519PrivateKey], *, now_us: int) -> BudgetDocument:
    document = BudgetDocument(
        budget=BudgetText(
            id=new_id("budget"),
            purpose=purpose,
            reason="A network on one machine",
            cap_umlx=str(LOCAL_CAP_UMLX),
            valid_from_us=now_us,
            expires_us=now_us + LOCAL_DAYS * DAY_US,
        )
    )
    for name, key in keys.items():
        document = sign(document, name, key)
    return document
