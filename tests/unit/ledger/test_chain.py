"""Golden vectors of the chain: published heads must stay verifiable for ever."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from uuid import UUID

from ledger.chain import GENESIS_HEAD, Entry, leaf_of, next_head

ENTRY = Entry(
    seq=3,
    id=UUID(int=7),
    kind="capture",
    reference="job_1",
    recorded_us=1_800_000_000_000_000,
    request_digest=bytes(range(32)),
    result="posted",
    needed_umlx=None,
    available_umlx=None,
    legs=(("fee", 10), ("user:a", -100), ("user:b", 90)),
)


def test_the_leaf_is_the_hash_of_a_text_that_can_be_written_by_hand() -> None:
    text = (
        '[3,"00000000-0000-0000-0000-000000000007","capture","job_1",1800000000000000,'
        '"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f","posted",null,null,'
        '[["fee",10],["user:a",-100],["user:b",90]]]'
    )
    assert leaf_of(ENTRY) == hashlib.sha256(b"\x00" + text.encode()).digest()


def test_the_head_is_fixed() -> None:
    assert (
        next_head(GENESIS_HEAD, leaf_of(ENTRY)).hex()
        == "417d41d7c577e2ba148421e72fedc8a1c7498c9389b590ecc914d1bd7dce9eaf"
    )


def test_every_field_is_in_the_leaf() -> None:
    other = Entry(
        seq=4,
        id=UUID(int=8),
        kind="void_hold",
        reference="job_2",
        recorded_us=1,
        request_digest=bytes(32),
        result="hold_not_open",
        needed_umlx=1,
        available_umlx=2,
        legs=(("fee", 10), ("user:a", -10)),
    )
    changed = [replace(ENTRY, **{field.name: getattr(other, field.name)}) for field in fields(Entry)]
    assert len({leaf_of(entry) for entry in (ENTRY, *changed)}) == len(changed) + 1
