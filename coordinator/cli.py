"""`mlx-network`: run a network here, send jobs, look at jobs and money.

Heavy modules are imported inside the commands that need them: the base install is a client only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Annotated, Any, Final

import typer

from coordinator.arguments import TextCommand, question_of
from coordinator.catalogue_cli import catalogue_app
from coordinator.client import Client, ClientError, default_home, find_access
from coordinator.explain_cli import explain, quote
from coordinator.ledger_cli import ledger_app
from coordinator.operators_cli import operators_app
from coordinator.options import AsJson, Home, Key, Url
from coordinator.place_cli import place
from coordinator.placement_cli import placement_app
from coordinator.policy_cli import budget_app, gifts_app, rates_app, voucher_app
from coordinator.seats_cli import seats_app
from coordinator.statements_cli import mlx, statements_app
from coordinator.terminal import Terminal, show_rows
from coordinator.world_cli import show_world
from node_agent.sizing.words import memory_text

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
UMLX_PER_MLX: Final = 1_000_000
ENVIRONMENT: Final = (
    "Environment: MLXNET_URL is the coordinator's address and MLXNET_API_KEY your key there; without them"
    " those count that 'mlx-network up' left in its folder, MLXNET_HOME or ~/.mlx-network. OPENAI_BASE_URL"
    " and OPENAI_API_KEY are not read: they may be another service's."
)

app = typer.Typer(
    name="mlx-network",
    help="A job scheduler for a network of Macs: send jobs, follow them, see what they cost.",
    epilog=ENVIRONMENT,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
nodes_app = typer.Typer(help="Your own Macs on the network.", no_args_is_help=True)
accounts_app = typer.Typer(help="Accounts and keys, on the coordinator's own machine.", no_args_is_help=True)
app.add_typer(nodes_app, name="nodes")
app.add_typer(accounts_app, name="accounts")
app.add_typer(ledger_app, name="ledger")
app.add_typer(statements_app)
_ = app.command("world")(show_world)
app.add_typer(seats_app)
app.add_typer(gifts_app)
app.add_typer(voucher_app, name="voucher")
app.add_typer(budget_app, name="budget")
app.add_typer(rates_app, name="rates")
app.add_typer(operators_app, name="operators")
app.add_typer(catalogue_app, name="catalogue")
app.add_typer(placement_app)
_ = app.command()(place)
_ = app.command()(explain)
_ = app.command(cls=TextCommand)(quote)

out = Terminal()
err = Terminal(stderr=True)

Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
Model = Annotated[str, typer.Option("--model", "-m", help="A model's id or alias.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")]
ANSWER_TOKENS: Final = 512  # enough for a person to read; a small model may not stop by itself


@contextmanager
def _errors_shown() -> Generator[None]:
    try:
        yield
    except ClientError as error:
        err.print(f"[red]error:[/red] {error}", highlight=False)
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _client(url: str | None, api_key: str | None) -> Client:
    return Client(find_access(url, api_key))


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


# -- sending jobs --------------------------------------------------------------------------------


@app.command(cls=TextCommand)
def chat(
    message: Annotated[str, typer.Argument(help="What to say; '-' reads standard input.")],
    model: Model = "small",
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    max_tokens: MaxTokens = ANSWER_TOKENS,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0, max=2)] = None,
    seed: Annotated[int | None, typer.Option("--seed")] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Ask one question and watch the answer come."""
    body = _chat_body(message, model, system, max_tokens, temperature, seed)
    with _errors_shown():
        client = _client(url, api_key)
        if as_json:
            _print_json(client.post("/v1/chat/completions", body))
            return
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        usage: dict[str, Any] | None = None
        for event in client.stream("POST", "/v1/chat/completions", body):
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                sys.stdout.write(choice["delta"].get("content") or "")
                sys.stdout.flush()
        sys.stdout.write("\n")
        if usage is not None:
            err.print(f"[dim]{usage['prompt_tokens']} tokens in, {usage['completion_tokens']} out[/dim]")


