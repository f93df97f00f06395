"""The simulator itself: it replays exactly, it makes worlds small, and the network stands it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.simulation.loop import Life, StuckError, VirtualLoop, running
from tests.simulation.model import answer
from tests.simulation.mutants import MUTANTS, VARIABLE
from tests.simulation.scenario import Scenario, make
from tests.simulation.shrink import command_of, keep, shrink

ROOT: Final = Path(__file__).parents[2]
SEEDS: Final = 200
# Chosen since it is found within the first few worlds.
QUICK_MUTANT: Final = "seat not given back"


def simulate(*words: str, **variables: str) -> tuple[int, str]:
    """Run the command line in a process of its own: (exit status, output)."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_no_world_breaks_a_rule() -> None:
    status, output = simulate("--seeds", str(SEEDS))
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert (status, figures["violations"]) == (0, 0), output[-10_000:]
    assert figures["seeds"] == SEEDS
    assert figures["faults_injected"] > SEEDS
    assert figures["attempts"] > figures["jobs"] > SEEDS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [7, 1420])
def test_a_seed_has_one_story(seed: int) -> None:
    stories = {simulate("--seed", str(seed), "--story")[1] for _ in range(2)}
    assert len(stories) == 1
    assert "all is calm" in stories.pop()


@pytest.mark.timeout(300)
def test_a_seeded_fault_is_found_and_its_world_told() -> None:
    status, output = simulate("--seeds", "20", **{VARIABLE: QUICK_MUTANT})
    assert status == 1
    assert "L4 seats" in output
    assert "replay: python -m tests.simulation --seed" in output


def test_every_seeded_fault_fits_the_code() -> None:
    for mutant in MUTANTS:
        for module, old, _ in mutant.edits:
            text = (ROOT / (module.replace(".", "/") + ".py")).read_text()
            assert text.count(old) == 1, mutant.name
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 12


def test_a_world_is_made_as_small_as_its_fault_allows() -> None:
    whole = next(scenario for scenario in map(make, range(1000)) if len(scenario.faults) >= 6)

    def fails(scenario: Scenario) -> bool:
        kept = {fault.index for fault in scenario.faults}
        return {1, 4} <= kept and len(scenario.nodes) > 0

    small = shrink(whole, fails)
    assert [fault.index for fault in small.faults] == [1, 4]
    assert (len(small.nodes), len(small.jobs)) == (1, 1)
    assert "--faults 1,4" in command_of(small, whole)
    assert keep(whole, "faults", "1,4").faults == small.faults


def test_a_world_without_an_entry_is_the_same_otherwise() -> None:
    whole = make(3)
    for smaller in whole.smaller():
        assert set(smaller.nodes) <= set(whole.nodes)
        assert set(smaller.jobs) <= set(whole.jobs)
        assert set(smaller.faults) <= set(whole.faults)
        assert smaller.size < whole.size


def test_the_clock_jumps_and_keeps_the_order_of_what_is_due_at_once() -> None:
    loop = VirtualLoop()
    heard: list[int] = []
    with running(loop):
        for number in range(50):
            _ = loop.after(3600.0, heard.append, number)
        began = loop.time()
        loop.run_until_complete(asyncio.sleep(3601.0))
        assert loop.time() - began == pytest.approx(3601.0)
    assert heard == list(range(50))


def test_nothing_of_a_process_that_died_goes_on() -> None:
    loop = VirtualLoop()
    life = Life("process")
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10.0)
            done.append("went on")
        finally:
            if not life.is_over:
                done.append("cleaned up")

    with running(loop):
        _ = loop.start(work(), life)
        _ = loop.after(5.0, loop.end, life)
        loop.run_until_complete(asyncio.sleep(20.0))
        assert done == []


def test_a_world_in_which_everybody_waits_is_stuck() -> None:
    loop = VirtualLoop()
    with running(loop), pytest.raises(StuckError):
        loop.run_until_complete(loop.create_future())


def test_the_model_goes_on_from_any_prefix() -> None:
    prompt, seed = (5, 300, 17), 99
    whole = answer(prompt, seed, 40)
    for cut in range(len(whole.token_ids)):
        rest = answer((*prompt, *whole.token_ids[:cut]), seed, 40 - cut)
        assert whole.token_ids[cut:] == rest.token_ids
        assert whole.finish_reason == rest.finish_reason
