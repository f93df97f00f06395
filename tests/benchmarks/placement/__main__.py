"""`make bench-placement`: decisions timed, scenes compared; the last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.benchmarks.placement.deciding import Timing, measure
from tests.benchmarks.placement.replay import OURS, Comparison, Light, compare, light, scene_at
from tests.benchmarks.placement.scenes import read_lengths


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
    say(f"\nLoad {found.load:.0%}: {found.jobs} jobs in {found.seconds / 60:.0f} minutes")
    say(
        f"  {'':20} {'mean s':>7} {'p95 s':>7} {'late':>6} {'wait max':>9} {'served':>7} {'wasted':>7} {'loads':>6}"
    )
    for one in found.outcomes:
        say(
            f"  {one.name:20} {one.mean:>7.1f} {one.p95:>7.1f} {one.misses:>6.1%} {one.wait_max:>9.0f}"
            f" {one.served:>7.1%} {one.wasted:>7.1%} {one.loads:>6}"
        )
    say(f"  {'no policy can beat':20} {found.bound:>7.1f}")
    nearest = min(found.others, key=lambda one: one.mean)
    if nearest.mean <= 1.05 * found.bound:
        say(f"  {nearest.name} is within 5 % of the bound already")


def show_light(found: Light) -> None:
    say("\nLight load: an hour with three jobs an hour for each fitting Mac, who served any")
    for band, share in found.shares.items():
        say(f"  {band:>14}: {share:.1%}")
    say(f"  Macs that no job fits: {found.without_fitting:.1%}")
    say(f"  mean completion {found.mean:.1f} s, without trials {found.mean_without:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    _ = parser.add_argument("--seed", type=int, default=1)
    _ = parser.add_argument("--macs", type=int, default=40)
    _ = parser.add_argument("--jobs", type=int, default=2000)
    _ = parser.add_argument("--million", action="store_true", help="time decisions over a million hosts too")
    _ = parser.add_argument("--trace", type=Path, help="a CSV of ContextTokens and GeneratedTokens")
    given = parser.parse_args()
    lengths = read_lengths(given.trace) if given.trace else None
    say("Decisions, one thread, five hosts changed between two of them")
    say(
        f"  {'hosts':>9} {'a second':>8} {'p50 ms':>8} {'p99 ms':>8} {'cpu p50':>8} {'cpu p99':>8} {'change us':>10} {'bytes':>7}"
    )
    sizes = [1000, 10_000, 100_000, *([1_000_000] if given.million else [])]
    timings = {size: measure(size, seed=given.seed) for size in sizes}
    for timing in timings.values():
        show_timing(timing)
    options = {"seed": given.seed, "macs": given.macs, "jobs": given.jobs}
    compared: list[Comparison] = []
    for load in (0.6, 0.9):
        compared.append(compare(load, scene_at(load, lengths=lengths, **options)))
        show_comparison(compared[-1])
    calm = light(given.seed, 4 * given.macs)
    show_light(calm)
    large = timings[100_000]
    body = {
        "p99_ms_100k": large.p99_ms,
        "cpu_p99_ms_100k": large.cpu_p99_ms,
        "decisions_per_second_100k": large.per_second,
        "bytes_per_host": large.bytes_per_host,
        "growth_10k_to_100k": large.p50_ms / timings[10_000].p50_ms,
        "ratio_to_best_baseline": max(one.ratio_to_best() for one in compared),
        "gain_vs_median_baseline": min(one.gain_vs_median() for one in compared),
        "gap_to_bound_60": compared[0].ours.mean / compared[0].bound - 1,
        "best_baseline_gap_to_bound_60": min(o.mean for o in compared[0].others) / compared[0].bound - 1,
        "served_share_min_band": calm.least,
        "price_of_fairness": calm.mean / calm.mean_without - 1,
        "wait_max_seconds": max(one.ours.wait_max for one in compared),
        "policy": OURS,
    }
    say(json.dumps(body))


if __name__ == "__main__":
    main()
