"""`mlx-network give`, `voucher`, `budget` and `rates`: tokens given, promised, minted, and their rates.

Documents that operators sign are files: drafted, signed offline by each, sent in by any of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Final, cast
from uuid import uuid4

import typer

from coordinator.arguments import TextCommand
from coordinator.client import Client, ClientError, find_access
from coordinator.ids import new_id
from coordinator.json_files import load_json
from coordinator.ledger_cli import failed
from coordinator.options import AsJson, Key, Url
from coordinator.policy.documents import (
    BudgetDocument,
    BudgetText,
    DocumentError,
    RateCardDocument,
    read_document,
    sign,
    write_document,
)
from coordinator.policy.operator_keyfile import KeyFileError, read_key
from coordinator.statements_cli import NO_KEY, mlx
from coordinator.terminal import Terminal
from ledger.budgets import Purpose
from ledger.limits import MAX_AMOUNT_UMLX
from ledger.ratecard import DAY_US

US_PER_SECOND: Final = 1_000_000
UMLX_DIGITS: Final = 6

Document = Annotated[Path, typer.Argument(help="The document's file.")]
KeyFile = Annotated[Path, typer.Option("--key", help="Your key's file, from 'operators keygen'.")]
SignAs = Annotated[str, typer.Option("--as", help="Your name as an operator.")]

gifts_app = typer.Typer()
voucher_app = typer.Typer(help="Vouchers: issue them, redeem one.", no_args_is_help=True)
budget_app = typer.Typer(help="Budgets: leave to mint, signed by two operators.", no_args_is_help=True)
rates_app = typer.Typer(help="The network's rates, and what is coming.", no_args_is_help=True)
out = Terminal()
err = Terminal(stderr=True)


@contextmanager
def errors_shown() -> Generator[None]:
    """What goes wrong, as one line and an exit code."""
    try:
        yield
    except (ClientError, DocumentError, KeyFileError, OSError) as error:
        raise failed(str(error)) from None


@contextmanager
def client_of(url: str | None, api_key: str | None) -> Generator[Client]:
    """A client for one command, closed after it; what goes wrong is shown."""
    with errors_shown(), closing(Client(find_access(url, api_key))) as client:
        yield client


def umlx_of(amount: str, option: str) -> int:
    """An amount of MLX as people write it (`5`, `0.25`), in uMLX; never rounded."""
    try:
        value = Decimal(amount).scaleb(UMLX_DIGITS)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or value != value.to_integral_value() or not 0 < value <= MAX_AMOUNT_UMLX:
        raise typer.BadParameter(
            f"{amount!r} is not a positive amount of MLX with at most 6 decimals, as 5 or 0.25",
            param_hint=option,
        )
    return int(value)


def sign_file(file: Path, key: Path, name: str) -> None:
    """Add an operator's signature to a document's file; nothing is sent."""
    with errors_shown():
        document = sign(read_document(file), name, read_key(key))
        write_document(file, document)
    out.print(f"signed by {', '.join(sorted(document.signatures))}: {file}", highlight=False)


def send(path: str, file: Path, kind: str, url: str | None, api_key: str | None) -> dict[str, Any]:
    """Send a signed document in; the answer."""
    with client_of(url, api_key) as client:
        document = read_document(file)
        if document.kind != kind:
            raise failed(f"{file} is a document of kind {document.kind}, not {kind}")
        return client.post(path, document.model_dump(mode="json"))


def _day(at_us: int) -> str:
    return f"{datetime.fromtimestamp(at_us // US_PER_SECOND, tz=UTC):%Y-%m-%d %H:%M} UTC"


def _now_us() -> int:
    return int(datetime.now(UTC).timestamp()) * US_PER_SECOND


def print_json(value: Any) -> None:
    """A value on standard output."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


# -- gifts and vouchers --------------------------------------------------------------------------


