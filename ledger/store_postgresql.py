"""Reading and writing a batch on PostgreSQL: one statement each, with whole columns as arrays.

The statements go to the driver past SQLAlchemy, several to a journey (psycopg's pipeline): BEGIN,
the lock and the reading, then the writing and COMMIT. Their texts never change, so the server keeps
them prepared. Columns are written as array literals (PostgreSQL documentation, 8.15.2): joining
strings costs far less than to have the driver adapt each value.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from typing import Any, Final, cast
from uuid import UUID

import psycopg
from psycopg.pq import PipelineStatus
from sqlalchemy import Connection

from ledger.rules import Account, Hold
from ledger.store import Changes, OldEntry, Stored, Tip, Wanted

_LOCK: Final = """
    SELECT seq, head, recorded_us, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
      FROM ledger_chain WHERE id = 1 FOR UPDATE
"""

# A statement sees the moment at which it begins. This one begins when the one before has the chain
# row's lock, so it sees what the last writer left. No other row is locked: all writers pass there.
_READ: Final = """
    SELECT 1, NULL, id, seq, recorded_us, needed_umlx, available_umlx, result, request_digest
      FROM ledger_journal WHERE id = ANY (CAST(%s AS uuid[]))
    UNION ALL
    SELECT 2, account_id, id, amount_umlx, expires_us, captured_umlx, refunded_umlx, state, NULL
      FROM ledger_holds WHERE id = ANY (CAST(%s AS uuid[]))
    UNION ALL
    SELECT 3, id, NULL, floor_umlx, posted_umlx, held_umlx, NULL, NULL, NULL
      FROM ledger_accounts
     WHERE id IN (SELECT unnest(CAST(%s AS text[]))
                  UNION SELECT account_id FROM ledger_holds WHERE id = ANY (CAST(%s AS uuid[])))
"""
_ANSWERED: Final = 1
_HOLD: Final = 2

# Parts of one statement see the same moment, which is before any of them; foreign keys are checked
# at its end. What is not a number where a number must be is the only error that SQL can raise at will.
_WRITE: Final = """
    WITH entries AS (
        INSERT INTO ledger_journal (seq, id, kind, reference, recorded_us, request_digest, result,
                                    needed_umlx, available_umlx, body, leaf, head)
        SELECT * FROM unnest(
            CAST(%s AS bigint[]), CAST(%s AS uuid[]), CAST(%s AS text[]), CAST(%s AS text[]),
            CAST(%s AS bigint[]), CAST(%s AS bytea[]), CAST(%s AS text[]), CAST(%s AS bigint[]),
            CAST(%s AS bigint[]), CAST(%s AS text[]), CAST(%s AS bytea[]), CAST(%s AS bytea[]))
    ), legs AS (
        INSERT INTO ledger_postings (seq, leg, account_id, amount_umlx)
        SELECT * FROM unnest(CAST(%s AS bigint[]), CAST(%s AS integer[]), CAST(%s AS text[]),
                             CAST(%s AS bigint[]))
    ), opened AS (
        INSERT INTO ledger_holds (id, account_id, amount_umlx, state, expires_us, captured_umlx,
                                  refunded_umlx, reference, opened_us)
        SELECT * FROM unnest(
            CAST(%s AS uuid[]), CAST(%s AS text[]), CAST(%s AS bigint[]), CAST(%s AS text[]),
            CAST(%s AS bigint[]), CAST(%s AS bigint[]), CAST(%s AS bigint[]), CAST(%s AS text[]),
            CAST(%s AS bigint[]))
    ), changed AS (
        UPDATE ledger_holds SET state = n.state, captured_umlx = n.captured_umlx,
                                refunded_umlx = n.refunded_umlx
          FROM unnest(CAST(%s AS uuid[]), CAST(%s AS text[]), CAST(%s AS bigint[]), CAST(%s AS bigint[]))
               AS n (id, state, captured_umlx, refunded_umlx)
         WHERE ledger_holds.id = n.id
    ), balances AS (
        UPDATE ledger_accounts SET posted_umlx = n.posted_umlx, held_umlx = n.held_umlx
          FROM unnest(CAST(%s AS text[]), CAST(%s AS bigint[]), CAST(%s AS bigint[]))
               AS n (id, posted_umlx, held_umlx)
         WHERE ledger_accounts.id = n.id
    ), moved AS (
        UPDATE ledger_chain SET seq = %s, head = %s, recorded_us = %s WHERE id = 1 AND seq = %s
        RETURNING seq
    )
    SELECT CAST(CASE count(*) WHEN 1 THEN '1' ELSE 'ledger_chain moved under its lock' END AS integer)
      FROM moved
