"""Public traces of requests: when they came, how long their prompts and answers were.

A trace is a CSV file with `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`, the columns of the
Azure traces of 2023. They do not say which model was asked: that is drawn as for other jobs.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

ENVIRONMENT: Final = "PLACEMENT_TRACES"


@dataclass(frozen=True)
class Request:
    """Seconds after the trace's first request, and tokens of prompt and answer."""

    at: float
    prompt: int
    answer: int


def trace_files() -> list[Path]:
    """The traces of the folder that PLACEMENT_TRACES names, or of `data/traces` in a folder beside
    this repository; none where there is no such folder."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return sorted(Path(named).glob("*.csv"))
    repository = Path(__file__).resolve().parents[3]
    return sorted(repository.parent.glob("*/data/traces/*.csv"))


def read_trace(path: Path, most: int) -> list[Request]:
    """At most the first `most` requests, in order of time.

    Raises `OSError`, and `ValueError` for a file that is no trace.
    """
    found: list[Request] = []
    first: datetime | None = None
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            try:
                at = datetime.fromisoformat(row["TIMESTAMP"])
                prompt, answer = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            except KeyError as error:
                raise ValueError(f"{path.name}: column {error} is missing") from error
            first = first or at
            found.append(Request((at - first).total_seconds(), prompt, answer))
            if len(found) == most:
                break
    if len(found) < 2 or found[-1].at <= 0:
        raise ValueError(f"{path.name}: a trace needs two requests at different times")
    return sorted(found, key=lambda request: request.at)
