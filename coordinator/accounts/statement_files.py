"""A statement as a file: CSV, Beancount, hledger; what each is called and served as. Pure."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Final, Literal

from ledger.plaintext import PlainEntry, beancount_text, hledger_text, statement_entries
from ledger.statements import Statement, statement_lines
from ledger.views import write_csv

Format = Literal["json", "csv", "beancount", "hledger"]

CONTENT_TYPES: Final[Mapping[Format, str]] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8; header=present",
    "beancount": "text/plain; charset=utf-8",
    "hledger": "text/plain; charset=utf-8",
}
_SUFFIXES: Final[Mapping[Format, str]] = {
    "json": "json",
    "csv": "csv",
    "beancount": "beancount",
    "hledger": "journal",
}
NODE_DIGITS: Final = 13
"""How much of a node's id a file's name shows: `node_` and 8 hex digits."""


def file_name(form: Format, *, month: str | None, node_id: str | None) -> str:
    """The name to keep a statement under: `statement-2026-03-node_1a2b3c4d.csv`."""
    parts = ["statement", month, node_id[:NODE_DIGITS] if node_id else None]
    return "-".join(part for part in parts if part) + f".{_SUFFIXES[form]}"


def file_text(found: Statement, form: Format, *, title: str, stated_closing_umlx: int) -> str:
    """The whole file.

    `stated_closing_umlx` is what the ledger says that the account had at the end; Beancount and
    hledger check the entries against it, so it must not be added up from them. Raises ValueError
    for JSON, which has more to say than these.
    """
    if form == "csv":
        out = io.StringIO()
        write_csv(statement_lines(found), out)
        return out.getvalue()
    entries = (
        PlainEntry(
            entry.seq,
            str(entry.id),
            entry.recorded_us,
            entry.kind,
            entry.reference,
            ((found.account_id, entry.amount_umlx),),
        )
        for entry in found.entries
    )
    own = statement_entries(found.account_id, found.opening_umlx, found.since_us, entries)
    closing = {found.account_id: stated_closing_umlx, "issuance": -stated_closing_umlx}
    if form == "beancount":
        lines = beancount_text(own, closing, title=title)
    elif form == "hledger":
        lines = hledger_text(own, closing, title=title)
    else:
        raise ValueError(f"form {form!r} is no file of lines")
    return "\n".join(lines) + "\n"
