"""What idle Macs are asked to hold, so that jobs find their model loaded.

Once a minute the jobs of the last hours and those that wait are set against what Macs hold, and
`placement.residency` plans the changes that save most; each becomes a `hold` frame. What an idle
Mac says it has loaded gets a slot, so that placement finds it. Steps run on the event loop's
thread; reading and planning run in others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import structlog
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from coordinator import clock
from coordinator.db import Database, database_now_us
from coordinator.fair_shares import first_id
from coordinator.fleet_book import FleetBook
from coordinator.jobs.models import Job
from coordinator.live import LiveJobs
from coordinator.nodes.channel import Channel, Fleet
from coordinator.nodes.health_book import HealthBook
from coordinator.placement.residency import Demand, Directive, IdleHost, jobs_per_hour, plan
from coordinator.placement.slot_plans import WIDTH_MAX, bytes_at_most, plan_slot
from coordinator.placement.types import JobFacts, SlotPlan
from coordinator.reservations import Reservations
from coordinator.settings import Settings
from node_agent.protocol.cards import ModelCard
from node_agent.protocol.messages import REVISION_DIGITS, Hold

log = structlog.get_logger()

LATE_HOURS: Final = 6  # jobs of so many hours tell what will be asked
REFUSED_SECONDS: Final = 1800.0  # a model that a Mac could not make ready is not asked of it for this long
DISK_SPARE_BYTES: Final = 16 << 30  # nobody's disk is filled further for jobs that may come
HOSTS_MAX: Final = 300  # idle Macs that one step plans for; the others have their turn after them
DEMANDS_MAX: Final = 30
DONE_LEAST: Final = 20  # answers that tell how long answers are
ANSWER_TOKENS_UNKNOWN: Final = 200  # of a model whose jobs all wait still


@dataclass(frozen=True)
class Asked:
    """Jobs of one card: those of the last hour, those of the hours before, and a usual one of them.

    `answer_share` is how much of the longest answer that was allowed is made on average.
    """

    card_id: str
    last_hour: int
    in_all: int
    prompt_tokens: int
    answer_tokens: int
    answer_share: float | None

    @property
    def jobs_per_hour(self) -> float:
        """The last hour's pace, or that of all the hours if it was higher: demand comes back."""
        return max(self.last_hour, self.in_all / LATE_HOURS)


def read_asked(session: Session) -> list[Asked]:
    """What was asked lately, by card."""
    now_us = database_now_us(session)
    since_us, hour_us = now_us - LATE_HOURS * 3_600_000_000, now_us - 3_600_000_000
    rows = session.execute(
        select(
            Job.card_id,
            func.sum(case((Job.created_us > hour_us, 1), else_=0)),
            func.count(),
            func.avg(Job.prompt_tokens),
            func.avg(case((Job.state == "done", Job.output_tokens))),
            func.avg(case((Job.state == "done", Job.max_tokens))),
            func.sum(case((Job.state == "done", 1), else_=0)),
        )
        .where(Job.id > first_id("job", since_us), Job.created_us > since_us)
        .group_by(Job.card_id)
        .order_by(Job.card_id)
    )
    return [
        Asked(
            card_id=card_id,
            last_hour=int(last_hour),
            in_all=in_all,
            prompt_tokens=round(prompt),
            answer_tokens=round(answer or ANSWER_TOKENS_UNKNOWN),
            answer_share=float(answer / longest) if done >= DONE_LEAST else None,
        )
        for card_id, last_hour, in_all, prompt, answer, longest, done in rows
    ]


