"""New ids for the coordinator's rows: the one place here that reads clock and randomness for them."""

from __future__ import annotations

import secrets
import time

from node_agent.protocol.ids import make_id


def new_id(prefix: str) -> str:
    """A fresh UUIDv7-based id such as `job_0190…`; ids made later sort later (to the millisecond)."""
    return make_id(prefix, unix_ms=time.time_ns() // 1_000_000, random_bytes=secrets.token_bytes(10))
