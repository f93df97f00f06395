"""Files that people write: a key that is there twice is refused, in every command that reads one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.cli import app
from coordinator.json_files import DuplicateKeyError, load_json
from coordinator.policy.documents import DocumentError, read_document


def test_a_key_twice_is_named_and_other_values_are_those_of_json() -> None:
    text = '{"a": [1, {"b": null}], "c": {"b": 2.5}}'
    assert load_json(text) == json.loads(text)
    with pytest.raises(DuplicateKeyError, match="'b' is there twice"):
        _ = load_json('{"a": {"b": 1, "b": 1}}')
    with pytest.raises(ValueError, match="Expecting"):
        _ = load_json('{"a": ')
    with pytest.raises(ValueError, match="nested"):
        _ = load_json("[" * 200_000)


def test_a_document_to_sign_has_each_key_once(tmp_path: Path) -> None:
    file = tmp_path / "budget.json"
    draft = ["budget", "draft", str(file), "--purpose", "vouchers", "--cap-mlx", "5", "--reason", "Friends"]
    done = CliRunner().invoke(app, draft)
    assert done.exit_code == 0, done.output
    assert read_document(file).kind == "budget"
    text = file.read_text()
    file.write_text(text.replace('"cap_umlx": ', '"cap_umlx": "1", "cap_umlx": ', 1))
    with pytest.raises(DocumentError, match=r"budget\.json: the key 'cap_umlx' is there twice"):
        _ = read_document(file)
    file.write_text(text[:-20])
    with pytest.raises(DocumentError, match="JSON"):
        _ = read_document(file)


def test_rates_to_announce_have_each_key_once(tmp_path: Path) -> None:
    card = tmp_path / "card.json"
    card.write_text('{"version": 1, "version": 2}')
    draft = ["rates", "draft", str(card), str(tmp_path / "out.json"), "--effective", "2199-01-01"]
    done = CliRunner().invoke(app, draft)
    assert done.exit_code == 1
    assert "the key 'version' is there twice" in done.stderr