def _chat_body(
    message: str,
    model: str,
    system: str | None,
    max_tokens: int,
    temperature: float | None,
    seed: int | None,
) -> dict[str, Any]:
    text = question_of(message)
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    given = {name: value for name, value in options.items() if value is not None}
    return {"model": model, "messages": messages, **given}


@app.command(cls=TextCommand)
def submit(
    message: Annotated[str, typer.Argument(help="What to say; '-' reads standard input.")],
    model: Model = "small",
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    max_tokens: MaxTokens = ANSWER_TOKENS,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Queue a job and come back for it later."""
    body = _chat_body(message, model, system, max_tokens, None, None)
    with _errors_shown():
        job = _client(url, api_key).post("/v1/jobs", {"kind": "chat.completions", "request": body})
        if as_json:
            _print_json(job)
        else:
            out.print(f"{job['id']}  {job['state']}  costs at most {mlx(job['bound_umlx'])} MLX")


@app.command()
def jobs(
    job_id: Annotated[str | None, typer.Argument(help="One job; without it, your latest.")] = None,
    result: Annotated[bool, typer.Option("--result", help="Print the job's answer.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100)] = 20,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show your jobs, one job, or a job's answer."""
    with _errors_shown():
        client = _client(url, api_key)
        if job_id is not None and result:
            answer = client.get(f"/v1/jobs/{job_id}/result")
            choice = answer["choices"][0]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
            _print_json(answer) if as_json else sys.stdout.write(text + "\n")
            return
        found = client.get(f"/v1/jobs/{job_id}") if job_id else client.get("/v1/jobs", limit=limit)
        if as_json:
            _print_json(found)
        elif job_id is not None:
            out.print_json(json.dumps(found))
        else:
            _show_jobs(found["data"])


def _show_jobs(found: list[dict[str, Any]]) -> None:
    rows = [
        (
            job["id"],
            job["state"],
            job["model"],
            str(job["prompt_tokens"]),
            str(job["output_tokens"]),
            mlx(job["charge_umlx"]),
        )
        for job in found
    ]
    columns = ("job", "state", "model", "in", "out", "cost, MLX")
    show_rows(out, columns, rows, right=("in", "out", "cost, MLX"))


@app.command()
def cancel(job_id: str, url: Url = None, api_key: Key = None, as_json: AsJson = False) -> None:
    """End a job now; what it delivered is charged."""
    with _errors_shown():
        job = _client(url, api_key).post(f"/v1/jobs/{job_id}/cancel")
        if as_json:
            _print_json(job)
        else:
            out.print(
                f"{job['id']}  {job['state']}  {job['output_tokens']} tokens, {mlx(job['charge_umlx'])} MLX"
            )


def _print_model(model: dict[str, Any], aliases: list[str]) -> None:
    price = model["price"]
    speed = model["tokens_per_second_now"]
    out.print(f"[bold]{model['id']}[/bold]  {model['name']}", highlight=False, soft_wrap=True)
    if aliases:
        out.print(f"  also called {', '.join(aliases)}", highlight=False)
    out.print(
        f"  {model['context_length']:,} tokens of context; per million tokens "
        f"{mlx(price['input_umlx_per_million_tokens'])} MLX in, "
        f"{mlx(price['output_umlx_per_million_tokens'])} MLX out",
        highlight=False,
    )
    now = f"{model['macs_now']} Macs can run it now, {model['macs_warm_now']} have it loaded"
    out.print(f"  {now}{f', about {speed} tokens/s' if speed else ''}", highlight=False)


@app.command()
def models(url: Url = None, api_key: Key = None, as_json: AsJson = False) -> None:
    """List the models, their prices, and how many Macs can run them now."""
    with _errors_shown():
        found = _client(url, api_key).get("/v1/models")
    if as_json:
        _print_json(found)
        return
    aliases: dict[str, list[str]] = {}
    for model in found["data"]:
        if "alias_of" in model:
            aliases.setdefault(model["alias_of"], []).append(model["id"])
    for model in found["data"]:
        if "alias_of" not in model:
            _print_model(model, aliases.get(model["id"], []))


# -- own Macs ------------------------------------------------------------------------------------


@nodes_app.command("list")
def nodes_list(url: Url = None, api_key: Key = None, as_json: AsJson = False) -> None:
    """List your Macs."""
    with _errors_shown():
        found = _client(url, api_key).get("/v1/nodes")
    if as_json:
        _print_json(found)
        return
    for node in found["data"]:
        lent = memory_text(node["lent_bytes"])
        loaded = ", ".join(node["models"]) or "no model"
        out.print(f"[bold]{node['name']}[/bold]  {node['state']}, lends {lent}, {loaded}", highlight=False)
        if node["why"]:
            out.print(f"  {node['why']}", highlight=False, soft_wrap=True)
        out.print(f"  {node['id']}", highlight=False, soft_wrap=True)
    if not found["data"]:
        out.print("You have no Macs here. On a Mac: mlx-node join " + find_access(url, api_key).url)


@nodes_app.command("approve")
def nodes_approve(
    code: Annotated[str, typer.Argument(help="The code that the Mac shows, as ABCD-EFGH.")],
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Become the owner of the Mac that shows this code."""
    with _errors_shown():
        node = _client(url, api_key).post("/v1/nodes/approve", {"code": code.strip().upper()})
    if as_json:
        _print_json(node)
    else:
        out.print(f"{node['name']} is yours: {node['id']}")


@nodes_app.command("remove")
def nodes_remove(node_id: str, url: Url = None, api_key: Key = None, as_json: AsJson = False) -> None:
    """Remove one of your Macs from the network."""
    with _errors_shown():
        found = _client(url, api_key).delete(f"/v1/nodes/{node_id}")
    if as_json:
        _print_json(found)
    else:
        out.print(f"removed {node_id}")


# -- running a network ---------------------------------------------------------------------------


@app.command()
def serve(
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port to listen on [MLXNET_PORT, 8400].")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on [MLXNET_HOST, 127.0.0.1].")
    ] = None,
    home: Home = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Logs as JSON lines.")] = False,
) -> None:
    """Run a coordinator alone, in the foreground."""
    _require_coordinator()
    from coordinator.serving import serve_forever

    with _errors_shown():
        serve_forever(home or default_home(), host=host, port=port, log_json=log_json)


@app.command()
def up(
    nodes: Annotated[int, typer.Option("--nodes", min=0, max=4, help="Local nodes to start.")] = 2,
    port: Port = 8400,
    home: Home = None,
) -> None:
    """Run a whole network on this machine, a coordinator and nodes, until Ctrl-C."""
    _require_coordinator()
    from coordinator.demo import run_up

    raise typer.Exit(run_up(home or default_home(), port=port, nodes=nodes))


@app.command()
def demo(port: Port = 0) -> None:
    """See everything once: two Macs, one question, the answer, the money. Leaves nothing behind."""
    _require_coordinator()
    from coordinator.demo import run_demo

    raise typer.Exit(run_demo(port=port))


@accounts_app.command("create")
def accounts_create(
    name: Annotated[str, typer.Argument(help="The account's name.")],
    grant: Annotated[float, typer.Option("--grant", min=0, help="Starting balance, MLX.")] = 0,
    operator: Annotated[bool, typer.Option("--operator", help="May see books and metrics.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Make an account with an API key, which is shown once."""
    _require_coordinator()
    from coordinator.home import make_account

    with _errors_shown():
        account_id, key = make_account(
            home or default_home(), name, grant_umlx=round(grant * UMLX_PER_MLX), is_operator=operator
        )
    if as_json:
        _print_json({"account": account_id, "name": name, "api_key": key})
    else:
        out.print(f"{name} is {account_id}")
        out.print(f"API key, shown only now: {key}", highlight=False, soft_wrap=True)


def _require_coordinator() -> None:
    missing = [name for name in ("fastapi", "sqlalchemy", "tokenizers") if find_spec(name) is None]
    if missing:
        err.print("[red]error:[/red] this needs the coordinator: pip install 'mlx-network[coordinator]'")
        raise typer.Exit(EXIT_FAILED)


def main() -> None:
    """Entry point of `mlx-network`."""
    app()
