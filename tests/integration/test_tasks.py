"""The upkeep table under Celery: real workers in processes of their own, in memory and on Redis."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import select

from coordinator.db import Database
from coordinator.nodes.models import Enrolment
from tests.fixtures.redis_server import RedisServer

SECONDS_MAX = 40.0

IN_MEMORY = """
import sys
from celery.contrib.testing.worker import start_worker
from coordinator.tasks import app
with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
    app.send_task("upkeep.drop_old_enrolments")
    import time
    from sqlalchemy import select
    from coordinator.nodes.models import Enrolment
    from coordinator.tasks import database
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with database().read() as session:
            if session.scalars(select(Enrolment.code)).all() == ["NEW"]:
                sys.exit(0)
        time.sleep(0.05)
sys.exit("the task did not run")
"""

SEND = """
from coordinator.tasks import app
app.send_task("upkeep.drop_old_enrolments")
"""


@pytest.fixture
def expired(database: Database) -> Database:
    """A database with one enrolment that is over and one that is not."""
    with database.write() as session:
        for code, expires_us in (("OLD", 1), ("NEW", 2**60)):
            session.add(
                Enrolment(
                    code=code,
                    poll_sha256="0" * 64,
                    node_id="node_" + "0" * 64,
                    public_key="0" * 43,
                    name="Mac",
                    device="0" * 64,
                    hardware={},
                    state="pending",
                    created_us=0,
                    expires_us=expires_us,
                )
            )
    return database


def environment(database_url: str, home: Path, redis_url: str | None = None) -> dict[str, str]:
    found = os.environ | {"MLXNET_DATABASE_URL": database_url, "MLXNET_HOME": str(home)}
    return found | ({"MLXNET_REDIS_URL": redis_url} if redis_url else {})


def test_a_worker_in_memory_runs_a_chore(expired: Database, database_url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_MEMORY],
        env=environment(database_url, tmp_path),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_worker_on_redis_runs_a_chore(
    expired: Database, database_url: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    env = environment(database_url, tmp_path, redis_server.url)
    command = [sys.executable, "-m", "celery", "-A", "coordinator.tasks", "worker", "-B"]
    command += ["--pool", "solo", "-s", str(tmp_path / "beat"), "--without-mingle", "--without-gossip"]
    log = (tmp_path / "worker.log").open("w")
    worker = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        subprocess.run([sys.executable, "-c", SEND], env=env, check=True, timeout=SECONDS_MAX)
        deadline = time.monotonic() + SECONDS_MAX
        while codes(expired) != ["NEW"]:
            assert worker.poll() is None, (tmp_path / "worker.log").read_text()[-2000:]
            assert time.monotonic() < deadline, (tmp_path / "worker.log").read_text()[-2000:]
            time.sleep(0.05)
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
        log.close()


def codes(database: Database) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(Enrolment.code)).all())


def test_beat_has_every_chore_and_messages_are_json() -> None:
    script = (
        "from coordinator.tasks import app; from coordinator.upkeep import SCHEDULE\n"
        "assert {c.name: c.every_seconds for c in SCHEDULE} == "
        "{n: e['schedule'] for n, e in app.conf.beat_schedule.items()}\n"
        "assert {e['task'] for e in app.conf.beat_schedule.values()} <= set(app.tasks)\n"
        "assert (app.conf.task_serializer, app.conf.accept_content) == ('json', ['json'])\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=SECONDS_MAX)
