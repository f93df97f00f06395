"""Tokenizer and chat template of a card: the coordinator renders every prompt to ids, once.

**Prompt injection.** Text that a submitter wrote never becomes a control token of a chat, even
if it spells one: `<|im_start|>` in a message is encoded as the plain characters. How: where a
message spells a special token, that spelling is replaced by a marker before the template runs;
the marker tells where it ended up; the whole text is encoded as usual, and the special ids
that fall on such places are replaced by the spelled-out encoding. Hence

- messages that spell no special token get exactly the ids of Hugging Face's
  `apply_chat_template`;
- in others only the spelled tokens differ. A template that inspects contents for special tokens
  sees the marker instead, and one that joins or cuts contents so that a special token first
  arises there is not caught;
- tokens that were added without being marked special (such as `<think>`) stay what they are in
  any text, as they do in the history of an answer.

A raw completion's prompt is the submitter's whole: there special tokens are parsed.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast, final

from tokenizers import AddedToken, Tokenizer

from coordinator.answer import Vocabulary
from coordinator.openai.request import ChatMessage
from coordinator.template_worker import TemplateError, TemplateWorkers

Decoder = dict[str, Any]

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NAMED_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token")
# Private-use characters, which no filter of a template changes.
_MARK_BEGIN: Final = "\ue000"
_MARK_END: Final = "\ue001"


class TokenizerFilesError(ValueError):
    """The folder's files are missing, broken or of a kind that is not supported."""


