"""Writes behind the relay what was delivered: each second, all jobs that changed, in one write."""

from __future__ import annotations

import asyncio
from typing import Final, final

import structlog
from sqlalchemy.orm import Session

from coordinator.commits import GroupCommit, Written
from coordinator.jobs import prefixes
from coordinator.jobs.payloads import PayloadBox
from coordinator.live import LiveJob, LiveJobs
from coordinator.settings import Settings

log = structlog.get_logger()


@final
class PrefixWriter:
    """Stores prefixes of one process's jobs. Runs on the event loop; the database has its thread."""

    def __init__(
        self, *, settings: Settings, jobs: LiveJobs, commits: GroupCommit, payloads: PayloadBox
    ) -> None:
        self._settings: Final = settings
        self._jobs: Final = jobs
        self._commits: Final = commits
        self._payloads: Final = payloads

    async def run_forever(self) -> None:
        """Flush each `prefix_seconds` until cancelled. What fails is written with the next."""
        while True:
            await asyncio.sleep(self._settings.prefix_seconds)
            try:
                _ = await self.flush()
            except Exception as error:  # noqa: BLE001
                log.warning("prefixes_not_stored", error=type(error).__name__)

    async def flush(self) -> int:
        """Store the prefixes that changed since they were stored; how many.

        A job that is ending or being queued again is left out: that write carries its own.
        """
        changed = [live for live in self._jobs if _is_due(live)]
        if not changed:
            return 0
        counts = [live.changes for live in changed]
        found = {live.job_id: live.prefix() for live in changed}

        def write(session: Session) -> Written[None]:
            prefixes.store(session, found, self._payloads)
            return Written(None)

        await self._commits.written(write)
        for live, count in zip(changed, counts, strict=True):
            live.stored_changes = max(live.stored_changes, count)
        return len(changed)


def _is_due(live: LiveJob) -> bool:
    return live.attempt is not None and not live.is_ending and live.changes > live.stored_changes
