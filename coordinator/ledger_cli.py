"""`mlx-network ledger`: export the books, check an export, show checkpoints.

`verify` needs the base install only; the others work on the coordinator's own machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from coordinator.client import Client, ClientError, default_home, find_access
from coordinator.options import AsJson, Home, Key, Url
from coordinator.statements_cli import mlx as amount_text
from coordinator.statements_cli import umlx_of
from coordinator.terminal import Terminal
from ledger.notes import NoteError, VerifierKey

if TYPE_CHECKING:
    from coordinator.db import Database
    from coordinator.settings import Settings

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

ledger_app = typer.Typer(
    help="The books: export them, check an export, see what is signed.", no_args_is_help=True
)
out = Terminal()
err = Terminal(stderr=True)


@ledger_app.command()
def export(
    file: Annotated[Path, typer.Argument(help="Where to write; '-' is standard output.")], home: Home = None
) -> None:
    """Write the whole journal, up to a checkpoint that is signed now."""
    with coordinator_here(home) as (database, settings):
        from coordinator.books import connection_to, sign_checkpoint_now
        from ledger.export import NothingToExport, export_lines

        _ = sign_checkpoint_now(database, settings)
        try:
            lines = export_lines(lambda: connection_to(database))
        except NothingToExport:
            raise failed("the ledger is empty; there is nothing to export yet") from None
        if str(file) == "-":
            for line in lines:
                sys.stdout.buffer.write(line)
            return
        # Never half a file under the name that was asked for.
        unfinished = file.with_name(f"{file.name}.part")
        with unfinished.open("wb") as target:
            target.writelines(lines)
            target.flush()
            os.fsync(target.fileno())
        unfinished.replace(file)
        err.print(f"wrote {file}; check it with: mlx-network ledger verify {file} --key KEY", highlight=False)


@ledger_app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="An export.")],
    key: Annotated[str, typer.Option("--key", help="The ledger's public key, or a file with it.")],
    as_json: AsJson = False,
) -> None:
    """Check an export offline: hashes, signatures, sums, balances and holds."""
    from ledger.verify import Verified, verify_export

    try:
        found = verify_export(file, _read_key(key))
    except OSError as error:
        raise failed(f"{error.filename or file}: {error.strerror}") from None
    if isinstance(found, Verified):
        facts: dict[str, Any] = asdict(found) | {"root": found.root.hex(), "head": found.head.hex()}
        if as_json:
            _print_json({"sound": True, **facts})
        else:
            out.print(
                f"[green]sound[/green]: {found.size:,} entries of {found.origin}, {found.postings:,} postings, "
                f"{found.accounts:,} accounts that sum to zero, root {found.root.hex()}",
                highlight=False,
                soft_wrap=True,
            )
        return
    if as_json:
        _print_json({"sound": False, "faults": [asdict(fault) for fault in found]})
    else:
        for fault in found:
            place = "the file" if fault.seq is None else f"entry {fault.seq}"
            out.print(
                f"[red]{place}[/red] (line {fault.line}): {fault.rule}: {fault.detail}",
                highlight=False,
                soft_wrap=True,
            )
    raise typer.Exit(EXIT_FAILED)


@ledger_app.command()
def checkpoint(home: Home = None) -> None:
    """Sign the ledger as it is now and print the newest checkpoint."""
    with coordinator_here(home) as (database, settings):
        from coordinator.books import sign_checkpoint_now
        from ledger import checkpoints

        _ = sign_checkpoint_now(database, settings)
        with database.read() as session:
            latest = checkpoints.latest(session.connection())
        if latest is None:
            raise failed("the ledger is empty; there is nothing to sign yet")
        sys.stdout.write(latest.note)


@ledger_app.command("key")
def show_key(home: Home = None) -> None:
    """Print the public key that checkpoints and exports are verified with."""
    _require_coordinator()
    from coordinator.books import ledger_signer
    from coordinator.settings import Settings

    settings = Settings(home=home or default_home())
    if not settings.home.is_dir():
        raise failed(f"{settings.home} holds no coordinator; name its folder with --home")
    try:
        sys.stdout.write(f"{ledger_signer(settings).key}\n")
    except (NoteError, OSError) as error:
        raise failed(str(error)) from None


@ledger_app.command()
def reconcile(home: Home = None, as_json: AsJson = False) -> None:
    """Replay the whole journal and compare balances, holds, chain, tree and checkpoints with it."""
    with coordinator_here(home) as (database, _):
        from ledger import statements

        with database.read() as session:
            drifts = statements.reconcile(session.connection())
    if as_json:
        _print_json({"sound": not drifts, "drifts": [asdict(drift) for drift in drifts]})
    else:
        for drift in drifts:
            out.print(f"[red]{drift.subject}[/red]: {drift.rule}: {drift.found}, not {drift.expected}")
        if not drifts:
            out.print("[green]sound[/green]")
    if drifts:
        raise typer.Exit(EXIT_FAILED)


@ledger_app.command()
def refund(
    job_id: Annotated[str, typer.Argument(help="The job whose charge is given back.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it stands in the journal for ever.")],
    mlx: Annotated[
        str | None, typer.Option("--mlx", help="How much, as 0.25; without it all that is left.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Your own word for this refund; again, it moves nothing.")
    ] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Give a job's charge back to who paid it, from its owners and the treasury. For operators."""
    body: dict[str, Any] = {"job_id": job_id, "reason": reason}
    headers = {"Idempotency-Key": key or str(uuid4())}
    try:
        if mlx is not None:
            body["amount_umlx"] = str(umlx_of(mlx))
        with closing(Client(find_access(url, api_key))) as client:
            done = client.post("/v1/ledger/refunds", body, headers=headers)
    except ValueError as error:
        raise failed(f"--mlx: {error}", EXIT_USAGE) from None
    except ClientError as error:
        raise failed(str(error)) from None
    if as_json:
        _print_json(done)
        return
    out.print(f"gave back {amount_text(done['refunded_umlx'])} MLX of {job_id}", highlight=False)
    for leg in done["from"]:
        out.print(f"  {amount_text(leg['amount_umlx'])} from {leg['account']}", highlight=False)
    if done["owed_umlx"] != "0":
        out.print(f"{amount_text(done['owed_umlx'])} MLX could not be had from anybody", highlight=False)


