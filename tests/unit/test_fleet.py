"""Which of a node's sockets counts, when hellos are admitted in another order than they came."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from starlette.websockets import WebSocket

from coordinator.nodes.channel import CLOSE_REPLACED, CLOSE_TRY_LATER, Channel, Fleet
from node_agent.protocol.messages import Hardware


class Socket:
    """Notes the code that it is closed with."""

    def __init__(self) -> None:
        self.code: int | None = None

    async def close(self, code: int, reason: str) -> None:
        assert reason
        self.code = code


def channel_of(fleet: Fleet, socket: Socket) -> Channel:
    return Channel(
        node_id="node_1",
        owner_id="acct_1",
        device="d",
        name="Mac",
        public_key="k",
        hardware=Hardware(memory_bytes=1, lent_bytes=1, bandwidth_bytes_per_second=1),
        socket=cast("WebSocket", cast("Any", socket)),
        number=fleet.number_socket(),
    )


def test_the_later_socket_takes_over() -> None:
    asyncio.run(_the_later_socket_takes_over())


async def _the_later_socket_takes_over() -> None:
    fleet, first, second = Fleet(), Socket(), Socket()
    older, newer = channel_of(fleet, first), channel_of(fleet, second)
    assert await fleet.add(older)
    assert await fleet.add(newer)
    assert (first.code, second.code) == (CLOSE_REPLACED, None)
    assert fleet.get("node_1") is newer


def test_a_socket_that_was_dialled_before_the_present_one_is_sent_away_for_now() -> None:
    asyncio.run(_the_older_is_sent_away())


async def _the_older_is_sent_away() -> None:
    fleet, first, second = Fleet(), Socket(), Socket()
    older, newer = channel_of(fleet, first), channel_of(fleet, second)
    assert await fleet.add(newer)
    assert not await fleet.add(older)
    # Not "replaced": an agent that hears that about its newest socket ends for good.
    assert (first.code, second.code) == (CLOSE_TRY_LATER, None)
    assert fleet.get("node_1") is newer
