"""The self-test: when a node begins and ends one, how it measures, and a real run in a child."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from node_agent.attempt_book import CoreSettings
from node_agent.events import (
    DrainRequested,
    Event,
    FactsMeasured,
    FrameReceived,
    Instruction,
    LinkDown,
    LinkUp,
    SelfTestEnded,
    Send,
    StartSelfTest,
    StopSelfTest,
)
from node_agent.hardware.self_test_child import parse_result, run_self_test
from node_agent.hardware.selftest import CPU_BYTES_MAX, measure
from node_agent.protocol import messages as wire
from node_agent.self_tests import ARRAY_BYTES_MAX, ARRAY_BYTES_MIN
from node_agent.state import NodeState
from tests.properties.test_node_state import CARDS

GIB = 1 << 30
NONCE = "nonce-of-the-test-1"
ASKED = FrameReceived(wire.SelfTest(nonce=NONCE))
RESULT = wire.SelfTestResult(nonce=NONCE, bandwidth_bytes_per_second=10**11, is_warm=True, seconds=4.0)


def core(free_bytes: int = 64 * GIB) -> NodeState:
    state = NodeState(CoreSettings(lent_bytes=64 * GIB, width=2), lambda _: "signature")
    for event in (LinkUp(), FactsMeasured(free_bytes=free_bytes, disk_free_bytes=GIB)):
        state.handle(event, 0.0)
    return state


def told(state: NodeState, event: Event) -> list[Instruction]:
    return state.handle(event, 1.0)


def offer(job_id: str = "job_a") -> FrameReceived:
    return FrameReceived(
        wire.Offer(
            job_id=job_id,
            fence=1,
            card=CARDS[0],
            card_revision=CARDS[0].revision,
            prompt_ids=(1, 2),
            max_tokens=4,
            stop_token_ids=(2,),
            sampling=wire.Sampling(seed=1),
            progress_deadline_seconds=30.0,
        )
    )


def test_an_idle_node_measures_once_and_says_what_it_found() -> None:
    state = core()
    assert told(state, ASKED) == [StartSelfTest(wire.SelfTest(nonce=NONCE), ARRAY_BYTES_MAX)]
    assert told(state, ASKED) == []
    (sent,) = told(state, SelfTestEnded(NONCE, RESULT))
    assert isinstance(sent, Send)
    assert sent.message == RESULT
    assert told(state, SelfTestEnded(NONCE, RESULT)) == []
    assert len(told(state, ASKED)) == 1


def test_a_job_ends_the_test_and_its_result_is_never_sent() -> None:
    state = core()
    told(state, ASKED)
    instructions = told(state, offer())
    assert StopSelfTest() in instructions
    assert any(isinstance(i, Send) and isinstance(i.message, wire.Accept) for i in instructions)
    assert told(state, SelfTestEnded(NONCE, RESULT)) == []
    assert told(state, ASKED) == []


@pytest.mark.parametrize("event", [LinkDown(), DrainRequested()])
def test_a_lost_link_and_a_drain_end_the_test(event: Event) -> None:
    state = core()
    told(state, ASKED)
    assert StopSelfTest() in told(state, event)


def test_with_little_free_memory_there_is_no_test() -> None:
    assert told(core(free_bytes=8 * ARRAY_BYTES_MIN - 1), ASKED) == []
    (start,) = told(core(free_bytes=8 * ARRAY_BYTES_MIN), ASKED)
    assert start == StartSelfTest(wire.SelfTest(nonce=NONCE), ARRAY_BYTES_MIN)


def test_memory_of_the_test_does_not_stand_in_a_jobs_way() -> None:
    state = core()
    told(state, ASKED)
    # The measuring child has taken all; it is gone before the model is loaded.
    told(state, FactsMeasured(free_bytes=0, disk_free_bytes=GIB))
    sent = [i.message for i in told(state, offer()) if isinstance(i, Send)]
    assert [type(message) for message in sent] == [wire.Accept]


def ticks(*seconds: float) -> Iterator[float]:
    now = 0.0
    for step in seconds:
        now += step
        yield now


def test_the_best_round_counts_after_the_warm_up() -> None:
    # began, warm-up round of 3 s, measuring from then on: rounds of 2 s, 1 s and 4 s.
    times = ticks(0, 3, 0, 0, 2, 0, 1, 0, 4, 0)
    found = measure(lambda: 100, warm_up_seconds=2, measure_seconds=5, clock=lambda: next(times))
    assert (found.bandwidth_bytes_per_second, found.is_warm, found.seconds) == (100, True, 10)


def test_without_a_warm_up_the_test_is_not_warm() -> None:
    times = ticks(0, 1, 0, 0, 1, 0)
    assert not measure(lambda: 1, warm_up_seconds=0, measure_seconds=1, clock=lambda: next(times)).is_warm


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"bandwidth_bytes_per_second": -1, "is_warm": true, "seconds": 1}']
)
def test_a_child_that_says_something_else_has_no_result(text: str) -> None:
    assert parse_result(text, NONCE) is None


def test_a_real_child_measures_real_memory() -> None:
    test = wire.SelfTest(nonce=NONCE, warm_up_seconds=0.2, measure_seconds=0.2)
    result = asyncio.run(run_self_test(test, CPU_BYTES_MAX // 2, accelerated=False))
    assert result is not None
    assert result.nonce == NONCE
    assert result.is_warm
    # More than a slow disk, less than any memory: a wrong unit would be out of these.
    assert 10**8 < result.bandwidth_bytes_per_second < 10**13


def test_cancelling_kills_the_child() -> None:
    async def main() -> None:
        test = wire.SelfTest(nonce=NONCE, warm_up_seconds=30, measure_seconds=30)
        task = asyncio.create_task(run_self_test(test, CPU_BYTES_MAX // 2, accelerated=False))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), 10))
