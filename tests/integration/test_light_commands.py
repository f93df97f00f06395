"""Commands on the coordinator's own machine read in what they use, not the whole coordinator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from coordinator.cli import app

COMMANDS: Final = (
    ("accounts", "create", "Ada", "--grant", "5"),
    ("ledger", "export", "books.jsonl"),
    ("ledger", "key"),
    ("ledger", "checkpoint"),
    ("ledger", "reconcile"),
    ("operators", "key", "list"),
)
HEAVY: Final = (
    "coordinator.runtime",
    "coordinator.main",
    "fastapi",
    "numpy",
    "redis",
    "tokenizers",
    "uvicorn",
)
CHILD: Final = """
import json, sys
from coordinator.cli import app
heavy, commands = json.loads(sys.argv[1])
for command in commands:
    app(command, standalone_mode=False)
    loaded = [name for name in heavy if name in sys.modules]
    assert not loaded, f"{command} reads in {loaded}"
"""


def test_no_command_of_the_books_reads_the_server_in(tmp_path: Path) -> None:
    home = tmp_path / "home"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLXNET_")}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([HEAVY, COMMANDS])],
        cwd=tmp_path,
        env={**kept, "MLXNET_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert "sound" in child.stdout
    assert (tmp_path / "books.jsonl").is_file()


@pytest.mark.parametrize("command", ["key", "checkpoint", "reconcile"])
def test_a_folder_without_a_coordinator_is_named(tmp_path: Path, command: str) -> None:
    nowhere = tmp_path / "nowhere"
    refused = CliRunner().invoke(app, ["ledger", command, "--home", str(nowhere)])
    assert refused.exit_code == 1
    assert f"{nowhere} holds no coordinator; name its folder with --home" in refused.stderr
    assert not nowhere.exists()
