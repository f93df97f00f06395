"""The part of mlx-lm that the runner stands on, with types.

mlx-lm ships none, so what is used of it is declared here once, and nothing else imports it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Protocol, cast, final

import mlx.core as mx

from node_agent.runner.folder import FolderRefusedError, read_config
from node_agent.runner.sampling import Processor, Sampler, greedy
from node_agent.runner.validation import CONTEXT_KEYS, ModelLimits, stated_limit

# Weights are read from disk in portions of this size, each followed by a progress report.
LOAD_PORTION_BYTES = 128 << 20


class PromptResponse(Protocol):
    """How far one run's prompt is: `progress` is (done, total) tokens."""

    uid: int
    progress: tuple[int, int]
    end_of_prompt: bool


class TokenResponse(Protocol):
    """One run's next token; `logprobs` is [vocab]; `finish_reason` is None, stop or length."""

    uid: int
    token: int
    logprobs: mx.array
    finish_reason: str | None


class Generator(Protocol):
    """mlx-lm's continuous batch. All calls must come from the thread that made it."""

    def insert(
        self,
        prompts: Sequence[list[int]],
        max_tokens: Sequence[int],
        *,
        samplers: Sequence[Sampler],
        logits_processors: Sequence[list[Processor]],
        stop_sequences: Sequence[object],
    ) -> list[int]: ...

    def next(self) -> tuple[list[PromptResponse], list[TokenResponse]]: ...

    def remove(self, uids: Sequence[int]) -> object: ...

    def close(self) -> None: ...


@final
class Network:
    """mlx-lm's own object for a model, opaque here but for one thing: steps can be left out.

    mlx-lm begins each step before it hands out the token of the one before, so the step behind
    the last token of an answer is computed for nobody. While `skips` is true a call computes
    nothing, leaves the caches as they are, and gives zeros, `width` for each token.
    """

    def __init__(self, network: Any, width: int) -> None:
        self._network: Final = network
        self._width: Final = width
        self.skips = False

    def __call__(self, inputs: mx.array, *arguments: object, **named: object) -> mx.array:
        if self.skips:
            return mx.zeros((*inputs.shape, self._width))
        return self._network(inputs, *arguments, **named)

    def __getattr__(self, name: str) -> object:
        return getattr(self._network, name)


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model.

    `logits_width` may exceed `limits.vocab`: some models pad their output.
    """

    network: Network
    limits: ModelLimits
    logits_width: int


class LoadFailedError(RuntimeError):
    """The folder cannot be served; the text says why."""


def load(folder: Path, on_progress: Callable[[int, int], None]) -> Model:
    """Load the weights of an mlx-lm folder, calling `on_progress(done_bytes, total_bytes)`.

    Raises `LoadFailedError` for a folder that is refused or that mlx-lm cannot load.
    """
    try:
        config = read_config(folder)
        utils = importlib.import_module("mlx_lm.utils")
        network, _ = utils.load_model(folder, lazy=True)
        _read_weights(network, on_progress)
    except FolderRefusedError as error:
        raise LoadFailedError(str(error)) from error
    # Some architectures end the process at import when a package of theirs is missing.
    except (Exception, SystemExit) as error:
        raise LoadFailedError(f"mlx-lm cannot load it: {type(error).__name__}: {error}") from error
    probe = network(mx.array([[0]]))
    width = int(probe.shape[-1])
    vocab = min(stated_limit(config, "vocab_size") or width, width)
    return Model(Network(network, width), ModelLimits(vocab, stated_limit(config, *CONTEXT_KEYS)), width)


def _read_weights(network: Any, on_progress: Callable[[int, int], None]) -> None:
    flatten = importlib.import_module("mlx.utils").tree_flatten
    arrays: list[mx.array] = [array for _, array in flatten(network.parameters())]
    total_bytes = sum(array.nbytes for array in arrays)
    done_bytes, portion, portion_bytes = 0, list[mx.array](), 0
    on_progress(0, total_bytes)
    for array in arrays:
        portion.append(array)
        portion_bytes += array.nbytes
        if portion_bytes >= LOAD_PORTION_BYTES:
            mx.eval(portion)  # pyright: ignore[reportUnknownMemberType]
            done_bytes += portion_bytes
            on_progress(done_bytes, total_bytes)
            portion, portion_bytes = [], 0
    mx.eval(portion)  # pyright: ignore[reportUnknownMemberType]
    on_progress(total_bytes, total_bytes)


def make_generator(model: Model, *, width: int, prefill_step: int) -> Generator:
    """A batch of at most `width` runs, reading prompts in chunks of `prefill_step` tokens."""
    generate = importlib.import_module("mlx_lm.generate")
    generator: object = generate.BatchGenerator(
        model.network,
        completion_batch_size=width,
        prefill_batch_size=width,
        prefill_step_size=prefill_step,
    )
    return cast("Generator", generator)


def warm_up(model: Model) -> None:
    """Make one real token, prompt chunk and all. Raises `LoadFailedError` if that fails."""
    generator = make_generator(model, width=1, prefill_step=1)
    try:
        generator.insert(
            [[0, 0, 0]],
            [1],
            samplers=[greedy],
            logits_processors=[[]],
            stop_sequences=[stop_matcher(())],
        )
        tokens: list[TokenResponse] = []
        while not tokens:
            _, tokens = generator.next()
        finite = bool(mx.all(mx.isfinite(mx.logsumexp(tokens[0].logprobs))).item())
    except Exception as error:
        raise LoadFailedError(f"no first token: {type(error).__name__}: {error}") from error
    finally:
        generator.close()
    if not finite:
        raise LoadFailedError("no first token: the model's output is not finite")
    mx.clear_cache()


def stop_matcher(stop_token_ids: Sequence[int]) -> object:
    """What `Generator.insert` takes to end a run at any of these tokens."""
    generate = importlib.import_module("mlx_lm.generate")
    return generate.StopSequences([[token] for token in stop_token_ids])


def versions() -> tuple[str, str]:
    """The installed mlx and mlx-lm."""
    return metadata.version("mlx"), metadata.version("mlx-lm")