"""


def lock_and_read(connection: Connection, wanted: Wanted) -> tuple[Tip, Stored] | None:
    """As `ledger.store.Store` says, in one journey to the server, that of BEGIN too."""
    driver = _driver(connection)
    hold_ids = plain_array(wanted.hold_ids)
    values = (plain_array(wanted.ids), hold_ids, text_array(wanted.account_ids), hold_ids)
    # Leaving a pipeline is a journey of its own, so `journeys` is not begun once more.
    is_begun = driver.pgconn.pipeline_status != PipelineStatus.OFF
    with nullcontext() if is_begun else driver.pipeline():
        locked = driver.cursor(binary=True).execute(_LOCK, prepare=True)
        read = driver.cursor(binary=True).execute(_READ, values, prepare=True)
        rows = read.fetchall()
    tip = locked.fetchone()
    return None if tip is None else (Tip(*tip), _stored(rows))


@contextmanager
def journeys(connection: Connection) -> Generator[Callable[[], None]]:
    """As `ledger.store.Store` says.

    COMMIT is a statement here: SQLAlchemy's commit would give the connection back to its pool within
    the block, and psycopg's would wait for an answer even if a large statement is not wholly sent.
    """
    driver = _driver(connection)

    def commit() -> None:
        driver.execute("COMMIT", prepare=False)

    with driver.pipeline():
        yield commit


def _driver(connection: Connection) -> psycopg.Connection[tuple[Any, ...]]:
    return cast("psycopg.Connection[tuple[Any, ...]]", connection.connection.driver_connection)


def _stored(rows: Iterable[tuple[Any, ...]]) -> Stored:
    found = Stored([], {}, {})
    for what, name, id_, a, b, c, d, word, digest in rows:
        if what == _HOLD:
            found.holds[id_] = Hold(name, a, word, b, c, d)
        elif what == _ANSWERED:
            found.answered.append(OldEntry(id_, digest, a, b, word, c, d))
        else:
            found.accounts[name] = Account(a, b, c)
    return found


def write(connection: Connection, changes: Changes) -> None:
    """As `ledger.store.Store` says."""
    last = changes.journal[-1]
    accounts = changes.accounts.values()
    values = (
        *_journal_columns(changes),
        *_hold_columns(changes),
        text_array(changes.accounts),
        plain_array([account.posted_umlx for account in accounts]),
        plain_array([account.held_umlx for account in accounts]),
        last.entry.seq,
        last.head,
        last.entry.recorded_us,
        changes.old_seq,
    )
    _driver(connection).cursor().execute(_WRITE, values, prepare=True)


def _journal_columns(changes: Changes) -> tuple[str, ...]:
    entries = [new.entry for new in changes.journal]
    legs = [(entry.seq, number, *leg) for entry in entries for number, leg in enumerate(entry.legs)]
    return (
        plain_array(entry.seq for entry in entries),
        plain_array(entry.id for entry in entries),
        text_array(entry.kind for entry in entries),
        text_array(entry.reference for entry in entries),
        plain_array(entry.recorded_us for entry in entries),
        bytes_array(entry.request_digest for entry in entries),
        text_array(entry.result for entry in entries),
        plain_array(entry.needed_umlx for entry in entries),
        plain_array(entry.available_umlx for entry in entries),
        text_array(new.body for new in changes.journal),
        bytes_array(new.leaf for new in changes.journal),
        bytes_array(new.head for new in changes.journal),
        plain_array(leg[0] for leg in legs),
        plain_array(leg[1] for leg in legs),
        text_array(leg[2] for leg in legs),
        plain_array(leg[3] for leg in legs),
    )


def _hold_columns(changes: Changes) -> tuple[str, ...]:
    opened = [(changes.holds[hold_id], new) for hold_id, new in changes.new_holds.items()]
    changed = {key: hold for key, hold in changes.holds.items() if key not in changes.new_holds}
    return (
        plain_array(changes.new_holds),
        text_array(hold.account_id for hold, _ in opened),
        plain_array(hold.amount_umlx for hold, _ in opened),
        text_array(hold.state for hold, _ in opened),
        plain_array(hold.expires_us for hold, _ in opened),
        plain_array(hold.captured_umlx for hold, _ in opened),
        plain_array(hold.refunded_umlx for hold, _ in opened),
        text_array(new.reference for _, new in opened),
        plain_array(new.opened_us for _, new in opened),
        plain_array(changed),
        text_array(hold.state for hold in changed.values()),
        plain_array(hold.captured_umlx for hold in changed.values()),
        plain_array(hold.refunded_umlx for hold in changed.values()),
    )


def plain_array(values: Iterable[int | UUID | None]) -> str:
    """An array literal of numbers or UUIDs."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def bytes_array(values: Iterable[bytes]) -> str:
    """An array literal of bytes, in hexadecimal."""
    return "{" + ",".join([f'"\\\\x{value.hex()}"' for value in values]) + "}"


def text_array(values: Iterable[str]) -> str:
    r"""An array literal of texts, all in quotes; `"` and `\` get a `\` before them."""
    quoted = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(quoted) + '"}' if quoted else "{}"
