"""`mlx-network statement`, `earnings`, `spending` and `tokens`: an account's money, and what a token is.

A client like the rest of `mlx-network`: it asks the coordinator and prints.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import httpx2
import typer

from coordinator.client import TIMEOUT, ClientError, find_access
from coordinator.options import AsJson, Key, Url
from coordinator.terminal import Terminal, show_rows

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
UMLX_PER_MLX: Final = 1_000_000
MLX_PATTERN: Final = re.compile(r"^[0-9]{1,12}(\.[0-9]{1,6})?$", re.ASCII)
PPM_PER_PERCENT: Final = 10_000
NO_KEY: Final = "-"
"""For what is public: no key is looked for and none is sent."""

statements_app = typer.Typer()
out = Terminal()
err = Terminal(stderr=True)

Month = Annotated[str | None, typer.Option("--month", help="A month of UTC, as 2026-03; without it, all.")]


class Form(StrEnum):
    """What a statement can be had as."""

    json = "json"
    csv = "csv"
    beancount = "beancount"
    hledger = "hledger"


class Per(StrEnum):
    """How finely earnings are told over time."""

    hour = "hour"
    day = "day"


# -- asking --------------------------------------------------------------------------------------


def _ask(url: str | None, api_key: str | None, path: str, **params: Any) -> httpx2.Response:
    """GET with the caller's key. Raises `ClientError`, ready to be shown."""
    access = find_access(url, api_key)
    given = {name: value for name, value in params.items() if value is not None}
    headers = {} if access.api_key == NO_KEY else {"Authorization": f"Bearer {access.api_key}"}
    try:
        answer = httpx2.get(access.url + path, params=given, headers=headers, timeout=TIMEOUT)
    except httpx2.TransportError as error:
        name = type(error).__name__
        raise ClientError(f"{access.url} does not answer ({name}); is the coordinator running?") from error
    if answer.status_code < httpx2.codes.BAD_REQUEST:
        return answer
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {answer.status_code} from {answer.url}"
    raise ClientError(message)


