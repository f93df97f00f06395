"""How far the speed model is off, on published speeds that it was not fitted to.

    SPEED_DATA=FOLDER python -m tests.unit.sizing.evaluate

Leave one source out: constants are fitted to all sources but one and tried on that one. The last
line is a JSON object of fractions: `decode_median`, `decode_p90` and so on.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from node_agent.sizing.constants import SpeedConstants
from node_agent.sizing.pods import Link, alpha_of, tensor_step_seconds
from node_agent.sizing.speed import decode_factor
from tests.unit.sizing.fit import decode_forecast, fitted, observed, prefill_forecast
from tests.unit.sizing.published import (
    Case,
    TensorCase,
    batched_cases,
    cases,
    data_folder,
    tensor_cases,
)

Forecast = Callable[[Case, SpeedConstants], float]
# A self-test runs a dense model that is large enough to be bound by memory.
SELF_TEST_PARAMETERS_LEAST: Final = 3e9
SELF_TEST_PARAMETERS: Final = 14e9


def quantile(errors: Sequence[float], share: float) -> float:
    """The value below which that share of the errors lies, interpolated."""
    ordered = sorted(errors)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def off(case: Case, name: str, seconds: float) -> float:
    """How far forecast tokens a second are from the published ones, as a fraction of these."""
    return abs(observed(case, name) / seconds - 1)


def usable(seen: Iterable[Case], name: str) -> list[Case]:
    """The cases that have the figure in question."""
    if name == "prefill":
        return [case for case in seen if case.prefill_tps and case.prompt_tokens]
    return [case for case in seen if case.decode_tps]


FORECASTS: Final[dict[str, Forecast]] = {"decode": decode_forecast, "prefill": prefill_forecast}


def by_source(seen: Sequence[Case]) -> dict[str, SpeedConstants]:
    """For each source the constants that were fitted without it."""
    sources = sorted({case.source for case in seen})
    return {
        source: fitted([case for case in seen if case.source != source]).constants() for source in sources
    }


def normal_errors(
    seen: Sequence[Case], left_out: dict[str, SpeedConstants], name: str
) -> dict[str, list[float]]:
    """Errors of normal hosts, by source."""
    found: dict[str, list[float]] = defaultdict(list)
    for case in usable(seen, name):
        if not case.is_slow:
            found[case.source].append(off(case, name, FORECASTS[name](case, left_out[case.source])))
    return found


def self_test(host: Sequence[Case], name: str) -> Case | None:
    """The row of a host that stands for its self-test: of its dense models of 3 billion parameters
    or more the one nearest to 14 billion, which heats a Mac as real work does, at its longest prompt."""
    dense = [
        case
        for case in host
        if not case.work.experts
        and not case.work.recurrent_layers
        and case.parameters >= SELF_TEST_PARAMETERS_LEAST
    ]
    return min(
        usable(dense, name),
        key=lambda c: (abs(c.parameters - SELF_TEST_PARAMETERS), -c.prompt_tokens),
        default=None,
    )


def tested(host: Sequence[Case], given: Case | None, name: str, constants: SpeedConstants) -> list[Case]:
    """The host's other cases, with what the self-test row says of the Mac."""
    if given is None:
        return list(host)
    seconds = observed(given, name)
    if name == "decode":
        context = given.context_tokens
        factor = decode_factor(
            given.work, given.machine, seconds, context_tokens=context, constants=constants
        )
        mac = replace(given.machine, decode_factor=factor)
    else:
        mac = replace(given.machine, prefill_factor=prefill_forecast(given, constants) / seconds)
    return [replace(case, machine=mac) for case in host if case is not given]


def slow_errors(
    seen: Sequence[Case], left_out: dict[str, SpeedConstants], name: str
) -> tuple[list[float], list[float]]:
    """Errors of slow hosts without and with one self-test row of the same Mac and engine."""
    hosts: dict[str, list[Case]] = defaultdict(list)
    for case in usable(seen, name):
        if case.is_slow:
            hosts[case.host].append(case)
    plain, helped = list[float](), list[float]()
    for host in hosts.values():
        forecast, constants = FORECASTS[name], left_out[host[0].source]
        plain += [off(case, name, forecast(case, constants)) for case in host]
        others = tested(host, self_test(host, name), name, constants)
        helped += [off(case, name, forecast(case, constants)) for case in others]
    return plain, helped


def tensor_errors(pods: Sequence[TensorCase]) -> list[float]:
    """Errors of tensor-parallel decoding with the single Mac's time, and with the cost of an
    all-reduce taken from one other row of the same pod."""
    found: list[float] = []
    for case in pods:
        for other in pods:
            is_other = other.model != case.model
            if not is_other or (other.pod, other.ranks) != (case.pod, case.ranks):
                continue
            link = replace(
                Link(),
                alpha_seconds=alpha_of(
                    other.work, other.machine, other.ranks, 1 / other.pod_tps, 1 / other.single_tps
                ),
            )
            seconds = tensor_step_seconds(
                case.work, case.machine, case.ranks, link, single_seconds=1 / case.single_tps
            )
            found.append(abs(1 / seconds / case.pod_tps - 1))
    return found


def report(title: str, errors: Sequence[float]) -> tuple[float, float]:
    """Print and return median and 90th percentile."""
    if not errors:
        sys.stdout.write(f"{title:44} no rows\n")
        return 0.0, 0.0
    middle, high = median(errors), quantile(errors, 0.9)
    sys.stdout.write(f"{title:44} {len(errors):4} rows  median {middle:6.1%}  p90 {high:6.1%}\n")
    return middle, high


def evaluate(folder: Path) -> dict[str, float]:
    """Print every table, and return the figures."""
    seen = cases(folder)
    left_out = by_source(seen)
    figures: dict[str, float] = {"rows": len(seen)}

    def note(key: str, title: str, errors: Sequence[float]) -> None:
        figures[f"{key}_median"], figures[f"{key}_p90"] = report(title, errors)

    for name in ("decode", "prefill"):
        errors = normal_errors(seen, left_out, name)
        for source, each in sorted(errors.items()):
            _ = report(f"  {name}, without {source}", each)
        note(name, f"{name}, normal hosts", [error for each in errors.values() for error in each])
        plain, helped = slow_errors(seen, left_out, name)
        note(f"{name}_slow", f"{name}, slow hosts", plain)
        note(f"{name}_slow_tested", f"{name}, slow hosts with one self-test row", helped)
    constants = fitted(seen, batched_cases(folder)).constants()
    batched = [case for case in batched_cases(folder) if case.batch > 1]
    note(
        "batch",
        "several sequences (in sample)",
        [off(c, "decode", decode_forecast(c, constants)) for c in batched],
    )
    note("tensor", "tensor parallel, single and one row given", tensor_errors(tensor_cases(folder)))
    return figures


def main() -> int:
    """Evaluate the folder that SPEED_DATA names."""
    folder = data_folder()
    if folder is None:
        sys.stderr.write("SPEED_DATA must name the folder with single_mac_tps.csv\n")
        return 2
    figures = evaluate(folder)
    sys.stdout.write(json.dumps({name: round(value, 4) for name, value in figures.items()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
