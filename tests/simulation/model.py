"""The scripted model: every answer is known beforehand, so that any continuation can be checked.

A token follows from the prompt, the sampling seed and *all* tokens before it. Every token is
written as three hexadecimal digits, so that a text says which tokens made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from coordinator.answer import Vocabulary
from coordinator.catalogue.cards import Catalogue
from node_agent.protocol.cards import HubFile, LocalFolder, ModelCard, Price, Shape, Tokenizer

VOCAB: Final = 512
EOS_ID: Final = 2
DIGITS: Final = 3
ORDINARY_FROM: Final = 16
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True)
class Answer:
    """What the model says to one prompt, at most `max_tokens` of it."""

    token_ids: tuple[int, ...]
    finish_reason: Literal["eos", "length"]


class Script:
    """The model while it answers one prompt."""

    def __init__(self, prompt_ids: Sequence[int], seed: int) -> None:
        self._state = seed & _MASK
        for token_id in prompt_ids:
            self.read(token_id)

    def read(self, token_id: int) -> None:
        """One token more that the next ones follow from."""
        self._state = ((self._state ^ token_id) * 6364136223846793005 + 1442695040888963407) & _MASK

    def next(self) -> int:
        """The next token; `EOS_ID` ends the answer."""
        draw = self._state >> 24
        token_id = EOS_ID if draw % 61 == 0 else ORDINARY_FROM + draw % (VOCAB - ORDINARY_FROM)
        self.read(token_id)
        return token_id


def answer(prompt_ids: Sequence[int], seed: int, max_tokens: int) -> Answer:
    """The whole answer."""
    script = Script(prompt_ids, seed)
    ids: list[int] = []
    while len(ids) < max_tokens:
        token_id = script.next()
        if token_id == EOS_ID:
            return Answer(tuple(ids), "eos")
        ids.append(token_id)
    return Answer(tuple(ids), "length")


def text_of(token_ids: Sequence[int]) -> str:
    """The text that these tokens make."""
    return "".join(f"{token_id:03x}" for token_id in token_ids)


VOCABULARY: Final = Vocabulary([f"{token_id:03x}".encode() for token_id in range(VOCAB)])


class ScriptedTokenizer:
    """As much of a card's tokenizer as prompts of token ids need."""

    vocabulary: Final = VOCABULARY
    vocab_size: Final = VOCAB
    longest_token_bytes: Final = DIGITS
    has_chat_template: Final = False

    def encode(self, text: str) -> list[int]:
        """Inverse of `text_of`."""
        return [int(text[at : at + DIGITS], 16) for at in range(0, len(text), DIGITS)]


_FILE: Final = HubFile(name="model.safetensors", bytes=1, sha256="0" * 64)


class FixedCard(ModelCard):
    """A card that works its revision out once: many thousands of worlds share it."""

    @cached_property
    def _revision(self) -> str:
        return super().revision

    @property
    def revision(self) -> str:
        """As every card's."""
        return self._revision


def _card(name: str, *, layers: int, weights_bytes: int, output_umlx: int) -> ModelCard:
    return FixedCard(
        id=name,
        name=name,
        kind="completion",
        licence="none",
        context_tokens=1024,
        weights_bytes=weights_bytes,
        source=LocalFolder(type="folder", folder=name, files=(_FILE,)),
        shape=Shape(
            model_type="llama",
            layers=layers,
            hidden=256,
            intermediate=512,
            heads=4,
            kv_heads=2,
            head_dim=64,
            vocab=VOCAB,
        ),
        tokenizer=Tokenizer(eos_ids=(EOS_ID,), tokenizer_sha256="0" * 64),
        price=Price(
            input_umlx_per_million=output_umlx // 10,
            cached_input_umlx_per_million=output_umlx // 40,
            output_umlx_per_million=output_umlx,
            minimum_umlx=100,
        ),
    )


SMALL: Final = _card("small-4bit", layers=4, weights_bytes=300_000_000, output_umlx=5_000_000)
MIDDLE: Final = _card("middle-4bit", layers=16, weights_bytes=2_000_000_000, output_umlx=40_000_000)
LARGE: Final = _card("large-4bit", layers=32, weights_bytes=6_000_000_000, output_umlx=150_000_000)
CARDS: Final = (SMALL, MIDDLE, LARGE)
CATALOGUE: Final = Catalogue({card.id: card for card in CARDS}, {"small": SMALL.id}, {})
