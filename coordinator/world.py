"""Fills MLX World's snapshot from the runtime, coarsened: no id, no owner, no name, no place."""

from __future__ import annotations

from typing import Final

from coordinator.runtime import Runtime
from web_world.source import PublicMac, WorldSnapshot

GIB: Final = 1 << 30


def snapshot_of(runtime: Runtime) -> WorldSnapshot:
    """The connected Macs as the public sees them, in the order in which they came."""
    live = runtime.jobs.attempts_by_node()
    channels = sorted(runtime.fleet.channels.values(), key=lambda channel: channel.connected_at)
    return WorldSnapshot(
        macs=tuple(
            PublicMac(
                label=f"Mac {index}",
                chip=channel.hardware.chip,
                memory_gib=channel.hardware.memory_bytes // GIB,
                lent_gib=channel.hardware.lent_bytes // GIB,
                state="busy" if live.get(channel.node_id) else channel.mode,
                models=tuple(slot.card_id for slot in channel.slots),
                live_jobs=live.get(channel.node_id, 0),
            )
            for index, channel in enumerate(channels, start=1)
        ),
        jobs_ended=runtime.endings.jobs_ended,
        tokens_relayed=runtime.relay.tokens_relayed,
        jobs_waiting=len(runtime.dispatcher.last_look),
    )
