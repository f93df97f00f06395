"""The Merkle tree over the journal's leaves, kept so that a root or proof reads little.

The table `ledger_tree` holds the roots of complete subtrees of 256, 256**2, ... leaves; the leaves
themselves are the journal's. A proof over a million entries reads some 1500 hashes in about six
queries. `advance` adds what the journal has grown by; what it has not added yet is computed from
the leaves when asked for, so a table that lags makes proofs slower, never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects import postgresql, sqlite

from ledger import merkle, models

BITS: Final = 8
BLOCK: Final = 1 << BITS
MAX_BLOCKS: Final = 16  # some 4,000 entries: SQLite's writers wait for a step of that


class TreeReader:
    """Complete subtrees of the tree at one moment; `node` is a `merkle.Node`. Keeps what it read."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._blocks: Final[dict[tuple[int, int], list[bytes]]] = {}

    def node(self, level: int, index: int) -> bytes:
        """The root over the leaves from index * 2**level on, 2**level of them.

        Raises ValueError if the journal does not have them all.
        """
        height = level - level % BITS
        first, count = index << (level - height), 1 << (level - height)
        block = self.block(height, first // BLOCK)
        found = block[first % BLOCK : first % BLOCK + count]
        if len(found) != count:
            raise ValueError("the journal does not have so many entries")
        return merkle.fold(found)

    def block(self, height: int, number: int) -> list[bytes]:
        """Up to 256 neighbouring hashes of one height, as many as are complete."""
        found = self._blocks.get((height, number))
        if found is None:
            found = self._leaves(number) if height == 0 else self._stored(height, number)
            self._blocks[height, number] = found
        return found

    def _leaves(self, number: int) -> list[bytes]:
        return leaves(self._connection, number * BLOCK, (number + 1) * BLOCK)

    def _stored(self, height: int, number: int) -> list[bytes]:
        table = models.tree.c
        rows = self._connection.execute(
            select(table.position, table.hash)
            .where(
                table.height == height,
                table.position >= number * BLOCK,
                table.position < (number + 1) * BLOCK,
            )
            .order_by(table.position)
        )
        stored = {row.position: bytes(row.hash) for row in rows}
        found: list[bytes] = []
        for position in range(number * BLOCK, (number + 1) * BLOCK):
            digest = stored.get(position)
            if digest is None:
                below = self.block(height - BITS, position)
                if len(below) < BLOCK:
                    break
                digest = merkle.fold(below)
            found.append(digest)
        return found

    def inclusion_proof(self, seq: int, size: int) -> list[bytes]:
        """The audit path of entry `seq` (from 1) in the tree of `size` entries. Raises ValueError."""
        return merkle.inclusion_proof(seq - 1, size, self.node)


def leaves(connection: Connection, begin: int, end: int) -> list[bytes]:
    """The leaf hashes of the entries begin+1 .. end, fewer at the journal's end.

    Raises ValueError if one of them is missing in between.
    """
    seq = models.journal.c.seq
    rows = connection.execute(
        select(seq, models.journal.c.leaf).where(seq > begin, seq <= end).order_by(seq)
    ).all()
    if rows and rows[-1].seq != begin + len(rows):
        raise ValueError(f"the journal has a gap between entries {begin + 1} and {rows[-1].seq}")
    return [bytes(row.leaf) for row in rows]


def root(connection: Connection, size: int) -> bytes:
    """The root over the first `size` entries. Raises ValueError if there are not so many."""
    return merkle.root(size, TreeReader(connection).node)


def inclusion_proof(connection: Connection, seq: int, size: int) -> list[bytes]:
    """The audit path of entry `seq` (from 1) in the tree of `size` entries. Raises ValueError."""
    return TreeReader(connection).inclusion_proof(seq, size)


def consistency_proof(connection: Connection, old: int, new: int) -> list[bytes]:
    """The proof that the tree of `old` entries begins that of `new` entries. Raises ValueError."""
    return merkle.consistency_proof(old, new, TreeReader(connection).node)


def advance(connection: Connection, max_blocks: int = MAX_BLOCKS) -> int:
    """Store subtrees that have become complete, at most `max_blocks` of 256 entries a call.

    Returns how many of 256 entries it stored: call it again until that is 0. Reads the journal
    alone, takes no lock that a writer of entries waits for; two at once do no harm.
    """
    size = connection.execute(select(models.chain.c.seq)).scalar_one()
    done = 0
    height, below = BITS, size
    while below >= BLOCK:
        begin = _stored_count(connection, height)
        end = min(below // BLOCK, begin + max_blocks)
        _store(connection, height, begin, _folds(connection, height, begin, end))
        if height == BITS:
            done = max(0, end - begin)
        height, below = height + BITS, end
    return done


def _stored_count(connection: Connection, height: int) -> int:
    query = select(func.max(models.tree.c.position)).where(models.tree.c.height == height)
    last = connection.execute(query).scalar_one()
    return 0 if last is None else last + 1


def _folds(connection: Connection, height: int, begin: int, end: int) -> list[bytes]:
    if begin >= end:
        return []
    if height == BITS:
        row: Sequence[bytes] = leaves(connection, begin * BLOCK, end * BLOCK)
    else:
        reader = TreeReader(connection)
        row = [digest for number in range(begin, end) for digest in reader.block(height - BITS, number)]
    if len(row) != (end - begin) * BLOCK:
        raise ValueError("the journal has fewer entries than the chain row says")
    return [merkle.fold(row[i : i + BLOCK]) for i in range(0, len(row), BLOCK)]


def _store(connection: Connection, height: int, begin: int, hashes: Sequence[bytes]) -> None:
    if not hashes:
        return
    rows = [{"height": height, "position": begin + i, "hash": digest} for i, digest in enumerate(hashes)]
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    insert = dialect.insert(models.tree).on_conflict_do_nothing(index_elements=["height", "position"])
    connection.execute(insert, rows)