@gifts_app.command(cls=TextCommand)
def give(
    to: Annotated[str, typer.Argument(metavar="NAME", help="The account that gets it: a name or an id.")],
    amount: Annotated[str, typer.Argument(metavar="MLX", help="How much, as 5 or 0.25.")],
    note: Annotated[str, typer.Option("--note", help="A word with it; it stays in the ledger.")] = "",
    once: Annotated[
        str | None, typer.Option("--once", help="A word of yours: the same gift with it is given once.")
    ] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Give tokens to another account. Nobody can take a gift back."""
    body = {"to": to, "amount_umlx": str(umlx_of(amount, "MLX")), "note": note}
    with client_of(url, api_key) as client:
        headers = {"Idempotency-Key": once or str(uuid4())}
        found = client.post("/v1/transfers", body, headers=headers)
    if as_json:
        print_json(found)
    else:
        out.print(f"gave {mlx(found['amount_umlx'])} MLX to {found['to_name']}", highlight=False)


@voucher_app.command("issue")
def voucher_issue(
    amount: Annotated[str, typer.Option("--mlx", help="MLX of each voucher.")],
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long it can be redeemed.")] = 30,
    count: Annotated[int, typer.Option("--count", min=1, max=100, help="How many.")] = 1,
    budget: Annotated[str | None, typer.Option("--budget", help="A budget's id; else one with room.")] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Issue vouchers, as an operator. Their codes are shown only now."""
    body: dict[str, Any] = {"amount_umlx": str(umlx_of(amount, "--mlx")), "days": days, "count": count}
    with client_of(url, api_key) as client:
        found = client.post("/v1/vouchers", body | ({"budget": budget} if budget else {}))
    if as_json:
        print_json(found)
        return
    for voucher in found["data"]:
        sys.stdout.write(f"{voucher['code']}\n")
    until = _day(found["expires_us"])
    err.print(f"{mlx(found['amount_umlx'])} MLX each, until {until}; shown only now", highlight=False)


@voucher_app.command("redeem")
def voucher_redeem(
    code: Annotated[str, typer.Argument(help="The voucher's code.")],
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Credit a voucher to your account."""
    with client_of(url, api_key) as client:
        found = client.post("/v1/vouchers/redeem", {"code": code})
    if as_json:
        print_json(found)
    else:
        out.print(f"{mlx(found['amount_umlx'])} MLX are yours", highlight=False)


# -- budgets -------------------------------------------------------------------------------------


@budget_app.command("draft")
def budget_draft(
    file: Annotated[Path, typer.Argument(help="Where to write the draft.")],
    purpose: Annotated[str, typer.Option("--purpose", help="grants, availability or vouchers.")],
    cap: Annotated[str, typer.Option("--cap-mlx", help="The most that it mints, MLX.")],
    reason: Annotated[str, typer.Option("--reason", help="What the tokens are for; everyone can read it.")],
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long it can be drawn from.")] = 90,
) -> None:
    """Write a budget to be signed by two operators. Nothing is sent."""
    purposes: dict[str, Purpose] = {
        "grants": "grants",
        "availability": "availability",
        "vouchers": "vouchers",
    }
    if purpose not in purposes:
        raise typer.BadParameter(f"must be one of {', '.join(purposes)}", param_hint="--purpose")
    if not reason.strip() or len(reason) > 200:
        raise typer.BadParameter("must be 1 to 200 characters", param_hint="--reason")
    if file.exists():
        raise failed(f"{file} exists already; name another file")
    now_us = _now_us()
    text = BudgetText(
        id=new_id("budget"),
        purpose=purposes[purpose],
        reason=reason,
        cap_umlx=str(umlx_of(cap, "--cap-mlx")),
        valid_from_us=now_us,
        expires_us=now_us + days * DAY_US,
    )
    with errors_shown():
        write_document(file, BudgetDocument(budget=text))
    out.print(f"wrote {file}; next: mlx-network budget sign {file} --key KEYFILE --as NAME", soft_wrap=True)


@budget_app.command("sign")
def budget_sign(file: Document, key: KeyFile, name: SignAs) -> None:
    """Sign a budget, offline."""
    sign_file(file, key, name)


@budget_app.command("submit")
def budget_submit(file: Document, url: Url = None, api_key: Key = None, as_json: AsJson = False) -> None:
    """Send a signed budget in, as an operator."""
    found = send("/v1/budgets", file, "budget", url, api_key)
    if as_json:
        print_json(found)
    else:
        signers = ", ".join(found["signers"])
        out.print(f"{found['id']}: {mlx(found['cap_umlx'])} MLX, signed by {signers}", soft_wrap=True)


@budget_app.command("list")
def budget_list(url: Url = None, as_json: AsJson = False) -> None:
    """Show all budgets: what they may mint, what was drawn, who signed."""
    with client_of(url, NO_KEY) as client:
        found = client.get("/v1/budgets")
    if as_json:
        print_json(found)
        return
    # Not a table: ids and amounts beside one another do not fit into 80 columns.
    for budget in found["data"]:
        cap, drawn, promised, left = (
            mlx(budget[f"{name}_umlx"]) for name in ("cap", "drawn", "promised", "left")
        )
        out.print(budget["id"], highlight=False, soft_wrap=True)
        out.print(
            f"  for {budget['purpose']}, until {_day(budget['expires_us'])}", highlight=False, soft_wrap=True
        )
        out.print(
            f"  {left} MLX left of {cap}: {drawn} drawn, {promised} in vouchers",
            highlight=False,
            soft_wrap=True,
        )
        out.print(f"  signed by {', '.join(budget['signers'])}", highlight=False, soft_wrap=True)


# -- rates ---------------------------------------------------------------------------------------


@rates_app.command("show")
def rates_show(url: Url = None, as_json: AsJson = False) -> None:
    """Show the rate card in force, and those that are coming with what they change."""
    with client_of(url, NO_KEY) as client:
        found = client.get("/v1/rates")
    if as_json:
        print_json(found)
        return
    card = found["in_force"]
    out.print(f"rate card {card['version']} is in force: {card['id']}", highlight=False, soft_wrap=True)
    for part in ("prices", "fees", "availability", "seats", "policy"):
        for name, value in card["rates"][part].items():
            out.print(f"  {part}.{name} = {value}", highlight=False)
    for coming in found["coming"]:
        out.print(f"rate card {coming['version']} comes on {_day(coming['effective_us'])}", highlight=False)
        _print_changes(coming["changes"])


def _print_changes(changes: list[dict[str, Any]]) -> None:
    for change in changes:
        out.print(f"  {change['rate']}: {change['now']} now, {change['then']} then", highlight=False)


@rates_app.command("draft")
def rates_draft(
    card: Annotated[Path, typer.Argument(help="The new card's rates, JSON as 'rates show --json' has them.")],
    file: Annotated[Path, typer.Argument(help="Where to write the document to be signed.")],
    effective: Annotated[str, typer.Option("--effective", help="From when on, as 2026-03-01 (UTC).")],
) -> None:
    """Write the announcement of a rate card, to be signed by two operators. Nothing is sent."""
    if file.exists():
        raise failed(f"{file} exists already; name another file")
    try:
        day = datetime.fromisoformat(effective)
    except ValueError:
        raise typer.BadParameter("write a date as 2026-03-01", param_hint="--effective") from None
    day = day.replace(tzinfo=UTC) if day.tzinfo is None else day
    with errors_shown():
        try:
            rates = load_json(card.read_text("utf-8"))
        except ValueError as error:
            raise failed(f"{card}: not JSON as it must be: {error}") from None
        if not isinstance(rates, dict):
            raise failed(
                f"{card} must hold an object with version, prices, fees, availability, seats, policy"
            )
        document = RateCardDocument(
            card=cast("dict[str, Any]", rates), effective_us=int(day.timestamp()) * US_PER_SECOND
        )
        _ = document.message
        write_document(file, document)
    out.print(f"wrote {file}; next: mlx-network rates sign {file} --key KEYFILE --as NAME", soft_wrap=True)


@rates_app.command("sign")
def rates_sign(file: Document, key: KeyFile, name: SignAs) -> None:
    """Sign a rate card's announcement, offline."""
    sign_file(file, key, name)


@rates_app.command("announce")
def rates_announce(file: Document, url: Url = None, api_key: Key = None, as_json: AsJson = False) -> None:
    """Announce a signed rate card, as an operator. Running and quoted jobs keep theirs."""
    found = send("/v1/rates", file, "rate_card", url, api_key)
    if as_json:
        print_json(found)
        return
    out.print(f"rate card {found['version']} comes on {_day(found['effective_us'])}", highlight=False)
    _print_changes(found["changes"])


@rates_app.command("effect")
def rates_effect(url: Url = None, api_key: Key = None, as_json: AsJson = False) -> None:
    """What the coming rates would have meant for your Macs in the last 30 days."""
    with client_of(url, api_key) as client:
        found = client.get("/v1/rates/effect")
    if as_json:
        print_json(found)
        return
    if found["coming"] is None:
        out.print("No new rates are announced.")
        return
    out.print(f"rate card {found['coming']['version']} comes on {_day(found['coming']['effective_us'])}")
    for what in ("work", "availability"):
        now, then = mlx(found[f"{what}_now_umlx"]), mlx(found[f"{what}_then_umlx"])
        out.print(f"  {what}: {now} MLX now, {then} MLX then", highlight=False)
    out.print(f"  difference: {mlx(found['difference_umlx'])} MLX", highlight=False)
