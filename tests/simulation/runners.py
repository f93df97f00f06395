"""A runner child that speaks as the real one does and computes the scripted model."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from node_agent.protocol.cards import ModelCard
from node_agent.runner import messages as say
from tests.simulation.model import EOS_ID, Script

LOAD_STEPS: Final = 3


@dataclass
class _Run:
    run: say.Run
    script: Script
    left: int
    is_prefilled: bool = False
    tokens: list[int] = field(default_factory=list[int])


@final
class ScriptedRunner:
    """One child. `later` runs a call after seconds of the Mac's own time, `tell` reports a message,
    `gone` its exit; all three are the Mac's, which may be asleep or dead."""

    def __init__(
        self,
        card: ModelCard,
        *,
        limit_bytes: int,
        tokens_per_second: float,
        tokens_per_message: int,
        draws: random.Random,
        later: Callable[[float, Callable[[], None]], None],
        tell: Callable[[say.FromRunner], None],
        gone: Callable[[str], None],
    ) -> None:
        self._card = card
        self._speed = tokens_per_second
        self._batch = tokens_per_message
        self._draws = draws
        self._later = later
        self._tell = tell
        self._gone = gone
        self._runs: dict[str, _Run] = {}
        self._stopped: set[str] = set()
        self._is_stepping = False
        self._is_over = False
        self.is_stalled = False
        self.held_bytes = 0
        self.limit_bytes = limit_bytes
        self._pipe: deque[Callable[[], None]] = deque()
        self._load(0)

    @property
    def running(self) -> int:
        """Runs that have not ended."""
        return len(self._runs)

    # -- loading ---------------------------------------------------------------------------------

    def _load(self, done: int) -> None:
        if self._is_over:
            return
        if done < LOAD_STEPS:
            self._later(self._draws.uniform(0.2, 1.5), lambda: self._load(done + 1))
            if done:
                total = self._card.weights_bytes
                self.held_bytes = total * done // LOAD_STEPS
                self._tell(say.Loading(done_bytes=total * done // LOAD_STEPS, total_bytes=total))
            return
        self.held_bytes = self._card.weights_bytes
        self._tell(
            say.Ready(
                load_seconds=1.0,
                active_bytes=self._card.weights_bytes,
                vocab=self._card.shape.vocab,
                mlx_version="0",
                mlx_lm_version="0",
            )
        )

    # -- commands, which come through a pipe -----------------------------------------------------

    def run(self, run: say.Run) -> None:
        """Start a run."""
        self._send(lambda: self._begin(run))

    def stop(self, key: str) -> None:
        """End a run between two tokens."""
        self._send(lambda: self._stop(key))

    def _send(self, command: Callable[[], None]) -> None:
        """What is written first is read first, whenever that is."""
        self._pipe.append(command)
        self._later(self._draws.uniform(0.0, 0.01), self._read)

    def _read(self) -> None:
        self._pipe.popleft()()

    def close(self) -> None:
        """End the child."""
        self._later(self._draws.uniform(0.05, 0.5), lambda: self.die(""))

    def fail_one(self) -> None:
        """One of its runs fails."""
        if self._runs and not self._is_over:
            key = next(iter(self._runs))
            del self._runs[key]
            self._tell(say.RunFailed(key=key, code="internal", message="failed by the simulation"))

    def go_on(self) -> None:
        """It is stalled no more."""
        self.is_stalled = False

    def die(self, detail: str) -> None:
        """The child is gone."""
        if not self._is_over:
            self._is_over = True
            self._runs.clear()
            self._gone(detail)

    def _begin(self, run: say.Run) -> None:
        if self._is_over:
            return
        script = Script((*run.prompt_ids, *run.prefix_ids), run.sampling.seed)
        self._runs[run.key] = _Run(run, script, run.max_tokens)
        self._step_later()

    def _stop(self, key: str) -> None:
        if key in self._runs:
            self._stopped.add(key)
            self._later(self._draws.uniform(0.0, 1.0) / self._speed, lambda: self._end_stopped(key))

    def _end_stopped(self, key: str) -> None:
        if key in self._runs and not self._is_over and not self.is_stalled:
            self._end(key, "cancelled")

    # -- the generation loop ---------------------------------------------------------------------

    def _step_later(self) -> None:
        if not self._is_stepping and not self._is_over:
            self._is_stepping = True
            self._later(self._draws.uniform(0.7, 1.3) * self._batch / self._speed, self._step)

    def _step(self) -> None:
        self._is_stepping = False
        if self._is_over:
            return
        if self.is_stalled:
            self._is_stepping = True
            self._later(1.0, self._step)
            return
        for key, run in list(self._runs.items()):
            if key in self._stopped:
                self._end(key, "cancelled")
            elif not run.is_prefilled:
                run.is_prefilled = True
                total = len(run.run.prompt_ids) + len(run.run.prefix_ids)
                self._tell(say.Prefilled(key=key, done_tokens=total, total_tokens=total))
            else:
                self._advance(key, run)
        if self._runs:
            self._step_later()

    def _advance(self, key: str, run: _Run) -> None:
        ids: list[int] = []
        is_end = False
        while len(ids) < min(self._batch, run.left) and not is_end:
            token_id = run.script.next()
            is_end = token_id == EOS_ID
            if not is_end:
                ids.append(token_id)
        run.left -= len(ids)
        if ids:
            self._tell(say.Tokens(key=key, ids=tuple(ids)))
        if is_end:
            self._end(key, "eos")
        elif run.left == 0:
            self._end(key, "length")

    def _end(self, key: str, reason: say.FinishReason) -> None:
        self._runs.pop(key, None)
        self._stopped.discard(key)
        self._tell(say.Ended(key=key, finish_reason=reason))
