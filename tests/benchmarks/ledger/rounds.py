"""Series of runs that are measured in turns with pgbench, and how they are summed up."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.ledger.server import Measured, Server

HEAD = f"{'':<28}{'per s':>8} {'(min to max)':>15} {'x pgbench':>10} {'CPU ms: client':>15} {'server':>7} {'both':>6}"


@dataclass
class Series:
    """One thing's runs, each with the mean of pgbench's rate just before and just after."""

    name: str
    runs: list[Measured] = field(default_factory=list[Measured])
    pgbench_rates: list[float] = field(default_factory=list[float])

    @property
    def per_second(self) -> float:
        """Median rate."""
        return statistics.median(run.per_second for run in self.runs)

    @property
    def cpu_ms_each(self) -> float:
        """Median CPU milliseconds of client and server for each thing done."""
        return statistics.median(run.cpu_ms_each for run in self.runs)

    @property
    def vs_pgbench(self) -> float:
        """Median of the rounds' ratios."""
        pairs = zip(self.runs, self.pgbench_rates, strict=True)
        return statistics.median(run.per_second / rate for run, rate in pairs)

    def row(self) -> str:
        """One line of the table."""
        rates = [run.per_second for run in self.runs]
        client = statistics.median(1000 * run.client_cpu_seconds / run.done for run in self.runs)
        server = statistics.median(1000 * run.server_cpu_seconds / run.done for run in self.runs)
        ratio = f"{self.vs_pgbench:.2f}" if self.pgbench_rates else ""
        spread = f"({min(rates):,.0f} to {max(rates):,.0f})"
        cpu = f"{client:>15.3f} {server:>7.3f} {self.cpu_ms_each:>6.3f}"
        return f"{self.name:<28}{self.per_second:>8,.0f} {spread:>15} {ratio:>10} {cpu}"


def in_turns(
    server: Server, rounds: int, seconds: int, things: Sequence[tuple[Series, Callable[[], Measured]]]
) -> Series:
    """Measure each thing once a round, pgbench before and after each; returns pgbench's own runs."""
    pgbench = Series("pgbench -N -c 8 -j 2")

    def run_pgbench() -> float:
        pgbench.runs.append(server.run_pgbench(seconds))
        return pgbench.runs[-1].per_second

    before = run_pgbench()
    for _ in range(rounds):
        for series, measure in things:
            series.runs.append(measure())
            after = run_pgbench()
            series.pgbench_rates.append((before + after) / 2)
            before = after
    return pgbench


def ratio(over: Series, under: Series) -> float:
    """Median over the rounds of one thing's rate over another's."""
    pairs = zip(over.runs, under.runs, strict=True)
    return statistics.median(first.per_second / second.per_second for first, second in pairs)
