"""Run seeds, replay one, make a failing one small, or try whether seeded faults are found."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Final

from tests.simulation.farm import HASH_SEED, Tally, be_silent, default_processes, farm, figures, tell_logs
from tests.simulation.mutants import try_mutants
from tests.simulation.scenario import Scenario, make
from tests.simulation.shrink import command_of, fails_alike, keep, rule_of, shrink
from tests.simulation.world import simulate

STORIES_MAX: Final = 3
# Worlds to live through before a seeded fault counts as missed: the rarest, which takes a crash of the
# coordinator and the loss of a Mac together, was found in the 667th.
MUTANT_SEEDS: Final = 2000
STORY_LINES: Final = 60


def main() -> int:
    """Entry point. 0 if all is well, 1 if a rule was broken or a seeded fault survived."""
    options = _parse()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # The order of sets must be the same in every run.
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    be_silent()
    if options.mutants is not None:
        found = try_mutants(options.mutants, seeds=options.seeds or MUTANT_SEEDS)
        print(json.dumps(found))
        return 1 if found["missed"] else 0
    if options.seed is not None and options.seeds is None:
        return _replay(options)
    return _run(options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    _ = parser.add_argument("--seeds", type=int, help="how many worlds to live through")
    _ = parser.add_argument("--seed", type=int, help="the first of them; alone: replay this one")
    _ = parser.add_argument("--jobs-at-once", type=int, default=default_processes(), help="processes")
    _ = parser.add_argument("--until-caught", action="store_true", help="end at the first violation")
    _ = parser.add_argument("--story", action="store_true", help="tell what happens in the replayed world")
    _ = parser.add_argument("--shrink", action="store_true", help="make the replayed world small first")
    for name in ("nodes", "jobs", "faults"):
        _ = parser.add_argument(f"--{name}", help=f"keep only these {name}: 0,3 or none")
    _ = parser.add_argument("--with-mutants", action="store_true", help="and then seed faults into the code")
    _ = parser.add_argument("--mutants", nargs="*", help="seed faults into the code: all, or by a word")
    return parser.parse_args()


# -- many ----------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    first = options.seed or 0
    seeds = range(first, first + (options.seeds or 1000))
    began = time.monotonic()
    total = Tally()
    for tally in farm(seeds, options.jobs_at_once):
        total.join(tally)
        for seed, violation in tally.failed:
            print(f"seed {seed}: {violation}", flush=True)
        if total.failed and options.until_caught:
            break
        if total.seeds % 500 == 0:
            print(f"{total.seeds} worlds, {len(total.failed)} with violations", flush=True)
    seconds = time.monotonic() - began
    if not options.until_caught:
        _tell_stories(total)
    print("faults:", ", ".join(f"{count} {kind}" for kind, count in total.faults.most_common()))
    print("jobs ended:", ", ".join(f"{count} {state}" for state, count in total.ends.most_common()))
    found = figures(total, seconds)
    if options.with_mutants:
        found |= try_mutants((), seeds=MUTANT_SEEDS)
    print(json.dumps(found))
    return 1 if total.failed or found.get("missed") else 0


def _tell_stories(total: Tally) -> None:
    """One small world for each rule that was broken."""
    told: set[str] = set()
    for seed, violation in total.failed:
        rule = rule_of(violation)
        if rule not in told and len(told) < STORIES_MAX:
            told.add(rule)
            whole = make(seed)
            _tell(shrink(whole, fails_alike(rule)), whole, STORY_LINES)


# -- one -----------------------------------------------------------------------------------------


def _replay(options: argparse.Namespace) -> int:
    whole = make(options.seed)
    scenario = whole
    for name in ("nodes", "jobs", "faults"):
        scenario = keep(scenario, name, getattr(options, name))
    if options.shrink:
        found = simulate(scenario).violations
        if found:
            scenario = shrink(scenario, fails_alike(rule_of(found[0])))
    if options.story or options.shrink:
        return _tell(scenario, whole, None)
    outcome = simulate(scenario)
    print("\n".join(outcome.violations) or "no rule was broken")
    return 1 if outcome.violations else 0


def _tell(scenario: Scenario, whole: Scenario, lines_max: int | None) -> int:
    tell_logs()
    outcome = simulate(scenario, is_told=True)
    be_silent()
    story = outcome.story
    if lines_max is not None and len(story) > lines_max:
        story = ["…", *story[-lines_max:]]
    print(f"\nseed {scenario.seed}: {len(scenario.nodes)} Macs, {len(scenario.jobs)} jobs")
    for one in (*scenario.nodes, *scenario.jobs, *scenario.faults):
        print(f"  {one}")
    print("\n".join(story))
    print("\n".join(f"BROKEN  {violation}" for violation in outcome.violations) or "no rule was broken")
    print(f"replay: {command_of(scenario, whole)}", flush=True)
    return 1 if outcome.violations else 0
