"""The child's side of the answer pipe: lines built cheaply, gathered into few writes.

Pure but for the `write` it is given. A fast model makes a token every few milliseconds for each
run; a line and a system call for each would cost more than the token. So a run's first token is
written at once, and later ones wait until the gathering time is up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from node_agent.protocol.messages import FailureCode, FinishReason
from node_agent.runner.messages import RunnerMessage, encode_line

# JSON has no minus infinity; a token masked by the model is given this instead.
LOGPROB_MIN: Final = -9999.0

# The chosen token's log-probability, and (token id, log-probability) pairs, likeliest first.
Scored = tuple[float, list[tuple[int, float]]]


@dataclass(slots=True)
class _Waiting:
    """Tokens of one run that are not yet written; `head` is its line up to the ids."""

    head: str
    ids: list[int] = field(default_factory=list[int])
    scores: list[Scored] = field(default_factory=list[Scored])
    started: bool = False


class Outbox:
    """Lines on their way to the agent, in order within each run."""

    def __init__(self, write: Callable[[bytes], None], gather_seconds: float) -> None:
        self._write = write
        self._gather_seconds = gather_seconds
        self._runs: dict[str, _Waiting] = {}
        self._lines: list[str] = []
        self._urgent = False
        self._tokens_waiting = False
        self._written_at = -math.inf

    def open(self, key: str) -> None:
        """A run begins; only open runs may have tokens."""
        self._runs[key] = _Waiting(f'{{"type":"tokens","key":{json.dumps(key)},"ids":')

    def token(self, key: str, token: int, score: Scored | None) -> None:
        run = self._runs[key]
        run.ids.append(token)
        if score is not None:
            run.scores.append(score)
        self._tokens_waiting = True
        if not run.started:
            run.started = self._urgent = True

    def prefilled(self, key: str, done: int, total: int) -> None:
        self._lines.append(
            f'{{"type":"prefilled","key":{json.dumps(key)},"done_tokens":{done},"total_tokens":{total}}}\n'
        )
        self._urgent = True

    def ended(self, key: str, reason: FinishReason) -> None:
        """The run's waiting tokens go first, then its end."""
        self._close(key)
        self._lines.append(f'{{"type":"ended","key":{json.dumps(key)},"finish_reason":"{reason}"}}\n')

    def failed(self, key: str, code: FailureCode, message: str) -> None:
        """The run's waiting tokens go first, then its failure. The key need not be open."""
        self._close(key)
        self._lines.append(
            f'{{"type":"run_failed","key":{json.dumps(key)},"code":"{code}",'
            f'"message":{json.dumps(message[:300])}}}\n'
        )

    def _close(self, key: str) -> None:
        run = self._runs.pop(key, None)
        if run is not None and run.ids:
            self._lines.append(_tokens_line(run))
        self._urgent = True

    def send(self, message: RunnerMessage) -> None:
        """Any message that is rare; written with the next batch of lines."""
        self._lines.append(encode_line(message).decode())
        self._urgent = True

    def settle(self, now: float, next_step_seconds: float) -> None:
        """Write if something is urgent, or if waiting for one more step would be too long.

        `now` is monotonic seconds, `next_step_seconds` how long the next step may take.
        """
        due = now - self._written_at + next_step_seconds >= self._gather_seconds
        if self._urgent or (due and self._tokens_waiting):
            self.flush(now)

    def flush(self, now: float) -> None:
        """Write all that waits, in one write."""
        for run in self._runs.values():
            if run.ids:
                self._lines.append(_tokens_line(run))
                run.ids, run.scores = [], []
        if self._lines:
            self._write("".join(self._lines).encode())
        self._lines.clear()
        self._urgent = self._tokens_waiting = False
        self._written_at = now


def _tokens_line(run: _Waiting) -> str:
    ids = ",".join(map(str, run.ids))
    if not run.scores:
        return f"{run.head}[{ids}]}}\n"
    return f'{run.head}[{ids}],"logprobs":[{",".join(map(_score, run.scores))}]}}\n'


def _score(score: Scored) -> str:
    chosen, top = score
    pairs = ",".join(f"[{token},{_number(logprob)}]" for token, logprob in top)
    return f'{{"logprob":{_number(chosen)},"top":[{pairs}]}}'


def _number(logprob: float) -> str:
    # Rounding may lift a certainty above 0; a model that computes NaN or infinity is not certain.
    return repr(min(logprob, 0.0) if LOGPROB_MIN < logprob < math.inf else LOGPROB_MIN)
