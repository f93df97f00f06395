"""Break a running network for minutes, then see that nothing was lost: `python -m tests.chaos`.

Coordinator, nodes (real ones, with a tiny model) and a durable PostgreSQL run as processes, with
the clocks of a fresh installation, while submitters send streamed, whole and asynchronous jobs and
reconnect as the documentation says. Last line: one JSON object. Ends with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import func, select

from coordinator.db import Database, make_engine
from coordinator.jobs.models import Attempt
from tests.chaos.audit import Audit, audit, wait_quiet
from tests.chaos.faults import FAULTS, Done, wreck
from tests.chaos.load import BODIES, Asked, Record, Submitter, request_of
from tests.chaos.measure import Measured, measure
from tests.chaos.network import ChaosNetwork, chaos_network

# Of answers that several Macs made: a draw in ten thousand falls otherwise behind a seam, and these
# answers have a thousand or two.
TIES_SHARE: Final = 0.16
TIES_CHANCE: Final = 1e-3  # of a run that is called broken though nothing is


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and report. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to break things")
    parser.add_argument("--seed", type=int, default=None, help="which faults come when")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--submitters", type=int, default=6)
    parser.add_argument(
        "--width", type=int, default=1, help="attempts a Mac; above 1 answers are compared by their length"
    )
    parser.add_argument("--rounds", type=int, default=2, help="measured deaths of each kind; 0: none")
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--keep", type=Path, default=None, help="keep logs and data in this folder")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else int(time.time())
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="mlxnet-chaos-") as folder:
        root = options.keep or Path(folder)
        with chaos_network(root, nodes=options.nodes, width=options.width) as network:
            say("up; measuring single deaths" if options.rounds else "up")
            measured = measure(network, rounds=options.rounds)
            return report(*run(network, options, random.Random(seed)), measured)


def run(
    network: ChaosNetwork, options: argparse.Namespace, rng: random.Random
) -> tuple[list[Asked], list[Done], Audit, Compared]:
    """Load and faults together, then quiet, then the audit and a comparison of every answer."""
    record, stop = Record(), threading.Event()
    submitters = [
        Submitter(
            number,
            url=network.local.url,
            api_key=network.local.keys["Sam"],
            record=record,
            stop=stop,
        )
        for number in range(options.submitters)
    ]
    for submitter in submitters:
        submitter.start()
    done = wreck(
        network,
        rng,
        seconds=options.seconds,
        names=options.faults,
        tell=lambda one: say(f"{one.at_seconds:6.1f} s  {one.story}"),
    )
    say("no more faults; waiting for what is under way")
    stop.set()
    for submitter in submitters:
        submitter.join()
    database = Database(make_engine(network.postgres.url))
    try:
        if not wait_quiet(database):
            say("jobs are still under way")
        acknowledged = {one.job_id for one in record.asked if one.job_id is not None}
        found = audit(database, acknowledged)
        continued = jobs_of_several_macs(database)
    finally:
        database.close()
    say("comparing every answer with an undisturbed one")
    lines, ties = broken(network, record.asked, continued, is_exact=options.width == 1)
    if len(ties) > ties_max(len(continued)):
        lines += ties
    return record.asked, done, found, Compared(lines, ties, len(continued))


def ties_max(continued: int) -> int:
    """How many of so many answers may go on otherwise behind a seam: more come by chance in fewer than
    `TIES_CHANCE` of all runs (the tail of the binomial distribution). A fault of the seam turns them all.
    """
    left = 1.0
    for count in range(continued):
        ways = math.comb(continued, count)
        left -= ways * TIES_SHARE**count * (1 - TIES_SHARE) ** (continued - count)
        if left <= TIES_CHANCE:
            return max(count, 1)
    return max(continued, 1)


@dataclass(frozen=True)
class Compared:
    """What is wrong with answers, and which went on otherwise behind a seam."""

    broken: list[str]
    ties: list[str]
    continued: int


def jobs_of_several_macs(database: Database) -> set[str]:
    """The jobs of which more than one attempt delivered something."""
    with database.read() as session:
        counts = (
            select(Attempt.job_id)
            .where(Attempt.delivered_tokens > 0)
            .group_by(Attempt.job_id)
            .having(func.count() > 1)
        )
        return set(session.scalars(counts))


def broken(
    network: ChaosNetwork, asked: list[Asked], continued: set[str], *, is_exact: bool
) -> tuple[list[str], list[str]]:
    """Answers that are not whole, or not what the same request gives on a quiet network; and those of
    `continued` that are whole and differ.

    Macs that serve several at once round differently with each set of neighbours, which now and then
    turns a draw; `is_exact` is for those that serve one. What was delivered is read anew there when
    an answer is continued, many tokens at once, and that rounds otherwise than one at a time.
    """
    record, stop = Record(), threading.Event()
    quiet = Submitter(0, url=network.local.url, api_key=network.local.keys["Sam"], record=record, stop=stop)
    wanted: dict[int, str] = {}
    lines, ties = list[str](), list[str]()
    for number in range(BODIES):
        one = Asked("whole", number, f"quiet-{number}-{time.time_ns()}")
        quiet.ask(one)
        wanted[number] = one.text
    quiet.close()
    for one in asked:
        if one.kind == "cancel":
            if is_exact and not wanted[one.body].startswith(one.text):
                line = f"{one.job_id} was cancelled and is no beginning of its answer"
                (ties if one.job_id in continued else lines).append(line)
        elif not one.is_whole:
            lines.append(f"{one.kind} {one.job_id} ended with {one.error} behind {one.last_id} tokens")
        elif one.tokens != request_of(one.body)["max_tokens"]:
            lines.append(f"{one.kind} {one.job_id} has {one.tokens} tokens")
        elif is_exact and one.text != wanted[one.body]:
            line = f"{one.kind} {one.job_id} is whole and {_difference(one.text, wanted[one.body])}"
            (ties if one.job_id in continued else lines).append(line)
    return lines, ties


def _difference(found: str, wanted: str) -> str:
    same = next((at for at, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(found), len(wanted)) if same is None else same
    return f"leaves the undisturbed answer at character {at} ({len(found)} and {len(wanted)} in all)"


def report(asked: list[Asked], done: list[Done], found: Audit, compared: Compared, measured: Measured) -> int:
    """Print what was found; the last line is one JSON object."""
    for title, lines in (
        ("lost", found.lost),
        ("paid twice", found.paid_twice),
        ("broken", compared.broken),
        ("went on otherwise behind a seam", compared.ties),
        ("otherwise wrong", found.other),
    ):
        for line in lines[:20]:
            say(f"{title}: {line}")
    gaps = sorted(one.longest_gap_seconds for one in asked if one.kind == "stream")
    figures = {
        "jobs": found.jobs,
        "lost": len(found.lost),
        "paid_twice": len(found.paid_twice),
        "sum_umlx": found.sum_umlx,
        "broken_streams": len(compared.broken),
        "near_ties": len(compared.ties),
        "continued": compared.continued,
        "resume_s_max": measured.longest_silent_seconds,
        "resume_closed_s_max": measured.longest_closed_seconds,
        "cancel_s_max": measured.longest_cancel_seconds,
        "otherwise_wrong": len(found.other),
        "faults": dict(Counter(one.name for one in done)),
        "states": found.states,
        "reconnects": sum(one.reconnects for one in asked),
        "ledger_entries": found.entries,
        "gap_s_median": round(statistics.median(gaps), 2) if gaps else None,
        "gap_s_max": round(gaps[-1], 1) if gaps else None,
    }
    print(json.dumps(figures), flush=True)
    return 1 if found.lost or found.paid_twice or found.sum_umlx or compared.broken or found.other else 0


def say(line: str) -> None:
    """One line of the story."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
