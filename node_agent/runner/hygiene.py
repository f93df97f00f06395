"""What the child does to itself before it loads anything: no core file, no outliving its parent."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from typing import Final

# From <linux/prctl.h>.
PR_SET_PDEATHSIG: Final = 1


def claim_pipes() -> tuple[int, int]:
    """Private duplicates of stdin and stdout; whatever else prints goes to stderr.

    Returns (read, write) descriptors. Afterwards 0 is empty and 1 is stderr, for Python and for
    C alike, so that no library can read a command or break into the answers.
    """
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return reading, writing


def limit_self(memory_bytes: int | None) -> None:
    """Forbid core files (they would hold prompts) and, on Linux, cap private memory.

    RLIMIT_DATA and not RLIMIT_AS: mapped weight files must not count.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None and sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def die_with_parent() -> None:
    """On Linux the kernel kills us when the agent dies; elsewhere the end of stdin tells us."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
