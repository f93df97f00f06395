"""Tell the coordinator, over one short socket, that this node leaves for good."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, final

from node_agent.agent import hello_of
from node_agent.events import Lane
from node_agent.link import Link, RefusedError
from node_agent.parts import make_parts
from node_agent.protocol import messages as wire
from node_agent.settings import NodeConfig

FAREWELL_SECONDS: Final = 10.0


@final
class _Farewell:
    """A link's owner that says goodbye as soon as it is welcome."""

    def __init__(self, home: Path, config: NodeConfig, hardware: wire.Hardware) -> None:
        self._parts = make_parts(home, config, hardware)
        self.link = Link(config.coordinator, self, self._parts.link)
        self.welcomed = asyncio.Event()

    def hello(self, challenge: wire.Challenge) -> wire.Hello:
        return hello_of(self._parts, challenge)

    def on_link_up(self, welcome: wire.Welcome) -> None:
        del welcome
        self.link.send(wire.Goodbye(reason="leave"), Lane.CONTROL)
        self.welcomed.set()

    def on_link_down(self, silent_seconds: float) -> None:
        pass

    def on_frame(self, message: wire.ToNode) -> None:
        pass


async def say_goodbye(home: Path, config: NodeConfig, hardware: wire.Hardware) -> str | None:
    """None if the coordinator was told, else why not."""
    farewell = _Farewell(home, config, hardware)
    task = asyncio.create_task(farewell.link.run())
    welcomed = asyncio.create_task(farewell.welcomed.wait())
    try:
        await asyncio.wait({task, welcomed}, timeout=FAREWELL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if welcomed.done():
            await farewell.link.close()
            return None
        if task.done() and isinstance(task.exception(), RefusedError):
            return str(task.exception())
        return "it could not be reached"
    finally:
        for pending in (task, welcomed):
            pending.cancel()
        await asyncio.gather(task, welcomed, return_exceptions=True)
