"""Reading and writing a batch on PostgreSQL: one statement each, with whole columns as arrays.

The statements' texts never change, so the server keeps them prepared. Columns are written as array
literals (PostgreSQL documentation, 8.15.2): joining strings costs far less than to have the driver
adapt each value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from sqlalchemy import BigInteger, Connection, Integer, LargeBinary, Text, Uuid, column, text

from ledger.rules import Account, Hold
from ledger.store import Changes, OldEntry, Stored

# One statement sees one moment, and the chain row was locked in a statement before: what it sees
# is what the last writer left. No row but the chain's is locked, since all writers pass there.
_READ: Final = text("""
    SELECT 1 AS what, NULL AS name, id, seq AS a, recorded_us AS b, needed_umlx AS c, available_umlx AS d,
           result AS word, request_digest
      FROM ledger_journal WHERE id = ANY (CAST(:ids AS uuid[]))
    UNION ALL
    SELECT 2, account_id, id, amount_umlx, expires_us, captured_umlx, refunded_umlx, state, NULL
      FROM ledger_holds WHERE id = ANY (CAST(:hold_ids AS uuid[]))
    UNION ALL
    SELECT 3, id, NULL, floor_umlx, posted_umlx, held_umlx, NULL, NULL, NULL
      FROM ledger_accounts
     WHERE id IN (SELECT unnest(CAST(:account_ids AS text[]))
                  UNION SELECT account_id FROM ledger_holds WHERE id = ANY (CAST(:hold_ids AS uuid[])))
""").columns(
    column("what", Integer),
    column("name", Text),
    column("id", Uuid),
    *(column(name, BigInteger) for name in "abcd"),
    column("word", Text),
    column("request_digest", LargeBinary),
)
_ANSWERED: Final = 1
_HOLD: Final = 2

# Parts of one statement see the same moment, which is before any of them; foreign keys are checked
# at its end.
_WRITE: Final = text("""
    WITH entries AS (
        INSERT INTO ledger_journal (seq, id, kind, reference, recorded_us, request_digest, result,
                                    needed_umlx, available_umlx, body, leaf, head)
        SELECT * FROM unnest(
            CAST(:entry_seq AS bigint[]), CAST(:entry_id AS uuid[]), CAST(:entry_kind AS text[]),
            CAST(:entry_reference AS text[]), CAST(:entry_recorded_us AS bigint[]),
            CAST(:entry_request_digest AS bytea[]), CAST(:entry_result AS text[]),
            CAST(:entry_needed_umlx AS bigint[]), CAST(:entry_available_umlx AS bigint[]),
            CAST(:entry_body AS text[]), CAST(:entry_leaf AS bytea[]), CAST(:entry_head AS bytea[]))
    ), legs AS (
        INSERT INTO ledger_postings (seq, leg, account_id, amount_umlx)
        SELECT * FROM unnest(CAST(:leg_seq AS bigint[]), CAST(:leg_number AS integer[]),
                             CAST(:leg_account_id AS text[]), CAST(:leg_amount_umlx AS bigint[]))
    ), opened AS (
        INSERT INTO ledger_holds (id, account_id, amount_umlx, state, expires_us, captured_umlx,
                                  refunded_umlx, reference, opened_us)
        SELECT * FROM unnest(
            CAST(:new_id AS uuid[]), CAST(:new_account_id AS text[]), CAST(:new_amount_umlx AS bigint[]),
            CAST(:new_state AS text[]), CAST(:new_expires_us AS bigint[]),
            CAST(:new_captured_umlx AS bigint[]), CAST(:new_refunded_umlx AS bigint[]),
            CAST(:new_reference AS text[]), CAST(:new_opened_us AS bigint[]))
    ), changed AS (
        UPDATE ledger_holds SET state = n.state, captured_umlx = n.captured_umlx,
                                refunded_umlx = n.refunded_umlx
          FROM unnest(CAST(:hold_id AS uuid[]), CAST(:hold_state AS text[]),
                      CAST(:hold_captured_umlx AS bigint[]), CAST(:hold_refunded_umlx AS bigint[]))
               AS n (id, state, captured_umlx, refunded_umlx)
         WHERE ledger_holds.id = n.id
    ), balances AS (
        UPDATE ledger_accounts SET posted_umlx = n.posted_umlx, held_umlx = n.held_umlx
          FROM unnest(CAST(:account_id AS text[]), CAST(:account_posted_umlx AS bigint[]),
                      CAST(:account_held_umlx AS bigint[])) AS n (id, posted_umlx, held_umlx)
         WHERE ledger_accounts.id = n.id
    )
    UPDATE ledger_chain SET seq = :seq, head = :head, recorded_us = :recorded_us
     WHERE id = 1 AND seq = :old_seq
