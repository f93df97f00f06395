"""Bad requests, faults, and the ends of runner children: each ends as little as possible."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import psutil
import pytest

from node_agent.runner import engine
from node_agent.runner.batch import Batch
from node_agent.runner.messages import Ended, Run, RunFailed, Tokens, from_runner
from node_agent.runner.outbox import Outbox
from node_agent.runner.process import CLOSE_SECONDS, RunnerGoneError, RunnerStartError
from node_agent.runner.sampling import Chooser
from tests.fixtures.runners import PROMPT, RunnerHarness, load_in_process, make_run, mixed_runs
from tests.fixtures.tiny_models import CONTEXT_TOKENS, VOCAB, make_tiny_model

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


# -- bad requests --------------------------------------------------------------------------------


BAD_RUNS: list[tuple[str, dict[str, Any]]] = [
    ("prompt_ids", {"prompt_ids": (1, 10_000_000)}),
    ("prompt_ids", {"prompt_ids": (-5,)}),
    ("prompt_ids", {"prompt_ids": ()}),
    ("prefix_ids", {"prefix_ids": (VOCAB,)}),
    ("sampling.logit_bias", {"logit_bias": {10_000_000: 1.0}}),
    ("top_logprobs", {"top_logprobs": VOCAB + 1}),
    ("max_tokens", {"max_tokens": CONTEXT_TOKENS - len(PROMPT) + 1}),
]


def test_bad_runs_end_alone_by_name_of_the_field(harness: RunnerHarness) -> None:
    good = mixed_runs()
    alone = [answer.ids for answer in harness.answer(*good)]
    bad = [
        make_run(f"bad-{number}", **{"prompt_ids": PROMPT, **changes})
        for number, (_, changes) in enumerate(BAD_RUNS)
    ]
    harness.answers.clear()
    order = [run for pair in itertools.zip_longest(good, bad) for run in pair if run is not None]
    harness.start(*order)
    harness.finish()
    assert [harness.answers[run.key].ids for run in good] == alone
    for run, (field, _) in zip(bad, BAD_RUNS, strict=True):
        failure = harness.answers[run.key].failure
        assert failure.code == "request_invalid"
        assert failure.message.startswith(f"{field}: ")


def test_a_malformed_line_is_answered_and_the_child_goes_on(folder: Path) -> None:
    good = make_run("good", PROMPT, max_tokens=3)
    unknown = {**good.model_dump(mode="json"), "key": "bad", "colour": "red"}
    lines = [b"{", b'{"type":"run"}', json.dumps(unknown).encode(), good.model_dump_json().encode()]
    child = subprocess.Popen(
        [sys.executable, "-m", "node_agent.runner.worker", "--model", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(b"\n".join(lines) + b"\n")
    child.stdin.flush()
    failed: list[RunFailed] = []
    for line in child.stdout:
        message = from_runner.validate_json(line)
        if isinstance(message, RunFailed):
            failed.append(message)
        if isinstance(message, Ended):
            break
    _, stderr = child.communicate(timeout=10)
    assert [(message.key, message.code) for message in failed] == [("bad", "request_invalid")]
    assert "colour" in failed[0].message
    assert stderr.count(b"a command was ignored") == 2
    assert child.returncode == 0


class PoisonedChooser(Chooser):
    """A sampler or a penalty that fails at its n-th token, for runs named `what@n`."""

    def __init__(self, run: Run, width: int) -> None:
        super().__init__(run, width)
        self._poison = run.key
        self._calls = 0

    def _maybe_fail(self, kind: str) -> None:
        named, _, call = self._poison.partition("@")
        self._calls += named == kind
        if named == kind and self._calls == int(call):
            raise ZeroDivisionError("poisoned")

    def choose(self, logprobs: mx.array) -> mx.array:
        self._maybe_fail("bad-sampler")
        return super().choose(logprobs)

    def process(self, context: mx.array, logits: mx.array) -> mx.array:
        self._maybe_fail("bad-penalty")
        return super().process(context, logits)


class UnguardedChooser(Chooser):
    """Breaks the whole batch's step, as a fault of mlx itself would."""

    def choose(self, logprobs: mx.array) -> mx.array:
        raise MemoryError("out of memory")

    @property
    def sampler(self) -> Callable[[mx.array], mx.array]:
        return self.choose


def answer_in_process(
    model: engine.Model, runs: Sequence[Run], chooser: type[Chooser] = Chooser
) -> dict[str, tuple[list[int], Ended | RunFailed]]:
    lines: list[bytes] = []
    batch = Batch(model, Outbox(lines.append, 0.0), width=8, make_chooser=chooser)
    return collect(batch, lines, runs)


def collect(
    batch: Batch, lines: list[bytes], runs: Sequence[Run]
) -> dict[str, tuple[list[int], Ended | RunFailed]]:
    for run in runs:
        batch.add(run)
    while len(batch):
        batch.step()
        batch.outbox.flush(0.0)
    ids: dict[str, list[int]] = {run.key: [] for run in runs}
    ends: dict[str, Ended | RunFailed] = {}
    for line in b"".join(lines).splitlines():
        message = from_runner.validate_json(line)
        if isinstance(message, Ended | RunFailed):
            ends[message.key] = message
        elif isinstance(message, Tokens):
            ids[message.key] += message.ids
    lines.clear()
    return {key: (ids[key], ends[key]) for key in ends}


