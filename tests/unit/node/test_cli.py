"""The command line as a user meets it, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from node_agent.status import running

ROOT = Path(__file__).parents[3]


def mlx_node(*arguments: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"MLXNODE_HOME": str(home)} if home is not None else {})
    return subprocess.run(
        [sys.executable, "-m", "node_agent", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd=ROOT,
        check=False,
    )


def test_help_needs_no_heavy_module() -> None:
    code = (
        "import sys, typer.testing, node_agent.cli as cli\n"
        "result = typer.testing.CliRunner().invoke(cli.app, ['--help'])\n"
        "assert result.exit_code == 0 and 'join' in result.output\n"
        "heavy = {'mlx', 'pydantic', 'httpx2', 'websockets', 'cryptography', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    began = time.process_time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert time.process_time() - began < 0.5
    assert done.stdout.strip() == "[]", done.stderr


def test_a_base_install_says_what_to_install() -> None:
    code = (
        "import sys, importlib.util as util\n"
        "real = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'mlx' else real(name, *rest)\n"
        "sys.argv = ['mlx-node', 'status']\n"
        "from node_agent.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert "pip install 'mlx-network[node]'" in done.stderr
    assert "mlx missing" in done.stderr


def test_habits_are_told_or_kept_and_nothing_else(tmp_path: Path) -> None:
    done = mlx_node("join", "https://network.example.org", "--habits", "sold", "--no-run", home=tmp_path)
    assert done.returncode == 1
    assert "--habits sold: say told or kept" in done.stderr


def test_status_and_run_before_joining(tmp_path: Path) -> None:
    assert mlx_node("status", "--json", home=tmp_path).returncode == 1
    done = mlx_node("run", home=tmp_path)
    assert done.returncode == 1
    assert "mlx-node join URL" in done.stderr
    assert "Traceback" not in done.stderr


def test_joining_an_address_where_nobody_listens(tmp_path: Path) -> None:
    done = mlx_node("join", "http://127.0.0.1:9", "--json", home=tmp_path)
    assert done.returncode == 1
    message = json.loads(done.stdout.splitlines()[-1])["message"]
    assert "could not be reached" in message
    assert not (tmp_path / "config.json").exists()


def test_a_wrong_address_and_a_wrong_loan_are_named(tmp_path: Path) -> None:
    assert "expected an address" in mlx_node("join", "nonsense", home=tmp_path).stderr
    done = mlx_node("join", "http://127.0.0.1:9", "--lend-gib", "99999", home=tmp_path)
    assert "--lend-gib" in done.stderr


def test_models_lists_the_cache(tmp_path: Path) -> None:
    folder = tmp_path / "tiny" / "0123456789abcdef" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    environment = os.environ | {"MLXNET_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "node_agent", "models", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    line = json.loads(done.stdout)
    assert (line["card_id"], line["bytes"]) == ("tiny", 2)


def test_how_many_models_lie_side_by_side_is_the_owners_choice(tmp_path: Path) -> None:
    done = mlx_node("join", "https://network.example.org", "--models-max", "17", "--no-run", home=tmp_path)
    assert done.returncode != 0
    assert "--models-max" in done.stderr


def test_status_names_every_model_and_reads_what_older_nodes_wrote(tmp_path: Path) -> None:
    facts: dict[str, object] = {
        "pid": 7,
        "state": "ready",
        "coordinator": "https://n.example",
        "name": "attic",
    }
    models = [
        {"card_id": "small", "phase": "ready", "bytes": 5, "at_work": True},
        {"card_id": "large", "phase": "loading"},
    ]
    newer = facts | {"card_id": "small", "card_phase": "ready", "models": models}
    older = facts | {"card_id": "small", "card_phase": "ready"}
    with running(tmp_path):
        for written, shown in (
            (newer, "small (at work), large (loading), 0 attempts"),
            (older, "small (ready), 0 attempts"),
            (facts, "no model, 0 attempts"),
        ):
            (tmp_path / "status.json").write_text(json.dumps(written))
            done = mlx_node("status", home=tmp_path)
            assert done.returncode == 0, done.stderr
            assert shown in done.stdout
