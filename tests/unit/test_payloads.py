"""Payloads are sealed to their job and part, and to the secret file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from coordinator.jobs.payloads import PayloadBox, PayloadError

JOB = "job_" + "0" * 32


def test_what_is_sealed_opens_again_and_shows_nothing(tmp_path: Path) -> None:
    box = PayloadBox.from_file(tmp_path / "key")
    wrapped, ciphertext = box.seal(b"a secret question", job_id=JOB, part="request")
    assert b"secret" not in wrapped + ciphertext
    assert box.open(wrapped, ciphertext, job_id=JOB, part="request") == b"a secret question"
    again = PayloadBox.from_file(tmp_path / "key")
    assert again.open(wrapped, ciphertext, job_id=JOB, part="request") == b"a secret question"


def test_the_key_file_is_for_its_owner_only(tmp_path: Path) -> None:
    _ = PayloadBox.from_file(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert len((tmp_path / "key").read_bytes()) == 32


def test_another_job_part_key_or_byte_does_not_open(tmp_path: Path) -> None:
    box = PayloadBox.from_file(tmp_path / "key")
    wrapped, ciphertext = box.seal(b"x", job_id=JOB, part="request")
    with pytest.raises(PayloadError):
        _ = box.open(wrapped, ciphertext, job_id="job_" + "1" * 32, part="request")
    with pytest.raises(PayloadError):
        _ = box.open(wrapped, ciphertext, job_id=JOB, part="result")
    with pytest.raises(PayloadError):
        _ = PayloadBox.from_file(tmp_path / "other").open(wrapped, ciphertext, job_id=JOB, part="request")
    for index in range(len(ciphertext)):
        changed = bytearray(ciphertext)
        changed[index] ^= 1
        with pytest.raises(PayloadError):
            _ = box.open(wrapped, bytes(changed), job_id=JOB, part="request")
    with pytest.raises(PayloadError):
        _ = box.open(b"", b"", job_id=JOB, part="request")


def test_a_key_file_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(PayloadError, match="32 random bytes"):
        _ = PayloadBox.from_file(tmp_path / "key")
