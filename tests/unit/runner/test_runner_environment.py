"""The child's environment is built from nothing."""

from __future__ import annotations

from pathlib import Path

from node_agent.runner.environment import find_openblas, runner_environment
from node_agent.runner.process import describe_exit

OWN = {
    "PATH": "/bin",
    "HOME": "/home/x",
    "HF_TOKEN": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "DYLD_INSERT_LIBRARIES": "/tmp/x.dylib",
    "PYTHONSTARTUP": "/tmp/x.py",
    "OPENBLAS_CORETYPE": "Haswell",
}


def test_nothing_is_passed_on_that_is_not_listed() -> None:
    environment = runner_environment(OWN, accelerated=False, platform="darwin")
    assert "secret" not in environment.values()
    assert not {"HOME", "HF_TOKEN", "DYLD_INSERT_LIBRARIES", "PYTHONSTARTUP"} & environment.keys()
    assert environment["PATH"] == "/bin"
    assert environment["OPENBLAS_CORETYPE"] == "Haswell"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert "LD_PRELOAD" not in environment


def test_compilation_at_run_time_is_for_accelerated_nodes_only() -> None:
    slow = runner_environment(OWN, accelerated=False)
    fast = runner_environment(OWN, accelerated=True)
    assert slow["MLX_DISABLE_COMPILE"] == "1"
    assert "MLX_DISABLE_COMPILE" not in fast


def test_openblas_is_found_where_distributions_put_it(tmp_path: Path) -> None:
    assert find_openblas(tmp_path) is None
    plain = tmp_path / "lib" / "x86_64-linux-gnu" / "libopenblas.so.0"
    threaded = tmp_path / "lib" / "x86_64-linux-gnu" / "openblas-pthread" / "libblas.so.3"
    threaded.parent.mkdir(parents=True)
    plain.touch()
    assert find_openblas(tmp_path) == plain
    threaded.touch()
    assert find_openblas(tmp_path) == threaded


def test_an_exit_is_described_with_its_signal_named() -> None:
    assert describe_exit(0) == "exited with status 0"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-11) == "killed by SIGSEGV"
    assert describe_exit(-250) == "killed by signal 250"
