"""Make a failing world small: leave out Macs, jobs and faults for as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.simulation.scenario import Scenario
from tests.simulation.world import simulate

TRIES_MAX: Final = 300


def rule_of(violation: str) -> str:
    """The rule's name, without what broke it."""
    return violation.partition(":")[0]


def fails_alike(rule: str) -> Callable[[Scenario], bool]:
    """Whether a scenario breaks the same rule first."""
    return lambda scenario: [rule_of(one) for one in simulate(scenario).violations[:1]] == [rule]


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The smallest scenario found by leaving out entries, greedily."""
    tries = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in scenario.smaller():
            tries += 1
            if tries > TRIES_MAX:
                return scenario
            if fails(candidate):
                scenario, is_smaller = candidate, True
                break
    return scenario


def command_of(scenario: Scenario, whole: Scenario) -> str:
    """The command that replays a scenario, with what it keeps of the seed's whole one."""
    words = [f"python -m tests.simulation --seed {scenario.seed} --story"]
    for name in ("nodes", "jobs", "faults"):
        kept, all_ = getattr(scenario, name), getattr(whole, name)
        if len(kept) != len(all_):
            words.append(f"--{name} {','.join(str(one.index) for one in kept) or 'none'}")
    return " ".join(words)


def keep(scenario: Scenario, name: str, words: str | None) -> Scenario:
    """The scenario with only those entries of one list whose numbers `words` has ("0,3", "none")."""
    if words is None:
        return scenario
    numbers = set[int]() if words == "none" else {int(word) for word in words.split(",")}
    entries = tuple(one for one in getattr(scenario, name) if one.index in numbers)
    return replace(scenario, **{name: entries})
