"""What one coordinator process consists of, put together once from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Final

import structlog
from starlette.concurrency import run_in_threadpool

from coordinator import clock, errors
from coordinator.accounts.service import ensure_ledger_accounts
from coordinator.catalogue.cards import Catalogue, load_catalogue
from coordinator.catalogue.tokenizer_files import Tokenizers
from coordinator.commits import GroupCommit
from coordinator.db import (
    Database,
    DatabaseBusy,
    DatabaseFull,
    DatabaseUnavailable,
    make_engine,
    migrate,
)
from coordinator.dispatch import Dispatcher
from coordinator.endings import Endings
from coordinator.explain import unservable_text
from coordinator.jobs import prefixes
from coordinator.jobs import service as jobs
from coordinator.jobs.decisions import Decisions
from coordinator.jobs.payloads import PayloadBox, PayloadError
from coordinator.jobs.quotes import Quotes
from coordinator.jobs.schemas import Work
from coordinator.jobs.states import JobState
from coordinator.jobs.stream import Ending, JobStream
from coordinator.jobs.wishes import with_wishes
from coordinator.live import LiveJob, LiveJobs
from coordinator.mac_key import MacKey
from coordinator.nodes.away import away_hosts
from coordinator.nodes.channel import Channel, Fleet
from coordinator.nodes.nonces import Nonces
from coordinator.nodes.tallies import Tallies
from coordinator.openai import prompt
from coordinator.openai.request import GenerationRequest
from coordinator.openai.results import whole_result
from coordinator.placement.match import match
from coordinator.placement.slot_plans import plan_slot
from coordinator.placement.types import JobFacts, NotPlaced, Placed
from coordinator.policy.demand import DemandGauge
from coordinator.policy.rate_cards import ensure_first_card
from coordinator.policy.records import log_cards
from coordinator.prefix_writer import PrefixWriter
from coordinator.relay import Relay
from coordinator.seats.watch import StandingWatch
from coordinator.settings import Settings
from coordinator.sliding_limit import SlidingLimit
from coordinator.sole_use import InUseError, SoleUse
from coordinator.tokens import CardTokenizer
from coordinator.wakeups import LocalWakeups, RedisWakeups, Wakeups
from node_agent.protocol.cards import ModelCard, UnpinnedCard
from node_agent.protocol.messages import Hold

log = structlog.get_logger()

DISPATCH_TOPIC: Final = "dispatch"
GREETING_ALIAS: Final = "small"
VOUCHER_TRIES_MAX: Final = 20  # an account's in an hour: a code's 118 bits need no less
HOUR_SECONDS: Final = 3600.0
MINUTE_SECONDS: Final = 60.0
DRAIN_LOOK_SECONDS: Final = 0.05


class Runtime:
    """The parts of one process. `start` and `stop` run on the event loop."""

    def __init__(self, settings: Settings) -> None:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.settings: Final = settings
        engine = make_engine(settings.sqlalchemy_url)
        migrate(engine)
        self.sole_use: Final = SoleUse(engine)
        try:
            self.sole_use.acquire()
        except InUseError:
            engine.dispose()
            raise
        self.database: Final = Database(engine)
        with self.database.write() as session:
            ensure_ledger_accounts(session, self.database.now_us(session))
        with self.database.write() as session:
            ensure_first_card(session, self.database.now_us(session))
        self.commits: Final = GroupCommit(self.database)
        self.catalogue: Final[Catalogue] = load_catalogue(settings.catalogue_dirs)
        with self.database.write() as session:
            log_cards(session, self.catalogue.cards.values(), now_us=self.database.now_us(session))
        self.demand: Final = DemandGauge(self.database)
        self.voucher_limit: Final = SlidingLimit(tries_max=VOUCHER_TRIES_MAX, window_seconds=HOUR_SECONDS)
        self.payloads: Final = PayloadBox.from_file(settings.home / "payload.key")
        mac_key = MacKey.from_file(settings.home / "mac.key")
        self.quotes: Final = Quotes(mac_key)
        self.nonces: Final = Nonces(mac_key)
        self.quote_limit: Final = SlidingLimit(
            tries_max=settings.quotes_per_minute_max, window_seconds=MINUTE_SECONDS
        )
        self.tokenizers: Final = Tokenizers(
            settings.home,
            self.catalogue,
            models_dir=settings.models_dir,
            template_seconds_max=settings.template_seconds_max,
        )
        self.wakeups: Final[Wakeups] = (
            RedisWakeups(settings.redis_url.get_secret_value()) if settings.redis_url else LocalWakeups()
        )
        self.fleet: Final = Fleet()
        self.enrolment_limit: Final = SlidingLimit(
            tries_max=settings.enrolments_per_address_max, window_seconds=settings.enrolment_seconds
        )
        self.approval_limit: Final = SlidingLimit(
            tries_max=settings.wrong_codes_per_account_max, window_seconds=settings.enrolment_seconds
        )
        self.jobs: Final = LiveJobs()
        self.endings: Final = Endings(
            settings=settings, commits=self.commits, fleet=self.fleet, payloads=self.payloads
        )
        self.relay: Final = Relay(settings=settings, fleet=self.fleet, jobs=self.jobs, endings=self.endings)
        self.prefix_writer: Final = PrefixWriter(
            settings=settings, jobs=self.jobs, commits=self.commits, payloads=self.payloads
        )
        self.dispatcher: Final = Dispatcher(
            settings=settings,
            database=self.database,
            fleet=self.fleet,
            relay=self.relay,
            endings=self.endings,
            commits=self.commits,
            take_up=self.live_of,
            cards=self.catalogue.cards.values(),
        )
        self.decisions: Final = Decisions()
        self.tallies: Final = Tallies()
        self.dispatcher.observers += (self.decisions, self.tallies)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.endings.wake_dispatch = self.dispatcher.wake
        self.fleet.on_change = self.dispatcher.wake
        self.is_draining = False
        self._hints: Final[set[asyncio.Task[None]]] = set()
        self.standing: Final = StandingWatch(
            self.database,
            self.fleet,
            self.jobs,
            suspect_seconds=settings.node_suspect_seconds,
            always_demanded=self._greeting_card_id,
        )
        self._tasks: Final[list[asyncio.Task[None]]] = []

    async def start(self) -> None:
        """Begin to listen, to place jobs and to watch leases."""
        self._loop = asyncio.get_running_loop()
        await self.wakeups.start()
        self._tasks.append(asyncio.create_task(self.dispatcher.run()))
        self._tasks.append(asyncio.create_task(self.dispatcher.residency.run()))
        self._tasks.append(asyncio.create_task(self.relay.leases.sweep_forever()))
        self._tasks.append(asyncio.create_task(self.prefix_writer.run_forever()))
        self._tasks.append(asyncio.create_task(self._pass_wakeups_on()))
        self._tasks.append(asyncio.create_task(self.standing.run()))

    async def drain(self) -> None:
        """Before sockets and requests are closed: let answers end, then store the others.

        Nothing is placed any more. Answers that somebody reads get `drain_seconds` to end; then
        every reader is sent away with what to do, and the jobs go on where they are after a restart.
        """
        self.is_draining = True
        self.dispatcher.stop_offers()
        until = clock.monotonic() + self.settings.drain_seconds
        while self.jobs.is_any_read() and clock.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        for live in self.jobs:
            if live.ended_at is None:
                live.stream.cut_off(errors.coordinator_restarting(live.job_id))
        with contextlib.suppress(DatabaseBusy, DatabaseFull, DatabaseUnavailable):
            _ = await self.prefix_writer.flush()

    async def stop(self) -> None:
        """Stop placing, write what has ended, let go of everything."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.endings.drain()
        await self.standing.finish()
        try:
            await run_in_threadpool(self.dispatcher.release)
        except (DatabaseBusy, DatabaseFull, DatabaseUnavailable) as error:
            log.warning("lease_not_released", error=type(error).__name__)
        await run_in_threadpool(self.commits.stop)
        await self.wakeups.close()
        self.tokenizers.close()
        self.sole_use.release()
        self.database.close()

    async def _pass_wakeups_on(self) -> None:
        async with self.wakeups.subscribe(DISPATCH_TOPIC) as woken:
            while True:
                await woken.wait()
                woken.clear()
                self.dispatcher.wake()

    def publish_later(self, topic: str) -> None:
        """Wake whoever waits on `topic`, on any replica, without waiting for it."""
        task = asyncio.get_running_loop().create_task(self.wakeups.publish(topic))
        self._hints.add(task)
        task.add_done_callback(self._hints.discard)

    # -- submitting ------------------------------------------------------------------------------

    def prepare(self, request: GenerationRequest) -> tuple[ModelCard, CardTokenizer, Work]:
        """Card, tokenizer and work of a request: names resolved, prompt rendered, limits checked.

        Blocking. Raises `ApiError`: 404 for an unknown model, 400 for a request that does not
        fit the model.
        """
        card = self.catalogue.resolve(request.model)
        if card is None:
            raise self.missing_model(request.model, kind="chat" if request.kind == "chat" else None)
        tokenizer = self.tokenizers.get(card)
        ids = prompt.prompt_ids(request, tokenizer, context_tokens=card.context_tokens)
        max_tokens = prompt.answer_tokens_max(
            request,
            prompt_tokens=len(ids),
            context_tokens=card.context_tokens,
            default_tokens=self.settings.answer_tokens_default,
        )
        work = Work(
            kind=request.kind,
            prompt_ids=tuple(ids),
            max_tokens=max_tokens,
            stop=request.stop,
            sampling=request.wire_sampling(seed_if_none=secrets.randbits(63)),
            top_logprobs=request.top_logprobs,
        )
        return card, tokenizer, work

    def missing_model(self, name: str, *, kind: str | None = None) -> errors.ApiError:
        """Why nothing runs under this name: nobody knows it, or its files are not pinned."""
        nearest = self.catalogue.nearest(name, kind=kind)
        known = self.catalogue.known(name)
        if isinstance(known, UnpinnedCard):
            return errors.model_not_served(known.id, known.source.repo, nearest)
        return errors.model_not_found(name, nearest)

    def make_live(
        self,
        *,
        job_id: str,
        account_id: str,
        card: ModelCard,
        tokenizer: CardTokenizer,
        work: Work,
        is_async: bool,
        created_us: int,
    ) -> LiveJob:
        """The job as the relay carries it."""

        def result(stream: JobStream, ending: Ending) -> bytes:
            return whole_result(
                stream,
                ending,
                job_id=job_id,
                kind=work.kind,
                card=card,
                created_us=created_us,
                wants_logprobs=work.top_logprobs is not None,
            )

        return LiveJob(
            job_id=job_id,
            account_id=account_id,
            card=card,
            work=work,
            is_async=is_async,
            vocabulary=tokenizer.vocabulary,
            make_result=result,
            created_us=created_us,
        )

    async def live_of(self, job_id: str) -> LiveJob | None:
        """The job as the relay carries it, taken up from the database if it is queued there.

        None if it is not queued and not carried (any more).
        """
        live = self.jobs.get(job_id)
        if live is None:
            revived = await run_in_threadpool(self.revive, job_id, "queued")
            live = self.relay.add(revived) if revived is not None else self.jobs.get(job_id)
        return live

    def revive(self, job_id: str, state: JobState = "running") -> LiveJob | None:
        """A job in this state that this process does not carry yet, with what was delivered of it,
        from the database. Blocking."""
        with self.database.read() as session:
            job = session.get(jobs.Job, job_id)
            if job is None or job.state != state:
                return None
            card = self.catalogue.by_revision(job.card_id, job.card_revision)
            if card is None:
                log.error("card_of_job_is_gone", job_id=job_id, card=job.card_id)
                return None
            try:
                work = jobs.load_work(session, job_id, self.payloads)
                prefix = prefixes.load(session, job_id, self.payloads)
                tokenizer = self.tokenizers.get(card)
            except (PayloadError, errors.ApiError) as error:
                log.error("job_cannot_be_revived", job_id=job_id, error=str(error))  # noqa: TRY400
                return None
            live = self.make_live(
                job_id=job.id,
                account_id=job.account_id,
                card=card,
                tokenizer=tokenizer,
                work=work,
                is_async=job.is_async,
                created_us=job.created_us,
            )
            # If its submitter's connection is an earlier process's, it is gone.
            live.is_orphaned = not job.is_async and not work.is_kept
            if prefix is not None:
                live.restore(prefix)
                live.waiting_since = clock.monotonic()
            return live

    def refuse_hopeless(self, account_id: str, card: ModelCard, work: Work) -> None:
        """Raise 422 at once if no host could ever take the job.

        With no host connected at all the job waits, and also if a Mac that was here lately could
        run it: they may be about to come. Blocking.
        """
        job = JobFacts(
            job_id="",
            card=card,
            prompt_tokens=len(work.prompt_ids),
            max_tokens=work.max_tokens,
            submitter_id=account_id,
        )
        job = with_wishes(job, work.wishes)
        verdict = self.dispatcher.judge(job)
        if not isinstance(verdict, NotPlaced) or verdict.is_ever or not verdict.rejected:
            return
        with self.database.read() as session:
            since_us = self.database.now_us(session) - int(self.settings.queue_seconds_max * 1e6)
            away = away_hosts(
                session,
                least_bytes=verdict.needed_bytes,
                since_us=since_us,
                unsettled=self.dispatcher.book.unsettled(),
            )
        if isinstance(found := match(job, away), Placed) or found.is_ever:
            return
        if self._loop is not None:
            _ = self._loop.call_soon_threadsafe(self._count_refused, job)
        raise errors.job_unservable(unservable_text(job, verdict))

    def _count_refused(self, job: JobFacts) -> None:
        """Owners are told of jobs that nobody could run: more lent memory would bring them."""
        book = self.dispatcher.book
        with book.lock:
            self.tallies.count_refused(job, book.table)

    # -- nodes -----------------------------------------------------------------------------------

    def _greeting_card_id(self) -> str | None:
        card = self.catalogue.resolve(GREETING_ALIAS)
        return card.id if card is not None else None

    def greet(self, channel: Channel) -> None:
        """Ask a node that has nothing loaded, because it just came or its runner crashed, to make
        ready what is most in demand, or else the small model, so that its next job need not wait."""
        if channel.slots:
            return
        card = self.dispatcher.residency.card_for(channel) or self.catalogue.resolve(GREETING_ALIAS)
        if card is None:
            return
        least = JobFacts(job_id="", card=card, prompt_tokens=1, max_tokens=1)
        if plan_slot(least, channel.hardware.lent_bytes) is not None:
            _ = channel.send(Hold(card=card))
