"""Macs that are away and were here lately: hosts that may come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from coordinator.nodes.models import Node
from coordinator.placement.types import HostFacts
from node_agent.protocol.messages import Hardware

AWAY_MAX: Final = 200  # of those that lend most: what none of them can run, hardly any other can


def away_hosts(
    session: Session, *, least_bytes: int, since_us: int, unsettled: Sequence[str] = ()
) -> list[HostFacts]:
    """Those that lend so much and were here since then, as placement would see them if they were.

    `unsettled` come or go at this moment, whatever their state on record.
    """
    was_here = and_(Node.state.in_(("offline", "asleep")), Node.seen_us >= since_us)
    is_unsettled = and_(Node.id.in_(unsettled[:AWAY_MAX]), Node.state != "quarantined")
    away = (
        select(Node)
        .where(Node.revoked_us.is_(None), or_(was_here, is_unsettled), Node.lent_bytes >= least_bytes)
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
