"""`mlx-network operators` and `mlx-network ledger adjust`: keys, and what two operators do together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from coordinator.ledger_cli import coordinator_here, failed, ledger_app
from coordinator.options import AsJson, Home, Key, Url
from coordinator.policy.documents import AdjustmentDocument, AdjustmentText, Leg, write_document
from coordinator.policy.operator_keyfile import make_key, public_key_of
from coordinator.policy_cli import (
    Document,
    KeyFile,
    SignAs,
    errors_shown,
    print_json,
    send,
    sign_file,
    umlx_of,
)
from coordinator.terminal import Terminal, show_rows

operators_app = typer.Typer(help="Operators: their keys, and whom they allow what.", no_args_is_help=True)
key_app = typer.Typer(help="Whose signatures count, on the coordinator's own machine.", no_args_is_help=True)
adjust_app = typer.Typer(help="Correct the books: two operators sign.", no_args_is_help=True)
operators_app.add_typer(key_app, name="key")
ledger_app.add_typer(adjust_app, name="adjust")
out = Terminal()


@operators_app.command()
def keygen(file: Annotated[Path, typer.Argument(help="Where to keep the private key.")]) -> None:
    """Make an operator's key, on the operator's own machine. Prints the public key."""
    with errors_shown():
        key = make_key(file)
    out.print(public_key_of(key), highlight=False)


# One public key in 64 begins with a hyphen; it is no option.
@key_app.command("add", context_settings={"ignore_unknown_options": True})
def key_add(
    name: Annotated[str, typer.Argument(help="The operator's name.")],
    public_key: Annotated[str, typer.Argument(help="The public key that 'keygen' printed.")],
    home: Home = None,
) -> None:
    """Let an operator sign budgets, rates and corrections."""
    with coordinator_here(home) as (database, _):
        from coordinator.policy.operators import OperatorError, add_operator_key

        try:
            with database.write() as session:
                revoked = add_operator_key(session, name, public_key, now_us=database.now_us(session))
        except OperatorError as error:
            raise failed(str(error)) from None
    out.print(f"{name} may sign", highlight=False)
    if revoked:
        out.print(f"The keys of the local network were revoked, with their budgets: {', '.join(revoked)}")


@key_app.command("list")
def key_list(home: Home = None, as_json: AsJson = False) -> None:
    """Show the operators' keys."""
    with coordinator_here(home) as (database, _):
        from coordinator.policy.operators import operator_keys

        with database.read() as session:
            rows = [
                {
                    "name": row.name,
                    "public_key": row.public_key,
                    "added_us": row.added_us,
                    "revoked_us": row.revoked_us,
                }
                for row in operator_keys(session)
            ]
    if as_json:
        print_json(rows)
        return
    shown = [
        (str(row["name"]), str(row["public_key"]), "may sign" if row["revoked_us"] is None else "revoked")
        for row in rows
    ]
    show_rows(out, ("operator", "public key", ""), shown)


@key_app.command("revoke")
def key_revoke(name: Annotated[str, typer.Argument(help="The operator's name.")], home: Home = None) -> None:
    """Let an operator's signatures count no more, earlier ones too."""
    with coordinator_here(home) as (database, _):
        from coordinator.policy.operators import OperatorError, revoke_operator_key

        try:
            with database.write() as session:
                revoke_operator_key(session, name, now_us=database.now_us(session))
        except OperatorError as error:
            raise failed(str(error)) from None
    out.print(f"{name} may sign no more; what {name} signed needs another operator's signature")


@operators_app.command()
def commons(
    account: Annotated[str, typer.Argument(help="An account's name or id.")],
    stop: Annotated[bool, typer.Option("--stop", help="Take it back.")] = False,
    home: Home = None,
) -> None:
    """Allow an account to ask for public work, which the availability pool pays for."""
    with coordinator_here(home) as (database, _):
        from sqlalchemy import select

        from coordinator.accounts.models import Account

        with database.write() as session:
            is_meant = (Account.id == account) | (Account.name == account)
            row = session.scalars(select(Account).where(is_meant)).first()
            if row is None:
                raise failed(f"no account is named {account!r}")
            row.may_ask_commons = not stop
    out.print(f"{account} may {'not ' if stop else ''}ask for public work", highlight=False)


# -- corrections ---------------------------------------------------------------------------------


@adjust_app.command("draft")
def adjust_draft(
    file: Annotated[Path, typer.Argument(help="Where to write the draft.")],
    source: Annotated[str, typer.Option("--from", help="The ledger account that gives, as user:acct_….")],
    target: Annotated[str, typer.Option("--to", help="The ledger account that gets.")],
    amount: Annotated[str, typer.Option("--mlx", help="How much.")],
    reason: Annotated[str, typer.Option("--reason", help="What was wrong; it stays in the ledger.")],
    first: Annotated[str, typer.Option("--operator", help="The operator who signs first.")],
    second: Annotated[str, typer.Option("--and", help="The operator who signs second.")],
    reference: Annotated[str, typer.Option("--reference", help="What it corrects, as a job's id.")] = "",
) -> None:
    """Write a correction to be signed by the two operators named. Nothing is sent."""
    if file.exists():
        raise failed(f"{file} exists already; name another file")
    umlx = umlx_of(amount, "--mlx")
    try:
        text = AdjustmentText(
            id=str(uuid4()),
            reference=reference,
            legs=[
                Leg(account=source, amount_umlx=str(-umlx)),
                Leg(account=target, amount_umlx=str(umlx)),
            ],
            operators=[first, second],
            reason=reason,
        )
    except ValueError as error:
        raise failed(str(error).replace("\n", " ")) from None
    with errors_shown():
        document = AdjustmentDocument(adjustment=text)
        _ = document.message
        write_document(file, document)
    out.print(
        f"wrote {file}; next: mlx-network ledger adjust sign {file} --key KEYFILE --as NAME", soft_wrap=True
    )


@adjust_app.command("sign")
def adjust_sign(file: Document, key: KeyFile, name: SignAs) -> None:
    """Sign a correction, offline."""
    sign_file(file, key, name)


@adjust_app.command("submit")
def adjust_submit(file: Document, url: Url = None, api_key: Key = None, as_json: AsJson = False) -> None:
    """Send a correction in that both operators have signed."""
    found = send("/v1/ledger/adjustments", file, "adjustment", url, api_key)
    if as_json:
        print_json(found)
    else:
        out.print(
            f"corrected by entry {found['seq']}; keep {file}: the ledger has its digest", soft_wrap=True
        )
