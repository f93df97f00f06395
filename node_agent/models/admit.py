"""Whether a folder is a model that may be loaded; the rules are those of the cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from node_agent.protocol.card_rules import (
    ALLOWED_NAMES,
    ALLOWED_SUFFIXES,
    CODE_KEYS,
    CONFIG_BYTES_MAX,
    RefusedModelError,
    check_config,
    check_names,
)

__all__ = [
    "ALLOWED_NAMES",
    "ALLOWED_SUFFIXES",
    "CODE_KEYS",
    "CONFIG_BYTES_MAX",
    "RefusedModelError",
    "check_config",
    "check_folder",
    "check_names",
]


def check_folder(folder: Path) -> None:
    """Check every file of a complete model folder. Raises `RefusedModelError`, `OSError`."""
    entries = sorted(folder.iterdir())
    check_names(entry.name for entry in entries)
    for entry in entries:
        if not entry.is_file():
            raise RefusedModelError(f"{entry.name!r}: only plain files are allowed in a model")
        if entry.name in {"config.json", "tokenizer_config.json"}:
            check_config(_read_json(entry), entry.name)


def _read_json(path: Path) -> object:
    if path.stat().st_size > CONFIG_BYTES_MAX:
        raise RefusedModelError(f"{path.name}: larger than {CONFIG_BYTES_MAX} bytes")
    try:
        return cast("object", json.loads(path.read_bytes()))
    except ValueError:
        raise RefusedModelError(f"{path.name}: not valid JSON") from None
