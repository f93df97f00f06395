"""New ids for the coordinator's rows."""

from __future__ import annotations

from coordinator import clock
from node_agent.protocol.ids import make_id


def new_id(prefix: str) -> str:
    """A fresh UUIDv7-based id such as `job_0190…`; ids made later sort later (to the millisecond)."""
    return make_id(prefix, unix_ms=clock.wall_us() // 1000, random_bytes=clock.random_bytes(10))
