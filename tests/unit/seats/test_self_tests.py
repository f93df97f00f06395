"""Self-tests from the coordinator's side: who is asked when, and what of an answer is believed."""

from __future__ import annotations

from typing import Any, Final, cast

import pytest
from starlette.websockets import WebSocket

from coordinator.nodes.channel import Channel
from coordinator.seats.self_tests import (
    ANSWER_SECONDS_MAX,
    FIRST_GAP_SECONDS,
    GAP_SECONDS,
    SETTLING_SECONDS,
    Measured,
    SelfTests,
    is_believable,
)
from node_agent.protocol import messages as wire

M4_BANDWIDTH: Final = 120 * 10**9
NOBODY: Final[frozenset[str]] = frozenset()


class Node:
    """A connected node that answers when the test says so; nothing is written to a socket here."""

    def __init__(self, **hardware: Any) -> None:
        facts: dict[str, Any] = {"chip": "Apple M4", "gpu_cores": 10, **hardware}
        self.now = 1000.0
        self.channel = Channel(
            node_id="node_1",
            owner_id="acct_1",
            device="d" * 64,
            name="Mac",
            public_key="k",
            hardware=wire.Hardware(
                memory_bytes=1 << 34, lent_bytes=1 << 34, bandwidth_bytes_per_second=10**12, **facts
            ),
            socket=cast("WebSocket", None),
            connected_at=self.now,
        )
        self.tests = SelfTests()
        self.tests.learn({"node_1": (0, 0.0)}, now=self.now)

    def asked(self, after_seconds: float, working: frozenset[str] = NOBODY) -> wire.SelfTest | None:
        """The challenge that is sent after some time, if one is."""
        self.now += after_seconds
        before = list(self.channel._control)  # pyright: ignore[reportPrivateUsage]
        count = self.tests.challenge([self.channel], working, now=self.now)
        sent = list(self.channel._control)[len(before) :]  # pyright: ignore[reportPrivateUsage]
        assert len(sent) == count
        return cast("wire.SelfTest", sent[0]) if sent else None

    def answer(
        self, challenge: wire.SelfTest, *, after_seconds: float = 5.0, **changes: Any
    ) -> list[Measured]:
        """The node's answer comes in after some time."""
        self.now += after_seconds
        fields: dict[str, Any] = {
            "nonce": challenge.nonce,
            "bandwidth_bytes_per_second": 100 * 10**9,
            "is_warm": True,
            "seconds": 4.1,
            **changes,
        }
        self.channel.self_test = wire.SelfTestResult(**fields)
        return self.tests.take([self.channel], now=self.now)


def challenged(node: Node) -> wire.SelfTest:
    challenge = node.asked(SETTLING_SECONDS)
    assert challenge is not None
    return challenge


def test_three_tests_in_the_first_hour_then_one_in_six() -> None:
    node = Node()
    waits: list[float] = []
    for _ in range(6):
        waited = 0.0
        while (challenge := node.asked(60)) is None:
            waited += 60
        waits.append(waited + 60)
        assert len(node.answer(challenge, after_seconds=5)) == 1
    assert sum(waits[:3]) <= 3600
    assert all(FIRST_GAP_SECONDS <= wait <= FIRST_GAP_SECONDS + 60 for wait in waits[1:3])
    assert all(GAP_SECONDS <= wait <= GAP_SECONDS + 60 for wait in waits[3:])


def test_what_was_tested_before_a_restart_is_not_asked_again() -> None:
    node = Node()
    node.tests = SelfTests()
    assert node.tests.unknown([node.channel]) == ["node_1"]
    node.tests.learn({"node_1": (3, 3600.0)}, now=node.now)
    assert node.tests.unknown([node.channel]) == []
    assert node.asked(GAP_SECONDS - 3601) is None
    assert node.asked(1) is not None


def test_only_idle_nodes_are_asked() -> None:
    node = Node()
    assert node.asked(SETTLING_SECONDS - 1) is None
    assert node.asked(1, frozenset({"node_1"})) is None
    node.channel.mode = "away"
    assert node.asked(1) is None
    node.channel.mode = "ready"
    node.channel.holds["tiny"] = wire.HoldReport(card_id="tiny", card_revision="r", phase="loading")
    assert node.asked(1) is None
    node.channel.holds.clear()
    assert node.asked(1) is not None
    assert node.asked(1) is None


def test_a_result_counts_for_no_more_than_the_chip_can_do() -> None:
    node = Node()
    assert node.answer(challenged(node), bandwidth_bytes_per_second=4 * 10**12) == [
        Measured("node_1", M4_BANDWIDTH, is_warm=True)
    ]


def test_an_honest_result_is_kept_as_it_is() -> None:
    node = Node()
    assert node.answer(challenged(node), is_warm=False, seconds=2.5) == [
        Measured("node_1", 100 * 10**9, is_warm=False)
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": "another-nonce-of-16"},
        {"seconds": 3.9},  # two seconds of warm-up and two of measuring take four
        {"seconds": 5.1},  # longer than the question was out
    ],
)
def test_an_answer_that_cannot_be_true_is_refused(changes: dict[str, Any]) -> None:
    node = Node()
    assert node.answer(challenged(node), **changes) == []


def test_an_answer_counts_once_and_without_a_question_not_at_all() -> None:
    node = Node()
    challenge = challenged(node)
    assert len(node.answer(challenge)) == 1
    assert node.answer(challenge) == []


def test_a_node_that_does_not_know_the_question_is_left_alone_until_it_reconnects() -> None:
    node = Node()
    asked = sum(node.asked(60) is not None for _ in range(24 * 60))
    assert asked == 3
    node.channel.connected_at = node.now
    assert node.asked(SETTLING_SECONDS) is not None


def test_a_late_answer_is_none() -> None:
    node = Node()
    challenge = challenged(node)
    assert node.asked(ANSWER_SECONDS_MAX + 1) is None
    assert node.answer(challenge) == []


def test_believing_needs_the_whole_time() -> None:
    challenge = wire.SelfTest(nonce="n" * 16)
    result = wire.SelfTestResult(nonce="n" * 16, bandwidth_bytes_per_second=1, is_warm=False, seconds=2.0)
    assert is_believable(result, challenge, 2.0)
    assert not is_believable(result.model_copy(update={"is_warm": True}), challenge, 2.0)