@final
class Residency:
    """Asks Macs to hold models. One for a dispatcher."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        channels: Fleet,
        jobs: LiveJobs,
        health: HealthBook,
        book: FleetBook,
        reservations: Reservations,
        cards: Collection[ModelCard],
    ) -> None:
        self._settings: Final = settings
        self._database: Final = database
        self._channels: Final = channels
        self._jobs: Final = jobs
        self._health: Final = health
        self._book: Final = book
        self._reservations: Final = reservations
        self._cards: Final = {card.id: card for card in cards}
        self._revisions: Final = {card.revision: card for card in cards}
        self._asked_of: Final[dict[str, tuple[float, str]]] = {}
        self._demands: Sequence[Demand] = ()
        self._supply: Mapping[str, float] = {}
        self._answer_shares: Mapping[str, float] = {}
        self._next_host = ""
        self.steps = 0

    async def run(self) -> None:
        """A step now and then until cancelled."""
        while True:
            try:
                await self.step()
            except Exception:
                log.exception("residency_failed")
            await asyncio.sleep(self._settings.residency_seconds)

    async def step(self) -> list[Directive]:
        """Plan from what is now, and send what is to be held; what was sent."""
        asked = await run_in_threadpool(self._read)
        now = clock.monotonic()
        self._demands = self._demands_of(asked)
        self._answer_shares = {one.card_id: one.answer_share for one in asked if one.answer_share is not None}
        idle, busy = self._hosts(now)
        chosen = self._turn(idle)
        self._supply = supply_of([*busy, *(host for host in idle if host not in chosen)], self._demands)
        found = await run_in_threadpool(plan, chosen, self._demands, busy_jobs_per_hour=self._supply)
        self._supply = supply_of([*busy, *idle], self._demands)
        sent = [directive for directive in found if self._send(directive)]
        self.steps += 1
        return sent

    def card_for(self, channel: Channel) -> ModelCard | None:
        """What a node that has nothing loaded should hold first, or None if nothing is in demand."""
        host = self._host(channel, clock.monotonic())
        # Whatever it was asked for before went with its runner.
        host = replace(host, loaded=frozenset(), changed_seconds=float("inf"))
        for directive in plan([host], self._demands, busy_jobs_per_hour=self._supply):
            self._note(channel.node_id, directive.revision)
            return self._revisions[directive.revision]
        return None

    def expect(self, job: JobFacts) -> JobFacts:
        """The job with the length of answer that its time is forecast from: as much of the longest
        as the model's jobs made lately. Without enough of them, as it is."""
        share = self._answer_shares.get(job.card.id)
        if share is None or job.answer_tokens_expected is not None:
            return job
        return replace(job, answer_tokens_expected=max(round(job.max_tokens * share), 1))

    # -- what is asked, and who could hold it ----------------------------------------------------

    def _read(self) -> list[Asked]:
        with self._database.read() as session:
            return read_asked(session)

    def _demands_of(self, asked: Sequence[Asked]) -> list[Demand]:
        """What a model's jobs ask for an hour, waiting ones counted even if they came long before."""
        waiting: dict[str, int] = {}
        for live in self._jobs.open():
            if live.attempt is None and not live.is_ending:
                waiting[live.card.id] = waiting.get(live.card.id, 0) + 1
        found = [
            Demand(
                card=card,
                revision=card.revision,
                jobs_per_hour=max(one.jobs_per_hour, waiting.get(one.card_id, 0)),
                prompt_tokens=max(one.prompt_tokens, 1),
                answer_tokens=max(one.answer_tokens, 1),
            )
            for one in asked
            if (card := self._cards.get(one.card_id)) is not None
        ]
        found.sort(key=lambda demand: (-demand.jobs_per_hour, demand.revision))
        return found[:DEMANDS_MAX]

    def _hosts(self, now: float) -> tuple[list[IdleHost], list[IdleHost]]:
        """Macs that may be told what to hold, and those that have work to do."""
        at_work = self._jobs.attempts_by_node()
        idle: list[IdleHost] = []
        busy: list[IdleHost] = []
        for channel in self._channels.channels.values():
            if at_work.get(channel.node_id):
                busy.append(self._host(channel, now))
            elif self._is_idle(channel, now):
                idle.append(self._host(channel, now))
        return idle, busy

    def _is_idle(self, channel: Channel, now: float) -> bool:
        is_heard = now - channel.heard_at <= self._settings.node_suspect_seconds
        is_sound = self._health.standing(channel.device) == "sound"
        return channel.mode == "ready" and not channel.is_closed and is_heard and is_sound

    def _host(self, channel: Channel, now: float) -> IdleHost:
        asked_at, revision = self._asked_of.get(channel.node_id, (float("-inf"), ""))
        loaded = {slot.card_revision for slot in channel.slots}
        refused = {
            hold.card_revision
            for hold in channel.holds.values()
            if hold.phase == "failed" and now - asked_at < REFUSED_SECONDS
        }
        if revision and revision not in refused and now - asked_at < REFUSED_SECONDS:
            loaded.add(revision)
        # Of one that does not say what it has on its disk, only that it can fetch is known.
        on_disk = {known for known in self._revisions if known[:REVISION_DIGITS] in (channel.on_disk or ())}
        return IdleHost(
            node_id=channel.node_id,
            hardware=channel.hardware,
            lent_bytes=channel.hardware.lent_bytes,
            loaded=frozenset(loaded),
            on_disk=frozenset(on_disk | loaded),
            disk_free_bytes=_room_on_disk(channel),
            network_bytes_per_second=self._settings.fetch_bytes_per_second,
            changed_seconds=now - max(asked_at, channel.changed_at),
            refused=frozenset(refused),
            models_max=channel.hardware.models_max,
            held_bytes=sum(slot.bytes for slot in channel.slots),
        )

    def _turn(self, idle: Sequence[IdleHost]) -> list[IdleHost]:
        """The next of the idle Macs, in the order of their ids, after those of the last step."""
        order = sorted(idle, key=lambda host: (host.node_id <= self._next_host, host.node_id))
        found = order[:HOSTS_MAX]
        self._next_host = found[-1].node_id if len(order) > HOSTS_MAX else ""
        return found

    # -- asking ----------------------------------------------------------------------------------

    def _send(self, directive: Directive) -> bool:
        channel = self._channels.get(directive.node_id)
        if channel is None or self._jobs.attempts_by_node().get(directive.node_id):
            return False
        if not channel.send(Hold(card=self._revisions[directive.revision])):
            return False
        self._note(directive.node_id, directive.revision)
        log.info("hold_asked", node_id=directive.node_id, card=self._revisions[directive.revision].id)
        return True

    def _note(self, node_id: str, revision: str) -> None:
        for gone in [known for known in self._asked_of if self._channels.get(known) is None]:
            del self._asked_of[gone]
        self._asked_of[node_id] = (clock.monotonic(), revision)

    # -- what is loaded gets a slot --------------------------------------------------------------

    async def adopt(self, node_ids: Sequence[str]) -> list[str]:
        """Make slots for what these nodes have loaded without one, if nothing runs there; the nodes
        whose slots changed. Between two decisions only."""
        found: list[str] = []
        for node_id in node_ids:
            wanted = self._unslotted(node_id)
            if wanted is not None:
                card, slot_plan = wanted
                if await run_in_threadpool(self._reservations.make_slot, node_id, card, slot_plan):
                    found.append(node_id)
        return found

    def _unslotted(self, node_id: str) -> tuple[ModelCard, SlotPlan] | None:
        """The model to make a slot for: the first that it names of those without one."""
        channel, row, table = self._channels.get(node_id), self._book.row(node_id), self._book.table
        if channel is None or row is None or table.live[row]:
            return None
        here = list(table.slots.of(int(table.first_slot[row])))
        slotted = {table.slots.revision(slot) for slot in here}
        loaded = [slot.card_revision for slot in channel.slots]
        unslotted = [one for one in loaded if one not in slotted and one in self._revisions]
        if not unslotted:
            return None
        card = self._revisions[unslotted[0]]
        gone = [slot for slot in here if table.slots.revision(slot) not in loaded]
        hardware, width = channel.hardware, min(WIDTH_MAX, channel.hardware.width)
        least = JobFacts(job_id="", card=card, prompt_tokens=1, max_tokens=1)
        kept = sum(int(table.slots.bytes[slot]) for slot in here if slot not in gone)
        most = bytes_at_most(least, hardware.lent_bytes, hardware.models_max, width)
        found = plan_slot(least, min(hardware.lent_bytes - kept, most), width)
        if found is None or len(here) - len(gone) >= hardware.models_max:
            return None
        return card, replace(found, evict_slot_ids=tuple(table.slots.slot_id(slot) for slot in gone))


def _room_on_disk(channel: Channel) -> int:
    """What may be fetched in advance; a node that does not say how much it has will refuse."""
    if channel.disk_free_bytes is None:
        return 1 << 62
    return max(channel.disk_free_bytes - DISK_SPARE_BYTES, 0)


def supply_of(hosts: Sequence[IdleHost], demands: Sequence[Demand]) -> dict[str, float]:
    """Jobs an hour that these hosts serve with what they have loaded, by revision. Models of one host
    share its time."""
    found: dict[str, float] = {}
    asked = {demand.revision for demand in demands}
    for demand in demands:
        rates = [
            jobs_per_hour(host, demand) / len(host.loaded & asked)
            for host in hosts
            if demand.revision in host.loaded
        ]
        if rates:
            found[demand.revision] = sum(rates)
    return found
