"""What a job leaves in the database, and what an error answer says."""

from __future__ import annotations

from typing import Any

import httpx2
from sqlalchemy import func, select

from coordinator.jobs.models import Attempt, Job, JobEvent, JobPayload
from ledger.models import holds
from tests.fixtures.coordinator import Coordinator

NOTHING = {"jobs": 0, "attempts": 0, "events": 0, "payloads": 0, "holds": 0}


def rows(coordinator: Coordinator) -> dict[str, int]:
    """How many rows there are of all that a job leaves."""
    with coordinator.database.read() as session:
        tables: dict[str, Any] = {
            "jobs": Job,
            "attempts": Attempt,
            "events": JobEvent,
            "payloads": JobPayload,
            "holds": holds,
        }
        return {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in tables.items()
        }


def error_of(answer: httpx2.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status_code, error["code"], error["param"]
