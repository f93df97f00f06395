"""The whole network as its users meet it: real processes, real MLX, OpenAI's own client."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from openai import Stream
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from coordinator.catalogue.cards import load_catalogue
from coordinator.local import LocalNetwork, LocalNode
from node_agent.models.store import ModelStore
from tests.fixtures.asking import in_ci
from tests.fixtures.network import NewNetwork, processes_of, runner_of, still_there

pytestmark = pytest.mark.timeout(300)

QUESTION = "What is the capital of France?"
LONG = 1200
LONG_STORY: dict[str, Any] = {
    "model": "tiny",
    "prompt": "A long story",
    "max_tokens": LONG,
    "temperature": 1,
    "seed": 3,
    "logit_bias": {"2": -100},  # the end of a turn never comes
}


@pytest.fixture(scope="module")
def network(new_network: NewNetwork) -> Generator[LocalNetwork]:
    with new_network("shared") as network:
        yield network


@pytest.fixture
def client(network: LocalNetwork) -> Generator[openai.OpenAI]:
    with client_of(network) as client:
        yield client


@contextmanager
def client_of(network: LocalNetwork) -> Generator[openai.OpenAI]:
    key = network.keys["Sam"]
    with openai.OpenAI(base_url=f"{network.url}/v1", api_key=key, max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, seed: int, max_tokens: int = 60) -> str:
    answer = client.completions.create(
        model="tiny", prompt=f"Question {seed}", max_tokens=max_tokens, temperature=1, seed=seed
    )
    return answer.choices[0].text


def books(network: LocalNetwork) -> dict[str, Any]:
    found = network.client("Operator").get("/v1/ledger/trial-balance")
    assert (found["total_umlx"], found["drifts"]) == ("0", [])
    return found


def job_of(network: LocalNetwork, job_id: str) -> dict[str, Any]:
    return network.client("Sam").get(f"/v1/jobs/{job_id}")


def node_of(network: LocalNetwork, node_id: str) -> LocalNode:
    for node in network.nodes:
        if any(own["id"] == node_id for own in network.client(node.owner).get("/v1/nodes")["data"]):
            return node
    raise AssertionError(f"nobody owns {node_id}")


def wait_loaded_again(node: LocalNode) -> None:
    """The node is told to load its model again when it says that it has none any more."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(ValueError, psutil.NoSuchProcess):  # no runner, or one that starts
            _ = runner_of(node)
            return
        assert time.monotonic() < deadline, "the node did not load its model again"
        time.sleep(0.1)


# -- answers -------------------------------------------------------------------------------------


def test_openais_client_gets_the_same_answer_streamed_and_whole(
    network: LocalNetwork, client: openai.OpenAI
) -> None:
    asked: dict[str, Any] = {
        "model": "small",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 40,
        "temperature": 1,
        "seed": 7,
    }
    create: Any = client.chat.completions.create  # its overloads cannot be told from a dict
    whole: ChatCompletion = create(**asked)
    stream: Stream[ChatCompletionChunk] = create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.model == "tiny"
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    job = job_of(network, chunks[0].id.replace("chatcmpl-", "job_"))
    assert job["state"] == "done"
    assert job["attempts"][-1]["node_signature"]
    assert job["output_tokens"] == whole.usage.completion_tokens
    books(network)


def test_eight_at_once_answer_as_each_alone(network: LocalNetwork, client: openai.OpenAI) -> None:
    alone = [ask(client, seed) for seed in range(8)]
    assert len(set(alone)) == 8
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(partial(ask, client), range(8)))
    assert together == alone
    books(network)


def test_what_is_wrong_is_an_error_of_openais_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="Nearest: tiny"):
        client.completions.create(model="tinny", prompt="x")
    with pytest.raises(openai.BadRequestError, match="context is 2048"):
        client.completions.create(model="tiny", prompt="x" * 2048, max_tokens=1)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="mlx_sk_wrong").models.list()
    assert "tiny" in {model.id for model in client.models.list()}


