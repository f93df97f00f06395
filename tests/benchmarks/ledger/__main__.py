"""Ledger commands a second on a durable PostgreSQL, against pgbench and against naive ORM code.

`python -m tests.benchmarks.ledger [--rounds N] [--seconds S] [--scale N]`; under six minutes as it
is. Everything runs on one server in turns: `pgbench -N -c 8 -j 2` before and after each other
thing, and ratios are taken against the mean of the two. At the end the books are reconciled,
exported and verified offline. Last line: one JSON object. Ends with 1 if the books are wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.commits import GroupCommit
from coordinator.db import Database, make_engine, migrate
from ledger.notes import Signer
from tests.benchmarks.ledger.books import Reconciled, reconcile, sign_and_export, verify_apart
from tests.benchmarks.ledger.callers import ACCOUNTS, Load, account_names, open_accounts, run_callers
from tests.benchmarks.ledger.naive import Naive
from tests.benchmarks.ledger.rounds import HEAD, Series, in_turns, ratio
from tests.benchmarks.ledger.server import Server, postgresql
from tests.benchmarks.measures import OtherLoad

FEW: Final = 64
MANY: Final = 256
WARM_SECONDS: Final = 2


@dataclass(frozen=True)
class Found:
    """All that was measured."""

    server: str
    pgbench: Series
    few: Series
    many: Series
    naive: Series
    few_load: Load
    many_load: Load
    writes_per_batch: float
    books: Reconciled
    small: dict[str, float]
    whole: dict[str, float]


def measure(server: Server, arguments: argparse.Namespace, folder: Path) -> Found:
    """The whole bench on a started server."""
    server.fill_pgbench(arguments.scale)
    server.run("CREATE DATABASE ledger", "CREATE DATABASE naive")
    database, signer = Database(make_engine(server.url_of("ledger"))), Signer.generate("bench")
    migrate(database.engine)
    names = account_names()
    open_accounts(database, names)
    naive = Naive(server, server.url_of("naive"), ACCOUNTS)
    commits = GroupCommit(database)
    run_callers(server, Load(commits, names), FEW, WARM_SECONDS)
    naive.run(WARM_SECONDS)
    sign_and_export(database, signer, folder / "small.jsonl")
    # A ledger that has run for a minute was analysed by autovacuum; its statements' plans rely on that.
    server.settle("ledger", "naive", "pgbench")
    few, many, orm = (
        Series(name) for name in (f"ledger, {FEW} callers", f"ledger, {MANY} callers", "naive ORM")
    )
    few_load, many_load = Load(commits, names), Load(commits, names)
    batches, writes = commits.batches, commits.writes
    pgbench = in_turns(
        server,
        arguments.rounds,
        arguments.seconds,
        [
            (few, lambda: run_callers(server, few_load, FEW, arguments.seconds)),
            (many, lambda: run_callers(server, many_load, MANY, arguments.seconds)),
            (orm, lambda: naive.run(arguments.seconds)),
        ],
    )
    naive.close()
    commits.stop()
    per_batch = (commits.writes - writes) / (commits.batches - batches)
    books = reconcile(database)
    sign_and_export(database, signer, folder / "whole.jsonl")
    small, whole = (verify_apart(folder / f"{name}.jsonl", signer) for name in ("small", "whole"))
    about = f"{server.origin}, PostgreSQL {server.show('server_version')}, fsync {server.show('fsync')}"
    database.close()
    return Found(about, pgbench, few, many, orm, few_load, many_load, per_batch, books, small, whole)


def p50_p99_ms(load: Load) -> tuple[float, float]:
    """Of the time from asking to the answer after the commit."""
    cuts = statistics.quantiles(load.latencies_seconds, n=100)
    return 1000 * cuts[49], 1000 * cuts[98]


def print_table(found: Found, arguments: argparse.Namespace, other_cores: float) -> None:
    """For people."""
    print(f"{found.server}; pgbench scale {arguments.scale}; {os.cpu_count()} cores", end="; ")
    print(f"others kept {other_cores:.2f} cores busy")
    print(
        f"{ACCOUNTS:,} accounts, 3 legs a capture; {arguments.rounds} rounds of {arguments.seconds} s, medians\n"
    )
    print(HEAD)
    for series in (found.pgbench, found.few, found.many, found.naive):
        print(series.row())
    print()
    for count, load in ((FEW, found.few_load), (MANY, found.many_load)):
        p50_ms, p99_ms = p50_p99_ms(load)
        print(f"{count:>4} callers: a command is answered after {p50_ms:.1f} ms (p50), {p99_ms:.1f} ms (p99)")
    print(f"{found.writes_per_batch:.0f} commands a commit")
    print(
        f"reconciled {found.books.entries:,} entries in {found.books.seconds:.1f} s: {found.books.drifts} drifts"
    )
    for file in (found.small, found.whole):
        rate = file["entries"] / file["wall_seconds"]
        print(
            f"verified an export of {file['entries']:,.0f}: {rate:,.0f} entries/s, peak {file['peak_mib']:.0f} MiB"
        )
    print()


def summary(found: Found, arguments: argparse.Namespace, other_cores: float) -> dict[str, object]:
    """For scripts."""
    few_p50_ms, few_p99_ms = p50_p99_ms(found.few_load)
    many_p50_ms, many_p99_ms = p50_p99_ms(found.many_load)
    return {
        "vs_pgbench": round(found.few.vs_pgbench, 2),
        "cpu_ms_per_command": round(found.few.cpu_ms_each, 3),
        "vs_naive_orm": round(ratio(found.few, found.naive), 1),
        "verify_entries_per_s": round(found.whole["entries"] / found.whole["wall_seconds"]),
        "vs_pgbench_256": round(found.many.vs_pgbench, 2),
        "cpu_ms_per_command_256": round(found.many.cpu_ms_each, 3),
        "commands_per_s": round(found.few.per_second),
        "commands_per_s_256": round(found.many.per_second),
        "pgbench_per_s": round(found.pgbench.per_second),
        "pgbench_cpu_ms": round(found.pgbench.cpu_ms_each, 3),
        "naive_per_s": round(found.naive.per_second),
        "naive_cpu_ms": round(found.naive.cpu_ms_each, 3),
        "p50_ms": round(few_p50_ms, 1),
        "p99_ms": round(few_p99_ms, 1),
        "p50_ms_256": round(many_p50_ms, 1),
        "p99_ms_256": round(many_p99_ms, 1),
        "verify_entries": round(found.whole["entries"]),
        "verify_peak_mib": round(found.whole["peak_mib"], 1),
        "verify_peak_mib_of_small": round(found.small["peak_mib"], 1),
        "reconcile_drifts": found.books.drifts,
        "is_reconciled": found.books.drifts == 0,
        "rounds": arguments.rounds,
        "pgbench_scale": arguments.scale,
        "server": found.server,
        "other_cores": round(other_cores, 2),
    }


def main() -> int:
    """Measure, print, and tell by the exit code whether the books are right."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ledger")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4, help="how long each run takes")
    parser.add_argument("--scale", type=int, default=20, help="pgbench's: 100,000 rows each")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mlxnet-bench-") as folder, postgresql() as server:
        other, began, server_before = OtherLoad(), time.monotonic(), server.cpu_seconds()
        found = measure(server, arguments, Path(folder))
        # The server is no child of this process, but it is no stranger either.
        server_cores = (server.cpu_seconds() - server_before) / (time.monotonic() - began)
        other_cores = max(0.0, other.cores() - server_cores)
    print_table(found, arguments, other_cores)
    answer = summary(found, arguments, other_cores)
    print(json.dumps(answer | {"seconds": round(time.monotonic() - started)}))
    return 0 if found.books.drifts == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
