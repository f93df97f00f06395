"""The plan of what idle Macs hold, carried out in a world as the coordinator carries it out.

Once a minute, from the jobs that came until then; nothing of what is to come is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from coordinator.placement.residency import Demand, IdleHost, plan
from coordinator.residency import ANSWER_TOKENS_UNKNOWN, DEMANDS_MAX, LATE_HOURS, Asked, supply_of
from tests.benchmarks.placement.scenes import HOUR, MODELS, model
from tests.benchmarks.placement.world import Host, Task, World

ON_DISK: Final = frozenset(name for name, _ in MODELS)


def hold_what_is_asked(world: World) -> int:
    """Ask idle Macs to load what the plan says; to how many that was said."""
    demands = _demands(world)
    idle = [host for host in world.hosts if host.is_lent and not host.tasks]
    busy = [_facts(world, host) for host in world.hosts if host.is_lent and host.tasks]
    by_id = {host.mac.name: host for host in idle}
    found = plan([_facts(world, host) for host in idle], demands, busy_jobs_per_hour=supply_of(busy, demands))
    for directive in found:
        world.load(by_id[directive.node_id], directive.revision)
    return len(found)


def _asked(name: str, tasks: Sequence[Task], now: float) -> Asked:
    done = [task.job.answer for task in tasks if task.done is not None]
    return Asked(
        card_id=name,
        last_hour=sum(task.job.at > now - HOUR for task in tasks),
        in_all=len(tasks),
        prompt_tokens=round(sum(task.job.prompt for task in tasks) / len(tasks)),
        answer_tokens=round(sum(done) / len(done)) if done else ANSWER_TOKENS_UNKNOWN,
        answer_share=None,
    )


def _demands(world: World) -> list[Demand]:
    came: dict[str, list[Task]] = defaultdict(list)
    for task in world.tasks:
        if world.now - LATE_HOURS * HOUR < task.job.at <= world.now:
            came[task.job.model].append(task)
    waiting: dict[str, int] = defaultdict(int)
    for task in world.queue.values():
        waiting[task.job.model] += 1
    found: list[Demand] = []
    for name, tasks in came.items():
        asked = _asked(name, tasks, world.now)
        rate = max(asked.jobs_per_hour, waiting[name])
        found.append(Demand(model(name), name, rate, asked.prompt_tokens, asked.answer_tokens))
    found.sort(key=lambda demand: (-demand.jobs_per_hour, demand.revision))
    return found[:DEMANDS_MAX]


def _facts(world: World, host: Host) -> IdleHost:
    """A Mac as the coordinator knows it; it holds what it was asked to hold."""
    return IdleHost(
        node_id=host.mac.name,
        hardware=host.mac.hardware,
        lent_bytes=host.mac.hardware.lent_bytes,
        loaded=frozenset(host.held.values()),
        on_disk=ON_DISK,
        models_max=host.mac.hardware.models_max,
        held_bytes=sum(model(name).weights_bytes for name in host.held.values()),
        changed_seconds=world.now - host.changed_at,
    )
