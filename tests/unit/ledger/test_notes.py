"""Notes and keys against published ones, and against every small change."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.notes import Checkpoint, NoteError, Signer, VerifierKey, open_checkpoint, open_note

# The verifier key and note with which C2SP's other implementations test themselves.
PUBLISHED_KEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
PUBLISHED_NOTE = (
    "This is an example message.\n\n\u2014 example.com/foo "
    "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
)
SIGNER = Signer("example.com/ledger", Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
ROOT = bytes(range(100, 132))
NOTE = SIGNER.sign_checkpoint(1234, ROOT)


def test_a_published_note_opens_with_its_published_key() -> None:
    key = VerifierKey.parse(PUBLISHED_KEY)
    assert str(key) == PUBLISHED_KEY
    assert open_note(PUBLISHED_NOTE, key) == "This is an example message.\n"


def test_our_note_is_fixed() -> None:
    assert str(SIGNER.key) == "example.com/ledger+93727de6+AQOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4"
    assert NOTE.split("\n") == [
        "example.com/ledger",
        "1234",
        "ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoM=",
        "",
        "\u2014 example.com/ledger k3J95u1jbKpA9/6ArWfNYbir4dQCGYPcpY2BFCm0QGh9C7Iyrj4gTc6BM4tSGx40g1+8yGyYD9LULCOqq+/TOJTPUwc=",
        "",
    ]
    assert open_checkpoint(NOTE, SIGNER.key) == Checkpoint("example.com/ledger", 1234, ROOT)


def test_every_changed_bit_of_a_note_is_found() -> None:
    content = NOTE.encode()
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            text = changed.decode("utf-8", "surrogateescape")
            with pytest.raises((NoteError, UnicodeEncodeError)):
                open_checkpoint(text, SIGNER.key)


def test_signatures_of_others_are_ignored_and_false_ones_of_ours_are_not() -> None:
    other = Signer.generate("example.com/witness")
    line = other.sign(Checkpoint("example.com/ledger", 1234, ROOT).text).split("\n")[-2]
    assert open_checkpoint(NOTE + line + "\n", SIGNER.key).size == 1234
    assert open_note(NOTE + line + "\n", other.key)
    own = NOTE.split("\n")[-2]
    false = own[:-6] + ("A" if own[-6] != "A" else "B") + own[-5:]
    with pytest.raises(NoteError, match="false"):
        open_note(NOTE + false + "\n", SIGNER.key)
    with pytest.raises(NoteError, match="not signed by"):
        open_note(NOTE, other.key)


def test_a_checkpoint_of_another_ledger_is_refused() -> None:
    foreign = SIGNER.sign(Checkpoint("example.com/other", 1, ROOT).text)
    with pytest.raises(NoteError, match="another ledger"):
        open_checkpoint(foreign, SIGNER.key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a+b+c",
        PUBLISHED_KEY[:-1],
        PUBLISHED_KEY.replace("530d903a", "530d903b"),
        PUBLISHED_KEY.replace("foo", "fooo"),
        PUBLISHED_KEY.replace("Aeky", "Beky"),
        "example.com/foo bar+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
    ],
)
def test_a_key_that_was_not_copied_whole_is_refused(text: str) -> None:
    with pytest.raises(NoteError, match="key"):
        VerifierKey.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "o\n01\nZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoM=\n",
        "o\n-1\nZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoM=\n",
        "o\n1\nZGVm\n",
        "o\n1\nZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoN=\n",
        "\n1\nZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoM=\n",
        "o\n1\nZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoM=\nmore\n",
    ],
)
def test_a_malformed_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(NoteError, match="checkpoint"):
        Checkpoint.parse(text)


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.key"
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(Signer.from_file, path, f"example.com/{number}") for number in range(8)]
        keys = [future.result().key for future in made]
    assert len(set(map(str, keys))) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    again = Signer.from_file(path, "example.com/renamed")
    assert open_checkpoint(again.sign_checkpoint(5, ROOT), keys[0]).size == 5


@pytest.mark.parametrize("content", ["", "x", "PRIVATE+KEY+a+00000000+AAAA", "PRIVATE+KEY+example.com"])
def test_a_damaged_key_file_is_never_overwritten(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ledger.key"
    path.write_text(content)
    with pytest.raises(NoteError, match="restore it"):
        Signer.from_file(path, "example.com")
    assert path.read_text() == content


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "x" * 201])
def test_a_name_that_breaks_the_format_is_refused(name: str) -> None:
    with pytest.raises(NoteError, match="name"):
        Signer.generate(name)
