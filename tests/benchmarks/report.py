"""From measured runs to the figures that are printed and compared. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from tests.benchmarks.measures import Run

BASE, SERVER, NETWORK = "in process", "mlx_lm.server", "network"

# One round holds one run of each system, made one after the other.
Round = Mapping[str, Run]
Figure = Callable[[Run], float]


@dataclass(frozen=True)
class Ratio:
    """The median over rounds of one system's figure over another's in the same round, and how far
    its middle half of rounds spreads around it, relative to it."""

    value: float
    spread: float


def ratio(rounds: Sequence[Round], over: str, under: str, figure: Figure) -> Ratio:
    """Paired within each round, so that a load that comes and goes hits both."""
    ratios = [figure(one[over]) / figure(one[under]) for one in rounds]
    middle = median(ratios)
    if len(ratios) < 2:
        return Ratio(middle, 0.0)
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    return Ratio(middle, (high - low) / middle)


def speed_by_wall(run: Run) -> float:
    """Decoded tokens a second of a single stream."""
    return run.decode_tokens_per_second


def speed_by_cpu(run: Run) -> float:
    """Decoded tokens a second of the serving processes' time, for a single stream."""
    return (run.tokens - 1) / run.decode_cpu_seconds


def total_by_wall(run: Run) -> float:
    """All streams' tokens a second, prompts included."""
    return run.tokens_per_second


def total_by_cpu(run: Run) -> float:
    """All streams' tokens a second of the serving processes' time, prompts included."""
    return run.tokens / run.serving_cpu_seconds


def steadier(wall: Ratio, cpu: Ratio) -> tuple[str, float]:
    """The name and value of the ratio that spreads less over the rounds."""
    return ("wall", wall.value) if wall.spread < cpu.spread else ("cpu", cpu.value)


def first_token_ms(runs: Iterable[Run]) -> float:
    """Median time to the first token over all streams, in milliseconds."""
    return 1000 * median(answer.first_token_seconds for run in runs for answer in run.answers)


def added_first_token_ms(rounds: Sequence[Round]) -> float:
    """Median over rounds of what the network's first token came later, in milliseconds."""
    return median(first_token_ms([one[NETWORK]]) - first_token_ms([one[BASE]]) for one in rounds)


def added_cpu_ms_per_token(rounds: Sequence[Round]) -> float:
    """Median over rounds of the processor time of all processes, the client's included, beyond
    that in process, per token, in milliseconds. Whole runs: submitting and settling count too."""
    return median(1000 * (_all_cpu(one[NETWORK]) - _all_cpu(one[BASE])) for one in rounds)


def _all_cpu(run: Run) -> float:
    return (run.serving_cpu_seconds + run.client_cpu_seconds) / run.tokens


def cpu_ms_per_token(runs: Sequence[Run]) -> dict[str, float]:
    """Processor milliseconds a token by process and of the client, over all runs together."""
    tokens = sum(run.tokens for run in runs)
    found = {name: sum(run.cpu_seconds[name] for run in runs) for name in runs[0].cpu_seconds}
    found["client"] = sum(run.client_cpu_seconds for run in runs)
    return {name: 1000 * seconds / tokens for name, seconds in found.items()}


def table(title: str, rounds: Sequence[Round], *, decode_only: bool = False) -> str:
    """One block of the printed table: a line for each system, ratios against the first.

    Speeds are of whole runs, or with `decode_only` of single streams after their first token.
    """
    systems = list(rounds[0])
    speed = speed_by_wall if decode_only else total_by_wall
    per_cpu = speed_by_cpu if decode_only else total_by_cpu
    lines = [f"{title}  ({len(rounds)} rounds)"]
    lines.append(
        f"  {'':14} {'tok/s':>8} {'wall x':>7} {'cpu x':>7} {'TTFT ms':>8} {'cpu ms/tok':>11}  by process"
    )
    for name in systems:
        runs = [one[name] for one in rounds]
        wall = ratio(rounds, name, systems[0], speed).value
        cpu = ratio(rounds, name, systems[0], per_cpu).value
        costs = cpu_ms_per_token(runs)
        serving = sum(cost for process, cost in costs.items() if process != "client")
        parts = ", ".join(f"{process} {cost:.2f}" for process, cost in costs.items() if cost)
        lines.append(
            f"  {name:14} {median(map(speed, runs)):8.2f} {wall:7.3f} {cpu:7.3f}"
            f" {first_token_ms(runs):8.1f} {serving:11.2f}  {parts}"
        )
    return "\n".join(lines)
