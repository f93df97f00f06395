"""Wake-ups: hints that something may have changed, never the change itself.

Subscribe, look in the database, wait, look again: a lost hint costs one wait and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import Any, Final, Protocol

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

log = structlog.get_logger()

CHANNEL_PREFIX: Final = "mlxnet:wake:"
RECONNECT_SECONDS: Final = 1.0


class Wakeups(Protocol):
    """What the rest of the coordinator knows of wake-ups."""

    async def publish(self, topic: str) -> None:
        """Wake whoever waits on `topic`, on any replica. Never raises: a hint may be lost."""
        ...

    def subscribe(self, topic: str) -> contextlib.AbstractAsyncContextManager[asyncio.Event]:
        """An event that is set by each wake-up of `topic` while the context is open."""
        ...

    async def start(self) -> None:
        """Begin to listen."""
        ...

    async def close(self) -> None:
        """Stop listening."""
        ...


class LocalWakeups:
    """Wake-ups inside one process."""

    def __init__(self) -> None:
        self._events: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    async def start(self) -> None:
        """Nothing to begin."""

    async def close(self) -> None:
        """Nothing to end."""

    async def publish(self, topic: str) -> None:
        """Set the events of `topic`."""
        for event in self._events.get(topic, ()):
            event.set()

    @contextlib.asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncGenerator[asyncio.Event]:
        """An event set by each wake-up of `topic`."""
        event = asyncio.Event()
        self._events[topic].add(event)
        try:
            yield event
        finally:
            self._events[topic].discard(event)
            if not self._events[topic]:
                del self._events[topic]


class RedisWakeups(LocalWakeups):
    """Wake-ups between replicas: one pub/sub connection per process, fanned out locally.

    One connection per waiter delivers late and loses up to half; one shared one does not.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        # Blocking reads must not time out: the client's default of 5 s cuts idle subscriptions.
        self._redis: Any = Redis.from_url(url, socket_timeout=None, health_check_interval=30)  # pyright: ignore[reportUnknownMemberType]
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to listen. Does not wait for Redis: without it only hints are lost."""
        self._listener = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Stop listening and close the connections."""
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
        await self._redis.aclose()

    async def publish(self, topic: str) -> None:
        """Wake the waiters of every replica; if Redis is away, those of this one."""
        try:
            await self._redis.publish(CHANNEL_PREFIX + topic, b"")
        except (RedisError, OSError) as error:
            log.warning("wakeup_not_published", topic=topic, error=type(error).__name__)
            await super().publish(topic)

    async def _listen(self) -> None:
        while True:
            try:
                async with self._redis.pubsub() as pubsub:
                    await pubsub.psubscribe(CHANNEL_PREFIX + "*")
                    # Whatever was said while nobody listened is made up for by waking all.
                    for topic in list(self._events):
                        await LocalWakeups.publish(self, topic)
                    async for message in pubsub.listen():
                        if message["type"] == "pmessage":
                            topic = message["channel"].decode().removeprefix(CHANNEL_PREFIX)
                            await LocalWakeups.publish(self, topic)
            except (RedisError, OSError) as error:
                log.warning("wakeups_disconnected", error=type(error).__name__)
                await asyncio.sleep(RECONNECT_SECONDS)
