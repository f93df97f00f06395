"""Commands refuse bad input when they are made, and their bodies and ids never change."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from ledger.commands import (
    Capture,
    Command,
    Mint,
    OpenHold,
    Refund,
    Transfer,
    VoidHold,
    account_kind,
    settlement_id,
)

ID = UUID(int=7)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mint(id=ID, account_id="user:a", amount_umlx=0), "amount_umlx"),
        (lambda: Mint(id=ID, account_id="user:a", amount_umlx=-1), "amount_umlx"),
        (lambda: Mint(id=ID, account_id="user:a", amount_umlx=10**18 + 1), "amount_umlx"),
        (lambda: Mint(id=ID, account_id="user:a", amount_umlx=True), "amount_umlx"),
        (lambda: Mint(id=ID, account_id="issuance", amount_umlx=1), "account_id"),
        (lambda: Mint(id=ID, account_id="user:", amount_umlx=1), "malformed"),
        (lambda: Mint(id=ID, account_id="nobody", amount_umlx=1), "malformed"),
        (lambda: Mint(id=ID, account_id="user:a\n", amount_umlx=1), "malformed"),
        (lambda: Mint(id=ID, account_id="user:a", amount_umlx=1, reference="ü"), "reference"),
        (lambda: Mint(id=ID, account_id="user:a", amount_umlx=1, reference="x" * 201), "reference"),
        (lambda: Transfer(id=ID, source="user:a", target="user:a", amount_umlx=1), "differ"),
        (lambda: Transfer(id=ID, source="issuance", target="user:a", amount_umlx=1), "source"),
        (lambda: Transfer(id=ID, source="user:a", target="issuance", amount_umlx=1), "target"),
        (lambda: OpenHold(id=ID, account_id="user:a", amount_umlx=1, expires_us=-1), "expires_us"),
        (lambda: Capture(id=ID, hold_id=ID, pays=(("issuance", 1),)), "pays"),
        (lambda: Capture(id=ID, hold_id=ID, pays=(("user:a", -1),)), "pays"),
        (lambda: Capture(id=ID, hold_id=ID, pays=(("user:a", 1),) * 257), "256"),
        (lambda: Refund(id=ID, hold_id=ID, source="issuance", amount_umlx=1), "source"),
    ],
)
def test_bad_input_is_named(make: Callable[[], Command], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_the_body_is_canonical_and_its_digest_is_fixed() -> None:
    command = Capture(id=ID, hold_id=UUID(int=8), pays=(("user:b", 90), ("fee", 10)), reference="job_1")
    assert command.body == (
        '{"hold_id":"00000000-0000-0000-0000-000000000008","id":"00000000-0000-0000-0000-000000000007",'
        '"kind":"capture","pays":[["user:b",90],["fee",10]],"reference":"job_1"}'
    )
    assert command.digest.hex() == "2ec643540f7cd820a1c93e1d0908797f9dfab6159bf8084fb57be7cfca25575d"


def test_every_field_is_in_the_body() -> None:
    base = OpenHold(id=ID, account_id="user:a", amount_umlx=5, expires_us=9, reference="r")
    others = (
        OpenHold(id=UUID(int=8), account_id="user:a", amount_umlx=5, expires_us=9, reference="r"),
        OpenHold(id=ID, account_id="user:b", amount_umlx=5, expires_us=9, reference="r"),
        OpenHold(id=ID, account_id="user:a", amount_umlx=6, expires_us=9, reference="r"),
        OpenHold(id=ID, account_id="user:a", amount_umlx=5, expires_us=10, reference="r"),
        OpenHold(id=ID, account_id="user:a", amount_umlx=5, expires_us=9, reference="s"),
        VoidHold(id=ID, hold_id=ID, reference="r"),
    )
    assert len({base.digest, *(other.digest for other in others)}) == 7


def test_settlement_ids_are_fixed_and_differ_by_each_part() -> None:
    assert settlement_id("job_1", 1, "capture") == UUID("5901c6db-acdc-51ec-9dd4-e2f630efeab2")
    ids = {
        settlement_id("job_1", 1, "capture"),
        settlement_id("job_2", 1, "capture"),
        settlement_id("job_1", 2, "capture"),
        settlement_id("job_1", 1, "void"),
        settlement_id("job_1", 11, "capture"),
        settlement_id("job_11", 1, "capture"),
    }
    assert len(ids) == 6


def test_an_account_says_its_kind() -> None:
    assert [account_kind(name) for name in ("fee", "user:acct_1", "pool:availability")] == [
        "fee",
        "user",
        "pool",
    ]
