"""The commands for what operators sign together, and for giving tokens, as people type them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner, Result

from coordinator.cli import app
from coordinator.home import make_account
from coordinator.policy.operator_keyfile import KeyFileError, make_key, public_key_of, read_key
from ledger.ratecard import CARD, FeeRates
from tests.fixtures.coordinator import POOR_UMLX, RICH_UMLX, Coordinator
from tests.integration.policies import MLX, OPERATORS, assert_sound, records

pytestmark = pytest.mark.anyio

Run = Callable[..., Awaitable[Result]]
OTHER_KEY = public_key_of(OPERATORS["omar"])


@pytest.fixture
def run(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, sam: httpx2.AsyncClient) -> Run:
    """Runs `mlx-network` for a person; what must not fail says so when it does."""
    secret = coordinator.settings.database_url
    assert secret is not None
    monkeypatch.setenv("MLXNET_DATABASE_URL", secret.get_secret_value())
    monkeypatch.setenv("MLXNET_URL", coordinator.url)
    monkeypatch.setenv("MLXNET_HOME", str(coordinator.settings.home))
    monkeypatch.setenv("COLUMNS", "300")

    async def go(who: str, *arguments: str, exit_code: int = 0) -> Result:
        monkeypatch.setenv("MLXNET_API_KEY", coordinator.people[who].key)
        done = await asyncio.to_thread(CliRunner().invoke, app, list(arguments))
        assert done.exit_code == exit_code, f"{arguments}: {done.output} {done.exception!r}"
        return done

    return go


@pytest.fixture
async def keys(run: Run, tmp_path: Path) -> dict[str, str]:
    """Key files of two operators whose keys are added: what to give to a `sign`."""
    files: dict[str, str] = {}
    for name in ("olga", "otto"):
        files[name] = str(tmp_path / f"{name}.key")
        public_key = (await run("Operator", "operators", "keygen", files[name])).stdout.strip()
        _ = await run("Operator", "operators", "key", "add", name, public_key)
    return files


async def sign_and_send(run: Run, keys: dict[str, str], group: list[str], file: Path, verb: str) -> Result:
    """Both sign; one signature alone is refused."""
    _ = await run("Operator", *group, "sign", str(file), "--key", keys["olga"], "--as", "olga")
    alone = await run("Operator", *group, verb, str(file), exit_code=1)
    assert "1 valid signatures" in alone.stderr
    _ = await run("Operator", *group, "sign", str(file), "--key", keys["otto"], "--as", "otto")
    return await run("Operator", *group, verb, str(file))


async def test_from_two_keys_to_a_voucher_redeemed(
    coordinator: Coordinator, run: Run, keys: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "budget.json"
    draft = ["budget", "draft", str(file), "--purpose", "vouchers", "--cap-mlx", "12.5"]
    _ = await run("Operator", *draft, "--reason", "A workshop", "--days", "10")
    done = await sign_and_send(run, keys, ["budget"], file, "submit")
    assert "12.500000 MLX, signed by olga, otto" in done.stdout
    shown = (await run("Sam", "budget", "list")).stdout
    assert "vouchers" in shown and "12.500000" in shown and "olga, otto" in shown

    issued = await run("Operator", "voucher", "issue", "--mlx", "5", "--days", "3", "--count", "2")
    codes = issued.stdout.split()
    assert len(codes) == 2 and all(re.fullmatch(r"MLX(-[A-Z2-9]{6}){4}", code) for code in codes)
    assert "5.000000 MLX are yours" in (await run("Pat", "voucher", "redeem", codes[0])).stdout
    taken = await run("Sam", "voucher", "redeem", codes[0], exit_code=1)
    assert "it was redeemed before" in taken.stderr
    refused = await run("Operator", "voucher", "issue", "--mlx", "2.6", exit_code=1)
    assert "cap_reached" in refused.stderr
    assert coordinator.posted("Pat") == POOR_UMLX + 5 * MLX
    _ = await run("Operator", "operators", "key", "revoke", "otto")
    void = await run("Sam", "voucher", "redeem", codes[1], exit_code=1)
    assert "its budget is void" in void.stderr
    listed = json.loads((await run("Operator", "operators", "key", "list", "--json")).stdout)
    assert {row["name"] for row in listed if row["revoked_us"] is None} == {"olga"}
    assert_sound(coordinator.database)


async def test_a_gift(coordinator: Coordinator, run: Run) -> None:
    for _ in range(2):
        done = await run("Sam", "give", "Pat", "0.25", "--note", "thanks", "--once", "lunch")
        assert "gave 0.250000 MLX to Pat" in done.stdout
    assert coordinator.posted("Pat") == POOR_UMLX + MLX // 4
    assert coordinator.posted("Sam") == RICH_UMLX - MLX // 4
    for amount in ("0", "-1", "1e-7", "nan", "x", "0.0000001"):
        _ = await run("Sam", "give", "--", "Pat", amount, exit_code=2)
    nobody = await run("Sam", "give", "Nobody", "1", exit_code=1)
    assert "no account has the name or id 'Nobody'" in nobody.stderr
    assert coordinator.posted("Sam") == RICH_UMLX - MLX // 4


async def test_new_rates_and_a_correction(
    coordinator: Coordinator, run: Run, keys: dict[str, str], tmp_path: Path
) -> None:
    card, file = tmp_path / "card.json", tmp_path / "rates.json"
    card.write_text(replace(CARD, version=2, fees=FeeRates(fee_ppm=90_000)).body)
    _ = await run("Operator", "rates", "draft", str(card), str(file), "--effective", "2199-01-01")
    done = await sign_and_send(run, keys, ["rates"], file, "announce")
    assert "rate card 2 comes on 2199-01-01 00:00 UTC" in done.stdout
    assert "fees.fee_ppm: 100000 now, 90000 then" in done.stdout
    assert "fees.fee_ppm = 100000" in (await run("Sam", "rates", "show")).stdout
    assert "difference: 0.000000 MLX" in (await run("Ada", "rates", "effect")).stdout
    assert "rate card 2 comes on 2199-01-01" in (await run("Sam", "tokens")).stdout

    sam, ada = (coordinator.people[name].ledger_account for name in ("Sam", "Ada"))
    fix = tmp_path / "fix.json"
    draft = ["ledger", "adjust", "draft", str(fix), "--from", sam, "--to", ada, "--mlx", "1"]
    _ = await run("Operator", *draft, "--reason", "Paid twice", "--operator", "olga", "--and", "otto")
    _ = await sign_and_send(run, keys, ["ledger", "adjust"], fix, "submit")
    assert (coordinator.posted("Sam"), coordinator.posted("Ada")) == (RICH_UMLX - MLX, MLX)
    wrong = await run("Operator", "budget", "submit", str(fix), exit_code=1)
    assert "of kind adjustment, not budget" in wrong.stderr
    assert any(record.startswith("adjustment:") for record in records(coordinator.database))
    assert_sound(coordinator.database)


async def test_mistakes_are_explained(run: Run, keys: dict[str, str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"kind": "budget", "budget": {"id": "x"}}')
    draft = ["budget", "draft", str(tmp_path / "b"), "--cap-mlx", "1", "--reason", "r"]
    sign = ["--key", keys["olga"], "--as", "olga"]
    for arguments, exit_code, said in (
        ([*draft, "--purpose", "gifts"], 2, "grants, availability, vouchers"),
        (["operators", "keygen", keys["olga"]], 1, "never overwritten"),
        (["operators", "key", "add", "olga", OTHER_KEY], 1, "new name"),
        (["operators", "key", "add", "omar", "A" * 43], 1, "the 43 characters"),
        (["operators", "key", "revoke", "nobody"], 1, "no operator's key in use"),
        (["budget", "sign", str(bad), *sign], 1, "budget.id"),
        (["budget", "sign", str(tmp_path / "none"), *sign], 1, "No such file"),
        (["budget", "sign", keys["olga"], *sign], 1, "kind"),
        (["operators", "commons", "Nobody"], 1, "no account is named"),
    ):
        done = await run("Operator", *arguments, exit_code=exit_code)
        assert said in done.stderr, f"{arguments}: {done.stderr}"


def test_a_key_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "olga.key"
    made = make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert public_key_of(read_key(path)) == public_key_of(made)
    with pytest.raises(KeyFileError, match="never overwritten"):
        make_key(path)
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="can be read by others"):
        read_key(path)
    other = tmp_path / "other.key"
    other.touch(0o600)
    with pytest.raises(KeyFileError, match="holds no operator's key"):
        read_key(other)


async def test_a_grant_draws_on_the_operators_budget_once_there_are_operators(
    coordinator: Coordinator, run: Run, keys: dict[str, str], tmp_path: Path
) -> None:
    home = coordinator.settings.home
    refused = await run("Operator", "accounts", "create", "Eve", "--grant", "5", exit_code=1)
    assert "no budget for grants is in force" in refused.stderr
    file = tmp_path / "grants.json"
    draft = ["budget", "draft", str(file), "--purpose", "grants", "--cap-mlx", "5", "--reason", "Friends"]
    _ = await run("Operator", *draft)
    _ = await sign_and_send(run, keys, ["budget"], file, "submit")
    _ = await run("Operator", "accounts", "create", "Eve", "--grant", "5")
    account, _key = await asyncio.to_thread(make_account, home, "Fay", grant_umlx=0, is_operator=False)
    assert account.startswith("acct_")
    refused = await run("Operator", "accounts", "create", "Gus", "--grant", "1", exit_code=1)
    assert "cap_reached" in refused.stderr


def test_a_grant_in_a_fresh_home_needs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLXNET_DATABASE_URL", raising=False)
    found: dict[str, Any] = {}
    for name in ("Ann", "Bea"):
        done = CliRunner().invoke(
            app, ["accounts", "create", name, "--grant", "2.5", "--home", str(tmp_path), "--json"]
        )
        assert done.exit_code == 0, done.output
        found[name] = json.loads(done.stdout)["account"]
    assert sorted(path.name for path in (tmp_path / "operators").iterdir()) == ["local-1.key", "local-2.key"]
    assert len(set(found.values())) == 2


async def test_a_public_key_that_begins_with_a_hyphen_can_be_added(run: Run) -> None:
    """Base64url has a hyphen: so does one key in 64 begin."""
    public_key = "x"
    while not public_key.startswith("-"):
        public_key = public_key_of(Ed25519PrivateKey.generate())
    _ = await run("Operator", "operators", "key", "add", "olga", public_key)
    assert public_key in (await run("Operator", "operators", "key", "list", "--json")).stdout
