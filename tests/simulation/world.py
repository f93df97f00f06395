"""One world: a coordinator, Macs, submitters and what goes wrong, until all is calm and done."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Final, cast, final

from sqlalchemy import Connection

from coordinator import clock
from coordinator.nodes import endpoints as nodes_api
from ledger import statements
from node_agent.protocol import messages as wire
from tests.simulation import money
from tests.simulation.loop import START_SECONDS, StuckError, VirtualLoop, running
from tests.simulation.macs import Mac
from tests.simulation.mishaps import Mishap
from tests.simulation.model import CARDS
from tests.simulation.oracle import FINAL_JOB, LIVE_ATTEMPT, Oracle
from tests.simulation.process import DATABASE_ERRORS, Coordinator, substitutes
from tests.simulation.scenario import FALSE_CONTENT, NETWORK_FAULTS, Fault, Scenario
from tests.simulation.sockets import CLOSE_ERROR, CLOSE_NORMAL, Socket
from tests.simulation.storage import ORIGIN, WALL_START_NS, Storage, storage
from tests.simulation.submitters import Submitter

QUIET_SECONDS_MAX: Final = 6000.0  # after all faults; the slowest Mac needs 180 s for one answer
LOOK_SECONDS: Final = 5.0
NOTHING_DONE: Final = ("expired", "no_host_available", 0)
RESERVE_SECONDS_MAX: Final = 60.0
LEASE_SECONDS_MAX: Final = 75.0  # a node is lost after 30 s; a dead connection may show after 40 s
REPAIR_SECONDS: Final = 10.0
OWNER_GRACE_SECONDS: Final = 1.0
REFUSALS: Final = frozenset({4400, 4401, 4403, 4409, 4426})
STORY_MAX: Final = 20_000


@dataclass
class Outcome:
    """What became of one world."""

    seed: int
    violations: list[str] = field(default_factory=list[str])
    virtual_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    attempts: int = 0
    commits: int = 0
    story: list[str] = field(default_factory=list[str])


@final
class World:
    """Everything of one seed. Use `run` once."""

    running: ClassVar[World | None] = None

    def __init__(self, scenario: Scenario, store: Storage, *, is_told: bool) -> None:
        self.scenario: Final = scenario
        self.outcome: Final = Outcome(scenario.seed)
        self.loop: Final = VirtualLoop()
        self._store: Final = store
        self._is_told: Final = is_told
        self._draws: Final = scenario.draws
        self._wall_offset_ns = 0
        self._over: Final = self.loop.create_future()
        self._sockets: Final[list[Socket]] = []
        self._connections = 0
        self.is_calm = False
        self._gone_since: dict[str, float] = {}
        self._live_since: dict[tuple[str, int], float] = {}
        self._chosen_since: dict[str, float] = {}
        self.mishap: Final = Mishap(self._draws.of("mishaps"), self._committed, self._die_inside)
        self.coordinator: Final = Coordinator(
            self.loop, store.settings, self._draws.of("coordinator"), self.tell
        )
        self.coordinator.on_gone = self._coordinator_gone
        self.macs: Final = [self._mac(n) for n in range(len(scenario.nodes))]
        liars = frozenset(mac.node_id for mac in self.macs if mac.liar is not None)
        self._false: Final = frozenset(mac.node_id for mac in self.macs if mac.spec.lie in FALSE_CONTENT)
        self._look: Final = store.look()
        self.oracle: Final = Oracle(
            self._look,
            now=self.loop.time,
            violate=self.violate,
            tell=self.tell,
            honest=frozenset(mac.node_id for mac in self.macs) - liars,
        )
        self.submitters: Final = [self._submitter(n) for n in range(len(scenario.jobs))]

    def _mac(self, index: int) -> Mac:
        spec = self.scenario.nodes[index]
        known = self._store.nodes[spec.index]
        return Mac(
            self.loop,
            spec,
            node_id=known.node_id,
            key=known.key,
            public_key=known.public_key,
            origin=ORIGIN,
            world=self,
        )

    def _submitter(self, index: int) -> Submitter:
        spec = self.scenario.jobs[index]
        return Submitter(
            self.loop,
            spec,
            self._store.submitters[spec.seed % len(self._store.submitters)],
            CARDS[spec.card].id,
            coordinator=self.coordinator,
            draws=self.draws_of(f"submitter/{spec.index}"),
            watch=self,
        )

    # -- what the others ask of the world --------------------------------------------------------

    def draws_of(self, name: str) -> Random:
        """Its own stream of randomness."""
        return self._draws.of(name)

    def tell(self, who: str, what: object) -> None:
        """A line for the story."""
        if self._is_told and len(self.outcome.story) < STORY_MAX:
            seconds = self.loop.time() - START_SECONDS
            self.outcome.story.append(f"{seconds:9.3f}  {who:12} {_in_words(what)}")

    def came_to_nothing(self, job_id: str) -> bool:
        """Whether no Mac took the job, which frees its key."""
        job = self.oracle.jobs.get(job_id)
        return job is not None and (job.state, job.error_code, job.charge_umlx) == NOTHING_DONE

    def violate(self, rule: str, why: str) -> None:
        """A rule is broken: the world ends."""
        self.tell("!!", f"{rule}: {why}")
        self.outcome.violations.append(f"{rule}: {why}")
        if not self._over.done():
            self._over.set_result(None)

    def internal_error(self, error: Exception) -> None:
        """A handler raised what it must not."""
        self.violate("no internal errors", f"{type(error).__name__}: {error}")

    def is_false(self, job_id: str) -> bool:
        """Whether a node that invents tokens had this job."""
        return any(
            attempt.node_id in self._false
            for key, attempt in self.oracle.attempts.items()
            if key[0] == job_id
        )

    def connect(self, mac: Mac) -> Socket | None:
        """A connection to the coordinator, or None if nobody listens."""
        life = self.coordinator.life
        if life is None or not self.coordinator.is_serving or mac.cable.is_cut:
            return None
        self._connections += 1
        draws = self.draws_of(f"socket/{mac.spec.index}/{self._connections}")
        socket = Socket(self.loop, mac.cable, mac, draws, self.coordinator.app)
        socket.server.on_read = lambda text: self._read(mac, text)
        self._sockets.append(socket)
        _ = self.loop.start(_serve_socket(socket), life)
        return socket

    def _read(self, mac: Mac, text: str) -> None:
        """The coordinator handles a frame: what a current attempt says of its owner must be taken."""
        runtime, message = self.coordinator.runtime, wire.parse_to_coordinator(text)
        if runtime is None or not isinstance(message, wire.Failed) or message.code != "reclaimed":
            return
        live = runtime.jobs.get(message.job_id)
        if live is None or live.is_ending or live.attempt is None:
            return
        if (live.attempt.fence, live.attempt.node_id) == (message.fence, mac.node_id):
            self.oracle.owner_returned.add((message.job_id, message.fence))

    def attempts_elsewhere(self, mac: Mac) -> list[tuple[str, int]]:
        """Job and fence of attempts that run on other Macs."""
        return [
            key
            for key, attempt in self.oracle.attempts.items()
            if attempt.node_id != mac.node_id and attempt.state in LIVE_ATTEMPT
        ]

    def refused(self, mac: Mac, code: int) -> None:
        """The real agent ends when it is refused; a liar's owner starts it again."""
        if code in REFUSALS and mac.liar is None:
            self.violate("an honest node is welcome", f"{mac.name} is refused with {code}")

    # -- the coordinator's ways to end -----------------------------------------------------------

    def _committed(self) -> None:
        if not self.outcome.violations:
            self.oracle.look()

    def _die_inside(self) -> None:
        _ = self.loop.after(self.draws_of("restart").uniform(0.5, 20.0), self.coordinator.start)
        self.coordinator.crash_inside()

    def _coordinator_gone(self, code: int) -> None:
        self.oracle.forget_process()
        for socket in self._sockets:
            socket.server.die(code)
        self._sockets.clear()
        for submitter in self.submitters:
            for exchange in list(submitter.open):
                exchange.break_off()
            submitter.open.clear()

    # -- the course of things --------------------------------------------------------------------

    def run(self) -> Outcome:
        """Live through it all."""
        sources = clock.Sources(self.loop.time, self._wall_ns, self._draws.of("ids").randbytes)
        with (
            running(self.loop),
            substitutes(self.loop, self._store, sources, self.mishap, self._draws.of("threads")),
        ):
            try:
                self.loop.run_until_complete(self._course())
            except StuckError as error:
                self.violate("L9 liveness", str(error))
            self._look.close()
        self.outcome.virtual_seconds = self.loop.time() - START_SECONDS
        self.outcome.commits = self.oracle.commits
        self.outcome.attempts = len(self.oracle.attempts)
        self.outcome.ends.update(job.state for job in self.oracle.jobs.values())
        return self.outcome

    def _wall_ns(self) -> int:
        return WALL_START_NS + self._wall_offset_ns + int((self.loop.time() - START_SECONDS) * 1e9)

    async def _course(self) -> None:
        self.oracle.look()
        self.coordinator.start()
        for mac in self.macs:
            mac.start()
        asking = [self.loop.start(submitter.run()) for submitter in self.submitters]
        for fault in self.scenario.faults:
            _ = self.loop.after(fault.at, self._befall, fault)
        _ = self.loop.after(self.scenario.calm_at, self._calm)
        await self._quiet(asking)
        if not self.outcome.violations:
            self._judge()

    async def _quiet(self, asking: list[asyncio.Task[None]]) -> None:
        """Wait until nothing is left to do."""
        deadline = self.loop.time() + self.scenario.calm_at + QUIET_SECONDS_MAX
        while not self._over.done():
            _ = await asyncio.wait({self._over}, timeout=LOOK_SECONDS)
            for error in self.loop.take_faults():
                self.violate("no task dies", error)
            for fault in (task.exception() for task in asking if task.done()):
                if fault is not None:
                    raise fault
            self._look_at_queue()
            self._look_at_leases()
            unrest = self._unrest(asking) if self.is_calm else ["not calm yet"]
            if not unrest:
                return
            if self.loop.time() > deadline:
                self.violate("L9 liveness", f"{QUIET_SECONDS_MAX:g} s after all faults: {'; '.join(unrest)}")

    def _look_at_queue(self) -> None:
        """L9: a job that placement has a host for is not left in the queue.

        One that nobody has come back for since a restart waits for its reader, and is given up if
        none comes: that it does not wait for ever is seen at the end.
        """
        runtime, now = self.coordinator.runtime, self.loop.time()
        refused = runtime.dispatcher.last_look if runtime is not None else {}
        found: dict[str, float] = {}
        if self.is_calm and self.coordinator.is_serving:
            for job in self.oracle.jobs.values():
                live = runtime.relay.jobs.get(job.id) if runtime is not None else None
                waits_for_reader = live is not None and live.is_orphaned and not live.stream.readers
                if job.state == "queued" and job.id not in refused and not waits_for_reader:
                    found[job.id] = self._chosen_since.get(job.id, now)
                    if now - found[job.id] > RESERVE_SECONDS_MAX:
                        self.violate("L9 liveness", f"{job.id} is chosen for, and never reserved")
        self._chosen_since = found

    def _look_at_leases(self) -> None:
        """L8: a Mac that cannot be reached loses its work, within a bound, while we are there."""
        now = self.loop.time()
        if not self.coordinator.is_serving or self.mishap.is_at_work:
            self._gone_since.clear()
            return
        for mac in self.macs:
            if mac.is_reachable:
                _ = self._gone_since.pop(mac.node_id, None)
            else:
                _ = self._gone_since.setdefault(mac.node_id, now)
        live = {key: one for key, one in self.oracle.attempts.items() if one.state in LIVE_ATTEMPT}
        self._live_since = {key: self._live_since.get(key, now) for key in live}
        for key, attempt in live.items():
            # A Mac that was away may come, be given work, and go again between two looks.
            since = max(self._gone_since.get(attempt.node_id, now), self._live_since[key])
            if now - since > LEASE_SECONDS_MAX:
                job_id, fence = key
                self.violate("L8 leases end", f"{job_id} #{fence} outlives its node's connection")

    def _unrest(self, asking: list[asyncio.Task[None]]) -> list[str]:
        found = [
            f"{job.id} is {job.state}" for job in self.oracle.jobs.values() if job.state not in FINAL_JOB
        ]
        waiting = sum(not task.done() for task in asking)
        if waiting:
            found.append(f"{waiting} submitters wait")
        for mac in self.macs:
            if mac.core is None:
                found.append(f"{mac.name} does not run")
            elif mac.core.book.attempts:
                phases = [
                    f"{one.offer.job_id}#{one.offer.fence} {one.phase.value}"
                    for one in mac.core.book.attempts.values()
                ]
                found.append(f"{mac.name} has {phases}")
            elif mac.running:
                found.append(f"{mac.name} computes for nobody")
        return found

    # -- faults ----------------------------------------------------------------------------------

    def _befall(self, fault: Fault) -> None:
        if self.is_calm:
            return
        self.outcome.faults[fault.kind] += 1
        self.tell("fault", f"{fault.kind} node {fault.node} for {fault.seconds:.1f} s")
        mac = next((mac for mac in self.macs if mac.spec.index == fault.node), None)
        if fault.kind in {
            "clock_jump",
            "database",
            "coordinator_crash",
            "coordinator_restart",
            "crash_at_commit",
        }:
            self._befall_coordinator(fault)
        elif mac is not None:
            if fault.kind not in NETWORK_FAULTS:
                self.oracle.blameless.discard(mac.node_id)
            self._befall_mac(fault, mac)

    def _befall_coordinator(self, fault: Fault) -> None:
        match fault.kind:
            case "clock_jump":
                sign = 1 if fault.amount % 2 else -1
                self._wall_offset_ns += sign * fault.amount * (10**9 // 20)
            case "database":
                self.mishap.begin_errors(fault.amount)
                _ = self.loop.after(fault.seconds, self.mishap.end_errors, fault.amount)
            case "crash_at_commit":
                self.mishap.die_at_commit(fault.amount)
            case _:
                if fault.kind == "coordinator_crash":
                    self.coordinator.crash()
                else:
                    self.coordinator.stop()
                _ = self.loop.after(fault.seconds, self.coordinator.start)

    def _befall_mac(self, fault: Fault, mac: Mac) -> None:
        after = self.loop.after
        match fault.kind:
            case "crash":
                mac.crash()
                _ = after(fault.seconds, mac.start)
            case "owner_returns":
                mac.owner_returns()
                grace = OWNER_GRACE_SECONDS + 1.5 / mac.spec.tokens_per_second
                _ = after(grace, self._check_handed_back, mac, mac.returned_at)
                _ = after(fault.seconds + REPAIR_SECONDS, mac.start)
            case "freeze" | "sleep":
                mac.freeze(is_asleep=fault.kind == "sleep")
                _ = after(fault.seconds, mac.thaw)
            case "partition":
                mac.cable.cut()
                _ = after(fault.seconds, mac.cable.mend)
            case "socket_close" if mac.socket is not None:
                mac.drop_socket()
            case "half_open" if mac.socket is not None:
                mac.socket.lose()
            case "fetch_failure":
                mac.fetch_fails = True
                _ = after(fault.seconds, mac.fetch_again)
            case "memory_short":
                mac.is_short_of_memory = True
                _ = after(fault.seconds, mac.have_memory)
            case _:
                mac.befall_runner(fault.kind, fault.seconds)

    def _check_handed_back(self, mac: Mac, returned_at: float | None) -> None:
        """L7: the owner is back; within the grace time nothing computes any more.

        A child that does not even hear is ended by force, which takes longer.
        """
        is_same = returned_at is not None and mac.returned_at == returned_at
        if is_same and mac.running and not mac.is_frozen and not mac.is_stalled:
            self.violate(
                "L7 owner first", f"{mac.name} still computes {OWNER_GRACE_SECONDS} s and a token later"
            )

    def _calm(self) -> None:
        """All is mended, for good."""
        self.is_calm = True
        self.tell("fault", "all is calm")
        self.mishap.calm()
        for mac in self.macs:
            mac.repair()
        self.coordinator.start()
        self._repair()

    def _repair(self) -> None:
        """Start again whatever ended in order after the calm, as a service manager does."""
        for mac in self.macs:
            mac.start()
        self.coordinator.start()
        _ = self.loop.after(REPAIR_SECONDS, self._repair)

    # -- at the end ------------------------------------------------------------------------------

    def _judge(self) -> None:
        """All jobs have ended, all Macs are idle: look at everything once more."""
        self.oracle.look()
        jobs, attempts = self.oracle.jobs, self.oracle.attempts
        money.check_all(self._look, jobs, attempts, self.oracle.books.endings, self.violate)
        for slot_id, live in self._look.execute("SELECT id, live FROM slots WHERE live <> 0"):
            self.violate("L4 seats", f"{slot_id} counts {live} though nothing runs")
        for job_id, part in self._look.execute("SELECT job_id, part FROM job_payloads"):
            if part != "result":
                self.violate("payloads go with the job", f"{job_id} left its {part}")
        for submitter in self.submitters:
            self._judge_submitter(submitter)
        self._judge_requests()
        with self._store.engine.connect() as connection:
            self._reconcile(connection)

    def _judge_submitter(self, submitter: Submitter) -> None:
        for job_id in submitter.job_ids:
            if job_id not in self.oracle.jobs:
                self.violate("durability", f"{submitter.name} was told of {job_id}, which is not there")
        for job_id, charge in submitter.charges.items():
            found = self.oracle.jobs[job_id].charge_umlx
            if charge != found:
                self.violate("the bill is the charge", f"{job_id}: told {charge}, charged {found}")

    def _judge_requests(self) -> None:
        """No request makes two jobs: one of them would be paid for and read by nobody."""
        requests: Counter[str] = Counter()
        for submitter in self.submitters:
            requests[submitter.account.account_id] += submitter.requests
        for account, jobs in Counter(job.account_id for job in self.oracle.jobs.values()).items():
            if jobs > requests[account]:
                self.violate("one job a request", f"{account} sent {requests[account]} and has {jobs}")

    def _reconcile(self, connection: Connection) -> None:
        for drift in statements.reconcile(connection):
            self.violate("no drift", f"{drift.rule} {drift.subject}: {drift.expected} != {drift.found}")


async def _serve_socket(socket: Socket) -> None:
    """What the server does around the endpoint: whatever it comes to, the socket is closed then."""
    try:
        await nodes_api.socket(cast("Any", socket.server))
    except DATABASE_ERRORS:
        await socket.server.end(CLOSE_ERROR)
    else:
        await socket.server.end(CLOSE_NORMAL)


def _in_words(what: object) -> str:
    if not isinstance(what, wire.Message):
        return str(what)
    hidden = {"card", "prompt_ids", "prefix_ids", "token_ids", "signature", "output_digest", "type"}
    said = what.model_dump(exclude=hidden | {"sampling", "stop_token_ids", "card_revision", "logprobs"})
    return f"<- {getattr(what, 'type', '?')} " + " ".join(f"{name}={value}" for name, value in said.items())


def simulate(scenario: Scenario, *, is_told: bool = False) -> Outcome:
    """Live through one scenario in this process' storage."""
    store = storage()
    store.reset()
    World.running = World(scenario, store, is_told=is_told)
    return World.running.run()
