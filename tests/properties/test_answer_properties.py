"""However the ids are cut into pushes, the answer is the same, and right by a slow definition."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coordinator.answer import AnswerEnd, AnswerText, LoggedToken, Vocabulary
from node_agent.protocol.messages import TokenLogprob

PIECES = [
    b"",
    b"<s>",
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"aab",
    b" ",
    "é".encode(),
    b"\xc3",
    b"\xa9",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\x80b",
    b"\xff",
    "\ufffd".encode(),
    "😀a".encode(),
]
SPECIAL = frozenset({1})
# Texts of two letters make stop strings overlap themselves and each other.
IDS = st.lists(st.integers(0, len(PIECES) - 1) | st.integers(2, 6), max_size=40)
STOP = st.text("ab", min_size=1, max_size=6) | st.text("abé😀\ufffd ", min_size=1, max_size=4)
STOPS = st.lists(STOP, max_size=4)
CUTS = st.lists(st.integers(0, 40), max_size=12)

Outcome = tuple[str, tuple[LoggedToken, ...], AnswerEnd, int]


def outcome(
    ids: list[int],
    stops: list[str],
    cuts: list[int],
    *,
    logged: bool = False,
    strip_first_space: bool = False,
) -> Outcome:
    """Push `ids` cut at `cuts`, finish, and gather what came out."""
    vocabulary = Vocabulary(PIECES, SPECIAL, strip_first_space=strip_first_space)
    answer = AnswerText(vocabulary, stops)
    text, logprobs = "", ()
    for begin, end in pairwise(sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})):
        given_logprobs = [TokenLogprob(logprob=-float(index)) for index in range(begin, end)]
        delta = answer.push(ids[begin:end], given_logprobs if logged else None)
        text, logprobs = text + delta.text, logprobs + delta.logprobs
        assert answer.characters == len(text)
    delta = answer.finish("length")
    assert delta.finished is not None
    return text + delta.text, logprobs + delta.logprobs, delta.finished, answer.completion_tokens


def expected(ids: list[int], stops: list[str]) -> tuple[str, AnswerEnd, int]:
    """The definition, one token at a time on whole strings."""
    data = b"".join(b"" if token_id in SPECIAL else PIECES[token_id] for token_id in ids)
    text = data.decode("utf-8", "replace")
    for end in range(1, len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return text[: min(begins)], "stop", tokens_until(ids, text[:end])
    return text, "length", len(ids)


def tokens_until(ids: list[int], text: str) -> int:
    """How many tokens it takes until `text` can be told for sure."""
    for count in range(1, len(ids) + 1):
        data = b"".join(b"" if token_id in SPECIAL else PIECES[token_id] for token_id in ids[:count])
        # A character that might still grow is not told yet.
        sure = {(data + more).decode("utf-8", "replace")[: len(text)] for more in MORE}
        if sure == {text}:
            return count
    return len(ids)


MORE = (b"", b"z", b"\x80", b"\x80\x80", b"\x9f\x98\x80", b"\xa9", b"\x98\x80", b"\x82\xac")


@given(IDS, STOPS)
def test_the_answer_is_as_defined(ids: list[int], stops: list[str]) -> None:
    text, _, finished, tokens = outcome(ids, stops, [])
    assert (text, finished, tokens) == expected(ids, stops)


@given(IDS, STOPS, CUTS, st.booleans(), st.booleans())
def test_cuts_change_nothing(
    ids: list[int], stops: list[str], cuts: list[int], logged: bool, strip: bool
) -> None:
    whole = outcome(ids, stops, [], logged=logged, strip_first_space=strip)
    assert outcome(ids, stops, cuts, logged=logged, strip_first_space=strip) == whole
    one_by_one = list(range(len(ids)))
    assert outcome(ids, stops, one_by_one, logged=logged, strip_first_space=strip) == whole


@given(IDS, STOPS, CUTS)
def test_logprobs_change_no_text(ids: list[int], stops: list[str], cuts: list[int]) -> None:
    plain = outcome(ids, stops, cuts)
    text, logprobs, finished, tokens = outcome(ids, stops, cuts, logged=True)
    assert (text, finished, tokens) == (plain[0], plain[2], plain[3])
    visible = [token_id for token_id in ids if PIECES[token_id] and token_id not in SPECIAL]
    assert [logged.token_id for logged in logprobs] == visible[: len(logprobs)]
    if finished == "length":
        assert len(logprobs) == len(visible)
    offsets = [logged.text_offset for logged in logprobs]
    assert offsets == sorted(offsets)
    assert all(offset < len(text) for offset in offsets)


@given(IDS, STOPS, st.integers(0, 40))
def test_an_answer_is_rebuilt_from_its_prefix(ids: list[int], stops: list[str], cut: int) -> None:
    vocabulary = Vocabulary(PIECES, SPECIAL)
    first, second = AnswerText(vocabulary, stops), AnswerText(vocabulary, stops)
    for token_id in ids[:cut]:
        _ = first.push([token_id])
    _ = second.push(ids[:cut])
    assert first.push(ids[cut:]) == second.push(ids[cut:])
    assert first.finish("eos") == second.finish("eos")
    assert (first.completion_tokens, first.characters) == (
        second.completion_tokens,
        second.characters,
    )
