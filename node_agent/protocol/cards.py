"""Model cards: what a model is, where its files come from, what it costs.

A card's `id` is stable; its *revision* is the digest of its content. Jobs, slots, prices and
receipts name `id@revision`, so nothing that matters can change under a running job.

Only a `ModelCard`, whose files are pinned by hash, can be offered to a node: an `UnpinnedCard`
tells sizes and prices, and no message of the protocol takes one.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field, model_validator

from node_agent.protocol.shapes import CardPart, Shape

__all__ = [
    "CardId",
    "CardPart",
    "FileName",
    "HubFile",
    "HubRepo",
    "LocalFolder",
    "ModelCard",
    "ModelFacts",
    "PackagedGguf",
    "Price",
    "RepoName",
    "Sha256Hex",
    "Shape",
    "Source",
    "Tokenizer",
    "UnpinnedCard",
    "UnpinnedHub",
]

CardId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Sha256Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
RepoName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class PackagedGguf(CardPart):
    """A GGUF file that lies inside a wheel on a Python package index."""

    type: Literal["packaged-gguf"]
    package: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    version: Annotated[str, Field(pattern=r"^[0-9][0-9a-z.]{0,31}$")]
    wheel: FileName
    wheel_bytes: Annotated[int, Field(gt=0)]
    wheel_sha256: Sha256Hex
    member: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}\.gguf$")]
    member_bytes: Annotated[int, Field(gt=0)]
    member_sha256: Sha256Hex
    dequantise_to: Literal["float32", "float16", "bfloat16"]


class HubFile(CardPart):
    """One file of a hub repository, pinned by content."""

    name: FileName
    bytes: Annotated[int, Field(gt=0)]
    sha256: Sha256Hex


class HubRepo(CardPart):
    """An mlx-lm folder on the Hugging Face hub, pinned by commit and by file hashes."""

    type: Literal["hub"]
    repo: RepoName
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    files: Annotated[tuple[HubFile, ...], Field(min_length=1, strict=False)]


class LocalFolder(CardPart):
    """An mlx-lm folder that lies below the models folder each owner names on his own machine."""

    type: Literal["folder"]
    folder: FileName
    files: Annotated[tuple[HubFile, ...], Field(min_length=1, strict=False)]


Source = Annotated[PackagedGguf | HubRepo | LocalFolder, Field(discriminator="type")]


class Tokenizer(CardPart):
    """The tokenizer that the coordinator applies; hashes of the exact files' content."""

    eos_ids: Annotated[tuple[int, ...], Field(min_length=1, strict=False)]
    tokenizer_sha256: Sha256Hex
    chat_template_sha256: Sha256Hex | None = None


class Price(CardPart):
    """Integers of uMLX per million tokens."""

    input_umlx_per_million: Annotated[int, Field(ge=0)]
    cached_input_umlx_per_million: Annotated[int, Field(ge=0)]
    output_umlx_per_million: Annotated[int, Field(ge=0)]
    minimum_umlx: Annotated[int, Field(ge=1)] = 100

    @model_validator(mode="after")
    def _check_cached(self) -> Price:
        # The bound of a job takes all input at the full price; it must stay a bound.
        if self.cached_input_umlx_per_million > self.input_umlx_per_million:
            raise ValueError("cached_input_umlx_per_million must not exceed input_umlx_per_million")
        return self


class ModelFacts(CardPart):
    """What is known of a model without its files: enough to size, forecast and price it."""

    id: CardId
    name: Annotated[str, Field(min_length=1, max_length=100)]
    kind: Literal["chat", "completion"]
    licence: Annotated[str, Field(min_length=1, max_length=64)]
    context_tokens: Annotated[int, Field(gt=0)]
    weights_bytes: Annotated[int, Field(gt=0)]
    shape: Shape
    price: Price


class ModelCard(ModelFacts):
    """One model as the network serves it."""

    source: Source
    tokenizer: Tokenizer

    @property
    def revision(self) -> str:
        """SHA-256 of the card's canonical JSON (sorted keys, no spaces, ASCII), in hex."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode("ascii")).hexdigest()


class UnpinnedHub(CardPart):
    """Where a model's files are published, and what its sizes were taken from; no hashes yet."""

    type: Literal["unpinned"]
    repo: RepoName
    evidence: Annotated[str, Field(min_length=1, max_length=300)]


class UnpinnedCard(ModelFacts):
    """A model that the network knows and cannot serve until its files are pinned by hash."""

    source: UnpinnedHub
