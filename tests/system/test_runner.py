"""The runner child for real: processes, pipes, mlx and tiny random models."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from node_agent.models.store import ModelStore
from node_agent.runner import engine
from node_agent.runner.batch import Batch
from node_agent.runner.messages import Alive
from node_agent.runner.outbox import Outbox
from tests.fixtures.runners import (
    MIXED,
    PROMPT,
    RunnerHarness,
    load_in_process,
    make_run,
    mixed_runs,
)
from tests.fixtures.tiny_models import VOCAB, make_tiny_model

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def harness(folder: Path) -> Generator[RunnerHarness]:
    with RunnerHarness(folder, prefill_step=32) as harness:
        yield harness


@pytest.fixture(scope="module")
def model(folder: Path) -> engine.Model:
    """The same model in this process, as the reference."""
    return load_in_process(folder)


def raw_logprobs(model: engine.Model, ids: Sequence[int]) -> np.ndarray[Any, np.dtype[Any]]:
    """Log-probabilities of the token after `ids`, by one plain forward pass, [vocab] float64."""
    network: Any = model.network
    logits = np.array(network(mx.array([list(ids)]))[0, -1]).astype(np.float64)
    return logits - np.logaddexp.reduce(logits)


# -- tokens --------------------------------------------------------------------------------------


def test_ready_tells_what_was_loaded(harness: RunnerHarness) -> None:
    assert harness.ready.vocab == VOCAB
    assert harness.ready.active_bytes > 1_000_000
    assert harness.ready.mlx_lm_version != "none"


def test_greedy_is_the_argmax_of_a_forward_pass(harness: RunnerHarness, model: engine.Model) -> None:
    (answer,) = harness.answer(make_run("a", PROMPT, max_tokens=12))
    ids = [*PROMPT]
    for token in answer.ids:
        assert token == int(raw_logprobs(model, ids).argmax())
        ids.append(token)
    assert len(answer.ids) == 12
    assert answer.finish_reason == "length"
    assert len(set(answer.ids)) > 3, "the model repeats one token: nothing would be tested"


def test_a_run_gives_the_same_tokens_alone_and_among_neighbours(harness: RunnerHarness) -> None:
    runs = mixed_runs()
    alone = [harness.answer(run)[0].ids for run in runs]
    together = [answer.ids for answer in harness.answer(*runs)]
    assert together == alone
    assert len({tuple(ids) for ids in alone}) == len(runs)


def test_a_run_that_comes_late_or_leaves_early_changes_no_other(harness: RunnerHarness) -> None:
    first, late, leaving = (
        make_run("first", PROMPT, temperature=1.0, seed=1, max_tokens=400),
        make_run("late", (1, *range(100, 180)), temperature=1.0, seed=2, max_tokens=60),
        make_run("leaving", (1, 9), temperature=1.0, seed=3, max_tokens=1500),
    )
    alone = [harness.answer(run)[0].ids for run in (first, late)]
    harness.answers.clear()
    harness.start(leaving, first)
    harness.wait_tokens("first", 5)
    harness.start(late)
    harness.wait_tokens("late", 5)
    harness.stop("leaving")
    harness.finish()
    assert [harness.answers[key].ids for key in ("first", "late")] == alone
    assert harness.answers["leaving"].finish_reason == "cancelled"
    assert 0 < len(harness.answers["leaving"].ids) < 1500


@pytest.mark.parametrize("cut", [1, 7, 19])
def test_a_run_resumed_from_its_prefix_gives_the_same_rest(harness: RunnerHarness, cut: int) -> None:
    runs = mixed_runs()
    whole = [answer.ids for answer in harness.answer(*runs)]
    resumed = [
        run.model_copy(update={"prefix_ids": tuple(ids[:cut]), "max_tokens": 20 - cut})
        for run, ids in zip(runs, whole, strict=True)
    ]
    rests = [answer.ids for answer in harness.answer(*resumed)]
    assert rests == [ids[cut:] for ids in whole]


def test_seeds_matter_and_draws_follow_the_distribution(harness: RunnerHarness, model: engine.Model) -> None:
    count = 600
    runs = [make_run(str(seed), PROMPT, temperature=1.0, seed=seed, max_tokens=1) for seed in range(count)]
    drawn = np.array([answer.ids[0] for answer in harness.answer(*runs)])
    expected = np.exp(raw_logprobs(model, PROMPT))
    for token in np.argsort(-expected)[:4]:
        share = float((drawn == token).mean())
        deviation = float(np.sqrt(expected[token] * (1 - expected[token]) / count))
        assert abs(share - expected[token]) < 5 * deviation


def test_top_p_draws_only_from_the_nucleus(harness: RunnerHarness, model: engine.Model) -> None:
    probabilities = np.exp(raw_logprobs(model, PROMPT))
    order = np.argsort(-probabilities)
    nucleus_size = int(np.searchsorted(np.cumsum(probabilities[order]), 0.5)) + 1
    runs = [
        make_run(str(seed), PROMPT, temperature=1.0, top_p=0.5, seed=seed, max_tokens=1)
        for seed in range(200)
    ]
    drawn = {answer.ids[0] for answer in harness.answer(*runs)}
    assert drawn == set(order[:nucleus_size].tolist())


def test_an_end_token_ends_the_run_and_is_not_said(harness: RunnerHarness) -> None:
    (whole,) = harness.answer(make_run("a", PROMPT))
    end = next(t for t, seen in zip(whole.ids, itertools.count()) if seen > 3 and t != whole.ids[3])
    before = whole.ids[: whole.ids.index(end)]
    (answer,) = harness.answer(make_run("a", PROMPT, stop_token_ids=(5, end), top_logprobs=1))
    assert answer.ids == before
    assert len(answer.scores) == len(before)
    assert answer.finish_reason == "eos"


# -- log-probabilities and penalties -------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.9, "seed": 4},
        {"temperature": 1.3, "seed": 5, "frequency_penalty": 1.0, "logit_bias": {7: 5.0}},
    ],
)
def test_logprobs_are_the_models_own(
    harness: RunnerHarness, model: engine.Model, changes: dict[str, Any]
) -> None:
    neighbours = mixed_runs()[:3]
    run = make_run("a", PROMPT, top_logprobs=5, max_tokens=10, **changes)
    answer = harness.answer(run, *neighbours)[0]
    assert len(answer.scores) == len(answer.ids) == 10
    ids = [*PROMPT]
    for token, score in zip(answer.ids, answer.scores, strict=True):
        expected = raw_logprobs(model, ids)
        assert score.logprob == pytest.approx(expected[token], abs=1e-4)
        assert [t for t, _ in score.top] == np.argsort(-expected)[:5].tolist()
        assert [v for _, v in score.top] == pytest.approx(np.sort(expected)[::-1][:5], abs=1e-4)
        ids.append(token)


def test_logprobs_without_alternatives_and_of_the_whole_vocabulary(harness: RunnerHarness) -> None:
    none, every = harness.answer(
        make_run("none", PROMPT, top_logprobs=0, max_tokens=3),
        make_run("every", PROMPT, top_logprobs=VOCAB, max_tokens=3),
    )
    assert [score.top for score in none.scores] == [(), (), ()]
    for score, other in zip(every.scores, none.scores, strict=True):
        assert sorted(token for token, _ in score.top) == list(range(VOCAB))
        assert np.exp([value for _, value in score.top]).sum() == pytest.approx(1.0, abs=1e-4)
        assert score.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize("prefix_ids", [(), (33, 33, 34)])
def test_penalties_and_bias_follow_the_formula(
    harness: RunnerHarness, model: engine.Model, prefix_ids: tuple[int, ...]
) -> None:
    # Two tokens are lifted so far that only what they have been penalised decides between them
    # and the rest: every term of the formula shows.
    presence, frequency, bias = 1.5, 0.7, {33: 12.0, 34: 11.0, 35: -3.0}
    run = make_run(
        "a",
        PROMPT,
        prefix_ids=prefix_ids,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
    )
    (answer,) = harness.answer(run)
    answered = list(prefix_ids)
    for token in answer.ids:
        logits = raw_logprobs(model, [*PROMPT, *answered])
        counts = np.bincount(np.array(answered, dtype=np.int64), minlength=VOCAB)
        logits -= presence * (counts > 0) + frequency * counts
        for biased, value in bias.items():
            logits[biased] += value
        assert token == int(logits.argmax())
        answered.append(token)
    assert {33, 34} < set(answer.ids)


def test_bias_can_force_and_forbid(harness: RunnerHarness) -> None:
    plain, forced = harness.answer(
        make_run("plain", PROMPT),
        make_run("forced", PROMPT, temperature=1.0, logit_bias={33: 100.0}),
    )
    banned = dict.fromkeys(set(plain.ids), -100.0)
    (forbidden,) = harness.answer(make_run("forbidden", PROMPT, logit_bias=banned))
    assert forced.ids == [33] * 20
    assert not set(forbidden.ids) & set(plain.ids)


# -- progress, gathering, cancelling -------------------------------------------------------------


def test_gathered_tokens_are_complete_and_in_order(folder: Path, harness: RunnerHarness) -> None:
    run = make_run("a", PROMPT, temperature=1.0, max_tokens=300)
    (gathered,) = harness.answer(run)
    with RunnerHarness(folder, gather_ms=0.0) as ungathered_harness:
        (ungathered,) = ungathered_harness.answer(run)
    assert gathered.ids == ungathered.ids
    assert ungathered.lines == 300
    assert gathered.lines < 100


def test_the_first_token_is_not_held_back(folder: Path) -> None:
    with RunnerHarness(folder, gather_ms=60_000.0) as patient:
        patient.start(make_run("a", PROMPT, max_tokens=1900))
        patient.wait_tokens("a", 1)
        assert patient.answers["a"].ids and patient.answers["a"].end is None
        patient.finish()
        # The rest goes with what is urgent: a sign of life each second, and the end.
        assert patient.answers["a"].lines < 10
        assert len(patient.answers["a"].ids) == 1900


def test_prefill_tells_its_progress_and_can_be_cancelled(harness: RunnerHarness) -> None:
    long_prompt = [1, *(3 + n % 500 for n in range(1900))]
    (answer,) = harness.answer(make_run("a", long_prompt, max_tokens=2))
    done = [done for done, _ in answer.prefilled]
    assert done == sorted(set(done))
    assert len(done) > 50
    assert answer.prefilled[-1] == (1901, 1901)
    neighbour = make_run("b", PROMPT, temperature=1.0)
    (alone,) = harness.answer(neighbour)
    harness.answers.clear()
    harness.start(make_run("a", long_prompt), neighbour)
    while not harness.answers["a"].prefilled:
        harness.next_event()
    harness.stop("a")
    harness.finish()
    assert harness.answers["a"].finish_reason == "cancelled"
    assert harness.answers["a"].ids == []
    assert harness.answers["a"].prefilled[-1][0] < 1901
    assert harness.answers["b"].ids == alone.ids


def test_a_cancel_takes_effect_at_once(harness: RunnerHarness) -> None:
    harness.answers.clear()
    harness.start(make_run("a", PROMPT, max_tokens=2000))
    harness.wait_tokens("a", 3)
    began = time.monotonic()
    harness.stop("a")
    harness.finish()
    assert time.monotonic() - began < 2.0
    assert harness.answers["a"].finish_reason == "cancelled"
    harness.stop("a")
    harness.stop("never heard of")
    assert harness.answer(make_run("a", PROMPT))[0].finish_reason == "length"


def test_more_runs_than_width_wait_their_turn(folder: Path) -> None:
    with RunnerHarness(folder, width=2) as narrow:
        answers = narrow.answer(*mixed_runs())
    assert [len(answer.ids) for answer in answers] == [20] * len(MIXED)


def test_the_loop_says_that_it_is_alive_while_it_works(harness: RunnerHarness) -> None:
    harness.answers.clear()
    harness.start(*(make_run(str(n), PROMPT, max_tokens=2000) for n in range(8)))
    alive: list[Alive] = []
    while len(alive) < 2:
        event = harness.next_event()
        if isinstance(event, Alive):
            alive.append(event)
    assert alive[1].steps > alive[0].steps > 0
    assert alive[0].active_bytes > 0
    for key in tuple(harness.answers):
        harness.stop(key)
    harness.finish()


@pytest.mark.parametrize("family", ["qwen3_moe", "gemma3_text"])
def test_other_architectures_batch_as_well(tmp_path: Path, family: str) -> None:
    model_folder = make_tiny_model(tmp_path / family, family=family)
    runs = [make_run(str(n), range(1, 60 + 30 * n), temperature=1.0, seed=n) for n in range(3)]
    with RunnerHarness(model_folder, prefill_step=32) as harness:
        alone = [harness.answer(run)[0].ids for run in runs]
        assert [answer.ids for answer in harness.answer(*runs)] == alone


# -- a real model --------------------------------------------------------------------------------


def smollm2_folder() -> Path | None:
    """`MLXNET_TEST_SMOLLM2`, or the model in the shared cache."""
    if named := os.environ.get("MLXNET_TEST_SMOLLM2"):
        return Path(named)
    models = ModelStore().stored()
    return next((model.folder for model in models if model.card_id == "smollm2-135m-f32"), None)


@pytest.mark.skipif(smollm2_folder() is None, reason="no SmolLM2: set MLXNET_TEST_SMOLLM2")
def test_a_real_model_knows_the_capital_of_france() -> None:
    from tokenizers import Tokenizer

    model_folder = smollm2_folder()
    assert model_folder is not None
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    prompt_ids = tokenizer.encode(question, add_special_tokens=False).ids
    run = make_run("a", prompt_ids, max_tokens=30, stop_token_ids=(2,))
    with RunnerHarness(model_folder) as harness:
        (answer,) = harness.answer(run)
    assert "Paris" in tokenizer.decode(answer.ids)
    assert answer.finish_reason in ("eos", "length")


def test_no_step_is_computed_behind_the_last_token(folder: Path) -> None:
    model = load_in_process(folder)
    inner: Any = model.network
    steps: list[int] = []

    class Counting:
        def __call__(self, inputs: mx.array, **named: Any) -> mx.array:
            if inputs.shape[1] == 1:
                steps.append(inputs.shape[0])
            return inner(inputs, **named)

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    counted = engine.Model(engine.Network(Counting(), model.logits_width), model.limits, model.logits_width)
    written: list[bytes] = []
    batch = Batch(counted, Outbox(written.append, 0.0), prefill_step=32)
    for key, tokens in (("a", 5), ("b", 5)):
        batch.add(make_run(key, PROMPT, max_tokens=tokens))
    while len(batch):
        batch.step()
        batch.outbox.flush(0.0)
    # The first token comes of the prompt's last one, which is read by itself.
    assert steps == [2] * 5
    batch.add(make_run("c", PROMPT, max_tokens=1))
    while len(batch):
        batch.step()
    assert steps[5:] == [1]
