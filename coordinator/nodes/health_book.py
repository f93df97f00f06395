"""The health of all devices as this process knows it, kept in the database from change to change.

In memory times are monotonic; stored are the database's microseconds, so that a pause goes on
where it was when the coordinator restarts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from coordinator import clock
from coordinator.db import database_now_us
from coordinator.nodes.health import FAULTS, Health, Pauses, Standing, after_fault, after_success, taken_back
from coordinator.nodes.models import DeviceHealth
from coordinator.settings import Settings

MICROSECONDS: Final = 1_000_000


@final
class HealthBook:
    """Faults, pauses and probes by device. All methods but `load` run on the event loop's thread.

    `on_change` is called with each device whose record changed, so that it can be stored.
    """

    def __init__(self, settings: Settings) -> None:
        self._pauses: Final = Pauses(settings.fault_pause_seconds, settings.fault_pause_seconds_max)
        self._records: Final[dict[str, Health]] = {}
        self.on_change: Callable[[str], None] = lambda _device: None

    def get(self, device: str) -> Health | None:
        """The device's record, or None if nothing speaks against it."""
        return self._records.get(device)

    def standing(self, device: str) -> Standing:
        """Whether the device gets work now."""
        found = self._records.get(device)
        return "sound" if found is None else found.standing(clock.monotonic())

    def note_fault(self, device: str, reason: str, *, begun_at: float) -> None:
        """An attempt on this device, begun at that monotonic time, ended for this reason."""
        if reason in FAULTS:
            now = clock.monotonic()
            before = self._records.get(device)
            self._set(device, after_fault(before, reason, begun_at=begun_at, now=now, pauses=self._pauses))

    def note_success(self, device: str, *, begun_at: float) -> None:
        """An attempt on this device, begun at that monotonic time, ended with a proven result."""
        self._set(device, after_success(self._records.get(device), begun_at=begun_at))

    def take_back(self, device: str) -> None:
        """The device's last fault was not its own."""
        self._set(device, taken_back(self._records.get(device), now=clock.monotonic()))

    def _set(self, device: str, health: Health | None) -> None:
        if health == self._records.get(device):
            return
        if health is None:
            del self._records[device]
        else:
            self._records[device] = health
        self.on_change(device)

    # -- the database ----------------------------------------------------------------------------

    def store(self, session: Session, device: str) -> None:
        """Write the device's record as it is now, or remove it."""
        _ = session.execute(delete(DeviceHealth).where(DeviceHealth.device == device))
        found = self._records.get(device)
        if found is None:
            return
        zero_us = database_now_us(session) - round(clock.monotonic() * MICROSECONDS)
        session.add(
            DeviceHealth(
                device=device,
                faults=found.faults,
                last_fault=found.last_fault,
                last_fault_us=zero_us + round(found.last_fault_at * MICROSECONDS),
                paused_until_us=zero_us + round(found.paused_until * MICROSECONDS),
            )
        )

    def load(self, session: Session) -> None:
        """Take up what was stored. Before this process places its first job."""
        zero_us = database_now_us(session) - round(clock.monotonic() * MICROSECONDS)
        for row in session.scalars(select(DeviceHealth)):
            self._records[row.device] = Health(
                faults=row.faults,
                last_fault=row.last_fault,
                last_fault_at=(row.last_fault_us - zero_us) / MICROSECONDS,
                paused_until=(row.paused_until_us - zero_us) / MICROSECONDS,
            )
