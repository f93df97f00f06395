"""Answers made from ids: whole characters, stop strings, counts, log probabilities."""

from __future__ import annotations

import math

import pytest

from coordinator.answer import LOGPROB_MIN, AnswerText, Delta, TokenRangeError, Vocabulary
from node_agent.protocol.messages import TokenLogprob

PIECES = [bytes([byte]) for byte in range(256)] + [
    b"<end>",
    b" hello",
    b" world",
    "é".encode(),
    b"ab",
    b"abc",
    b"abcd",
    b"\n\nUs",
    b"er: hi",
]
END, HELLO, WORLD, E_ACUTE, AB, ABC, ABCD, NN_US, ER_HI = range(256, 265)
VOCABULARY = Vocabulary(PIECES, frozenset({END}), size=300)


def ids_of(text: str) -> list[int]:
    return list(text.encode())


def logs(count: int) -> list[TokenLogprob]:
    return [TokenLogprob(logprob=-float(index)) for index in range(count)]


def test_plain_text() -> None:
    answer = AnswerText(VOCABULARY)
    assert answer.push([HELLO, WORLD]) == Delta(" hello world")
    assert answer.finish("eos") == Delta("", (), "stop")
    assert answer.completion_tokens == 2
    assert answer.characters == 12


def test_a_character_comes_whole() -> None:
    answer = AnswerText(VOCABULARY)
    emoji = "😀".encode()
    assert [answer.push([byte]).text for byte in emoji] == ["", "", "", "😀"]


def test_a_broken_character_is_replaced() -> None:
    answer = AnswerText(VOCABULARY)
    assert answer.push([0xF0, 0x9F]).text == ""
    assert answer.push(ids_of("a")).text == "\ufffda"
    assert answer.push([0xFF]).text == "\ufffd"
    assert answer.push([0xE2, 0x82]).text == ""
    assert answer.finish("length") == Delta("\ufffd", (), "length")
    assert answer.completion_tokens == 6


def test_special_and_padding_tokens_are_silent_and_counted() -> None:
    answer = AnswerText(VOCABULARY)
    assert answer.push([HELLO, END, 299, WORLD]).text == " hello world"
    assert answer.completion_tokens == 4


@pytest.mark.parametrize("bad", [-1, 300, 2**40])
def test_ids_out_of_range(bad: int) -> None:
    answer = AnswerText(VOCABULARY)
    with pytest.raises(TokenRangeError):
        _ = answer.push([HELLO, bad])
    assert answer.completion_tokens == 0
    assert answer.push([HELLO]).text == " hello"


def test_stop_across_tokens_is_held_back_and_cut() -> None:
    answer = AnswerText(VOCABULARY, ["\n\nUser:"])
    assert answer.push([HELLO]).text == " hello"
    assert answer.push([NN_US]).text == ""
    assert answer.push([ER_HI, WORLD, WORLD]) == Delta("", (), "stop")
    assert answer.finished == "stop"
    assert answer.completion_tokens == 3
    assert answer.push([HELLO]) == Delta("", (), "stop")
    assert answer.finish("length") == Delta("", (), "stop")
    assert answer.completion_tokens == 3
    assert answer.characters == 6


def test_what_only_began_a_stop_string_is_released() -> None:
    answer = AnswerText(VOCABULARY, ["abcx"])
    assert answer.push([ABC]).text == ""
    assert answer.push([AB]).text == "abc"
    assert answer.finish("eos") == Delta("ab", (), "stop")


def test_held_text_is_released_as_far_as_it_can_no_longer_match() -> None:
    answer = AnswerText(VOCABULARY, ["aab"])
    assert answer.push(ids_of("aaa")).text == "a"
    assert answer.push(ids_of("b")) == Delta("", (), "stop")
    answer = AnswerText(VOCABULARY, ["ababc"])
    assert answer.push(ids_of("abab")).text == ""
    assert answer.push(ids_of("a")).text == "ab"
    assert answer.push(ids_of("bc")) == Delta("", (), "stop")


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["c", "abcd"], "ab"),
        (["abcd", "c"], "ab"),
        (["bc", "abc"], ""),
        (["abcd", "bcd"], ""),
        (["d"], "abc"),
        (["a"], ""),
    ],
)
def test_the_first_complete_stop_counts_and_the_longest_of_several(stops: list[str], text: str) -> None:
    for ids in ([ABCD], ids_of("abcd"), [AB, *ids_of("cd")]):
        answer = AnswerText(VOCABULARY, stops)
        assert answer.push(ids) == Delta(text, (), "stop")


