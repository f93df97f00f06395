"""Systems behind a socket, read by OpenAI's own client: mlx_lm.server and the whole network."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast, final

from openai import AsyncOpenAI

from coordinator.local import LocalNetwork
from node_agent.runner.environment import runner_environment
from tests.benchmarks.in_process import IS_MAC
from tests.benchmarks.measures import Answer, Prompt, Run, cpu_clock, own_cpu_seconds

START_SECONDS_MAX = 120.0
REQUEST_SECONDS_MAX = 300.0


class Served:
    """A server of OpenAI's API at `url`, whose processes are `pids` by name."""

    def __init__(self, url: str, api_key: str, model: str, pids: Mapping[str, int]) -> None:
        self._model = model
        self._cpu = cpu_clock(pids)
        self._runner = asyncio.Runner()
        self._client = AsyncOpenAI(base_url=url, api_key=api_key, max_retries=0, timeout=REQUEST_SECONDS_MAX)

    def run(self, prompts: list[Prompt], max_tokens: int) -> Run:
        """Answer all prompts together."""
        return self._runner.run(self._run(prompts, max_tokens))

    def close(self) -> None:
        """Let go of the client's connections."""
        self._runner.run(self._client.close())
        self._runner.close()

    async def _run(self, prompts: list[Prompt], max_tokens: int) -> Run:
        first_cpu: list[float] = []

        def on_first() -> None:
            if not first_cpu:
                first_cpu.append(sum(self._cpu().values()))

        before, own_before = self._cpu(), own_cpu_seconds()
        began = time.perf_counter()
        reads = (self._read(prompt, max_tokens, began, on_first) for prompt in prompts)
        answers = await asyncio.gather(*reads)
        wall_seconds = time.perf_counter() - began
        after, own_after = self._cpu(), own_cpu_seconds()
        return Run(
            answers=tuple(answers),
            wall_seconds=wall_seconds,
            cpu_seconds={name: after[name] - before[name] for name in after},
            decode_cpu_seconds=sum(after.values()) - first_cpu[0],
            client_cpu_seconds=own_after - own_before,
        )

    async def _read(
        self, prompt: Prompt, max_tokens: int, began: float, on_first: Callable[[], None]
    ) -> Answer:
        stream = await self._client.chat.completions.create(
            model=self._model,
            messages=cast("Any", prompt.messages()),
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        first = last = 0.0
        tokens = 0
        parts: list[str] = []
        async for chunk in stream:
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text:
                last = time.perf_counter() - began
                if not parts:
                    first = last
                    on_first()
                parts.append(text)
            if chunk.usage is not None:
                tokens = chunk.usage.completion_tokens
        return Answer(first, last, tokens, "".join(parts))


@final
class MlxLmServer(Served):
    """`mlx_lm.server` as it comes, in the environment of a node's runner."""

    name = "mlx_lm.server"

    def __init__(self, folder: Path) -> None:
        port = _free_port()
        command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(folder)]
        command += ["--port", str(port), "--log-level", "ERROR"]
        self._process = subprocess.Popen(
            command, env=runner_environment(os.environ, accelerated=IS_MAC), stderr=subprocess.DEVNULL
        )
        _await_health(f"http://127.0.0.1:{port}/health", self._process)
        pids = {"mlx_lm.server": self._process.pid}
        super().__init__(f"http://127.0.0.1:{port}/v1", "none", "default_model", pids)

    def close(self) -> None:
        super().close()
        self._process.terminate()
        self._process.wait()


@final
class WholeNetwork(Served):
    """Client, coordinator, node and runner child, all as real processes; the network is shared."""

    name = "network"

    def __init__(self, network: LocalNetwork, model: str) -> None:
        assert network.coordinator_pid is not None
        (node,) = network.nodes
        pids = {"coordinator": network.coordinator_pid, "node": node.process.pid}
        super().__init__(f"{network.url}/v1", network.keys["Sam"], model, pids)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_health(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"mlx_lm.server ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError("mlx_lm.server did not start in time")