def _read_key(text: str) -> VerifierKey:
    """A key given as text or as a file's name."""
    path = Path(text)
    try:
        if len(text) < 256 and path.is_file():
            text = path.read_text("utf-8")
        return VerifierKey.parse(text)
    except (NoteError, OSError, ValueError) as error:
        raise failed(f"--key: {error}", EXIT_USAGE) from None


@contextmanager
def coordinator_here(home: Path | None) -> Generator[tuple[Database, Settings]]:
    """The database of the coordinator in `home`, with its faults shown as one line."""
    _require_coordinator()
    from coordinator.db import Database, DatabaseBusy, DatabaseFull, DatabaseUnavailable, make_engine, migrate
    from coordinator.settings import Settings
    from ledger.book import LedgerDamaged

    settings = Settings(home=home or default_home())
    if settings.database_url is None and not settings.home.is_dir():
        raise failed(f"{settings.home} holds no coordinator; name its folder with --home")
    try:
        database = Database(make_engine(settings.sqlalchemy_url))
        try:
            migrate(database.engine)
            yield database, settings
        finally:
            database.close()
    except (DatabaseBusy, DatabaseFull, DatabaseUnavailable, LedgerDamaged, NoteError, OSError) as error:
        raise failed(str(error)) from None


def _require_coordinator() -> None:
    if find_spec("sqlalchemy") is None or find_spec("alembic") is None:
        raise failed("this needs the coordinator: pip install 'mlx-network[coordinator]'")


def failed(message: str, code: int = EXIT_FAILED) -> typer.Exit:
    err.print(f"[red]error:[/red] {message}", highlight=False, soft_wrap=True)
    return typer.Exit(code)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
