"""Macs at work in simulated time: models load, prompts are read, batches decode, owners come back.

A host reads prompts one after the other, and decodes nothing meanwhile; then every attempt gets a
token a step, whose length depends on how many there are. When its owner returns, a host forgets its
models, and its attempts are queued again with what they delivered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from coordinator.placement.fleet import Fleet
from coordinator.placement.types import HostFacts, JobFacts, Placed, SlotFacts
from node_agent.sizing.speed import prompt_seconds, step_seconds
from node_agent.sizing.work import machine_of, work_of
from tests.benchmarks.placement.scenes import Job, Mac, Scene, hardware_of, model


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
    """A Mac at work: its slot's tasks, and what it does until when."""

    mac: Mac
    row: int
    slot: int = -1
    model: str = ""
    is_lent: bool = False
    tasks: list[Task] = field(default_factory=list[Task])
    loaded_at: float = 0.0
    at: float = 0.0
    version: int = 0
    served: int = 0
    hungry: float = 0.0


class Policy(Protocol):
    """Who gets what: called whenever something changed."""

    def place(self, world: World) -> None: ...


@lru_cache(maxsize=200_000)
def _step(kind: int, name: str, batch: int, context: int) -> float:
    machine = machine_of(hardware_of(kind))
    return step_seconds(work_of(model(name)), machine, context_tokens=context, batch=batch)


@lru_cache(maxsize=200_000)
def _prompt(kind: int, name: str, tokens: int) -> float:
    return prompt_seconds(work_of(model(name)), machine_of(hardware_of(kind)), tokens)


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
            plan = choice.new_slot
            facts = SlotFacts(
                f"slot_{row}", task.job.model, plan.bytes, plan.width, plan.tokens_max, 0, is_warm=True
            )
            host.slot = self.fleet.make_slot(row, facts, plan.evict_slot_ids)
            host.model = task.job.model
            host.loaded_at = self.now + choice.forecast.load_seconds
            self.given.append((self.now, plan.bytes, host.mac.hardware.lent_bytes))
        elif slot != host.slot:
            raise AssertionError("a seat in a slot that is not there")
        _ = self.queue.pop(task.job.name)
        task.started = task.started if task.started is not None else self.now
        task.waited = max(task.waited, self.now - task.waiting_since)
        task.is_read, task.reading, task.left = False, 0.0, float(task.job.answer - task.delivered)
        task.ends = (
            max(self.now, host.loaded_at) + choice.forecast.total_seconds - choice.forecast.load_seconds
        )
        host.tasks.append(task)
        host.served += 1
        self.fleet.set_live(host.slot, len(host.tasks))
        self.fleet.give(row, choice.forecast.total_seconds, now_seconds=self.now)
        self._expect(host)
        self._schedule(host)

    # -- events ------------------------------------------------------------------------------------

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, what))

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
            host.slot, host.model = int(self.fleet.first_slot[host.row]), first or ""

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
            host.tasks, host.is_lent, host.slot, host.model = [], False, -1, ""
            host.version += 1
            self.fleet.replace(host.row, self._facts(host.mac, is_lent=False), now_seconds=self.now)

        return withdraw

    def _facts(self, mac: Mac, *, is_lent: bool, first: str | None = None) -> HostFacts:
        slots: tuple[SlotFacts, ...] = ()
        if first is not None:
            slots = (SlotFacts("slot_first", first, mac.hardware.lent_bytes, 2, 8192, 0, is_warm=True),)
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
            given_seconds=row_given,
            survival=(0.999,) * 168 if mac.is_dedicated else (0.6,) * 168,
        )

    # -- work --------------------------------------------------------------------------------------

    def _seconds(self, host: Host) -> float:
        """A step of the batch as it is."""
        read = [task for task in host.tasks if task.is_read]
        context = sum(t.job.prompt + t.job.answer - t.left for t in read) / len(read)
        return _step(host.mac.kind, host.model, len(read), 256 * round(context / 256)) / host.mac.factor

    def _next(self, host: Host) -> tuple[float, Task | None]:
        """(seconds to the next change, the task whose prompt is being read)."""
        unread = next((task for task in host.tasks if not task.is_read), None)
        if unread is not None:
            return unread.prompt_left(host), unread
        return self._seconds(host) * max(min(task.left for task in host.tasks), 0.0), None

    def _advance(self, host: Host) -> None:
        """Work until now."""
        host.at = max(host.at, min(host.loaded_at, self.now))
        while host.tasks and host.at < self.now:
            left, unread = self._next(host)
            spent = min(left, self.now - host.at)
            if unread is not None:
                unread.read_for(spent, host)
            else:
                steps = spent / self._seconds(host)
                for task in host.tasks:
                    task.left -= steps
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
