"""Enrolling nodes, letting them connect, and what their owners see of them."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Annotated, Final, cast

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from coordinator import errors
from coordinator.accounts.models import Account
from coordinator.db import database_now_us
from coordinator.nodes.models import Enrolment, Node, Slot
from coordinator.nodes.states import NodeState, may_become
from coordinator.policy.records import log_record
from coordinator.settings import Settings
from node_agent.protocol import messages as wire
from node_agent.protocol.ids import node_id_of
from node_agent.protocol.signing import (
    decode_bytes,
    encode_bytes,
    enrolment_statement,
    hello_statement,
    is_signed_by,
)

# Letters and digits that nobody mistakes for one another.
CODE_ALPHABET: Final = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
CODE_PATTERN: Final = re.compile(f"^[{CODE_ALPHABET}]{{4}}-[{CODE_ALPHABET}]{{4}}$")
POLL_SECONDS: Final = 2.0


class EnrolmentRequest(BaseModel):
    """What a node sends to show its key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    public_key: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{43}$")]
    nonce: Annotated[str, Field(min_length=16, max_length=128)]
    signature: Annotated[str, Field(max_length=100)]
    name: Annotated[str, Field(min_length=1, max_length=100)]
    device: wire.Device | None = None
    hardware: wire.Hardware


class EnrolmentStarted(BaseModel):
    """The code that the owner approves, and how the node asks for the outcome."""

    code: str
    poll_token: str
    expires_in_seconds: float
    poll_seconds: float


class EnrolmentStatus(BaseModel):
    """How an enrolment stands."""

    state: str
    node_id: str
    name: str
    owner: str | None = None


def start_enrolment(session: Session, request: EnrolmentRequest, *, settings: Settings) -> EnrolmentStarted:
    """Note a node's key and make the code for its owner. Raises 400, 409, 429."""
    key = decode_bytes(request.public_key)
    is_signed = any(
        is_signed_by(
            key,
            request.signature,
            enrolment_statement(audience=origin, public_key=request.public_key, nonce=request.nonce),
        )
        for origin in settings.origins
    )
    if not is_signed:
        raise errors.invalid_value(
            "signature", f"it must be made by the key over this coordinator's origin {settings.origin}"
        )
    node_id = node_id_of(key)
    known = session.get(Node, node_id)
    if known is not None and known.revoked_us is None:
        raise errors.conflict("node_known", "This node is enrolled already; start it with 'mlx-node run'.")
    now_us = database_now_us(session)
    session.execute(delete(Enrolment).where(Enrolment.expires_us < now_us))
    pending = session.scalar(select(func.count()).select_from(Enrolment)) or 0
    if pending >= settings.enrolments_pending_max:
        raise errors.rate_limited(retry_after_seconds=60, what="enrolments waiting at once")
    token = encode_bytes(secrets.token_bytes(32))
    letters = "".join(secrets.choice(CODE_ALPHABET) for _ in range(8))
    code = f"{letters[:4]}-{letters[4:]}"
    session.add(
        Enrolment(
            code=code,
            poll_sha256=_digest(token),
            node_id=node_id,
            public_key=request.public_key,
            name=request.name,
            # A node that cannot tell its Mac apart from others is one by its key.
            device=request.device or node_id.removeprefix("node_"),
            hardware=request.hardware.model_dump(mode="json"),
            state="pending",
            created_us=now_us,
            expires_us=now_us + int(settings.enrolment_seconds * 1e6),
        )
    )
    return EnrolmentStarted(
        code=code,
        poll_token=token,
        expires_in_seconds=settings.enrolment_seconds,
        poll_seconds=POLL_SECONDS,
    )


def enrolment_status(session: Session, code: str, poll_token: str) -> EnrolmentStatus:
    """How the enrolment stands, for the node that started it. Raises 404."""
    row = session.get(Enrolment, code)
    if row is None or not hmac.compare_digest(row.poll_sha256, _digest(poll_token)):
        raise errors.not_found("enrolment", code)
    state = row.state
    if state == "pending" and row.expires_us < database_now_us(session):
        state = "expired"
    owner = session.get(Account, row.account_id) if row.account_id else None
    return EnrolmentStatus(
        state=state, node_id=row.node_id, name=row.name, owner=owner.name if owner else None
    )


