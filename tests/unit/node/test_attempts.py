"""The table of an attempt's phases."""

from __future__ import annotations

import itertools

import pytest

from node_agent.attempts import TRANSITIONS, Attempt, IllegalTransitionError, Phase
from node_agent.protocol import messages as wire
from tests.properties.test_node_state import CARDS

OFFER = wire.Offer(
    job_id="job_a",
    fence=3,
    card=CARDS[0],
    card_revision=CARDS[0].revision,
    prompt_ids=(5,),
    max_tokens=4,
    stop_token_ids=(2,),
    sampling=wire.Sampling(seed=1),
    progress_deadline_seconds=10.0,
)


@pytest.mark.parametrize(("start", "target"), list(itertools.product(Phase, Phase)))
def test_only_the_tables_transitions_are_made(start: Phase, target: Phase) -> None:
    attempt = Attempt(offer=OFFER, key="r1", deadline_seconds=1.0, phase=start)
    if target in TRANSITIONS[start]:
        attempt.move(target)
        assert attempt.phase is target
        assert attempt.story[-1] is target
    else:
        with pytest.raises(IllegalTransitionError, match=r"job_a#3: accepted -/->"):
            attempt.move(target)
        assert attempt.phase is start


def test_every_phase_has_a_row_and_the_last_two_absorb() -> None:
    assert set(TRANSITIONS) == set(Phase)
    absorbing = {phase for phase, targets in TRANSITIONS.items() if not targets}
    assert absorbing == {Phase.LOST, Phase.SETTLED}


def test_resent_chunks_are_contiguous_and_fit_into_a_frame() -> None:
    attempt = Attempt(offer=OFFER, key="r1", deadline_seconds=1.0)
    attempt.token_ids = list(range(1300))
    top = tuple((100_000 + n, -12.345678901234567) for n in range(20))
    attempt.logprobs = [wire.TokenLogprob(logprob=-1.2345678901234567, top=top)] * 1300
    chunks = attempt.chunks_from(100)
    ids = [number for chunk in chunks for number in chunk.token_ids]
    assert ids == list(range(100, 1300))
    assert chunks[0].offset == 100
    for before, after in itertools.pairwise(chunks):
        assert after.offset == before.offset + len(before.token_ids)
    for chunk in chunks:
        frame = wire.encode(chunk)
        assert len(frame) < wire.FRAME_BYTES_MAX
        assert wire.parse_to_coordinator(frame) == chunk
    assert attempt.chunks_from(1300) == []
