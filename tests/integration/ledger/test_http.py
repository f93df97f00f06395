"""The ledger over HTTP and on the command line, with a real coordinator on both databases."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from coordinator.books import sign_checkpoint_now
from coordinator.cli import app
from coordinator.db import database_now_us
from coordinator.upkeep import sign_checkpoint
from ledger import book
from ledger.commands import Capture, OpenHold, Record, Transfer
from ledger.merkle import consistency_holds, inclusion_holds
from ledger.models import journal
from ledger.notes import VerifierKey, open_checkpoint
from ledger.verify import Verified, verify_export
from tests.fixtures.coordinator import Coordinator

HOUR_US = 3_600_000_000


def pay(coordinator: Coordinator, amount_umlx: int) -> None:
    """Sam pays Ada, by hold and capture; and there is a record that concerns nobody."""
    sam, ada = (coordinator.people[name].ledger_account for name in ("Sam", "Ada"))
    with coordinator.database.write() as session:
        now_us = database_now_us(session)
        hold = OpenHold(id=uuid4(), account_id=sam, amount_umlx=amount_umlx, expires_us=now_us + HOUR_US)
        book.apply(
            session.connection(),
            [
                hold,
                Capture(id=uuid4(), hold_id=hold.id, pays=((ada, amount_umlx - 1), ("fee", 1))),
                Record(id=uuid4(), subject="card:tiny", content_sha256="0" * 64),
            ],
            now_us=now_us,
        )


def entry_count(coordinator: Coordinator) -> int:
    """Entries so far: there are some as soon as there is a coordinator with people."""
    with coordinator.database.read() as session:
        return session.execute(select(func.count()).select_from(journal)).scalar_one()


@pytest.fixture
def public(coordinator: Coordinator) -> Generator[httpx2.Client]:
    with httpx2.Client(base_url=coordinator.url, trust_env=False, timeout=30.0) as client:
        yield client


def get(client: httpx2.Client, path: str, who: str | None = None, **params: Any) -> httpx2.Response:
    return client.get(path, params=params, headers={"Authorization": f"Bearer {who}"} if who else {})


def digests(encoded: list[str]) -> list[bytes]:
    return [base64.b64decode(text) for text in encoded]


def test_everyone_can_prove_an_entry_and_that_history_stands(
    coordinator: Coordinator, public: httpx2.Client
) -> None:
    key = VerifierKey.parse(get(public, "/v1/ledger/key").text)
    assert sign_checkpoint_now(coordinator.database, coordinator.settings) is not None
    old = open_checkpoint(get(public, "/v1/ledger/checkpoint").text, key)
    for amount in range(5, 305):
        pay(coordinator, amount)
    assert sign_checkpoint_now(coordinator.database, coordinator.settings) is not None
    new = open_checkpoint(get(public, "/v1/ledger/checkpoint").text, key)
    assert (old.origin, new.size) == (key.name, old.size + 900)

    found = public.get(f"/v1/ledger/consistency?from={old.size}&to={new.size}").json()
    assert consistency_holds(old.size, old.root, new.size, new.root, digests(found["path"]))
    for seq in (1, 255, 256, 257, new.size):
        found = get(public, "/v1/ledger/inclusion", seq=seq).json()
        leaf, path = base64.b64decode(found["leaf"]), digests(found["path"])
        assert inclusion_holds(leaf, seq - 1, new.size, path, new.root)
    found = get(public, "/v1/ledger/inclusion", seq=1, size=old.size).json()
    assert inclusion_holds(base64.b64decode(found["leaf"]), 0, old.size, digests(found["path"]), old.root)


@pytest.mark.parametrize(
    ("path", "params", "status", "param"),
    [
        ("inclusion", {"seq": 0}, 400, "seq"),
        ("inclusion", {"seq": "x"}, 400, "seq"),
        ("inclusion", {"seq": "end+2", "size": "end+1"}, 400, "size"),
        ("inclusion", {"seq": "end+1"}, 400, "seq"),
        ("inclusion", {"seq": 2, "size": 1}, 400, "seq"),
        ("inclusion", {}, 400, "seq"),
        ("consistency", {"from": "end+1"}, 400, "from"),
        ("consistency", {"from": 1, "to": "end+1"}, 400, "to"),
        ("consistency", {"from": 0}, 400, "from"),
        ("consistency", {"from": 2**80}, 400, "from"),
    ],
)
def test_bad_questions_are_named(
    coordinator: Coordinator,
    public: httpx2.Client,
    path: str,
    params: dict[str, Any],
    status: int,
    param: str,
) -> None:
    signed = sign_checkpoint_now(coordinator.database, coordinator.settings)
    assert signed is not None
    beyond = {f"end+{steps}": signed.size + steps for steps in (1, 2)}
    asked: dict[str, Any] = {name: beyond.get(value, value) for name, value in params.items()}
    answer = public.get(f"/v1/ledger/{path}", params=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


def test_before_the_first_checkpoint_one_is_told_to_wait(public: httpx2.Client) -> None:
    for path in ("checkpoint", "inclusion?seq=1", "consistency?from=1"):
        answer = public.get(f"/v1/ledger/{path}")
        assert (answer.status_code, answer.headers["retry-after"]) == (404, "60")


def test_an_account_gets_its_own_entries_with_proofs(coordinator: Coordinator, public: httpx2.Client) -> None:
    sam, ada, bo = (coordinator.people[name] for name in ("Sam", "Ada", "Bo"))
    for amount in (100, 200, 300):
        pay(coordinator, amount)
    sign_checkpoint_now(coordinator.database, coordinator.settings)
    pay(coordinator, 400)
    key = VerifierKey.parse(get(public, "/v1/ledger/key").text)
    kinds: dict[str, list[str]] = {}
    for person in (sam, ada):
        found = get(public, "/v1/ledger/entries", person.key).json()
        signed = open_checkpoint(found["checkpoint"], key)
        kinds[person.name] = [json.loads(item["body"])["kind"] for item in found["data"]]
        for item in found["data"]:
            leaf = hashlib.sha256(b"\x00" + item["entry"].encode()).digest()
            entry, body = json.loads(item["entry"]), item["body"].encode()
            assert leaf == base64.b64decode(item["leaf"])
            assert (entry[0], entry[5]) == (item["seq"], hashlib.sha256(body).hexdigest())
            assert person.ledger_account in item["entry"] + item["body"]
            if item["seq"] <= signed.size:
                path = digests(item["path"])
                assert inclusion_holds(leaf, item["seq"] - 1, signed.size, path, signed.root)
            else:
                assert "path" not in item
    assert kinds == {"Sam": ["mint", *["open_hold", "capture"] * 4], "Ada": ["capture"] * 4}
    assert get(public, "/v1/ledger/entries", bo.key).json()["data"] == []

    first = get(public, "/v1/ledger/entries", sam.key, limit=2, proofs="none").json()
    assert first["has_more"] and "path" not in first["data"][0]
    rest = get(public, "/v1/ledger/entries", sam.key, since_seq=first["data"][-1]["seq"]).json()
    assert len(rest["data"]) == 7 and not rest["has_more"]


def test_only_those_concerned_may_ask(coordinator: Coordinator, public: httpx2.Client) -> None:
    assert get(public, "/v1/ledger/entries").status_code == 401
    assert get(public, "/v1/ledger/export").status_code == 401
    assert get(public, "/v1/ledger/export", coordinator.people["Sam"].key).status_code == 403


def test_an_operator_exports_what_anyone_can_verify(
    coordinator: Coordinator, public: httpx2.Client, tmp_path: Path
) -> None:
    before = entry_count(coordinator)
    for amount in range(2, 402):
        pay(coordinator, amount)
    answer = get(public, "/v1/ledger/export", coordinator.people["Operator"].key)
    assert answer.status_code == 200
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(answer.content)
    key = VerifierKey.parse(get(public, "/v1/ledger/key").text)
    found = verify_export(path, key)
    assert isinstance(found, Verified) and found.size == before + 1200

    changed = answer.content.replace(b'"capture', b'"capturf', 1)
    path.write_bytes(changed)
    faults = verify_export(path, key)
    assert isinstance(faults, list) and faults[0].seq == before + 2


def test_the_chore_signs_when_it_is_due_and_stands_back_for_another_key(coordinator: Coordinator) -> None:
    database, settings = coordinator.database, coordinator.settings
    assert sign_checkpoint(database, settings) == 1
    assert sign_checkpoint(database, settings) == 0
    (settings.home / "ledger.key").unlink()
    pay(coordinator, 10)
    assert sign_checkpoint_now(database, settings) is None
    assert "ledger_key_differs" in coordinator.logs.getvalue()


# -- the command line ----------------------------------------------------------------------------


@pytest.fixture
def home(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Path:
    secret = coordinator.settings.database_url
    assert secret is not None
    monkeypatch.setenv("MLXNET_DATABASE_URL", secret.get_secret_value())
    return coordinator.settings.home


def test_export_verify_and_one_flipped_byte(coordinator: Coordinator, home: Path, tmp_path: Path) -> None:
    before = entry_count(coordinator)
    pay(coordinator, 50)
    run, file = CliRunner(), tmp_path / "books.jsonl"
    assert run.invoke(app, ["ledger", "export", str(file), "--home", str(home)]).exit_code == 0
    key = run.invoke(app, ["ledger", "key", "--home", str(home)]).stdout
    (tmp_path / "key").write_text(key)
    sound = run.invoke(app, ["ledger", "verify", str(file), "--key", str(tmp_path / "key")])
    assert sound.exit_code == 0 and "sound" in sound.stdout
    note = run.invoke(app, ["ledger", "checkpoint", "--home", str(home)]).stdout
    assert open_checkpoint(note, VerifierKey.parse(key)).size == before + 3
    assert run.invoke(app, ["ledger", "reconcile", "--home", str(home)]).exit_code == 0

    content = bytearray(file.read_bytes())
    content[content.index(b"open_hold")] ^= 1
    file.write_bytes(content)
    damaged = run.invoke(app, ["ledger", "verify", str(file), "--key", key.strip(), "--json"])
    assert damaged.exit_code == 1
    assert json.loads(damaged.stdout)["faults"][0]["seq"] == before + 1


def test_mistakes_on_the_command_line_are_explained(home: Path, tmp_path: Path) -> None:
    run = CliRunner()
    key = run.invoke(app, ["ledger", "key", "--home", str(home)]).stdout.strip()
    for arguments, words in (
        (["verify", str(tmp_path / "none"), "--key", key], "No such file"),
        (["verify", str(tmp_path / "none"), "--key", "nonsense"], "--key"),
    ):
        done = run.invoke(app, ["ledger", *arguments])
        assert done.exit_code != 0 and words in done.stderr, done.output


def test_entries_that_are_not_signed_yet_come_without_a_proof(
    coordinator: Coordinator, public: httpx2.Client
) -> None:
    bo, sam = coordinator.people["Bo"], coordinator.people["Sam"]
    with coordinator.database.write() as session:
        book.apply(
            session.connection(),
            [Transfer(id=uuid4(), source=sam.ledger_account, target=bo.ledger_account, amount_umlx=7)],
            now_us=database_now_us(session),
        )
    found = get(public, "/v1/ledger/entries", bo.key).json()
    assert [json.loads(item["body"])["kind"] for item in found["data"]] == ["transfer"]
    assert found["checkpoint"] is None
