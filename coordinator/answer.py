"""From token ids to the text a submitter sees: decoding, stop strings, counts, log probabilities.

Pure. The outcome depends on the sequence of ids alone, never on how it was cut into pushes, so
an answer is rebuilt by pushing its delivered prefix again.

Stop strings follow generation: the first that is *complete* ends the answer, which is cut where
it begins; of several complete at one character the longest counts.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from node_agent.protocol.messages import FinishReason, TokenLogprob

AnswerEnd = Literal["stop", "length", "cancelled"]

# What OpenAI's API gives for a token of no measurable probability; also for NaN.
LOGPROB_MIN: Final = -9999.0
_ENDS: Final[dict[FinishReason, AnswerEnd]] = {
    "eos": "stop",
    "length": "length",
    "cancelled": "cancelled",
}


class TokenRangeError(ValueError):
    """An id that the model does not have: the node's fault, not the submitter's."""


@final
class Vocabulary:
    """What every token of a model stands for.

    `pieces[id]` are the exact bytes of token `id`. Ids from `len(pieces)` up to `size` are rows
    that pad the model's output and stand for nothing. Special tokens are left out of answers.
    `strip_first_space`: the tokenizer marks the start of a text with a space that is not in it.
    """

    __slots__ = ("pieces", "size", "special_ids", "strip_first_space", "visible")

    def __init__(
        self,
        pieces: Sequence[bytes],
        special_ids: frozenset[int] = frozenset(),
        *,
        size: int | None = None,
        strip_first_space: bool = False,
    ) -> None:
        self.size: Final = max(len(pieces), size or 0)
        padding = (b"",) * (self.size - len(pieces))
        self.pieces: Final = tuple(pieces) + padding
        self.special_ids: Final = special_ids
        self.strip_first_space: Final = strip_first_space
        self.visible: Final = tuple(
            b"" if token_id in special_ids else piece for token_id, piece in enumerate(self.pieces)
        )

    def check(self, ids: Sequence[int]) -> None:
        """Raise `TokenRangeError` unless every id is one of the model's."""
        if ids and not (min(ids) >= 0 and max(ids) < self.size):
            raise TokenRangeError(f"a token id is outside 0 .. {self.size - 1}")


