"""`mlx-network up` and `mlx-network demo`: the local network, shown to a person."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import openai
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from coordinator.client import ClientError, default_home
from coordinator.local import LocalError, LocalNetwork, LocalNode
from coordinator.statements_cli import mlx, show_statement
from coordinator.terminal import Terminal
from node_agent.sizing.words import memory_text

QUESTION: Final = "What is the capital of France?"
LONG_QUESTION: Final = "How do bees make honey?"
LONG_TOKENS: Final = 64
KILL_AFTER: Final = 12  # pieces of the answer: the middle of its first sentence
SEAM: Final = "┊"
SEAM_SECONDS: Final = 0.5  # a piece that comes so long after the kill is another Mac's
EXIT_FAILED: Final = 1

console = Terminal()

STEPS: Final = {
    "model": "Model: SmolLM2-135M-Instruct",
    "coordinator": "Coordinator",
    "nodes": "Macs with the model loaded",
}


def run_demo(*, port: int) -> int:
    """Show the whole network once. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="mlx-network-demo-") as folder:
        network = LocalNetwork(home=Path(folder), port=port)
        try:
            with _ending_in_order(network):
                _bring_up(network)
                _show_macs(network)
                _ask(network)
                _ask_and_kill(network)
                _show_money(network)
        except (LocalError, ClientError, openai.OpenAIError) as error:
            console.print(f"[red]error:[/red] {error}", highlight=False)
            return EXIT_FAILED
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
    console.print("\nAll processes have ended. To keep a network running: [bold]make up[/bold]")
    return 0


def run_up(home: Path, *, port: int, nodes: int) -> int:
    """Run the local network until Ctrl-C. Returns the exit code."""
    network = LocalNetwork(home=home, port=port, nodes_wanted=nodes)
    try:
        with _ending_in_order(network):
            _bring_up(network)
            _show_macs(network)
            _show_access(network)
            log = network.wait(_tell_node_gone)
            console.print(f"[red]error:[/red] the network ended by itself; see {log}", soft_wrap=True)
            return EXIT_FAILED
    except (LocalError, ClientError, OSError) as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return EXIT_FAILED
    except KeyboardInterrupt:
        console.print("\nEnded.")
        return 0


def _tell_node_gone(node: LocalNode, log: Path) -> None:
    console.print(f"{node.name} ended; the others go on with its work. Its log: {log}", soft_wrap=True)


@contextmanager
def _ending_in_order(network: LocalNetwork) -> Generator[None]:
    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        # A second Ctrl-C must not leave processes behind.
        ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
        network.stop()
        signal.signal(signal.SIGINT, ignored)
        signal.signal(signal.SIGTERM, before)


def _bring_up(network: LocalNetwork) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(STEPS[what], total=None, shown="")
            is_bytes = what == "model" and total > 1
            shown = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if is_bytes else f"{done} of {total}"
            progress.update(
                tasks[what],
                completed=done,
                total=total or None,
                shown=shown if what != "model" or is_bytes else "",
            )

        network.report = report
        network.start()


def _show_macs(network: LocalNetwork) -> None:
    for node in network.nodes:
        found = network.client(node.owner).get("/v1/nodes")["data"][0]
        lent = memory_text(found["lent_bytes"])
        console.print(f"  {found['name']}: {found['hardware']['chip']}, lends {lent}, owned by {node.owner}")
    console.print(f"  Live page of all Macs: [bold]{network.url}/[/bold]")


def _ask(network: LocalNetwork) -> None:
    console.print(f"\n[bold]Sam asks, with the openai client:[/bold] {QUESTION}")
    job_id, chunks = _open(network, QUESTION, max_tokens=48)
    for text in chunks:
        _write(text)
    _write("\n")
    job = network.client("Sam").get(f"/v1/jobs/{job_id}")
    _show_price(job)
    attempt = job["attempts"][-1]
    console.print(f"job {job_id}: {job['state']} on {_name_of(network, attempt['node'])}")


