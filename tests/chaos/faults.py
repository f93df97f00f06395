"""What is done to the network: each fault breaks one thing, and mends it again."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.local import LocalNode
from tests.chaos.network import ChaosNetwork

Fault = Callable[[ChaosNetwork, random.Random], str]


@dataclass(frozen=True)
class Done:
    """One fault as it was done, for the story."""

    at_seconds: float
    name: str
    story: str


def _any_node(network: ChaosNetwork, rng: random.Random) -> LocalNode:
    return rng.choice(network.local.nodes)


def kill_node(network: ChaosNetwork, rng: random.Random) -> str:
    """A Mac loses power and is started again a little later."""
    node, pause = _any_node(network, rng), rng.uniform(0.2, 6.0)
    network.kill_node(node)
    time.sleep(pause)
    network.local.restart_node(node)
    return f"killed {node.name}, started again after {pause:.1f} s"


def kill_runner(network: ChaosNetwork, rng: random.Random) -> str:
    """The process that holds the model dies."""
    node = _any_node(network, rng)
    return f"killed the runner of {node.name}" if network.kill_runner(node) else f"{node.name} had no runner"


def freeze_node(network: ChaosNetwork, rng: random.Random) -> str:
    """A Mac stands still with its socket open, for less or more than the lease bears."""
    node, pause = _any_node(network, rng), rng.choice((1.0, 5.0, 12.0, 35.0))
    network.signal_node(node, signal.SIGSTOP)
    time.sleep(pause)
    network.signal_node(node, signal.SIGCONT)
    return f"froze {node.name} for {pause:g} s"


def cut_sockets(network: ChaosNetwork, rng: random.Random) -> str:
    """Some or all sockets are reset; now and then nobody can connect for a while."""
    links, refuse = network.proxy.links(), rng.choice((0.0, 0.0, 1.0, 4.0))
    chosen = [link for link in links if rng.random() < rng.choice((0.4, 1.0))]
    network.proxy.cut(chosen, refuse_seconds=refuse)
    return f"cut {len(chosen)} of {len(links)} sockets, none taken for {refuse:g} s"


def silence_sockets(network: ChaosNetwork, rng: random.Random) -> str:
    """Some sockets carry nothing any more and are not closed."""
    links, pause = network.proxy.links(), rng.choice((2.0, 10.0, 20.0, 40.0))
    chosen = [link for link in links if rng.random() < 0.6]
    network.proxy.silence(chosen, pause)
    return f"silenced {len(chosen)} of {len(links)} sockets for {pause:g} s"


def kill_coordinator(network: ChaosNetwork, rng: random.Random) -> str:
    """The coordinator dies and is started again."""
    pause = rng.uniform(0.0, 3.0)
    network.signal_coordinator(signal.SIGKILL)
    time.sleep(pause)
    network.local.restart_coordinator()
    return f"killed the coordinator, started again after {pause:.1f} s"


def freeze_coordinator(network: ChaosNetwork, rng: random.Random) -> str:
    """The coordinator stands still, as on an overloaded machine."""
    pause = rng.uniform(1.0, 8.0)
    network.signal_coordinator(signal.SIGSTOP)
    time.sleep(pause)
    network.signal_coordinator(signal.SIGCONT)
    return f"froze the coordinator for {pause:.1f} s"


def kill_database(network: ChaosNetwork, rng: random.Random) -> str:
    """PostgreSQL loses power and recovers."""
    pause = rng.uniform(0.2, 4.0)
    network.postgres.kill()
    time.sleep(pause)
    network.postgres.start()
    return f"killed PostgreSQL, started again after {pause:.1f} s"


FAULTS: Final[dict[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        kill_node,
        kill_runner,
        freeze_node,
        cut_sockets,
        silence_sockets,
        kill_coordinator,
        freeze_coordinator,
        kill_database,
    )
}


def wreck(
    network: ChaosNetwork,
    rng: random.Random,
    *,
    seconds: float,
    names: Sequence[str],
    tell: Callable[[Done], None],
) -> list[Done]:
    """Break things for so long: first each fault once, then any, with pauses of a few seconds."""
    started, done = time.monotonic(), list[Done]()
    queue = rng.sample(names, len(names))
    while time.monotonic() - started < seconds:
        if names:
            name = queue.pop() if queue else rng.choice(names)
            at = time.monotonic() - started
            one = Done(at, name, FAULTS[name](network, rng))
            done.append(one)
            tell(one)
        time.sleep(rng.uniform(0.5, 5.0))
    return done
