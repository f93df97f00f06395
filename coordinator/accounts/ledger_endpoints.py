"""The ledger in public: its key, checkpoints and proofs; own entries for accounts, all for operators.

Leaves and roots hide names, so proofs are public; whole entries go to those that they concern.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from coordinator import errors
from coordinator.accounts.models import Account
from coordinator.books import connection_to, ledger_signer, sign_checkpoint_now
from coordinator.errors import ApiError
from coordinator.http import audience, identify, require_operator, runtime_of
from coordinator.numbers import Whole
from coordinator.openai.shapes import dump
from ledger import checkpoints, journal, tree
from ledger.chain import leaf_text
from ledger.checkpoints import StoredCheckpoint
from ledger.export import NothingToExport, export_lines

router = APIRouter()

SIZE_MAX: Final = 2**62
NOTE_TYPE: Final = "text/plain; charset=utf-8"

Seq = Annotated[Whole, Query(ge=1, le=SIZE_MAX)]
Size = Annotated[Whole | None, Query(ge=1, le=SIZE_MAX)]


@router.get("/v1/ledger/key", openapi_extra=audience("public"))
def key(request: Request) -> Response:
    """The public key that checkpoints are verified with: one line, name+hash+base64."""
    return PlainTextResponse(f"{ledger_signer(runtime_of(request).settings).key}\n")


@router.get("/v1/ledger/checkpoint", openapi_extra=audience("public"))
def checkpoint(request: Request) -> Response:
    """The newest signed checkpoint, as a note."""
    with runtime_of(request).database.read() as session:
        return Response(_latest(session.connection()).note, media_type=NOTE_TYPE)


@router.get("/v1/ledger/inclusion", openapi_extra=audience("public"))
def inclusion(request: Request, seq: Seq, size: Size = None) -> Response:
    """The proof that entry `seq` is under the root over `size` entries (default: the newest signed)."""
    with runtime_of(request).database.read() as session:
        connection = session.connection()
        signed = _latest(connection)
        size = _within("size", size, signed)
        if seq > size:
            raise errors.invalid_value("seq", f"must be at most size, which is {size}")
        found = journal.page(connection, seq, seq)
        path = tree.inclusion_proof(connection, seq, size)
    return _json(
        {
            "object": "ledger.inclusion",
            "seq": seq,
            "size": size,
            "leaf": _base64(found[0].leaf),
            "path": [_base64(digest) for digest in path],
        }
    )


@router.get("/v1/ledger/consistency", openapi_extra=audience("public"))
def consistency(
    request: Request, old: Annotated[Whole, Query(alias="from", ge=1, le=SIZE_MAX)], to: Size = None
) -> Response:
    """The proof that the ledger of `from` entries is the beginning of that of `to` entries."""
    with runtime_of(request).database.read() as session:
        connection = session.connection()
        new = _within("to", to, _latest(connection))
        if old > new:
            raise errors.invalid_value("from", f"must be at most to, which is {new}")
        path = tree.consistency_proof(connection, old, new)
    return _json(
        {
            "object": "ledger.consistency",
            "from": old,
            "to": new,
            "path": [_base64(digest) for digest in path],
        }
    )


@router.get("/v1/ledger/entries", openapi_extra=audience("account"))
def entries(
    request: Request,
    since_seq: Annotated[Whole, Query(ge=0, le=SIZE_MAX)] = 0,
    limit: Annotated[Whole, Query(ge=1, le=500)] = 100,
    proofs: Literal["none", "inclusion"] = "inclusion",
) -> Response:
    """Whole entries that moved the caller's money or opened a hold on it, oldest first.

    `entry` and `body` are the very texts that were hashed; leaf = SHA-256(0x00 || entry), and
    `path` proves the leaf under `checkpoint`. Entries that are not signed yet have no path.
    """
    caller = identify(request)
    with runtime_of(request).database.read() as session:
        connection = session.connection()
        account = session.get_one(Account, caller.account_id)
        found = journal.touching(connection, account.ledger_account, since_seq, limit + 1)
        signed = checkpoints.latest(connection)
        provable = signed if proofs == "inclusion" else None
        data = _provable(connection, found[:limit], provable)
    return _json(
        {
            "object": "list",
            "account": account.ledger_account,
            "checkpoint": None if signed is None else signed.note,
            "data": data,
            "has_more": len(found) > limit,
        }
    )


@router.get("/v1/ledger/export", openapi_extra=audience("operator"))
def export(request: Request) -> Response:
    """The whole journal as lines that `mlx-network ledger verify` checks offline. For operators."""
    require_operator(identify(request))
    runtime = runtime_of(request)
    _ = sign_checkpoint_now(runtime.database, runtime.settings)
    try:
        lines = export_lines(lambda: connection_to(runtime.database))
    except NothingToExport:
        raise _no_checkpoint() from None
    headers = {"Content-Disposition": 'attachment; filename="ledger.jsonl"'}
    return StreamingResponse(_gathered(lines), media_type="application/jsonl", headers=headers)


def _gathered(lines: Iterator[bytes], part_bytes: int = 1 << 16) -> Iterator[bytes]:
    """The same bytes in larger parts: each costs a change of threads."""
    parts, size = list[bytes](), 0
    for line in lines:
        parts.append(line)
        size += len(line)
        if size >= part_bytes:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)


def _provable(
    connection: Connection, found: list[journal.StoredEntry], signed: StoredCheckpoint | None
) -> list[dict[str, Any]]:
    reader = tree.TreeReader(connection)
    data: list[dict[str, Any]] = []
    for stored in found:
        item: dict[str, Any] = {
            "seq": stored.entry.seq,
            "entry": leaf_text(stored.entry),
            "body": stored.body,
            "leaf": _base64(stored.leaf),
        }
        if signed is not None and stored.entry.seq <= signed.size:
            path = reader.inclusion_proof(stored.entry.seq, signed.size)
            item["path"] = [_base64(digest) for digest in path]
        data.append(item)
    return data


def _latest(connection: Connection) -> StoredCheckpoint:
    found = checkpoints.latest(connection)
    if found is None:
        raise _no_checkpoint()
    return found


def _no_checkpoint() -> ApiError:
    return ApiError(
        404,
        "checkpoint_not_found",
        "The ledger has no signed checkpoint yet. Try again in a minute.",
        type="not_found_error",
        retry_after_seconds=60,
    )


def _within(name: str, size: int | None, signed: StoredCheckpoint) -> int:
    if size is not None and size > signed.size:
        raise errors.invalid_value(name, f"must be at most {signed.size}, the newest checkpoint's size")
    return signed.size if size is None else size


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")


def _json(body: dict[str, Any]) -> Response:
    return Response(dump(body), media_type="application/json")
