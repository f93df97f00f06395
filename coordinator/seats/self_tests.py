"""Self-tests from this side: when a Mac is asked, what of its answer is believed, what is stored.

A result counts for no more than the maker's figure of the chip, only as the answer to a challenge
of this process, and only if the time that it says it took has passed here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.ids import new_id
from coordinator.nodes.channel import Channel, make_nonce
from coordinator.seats.hardware import SELF_TEST_US, specified_bandwidth
from coordinator.seats.models import SelfTest
from node_agent.protocol import messages as wire

log = structlog.get_logger()

FIRST_TESTS: Final = 3
FIRST_GAP_SECONDS: Final = 900.0  # so that the first three come within an hour
GAP_SECONDS: Final = 6 * 3600.0
SETTLING_SECONDS: Final = 60.0  # after connecting: the Mac may be about to load its model
ANSWER_SECONDS_MAX: Final = 150.0
UNANSWERED_MAX: Final = 3  # an older node does not know the question; asked again when it reconnects


@dataclass(frozen=True)
class Measured:
    """A result that is to be stored."""

    node_id: str
    bandwidth_bytes_per_second: int
    is_warm: bool


@dataclass
class _Asked:
    """What this process knows of one node's tests. Times: monotonic seconds."""

    tests: int
    next_at: float
    connected_at: float = 0.0
    challenge: wire.SelfTest | None = None
    sent_at: float = 0.0
    unanswered: int = 0


def gap_seconds(tests: int) -> float:
    """How long after the last of `tests` a node is asked again."""
    return FIRST_GAP_SECONDS if tests < FIRST_TESTS else GAP_SECONDS


def is_believable(result: wire.SelfTestResult, challenge: wire.SelfTest, elapsed_seconds: float) -> bool:
    """Whether an answer can be true: to this question, and not sooner than it says it took."""
    asked_seconds = challenge.warm_up_seconds * result.is_warm + challenge.measure_seconds
    return result.nonce == challenge.nonce and asked_seconds <= result.seconds <= elapsed_seconds


@final
class SelfTests:
    """The challenges of one process. All methods run on the event loop's thread."""

    def __init__(self) -> None:
        self._asked: Final[dict[str, _Asked]] = {}

    def unknown(self, channels: Iterable[Channel]) -> list[str]:
        """Connected nodes of whose earlier tests nothing is known here."""
        return [channel.node_id for channel in channels if channel.node_id not in self._asked]

    def learn(self, history: Mapping[str, tuple[int, float]], *, now: float) -> None:
        """Take in (tests of the last days, seconds since the last) of nodes, from the database."""
        for node_id, (tests, ago_seconds) in history.items():
            next_at = now - ago_seconds + gap_seconds(tests) if tests else now
            _ = self._asked.setdefault(node_id, _Asked(tests, next_at))

    def take(self, channels: Iterable[Channel], *, now: float) -> list[Measured]:
        """Results that came in, each once."""
        found: list[Measured] = []
        for channel in channels:
            result, channel.self_test = channel.self_test, None
            asked = self._asked.get(channel.node_id)
            if result is None or asked is None or asked.challenge is None:
                continue
            if not is_believable(result, asked.challenge, now - asked.sent_at):
                log.warning("self_test_refused", node_id=channel.node_id)
                continue
            asked.challenge, asked.unanswered = None, 0
            asked.tests += 1
            asked.next_at = now + gap_seconds(asked.tests)
            specified = specified_bandwidth(channel.hardware.model_dump())
            bandwidth = min(result.bandwidth_bytes_per_second, specified)
            found.append(Measured(channel.node_id, bandwidth, result.is_warm))
        return found

    def challenge(self, channels: Iterable[Channel], working: frozenset[str], *, now: float) -> int:
        """Ask the nodes that are due and idle. Returns how many."""
        count = 0
        for channel in channels:
            asked = self._asked.get(channel.node_id)
            if asked is not None and self._is_due(channel, asked, now) and _is_idle(channel, working):
                asked.challenge, asked.sent_at = wire.SelfTest(nonce=make_nonce()), now
                count += channel.send(asked.challenge)
        return count

    def _is_due(self, channel: Channel, asked: _Asked, now: float) -> bool:
        if asked.connected_at != channel.connected_at:
            asked.connected_at, asked.unanswered, asked.challenge = channel.connected_at, 0, None
        if asked.challenge is not None and now - asked.sent_at > ANSWER_SECONDS_MAX:
            asked.challenge, asked.unanswered = None, asked.unanswered + 1
            asked.next_at = now + FIRST_GAP_SECONDS
        is_settled = now - channel.connected_at >= SETTLING_SECONDS
        return (
            is_settled
            and asked.challenge is None
            and asked.unanswered < UNANSWERED_MAX
            and now >= asked.next_at
        )


def _is_idle(channel: Channel, working: frozenset[str]) -> bool:
    is_loading = any(hold.phase in {"downloading", "loading"} for hold in channel.holds.values())
    return channel.mode == "ready" and channel.node_id not in working and not is_loading


# -- rows ----------------------------------------------------------------------------------------


def history_of(session: Session, node_ids: Sequence[str], now_us: int) -> dict[str, tuple[int, float]]:
    """(tests of the last 30 days, seconds since the last) of each node."""
    rows = session.execute(
        select(SelfTest.node_id, func.count(), func.max(SelfTest.at_us))
        .where(SelfTest.node_id.in_(node_ids), SelfTest.at_us > now_us - SELF_TEST_US)
        .group_by(SelfTest.node_id)
    )
    found: dict[str, tuple[int, float]] = dict.fromkeys(node_ids, (0, 0.0))
    found.update({node_id: (count, max(0, now_us - last_us) / 1e6) for node_id, count, last_us in rows})
    return found


def store_tests(session: Session, tested: Iterable[Measured], now_us: int) -> None:
    """Keep results."""
    session.add_all(
        SelfTest(
            id=new_id("test"),
            node_id=one.node_id,
            at_us=now_us,
            bandwidth_bytes_per_second=one.bandwidth_bytes_per_second,
            is_warm=one.is_warm,
        )
        for one in tested
    )
