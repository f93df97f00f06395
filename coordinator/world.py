"""Tells MLX World what this coordinator knows; what may be seen of it is decided over there."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select

from coordinator.db import database_now_us
from coordinator.nodes.models import Node
from coordinator.policy.rate_cards import card_in_force
from coordinator.runtime import Runtime
from coordinator.seats.models import SelfTest
from coordinator.world_market import market_of
from coordinator.world_terms import terms_of
from ledger import checkpoints
from web_world.feed import Feed
from web_world.privacy import ALONE_KEPT_US
from web_world.source import NOWHERE, Checkpoint, MacFacts, Place, Pulse, WorldFacts

MEASURED_US: Final = 30 * 24 * 3_600_000_000  # a self-test older than a month says little


def feed_of(runtime: Runtime) -> Feed:
    """The public picture of this coordinator's network."""
    return Feed(lambda: facts_of(runtime), lambda: pulse_of(runtime), lambda: market_of(runtime))


def facts_of(runtime: Runtime) -> WorldFacts:
    """Every Mac that was here in the last seven days, the rules, the newest checkpoint. Blocking."""
    connected = frozenset(runtime.fleet.channels)
    with runtime.database.read() as session:
        now_us = database_now_us(session)
        measured = frozenset(
            session.scalars(select(SelfTest.node_id).where(SelfTest.at_us > now_us - MEASURED_US).distinct())
        )
        rows = session.execute(
            select(
                Node.id,
                Node.account_id,
                Node.seen_us,
                Node.seat,
                Node.hardware,
                Node.place_kind,
                Node.place_country,
                Node.place_cell,
            ).where(Node.revoked_us.is_(None), Node.seen_us > now_us - ALONE_KEPT_US)
        ).all()
        card = card_in_force(session, now_us)
        newest = checkpoints.latest(session.connection())
    macs = tuple(
        MacFacts(
            mac=node_id,
            owner=owner,
            place=_place(kind, country, cell),
            seen_us=now_us if node_id in connected else seen_us,
            memory_bytes=hardware["memory_bytes"],
            bandwidth_bytes_per_second=hardware["bandwidth_bytes_per_second"],
            is_measured=node_id in measured,
            is_ultra_seat=seat == "ultra",
        )
        for node_id, owner, seen_us, seat, hardware, kind, country, cell in rows
    )
    terms = terms_of(runtime.settings, card)
    return WorldFacts(now_us=now_us, macs=macs, terms=terms, checkpoint=_checkpoint(newest))


def pulse_of(runtime: Runtime) -> Pulse:
    """The work of this moment. Does not block."""
    return Pulse(
        busy=frozenset(runtime.jobs.attempts_by_node()),
        connected=len(runtime.fleet.channels),
        jobs_ended=runtime.endings.jobs_ended,
        tokens_relayed=runtime.relay.tokens_relayed,
    )


def _place(kind: str, country: str | None, cell: str | None) -> Place:
    match kind:
        case "area":
            return Place("area", country or "", cell or "")
        case "country":
            return Place("country", country or "")
        case _:
            return NOWHERE


def _checkpoint(stored: checkpoints.StoredCheckpoint | None) -> Checkpoint | None:
    if stored is None:
        return None
    return Checkpoint(entries=stored.size, root=stored.root.hex(), signed_us=stored.created_us)
