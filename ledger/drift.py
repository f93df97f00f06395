"""Replay the stored journal and compare all that is derived from it: chain, tree, checkpoints, books.

Reads the whole ledger a page at a time; memory grows with accounts and open holds, not entries.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from ledger import journal, models
from ledger.audit import Auditor, Finding
from ledger.chain import GENESIS_HEAD, leaf_of_text, leaf_text, next_head
from ledger.journal import StoredEntry
from ledger.merkle import Frontier, fold
from ledger.tree import BITS, BLOCK


@dataclass(frozen=True)
class Drift:
    """One thing in the books that is not as it must be; `rule` names the rule that is broken."""

    rule: str
    subject: str
    expected: int | str
    found: int | str


def drift_of_journal(connection: Connection) -> list[Drift]:
    """What does not follow from the entries; empty if all does.

    Stops at the first entry that breaks the chain. After one that breaks a rule of the books,
    balances and holds are no longer compared.
    """
    tip = connection.execute(select(models.chain)).one()
    replay = _Replay(connection)
    while True:
        replay.begin_page()
        found = journal.page(connection, replay.seq + 1, replay.seq + journal.PAGE_ENTRIES)
        if not found:
            break
        for stored in found:
            fault = replay.see(stored)
            if fault is not None:
                return [fault, *replay.drifts]
    later = connection.execute(select(func.max(models.journal.c.seq))).scalar_one()
    if later is not None and later != replay.seq:
        return [Drift("seq_is_gapless", str(later), replay.seq + 1, later), *replay.drifts]
    if (tip.seq, bytes(tip.head)) != (replay.seq, replay.head):
        subject = str(replay.seq)
        return [
            Drift("chain_row_is_the_last_entry", subject, replay.head.hex(), bytes(tip.head).hex()),
            *replay.drifts,
        ]
    return replay.finish()


class _Replay:
    """The journal's consequences so far, compared with what is stored as it goes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.seq = 0
        self.head = GENESIS_HEAD
        self.drifts: list[Drift] = []
        self._auditor: Auditor | None = Auditor()
        self._tree = Frontier()
        # Leaves, roots of 256 leaves, roots of 256**2, ... that do not fill a block yet.
        self._open_blocks: list[list[bytes]] = [[]]
        self._nodes = {
            (row.height, row.position): bytes(row.hash) for row in connection.execute(select(models.tree))
        }
        self._signed: dict[int, bytes] = {}

    def see(self, stored: StoredEntry) -> Drift | None:
        """Take the next entry; a fault of the chain itself is returned."""
        self.seq += 1
        subject = str(self.seq)
        if stored.entry.seq != self.seq:
            return Drift("seq_is_gapless", str(stored.entry.seq), self.seq, stored.entry.seq)
        digest = hashlib.sha256(stored.body.encode()).digest()
        if stored.entry.request_digest != digest:
            return Drift("digest_is_of_the_body", subject, digest.hex(), stored.entry.request_digest.hex())
        text = leaf_text(stored.entry)
        leaf = leaf_of_text(text.encode())
        self.head = next_head(self.head, leaf)
        if (stored.leaf, stored.head) != (leaf, self.head):
            return Drift("chain_recomputes", subject, self.head.hex(), stored.head.hex())
        self._grow(leaf)
        self._audit(subject, json.loads(text), json.loads(stored.body))
        return None

    def _audit(self, subject: str, entry: list[Any], body: dict[str, Any]) -> None:
        if self._auditor is None:
            return
        try:
            _ = self._auditor.see(entry, body)
        except Finding as finding:
            self.drifts.append(Drift(finding.rule, subject, "a sound entry", finding.detail))
            self._auditor = None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.drifts.append(
                Drift("entry_is_shaped_like_one", subject, "a sound entry", type(error).__name__)
            )
            self._auditor = None

    def _grow(self, leaf: bytes) -> None:
        self._tree.append(leaf)
        digest, level = leaf, 0
        while True:
            if level == len(self._open_blocks):
                self._open_blocks.append([])
            block = self._open_blocks[level]
            block.append(digest)
            if len(block) < BLOCK:
                break
            digest = fold(block)
            block.clear()
            level += 1
            self._compare_node(level * BITS, (self.seq >> level * BITS) - 1, digest)
        if self.seq in self._signed:
            self._compare_root(self._signed[self.seq])

    def _compare_node(self, height: int, position: int, digest: bytes) -> None:
        """A subtree that is not stored yet is no fault: upkeep adds it."""
        stored = self._nodes.get((height, position), digest)
        if stored != digest:
            subject = f"height {height}, position {position}"
            self.drifts.append(Drift("tree_is_of_the_leaves", subject, digest.hex(), stored.hex()))

    def _compare_root(self, stored: bytes) -> None:
        root = self._tree.root()
        if root != stored:
            self.drifts.append(Drift("checkpoint_is_of_the_tree", str(self.seq), root.hex(), stored.hex()))

    def begin_page(self) -> None:
        """Read the checkpoints that the next page of entries reaches."""
        size = models.checkpoints.c.size
        rows = self._connection.execute(
            select(size, models.checkpoints.c.root).where(
                size.between(self.seq + 1, self.seq + journal.PAGE_ENTRIES)
            )
        )
        self._signed = {row.size: bytes(row.root) for row in rows}

    def finish(self) -> list[Drift]:
        """All that was found, with what is stored beyond the entries, balances and holds compared."""
        size = models.checkpoints.c.size
        for beyond in self._connection.execute(select(size).where(size > self.seq)).scalars():
            self.drifts.append(Drift("checkpoint_is_of_the_tree", str(beyond), self.seq, beyond))
        for height, position in self._nodes:
            if position + 1 > self.seq >> height:
                subject = f"height {height}, position {position}"
                self.drifts.append(Drift("tree_is_of_the_leaves", subject, "nothing", "a subtree"))
        if self._auditor is not None:
            self._compare_books(self._auditor)
        return self.drifts

    def _compare_books(self, auditor: Auditor) -> None:
        for row in self._connection.execute(select(models.accounts).order_by(models.accounts.c.id)):
            posted, held = auditor.posted.pop(row.id, 0), auditor.held.get(row.id, 0)
            if row.posted_umlx != posted:
                self.drifts.append(Drift("balance_is_of_the_entries", row.id, posted, row.posted_umlx))
            if row.held_umlx != held:
                self.drifts.append(Drift("held_is_of_the_entries", row.id, held, row.held_umlx))
        for name in auditor.posted:
            self.drifts.append(Drift("account_exists", name, 1, 0))
        table = models.holds
        rows = self._connection.execute(select(table).where(table.c.state == "open"))
        stored = {str(row.id): (row.account_id, row.amount_umlx, row.expires_us) for row in rows}
        wanted = {
            name: (hold.account_id, hold.amount_umlx, hold.expires_us)
            for name, hold in auditor.open_holds.items()
        }
        for name in sorted(stored.keys() | wanted.keys()):
            if stored.get(name) != wanted.get(name):
                self.drifts.append(
                    Drift("open_hold_is_of_the_entries", name, str(wanted.get(name)), str(stored.get(name)))
                )
