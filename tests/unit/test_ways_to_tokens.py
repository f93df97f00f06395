"""Who has too few tokens is told of ways that exist: each command named can be run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import typer.main

from coordinator import errors
from coordinator.cli import app as network_app
from node_agent.cli import app as node_app

TOKENS: Final = Path(__file__).parents[2] / "docs" / "tokens.md"
NAMED: Final = re.compile(r"(mlx-network|mlx-node)((?: [a-z]+)+)")


def command_of(program: str, words: list[str]) -> Any:
    found: Any = typer.main.get_command(network_app if program == "mlx-network" else node_app)
    for word in words:
        found = found.commands[word]
    return found


def test_each_way_is_a_command_and_stands_in_the_document() -> None:
    message = str(errors.insufficient_balance(needed_umlx=5, available_umlx=1).message)
    assert "funds" not in message
    named = [(program, words.split()) for program, words in NAMED.findall(message)]
    assert len(named) == 4
    text = TOKENS.read_text("utf-8")
    for program, words in named:
        assert not getattr(command_of(program, words), "commands", None), words
        assert " ".join([program, *words]) in text
