"""Empty questions and amounts below zero: refused by the argument's name, before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from coordinator.arguments import TextCommand
from coordinator.cli import app


@pytest.fixture(autouse=True)
def _nobody_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLXNET_HOME", str(tmp_path))
    monkeypatch.setenv("MLXNET_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("MLXNET_API_KEY", "k")


def ran(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def said(result: Result) -> str:
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("command", ["submit", "chat", "quote"])
@pytest.mark.parametrize(("message", "stdin"), [("", None), (" \n\t", None), ("-", ""), ("-", "\n \n")])
def test_an_empty_question_is_refused(command: str, message: str, stdin: str | None) -> None:
    refused = ran(command, message, stdin=stdin)
    assert refused.exit_code == 2
    assert "MESSAGE" in said(refused)
    assert "empty; say what to ask" in said(refused)


@pytest.mark.parametrize("command", ["submit", "chat", "quote"])
@pytest.mark.parametrize("message", ["-5 + 3?", "- a list", "-", "--max-tokens of what?"])
def test_a_question_may_begin_with_a_hyphen(command: str, message: str) -> None:
    is_long = message.startswith("--")
    arguments = ["--", message] if is_long else [message, "-m", "small", "--max-tokens", "5"]
    sent = ran(command, *arguments, stdin="hello")
    assert sent.exit_code == 1
    assert "127.0.0.1:9 does not answer" in said(sent)


@pytest.mark.parametrize("amount", ["-5", "-0.25", "0", "x", "0.0000001", "nan"])
def test_an_amount_that_is_not_positive_is_refused_by_name(amount: str) -> None:
    refused = ran("give", "Ada", amount, "--note", "-1")
    assert refused.exit_code == 2
    assert f"Invalid value for MLX: '{amount}' is not a positive amount" in said(refused)


def test_a_mistyped_option_is_no_text() -> None:
    refused = ran("submit", "-5?", "--modle", "small")
    assert refused.exit_code == 2
    assert "No such option" in said(refused)
    assert "--modle" in said(refused)


def test_texts_keep_their_order_and_options_their_values() -> None:
    seen: list[object] = []
    one = typer.Typer()

    @one.command(cls=TextCommand)
    def command(first: str, second: str, number: int = 0, flag: bool = False) -> None:  # pyright: ignore[reportUnusedFunction]
        seen.append((first, second, number, flag))

    for arguments in (
        ["-1", "-2", "--number", "-3", "--flag"],
        ["--number", "-3", "-1", "--flag", "-2"],
        ["--number=-3", "-1", "-2", "--flag"],
    ):
        done = CliRunner().invoke(one, arguments)
        assert done.exit_code == 0, done.output
    assert seen == [("-1", "-2", -3, True)] * 3