def approve(session: Session, account_id: str, code: str) -> Node:
    """Make the account the owner of the node that showed this code. Raises 404, 409."""
    row = session.get(Enrolment, code.strip().upper(), with_for_update=True)
    now_us = database_now_us(session)
    if row is None or row.expires_us < now_us:
        raise errors.not_found("enrolment", code)
    if row.state != "pending":
        raise errors.conflict("enrolment_closed", "This code was used already. Run 'mlx-node join' again.")
    row.state, row.account_id = "approved", account_id
    hardware = wire.Hardware.model_validate(row.hardware)
    node = session.get(Node, row.node_id)
    if node is None:
        node = Node(
            id=row.node_id,
            public_key=row.public_key,
            created_us=now_us,
            reserved_bytes=0,
        )
        session.add(node)
    node.account_id, node.name, node.hardware = account_id, row.name, row.hardware
    node.device, node.wanted_seat = row.device, "idle"
    node.state, node.state_reason, node.revoked_us = "offline", None, None
    # A place is its owner's own choice, and this may be another owner.
    node.place_kind, node.place_country, node.place_cell = "none", None, None
    node.lent_bytes, node.seen_us, node.seat = hardware.lent_bytes, now_us, "idle"
    # The id is the digest of the node's key: whoever has the ledger can tell that we put in no other.
    log_record(session, f"node_key:{node.id}", node.id.removeprefix("node_"), now_us=now_us)
    return node


class SocketRefusedError(Exception):
    """The node may not connect; `code` is the WebSocket's close code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def admit_hello(
    session: Session, hello: wire.Hello, *, settings: Settings, unknown: int, revoked: int
) -> Node:
    """The node that the hello proves to be, marked as connected. Raises `SocketRefusedError`."""
    node = session.get(Node, hello.node_id, with_for_update=True)
    if node is None:
        raise SocketRefusedError(unknown, "unknown node: run 'mlx-node join'")
    key = decode_bytes(node.public_key)
    is_signed = any(
        is_signed_by(
            key,
            hello.signature,
            hello_statement(audience=origin, node_id=hello.node_id, nonce=hello.nonce),
        )
        for origin in settings.origins
    )
    if not is_signed:
        raise SocketRefusedError(unknown, f"the signature does not fit the node's key and {settings.origin}")
    if node.revoked_us is not None:
        raise SocketRefusedError(revoked, "this node was removed: run 'mlx-node join' to enrol it again")
    widest = session.scalar(select(func.max(Slot.width)).where(Slot.node_id == node.id)) or 0
    if hello.hardware.lent_bytes < node.reserved_bytes or hello.hardware.width < widest:
        drop_idle_slots(session, node)
    node.lent_bytes = max(hello.hardware.lent_bytes, node.reserved_bytes)
    node.hardware = hello.hardware.model_dump(mode="json")
    node.device = hello.device or node.device
    node.seen_us = database_now_us(session)
    if node.state != "quarantined":  # coming back lifts nothing
        _ = _move(node, "ready")
    return node


def drop_idle_slots(session: Session, node: Node) -> None:
    """Free the memory of the node's slots on which nothing runs."""
    freed = session.scalars(
        delete(Slot).where(Slot.node_id == node.id, Slot.live == 0).returning(Slot.bytes)
    ).all()
    node.reserved_bytes -= sum(freed)
    session.flush()


def mark(session: Session, node_id: str, state: NodeState, reason: str | None = None) -> bool:
    """Note a node's state and that it was seen now; False where its table does not lead there.

    Coming and going lifts no quarantine. A node that is gone from the records changes nothing.
    """
    node = session.get(Node, node_id, with_for_update=True)
    if node is None:
        return False
    node.seen_us = database_now_us(session)
    return node.state != "quarantined" and _move(node, state, reason)


def _move(node: Node, state: NodeState, reason: str | None = None) -> bool:
    if not may_become(cast("NodeState", node.state), state):
        return False
    node.state, node.state_reason = state, reason
    return True


def revoke(session: Session, node_id: str) -> None:
    """The node left: it may not connect again before it is enrolled anew."""
    node = session.get(Node, node_id, with_for_update=True)
    if node is not None:
        _ = _move(node, "offline")
        node.revoked_us = database_now_us(session)
        drop_idle_slots(session, node)


def nodes_of(session: Session, account_id: str) -> Sequence[Node]:
    """The account's nodes, oldest first."""
    return session.scalars(
        select(Node).where(Node.account_id == account_id, Node.revoked_us.is_(None)).order_by(Node.created_us)
    ).all()


def own_node(session: Session, account_id: str, node_id: str) -> Node:
    """One of the account's nodes. Raises 404."""
    node = session.get(Node, node_id)
    if node is None or node.account_id != account_id:
        raise errors.not_found("node", node_id)
    return node


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
