"""Make the cards of models that are known but not pinned, from `models.toml`.

    python -m coordinator.catalogue.build [--check]

Sizes follow from the published configurations, prices from the rate card. `--check` writes nothing
and fails if a card is not what it would be written as.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from coordinator.catalogue.cards import BUILT_IN
from coordinator.catalogue.pricing import price_of
from coordinator.catalogue.toml import card_toml
from node_agent.protocol.cards import UnpinnedCard, UnpinnedHub
from node_agent.protocol.shapes import Shape
from node_agent.sizing.config import shape_from_config
from node_agent.sizing.weights import computed_bytes

SOURCE: Final = Path(__file__).with_name("models.toml")
Width = Literal["4bit", "8bit", "bf16", "mxfp4-q8", "int4"]

_MXFP4: Final = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
WIDTHS: Final[Mapping[Width, Mapping[str, Any]]] = {
    "4bit": {"group_size": 64, "bits": 4},
    "8bit": {"group_size": 64, "bits": 8},
    "bf16": {},
    "mxfp4-q8": {"group_size": 64, "bits": 8, "switch_mlp": _MXFP4},
    "int4": {"group_size": 64, "bits": 16, "switch_mlp": {"group_size": 32, "bits": 4}},
}
WORDS: Final[Mapping[Width, str]] = {
    "4bit": "4-bit",
    "8bit": "8-bit",
    "bf16": "bfloat16",
    "mxfp4-q8": "MXFP4 experts, the rest 8-bit",
    "int4": "INT4 experts, the rest bfloat16",
}
# mlx-lm's own recipe keeps these families' choice of experts at 8 bits.
ROUTERS_AT_8: Final = frozenset(
    {"qwen3_moe", "qwen3_next", "qwen3_5_moe", "gpt_oss", "minimax_m2", "gemma4_text"}
)


class Model(BaseModel):
    """One entry of `models.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    licence: str
    context_tokens: int
    evidence: str
    repos: dict[Width, str]
    config: dict[str, Any]


def read_models() -> list[Model]:
    """The entries of `models.toml`, in its order."""
    return [Model.model_validate(entry) for entry in tomllib.loads(SOURCE.read_text("utf-8"))["model"]]


def shape_of(model: Model, width: Width) -> Shape:
    """The model's shape in one of its quantisations."""
    table = dict(WIDTHS[width])
    if table and model.config["model_type"] in ROUTERS_AT_8:
        table["model.layers.0.mlp.gate"] = {"group_size": 64, "bits": 8}
    return shape_from_config({**model.config, "quantization": table or None})


def unpinned_card(model: Model, width: Width) -> UnpinnedCard:
    """The card of one variant."""
    shape = shape_of(model, width)
    size = computed_bytes(shape)
    return UnpinnedCard(
        id=f"{model.id}-{width}",
        name=f"{model.name} ({WORDS[width]})",
        kind="chat",
        licence=model.licence,
        context_tokens=model.context_tokens,
        weights_bytes=size,
        source=UnpinnedHub(type="unpinned", repo=model.repos[width], evidence=model.evidence),
        shape=shape,
        price=price_of(shape, size, model.context_tokens),
    )


def files() -> Iterator[tuple[Path, str]]:
    """Every card's file and its text."""
    comment = "Known, not pinned: cannot be served yet. Written by `python -m coordinator.catalogue.build`."
    for model in read_models():
        for width in model.repos:
            card = unpinned_card(model, width)
            yield BUILT_IN / f"{card.id}.toml", card_toml(card, comment)


def main() -> int:
    """Write the cards, or check them. Exit code 1 if one is not as it would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    is_check, stale = parser.parse_args().check, list[Path]()
    for path, text in files():
        if not is_check:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            stale.append(path)
    for path in stale:
        sys.stderr.write(f"{path.name}: not what models.toml gives; run it without --check\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
