"""What may lie in a model's folder: weights as safetensors, settings as JSON, never code.

Both sides hold to it: the coordinator when a card is made, the node when its files arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final, cast

ALLOWED_SUFFIXES: Final = frozenset({".safetensors", ".json", ".jinja"})
ALLOWED_NAMES: Final = frozenset({"tokenizer.model", "merges.txt", "vocab.txt"})
# Files of a repository that tell people of a model; they are neither wanted nor a danger.
IGNORED_SUFFIXES: Final = frozenset({".md", ".txt", ".png", ".jpg", ".jpeg", ".svg", ".pdf", ".gif"})
IGNORED_NAMES: Final = frozenset(
    {".gitattributes", ".gitignore", "LICENSE", "LICENCE", "NOTICE", "USE_POLICY"}
)
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


def wanted_names(names: Iterable[str]) -> list[str]:
    """The files of a repository that a model needs, sorted.

    What people read is left out. Raises `RefusedModelError` for anything else: code, pickles and
    archives beside the weights are a sign that they are not what they seem.
    """
    found: list[str] = []
    for name in sorted(names):
        path = PurePosixPath(name)
        is_allowed = path.suffix in ALLOWED_SUFFIXES or name in ALLOWED_NAMES
        is_ignored = path.name in IGNORED_NAMES or path.suffix in IGNORED_SUFFIXES
        if is_ignored and not is_allowed:
            continue
        check_names([name])
        found.append(name)
    return found
