"""Macs that are away and were here lately: hosts that may come back."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.nodes.models import Node
from coordinator.placement.types import HostFacts
from node_agent.protocol.messages import Hardware

AWAY_MAX: Final = 200  # of those that lend most: what none of them can run, hardly any other can


def away_hosts(session: Session, *, least_bytes: int, since_us: int) -> list[HostFacts]:
    """Those that lend so much and were here since then, as placement would see them if they were."""
    away = (
        select(Node)
        .where(
            Node.revoked_us.is_(None),
            Node.state.in_(("offline", "asleep")),
            Node.lent_bytes >= least_bytes,
            Node.seen_us >= since_us,
        )
        .order_by(Node.lent_bytes.desc(), Node.id)
        .limit(AWAY_MAX)
    )
    return [_facts(node) for node in session.scalars(away)]


def _facts(node: Node) -> HostFacts:
    return HostFacts(
        node_id=node.id,
        owner_id=node.account_id,
        hardware=Hardware.model_validate(node.hardware),
        lent_bytes=node.lent_bytes,
        is_online=True,
        is_suspect=False,
        mode="ready",
        region=node.place_country or "",
    )
