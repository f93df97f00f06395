"""Any change of any bytes of a larger export is found."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.chain import GENESIS_HEAD, leaf_of_text, next_head
from ledger.commands import Mint, canonical_json
from ledger.export_format import entry_line, footer_line, header_line
from ledger.verify import Fault, Verified, verify_export
from tests.unit.ledger.exports import SIGNER, export_of, jobs


@functools.cache
def _lines() -> tuple[bytes, ...]:
    commands = [*jobs(400, accounts=20)]
    names = tuple({command.account_id for command in commands if isinstance(command, Mint)})
    return tuple(export_of(commands, names, checkpoint_every=100))


def _verify(content: bytes) -> list[Fault] | Verified:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.jsonl"
        path.write_bytes(content)
        return verify_export(path, SIGNER.key)


def test_it_is_sound_unchanged() -> None:
    assert isinstance(_verify(b"".join(_lines())), Verified)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_other_bytes_are_found(data: st.DataObject) -> None:
    whole = b"".join(_lines())
    begin = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(begin, min(len(whole), begin + 40)))
    put = data.draw(st.binary(max_size=40))
    changed = whole[:begin] + put + whole[end:]
    assert isinstance(_verify(changed), Verified) is (changed == whole)


@given(place=st.integers(0), bit=st.integers(0, 7))
@settings(max_examples=150, deadline=None)
def test_one_changed_bit_names_its_entry(place: int, bit: int) -> None:
    lines = _lines()
    whole = bytearray(b"".join(lines))
    place %= len(whole)
    whole[place] ^= 1 << bit
    faults = _verify(bytes(whole))
    assert not isinstance(faults, Verified)
    seq, passed = 0, 0
    for line in lines:
        passed += len(line)
        seq += line.startswith(b'{"body"')
        if passed > place:
            if line.startswith(b'{"body"'):
                assert faults[0].seq == seq
            return


words = st.sampled_from(
    ["posted", "mint", "capture", "refund", "adjust", "open_hold", "user:a", "issuance", "", "9" * 36]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    words,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=8,
)
names = (
    "id",
    "kind",
    "reference",
    "account_id",
    "amount_umlx",
    "hold_id",
    "pays",
    "legs",
    "source",
    "operators",
)


@given(
    entry=st.one_of(values, st.lists(values, min_size=10, max_size=10)),
    body=st.one_of(values, st.fixed_dictionaries(dict.fromkeys(names, values))),
)
@settings(max_examples=200, deadline=None)
def test_an_entry_of_any_shape_is_a_fault_and_never_a_crash(entry: Any, body: Any) -> None:
    assert isinstance(_verify_alone(entry, canonical_json(body)), list)


kinds = (
    "mint",
    "burn",
    "transfer",
    "open_hold",
    "capture",
    "void_hold",
    "refund",
    "adjust",
    "record",
    "gift",
)
bodies = st.fixed_dictionaries(
    dict.fromkeys(names, values) | {"id": st.just(str(UUID(int=1))), "kind": st.sampled_from(kinds)}
)


@given(body=bodies, rest=st.tuples(st.just("posted"), st.none(), st.none(), values))
@settings(max_examples=300, deadline=None)
def test_a_consistent_entry_of_any_content_never_crashes(body: dict[str, Any], rest: tuple[Any, ...]) -> None:
    """As far right as it must be for its content to be looked at."""
    text = canonical_json(body)
    digest = hashlib.sha256(text.encode()).hexdigest()
    entry = [1, body["id"], body["kind"], body["reference"], 1, digest, *rest]
    assert isinstance(_verify_alone(entry, text), list | Verified)


def _verify_alone(entry: Any, text: str) -> list[Fault] | Verified:
    """Verify one entry that is rightly hashed and signed."""
    content = canonical_json(entry)
    leaf = leaf_of_text(content.encode())
    head = next_head(GENESIS_HEAD, leaf)
    lines = [
        header_line(SIGNER.sign_checkpoint(1, leaf)),
        entry_line(text, content, head, leaf),
        footer_line(1, head, 0, 0),
    ]
    return _verify(b"".join(lines))
