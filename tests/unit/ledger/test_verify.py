"""Verification finds every change of an export and names the entry; forged ones by their rule."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ledger.chain import Entry
from ledger.commands import Adjust, Capture, Command, ExpireHold, Mint, OpenHold, Refund, Transfer, VoidHold
from ledger.notes import Signer
from ledger.verify import Fault, Verified, verify_export
from tests.unit.ledger.exports import SIGNER, START_US, Writer, every_kind, export_of, jobs

NAMES = ("user:a", "user:b", "user:c")
ID, HOLD = UUID(int=1), UUID(int=2)


def verify(path: Path, content: bytes | Iterable[bytes]) -> list[Fault] | Verified:
    path.write_bytes(content if isinstance(content, bytes) else b"".join(content))
    return verify_export(path, SIGNER.key)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "export.jsonl"


def test_a_sound_export_is_verified(path: Path) -> None:
    found = verify(path, export_of(every_kind(), NAMES, checkpoint_every=5))
    assert isinstance(found, Verified), found
    assert (found.origin, found.size, found.open_holds, found.checkpoints) == ("example.com/ledger", 13, 0, 3)
    assert found.postings == 13


def test_every_changed_byte_is_found_and_its_entry_named(path: Path) -> None:
    lines = export_of(every_kind(), NAMES, checkpoint_every=5)
    whole = b"".join(lines)
    place, seq = 0, 0
    for line in lines:
        is_entry = line.startswith(b'{"body"')
        seq += is_entry
        for offset in range(len(line)):
            changed = bytearray(whole)
            changed[place + offset] ^= 1 << (place + offset) % 8
            faults = verify(path, bytes(changed))
            assert isinstance(faults, list), f"byte {offset} of {line!r}"
            if is_entry:
                assert {fault.seq for fault in faults} <= {seq, seq + 1}, (line, offset, faults)
                assert faults[0].seq == seq, (line, offset, faults)
        place += len(line)


@pytest.mark.parametrize("number", range(1, 17))
def test_a_lost_repeated_or_moved_line_is_found(path: Path, number: int) -> None:
    lines = export_of(every_kind(), NAMES, checkpoint_every=5)
    assert isinstance(verify(path, [*lines[:number], *lines[number + 1 :]]), list)
    assert isinstance(verify(path, [*lines[:number], lines[number], *lines[number:]]), list)
    if number < len(lines) - 1:
        swapped = [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]]
        assert isinstance(verify(path, swapped), list)
    faults = verify(path, lines[:number])
    assert isinstance(faults, list)
    assert faults[-1].rule == ("file_is_whole" if number == 16 else "checkpoint_covers_the_file")


def test_nothing_may_follow_or_be_missing(path: Path) -> None:
    lines = export_of(every_kind(), NAMES)
    for content in (b"", b"\n", b"".join(lines) + b"\n", b"".join(lines)[:-1], b"\xff" * 100, b"[" * 100_000):
        assert isinstance(verify(path, content), list)


def test_another_key_verifies_nothing(path: Path) -> None:
    path.write_bytes(b"".join(export_of(every_kind(), NAMES)))
    faults = verify_export(path, Signer.generate("example.com/ledger").key)
    assert isinstance(faults, list) and faults[0].rule == "checkpoint_is_signed"


def test_a_consistent_rewriting_is_narrowed_down_by_the_checkpoints(path: Path) -> None:
    commands = every_kind()
    true = export_of(commands, NAMES, checkpoint_every=5)
    commands[7] = Transfer(id=commands[7].id, source="user:b", target="user:a", amount_umlx=1)
    false = export_of(commands, NAMES, checkpoint_every=5)
    signed = [line for line in true if line.startswith(b'{"checkpoint"')]
    forged = [line if not line.startswith(b'{"checkpoint"') else signed.pop(0) for line in false]
    faults = verify(path, forged)
    assert isinstance(faults, list)
    assert [(fault.rule, fault.seq) for fault in faults] == [("root_is_the_signed_one", 6)] * 2


def test_a_fault_does_not_hide_a_later_one(path: Path) -> None:
    lines = export_of(every_kind(), NAMES)
    lines[3] = lines[3].replace(b'"fee",40', b'"fee",41')
    lines[9] = lines[9].replace(b'"head":"', b'"head":"g', 1)
    faults = verify(path, lines)
    assert isinstance(faults, list)
    assert [fault.seq for fault in faults] == [3, 9]


# -- what a dishonest keeper of the ledger might sign --------------------------------------------


def forged(change: Callable[[int, Entry, str], tuple[Entry, str]]) -> list[bytes]:
    """An export whose hashes and signature are right and whose entries are not."""
    writer, plain = Writer(NAMES), Writer(NAMES)
    written: list[bytes] = []
    captured: list[tuple[Entry, str]] = []
    plain.raw = lambda entry, body: captured.append((entry, body)) or b""  # type: ignore[method-assign]
    for command in every_kind():
        plain.line(command, START_US + 5 + plain.seq)
        plain.seq += 1
        entry, body = change(plain.seq, *captured[-1])
        written.append(writer.raw(entry, body))
    return writer.whole(written)


def _with(number: int, **changes: Any) -> Callable[[int, Entry, str], tuple[Entry, str]]:
    return lambda seq, entry, body: (replace(entry, **changes) if seq == number else entry, body)


@pytest.mark.parametrize(
    ("number", "changes", "rule"),
    [
        (1, {"legs": (("issuance", -5000), ("user:b", 5000))}, "postings_are_of_the_command"),
        (1, {"legs": (("issuance", -5000), ("user:a", 5001))}, "entry_sums_to_zero"),
        (1, {"legs": (("user:a", 5000), ("issuance", -5000))}, "one_posting_an_account"),
        (1, {"legs": (("issuance", -5000.0), ("user:a", 5000.0))}, "amounts_are_whole"),
        (3, {"legs": ()}, "postings_are_of_the_command"),
        (3, {"recorded_us": 1}, "time_goes_on"),
        (3, {"kind": "transfer"}, "body_is_of_the_entry"),
        (3, {"id": ID}, "body_is_of_the_entry"),
        (3, {"reference": "job_2"}, "body_is_of_the_entry"),
        (3, {"request_digest": bytes(32)}, "digest_is_of_the_body"),
        (3, {"seq": 4}, "seq_is_gapless"),
        (3, {"seq": "3"}, "entry_is_shaped_like_one"),
        (3, {"seq": True}, "entry_is_shaped_like_one"),
        (3, {"seq": -3}, "entry_is_shaped_like_one"),
        (3, {"seq": 1 << 80}, "entry_is_shaped_like_one"),
        (3, {"needed_umlx": 1}, "posted_has_no_reason"),
        (8, {"legs": (("user:b", -1), ("user:c", 1))}, "refused_changes_nothing"),
        (8, {"result": "no_reason"}, "refused_changes_nothing"),
        (8, {"result": "posted", "needed_umlx": None, "available_umlx": None}, "postings_are_of_the_command"),
        (
            8,
            {
                "result": "posted",
                "needed_umlx": None,
                "available_umlx": None,
                "legs": (("user:b", -361), ("user:c", 361)),
            },
            "above_floor",
        ),
        (12, {"legs": (("user:b", 1), ("user:c", -1))}, "postings_are_of_the_command"),
    ],
)
def test_a_signed_entry_that_breaks_a_rule_is_named(
    path: Path, number: int, changes: dict[str, Any], rule: str
) -> None:
    faults = verify(path, forged(_with(number, **changes)))
    assert isinstance(faults, list)
    assert (faults[0].seq, faults[0].rule) == (number, rule)


def _posted(seq: int, command: Command, legs: tuple[tuple[str, int], ...], now_us: int = START_US) -> Entry:
    return Entry(
        seq, command.id, command.kind, command.reference, now_us, command.digest, "posted", None, None, legs
    )


HELD = OpenHold(id=HOLD, account_id="user:a", amount_umlx=50, expires_us=START_US + 9)
RICH = Mint(id=UUID(int=3), account_id="user:a", amount_umlx=100)
PAID = (("user:a", -50), ("user:b", 50))


def captured(number: int, amount: int = 50) -> Capture:
    return Capture(id=UUID(int=number), hold_id=HOLD, pays=(("user:b", amount),))


@pytest.mark.parametrize(
    ("steps", "seq", "rule"),
    [
        ([(RICH, ()), (HELD, ()), (captured(4), PAID), (captured(5), PAID)], 4, "hold_ends_once"),
        (
            [(RICH, ()), (HELD, ()), (VoidHold(id=ID, hold_id=HOLD), ()), (captured(5), PAID)],
            4,
            "hold_ends_once",
        ),
        ([(RICH, ()), (captured(5), PAID)], 2, "hold_ends_once"),
        (
            [(RICH, ()), (HELD, ()), (captured(4, 51), (("user:a", -51), ("user:b", 51)))],
            3,
            "capture_within_hold",
        ),
        ([(RICH, ()), (HELD, ()), (ExpireHold(id=ID, hold_id=HOLD), ())], 3, "expires_at_its_time"),
        ([(RICH, ()), (replace(HELD, amount_umlx=101), ())], 2, "above_floor"),
        (
            [
                (RICH, ()),
                (HELD, ()),
                (
                    Transfer(id=ID, source="user:a", target="user:b", amount_umlx=51),
                    (("user:a", -51), ("user:b", 51)),
                ),
            ],
            3,
            "above_floor",
        ),
        ([(RICH, ()), (RICH, ())], 2, "id_is_used_once"),
        (
            [
                (RICH, ()),
                (HELD, ()),
                (captured(4), PAID),
                (
                    Refund(id=ID, hold_id=HOLD, source="user:b", amount_umlx=30),
                    (("user:a", 30), ("user:b", -30)),
                ),
                (
                    Refund(id=UUID(int=9), hold_id=HOLD, source="user:a", amount_umlx=21),
                    (),
                ),
            ],
            5,
            "refund_within_capture",
        ),
        (
            [
                (RICH, ()),
                (HELD, ()),
                (captured(4), PAID),
                (
                    Refund(id=ID, hold_id=HOLD, source="user:b", amount_umlx=30),
                    (("user:b", -30), ("user:c", 30)),
                ),
            ],
            4,
            "refund_within_capture",
        ),
        (
            [(RICH, ()), (Refund(id=ID, hold_id=HOLD, source="user:a", amount_umlx=3), ())],
            2,
            "refund_follows_a_capture",
        ),
        (
            [(Adjust(id=ID, legs=PAID, operators=("Ann", "Bob"), reason="x"), PAID)],
            1,
            "above_floor",
        ),
    ],
)
def test_a_signed_history_that_breaks_a_rule_is_named(
    path: Path, steps: list[tuple[Command, tuple[tuple[str, int], ...]]], seq: int, rule: str
) -> None:
    writer = Writer(NAMES)
    mint = (("issuance", -100), ("user:a", 100))
    lines = [
        writer.raw(_posted(number, command, mint if command is RICH else legs), command.body)
        for number, (command, legs) in enumerate(steps, 1)
    ]
    faults = verify(path, writer.whole(lines))
    assert isinstance(faults, list)
    assert [(fault.seq, fault.rule) for fault in faults] == [(seq, rule)]


def test_a_footer_that_counts_wrongly_is_found(path: Path) -> None:
    lines = export_of(every_kind(), NAMES)
    lines[-1] = lines[-1].replace(b'"postings":13', b'"postings":14')
    faults = verify(path, lines)
    assert isinstance(faults, list) and faults[0].rule == "footer_counts_the_file"


def test_many_ids_are_compared_on_disk(path: Path) -> None:
    """More records than one sorted run holds, and the last entry's id is that of an early one."""
    commands = [*jobs(70_000, accounts=10)]
    names = tuple({command.account_id for command in commands if isinstance(command, Mint)})
    assert isinstance(verify(path, export_of(commands, names)), Verified)
    again = Mint(id=commands[20].id, account_id=names[0], amount_umlx=1)
    faults = verify(path, export_of([*commands, again], names))
    assert isinstance(faults, list)
    assert [(fault.rule, fault.seq) for fault in faults] == [("id_is_used_once", len(commands) + 1)]


def test_verifying_needs_the_base_install_only() -> None:
    code = (
        "import sys\n"
        "for name in ('sqlalchemy', 'fastapi', 'alembic'): sys.modules[name] = None\n"
        "import ledger.verify\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
