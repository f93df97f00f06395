"""A node's key, its configuration, and the addresses it accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent.identity import load_identity
from node_agent.protocol.ids import node_id_of
from node_agent.protocol.signing import decode_bytes, is_signed_by
from node_agent.settings import NodeConfig, SettingsError, load_config, origin_of, save_config
from node_agent.status import Status, is_running, read_status, running, write_status


def test_a_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    first = load_identity(tmp_path / "home")
    again = load_identity(tmp_path / "home")
    assert first.public_key == again.public_key
    assert first.node_id == node_id_of(decode_bytes(first.public_key))
    assert (tmp_path / "home" / "node.key").stat().st_mode & 0o777 == 0o600
    assert is_signed_by(decode_bytes(again.public_key), first.sign(b"words"), b"words")
    assert not is_signed_by(decode_bytes(again.public_key), first.sign(b"words"), b"other")


def test_a_key_that_others_may_read_or_that_is_cut_is_refused(tmp_path: Path) -> None:
    load_identity(tmp_path)
    (tmp_path / "node.key").chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        load_identity(tmp_path)
    (tmp_path / "node.key").write_bytes(b"short")
    with pytest.raises(SettingsError, match="not a key of 32 bytes"):
        load_identity(tmp_path)


@pytest.mark.parametrize(
    ("typed", "origin"),
    [
        ("https://net.example.org", "https://net.example.org"),
        (" http://127.0.0.1:8000/ ", "http://127.0.0.1:8000"),
        ("https://[::1]:8443", "https://[::1]:8443"),
    ],
)
def test_an_origin_is_kept_as_it_was_typed(typed: str, origin: str) -> None:
    assert origin_of(typed) == origin


@pytest.mark.parametrize(
    "typed",
    ["", "net.example.org", "ftp://x", "https://", "https://a/b", "https://a?b", "https://u:p@a"],
)
def test_other_addresses_are_refused(typed: str) -> None:
    with pytest.raises(SettingsError):
        origin_of(typed)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        origin_of("https://user:hunter2@net.example.org")
    assert "hunter2" not in str(caught.value)


def test_a_config_comes_back_and_a_wrong_field_is_named(tmp_path: Path) -> None:
    assert load_config(tmp_path) is None
    config = NodeConfig(coordinator="https://a", node_id="node_1", name="attic", width=2)
    save_config(tmp_path, config)
    assert load_config(tmp_path) == config
    (tmp_path / "config.json").write_text('{"coordinator": "https://a", "width": 0}')
    with pytest.raises(SettingsError, match=r"config.json: (node_id|name|width)"):
        load_config(tmp_path)


def test_one_process_a_home_and_no_status_without_it(tmp_path: Path) -> None:
    status = Status(pid=1, state="ready", coordinator="https://a", name="attic")
    with running(tmp_path):
        write_status(tmp_path, status)
        assert is_running(tmp_path)
        assert read_status(tmp_path) == status
        with pytest.raises(SettingsError, match="runs already"), running(tmp_path):
            pass
    assert not is_running(tmp_path)
    assert read_status(tmp_path) is None
