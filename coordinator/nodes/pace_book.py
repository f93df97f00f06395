"""How fast each device is seen to be, timed where its tokens arrive.

The time between two changes on a node, while all that runs there is being decoded, is a *stretch*:
each attempt's tokens in it are one observation. A prompt that is read alone by a loaded model is
another. Factors are kept by device in the database, since a Mac stays as fast as it is when the
coordinator restarts. All methods but `load` run on the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from statistics import median
from typing import Final, final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from coordinator import clock
from coordinator.db import Database, database_now_us
from coordinator.live import LiveAttempt, LiveJob
from coordinator.nodes.channel import Fleet
from coordinator.nodes.models import DevicePace
from coordinator.placement.learning import SEEN_MAX, Stretch, learnt_factor, seen_decoding, seen_reading

PPM: Final = 1_000_000
MICROSECONDS: Final = 1_000_000
KEEP_SECONDS: Final = 86_400.0  # four half-lives: by then it says next to nothing


@dataclass(frozen=True)
class Pace:
    """Factors over the forecast that a device is reckoned with, and how often it was timed."""

    decode_factor: float = 1.0
    prefill_factor: float = 1.0
    decode_seen: int = 0
    prefill_seen: int = 0


@dataclass(frozen=True)
class _Begun:
    """Where a stretch began: monotonic seconds, tokens received until then, and how many shared it."""

    at: float
    tokens: int
    batch: int


@dataclass
class _Running:
    """One attempt on a node. `begun` is None while some prompt there is still being read."""

    live: LiveJob
    attempt: LiveAttempt
    is_reading_alone: bool
    is_begun: bool = False  # its first token arrived
    begun: _Begun | None = None


@dataclass
class _Seen:
    decoding: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))
    reading: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))
    at: float = 0.0  # monotonic, of the last one
    told_at: float = 0.0  # and when it was last stored

    def pace(self, now: float) -> Pace:
        """As it is reckoned with at that time."""
        age = now - self.at
        return Pace(
            learnt_factor(self.decoding, age_seconds=age),
            learnt_factor(self.reading, age_seconds=age),
            len(self.decoding),
            len(self.reading),
        )


NOTHING_SEEN: Final = Pace()


@final
class PaceBook:
    """The paces of all devices as this process knows them.

    `on_change` is called with each device whose factors changed, so that they can be stored.
    """

    def __init__(self, channels: Fleet) -> None:
        self._channels: Final = channels
        self._running: Final[dict[str, dict[str, _Running]]] = {}  # by node and job
        self._seen: Final[dict[str, _Seen]] = {}
        self.on_change: Callable[[str], None] = lambda _device: None

    def of(self, device: str) -> Pace:
        """What a device is reckoned with."""
        seen = self._seen.get(device)
        return NOTHING_SEEN if seen is None else seen.pace(clock.monotonic())

    # -- what happens on a node ------------------------------------------------------------------

    def began(self, live: LiveJob, attempt: LiveAttempt, *, is_loaded: bool) -> None:
        """An attempt was offered; `is_loaded`: its model was in the node's memory."""
        others = self._running.setdefault(attempt.node_id, {})
        for other in others.values():
            other.is_reading_alone = False
        self._end_stretches(attempt.node_id)
        others[live.job_id] = _Running(live, attempt, is_loaded and not others)

    def arrived(self, live: LiveJob, attempt: LiveAttempt) -> None:
        """Tokens of an attempt arrived and were taken. Cheap but for the first."""
        running = self._running.get(attempt.node_id, {}).get(live.job_id)
        if running is None or running.attempt is not attempt or running.is_begun:
            return
        running.is_begun = True
        if running.is_reading_alone:
            self._note_reading(running)
        self._begin_stretches(attempt.node_id)

    def left(self, live: LiveJob, attempt: LiveAttempt) -> None:
        """An attempt has ended."""
        others = self._running.get(attempt.node_id, {})
        running = others.get(live.job_id)
        if running is None or running.attempt is not attempt:
            return
        self._end_stretches(attempt.node_id)
        del others[live.job_id]
        if others:
            self._begin_stretches(attempt.node_id)
        else:
            del self._running[attempt.node_id]

    def interrupted(self, node_id: str) -> None:
        """The node's socket closed: what comes late now says nothing about its speed."""
        for running in self._running.get(node_id, {}).values():
            running.begun, running.is_reading_alone = None, False

    # -- observations ----------------------------------------------------------------------------

    def _begin_stretches(self, node_id: str) -> None:
        self._end_stretches(node_id)
        here = self._running[node_id].values()
        if all(running.is_begun for running in here):
            now, batch = clock.monotonic(), len(here)
            for running in here:
                running.begun = _Begun(now, len(running.attempt.received), batch)

    def _end_stretches(self, node_id: str) -> None:
        for running in self._running[node_id].values():
            begun, running.begun = running.begun, None
            if begun is not None:
                self._note_decoding(running, begun)

    def _note_decoding(self, running: _Running, begun: _Begun) -> None:
        channel, attempt = self._channels.get(running.attempt.node_id), running.attempt
        if channel is None:
            return
        tokens = len(attempt.received) - begun.tokens
        before = len(running.live.work.prompt_ids) + len(running.live.token_ids)
        stretch = Stretch(
            tokens=tokens,
            seconds=attempt.last_token_at - begun.at,
            context_tokens=max(before - tokens // 2, 0),
            batch=begun.batch,
        )
        factor = seen_decoding(running.live.card, channel.hardware, stretch)
        if factor is not None:
            self._note(attempt.device, decoding=factor)

    def _note_reading(self, running: _Running) -> None:
        channel, attempt = self._channels.get(running.attempt.node_id), running.attempt
        if channel is None:
            return
        delivered = len(running.live.token_ids) - len(attempt.received)
        factor = seen_reading(
            running.live.card,
            channel.hardware,
            tokens=len(running.live.work.prompt_ids) + delivered,
            seconds=clock.monotonic() - attempt.begun_at,
        )
        if factor is not None:
            self._note(attempt.device, reading=factor)

    def _note(self, device: str, *, decoding: float | None = None, reading: float | None = None) -> None:
        now = clock.monotonic()
        before, seen = self.of(device), self._seen.get(device)
        if seen is None or now - seen.at > KEEP_SECONDS:
            seen = self._seen[device] = _Seen()
        if decoding is not None:
            seen.decoding.append(decoding)
        if reading is not None:
            seen.reading.append(reading)
        seen.at, after = now, seen.pace(now)
        is_changed = (after.decode_factor, after.prefill_factor) != (
            before.decode_factor,
            before.prefill_factor,
        )
        if is_changed or now - seen.told_at > KEEP_SECONDS / 2:
            seen.told_at = now
            self.on_change(device)

    # -- the database ----------------------------------------------------------------------------

    def writer(self, device: str) -> Callable[[Session], None]:
        """What writes, on any thread, what is known of the device now."""
        seen, at = self._seen[device], self._seen[device].at
        values = {
            "decode_median_ppm": _median_ppm(seen.decoding),
            "decode_seen": len(seen.decoding),
            "prefill_median_ppm": _median_ppm(seen.reading),
            "prefill_seen": len(seen.reading),
        }

        def write(session: Session) -> None:
            _ = session.execute(delete(DevicePace).where(DevicePace.device == device))
            at_us = database_now_us(session) + round((at - clock.monotonic()) * MICROSECONDS)
            session.add(DevicePace(device=device, at_us=at_us, **values))

        return write

    def load(self, session: Session) -> None:
        """Take up what was stored, as if all that was seen had been alike. Before the first job."""
        zero_us = database_now_us(session) - round(clock.monotonic() * MICROSECONDS)
        for row in session.scalars(select(DevicePace)):
            at = (row.at_us - zero_us) / MICROSECONDS
            seen = _Seen(at=at, told_at=at)
            seen.decoding.extend([row.decode_median_ppm / PPM] * row.decode_seen)
            seen.reading.extend([row.prefill_median_ppm / PPM] * row.prefill_seen)
            self._seen[row.device] = seen


def drop_old_paces(database: Database) -> int:
    """Delete what was seen too long ago to count. Returns how many."""
    with database.write() as session:
        oldest_us = database_now_us(session) - round(KEEP_SECONDS * MICROSECONDS)
        done = session.execute(
            delete(DevicePace).where(DevicePace.at_us < oldest_us).returning(DevicePace.device)
        )
        return len(done.all())


def _median_ppm(factors: Collection[float]) -> int:
    return round(median(factors) * PPM) if factors else PPM
