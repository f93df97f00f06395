"""What may lie in a model's folder: weights as safetensors, settings as JSON, never code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final, cast

ALLOWED_SUFFIXES: Final = frozenset({".safetensors", ".json", ".jinja"})
ALLOWED_NAMES: Final = frozenset({"tokenizer.model", "merges.txt", "vocab.txt"})
# Keys of a config that make a loader import code that lies beside the weights.
CODE_KEYS: Final = frozenset({"auto_map", "model_file", "custom_pipelines"})
CONFIG_BYTES_MAX: Final = 4 * 1024**2


class RefusedModelError(ValueError):
    """The model holds something that could run code or that no loader needs; says what."""


def check_names(names: Iterable[str]) -> None:
    """Raise `RefusedModelError` for the first name that is not of an allowed kind."""
    for name in names:
        path = PurePosixPath(name)
        if len(path.parts) != 1 or name.startswith("."):
            raise RefusedModelError(f"{name!r}: only plain file names are allowed")
        if path.suffix not in ALLOWED_SUFFIXES and name not in ALLOWED_NAMES:
            allowed = ", ".join(sorted(ALLOWED_SUFFIXES | ALLOWED_NAMES))
            raise RefusedModelError(f"{name!r}: only {allowed} are allowed in a model")


def check_config(config: object, name: str = "config.json") -> None:
    """Raise `RefusedModelError` if a config, at any depth, asks a loader to run its own code."""
    pending: list[object] = [config]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            table = cast("Mapping[str, object]", value)
            for key in sorted(CODE_KEYS & table.keys()):
                raise RefusedModelError(f"{name}: the key {key!r} would run code of the model")
            pending.extend(table.values())
        elif isinstance(value, list):
            pending.extend(cast("list[object]", value))


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
