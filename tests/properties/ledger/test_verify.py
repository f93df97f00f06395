"""Any change of any bytes of a larger export is found."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.commands import Mint
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
