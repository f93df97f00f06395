"""Commands refuse bad input when they are made, and their bodies and ids never change."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from ledger.commands import (
    Adjust,
    Capture,
    Command,
    Mint,
    OpenHold,
    Record,
    Refund,
    Transfer,
    VoidHold,
    account_kind,
    settlement_id,
)

ID = UUID(int=7)
LEGS = (("user:a", -5), ("user:b", 5))
TWO = ("Ann Lee", "Bob")


def adjust(
    legs: tuple[tuple[str, int], ...] = LEGS, operators: tuple[str, ...] = TWO, reason: str = "typing error"
) -> Adjust:
    return Adjust(id=ID, legs=legs, operators=operators, reason=reason)  # pyright: ignore[reportArgumentType]


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
        (lambda: adjust((("user:a", -5), ("user:b", 4))), "sum to zero"),
        (lambda: adjust((("user:a", 0), ("user:b", 0))), "legs"),
        (lambda: adjust((("user:a", -5), ("issuance", 5))), "issuance"),
        (lambda: adjust((("user:a", -5), ("user:a", 5))), "once"),
        (lambda: adjust((("user:a", -5), ("user:b", 4), ("fee", True))), "legs"),
        (lambda: adjust(()), "2 to 256"),
        (lambda: adjust(operators=("Ann", "ann")), "different"),
        (lambda: adjust(operators=("Ann",)), "two names"),
        (lambda: adjust(operators=("Ann", " ")), "two names"),
        (lambda: adjust(operators=("Ann", "Ann ")), "two names"),
        (lambda: adjust(reason=" "), "reason"),
        (lambda: adjust(reason="x" * 201), "reason"),
        (lambda: Record(id=ID, subject="node_1", content_sha256="0" * 64), "subject"),
        (lambda: Record(id=ID, subject="Node:1", content_sha256="0" * 64), "subject"),
        (lambda: Record(id=ID, subject="node_key:1", content_sha256="0" * 63), "content_sha256"),
        (lambda: Record(id=ID, subject="node_key:1", content_sha256="A" * 64), "content_sha256"),
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


def test_the_bodies_of_adjustments_and_records_are_fixed() -> None:
    assert adjust().body == (
        '{"id":"00000000-0000-0000-0000-000000000007","kind":"adjust","legs":[["user:a",-5],["user:b",5]],'
        '"operators":["Ann Lee","Bob"],"reason":"typing error","reference":""}'
    )
    record = Record(id=ID, subject="node_key:node_1", content_sha256="ab" * 32, reference="node_1")
    assert record.body == (
        f'{{"content_sha256":"{"ab" * 32}","id":"00000000-0000-0000-0000-000000000007","kind":"record",'
        '"reference":"node_1","subject":"node_key:node_1"}'
    )
    assert [adjust().digest.hex(), record.digest.hex()] == [
        "509eb3c58adf707397ae83bc8f6ee30fc6425edd04a1aa772223d4f79fb45bb3",
        "a263aac24b84544c6e75735e988d2af6c15d162e6d80557916a5623464a8d020",
    ]


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
