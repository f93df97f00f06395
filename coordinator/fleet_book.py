"""The fleet that placement decides from, kept in step with sockets, slots and attempts.

It is never rebuilt: a node is *marked* when something about it changes (it comes or goes, says
something new, an attempt of it ends, a reservation was refused), and before the next decision the
marked ones are written anew, with their slots as the database has them. In between, choices are
entered in the table itself. All nodes are written anew in turn, too, so that nothing that was
missed stays wrong for long.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator import clock
from coordinator.live import LiveJobs
from coordinator.nodes.channel import Channel
from coordinator.nodes.channel import Fleet as Channels
from coordinator.nodes.health_book import HealthBook
from coordinator.nodes.models import Slot
from coordinator.nodes.pace_book import PaceBook
from coordinator.placement.fairness import HALF_LIFE_SECONDS, Decayed
from coordinator.placement.fleet import APART, HELD, Fleet
from coordinator.placement.types import HostFacts, SlotFacts
from coordinator.settings import Settings
from node_agent.protocol.messages import REVISION_DIGITS

SWEEP_SECONDS: Final = 1.0  # how late it may be noticed that a node has fallen silent
TURN_SECONDS: Final = 10.0  # some nodes that nothing is known to have changed of are looked at so often
TURN_NODES_MIN: Final = 200
LAP_SECONDS: Final = 60.0  # until each node was looked at, however many there are
IDS_MAX: Final = 500  # in one query
LEFT_LATELY_SECONDS: Final = 60.0  # far longer than it takes to write down that a node has left


@dataclass
class _Work:
    """What runs on one node: seconds until each attempt is expected to end, None where not known, and
    until the last of those without a token is expected to have its prompt read."""

    left: list[float | None] = field(default_factory=list[float | None])
    clear_seconds: float = 0.0
    is_kept_apart: bool = False


def read_slots(session: Session, node_ids: Sequence[str]) -> dict[str, list[SlotFacts]]:
    """The slots of these nodes, oldest first; none is told to be warm."""
    found: dict[str, list[SlotFacts]] = {}
    for at in range(0, len(node_ids), IDS_MAX):
        rows = session.execute(
            select(
                Slot.node_id, Slot.id, Slot.card_revision, Slot.bytes, Slot.width, Slot.tokens_max, Slot.live
            )
            .where(Slot.node_id.in_(node_ids[at : at + IDS_MAX]))
            .order_by(Slot.node_id, Slot.created_us, Slot.id)
        )
        for row in rows:
            facts = SlotFacts(
                slot_id=row.id,
                card_revision=row.card_revision,
                bytes=row.bytes,
                width=row.width,
                tokens_max=row.tokens_max,
                live=row.live,
                is_warm=False,
            )
            found.setdefault(row.node_id, []).append(facts)
    return found


@final
class FleetBook:
    """The table of hosts and what it is kept from.

    `mark` and all that changes the table run on the event loop's thread; whoever reads the table
    from another one holds `lock`.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        channels: Channels,
        jobs: LiveJobs,
        health: HealthBook,
        paces: PaceBook,
        revisions: Collection[str] = (),
    ) -> None:
        """`revisions` are those of all cards that are served."""
        self.table: Final = Fleet()
        self.lock: Final = threading.RLock()
        self._settings: Final = settings
        self._channels: Final = channels
        self._jobs: Final = jobs
        self._health: Final = health
        self._paces: Final = paces
        self._revisions: Final = tuple(revisions)
        self._rows: Final[dict[str, int]] = {}
        self._marked: dict[str, None] = {}  # in the order in which they were marked
        self._silent: Final[set[str]] = set()
        self._left_at: Final[dict[str, float]] = {}  # monotonic, of those that left lately
        self._hungry: Final[dict[str, float]] = {}  # seconds, of nodes that take no work just now
        self.given: Final = Decayed()  # seconds of work, of nodes that are not in the table
        self._swept_at = self._turned_at = self._decayed_at = clock.monotonic()
        self._turn: list[str] = []
        channels.on_news = self.mark

    def mark(self, node_id: str) -> None:
        """Something about the node changed."""
        self._marked[node_id] = None

    def row(self, node_id: str) -> int | None:
        """The node's row, if it is connected and was written."""
        return self._rows.get(node_id)

    def unsettled(self) -> list[str]:
        """Nodes of which table and database may not tell yet that they have come or gone."""
        with self.lock:
            here = list(self._channels.channels)
            return [*(node_id for node_id in here if node_id not in self._rows), *self._left_at]

    # -- keeping in step -------------------------------------------------------------------------

    def take_marked(self, now: float) -> list[str]:
        """The nodes to write anew before anything is decided at monotonic time `now`."""
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            self._sweep(now)
        if now - self._turned_at >= TURN_SECONDS:
            self._turned_at = now
            self._next_turn()
        marked, self._marked = self._marked, {}
        return list(marked)

    def _sweep(self, now: float) -> None:
        """Mark those of whom time alone has changed something: silence, and pauses after faults."""
        for node_id, channel in self._channels.channels.items():
            is_silent = now - channel.heard_at > self._settings.node_suspect_seconds
            has_record = self._health.get(channel.device) is not None
            if is_silent != (node_id in self._silent) or has_record:
                self.mark(node_id)

    def _next_turn(self) -> None:
        if not self._turn:
            self._turn = list(self._rows)
        count = max(TURN_NODES_MIN, int(len(self._rows) * TURN_SECONDS / LAP_SECONDS))
        for node_id in self._turn[-count:]:
            self.mark(node_id)
        del self._turn[-count:]

    def refresh(self, node_ids: Sequence[str], slots: Mapping[str, Sequence[SlotFacts]], now: float) -> None:
        """Write these nodes anew. Nodes that are gone leave the table."""
        work = self._work(now) if node_ids else {}
        with self.lock:
            self._let_time_pass(now)
            for node_id in node_ids:
                channel = self._channels.get(node_id)
                if channel is None:
                    self._remove(node_id, now)
                else:
                    self._write(channel, slots.get(node_id, ()), work.get(node_id, _Work()), now)

    def _let_time_pass(self, now: float) -> None:
        table = self.table
        # What should have ended and has not tells nothing about when it will.
        for column in (table.seat_at[: table.rows], table.idle_at[: table.rows]):
            column[column < now] = np.inf
        table.given[: table.rows] *= 0.5 ** ((now - self._decayed_at) / HALF_LIFE_SECONDS)
        self._decayed_at = now

    def _work(self, now: float) -> dict[str, _Work]:
        found: dict[str, _Work] = {}
        wall_us = clock.wall_us()
        for live in self._jobs.open():
            if live.attempt is not None:
                work = found.setdefault(live.attempt.node_id, _Work())
                work.left.append(live.seconds_left(now, wall_us))
                if live.attempt.first_token_us is None and live.attempt.read_at is not None:
                    work.clear_seconds = max(work.clear_seconds, live.attempt.read_at - now)
                work.is_kept_apart = work.is_kept_apart or live.is_kept_apart
        return found

    def _remove(self, node_id: str, now: float) -> None:
        row = self._rows.pop(node_id, None)
        self._silent.discard(node_id)
        if row is None:
            return
        for gone in [gone for gone, at in self._left_at.items() if now - at > LEFT_LATELY_SECONDS]:
            del self._left_at[gone]
        self._left_at[node_id] = now
        self._hungry[node_id] = self._hunger(node_id, row, now)
        self.given.add(node_id, float(self.table.given[row]), now_seconds=now)
        self.table.remove(row)

    def _write(self, channel: Channel, slots: Sequence[SlotFacts], work: _Work, now: float) -> None:
        node_id, table = channel.node_id, self.table
        row = self._rows.get(node_id)
        hungry = self._hunger(node_id, row, now)
        given = self._given(node_id, row, now)
        facts = self._facts(channel, slots, work, now, hungry=hungry, given=given)
        if row is not None and table.flags[row] & HELD:
            facts = replace(facts, is_held_for_older=True)  # for the rest of the round
        (self._silent.add if facts.is_suspect else self._silent.discard)(node_id)
        if row is None:
            row = self._rows[node_id] = table.put(facts, now_seconds=now)
        else:
            table.replace(row, facts, now_seconds=now)
        if table.base[row]:
            self._hungry[node_id] = hungry
        else:
            _ = self._hungry.pop(node_id, None)

    def _hunger(self, node_id: str, row: int | None, now: float) -> float:
        """Seconds that a node was free for work and got none. Away, offline or at work it waits
        for nothing."""
        if row is None or self.table.base[row]:
            return self._hungry.get(node_id, 0.0)
        return 0.0 if self.table.live[row] else max(now - float(self.table.fed_at[row]), 0.0)

    def _given(self, node_id: str, row: int | None, now: float) -> float:
        if row is not None:
            return float(self.table.given[row])
        given = self.given.of(node_id, now_seconds=now)
        if given:
            self.given.add(node_id, -given, now_seconds=now)
        return given

    def _facts(
        self,
        channel: Channel,
        slots: Sequence[SlotFacts],
        work: _Work,
        now: float,
        *,
        hungry: float,
        given: float,
    ) -> HostFacts:
        known = [seconds for seconds in work.left if seconds is not None]
        is_all_known = bool(known) and len(known) == len(work.left)
        pace = self._paces.of(channel.device)
        return HostFacts(
            node_id=channel.node_id,
            owner_id=channel.owner_id,
            hardware=channel.hardware,
            lent_bytes=channel.hardware.lent_bytes,
            is_online=not channel.is_closed,
            is_suspect=now - channel.heard_at > self._settings.node_suspect_seconds,
            mode=channel.mode,
            slots=tuple(
                replace(
                    slot,
                    is_warm=channel.is_warm(slot.card_revision),
                    clear_seconds=work.clear_seconds if slot.live else 0.0,
                )
                for slot in slots
            ),
            standing=self._health.standing(channel.device),
            is_kept_apart=work.is_kept_apart,
            given_seconds=given,
            free_bytes=_free_bytes(channel),
            slots_max=channel.hardware.models_max,
            on_disk=self._on_disk(channel),
            disk_free_bytes=channel.disk_free_bytes,
            network_bytes_per_second=self._settings.fetch_bytes_per_second,
            decode_factor=pace.decode_factor,
            prefill_factor=pace.prefill_factor,
            hungry_seconds=hungry,
            seat_free_seconds=min(known, default=None),
            idle_in_seconds=max(known) if is_all_known else None,
            survival=channel.survival,
            region=channel.region,
        )

    def _on_disk(self, channel: Channel) -> frozenset[str] | None:
        """Nodes tell the beginnings of revisions: of cards they may know no more."""
        if channel.on_disk is None:
            return None
        begun = channel.on_disk
        return frozenset(revision for revision in self._revisions if revision[:REVISION_DIGITS] in begun)

    # -- entering choices ------------------------------------------------------------------------

    def keep_apart(self, row: int) -> None:
        """A job that shares no host was put there."""
        self.table.flags[row] |= APART
        self.table.hold(row, is_held=False)

    def name_slot(self, slot: int, slot_id: str) -> None:
        """Give a slot that was entered before it was made the id that it got."""
        self.table.slots.name(slot, slot_id)

    def take_back(self, node_id: str, seconds: float) -> None:
        """Work that was entered as given is not done there after all."""
        row = self._rows.get(node_id)
        if row is not None:
            self.table.given[row] = max(self.table.given[row] - seconds, 0.0)
        self.mark(node_id)


def _free_bytes(channel: Channel) -> int | None:
    """What is free for slots: what the node's own models hold is free for them."""
    if channel.free_bytes is None:
        return None
    return channel.free_bytes + sum(slot.bytes for slot in channel.slots)
