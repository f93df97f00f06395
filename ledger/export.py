"""Write the whole journal as lines that anyone can check offline: `ledger.export_format` says how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from ledger import checkpoints, journal
from ledger.chain import GENESIS_HEAD, leaf_text
from ledger.export_format import checkpoint_line, entry_line, footer_line, header_line

Connect = Callable[[], AbstractContextManager[Connection]]


class NothingToExport(LookupError):
    """There is no checkpoint yet, so nothing is signed that an export could be checked against."""


def export_lines(connect: Connect) -> Iterator[bytes]:
    """The file's lines, each with its newline, up to the newest checkpoint.

    `connect` opens a connection for one page; no transaction is held while a reader is slow, and
    one page is in memory at a time. Raises NothingToExport before the first line.
    """
    with connect() as connection:
        last = checkpoints.latest(connection)
    if last is None:
        raise NothingToExport("the ledger has no checkpoint yet; try again in a minute")
    return _lines(connect, last)


def _lines(connect: Connect, last: checkpoints.StoredCheckpoint) -> Iterator[bytes]:
    yield header_line(last.note)
    postings, signed_before, head = 0, 0, GENESIS_HEAD
    for first in range(1, last.size + 1, journal.PAGE_ENTRIES):
        end = min(last.size, first + journal.PAGE_ENTRIES - 1)
        with connect() as connection:
            entries = journal.page(connection, first, end)
            signed = checkpoints.latest(connection, end)
        for stored in entries:
            postings += len(stored.entry.legs)
            head = stored.head
            yield entry_line(stored.body, leaf_text(stored.entry), stored.head, stored.leaf)
            # One a page: a quiet network signs each minute, and a file need not hold all of that.
            if signed is not None and signed.size == stored.entry.seq < last.size:
                signed_before += 1
                yield checkpoint_line(signed.note)
    yield footer_line(last.size, head, postings, signed_before)
