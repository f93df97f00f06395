"""Measure the memory's bandwidth with MLX: `python -m node_agent.hardware.selftest`, in a child.

Adds 1 to a large array again and again: each time every byte is read and written once, and the
array is larger than all caches. Bytes moved in the best round, over its time, is the result. The
warm-up before is the same work, so that a Mac that slows down when hot is measured slow.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

ADDITIONS: Final = 8  # in one round, so that starting a kernel does not count
FLOAT_BYTES: Final = 4
CPU_BYTES_MAX: Final = 128 << 20  # without a GPU one core does it all: enough to be out of caches

Round = Callable[[], int]
"""Does some work and returns the bytes that it read and wrote."""


@dataclass(frozen=True)
class Measured:
    """The best round's bytes a second; whether the warm-up was whole; how long all of it took."""

    bandwidth_bytes_per_second: int
    is_warm: bool
    seconds: float


def measure(
    run: Round,
    *,
    warm_up_seconds: float,
    measure_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Warm up, then take the best of all rounds that begin within the time; at least one of each.

    A best round, not the mean: whatever else runs on the machine only ever makes it slower.
    """
    began = clock()
    while True:
        _ = run()
        if clock() - began >= warm_up_seconds:
            break
    warm_at, fastest = clock(), 0.0
    while True:
        round_at = clock()
        moved_bytes = run()
        now = clock()
        # A clock too coarse for the round says nothing.
        if now > round_at:
            fastest = max(fastest, moved_bytes / (now - round_at))
        if now - warm_at >= measure_seconds:
            break
    return Measured(int(fastest), warm_at - began >= warm_up_seconds > 0, round(clock() - began, 3))


def additions(size_bytes: int) -> tuple[Round, Callable[[], bool]]:
    """A round over an MLX array of that size, and whether the array holds what it must."""
    import mlx.core

    mx = cast("Any", mlx.core)
    if mx.default_device().type == mx.cpu:
        size_bytes = min(size_bytes, CPU_BYTES_MAX)
    count = size_bytes // FLOAT_BYTES
    array = mx.zeros((count,), dtype=mx.float32)
    mx.eval(array)
    rounds = 0

    def run() -> int:
        nonlocal array, rounds
        for _ in range(ADDITIONS):
            array = array + 1.0
        mx.eval(array)
        rounds += 1
        return ADDITIONS * 2 * count * FLOAT_BYTES

    def holds() -> bool:
        ends = (array[0].item(), array[count // 2].item(), array[count - 1].item())
        return set(ends) == {float(rounds * ADDITIONS)}

    return run, holds


def main(arguments: list[str] | None = None) -> int:
    """Measure and print one line of JSON. Exit code 1, with the reason, if it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m node_agent.hardware.selftest")
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--warm-up-seconds", type=float, default=2.0)
    parser.add_argument("--measure-seconds", type=float, default=2.0)
    given = parser.parse_args(arguments)
    try:
        run, holds = additions(given.bytes)
    except ImportError:
        sys.stderr.write("mlx is not installed: pip install 'mlx-network[node]'\n")
        return 1
    found = measure(run, warm_up_seconds=given.warm_up_seconds, measure_seconds=given.measure_seconds)
    if not holds() or found.bandwidth_bytes_per_second <= 0:
        sys.stderr.write("the memory did not hold what was written to it\n")
        return 1
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
