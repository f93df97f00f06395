"""mlx-lm by itself: the bar that everything around it is measured against.

The child loads a model and answers one JSON command a line; `InProcess` starts it in the same
environment as a node's runner, so that both use the same BLAS and the same threads.

    python -m tests.benchmarks.in_process MODEL_FOLDER
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO, final

from node_agent.runner.environment import runner_environment
from tests.benchmarks.measures import Answer, Prompt, Run

IS_MAC = sys.platform == "darwin"


@final
class InProcess:
    """Parent's side. `with InProcess(folder) as system:`"""

    name = "in process"

    def __init__(self, folder: Path) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.in_process", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=runner_environment(os.environ, accelerated=IS_MAC),
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"in process: the child ended with status {self._child.wait()}")
        return json.loads(line)

    def run(self, prompts: list[Prompt], max_tokens: int) -> Run:
        """Answer all prompts together."""
        assert self._child.stdin is not None
        command = {"prompts": [prompt.messages() for prompt in prompts], "max_tokens": max_tokens}
        self._child.stdin.write(json.dumps(command) + "\n")
        self._child.stdin.flush()
        said = self._read()
        return Run(
            answers=tuple(Answer(**answer) for answer in said["answers"]),
            wall_seconds=said["wall_seconds"],
            cpu_seconds={"mlx-lm": said["cpu_seconds"]},
            decode_cpu_seconds=said["decode_cpu_seconds"],
        )

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


# -- the child -----------------------------------------------------------------------------------


class _Stopwatch:
    """Wall and processor time since the run began, and the latter since the first token."""

    def __init__(self) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.process_time()
        self._cpu_first: float | None = None

    def now(self) -> float:
        if self._cpu_first is None:
            self._cpu_first = time.process_time()
        return time.perf_counter() - self._began

    def report(self, answers: list[Answer]) -> dict[str, Any]:
        cpu_end = time.process_time()
        return {
            "answers": [asdict(answer) for answer in answers],
            "wall_seconds": time.perf_counter() - self._began,
            "cpu_seconds": cpu_end - self._cpu_began,
            "decode_cpu_seconds": cpu_end - (self._cpu_first or cpu_end),
        }


def _answer_one(model: Any, tokenizer: Any, messages: Any, max_tokens: int) -> dict[str, Any]:
    stream_generate = importlib.import_module("mlx_lm.generate").stream_generate
    watch = _Stopwatch()
    ids = _render(tokenizer, messages)
    text, times = "", list[float]()
    for said in stream_generate(model, tokenizer, ids, max_tokens=max_tokens):
        times.append(watch.now())
        text += said.text
    return watch.report([Answer(times[0], times[-1], len(times), text)])


def _answer_together(model: Any, tokenizer: Any, chats: Any, max_tokens: int) -> dict[str, Any]:
    generate = importlib.import_module("mlx_lm.generate")
    eos = [[token] for token in tokenizer.eos_token_ids]
    watch = _Stopwatch()
    batch = generate.BatchGenerator(model, stop_tokens=eos)
    uids = batch.insert([_render(tokenizer, chat) for chat in chats], [max_tokens] * len(chats))
    times: dict[int, list[float]] = {uid: [] for uid in uids}
    left = set(uids)
    while left:
        _, tokens = batch.next()
        for said in tokens:
            if said.finish_reason != "stop":
                times[said.uid].append(watch.now())
            if said.finish_reason is not None:
                left.discard(said.uid)
    report = watch.report([Answer(at[0], at[-1], len(at), "") for at in times.values()])
    batch.close()
    return report


def _render(tokenizer: Any, messages: Any) -> list[int]:
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True))


def _serve(folder: str, commands: TextIO, answers: TextIO) -> None:
    model, tokenizer = importlib.import_module("mlx_lm").load(folder)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in commands:
        command = json.loads(line)
        chats, max_tokens = command["prompts"], command["max_tokens"]
        if len(chats) == 1:
            report = _answer_one(model, tokenizer, chats[0], max_tokens)
        else:
            report = _answer_together(model, tokenizer, chats, max_tokens)
        print(json.dumps(report), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.stdin, sys.stdout)
