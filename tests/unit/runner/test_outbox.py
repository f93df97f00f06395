"""Lines are complete, in order, parseable, and gathered."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from node_agent.runner.messages import (
    Alive,
    Ended,
    FromRunner,
    Prefilled,
    RunFailed,
    Tokens,
    from_runner,
)
from node_agent.runner.outbox import LOGPROB_MIN, Outbox, Scored


class Pipe:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def messages(self) -> list[FromRunner]:
        lines = b"".join(self.writes).splitlines()
        return [from_runner.validate_json(line) for line in lines]


def test_the_first_token_goes_at_once_and_later_ones_are_gathered() -> None:
    pipe = Pipe()
    outbox = Outbox(pipe.write, gather_seconds=0.019)
    outbox.open("a")
    for step in range(9):
        outbox.token("a", step, None)
        outbox.settle(now=10.0 + step * 0.005, next_step_seconds=0.005)
    assert pipe.messages() == [
        Tokens(key="a", ids=(0,)),
        Tokens(key="a", ids=(1, 2, 3)),
        Tokens(key="a", ids=(4, 5, 6)),
    ]
    outbox.flush(now=11.0)
    assert pipe.messages()[-1] == Tokens(key="a", ids=(7, 8))


def test_a_slow_model_waits_for_nobody() -> None:
    pipe = Pipe()
    outbox = Outbox(pipe.write, gather_seconds=0.020)
    outbox.open("a")
    for step in range(4):
        outbox.token("a", step, None)
        outbox.settle(now=10.0 + step * 0.1, next_step_seconds=0.1)
    assert [message.ids for message in pipe.messages() if isinstance(message, Tokens)] == [
        (0,),
        (1,),
        (2,),
        (3,),
    ]


def test_nothing_waiting_writes_nothing() -> None:
    pipe = Pipe()
    outbox = Outbox(pipe.write, gather_seconds=0.020)
    outbox.open("a")
    outbox.settle(now=10.0, next_step_seconds=1.0)
    outbox.flush(now=20.0)
    assert pipe.writes == []


def test_an_end_comes_after_the_runs_tokens_in_one_write() -> None:
    pipe = Pipe()
    outbox = Outbox(pipe.write, gather_seconds=1000.0)
    for key in ("a", "b"):
        outbox.open(key)
        outbox.token(key, 1, None)
    outbox.settle(now=10.0, next_step_seconds=0.0)
    before = len(pipe.writes)
    outbox.token("a", 2, None)
    outbox.ended("a", "eos")
    outbox.token("b", 3, None)
    outbox.failed("b", "internal", 'a "quoted" reason')
    outbox.settle(now=10.001, next_step_seconds=0.0)
    assert len(pipe.writes) == before + 1
    assert pipe.messages()[-4:] == [
        Tokens(key="a", ids=(2,)),
        Ended(key="a", finish_reason="eos"),
        Tokens(key="b", ids=(3,)),
        RunFailed(key="b", code="internal", message='a "quoted" reason'),
    ]


def test_a_failure_needs_no_open_run() -> None:
    pipe = Pipe()
    outbox = Outbox(pipe.write, gather_seconds=0.020)
    outbox.failed("never", "request_invalid", "x" * 1000)
    outbox.prefilled("p", 3, 9)
    outbox.send(Alive(active_bytes=5, steps=6))
    outbox.flush(now=0.0)
    assert pipe.messages() == [
        RunFailed(key="never", code="request_invalid", message="x" * 300),
        Prefilled(key="p", done_tokens=3, total_tokens=9),
        Alive(active_bytes=5, steps=6),
    ]


@given(
    key=st.text(max_size=20),
    scores=st.lists(st.tuples(st.floats(), st.lists(st.tuples(st.integers(0, 9), st.floats())))),
)
def test_hand_built_lines_say_what_was_put_in(key: str, scores: list[Scored]) -> None:
    pipe = Pipe()
    outbox = Outbox(pipe.write, gather_seconds=0.020)
    outbox.open(key)
    for token, score in enumerate(scores):
        outbox.token(key, token, score)
    outbox.flush(now=0.0)
    if not scores:
        assert pipe.writes == []
        return
    (message,) = pipe.messages()
    assert isinstance(message, Tokens)
    assert message.key == key
    assert message.ids == tuple(range(len(scores)))
    assert message.logprobs is not None
    for (chosen, top), said in zip(scores, message.logprobs, strict=True):
        assert said.logprob == floored(chosen)
        assert said.top == tuple((token, floored(logprob)) for token, logprob in top)


def floored(logprob: float) -> float:
    return max(min(logprob, 0.0), LOGPROB_MIN) if logprob < math.inf else LOGPROB_MIN
