"""A GGUF file's tokenizer as the three files that mlx-lm and the coordinator read.

Only the metadata of the GGUF is read (the tensors stay untouched on disk), and nothing here
needs mlx. The same GGUF always gives the same bytes, so their hashes can be pinned by a card.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

T = TypeVar("T")

# Values of `tokenizer.ggml.token_type`, from the GGUF specification.
CONTROL_TOKEN: Final = 3
USER_DEFINED_TOKEN: Final = 4

# `tokenizer.ggml.pre` names the split of text before byte-pair merging. True: every digit alone.
SPLITS_DIGITS: Final[dict[str, bool]] = {"gpt-2": False, "smollm": True}


class UnsupportedGgufError(ValueError):
    """The GGUF holds something that cannot be converted faithfully; the text says what."""


class GgufMetadata:
    """The key-value part of one GGUF file."""

    def __init__(self, path: Path) -> None:
        """Raises `UnsupportedGgufError` if the file is not GGUF, `OSError` if unreadable."""
        try:
            self._fields = GGUFReader(path, "r").fields
        except (ValueError, KeyError, IndexError) as error:
            raise UnsupportedGgufError(f"{path.name}: not a readable GGUF file: {error}") from error

    def get(self, key: str, kind: type[T]) -> T:
        """The value of `key`. Raises `UnsupportedGgufError` if absent or of another kind."""
        field = self._fields.get(key)
        value: object = None if field is None else cast("Any", field).contents()
        if not isinstance(value, kind):
            raise UnsupportedGgufError(f"{key}: expected {kind.__name__}, found {type(value).__name__}")
        return value

    def has(self, key: str) -> bool:
        return key in self._fields


def write_tokenizer(gguf_path: Path, out: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `out`.

    Raises `UnsupportedGgufError` for a tokenizer that is not byte-level BPE with a known
    pre-tokenizer, or that has no chat template; `out` is then left as it was.
    """
    metadata = GgufMetadata(gguf_path)
    tokenizer = _tokenizer(metadata)
    template = metadata.get("tokenizer.chat_template", str)
    config = _config(metadata, template)
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "tokenizer.json", tokenizer.to_str(pretty=True))
    _write(
        out / "tokenizer_config.json",
        json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False),
    )
    _write(out / "chat_template.jinja", template)


def _write(path: Path, text: str) -> None:
    # Bytes, so that no platform's newline translation changes a pinned hash.
    path.write_bytes(text.encode())


def _tokenizer(metadata: GgufMetadata) -> Tokenizer:
    model, split = (
        metadata.get("tokenizer.ggml.model", str),
        metadata.get("tokenizer.ggml.pre", str),
    )
    if model != "gpt2":
        raise UnsupportedGgufError(f"tokenizer.ggml.model: {model!r} is not byte-level BPE ('gpt2')")
    if split not in SPLITS_DIGITS:
        known = ", ".join(sorted(SPLITS_DIGITS))
        raise UnsupportedGgufError(f"tokenizer.ggml.pre: {split!r} is not one of {known}")
    tokens = cast("list[str]", metadata.get("tokenizer.ggml.tokens", list))
    merges = cast("list[str]", metadata.get("tokenizer.ggml.merges", list))
    tokenizer = Tokenizer(_byte_pairs(tokens, merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(SPLITS_DIGITS[split])
    tokenizer.decoder = decoders.ByteLevel()
    types = cast("list[int]", metadata.get("tokenizer.ggml.token_type", list))
    if len(types) != len(tokens):
        raise UnsupportedGgufError(f"tokenizer.ggml.token_type: {len(types)} types, {len(tokens)} tokens")
    tokenizer.add_special_tokens(_added(tokens, types, CONTROL_TOKEN, special=True))  # pyright: ignore[reportUnknownMemberType]
    tokenizer.add_tokens(_added(tokens, types, USER_DEFINED_TOKEN, special=False))  # pyright: ignore[reportUnknownMemberType]
    return tokenizer


def _byte_pairs(tokens: list[str], merges: list[str]) -> models.BPE:
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [_merge(line) for line in merges]
    try:
        return models.BPE(vocab=vocab, merges=pairs)
    # The library has no exception class of its own.
    except Exception as error:
        raise UnsupportedGgufError(f"tokenizer.ggml.merges: {error}") from error


def _merge(line: str) -> tuple[str, str]:
    left, separator, right = line.partition(" ")
    if not separator or " " in right:
        raise UnsupportedGgufError("tokenizer.ggml.merges: an entry is not two symbols")
    return left, right


def _pre_tokenizer(digits_alone: bool) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if not digits_alone:
        return byte_level
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])


def _added(tokens: list[str], types: list[int], kind: int, *, special: bool) -> list[AddedToken]:
    return [
        AddedToken(token, normalized=False, special=special)
        for token, its_type in zip(tokens, types, strict=True)
        if its_type == kind
    ]


def _config(metadata: GgufMetadata, template: str) -> dict[str, object]:
    tokens = cast("list[str]", metadata.get("tokenizer.ggml.tokens", list))
    architecture = metadata.get("general.architecture", str)
    config: dict[str, object] = {
        "add_prefix_space": False,
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(f"{architecture}.context_length", int),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        if metadata.has(f"tokenizer.ggml.{key}_token_id"):
            config[f"{name}_token"] = tokens[metadata.get(f"tokenizer.ggml.{key}_token_id", int)]
    return config
