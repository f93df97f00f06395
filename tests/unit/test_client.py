"""Where the command line finds the coordinator and the key, and what it says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main
from typer.testing import CliRunner

from coordinator.cli import app
from coordinator.client import ClientError, find_access
from node_agent.cli import app as node_app

API: Final = Path(__file__).parents[2] / "docs" / "api.md"
NAMES: Final = ("MLXNET_URL", "MLXNET_API_KEY", "MLXNET_HOME")
OTHERS: Final = ("OPENAI_BASE_URL", "OPENAI_API_KEY")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*NAMES, *OTHERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLXNET_HOME", str(tmp_path))


def test_the_variables_are_named_in_the_help_and_in_the_document() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    text = API.read_text("utf-8")
    for name in (*NAMES, *OTHERS):
        assert name in shown
        assert f"`{name}`" in text


def test_the_key_of_another_service_is_not_sent_but_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXNET_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    with pytest.raises(ClientError, match=r"export MLXNET_API_KEY=\$OPENAI_API_KEY") as caught:
        _ = find_access(None, None)
    assert "sk-other" not in str(caught.value)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ClientError, match=r"set MLXNET_API_KEY$"):
        _ = find_access(None, None)


def test_the_address_of_openais_clients_is_told_of_and_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    with pytest.raises(ClientError, match=r"export MLXNET_URL=\$OPENAI_BASE_URL"):
        _ = find_access(None, "k")
    monkeypatch.setenv("MLXNET_URL", "http://127.0.0.1:1/v1/")
    assert find_access(None, "k").url == "http://127.0.0.1:1"


def helps(command: Any, path: str) -> Iterator[tuple[str, str]]:
    yield path, command.help or ""
    for parameter in command.params:
        yield f"{path} {parameter.name}", getattr(parameter, "help", None) or ""
    for name, child in getattr(command, "commands", {}).items():
        yield from helps(child, f"{path} {name}")


@pytest.mark.parametrize("one", [app, node_app])
def test_no_help_has_words_in_brackets_that_the_screen_takes_for_styles(one: typer.Typer) -> None:
    found = list(helps(typer.main.get_command(one), one.info.name or ""))
    assert len(found) > 20
    assert [where for where, text in found if re.search(r"\[[a-z#/@]", text)] == []
