"""`mlx-network up` and `mlx-network demo`: the local network, shown to a person."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import openai
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from coordinator.client import ClientError, default_home
from coordinator.local import LocalError, LocalNetwork, LocalNode
from coordinator.statements_cli import mlx, statement_table

QUESTION: Final = "What is the capital of France?"
EXIT_FAILED: Final = 1

console = Console()

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
        lent = found["lent_bytes"] / (1 << 30)
        console.print(
            f"  {found['name']}: {found['hardware']['chip']}, lends {lent:.1f} GiB, owned by {node.owner}"
        )
    console.print(f"  Live page of all Macs: [bold]{network.url}/[/bold]")


def _ask(network: LocalNetwork) -> None:
    client = openai.OpenAI(base_url=f"{network.url}/v1", api_key=network.keys["Sam"], max_retries=0)
    console.print(f"\n[bold]Sam asks, with the openai client:[/bold] {QUESTION}")
    raw = client.chat.completions.with_raw_response.create(
        model="small",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
    )
    job_id = raw.headers["x-job-id"]
    usage = None
    for chunk in raw.parse():
        usage = chunk.usage or usage
        for choice in chunk.choices:
            sys.stdout.write(choice.delta.content or "")
            sys.stdout.flush()
    sys.stdout.write("\n")
    job = network.client("Sam").get(f"/v1/jobs/{job_id}")
    if usage is not None:
        console.print(f"\n{usage.prompt_tokens} tokens in, {usage.completion_tokens} out", end="; ")
    attempt = job["attempts"][-1]
    console.print(
        f"price {mlx(job['charge_umlx'])} MLX (held before it ran: {mlx(job['bound_umlx'])})\n"
        f"job {job_id}: {job['state']} on {_name_of(network, attempt['node'])}"
    )


def _name_of(network: LocalNetwork, node_id: str) -> str:
    for node in network.nodes:
        for found in network.client(node.owner).get("/v1/nodes")["data"]:
            if found["id"] == node_id:
                return str(found["name"])
    return node_id


def _show_money(network: LocalNetwork) -> None:
    console.print()
    for account in ("Sam", *(node.owner for node in network.nodes)):
        found = network.client(account).get("/v1/statement")
        if found["entries"] or account == "Sam":
            console.print(statement_table(found))
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
