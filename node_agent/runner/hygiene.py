"""What the child does to itself before it loads anything.

It leaves no core file, does not outlive its parent, and has no network: neither a fault in a
model's code nor one of ours can then carry a prompt away.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from typing import Final

# From <linux/prctl.h>.
PR_SET_PDEATHSIG: Final = 1
# From <linux/sched.h>.
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000
# From <sandbox.h>: the profile is one that the system knows by name.
SANDBOX_NAMED: Final = 1
# What MLX may keep of freed buffers; without a limit it is as much as the whole memory.
CACHE_BYTES: Final = 512 << 20


def note(text: str) -> None:
    """A line for the agent's log; never with what a prompt or an answer holds."""
    sys.stderr.write(f"runner: {text}\n")
    sys.stderr.flush()


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


def cap_memory(memory_bytes: int) -> None:
    """Cap private memory anew, at most at what `limit_self` allowed. Linux only, as there."""
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        cap = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (cap, most))


def die_with_parent() -> None:
    """On Linux the kernel kills us when the agent dies; elsewhere the end of stdin tells us."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def leave_network() -> bool:
    """Give up the network for good; False, and no change, where the system does not allow it.

    Linux: a network namespace of its own with nothing in it, which a plain user may make inside
    a user namespace. macOS: the system's sandbox profile "no-network".
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux":
        return any(libc.unshare(flags) == 0 for flags in (CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNET))
    if sys.platform == "darwin":
        libc.sandbox_init.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p]
        problem = ctypes.c_char_p()
        return libc.sandbox_init(b"no-network", SANDBOX_NAMED, ctypes.byref(problem)) == 0
    return False
