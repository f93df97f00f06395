"""A short run of the whole thing; `make chaos` is the long one."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHORT = ("--seconds", "30", "--rounds", "0", "--nodes", "2", "--submitters", "4", "--seed", "7")


@pytest.mark.timeout(400)
def test_nothing_is_lost_while_everything_breaks() -> None:
    command = [sys.executable, "-m", "tests.chaos", *SHORT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