# -- losses --------------------------------------------------------------------------------------


def answer_while_killing(network: LocalNetwork, what: str) -> tuple[str, dict[str, Any]]:
    """Stream a long answer; once it flows, kill the node that makes it, or that node's runner."""
    text, job_id = "", ""
    with client_of(network) as client:
        create: Any = client.completions.create
        stream: Stream[Completion] = create(**LONG_STORY, stream=True)
        for chunk in stream:
            text += chunk.choices[0].text
            if not job_id:
                job_id = chunk.id.replace("cmpl-", "job_")
                node = node_of(network, job_of(network, job_id)["attempts"][-1]["node"])
                pid = node.process.pid if what == "node" else runner_of(node).pid
                os.kill(pid, signal.SIGKILL)
    return text, job_of(network, job_id)


@pytest.mark.parametrize("what", ["runner", "node"])
def test_a_kill_in_the_middle_of_an_answer_is_not_seen_by_its_reader(
    new_network: NewNetwork, what: str
) -> None:
    with new_network(f"kill-{what}") as network:
        with client_of(network) as client:
            create: Any = client.completions.create
            undisturbed: Completion = create(**LONG_STORY)
        text, job = answer_while_killing(network, what)
        assert job["state"] == "done"
        assert job["output_tokens"] == LONG
        first, *_, last = job["attempts"]
        assert first["reason"] == ("runner_crashed" if what == "runner" else "node_lost")
        assert (last["state"], last["fence"] > first["fence"]) == ("done", True)
        assert first["delivered_tokens"] + last["delivered_tokens"] == LONG
        assert 0 < first["delivered_tokens"] < LONG
        assert text == undisturbed.choices[0].text
        assert int(first["share_umlx"]) > 0
        books(network)
        if what == "runner":
            wait_loaded_again(node_of(network, first["node"]))


# -- ends ----------------------------------------------------------------------------------------


def test_an_end_in_order_leaves_no_process(new_network: NewNetwork) -> None:
    with new_network("ends", nodes=1) as network:
        with client_of(network) as client:
            assert ask(client, 1)
        processes = processes_of(network)
        assert len(processes) >= 3, "coordinator, node, runner"
        began = time.monotonic()
        network.stop()
        assert time.monotonic() - began < 12, "nothing had to be killed"
        assert still_there(processes) == []
        assert [node.process.returncode for node in network.nodes] == [0]


def test_a_port_in_use_is_said_clearly(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for command in (["serve"], ["up", "--nodes", "0"], ["demo"]):
            done = run_cli(*command, "--port", port, home=tmp_path / command[0])
            assert done.returncode == 1, command
            said = " ".join((done.stdout + done.stderr).split())
            assert port in said
            assert "end what listens there, or choose another with --port" in said
            assert "Traceback" not in said


def run_cli(*arguments: str, home: Path, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coordinator", *arguments],
        env=os.environ | {"MLXNET_HOME": str(home), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


# -- a real model --------------------------------------------------------------------------------


@pytest.fixture
def real_model() -> None:
    """SmolLM2, from the cache or fetched; CI fails without it, elsewhere the test is skipped."""
    catalogue = load_catalogue()
    card = catalogue.resolve("small")
    assert card is not None
    if ModelStore().folder_of(card) is not None:
        return
    command = [sys.executable, "-m", "node_agent.models", "fetch"]
    command += ["--card", str(catalogue.files[card.id])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    message = f"{card.id} cannot be had: {done.stderr.strip()[-300:]}"
    if in_ci():
        pytest.fail(message)
    pytest.skip(message)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("real_model")
def test_the_demo_asks_a_real_model_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run_cli("demo", home=tmp_path, seconds=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert QUESTION in done.stdout
    assert "Paris" in done.stdout
    assert "places where the books differ: 0" in done.stdout
    assert "done on" in done.stdout
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline"])
        if "mlx-network-demo-" in " ".join(process.info["cmdline"] or ())
    ]
    assert left == []
