"""The generation loop's middle: runs go in and out of one continuous batch, tokens come out.

A fault of one run ends that run. A fault of the batch itself ends the runs in it, and the next
run finds a fresh batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from node_agent.runner import engine
from node_agent.runner.engine import Generator, Model, PromptResponse, TokenResponse
from node_agent.runner.hygiene import note
from node_agent.runner.messages import Run
from node_agent.runner.outbox import Outbox
from node_agent.runner.sampling import Chooser
from node_agent.runner.validation import RequestInvalidError, check_run


@dataclass(slots=True)
class _Live:
    """A run in the batch; `left` tokens may still come, `decodes` once its prompt is read."""

    key: str
    chooser: Chooser
    left: int
    decodes: bool = False


class Batch:
    """Up to `width` runs decoded together, more waiting. One thread makes and uses it."""

    def __init__(
        self,
        model: Model,
        outbox: Outbox,
        *,
        width: int = 8,
        prefill_step: int = 512,
        make_chooser: Callable[[Run, int], Chooser] = Chooser,
    ) -> None:
        self._model = model
        self.outbox = outbox
        self._width, self._prefill_step = width, prefill_step
        self._make_chooser = make_chooser
        self._generator = self._fresh()
        self._live: dict[int, _Live] = {}
        self._uids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._live)

    def _fresh(self) -> Generator:
        return engine.make_generator(self._model, width=self._width, prefill_step=self._prefill_step)

    def add(self, run: Run) -> None:
        """Take a run in. One that cannot be served is failed at once, the others untouched."""
        if run.key in self._uids:
            # Failing the key would end the run that has it.
            note(f"run {run.key} is already live, ignored")
            return
        try:
            check_run(run, self._model.limits)
            self._insert(run)
        except RequestInvalidError as error:
            self.outbox.failed(run.key, "request_invalid", str(error))
        except Exception as error:  # noqa: BLE001 - one run's fault must not end the others
            self.outbox.failed(run.key, "internal", f"cannot start: {type(error).__name__}")

    def _insert(self, run: Run) -> None:
        chooser = self._make_chooser(run, self._model.logits_width)
        (uid,) = self._generator.insert(
            [list(run.prompt_ids + run.prefix_ids)],
            [run.max_tokens],
            samplers=[chooser.sampler],
            logits_processors=[chooser.processors],
            stop_sequences=[engine.stop_matcher(run.stop_token_ids)],
        )
        self._live[uid] = _Live(run.key, chooser, run.max_tokens)
        self._uids[run.key] = uid
        self.outbox.open(run.key)

    def stop(self, key: str) -> None:
        """End a run between two tokens; an unknown key is one that has just ended."""
        uid = self._uids.get(key)
        if uid is not None:
            self._generator.remove([uid])
            self._forget(uid)
            self.outbox.ended(key, "cancelled")

    def _forget(self, uid: int) -> None:
        del self._uids[self._live.pop(uid).key]

    def step(self) -> None:
        """Make one token for every run that is decoding, and read one chunk of waiting prompts."""
        network = self._model.network
        network.skips = all(run.decodes and run.left == 1 for run in self._live.values())
        try:
            prompts, tokens = self._generator.next()
        except Exception as error:  # noqa: BLE001 - the batch's state is unknown: start afresh
            network.skips = False
            self._start_afresh(type(error).__name__)
            return
        network.skips = False
        for prompt in prompts:
            self._tell_progress(prompt)
        for token in tokens:
            self._take(token)

    def _tell_progress(self, response: PromptResponse) -> None:
        run, (done, total) = self._live[response.uid], response.progress
        run.decodes = response.end_of_prompt
        # The last prompt token is read together with the first draw: one report, not two.
        if response.end_of_prompt or done < total - 1:
            self.outbox.prefilled(run.key, done, total)
        if run.chooser.failure is not None:
            self._expel(response.uid, run)

    def _take(self, response: TokenResponse) -> None:
        """Pass a token on.

        It was drawn one step ago, so a draw that failed in this step is the next token's, and
        the run is expelled before that is due.
        """
        run, reason = self._live[response.uid], response.finish_reason
        run.left -= 1
        score = run.chooser.next_score() if run.chooser.scores_tokens else None
        if reason != "stop":
            self.outbox.token(run.key, response.token, score)
        if reason is not None:
            self._forget(response.uid)
            self.outbox.ended(run.key, "eos" if reason == "stop" else "length")
        elif run.chooser.failure is not None:
            self._expel(response.uid, run)

    def _expel(self, uid: int, run: _Live) -> None:
        self._generator.remove([uid])
        self._forget(uid)
        self.outbox.failed(run.key, "request_invalid", run.chooser.failure or "")

    def _start_afresh(self, why: str) -> None:
        for run in list(self._live.values()):
            self.outbox.failed(run.key, "internal", f"the batch failed: {why}")
        self._live.clear()
        self._uids.clear()
        self._generator.close()
        self._generator = self._fresh()
        mx.clear_cache()