@dataclass(frozen=True, slots=True)
class TopToken:
    """A token that might have been chosen."""

    token: str
    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class LoggedToken:
    """A chosen token as log probabilities show it.

    `data` are its exact bytes; `token` is their text, with U+FFFD for parts of characters.
    `text_offset` is where its text begins in the answer, in characters.
    """

    token_id: int
    token: str
    data: bytes
    logprob: float
    top: tuple[TopToken, ...]
    text_offset: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What a push adds: text, the log probabilities of the tokens it completes, and the end."""

    text: str
    logprobs: tuple[LoggedToken, ...] = ()
    finished: AnswerEnd | None = None


@final
class AnswerText:
    """One answer in the making. Not for several threads at once."""

    __slots__ = (
        "_decoded_characters",
        "_decoder",
        "_emitted_characters",
        "_finished",
        "_held",
        "_matchers",
        "_queue",
        "_tokens",
        "_trim",
        "_vocabulary",
    )

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str] = ()) -> None:
        """`stop` holds no empty string (raises ValueError)."""
        self._vocabulary: Final = vocabulary
        self._decoder: Final = codecs.getincrementaldecoder("utf-8")("replace")
        self._matchers: Final = [_StopMatcher(text) for text in stop]
        self._queue: Final[deque[tuple[int, LoggedToken]]] = deque()
        self._held = ""
        self._decoded_characters = 0
        self._emitted_characters = 0
        self._tokens = 0
        self._trim = vocabulary.strip_first_space
        self._finished: AnswerEnd | None = None

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer, special ones and those of the stop string included; tokens pushed
        after the one that completed a stop string are not counted.
        """
        return self._tokens

    @property
    def finished(self) -> AnswerEnd | None:
        """How the answer ended, or None."""
        return self._finished

    @property
    def characters(self) -> int:
        """Characters handed out so far."""
        return self._emitted_characters

    def push(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None) -> Delta:
        """Take the next ids. After the end more ids change nothing.

        `logprobs` is as long as `ids` (else ValueError), for all pushes or for none. Raises
        `TokenRangeError`, with nothing taken, on an id the vocabulary does not have.
        """
        if self._finished is not None:
            return Delta("", (), self._finished)
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError("logprobs must be as long as ids")
        self._vocabulary.check(ids)
        if logprobs is None and not self._matchers:
            return self._push_plainly(ids)
        for index, token_id in enumerate(ids):
            cut = self._take(token_id, None if logprobs is None else logprobs[index])
            if cut is not None:
                return self._end_at(cut)
        held = max((matcher.matched for matcher in self._matchers), default=0)
        return self._emit(self._decoded_characters - held, None)

    def finish(self, reason: FinishReason) -> Delta:
        """The node has ended: flush what was held back. A stop string found before holds."""
        if self._finished is not None:
            return Delta("", (), self._finished)
        # What is left of a character that never became whole can still complete a stop string.
        cut = self._extend(self._decoder.decode(b"", final=True))
        if cut is not None:
            return self._end_at(cut)
        self._finished = _ENDS[reason]
        return self._emit(self._decoded_characters, self._finished)

    def _push_plainly(self, ids: Sequence[int]) -> Delta:
        visible = self._vocabulary.visible
        text = self._decoder.decode(b"".join([visible[token_id] for token_id in ids]))
        self._tokens += len(ids)
        text = self._trimmed(text)
        self._decoded_characters += len(text)
        self._emitted_characters += len(text)
        return Delta(text)

    def _trimmed(self, text: str) -> str:
        if self._trim and text:
            self._trim = False
            return text.removeprefix(" ")
        return text

    def _take(self, token_id: int, logprob: TokenLogprob | None) -> int | None:
        """Decode one token; the position of the cut if it completes a stop string."""
        data = self._vocabulary.visible[token_id]
        self._tokens += 1
        broken_off = logprob is not None and bool(data) and self._breaks_character(data)
        begin = self._decoded_characters + broken_off
        cut = self._extend(self._decoder.decode(data))
        if logprob is not None and data:
            partial = bool(self._decoder.getstate()[0])
            logged = _logged(self._vocabulary, token_id, logprob, begin)
            self._queue.append((self._decoded_characters + partial, logged))
        return cut

    def _breaks_character(self, data: bytes) -> bool:
        """Whether a character begun by earlier tokens ends unfinished because `data` follows."""
        is_continuation = data[0] & 0xC0 == 0x80
        return not is_continuation and bool(self._decoder.getstate()[0])

    def _extend(self, text: str) -> int | None:
        """Add decoded text; the position of the cut if a stop string is complete in it."""
        text = self._trimmed(text)
        begin = self._decoded_characters
        self._held += text
        self._decoded_characters += len(text)
        best: tuple[int, int] | None = None
        for matcher in self._matchers:
            end = matcher.advance(text)
            if end is not None:
                found = (begin + end, begin + end - len(matcher.text))
                best = found if best is None else min(best, found)
        return None if best is None else best[1]

    def _end_at(self, cut: int) -> Delta:
        self._finished = "stop"
        # A token that ends where the cut is lies before it, also one whose text was trimmed away.
        while self._queue and self._queue[-1][0] > cut and self._queue[-1][1].text_offset >= cut:
            _ = self._queue.pop()
        return self._emit(cut, "stop")

    def _emit(self, until: int, finished: AnswerEnd | None) -> Delta:
        """Hand out the held text up to `until`, and the tokens whose text is out in full."""
        count = until - self._emitted_characters
        text, self._held = self._held[:count], self._held[count:]
        self._emitted_characters = until
        logged: list[LoggedToken] = []
        while self._queue and (finished is not None or self._queue[0][0] <= until):
            logged.append(self._queue.popleft()[1])
        return Delta(text, tuple(logged), finished)


@final
class _StopMatcher:
    """Knuth, Morris and Pratt's automaton of one stop string (SIAM J. Comput. 6(2), 1977).

    `matched` is the length of the longest end of the text so far that begins the stop string:
    just what must be held back.
    """

    __slots__ = ("_fallback", "matched", "text")

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("a stop string must not be empty")
        self.text: Final = text
        self.matched = 0
        self._fallback: Final = _fallbacks(text)

    def advance(self, text: str) -> int | None:
        """Read on; the index after the character of `text` that completes the stop string."""
        pattern, fallback, matched = self.text, self._fallback, self.matched
        if not matched and pattern[0] not in text:
            return None
        for index, character in enumerate(text):
            while matched and pattern[matched] != character:
                matched = fallback[matched]
            if pattern[matched] == character:
                matched += 1
                if matched == len(pattern):
                    return index + 1
        self.matched = matched
        return None


def _fallbacks(text: str) -> tuple[int, ...]:
    """For each n: the longest proper prefix of `text` that also ends its first n characters."""
    found = [0, 0]
    for character in text[1:]:
        length = found[-1]
        while length and text[length] != character:
            length = found[length]
        found.append(length + 1 if text[length] == character else 0)
    return tuple(found)


def _logged(vocabulary: Vocabulary, token_id: int, logprob: TokenLogprob, text_offset: int) -> LoggedToken:
    data = vocabulary.pieces[token_id]
    top = tuple(
        TopToken(_text(piece), piece, _clamped(value))
        for other, value in logprob.top
        if 0 <= other < vocabulary.size
        for piece in (vocabulary.pieces[other],)
    )
    return LoggedToken(token_id, _text(data), data, _clamped(logprob.logprob), top, text_offset)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _clamped(logprob: float) -> float:
    # Written so that NaN, which JSON cannot carry, fails the comparison.
    return min(logprob, 0.0) if logprob >= LOGPROB_MIN else LOGPROB_MIN
