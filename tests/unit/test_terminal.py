"""What the command line prints is cut nowhere: not at 80 columns, not in a file or a pipe."""

from __future__ import annotations

import io
import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import pytest
from rich.console import Console

import coordinator
from coordinator import catalogue_cli, cli, statements_cli
from coordinator.terminal import Terminal, show_rows

JOB_ID: Final = "job_0193f5c2-8a41-7c3e-9b1d-2f6a7e4c5d80"
COLUMNS: Final = ("job", "state", "model", "cost, MLX")
ROW: Final = (JOB_ID, "cancelling", "llama-3.3-70b-instruct-4bit", "123,456.789012")


def terminal(width: int) -> tuple[Terminal, io.StringIO]:
    file = io.StringIO()
    return Terminal(file=file, width=width, force_terminal=True, color_system=None), file


def lines_of(file: io.StringIO) -> list[str]:
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_every_text_is_whole_at_every_width(width: int) -> None:
    to, file = terminal(width)
    show_rows(to, COLUMNS, [ROW])
    text = file.getvalue()
    assert "…" not in text
    for value in ROW:
        assert value in text
    longest = max(len(line) for line in lines_of(file))
    assert longest <= max(width, len(JOB_ID))


def test_a_column_that_may_fold_keeps_the_table_at_80_columns() -> None:
    to, file = terminal(80)
    reason = "its owner used it, and the network stopped what ran there, twice in the same hour of that day"
    show_rows(to, ("entry", "for", "MLX"), [("1", reason, "0.000001")], folds=("for",), footer=("", "", "9"))
    shown = lines_of(file)
    assert max(map(len, shown)) <= 80
    words = " ".join(line.split("│")[2].strip() for line in shown if line.count("│") == 4)
    assert words.strip() == reason
    assert "0.000001" in file.getvalue()


def test_what_goes_to_a_pipe_is_one_line_a_row_and_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    file = io.StringIO()
    to = Terminal(file=file)
    show_rows(to, COLUMNS, [ROW])
    to.print("word " * 60)
    shown = lines_of(file)
    assert any(all(value in line for value in ROW) for line in shown)
    assert shown[-1] == ("word " * 60).rstrip()


def test_names_in_brackets_are_names_not_styles() -> None:
    to, file = terminal(80)
    show_rows(to, ("Mac", "MLX"), [("[bold]", "1")], title="[red]")
    assert "[bold]" in file.getvalue()


def test_a_heading_breaks_before_a_text_does() -> None:
    to, file = terminal(60)
    name, served = "qwen3-coder-480b-a35b-4bit", "not yet"
    show_rows(
        to, ("model", "MLX per million out", "served"), [(name, "201.344153", served)], folds=("model",)
    )
    assert any(name in line and served in line for line in lines_of(file))
    assert not any("MLX per million out" in line for line in lines_of(file))
    assert max(map(len, lines_of(file))) <= 60


def shown_at_80(monkeypatch: pytest.MonkeyPatch, module: Any) -> io.StringIO:
    to, file = terminal(80)
    monkeypatch.setattr(module, "out", to)
    return file


def test_jobs_show_ids_states_and_costs_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    file = shown_at_80(monkeypatch, cli)
    job = {
        "id": JOB_ID,
        "state": "cancelling",
        "model": "llama-3.3-70b-4bit",
        "prompt_tokens": 123_456,
        "output_tokens": 4096,
        "charge_umlx": "1234567",
    }
    cli._show_jobs([job])  # pyright: ignore[reportPrivateUsage]
    text = file.getvalue()
    for value in (JOB_ID, "cancelling", "llama-3.3-70b-4bit", "123456", "4096", "1.234567"):
        assert value in text


def test_the_catalogue_is_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    file = shown_at_80(monkeypatch, catalogue_cli)
    catalogue_cli.list_models()
    text = file.getvalue()
    assert "…" not in text
    assert max(map(len, lines_of(file))) <= 80
    for row in catalogue_cli._rows(_catalogue()):  # pyright: ignore[reportPrivateUsage]
        assert str(row["id"]) in text
        assert str(row["context_tokens"]) in text


def _catalogue() -> Any:
    from coordinator.catalogue.cards import load_catalogue

    return load_catalogue([])


def test_a_statement_is_whole_at_80_columns() -> None:
    to, file = terminal(80)
    entry = {"seq": 1_234_567, "kind": "settlement", "reference": f"{JOB_ID}/1", "amount_umlx": "-1234567"}
    found = {
        "name": "Ada",
        "opening_umlx": "1000000000",
        "entries": [entry],
        "held_back": [{"shown": "comes tomorrow", "reason": "not settled", "amount_umlx": "5"}],
        "open_holds": [{"reference": JOB_ID, "amount_umlx": "7"}],
        "closing_umlx": "998765433",
    }
    statements_cli.show_statement(to, found)
    text = file.getvalue()
    assert max(map(len, lines_of(file))) <= 80
    assert "…" not in text
    for value in ("1234567", "settlement", "-1.234567", "998.765433", "(0.000007)", "comes tomorrow"):
        assert value in text
    assert f"{JOB_ID}/1" in "".join(_column(lines_of(file), 3))


def _column(lines: Sequence[str], number: int) -> list[str]:
    return [line.split("│")[number].strip() for line in lines if line.count("│") == 5]


def test_every_command_prints_to_a_terminal_of_ours() -> None:
    """A plain rich console would cut at 80 columns in a pipe, too."""
    found = 0
    for module in pkgutil.iter_modules(coordinator.__path__, "coordinator."):
        if not module.name.endswith("cli"):
            continue
        for name in ("out", "err"):
            console = getattr(import_module(module.name), name, None)
            if isinstance(console, Console):
                found += 1
                assert isinstance(console, Terminal), f"{module.name}.{name}"
    assert found > 10