def _open(network: LocalNetwork, question: str, *, max_tokens: int) -> tuple[str, Iterator[str]]:
    """Ask, and return the job's id and the pieces of its answer as they come."""
    client = openai.OpenAI(base_url=f"{network.url}/v1", api_key=network.keys["Sam"], max_retries=0)
    raw = client.chat.completions.with_raw_response.create(
        model="small",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=max_tokens,
        stream=True,
    )

    def pieces() -> Iterator[str]:
        for chunk in raw.parse():
            for choice in chunk.choices:
                if choice.delta.content:
                    yield choice.delta.content

    return str(raw.headers["x-job-id"]), pieces()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _show_price(job: dict[str, Any]) -> None:
    console.print(
        f"\n{job['prompt_tokens']} tokens in, {job['output_tokens']} out; price {mlx(job['charge_umlx'])} MLX "
        f"(held before it ran: {mlx(job['bound_umlx'])})"
    )


def _ask_and_kill(network: LocalNetwork) -> None:
    """The answer's Mac is killed in the middle of a sentence; another one ends it."""
    console.print(
        f"\n[bold]Sam asks again, and the Mac that answers is killed mid-sentence:[/bold] {LONG_QUESTION}"
    )
    job_id, chunks = _open(network, LONG_QUESTION, max_tokens=LONG_TOKENS)
    victim: LocalNode | None = None
    killed_at = paused_seconds = 0.0
    for count, text in enumerate(chunks):
        if count == 0:
            victim = _node_of(
                network, network.client("Sam").get(f"/v1/jobs/{job_id}")["attempts"][-1]["node"]
            )
        waited_seconds = time.monotonic() - killed_at
        if killed_at and not paused_seconds and waited_seconds > SEAM_SECONDS:
            paused_seconds = waited_seconds
            console.print(SEAM, end="", style="bold red", highlight=False)
        _write(text)
        if count == KILL_AFTER and victim is not None:
            victim.process.kill()
            killed_at = time.monotonic()
    _write("\n")
    _show_seam(network, job_id, paused_seconds)


def _show_seam(network: LocalNetwork, job_id: str, paused_seconds: float) -> None:
    job = network.client("Sam").get(f"/v1/jobs/{job_id}")
    last = job["attempts"][-1]
    first = next((attempt for attempt in job["attempts"] if attempt["state"] == "lost"), last)
    if paused_seconds:
        console.print(
            f"\n[bold red]{SEAM}[/bold red] {_name_of(network, first['node'])} was killed here (SIGKILL). "
            f"{_name_of(network, last['node'])} went on after {paused_seconds:.1f} s.",
            highlight=False,
        )
    else:
        console.print("\nThe answer was whole before its Mac was gone.")
    _show_price(job)
    for attempt in job["attempts"]:
        console.print(
            f"  {_name_of(network, attempt['node'])}: {attempt['delivered_tokens']} tokens, "
            f"{mlx(attempt['share_umlx'])} MLX for its owner"
        )
    if job["state"] != "done":
        raise LocalError(f"job {job_id} ended as {job['state']}: {job['error']}")


def _node_of(network: LocalNetwork, node_id: str) -> LocalNode | None:
    for node in network.nodes:
        if any(found["id"] == node_id for found in network.client(node.owner).get("/v1/nodes")["data"]):
            return node
    return None


def _name_of(network: LocalNetwork, node_id: str) -> str:
    node = _node_of(network, node_id)
    return node.name if node is not None else node_id


def _show_money(network: LocalNetwork) -> None:
    console.print()
    for account in ("Sam", *(node.owner for node in network.nodes)):
        found = network.client(account).get("/v1/statement")
        if found["entries"] or found["held_back"] or account == "Sam":
            show_statement(console, found)
    books: dict[str, Any] = network.client("Operator").get("/v1/ledger/trial-balance")
    console.print(
        f"Sum over all {len(books['accounts'])} accounts: [bold]{books['total_umlx']}[/bold]; "
        f"places where the books differ: {len(books['drifts'])}"
    )
    if books["total_umlx"] != "0" or books["drifts"]:
        raise LocalError("the books do not add up")


def _show_access(network: LocalNetwork) -> None:
    key = network.keys["Sam"]
    home = "" if network.home == default_home() else f"MLXNET_HOME={network.home} "
    console.print(
        f"\nThe network is up. Send jobs with any OpenAI client:\n"
        f"  export OPENAI_BASE_URL={network.url}/v1\n"
        f"  export OPENAI_API_KEY={key}\n"
        f"or with the command line (in .venv/bin if it is not on your PATH):\n"
        f"  {home}mlx-network chat --temperature 0 'What is the capital of France?'\n"
        f"Keys of all accounts: {network.home / 'keys.json'}. Ctrl-C ends everything.",
        highlight=False,
        soft_wrap=True,
    )