def test_a_stop_may_be_made_of_part_of_a_token() -> None:
    answer = AnswerText(VOCABULARY, ["wor"])
    assert answer.push([HELLO, WORLD]) == Delta(" hello ", (), "stop")
    assert answer.completion_tokens == 2


def test_a_stop_completed_by_the_end() -> None:
    answer = AnswerText(VOCABULARY, ["\ufffd"])
    assert answer.push([HELLO, 0xC3]).text == " hello"
    assert answer.finish("length") == Delta("", (), "stop")


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        _ = AnswerText(VOCABULARY, [""])


def test_logprobs_come_with_their_text() -> None:
    answer = AnswerText(VOCABULARY, ["!!"])
    first = answer.push([HELLO, 0xC3], logs(2))
    assert [logged.token for logged in first.logprobs] == [" hello"]
    second = answer.push([0xA9, *ids_of("!")], logs(2))
    assert second.text == "é"
    assert [(logged.data, logged.text_offset) for logged in second.logprobs] == [
        (b"\xc3", 6),
        (b"\xa9", 6),
    ]
    assert [logged.token for logged in second.logprobs] == ["\ufffd", "\ufffd"]
    last = answer.finish("eos")
    assert (last.text, [logged.token for logged in last.logprobs]) == ("!", ["!"])


def test_logprobs_of_a_cut_token_stay_and_of_the_stop_string_go() -> None:
    answer = AnswerText(VOCABULARY, ["rld!"])
    delta = answer.push([HELLO, WORLD, *ids_of("!")], logs(3))
    assert delta.text == " hello wo"
    assert [logged.token for logged in delta.logprobs] == [" hello", " world"]
    answer = AnswerText(VOCABULARY, [" world!"])
    delta = answer.push([HELLO, WORLD, *ids_of("!")], logs(3))
    assert [logged.token for logged in delta.logprobs] == [" hello"]
    assert answer.completion_tokens == 3


def test_logprobs_after_a_broken_character() -> None:
    delta = AnswerText(VOCABULARY).push([0xF0, *ids_of("a"), END], logs(3))
    assert delta.text == "\ufffda"
    assert [(logged.token, logged.text_offset) for logged in delta.logprobs] == [
        ("\ufffd", 0),
        ("a", 1),
    ]


def test_logprobs_are_made_fit_for_json() -> None:
    odd = TokenLogprob(
        logprob=math.nan,
        top=((HELLO, -math.inf), (WORLD, 0.5), (300, -1.0), (-1, -1.0), (E_ACUTE, -0.25)),
    )
    (logged,) = AnswerText(VOCABULARY).push([HELLO], [odd]).logprobs
    assert logged.logprob == LOGPROB_MIN
    assert [(top.token, top.logprob) for top in logged.top] == [
        (" hello", LOGPROB_MIN),
        (" world", 0.0),
        ("é", -0.25),
    ]


def test_logprobs_must_be_as_many_as_ids() -> None:
    with pytest.raises(ValueError, match="as long as"):
        _ = AnswerText(VOCABULARY).push([HELLO], logs(2))


def test_the_marking_space_is_stripped_once() -> None:
    vocabulary = Vocabulary(PIECES, frozenset({END}), strip_first_space=True)
    for stops in ([], ["zz"]):
        answer = AnswerText(vocabulary, stops)
        assert answer.push([END]).text == ""
        assert answer.push([HELLO]).text == "hello"
        assert answer.push([HELLO]).text == " hello"


def test_a_token_whose_text_was_stripped_stays_before_a_stop_string() -> None:
    vocabulary = Vocabulary([b" ", b"a"], strip_first_space=True)
    for pushes in ([[0, 1]], [[0], [1]]):
        answer = AnswerText(vocabulary, ["a"])
        made = [answer.push(ids, logs(len(ids))) for ids in pushes]
        assert [logged.token for delta in made for logged in delta.logprobs] == [" "]
        assert (answer.finished, answer.completion_tokens) == ("stop", 2)