def test_a_failing_sampler_ends_its_run_and_leaves_the_others_exact(model: engine.Model) -> None:
    good = mixed_runs()
    poisoned = [
        make_run("bad-sampler@4", PROMPT, temperature=1.0),
        make_run("bad-sampler@1", PROMPT, temperature=1.0, top_logprobs=2),
        make_run("bad-penalty@7", PROMPT, temperature=1.0, presence_penalty=1.0, top_logprobs=2),
    ]
    expected = answer_in_process(model, good)
    answers = answer_in_process(model, [*poisoned, *good], PoisonedChooser)
    for run in good:
        assert answers[run.key] == expected[run.key]
    for run in poisoned:
        ids, end = answers[run.key]
        assert isinstance(end, RunFailed)
        assert end.code == "request_invalid"
        assert "ZeroDivisionError" in end.message and "poisoned" not in end.message
        before = int(run.key.partition("@")[2]) - 1
        assert ids == answer_in_process(model, [run])[run.key][0][:before]


def test_a_broken_batch_fails_its_runs_and_the_next_run_finds_a_fresh_one(
    model: engine.Model,
) -> None:
    lines: list[bytes] = []
    kinds: dict[str, type[Chooser]] = {"broken": UnguardedChooser}
    batch = Batch(
        model,
        Outbox(lines.append, 0.0),
        make_chooser=lambda run, width: kinds.get(run.key, Chooser)(run, width),
    )
    run = make_run("good", PROMPT, temperature=1.0)
    answers = collect(batch, lines, [run, make_run("broken", PROMPT)])
    for _, end in answers.values():
        assert isinstance(end, RunFailed)
        assert end.code == "internal"
    again = collect(batch, lines, [run])
    assert again == answer_in_process(model, [run])


# -- life and death ------------------------------------------------------------------------------


def test_a_killed_child_fails_its_runs_by_name_of_the_signal(folder: Path) -> None:
    with RunnerHarness(folder) as doomed:
        doomed.start(make_run("a", PROMPT, max_tokens=2000), make_run("b", PROMPT, max_tokens=2000))
        doomed.wait_tokens("a", 3)
        assert doomed.process.pid is not None
        os.kill(doomed.process.pid, signal.SIGKILL)
        gone = doomed.wait_gone()
        assert gone.reason == "crashed"
        assert "SIGKILL" in gone.message
        for answer in doomed.answers.values():
            assert answer.failure.code == "runner_crashed"
        assert doomed.process.live == frozenset()
        with pytest.raises(RunnerGoneError):
            doomed.start(make_run("c", PROMPT))


def test_a_frozen_child_is_killed_and_fails_its_runs(folder: Path) -> None:
    with RunnerHarness(folder, stall_seconds=1.0) as frozen:
        time.sleep(1.5)
        # Silence without work is no stall.
        assert frozen.answer(make_run("a", PROMPT))[0].finish_reason == "length"
        frozen.start(make_run("b", PROMPT, max_tokens=2000))
        frozen.wait_tokens("b", 3)
        assert frozen.process.pid is not None
        os.kill(frozen.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        assert frozen.wait_gone().reason == "stalled"
        assert time.monotonic() - began < 10.0
        assert frozen.answers["b"].failure.code == "runner_stalled"
        assert not psutil.pid_exists(frozen.process.pid)


def test_closing_ends_a_generating_child_at_once(folder: Path) -> None:
    with RunnerHarness(folder) as closing:
        closing.start(*(make_run(str(n), PROMPT, max_tokens=2000) for n in range(4)))
        closing.wait_tokens("0", 3)
        began = time.monotonic()
        closing.close()
        # Sooner than a child that did not end by itself would be killed.
        assert time.monotonic() - began < CLOSE_SECONDS
        assert closing.wait_gone().reason == "closed"
        assert {answer.failure.code for answer in closing.answers.values()} == {"runner_crashed"}


def test_a_child_does_not_outlive_its_agent(folder: Path) -> None:
    program = (
        "import asyncio, sys, pathlib\n"
        "from node_agent.runner.process import RunnerProcess\n"
        "async def main():\n"
        "    process = RunnerProcess(accelerated=False)\n"
        "    await process.start(pathlib.Path(sys.argv[1]))\n"
        "    print(process.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    agent = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    child = psutil.Process(int(agent.stdout.readline()))
    agent.kill()
    agent.communicate()
    _, alive = psutil.wait_procs([child], timeout=5)
    assert not alive


def add_code(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit")


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def corrupt_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"x" * 99)


def name_unknown_architecture(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "unheard_of"}')


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (add_code, "evil.py"),
        (remove_weights, "safetensors"),
        (corrupt_weights, "mlx-lm"),
        (name_unknown_architecture, "unheard_of"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_with_the_reason(
    tmp_path: Path, spoil: Callable[[Path], object], named: str
) -> None:
    spoil(make_tiny_model(tmp_path / "spoiled"))
    with (
        pytest.raises(RunnerStartError, match=named),
        RunnerHarness(tmp_path / "spoiled"),
    ):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_child_has_no_secrets_and_leaves_no_core(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with RunnerHarness(folder) as harness:
        place = Path(f"/proc/{harness.process.pid}")
        environment = (place / "environ").read_bytes()
        limits = (place / "limits").read_text().splitlines()
    assert b"hf_secret" not in environment
    assert b"HF_HUB_OFFLINE=1" in environment
    (core,) = (line.split() for line in limits if line.startswith("Max core file size"))
    assert core[4:6] == ["0", "0"]


def may_leave_network() -> bool:
    """Does this system let a process do so? Asked of a process of its own."""
    program = "import sys; from node_agent.runner.hygiene import *; sys.exit(not leave_network())"
    return subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_child_has_no_network(folder: Path) -> None:
    if not may_leave_network():
        pytest.skip("this kernel does not let a process give up its network")
    with RunnerHarness(folder) as harness:
        interfaces = Path(f"/proc/{harness.process.pid}/net/dev").read_text().splitlines()[2:]
        routes = Path(f"/proc/{harness.process.pid}/net/route").read_text().splitlines()[1:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
    assert routes == []
