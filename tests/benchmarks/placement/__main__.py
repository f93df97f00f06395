"""`make bench-placement`: decisions timed, scenes compared; the last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.benchmarks.placement.deciding import Timing, measure
from tests.benchmarks.placement.replay import OURS, Comparison, Light, Outcome, compare, light, scene_at
from tests.benchmarks.placement.scenes import Scene
from tests.benchmarks.placement.traces import ENVIRONMENT, Request, read_trace, trace_files


def say(text: str = "") -> None:
    """A line of the report."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show_timing(found: Timing) -> None:
    say(
        f"  {found.hosts:>9,} {found.per_second:>8.0f} {found.p50_ms:>8.2f} {found.p99_ms:>8.2f}"
        f" {found.cpu_p50_ms:>8.2f} {found.cpu_p99_ms:>8.2f} {found.changes_us:>10.0f}"
        f" {found.bytes_per_host:>7.0f}"
    )


def show_comparison(found: Comparison) -> None:
    say(f"\n{found.name}, load {found.load:.0%}: {found.jobs} jobs counted, {found.seconds / 60:.0f} minutes")
    say(
        f"  {'':20} {'mean s':>7} {'p95 s':>7} {'late':>6} {'wait max':>9} {'served':>7} {'wasted':>7} {'loads':>6} {'growth':>7}"
    )
    for one in found.outcomes:
        say(
            f"  {one.name:20} {one.mean:>7.1f} {one.p95:>7.1f} {one.misses:>6.1%} {one.wait_max:>9.0f}"
            f" {one.served:>7.1%} {one.wasted:>7.1%} {one.loads:>6} {one.growth:>7.2f}"
        )
    say(f"  {'no policy can beat':20} {found.bound:>7.1f}")
    show_parts(found.ours)
    nearest = min(found.others, key=lambda one: one.mean)
    if nearest.mean <= 1.05 * found.bound:
        say(f"  {nearest.name} is within 5 % of the bound already")


def show_parts(ours: Outcome) -> None:
    """Where the mean of ours goes."""
    parts = ours.parts
    slower = parts.prompt + parts.alone - ours.best_alone
    say(
        f"  ours: queue {parts.waiting:.1f}, loading {parts.loading:.1f}, others' prompts"
        f" {parts.reading_others:.1f}, shared batches {parts.beside:.1f}, owners' returns"
        f" {parts.returned:.1f}, slower Mac than best {slower:.1f}, alone on the best"
        f" {ours.best_alone:.1f}; {ours.held} loads planned"
    )


def show_light(found: Light) -> None:
    say("\nLight load: an hour with three jobs an hour for each fitting Mac, who served any")
    for band, share in found.shares.items():
        say(f"  {band:>14}: {share:.1%}")
    say(f"  Macs that no job fits: {found.without_fitting:.1%}")
    say(f"  mean completion {found.mean:.1f} s, without trials {found.mean_without:.1f} s")


def scenes(given: argparse.Namespace) -> Iterator[tuple[str, float, Scene]]:
    """(name, load, scene) of each comparison; one without its trace is left out, and that is said."""
    sources: list[tuple[str, list[Request] | None]] = [("Drawn jobs", None)]
    files = trace_files()
    sources += [(path.stem, read_trace(path, given.jobs)) for path in files]
    if not files:
        say(f"\nNo traces: set {ENVIRONMENT} to a folder of CSV files to replay them")
    for name, trace in sources:
        for load in (0.6, 0.9):
            yield name, load, scene_at(load, seed=given.seed, macs=given.macs, jobs=given.jobs, trace=trace)


def timed(seed: int, *, is_quick: bool) -> dict[int, Timing]:
    """Decisions on fleets of each size."""
    say("Decisions, one thread, five hosts changed between two of them")
    say(
        f"  {'hosts':>9} {'a second':>8} {'p50 ms':>8} {'p99 ms':>8} {'cpu p50':>8} {'cpu p99':>8} {'change us':>10} {'bytes':>7}"
    )
    found: dict[int, Timing] = {}
    for size in (1000, 10_000, 100_000, *(() if is_quick else (1_000_000,))):
        found[size] = measure(size, seed=seed)
        show_timing(found[size])
    return found


def figures(
    timings: dict[int, Timing], compared: list[Comparison], calm: Light
) -> dict[str, float | str | None]:
    """What the last line says. Of several scenes the worst counts."""
    large, million = timings[100_000], timings.get(1_000_000)
    at_60 = [one for one in compared if one.load == 0.6]
    return {
        "p99_ms_100k": large.p99_ms,
        "cpu_p99_ms_100k": large.cpu_p99_ms,
        "decisions_per_second_100k": large.per_second,
        "bytes_per_host": large.bytes_per_host,
        "growth_10k_to_100k": large.cpu_p50_ms / timings[10_000].cpu_p50_ms,
        "growth_100k_to_1m": million.cpu_p50_ms / large.cpu_p50_ms if million else None,
        "ratio_to_best_baseline": max(one.ratio_to_best() for one in compared),
        "gain_vs_median_baseline": min(one.gain_vs_median() for one in compared),
        "gap_to_bound_60": max(one.ours.mean / one.bound for one in at_60) - 1,
        "best_baseline_gap_to_bound_60": min(min(o.mean for o in one.others) / one.bound for one in at_60)
        - 1,
        "served_share_min_band": calm.least,
        "price_of_fairness": calm.mean / calm.mean_without - 1,
        "wait_max_seconds": max(one.ours.wait_max for one in compared),
        "policy": OURS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    _ = parser.add_argument("--seed", type=int, default=1)
    _ = parser.add_argument("--macs", type=int, default=60)
    _ = parser.add_argument("--jobs", type=int, default=2500)
    _ = parser.add_argument("--quick", action="store_true", help="fewer Macs and jobs, no million hosts")
    given = parser.parse_args()
    if given.quick:
        given.macs, given.jobs = min(given.macs, 30), min(given.jobs, 800)
    timings = timed(given.seed, is_quick=given.quick)
    compared: list[Comparison] = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for name, load, scene in scenes(given):
            compared.append(compare(name, load, scene, pool))
            show_comparison(compared[-1])
    calm = light(given.seed, 5 * given.macs)
    show_light(calm)
    say(json.dumps(figures(timings, compared, calm)))


if __name__ == "__main__":
    main()
