"""Celery, and the only file that knows it: the upkeep table as tasks and beat entries.

Messages are JSON and carry names only. Run with `celery -A coordinator.tasks worker -B`.
"""

from __future__ import annotations

import functools
from typing import Final

from celery import Celery

from coordinator.db import Database, make_engine
from coordinator.settings import Settings
from coordinator.upkeep import SCHEDULE, Chore

settings: Final = Settings()
_broker: Final = settings.redis_url.get_secret_value() if settings.redis_url else "memory://"

app: Final = Celery("mlxnet", broker=_broker)
app.conf.update(
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    broker_transport_options={"visibility_timeout": 600, "polling_interval": 0.05},
    broker_connection_retry_on_startup=True,
    timezone="UTC",
)


@functools.cache
def database() -> Database:
    """This worker's database, opened when the first task needs it."""
    return Database(make_engine(settings.sqlalchemy_url))


def _register(chore: Chore) -> None:
    def run() -> int:
        return chore.run(database(), settings)

    name = f"upkeep.{chore.name}"
    # A chore that waited longer than its interval is superseded by the next one.
    app.task(name=name, expires=chore.every_seconds)(run)
    app.conf.beat_schedule = {
        **(app.conf.beat_schedule or {}),
        chore.name: {"task": name, "schedule": chore.every_seconds},
    }


for _chore in SCHEDULE:
    _register(_chore)
