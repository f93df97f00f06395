"""Make a pinned card of a model's own files: a folder on this machine, or a repository of the hub.

Nothing is taken on trust: sizes come from the safetensors headers and must agree with the index,
with the files and with what `config.json` gives; code, pickles and configurations that would run
code are refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import ValidationError

from coordinator.catalogue.cards import CatalogueError, size_fault
from coordinator.catalogue.pricing import price_of
from coordinator.catalogue.safetensors import (
    WeightsFaultError,
    check_index,
    read_header,
)
from node_agent.protocol.card_rules import (
    CONFIG_BYTES_MAX,
    RefusedModelError,
    check_config,
    check_names,
)
from node_agent.protocol.cards import HubFile, HubRepo, LocalFolder, ModelCard, Tokenizer
from node_agent.sizing.config import UnreadableConfigError, shape_from_config, text_config

INDEX: Final = "model.safetensors.index.json"
BLOCK_BYTES: Final = 1 << 20
NEEDED: Final = ("config.json", "tokenizer.json")
# Types whose models mlx-lm computes in four bytes a number; all others are two.
WIDE_TYPES: Final = frozenset({"float32", "float"})


@dataclass(frozen=True)
class Wishes:
    """What the person who adds a model says of it; None takes what its files say."""

    id: str | None = None
    name: str | None = None
    kind: Literal["chat", "completion"] | None = None
    licence: str | None = None
    context_tokens: int | None = None


@dataclass(frozen=True)
class Found:
    """A model's files: what they are pinned by, how to read the small ones, what the weights hold."""

    default_name: str
    licence: str | None
    files: tuple[HubFile, ...]
    read: Callable[[str], bytes]
    weights_bytes: int
    source: HubRepo | LocalFolder


def sha256_of(path: Path) -> str:
    """A file's digest in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def look_at_folder(folder: Path) -> Found:
    """A model's folder on this machine. Raises `CatalogueError` with the reason if it is refused."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
        # The node checks the very same folder, and refuses what is not needed: say it now.
        check_names(names)
        weights = {name: read_header(folder / name) for name in names if name.endswith(".safetensors")}
        if INDEX in names:
            check_index(_table(INDEX, (folder / INDEX).read_bytes()), weights)
        files = tuple(
            HubFile(name=name, bytes=(folder / name).stat().st_size, sha256=sha256_of(folder / name))
            for name in names
        )
        source = LocalFolder(type="folder", folder=folder.name, files=files)
    except ValidationError as error:
        raise _refused(str(folder), error.errors(include_url=False)[0]["msg"]) from None
    except (RefusedModelError, WeightsFaultError, OSError) as error:
        raise _refused(str(folder), str(error)) from None
    held = sum(file.total_bytes for file in weights.values())
    return Found(folder.name, None, files, lambda name: (folder / name).read_bytes(), held, source)


def make_card(found: Found, wishes: Wishes) -> ModelCard:
    """The card of a model's files. Raises `CatalogueError` with the reason if it is refused."""
    place = found.default_name
    try:
        config = _checked_config(found)
        shape = shape_from_config(config, activation_bytes=_activation_bytes(config))
        context = wishes.context_tokens or _context(config)
        digests = {file.name: file.sha256 for file in found.files}
        template = digests.get("chat_template.jinja")
        card = ModelCard(
            id=wishes.id or default_id(place),
            name=wishes.name or place,
            kind=_kind(wishes, template),
            licence=_licence(found, wishes),
            context_tokens=context,
            weights_bytes=found.weights_bytes,
            source=found.source,
            shape=shape,
            tokenizer=Tokenizer(
                eos_ids=_eos_ids(found, config),
                tokenizer_sha256=digests["tokenizer.json"],
                chat_template_sha256=template,
            ),
            price=price_of(shape, found.weights_bytes, context),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _refused(place, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    except (RefusedModelError, UnreadableConfigError, WeightsFaultError, OSError) as error:
        raise _refused(place, str(error)) from None
    fault = size_fault(card)
    if fault is not None:
        raise _refused(place, f"weights_bytes: {fault}")
    return card


def default_id(name: str) -> str:
    """An id made of a folder's or repository's name."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64]


def _refused(place: str, reason: str) -> CatalogueError:
    return CatalogueError(f"{place}: {reason}")


def _table(name: str, text: bytes) -> Mapping[str, Any]:
    if len(text) > CONFIG_BYTES_MAX and name != INDEX:
        raise RefusedModelError(f"{name}: larger than {CONFIG_BYTES_MAX} bytes")
    try:
        found = cast("object", json.loads(text))
    except ValueError:
        raise RefusedModelError(f"{name}: not valid JSON") from None
    if not isinstance(found, dict):
        raise RefusedModelError(f"{name}: must be an object")
    return cast("Mapping[str, Any]", found)


def _checked_config(found: Found) -> Mapping[str, Any]:
    names = {file.name for file in found.files}
    for name in NEEDED:
        if name not in names:
            raise RefusedModelError(f"{name} is missing")
    if not any(name.endswith(".safetensors") for name in names):
        raise RefusedModelError("there are no weights: no file ends in .safetensors")
    for name in ("tokenizer_config.json", "config.json"):
        if name in names:
            check_config(_table(name, found.read(name)), name)
    return _table("config.json", found.read("config.json"))


def _activation_bytes(config: Mapping[str, Any]) -> int:
    inner = text_config(config)
    kind = inner.get("torch_dtype") or inner.get("dtype") or config.get("torch_dtype")
    return 4 if kind in WIDE_TYPES else 2


def _context(config: Mapping[str, Any]) -> int:
    inner = text_config(config)
    for name in ("max_position_embeddings", "model_max_length", "n_positions"):
        value = inner.get(name)
        if type(value) is int and value > 0:
            return value
    raise RefusedModelError("config.json says no context length; give --context")


def _eos_ids(found: Found, config: Mapping[str, Any]) -> tuple[int, ...]:
    names = {file.name for file in found.files}
    tables = [_table(name, found.read(name)) for name in ("generation_config.json",) if name in names]
    for table in (*tables, config, text_config(config)):
        value = table.get("eos_token_id")
        ids = cast("list[object]", value) if isinstance(value, list) else [value]
        if ids and all(type(each) is int for each in ids):
            return tuple(cast("list[int]", ids))
    raise RefusedModelError("neither generation_config.json nor config.json has an eos_token_id")


def _kind(wishes: Wishes, template_sha256: str | None) -> Literal["chat", "completion"]:
    if wishes.kind == "chat" and template_sha256 is None:
        raise RefusedModelError("chat_template.jinja is missing, and a chat model needs it")
    return wishes.kind or ("chat" if template_sha256 else "completion")


def _licence(found: Found, wishes: Wishes) -> str:
    licence = wishes.licence or found.licence
    if not licence:
        raise RefusedModelError("the licence is not known; give --licence")
    return licence
