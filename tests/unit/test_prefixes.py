"""Stored prefixes: what goes in comes out, to the last bit."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from coordinator.jobs.prefixes import Prefix
from node_agent.protocol.messages import TokenLogprob

IDS = st.integers(0, 2**32 - 1)
SCORES = st.builds(
    TokenLogprob, logprob=st.floats(), top=st.lists(st.tuples(IDS, st.floats()), max_size=4).map(tuple)
)


@st.composite
def prefixes(draw: st.DrawFn) -> Prefix:
    ids = draw(st.lists(IDS, max_size=30))
    has_scores = draw(st.booleans())
    scores = draw(st.lists(SCORES, min_size=len(ids), max_size=len(ids))) if has_scores else None
    counts = draw(st.tuples(*[st.integers(0, 10**6)] * 5))
    return Prefix(tuple(ids), None if scores is None else tuple(scores), *counts)


def shown(prefix: Prefix) -> str:
    return repr(prefix)  # NaN is not equal to itself, but reads the same


@given(prefixes())
def test_a_prefix_comes_back_as_it_was(prefix: Prefix) -> None:
    assert shown(Prefix.from_bytes(prefix.to_bytes())) == shown(prefix)


def test_numbers_that_are_no_tokens_are_left_out() -> None:
    score = TokenLogprob(logprob=-0.1, top=((-1, -1.0), (7, -math.inf), (2**32, -2.0)))
    found = Prefix.from_bytes(Prefix((5,), (score,), 1, 1, 0, 0, 0).to_bytes())
    assert found.logprobs is not None
    assert found.logprobs[0].top == ((7, -math.inf),)


def test_a_token_takes_four_bytes() -> None:
    sizes = [len(Prefix((0,) * count, None, 1, 1, 0, 0, 0).to_bytes()) for count in (1000, 2000)]
    assert 4000 <= sizes[1] - sizes[0] <= 4010