""")


def read(connection: Connection, ids: list[UUID], hold_ids: list[UUID], account_ids: list[str]) -> Stored:
    """As `ledger.store.Store` says."""
    found = Stored([], {}, {})
    wanted = {
        "ids": plain_array(ids),
        "hold_ids": plain_array(hold_ids),
        "account_ids": text_array(account_ids),
    }
    for what, name, id_, a, b, c, d, word, digest in connection.execute(_READ, wanted):
        if what == _ANSWERED:
            found.answered.append(OldEntry(id_, digest, a, b, word, c, d))
        elif what == _HOLD:
            found.holds[id_] = Hold(name, a, word, b, c, d)
        else:
            found.accounts[name] = Account(a, b, c)
    return found


def write(connection: Connection, changes: Changes) -> bool:
    """As `ledger.store.Store` says."""
    last = changes.journal[-1]
    values = {
        "old_seq": changes.old_seq,
        "seq": last.entry.seq,
        "head": last.head,
        "recorded_us": last.entry.recorded_us,
        **_journal_columns(changes),
        **_hold_columns(changes),
        "account_id": text_array(changes.accounts),
        "account_posted_umlx": plain_array(account.posted_umlx for account in changes.accounts.values()),
        "account_held_umlx": plain_array(account.held_umlx for account in changes.accounts.values()),
    }
    return connection.execute(_WRITE, values).rowcount == 1


def _journal_columns(changes: Changes) -> dict[str, str]:
    entries = [new.entry for new in changes.journal]
    legs = [(entry.seq, number, *leg) for entry in entries for number, leg in enumerate(entry.legs)]
    return {
        "entry_seq": plain_array(entry.seq for entry in entries),
        "entry_id": plain_array(entry.id for entry in entries),
        "entry_kind": text_array(entry.kind for entry in entries),
        "entry_reference": text_array(entry.reference for entry in entries),
        "entry_recorded_us": plain_array(entry.recorded_us for entry in entries),
        "entry_request_digest": bytes_array(entry.request_digest for entry in entries),
        "entry_result": text_array(entry.result for entry in entries),
        "entry_needed_umlx": plain_array(entry.needed_umlx for entry in entries),
        "entry_available_umlx": plain_array(entry.available_umlx for entry in entries),
        "entry_body": text_array(new.body for new in changes.journal),
        "entry_leaf": bytes_array(new.leaf for new in changes.journal),
        "entry_head": bytes_array(new.head for new in changes.journal),
        "leg_seq": plain_array(leg[0] for leg in legs),
        "leg_number": plain_array(leg[1] for leg in legs),
        "leg_account_id": text_array(leg[2] for leg in legs),
        "leg_amount_umlx": plain_array(leg[3] for leg in legs),
    }


def _hold_columns(changes: Changes) -> dict[str, str]:
    opened = [(changes.holds[hold_id], new) for hold_id, new in changes.new_holds.items()]
    changed = {key: hold for key, hold in changes.holds.items() if key not in changes.new_holds}
    return {
        "new_id": plain_array(changes.new_holds),
        "new_account_id": text_array(hold.account_id for hold, _ in opened),
        "new_amount_umlx": plain_array(hold.amount_umlx for hold, _ in opened),
        "new_state": text_array(hold.state for hold, _ in opened),
        "new_expires_us": plain_array(hold.expires_us for hold, _ in opened),
        "new_captured_umlx": plain_array(hold.captured_umlx for hold, _ in opened),
        "new_refunded_umlx": plain_array(hold.refunded_umlx for hold, _ in opened),
        "new_reference": text_array(new.reference for _, new in opened),
        "new_opened_us": plain_array(new.opened_us for _, new in opened),
        "hold_id": plain_array(changed),
        "hold_state": text_array(hold.state for hold in changed.values()),
        "hold_captured_umlx": plain_array(hold.captured_umlx for hold in changed.values()),
        "hold_refunded_umlx": plain_array(hold.refunded_umlx for hold in changed.values()),
    }


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