@contextmanager
def _errors_shown() -> Generator[None]:
    try:
        yield
    except (ClientError, OSError) as error:
        err.print(f"[red]error:[/red] {error}", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


# -- showing -------------------------------------------------------------------------------------


def mlx(umlx: str | int) -> str:
    """An amount of uMLX as MLX, exact."""
    amount = int(umlx)
    sign = "-" if amount < 0 else ""
    whole, rest = divmod(abs(amount), UMLX_PER_MLX)
    return f"{sign}{whole:,}.{rest:06d}"


def umlx_of(mlx_text: str) -> int:
    """An amount written in MLX, as `0.25`, in uMLX. Raises ValueError unless it is exact."""
    if not MLX_PATTERN.fullmatch(mlx_text):
        raise ValueError(f"{mlx_text!r} must be written as 12 or 0.25, with at most 6 decimals")
    whole, _, part = mlx_text.partition(".")
    return int(whole) * UMLX_PER_MLX + int(part.ljust(6, "0") or "0")


def show_statement(to: Terminal, found: dict[str, Any]) -> None:
    """Print a statement."""
    rows = [("", "opening", "", mlx(found["opening_umlx"]))]
    rows += [
        (str(entry["seq"]), entry["kind"], entry["reference"], mlx(entry["amount_umlx"]))
        for entry in found["entries"]
    ]
    rows += [
        ("", coming["shown"], coming["reason"], f"({mlx(coming['amount_umlx'])})")
        for coming in found.get("held_back", ())
    ]
    rows += [
        ("", "held now", hold["reference"], f"({mlx(hold['amount_umlx'])})") for hold in found["open_holds"]
    ]
    show_rows(
        to,
        ("entry", "kind", "for", "MLX"),
        rows,
        folds=("kind", "for"),
        right=("MLX",),
        title=f"{found['name']}, in MLX",
        footer=("", "closing", "", mlx(found["closing_umlx"])),
    )


def _show_sums(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print names and amounts of uMLX, with their sum below."""
    named = list(rows)
    total = sum(int(amount) for _, amount in named)
    shown = [(name, mlx(amount)) for name, amount in named]
    show_rows(out, (title, "MLX"), shown, folds=(title,), right=("MLX",), footer=("sum", mlx(total)))


def _named(rows: list[dict[str, Any]], nameless: str) -> list[tuple[str, str]]:
    return [(row["name"] or row["key"] or nameless, row["amount_umlx"]) for row in rows]


def _keyed(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["key"] or "-", row["amount_umlx"]) for row in rows]


def _utc(at_us: int, shape: str) -> str:
    return datetime.fromtimestamp(at_us // 1_000_000, tz=UTC).strftime(shape)


# -- commands ------------------------------------------------------------------------------------


@statements_app.command()
def statement(
    month: Month = None,
    node: Annotated[str | None, typer.Option("--node", help="One of your Macs alone, by its id.")] = None,
    form: Annotated[
        Form | None, typer.Option("--format", help="A file's format; without it, a table.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--out", help="Where to write; needs --format.")] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show your account: opening, entries, closing; or write it as a file."""
    if file is not None and form is None:
        raise typer.BadParameter("give --format, too: json, csv, beancount or hledger", param_hint="--out")
    with _errors_shown():
        wanted = None if form is None else form.value
        answer = _ask(url, api_key, "/v1/statement", month=month, node=node, format=wanted)
        if file is not None:
            file.write_bytes(answer.content)
        elif form is not None and form is not Form.json:
            sys.stdout.write(answer.text)
        elif form is Form.json or as_json:
            _print_json(answer.json())
        else:
            show_statement(out, answer.json())


@statements_app.command()
def earnings(
    month: Month = None,
    per: Annotated[Per, typer.Option("--per", help="Sums by the hour or by the day.")] = Per.day,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show what your Macs earned: by Mac, by model, over time; and what was not paid, and why."""
    with _errors_shown():
        found = _ask(url, api_key, "/v1/earnings", month=month, per=per.value).json()
    if as_json:
        _print_json(found)
        return
    lost = f", forfeited {mlx(found['forfeited_umlx'])}" if found["forfeited_umlx"] != "0" else ""
    out.print(f"earned {mlx(found['total_umlx'])} MLX, of it held back {mlx(found['held_umlx'])}{lost}")
    _show_sums("Mac", _named(found["by_node"], "no Mac of yours now"))
    _show_sums("model", _keyed(found["by_model"]))
    _show_sums("for", _keyed(found["by_kind"]))
    shape = "%Y-%m-%d %H:00" if per is Per.hour else "%Y-%m-%d"
    times = [(_utc(row["key"], shape), row["amount_umlx"]) for row in found[f"by_{per.value}"]]
    _show_sums(f"{per.value} (UTC)", times)
    for coming in found["coming"]:
        out.print(f"{mlx(coming['amount_umlx'])} MLX {coming['shown']} ({coming['reason']})")
    if found["released"]:
        came = sum(int(released["amount_umlx"]) for released in found["released"])
        out.print(f"{mlx(came)} MLX that was held back has come, in {len(found['released'])} payments")
    if found["zeros"]:
        zeros = [(zero["reason"], str(zero["count"])) for zero in found["zeros"]]
        show_rows(out, ("not paid because", "times"), zeros, folds=("not paid because",), right=("times",))


@statements_app.command()
def spending(
    month: Month = None,
    limit: Annotated[int, typer.Option("--limit", min=0, max=1000, help="Jobs to explain.")] = 10,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show what your jobs cost: by key, by model, and the newest ones as their sums."""
    with _errors_shown():
        found = _ask(url, api_key, "/v1/spending", month=month, limit=limit).json()
    if as_json:
        _print_json(found)
        return
    out.print(f"spent {mlx(found['total_umlx'])} MLX, refunds of {mlx(found['refunded_umlx'])} taken off")
    _show_sums("key", _named(found["by_key"], "no key"))
    _show_sums("model", _keyed(found["by_model"]))
    for job in found["jobs"]:
        out.print(f"[bold]{job['job_id']}[/bold]  {mlx(job['charge_umlx'])} MLX", highlight=False)
        rates = f"rate card {job['rate_card']['version'] or job['rate_card']['id'][:16] or 'unknown'}"
        out.print(f"  {job['model']}@{job['card_revision'][:16]}, {rates}", highlight=False)
        for line in [job["why"]] if job["sum"] is None else job["sum"]["as_text"]:
            out.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
    for row in found["not_charged"]:
        out.print(f"{row['count']} not charged: {row['reason']}", highlight=False)


@statements_app.command()
def tokens(url: Url = None, as_json: AsJson = False) -> None:
    """Say what an MLX token is: what it buys today, how many there are, where the pools stand."""
    with _errors_shown():
        found = _ask(url, NO_KEY, "/v1/tokens").json()
    if as_json:
        _print_json(found)
        return
    out.print(found["what"], highlight=False)
    for example in found["examples"]:
        count = example["output_tokens_per_mlx"]
        amount = "any number of" if count is None else f"{count:,}"
        later = "" if example["is_served"] else ", not served yet"
        out.print(f"1 MLX = {amount} answer tokens of {example['model']} ({example['size']}{later})")
    columns = ("1 MLX today is about", "answer tokens of", "also called")
    bought = [
        (
            "free" if model["output_tokens_per_mlx"] is None else f"{model['output_tokens_per_mlx']:,}",
            model["id"],
            ", ".join(model["aliases"]),
        )
        for model in found["models"]
    ]
    show_rows(out, columns, bought, folds=columns[2:], right=columns[:1])
    out.print(f"in all {mlx(found['supply_umlx'])} MLX (minted less burned)", highlight=False)
    for account in found["network_accounts"]:
        out.print(f"  {account['account']}: {mlx(account['balance_umlx'])} MLX", highlight=False)
    for budget in found["budgets"]:
        left = f"{mlx(budget['left_umlx'])} of {mlx(budget['cap_umlx'])} MLX left to mint"
        out.print(f"  for {budget['purpose']}: {left}", highlight=False)
    for span, name in (("last_24_hours", "24 hours"), ("last_30_days", "30 days")):
        paid = found["demand"][span]
        shown = f"{paid['jobs']:,} paid jobs, {paid['tokens']:,} tokens, {mlx(paid['charged_umlx'])} MLX"
        out.print(f"last {name}: {shown}", highlight=False)
    busy = found["demand"]["paid_busy_ppm"] / PPM_PER_PERCENT
    out.print(f"paid work took {busy:.1f} % of the Macs' last hour", highlight=False)
    card = found["rate_card"]
    out.print(f"fee {found['fee_ppm'] / PPM_PER_PERCENT:g} % of each charge", highlight=False)
    out.print(f"rate card {card['version']}: {card['id']}", highlight=False, soft_wrap=True)
    for coming in found["coming_rate_cards"]:
        day = _utc(coming["effective_us"], "%Y-%m-%d %H:%M")
        out.print(f"rate card {coming['version']} comes on {day} UTC: mlx-network rates show")


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
