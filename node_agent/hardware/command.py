"""Run a system command for its output."""

from __future__ import annotations

import subprocess
from typing import Final

COMMAND_SECONDS_MAX: Final = 15.0


def output_of(*command: str) -> str:
    """Standard output of a command; empty if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
