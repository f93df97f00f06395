"""Macs at work in simulated time: models load, prompts are read, batches decode, owners come back.

A host reads prompts one after the other, and decodes nothing meanwhile; then every attempt gets a
token a step, whose length depends on how many there are. When its owner returns, a host forgets its
models, and its attempts are queued again with what they delivered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Protocol

from coordinator.placement.fleet import Fleet
from coordinator.placement.slot_plans import bytes_at_most, plan_slot, slot_to_make
from coordinator.placement.types import HostFacts, JobFacts, Placed, SlotFacts, SlotPlan
from node_agent.sizing.speed import load_seconds, prompt_seconds, step_seconds
from node_agent.sizing.work import machine_of, work_of
from tests.benchmarks.placement.parts import Parts
from tests.benchmarks.placement.scenes import Job, Mac, Scene, hardware_of, model

PLAN_SECONDS: Final = 60.0


@dataclass
class Task:
    """A job on its way."""

    job: Job
    delivered: int = 0
    waiting_since: float = 0.0
    started: float | None = None
    done: float | None = None
    waited: float = 0.0
    left: float = 0.0
    is_read: bool = False
    ends: float = 0.0
    reading: float = 0.0
    parts: Parts = field(default_factory=Parts)
    is_again: bool = False
    read_by: float = 0.0  # its prompt, as forecast

    def prompt_left(self, host: Host) -> float:
        """Seconds until its prompt, with what was delivered, is read."""
        whole = _prompt(host.mac.kind, self.job.model, self.job.prompt + self.delivered)
        return max(whole / host.mac.factor - self.reading, 0.0)

    def read_for(self, seconds: float, host: Host) -> None:
        """Go on reading."""
        left = self.prompt_left(host)
        self.reading += seconds
        self.is_read = seconds >= left - 1e-9


@dataclass
class Host:
    """A Mac at work: its slots, the tasks of one of them, and what it does until when."""

    mac: Mac
    row: int
    slot: int = -1  # the one at work, or that was so last
    held: dict[int, str] = field(default_factory=dict[int, str])  # models in memory by slot
    is_lent: bool = False
    tasks: list[Task] = field(default_factory=list[Task])
    loaded_at: float = 0.0
    changed_at: float = float("-inf")  # when it was heard that another model is loaded
    at: float = 0.0
    version: int = 0
    served: int = 0
    hungry: float = 0.0

    @property
    def model(self) -> str:
        """What is at work."""
        return self.held.get(self.slot, "")


class Policy(Protocol):
    """Who gets what: called whenever something changed; `plan` every minute, if there is one."""

    @property
    def plan(self) -> Callable[[World], object] | None: ...

    def place(self, world: World) -> None: ...


@lru_cache(maxsize=200_000)
def _step(kind: int, name: str, batch: int, context: int) -> float:
    machine = machine_of(hardware_of(kind))
    return step_seconds(work_of(model(name)), machine, context_tokens=context, batch=batch)


@lru_cache(maxsize=200_000)
def _prompt(kind: int, name: str, tokens: int) -> float:
    return prompt_seconds(work_of(model(name)), machine_of(hardware_of(kind)), tokens)


def _context(tasks: Sequence[Task]) -> int:
    """Tokens before a step on average, in steps of 256."""
    context = sum(t.job.prompt + t.job.answer - t.left for t in tasks) / len(tasks)
    return 256 * round(context / 256)


def _first_slot(mac: Mac, first: str) -> SlotFacts:
    job = JobFacts("", model(first), prompt_tokens=1, max_tokens=8191)
    hardware = mac.hardware
    most = bytes_at_most(job, hardware.lent_bytes, hardware.models_max, hardware.width)
    plan = plan_slot(job, most, hardware.width) or plan_slot(job, hardware.lent_bytes, 1)
    if plan is None:
        raise AssertionError("a first model that does not fit")
    return SlotFacts("slot_first", first, plan.bytes, plan.width, plan.tokens_max, 0, is_warm=True)


class World:
    """One scene under one policy."""

    def __init__(self, scene: Scene, policy: Policy) -> None:
        self.scene, self.policy = scene, policy
        self.now = 0.0
        self.fleet = Fleet(len(scene.macs))
        self.hosts: list[Host] = []
        self.queue: dict[str, Task] = {}
        self.tasks = [Task(job) for job in scene.jobs]
        self.claimed: set[int] = set()
        self.given: list[tuple[float, int, int]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.is_changed = True
        self.made = 0  # slots
        self.held = 0  # loads that a plan asked for
        self.open_jobs = len(self.tasks)
        for mac in scene.macs:
            row = self.fleet.put(self._facts(mac, is_lent=False))
            host = Host(mac, row)
            self.hosts.append(host)
            for start, end in mac.spans:
                if start <= scene.seconds * 3:
                    self._at(start, self._lend(host))
                    self._at(end, self._withdraw(host))
        for task in self.tasks:
            self._at(task.job.at, self._arrive(task))
        if policy.plan is not None:
            self._at(PLAN_SECONDS, self._plan)

    def run(self, until: float | None = None) -> None:
        """Until all jobs are done, or that moment has come."""
        while self._events and self.open_jobs:
            now = self._events[0][0]
            if until is not None and now > until:
                break
            self.now = now
            while self._events and self._events[0][0] <= now:
                heapq.heappop(self._events)[2]()
            if not self.is_changed:
                continue
            self.is_changed = False
            self.policy.place(self)
            for row in self.claimed:
                self._expect(self.hosts[row])
            self.claimed.clear()

    # -- what a policy asks and does ---------------------------------------------------------------

    def facts(self, task: Task) -> JobFacts:
        """A task as placement sees it."""
        job = task.job
        return JobFacts(
            job_id=job.name,
            card=model(job.model),
            prompt_tokens=job.prompt + task.delivered,
            max_tokens=job.longest - task.delivered,
            card_revision=job.model,
            answer_tokens_expected=max(job.expected - task.delivered, 20),
            submitter_id=job.submitter,
            waited_seconds=self.now - task.job.at,
        )

    def start(self, task: Task, choice: Placed, row: int, slot: int) -> None:
        """Carry out a choice."""
        host = self.hosts[row]
        self._advance(host)
        if choice.new_slot is not None:
            self._make_slot(host, task.job.model, choice.new_slot)
            # A load that has begun is not broken off.
            host.loaded_at = max(self.now, host.loaded_at) + choice.forecast.load_seconds
            host.changed_at = host.loaded_at
            self.given.append((self.now, choice.new_slot.bytes, host.mac.hardware.lent_bytes))
        elif slot != host.slot:
            if slot not in host.held or host.tasks:
                raise AssertionError("a seat in a slot that is not there, or beside another model")
            host.slot = slot
        _ = self.queue.pop(task.job.name)
        waited = self.now - task.waiting_since
        task.is_again = task.started is not None
        task.parts.wait(waited, is_again=task.is_again)
        task.started = task.started if task.started is not None else self.now
        task.waited = max(task.waited, waited)
        task.is_read, task.reading, task.left = False, 0.0, float(task.job.answer - task.delivered)
        task.ends = self.now + choice.forecast.total_seconds
        host.tasks.append(task)
        host.served += 1
        self.fleet.set_live(host.slot, len(host.tasks))
        task.read_by = task.ends - choice.forecast.decode_seconds
        forecast = choice.forecast
        self.fleet.give(row, forecast.total_seconds - forecast.wait_seconds, now_seconds=self.now)
        self._expect(host)
        self._schedule(host)

    def load(self, host: Host, name: str) -> None:
        """Let an idle host load a model that nobody sits in yet."""
        self._advance(host)
        job = JobFacts("", model(name), prompt_tokens=1, max_tokens=1, card_revision=name)
        self._make_slot(host, name, slot_to_make(job, self.fleet, host.row))
        host.loaded_at = self.now + load_seconds(job.card)
        host.changed_at = host.loaded_at
        self._expect(host)
        self.held += 1
        self.is_changed = True

    def _make_slot(self, host: Host, name: str, plan: SlotPlan) -> None:
        slots = self.fleet.slots
        host.held = {
            at: held for at, held in host.held.items() if slots.slot_id(at) not in plan.evict_slot_ids
        }
        self.made += 1
        slot_id = f"slot_{self.made}"
        facts = SlotFacts(slot_id, name, plan.bytes, plan.width, plan.tokens_max, 0, is_warm=True)
        host.slot = self.fleet.make_slot(host.row, facts, plan.evict_slot_ids)
        host.held[host.slot] = name

    # -- events ------------------------------------------------------------------------------------

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, what))

    def _plan(self) -> None:
        if self.policy.plan is not None:
            self.policy.plan(self)
        self._at(self.now + PLAN_SECONDS, self._plan)

    def _arrive(self, task: Task) -> Callable[[], None]:
        def arrive() -> None:
            task.waiting_since = self.now
            self.queue[task.job.name] = task
            self.is_changed = True

        return arrive

    def _lend(self, host: Host) -> Callable[[], None]:
        def lend() -> None:
            self.is_changed = True
            host.is_lent, host.at, host.loaded_at = True, self.now, self.now
            first = host.mac.first_model if self.now == 0 else None
            facts = replace(self._facts(host.mac, is_lent=True, first=first), hungry_seconds=host.hungry)
            self.fleet.replace(host.row, facts, now_seconds=self.now)
            host.slot = int(self.fleet.first_slot[host.row])
            host.held = {host.slot: first} if first else {}

        return lend

    def _withdraw(self, host: Host) -> Callable[[], None]:
        def withdraw() -> None:
            self.is_changed = True
            self._advance(host)
            for task in host.tasks:
                task.delivered = task.job.answer - max(round(task.left), 1)
                task.waiting_since = self.now
                self.queue[task.job.name] = task
            host.hungry = self.now - float(self.fleet.fed_at[host.row])
            host.tasks, host.is_lent, host.slot, host.held = [], False, -1, {}
            host.version += 1
            self.fleet.replace(host.row, self._facts(host.mac, is_lent=False), now_seconds=self.now)

        return withdraw

    def _facts(self, mac: Mac, *, is_lent: bool, first: str | None = None) -> HostFacts:
        slots: tuple[SlotFacts, ...] = ()
        if first is not None:
            slots = (_first_slot(mac, first),)
        row_given = 0.0
        return HostFacts(
            node_id=mac.name,
            owner_id=mac.name,
            hardware=mac.hardware,
            lent_bytes=mac.hardware.lent_bytes,
            is_online=True,
            is_suspect=False,
            mode="ready" if is_lent else "away",
            slots=slots,
            slots_max=mac.hardware.models_max,
            given_seconds=row_given,
            survival=(0.999,) * 168 if mac.is_dedicated else (0.6,) * 168,
        )

    # -- work --------------------------------------------------------------------------------------

    def _seconds(self, host: Host) -> float:
        """A step of the batch as it is."""
        read = [task for task in host.tasks if task.is_read]
        return _step(host.mac.kind, host.model, len(read), _context(read)) / host.mac.factor

    def _step_alone(self, host: Host) -> float:
        """What a step would be with one of these attempts alone."""
        return _step(host.mac.kind, host.model, 1, _context(host.tasks)) / host.mac.factor

    def _next(self, host: Host) -> tuple[float, Task | None]:
        """(seconds to the next change, the task whose prompt is being read)."""
        unread = next((task for task in host.tasks if not task.is_read), None)
        if unread is not None:
            return unread.prompt_left(host), unread
        return self._seconds(host) * max(min(task.left for task in host.tasks), 0.0), None

    def _advance(self, host: Host) -> None:
        """Work until now."""
        begins = max(host.at, min(host.loaded_at, self.now))
        for task in host.tasks:
            task.parts.loading += begins - host.at
        host.at = begins
        while host.tasks and host.at < self.now:
            left, unread = self._next(host)
            spent = min(left, self.now - host.at)
            if unread is not None:
                unread.read_for(spent, host)
                for task in host.tasks:
                    task.parts.read(spent, is_own=task is unread, is_again=task.is_again)
            else:
                step, alone = self._seconds(host), self._step_alone(host)
                for task in host.tasks:
                    task.left -= spent / step
                    task.parts.decode(spent, alone=spent / step * alone)
            # The last bits of a sum of seconds must not keep a host from ending a turn.
            host.at = self.now if spent >= self.now - host.at else host.at + max(spent, 1e-9)
            self._end_turns(host)
        host.at = max(host.at, self.now)

    def _end_turns(self, host: Host) -> None:
        for task in list(host.tasks):
            if task.is_read and task.left <= 1e-6:
                task.done = host.at
                host.tasks.remove(task)
                self.open_jobs -= 1
                self.is_changed = True

    def _schedule(self, host: Host) -> None:
        host.version += 1
        if not host.tasks:
            return
        left, _ = self._next(host)
        version = host.version

        def turn() -> None:
            if host.version != version:
                return
            self._advance(host)
            if host.is_lent:
                self.fleet.set_live(host.slot, len(host.tasks))
                self._expect(host)
            self._schedule(host)

        self._at(max(host.loaded_at, host.at) + left + 1e-6, turn)

    def _expect(self, host: Host) -> None:
        ends = [max(task.ends, self.now + 0.5) for task in host.tasks]
        self.fleet.expect_free(
            host.row, seat_at=min(ends, default=self.now), idle_at=max(ends, default=self.now)
        )
        unread = [task.read_by for task in host.tasks if not task.is_read]
        if host.slot >= 0:
            self.fleet.slots.clear_at[host.slot] = max([host.loaded_at, *unread])