@final
class CardTokenizer:
    """Tokenizer and template of one model folder. Thread safe, stateless after loading."""

    def __init__(self, folder: Path, workers: TemplateWorkers, *, model_vocab: int | None = None) -> None:
        """Load `tokenizer.json`, and `tokenizer_config.json` and `chat_template.jinja` if there.

        `model_vocab` is the card's vocabulary size: models pad theirs beyond the tokenizer's.
        Raises `TokenizerFilesError`.
        """
        source = _read(folder / "tokenizer.json")
        config = _load_config(folder / "tokenizer_config.json")
        self._workers: Final = workers
        self._named: Final = _named_tokens(config)
        self._tokenizer: Final = _tokenizer_of(source, self._named)
        self._spelling: Final = _tokenizer_of(source, self._named)
        self._spelling.encode_special_tokens = True
        self._template: Final = _template_of(folder, config)
        added = self._tokenizer.get_added_tokens_decoder()
        special = {token_id: token.content for token_id, token in added.items() if token.special}
        self._special_ids: Final = frozenset(special)
        self._special_text: Final = _alternation(special.values())
        self.vocabulary: Final = _vocabulary(
            self._tokenizer, added, self._special_ids, _decoder_of(source), model_vocab
        )
        self._longest_token_bytes: Final = max(1, *map(len, self.vocabulary.pieces))

    @property
    def has_chat_template(self) -> bool:
        """Whether `render` can work at all."""
        return self._template is not None

    @property
    def vocab_size(self) -> int:
        """Ids are below this: the model's vocabulary, padding included."""
        return self.vocabulary.size

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes than this; at least 1."""
        return self._longest_token_bytes

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; empty for padding. Raises `TokenRangeError`."""
        self.vocabulary.check((token_id,))
        return self.vocabulary.pieces[token_id]

    def encode(self, text: str) -> list[int]:
        """A raw prompt's ids: special tokens are parsed, and what the tokenizer puts before a
        text (usually BOS, unless the text begins with it) is put.
        """
        bos = self._named.get("bos_token")
        add = not (bos and text.startswith(bos))
        return self._tokenizer.encode(text, add_special_tokens=add).ids

    def count(self, text: str) -> int:
        """How many tokens a piece of an answer is; for engines that return text alone."""
        return len(self._spelling.encode(text, add_special_tokens=False).ids)

    def render(self, messages: Sequence[ChatMessage]) -> list[int]:
        """A chat's ids, ready for the assistant's turn.

        Raises `TokenizerFilesError` without a template, else what `TemplateWorkers.render` does,
        and `TemplateError` when nothing comes out.
        """
        if self._template is None:
            raise TokenizerFilesError("this model has no chat template")
        marker = _Marker(self._special_text)
        turns = [{"role": turn.role, "content": marker.hide(turn.content)} for turn in messages]
        text = self._workers.render(
            self._template,
            {
                "messages": turns,
                "tools": None,
                "documents": None,
                "add_generation_prompt": True,
                **self._named,
            },
        )
        if not text:
            raise TemplateError("the chat template gave no text")
        if not marker.hidden:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._encode_hidden(*marker.reveal(text))

    def _encode_hidden(self, text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
        """Encode `text`, spelling out the special tokens that lie in one of the sorted `spans`."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = []
        waiting = 0
        for token_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            while waiting < len(spans) and spans[waiting][1] <= begin:
                waiting += 1
            is_hidden = waiting < len(spans) and spans[waiting][0] < end
            if is_hidden and token_id in self._special_ids:
                spelled = self._spelling.encode(text[begin:end], add_special_tokens=False)
                ids.extend(spelled.ids)
            else:
                ids.append(token_id)
        return ids


@final
class _Marker:
    """Replaces spellings of special tokens by markers, and finds them again."""

    def __init__(self, special_text: re.Pattern[str] | None) -> None:
        self._special_text: Final = special_text
        # Not to be guessed, so no message can hold a marker of its own.
        self._nonce: Final = str(secrets.randbits(64))
        self.hidden: Final[list[str]] = []

    def hide(self, content: str) -> str:
        """`content` with a marker for every special token that it spells."""
        if self._special_text is None:
            return content
        return self._special_text.sub(self._hide_one, content)

    def _hide_one(self, match: re.Match[str]) -> str:
        self.hidden.append(match.group())
        return f"{_MARK_BEGIN}{self._nonce}-{len(self.hidden) - 1}{_MARK_END}"

    def reveal(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """The text with the spellings back, and their places in it."""
        marker = re.compile(f"{_MARK_BEGIN}{self._nonce}-([0-9]+){_MARK_END}")
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        length = read = 0
        for match in marker.finditer(text):
            before, spelled = text[read : match.start()], self.hidden[int(match.group(1))]
            parts += (before, spelled)
            length += len(before) + len(spelled)
            spans.append((length - len(spelled), length))
            read = match.end()
        return "".join(parts) + text[read:], spans


# -- loading -------------------------------------------------------------------------------------


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerFilesError(f"cannot read {path.name}: {type(error).__name__}") from None


def _tokenizer_of(source: str, named: Mapping[str, str]) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(source)
    except Exception as error:  # noqa: BLE001  # The library raises bare Exception.
        raise TokenizerFilesError(f"tokenizer.json is not usable: {str(error)[:200]}") from None
    # A token that the configuration names is special, whatever tokenizer.json says of it.
    known = [text for text in named.values() if tokenizer.token_to_id(text) is not None]
    _ = tokenizer.add_special_tokens(known)  # pyright: ignore[reportUnknownMemberType]
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _load_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        config = json.loads(_read(path))
    except ValueError:
        raise TokenizerFilesError("tokenizer_config.json is not JSON") from None
    if not isinstance(config, dict):
        raise TokenizerFilesError("tokenizer_config.json must be an object")
    return cast("dict[str, Any]", config)


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The tokens that templates call by name; older files give them as objects."""
    found: dict[str, str] = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        text = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _template_of(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return _read(path)
    template = config.get("chat_template")
    if isinstance(template, list):
        named = cast("list[dict[str, Any]]", template)
        template = next((one["template"] for one in named if one.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _alternation(texts: Iterable[str]) -> re.Pattern[str] | None:
    # Where one token's text holds another's the order is of no matter: whatever special id
    # comes to touch a hidden place is spelled out.
    alternatives = "|".join(re.escape(text) for text in texts if text)
    return re.compile(alternatives) if alternatives else None


def _decoder_of(source: str) -> list[Decoder]:
    """The decoder of a tokenizer.json as a flat list of steps."""
    decoder = cast("Decoder | None", json.loads(source).get("decoder"))
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _vocabulary(
    tokenizer: Tokenizer,
    added: dict[int, AddedToken],
    special_ids: frozenset[int],
    decoder: list[Decoder],
    model_vocab: int | None,
) -> Vocabulary:
    steps = {step["type"] for step in decoder}
    if "ByteLevel" in steps:
        piece_of = _byte_level_piece
    elif "ByteFallback" in steps:
        piece_of = _byte_fallback_piece
    else:
        raise TokenizerFilesError("only byte-level and byte-fallback tokenizers are supported")
    names = {token_id: text for text, token_id in tokenizer.get_vocab().items()}
    pieces = [b""] * (max(names, default=-1) + 1)
    for token_id, text in names.items():
        pieces[token_id] = text.encode("utf-8") if token_id in added else piece_of(text)
    strips = any(step["type"] == "Strip" and step.get("start", 0) > 0 for step in decoder)
    return Vocabulary(pieces, special_ids, size=model_vocab, strip_first_space=strips)


def _byte_fallback_piece(text: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(text)
    return bytes((int(match[1], 16),)) if match else text.replace("\u2581", " ").encode("utf-8")


def _byte_level_piece(text: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF_CHARACTER.__getitem__, text))
    except KeyError:
        # A piece outside the byte alphabet can only be meant as it stands.
        return text.encode("utf-8")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes of Latin-1 stand for themselves, the others, in order,
    for the characters from U+0100 on (Radford et al. 2019, `encoder.py`).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF_CHARACTER: Final = _byte_alphabet()
