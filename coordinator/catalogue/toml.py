"""Cards written as TOML, in the order in which people read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from node_agent.protocol.cards import ModelCard, UnpinnedCard

Table = Mapping[str, Any]


def card_toml(card: ModelCard | UnpinnedCard, comment: str = "") -> str:
    """The card as a file: plain values first, then tables. Reading it back gives an equal card."""
    fields = card.model_dump(mode="json")
    order = ["source", "shape", "tokenizer", "price"]
    plain = {name: value for name, value in fields.items() if name not in order}
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += [*([""] if lines else []), *_plain(plain)]
    for name in order:
        if name in fields:
            lines += _table(name, fields[name])
    return "\n".join(lines) + "\n"


def _plain(table: Table) -> list[str]:
    simple = {name: value for name, value in table.items() if value is not None}
    return [f"{name} = {_value(value)}" for name, value in simple.items()]


def _table(name: str, table: Table) -> list[str]:
    inner = {key: cast("Table", value) for key, value in table.items() if isinstance(value, dict)}
    lists = {key: rows for key, value in table.items() if (rows := _rows(value))}
    rest = {key: value for key, value in table.items() if key not in inner and key not in lists}
    plain = _plain(rest)
    found = ["", f"[{name}]", *plain] if plain else []
    for key, value in inner.items():
        found += _table(f"{name}.{key}", value)
    for key, rows in lists.items():
        for row in rows:
            found += ["", f"[[{name}.{key}]]", *_plain(row)]
    return found


def _rows(value: object) -> list[Table]:
    """The tables of a list of tables; none for anything else."""
    entries = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Table", entry) for entry in entries if isinstance(entry, dict)]


def _value(value: object) -> str:
    # TOML's strings, numbers, booleans and lists of them are written as JSON's.
    return json.dumps(value, ensure_ascii=False)
