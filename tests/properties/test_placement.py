"""What holds of placement for any fleet, job and policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.catalogue.cards import load_catalogue
from coordinator.placement.fairness import OVERDUE_SECONDS, Decayed, in_order, position, work_of_job
from coordinator.placement.fleet import Fleet
from coordinator.placement.match import decide, match
from coordinator.placement.queue import place_queue
from coordinator.placement.survival import CURVE_BYTES, packed, return_rates
from coordinator.placement.types import HostFacts, JobFacts, NotPlaced, Outlook, Placed, Policy, SlotFacts
from node_agent.protocol.cards import ModelFacts
from node_agent.protocol.messages import Hardware

GIB = 1 << 30
CATALOGUE = load_catalogue()
NAMES = ("llama-3.2-3b-4bit", "llama-3.1-8b-4bit", "qwen3-30b-a3b-4bit", "llama-3.3-70b-4bit")
CHIPS = ("Apple M1", "Apple M4 Pro", "Apple M3 Ultra", "Apple M5 Max")
CURVES = ((), tuple(0.5 for _ in range(168)), tuple(0.99 for _ in range(168)))


@st.composite
def some_host(draw: st.DrawFn, number: int) -> HostFacts:
    lent = draw(st.integers(4, 200)) * GIB
    names = st.sampled_from(NAMES)
    live = draw(st.integers(0, 4))
    slots: tuple[SlotFacts, ...] = ()
    if draw(st.booleans()):
        slots = (SlotFacts(f"slot_{number}", draw(names), lent // 2, 4, 8192, live, draw(st.booleans())),)
    return HostFacts(
        node_id=f"node_{number}",
        owner_id=f"acct_{number % 3}",
        hardware=Hardware(
            chip=draw(st.sampled_from(CHIPS)),
            memory_bytes=2 * lent,
            lent_bytes=lent,
            bandwidth_bytes_per_second=draw(st.integers(60, 900)) * 10**9,
            gpu_cores=draw(st.sampled_from((8, 20, 40, 80))),
            accelerated=True,
        ),
        lent_bytes=lent,
        is_online=draw(st.booleans()) or draw(st.booleans()),
        is_suspect=False,
        mode=draw(st.sampled_from(("ready", "ready", "busy", "draining", "away"))),
        slots=slots,
        given_seconds=draw(st.floats(0, 1e5)),
        standing=draw(st.sampled_from(("sound", "sound", "paused", "on_probation"))),
        free_bytes=draw(st.none() | st.integers(0, 200).map(lambda gib: gib * GIB)),
        slots_max=draw(st.integers(1, 3)),
        on_disk=draw(st.none() | st.frozensets(names)),
        disk_free_bytes=draw(st.none() | st.just(0)),
        network_bytes_per_second=draw(st.none() | st.just(10**8)),
        region=draw(st.sampled_from(("eu", "us"))),
        hungry_seconds=draw(st.floats(0, 4000)),
        seat_free_seconds=draw(st.none() | st.floats(0, 100)),
        idle_in_seconds=draw(st.none() | st.floats(0, 100)),
        survival=draw(st.sampled_from(CURVES)),
    )


@st.composite
def some_hosts(draw: st.DrawFn) -> list[HostFacts]:
    return [draw(some_host(number)) for number in range(draw(st.integers(1, 8)))]


@st.composite
def some_job(draw: st.DrawFn, number: int = 0) -> JobFacts:
    name = draw(st.sampled_from(NAMES))
    model = CATALOGUE.known(name)
    assert model is not None
    return JobFacts(
        job_id=f"job_{number}_{draw(st.integers(0, 9))}",
        card=model,
        prompt_tokens=draw(st.integers(1, 6000)),
        max_tokens=draw(st.integers(1, 2000)),
        card_revision=name,
        deadline_seconds=draw(st.sampled_from((30.0, 300.0, float("inf")))),
        tokens_per_second_min=draw(st.sampled_from((0.0, 10.0))),
        regions=draw(st.sampled_from((frozenset[str](), frozenset({"eu"})))),
        submitter_id=draw(st.sampled_from(("acct_0", "acct_9"))),
        own=draw(st.sampled_from(("any", "prefer"))),
        is_overdue=draw(st.booleans()),
        waited_seconds=draw(st.sampled_from((0.0, 5.0, 500.0))),
    )


OUTLOOKS = st.sampled_from((Outlook(), Outlook((60 * GIB,), 1e5), Outlook((9 * GIB,) * 4)))


@given(hosts=some_hosts(), job=some_job(), outlook=OUTLOOKS)
@settings(deadline=None)
def test_every_host_is_counted_once_and_the_order_does_not_matter(
    hosts: list[HostFacts], job: JobFacts, outlook: Outlook
) -> None:
    found = match(job, hosts, outlook=outlook)
    assert match(job, hosts[::-1], outlook=outlook) == found
    chosen = 1 if isinstance(found, Placed) else 0
    assert sum(found.rejected.values()) + chosen == len(hosts)


@given(hosts=some_hosts(), job=some_job(), outlook=OUTLOOKS)
@settings(deadline=None)
def test_the_chosen_host_keeps_all_that_was_asked(
    hosts: list[HostFacts], job: JobFacts, outlook: Outlook
) -> None:
    found = match(job, hosts, outlook=outlook)
    if isinstance(found, NotPlaced):
        return
    host = next(one for one in hosts if one.node_id == found.node_id)
    assert host.is_online
    assert host.mode in {"ready", "busy"}
    assert not job.regions or host.region in job.regions
    # The two sums of the same parts differ in their last bits.
    assert found.forecast.total_seconds <= job.deadline_seconds * (1 + 1e-9)
    assert found.forecast.tokens_per_second >= job.tokens_per_second_min * (1 - 1e-9)
    if found.new_slot is not None:
        kept = [slot for slot in host.slots if slot.slot_id not in found.new_slot.evict_slot_ids]
        free = host.lent_bytes if host.free_bytes is None else min(host.lent_bytes, host.free_bytes)
        assert sum(slot.bytes for slot in kept) + found.new_slot.bytes <= free
        assert len(kept) < host.slots_max
        assert host.live == 0
        gone = {slot.card_revision for slot in host.slots if slot not in kept}
        assert set(found.new_slot.evict_revisions) == gone - {job.revision}
    else:
        slot = next(slot for slot in host.slots if slot.slot_id == found.slot_id)
        assert slot.live < slot.width
        assert host.live == slot.live
        assert slot.card_revision == job.revision
        assert slot.tokens_max >= job.tokens


def improved(host: HostFacts) -> HostFacts:
    """The same host with more of everything."""
    hardware = host.hardware.model_copy(
        update={
            "memory_bytes": host.hardware.memory_bytes * 2,
            "lent_bytes": host.lent_bytes * 2,
            "bandwidth_bytes_per_second": host.hardware.bandwidth_bytes_per_second * 2,
            "gpu_cores": host.hardware.gpu_cores * 2,
        }
    )
    return replace(
        host,
        hardware=hardware,
        lent_bytes=host.lent_bytes * 2,
        free_bytes=None,
        slots_max=host.slots_max + 1,
        on_disk=None,
        network_bytes_per_second=10**9,
        disk_bytes_per_second=host.disk_bytes_per_second * 2,
        standing="sound",
        survival=CURVES[2] if host.survival else (),
    )


@given(hosts=some_hosts(), job=some_job())
@settings(deadline=None)
def test_a_host_with_more_of_everything_is_never_worse(hosts: list[HostFacts], job: JobFacts) -> None:
    """Of a host and its better twin the better one is chosen, and no job fits only the worse."""
    policy = Policy(hold_factor=1e12)
    for host in hosts:
        better = replace(improved(host), node_id="node_better", is_online=True, mode="ready")
        alone, twin = match(job, [host], policy=policy), match(job, [better], policy=policy)
        if isinstance(alone, Placed):
            assert isinstance(twin, Placed)
            assert twin.forecast.total_seconds <= alone.forecast.total_seconds * (1 + 1e-9)
            both = match(job, [host, better], policy=replace(policy, band=1.0, hungry_after=1e9))
            assert isinstance(both, Placed)
            assert both.node_id == "node_better" or both.forecast == twin.forecast


@given(hosts=some_hosts(), job=some_job(), power=st.integers(-6, 6))
@settings(deadline=None)
def test_the_unit_of_given_work_changes_nothing(hosts: list[HostFacts], job: JobFacts, power: int) -> None:
    scaled = [replace(host, given_seconds=(host.given_seconds or 0.0) * 2.0**power) for host in hosts]
    assert match(job, scaled) == match(job, hosts)


@given(hosts=some_hosts(), job=some_job(), offset=st.floats(-1e6, 1e6).map(round))
@settings(deadline=None)
def test_the_clock_of_the_caller_changes_nothing(hosts: list[HostFacts], job: JobFacts, offset: int) -> None:
    """Whole seconds, so that the sums are exact."""
    rounded = [
        replace(host, hungry_seconds=round(host.hungry_seconds), seat_free_seconds=None, idle_in_seconds=9)
        for host in hosts
    ]
    fleet = Fleet()
    for host in rounded:
        _ = fleet.put(host, now_seconds=offset)
    assert decide(job, fleet, now_seconds=offset).choice == match(job, rounded)


@given(hosts=some_hosts(), job=some_job(), changes=st.lists(st.integers(0, 7), max_size=6))
@settings(deadline=None)
def test_a_fleet_that_was_changed_decides_as_one_made_anew(
    hosts: list[HostFacts], job: JobFacts, changes: list[int]
) -> None:
    fleet = Fleet()
    rows = [fleet.put(host) for host in hosts]
    now = dict(zip(rows, hosts, strict=True))
    for change in changes:
        row = rows[change % len(rows)]
        if change % 2 and row in now:
            fleet.remove(row)
            del now[row]
        elif row in now:
            now[row] = replace(now[row], slots=(), given_seconds=7.0, standing="sound")
            fleet.replace(row, now[row])
    for row, host in now.items():
        for slot in list(fleet.slots.of(int(fleet.first_slot[row]))):
            fleet.set_live(slot, 1)
        now[row] = replace(host, slots=tuple(replace(slot, live=1) for slot in host.slots))
    assert decide(job, fleet).choice == match(job, list(now.values()))


@st.composite
def some_queue(draw: st.DrawFn) -> list[JobFacts]:
    found = [draw(some_job(number)) for number in range(draw(st.integers(0, 12)))]
    return [replace(job, is_overdue=False) for job in found]


@given(jobs=some_queue(), usage=st.dictionaries(st.sampled_from(("acct_0", "acct_9")), st.floats(0, 1e15)))
@settings(deadline=None)
def test_the_queue_keeps_every_job_and_puts_age_first(jobs: list[JobFacts], usage: dict[str, float]) -> None:
    order = in_order(jobs, usage)
    assert in_order(jobs[::-1], usage) == order
    assert Counter(job.job_id for job in order) == Counter(job.job_id for job in jobs)
    flags = [job.is_overdue for job in order]
    assert flags == sorted(flags, reverse=True)
    assert all(job.is_overdue == (job.waited_seconds >= 120) for job in order)
    for name in ("acct_0", "acct_9"):
        ages = [job.waited_seconds for job in order if job.submitter_id == name and not job.is_overdue]
        assert ages == sorted(ages, reverse=True)


def test_a_thousand_jobs_of_one_do_not_stand_before_anothers_first() -> None:
    model = CATALOGUE.known(NAMES[0])
    assert model is not None
    many = [JobFacts(f"job_{n:04}", model, 10, 10, submitter_id="acct_big") for n in range(1000)]
    late = JobFacts("job_late", model, 10, 10, submitter_id="acct_small")
    order = in_order([*many, late], {})
    assert position("job_late", order) <= 1
    used = in_order([*many, late], {"acct_small": 10.5 * work_of_job(late)})
    assert position("job_late", used) == 11
    assert position("job_late", used, frozenset(job.job_id for job in many)) == 0


@given(width=st.integers(1, 4), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_age_beats_all_in_bounded_time(width: int, seed: int) -> None:
    """A stream of small jobs from someone who used nothing keeps all hosts full; the big job of
    someone who used much starts once it is overdue and what runs on the host held for it has ended."""
    small, big = CATALOGUE.known(NAMES[0]), CATALOGUE.known(NAMES[3])
    assert small is not None
    assert big is not None
    hosts = [_plain(number, 64, width) for number in range(3)]
    fleet = Fleet()
    for host in hosts:
        _ = fleet.put(host)
    ends: list[tuple[int, int]] = []
    lasts = 7
    started = -1
    for tick in range(60):
        for entry in [one for one in ends if one[0] <= tick]:
            fleet.set_live(entry[1], int(fleet.slots.live[entry[1]]) - 1)
            ends.remove(entry)
        found = place_queue(
            [*_small_jobs(small, f"{seed}_{tick}"), _big_job(big, tick * 10.0)],
            fleet,
            usage={"old": 1e30},
            now_seconds=tick * 10.0,
        )
        placed = [entry for entry in found if isinstance(entry.decision.choice, Placed)]
        ends += [(tick + 1 + (seed + n) % lasts, entry.slot) for n, entry in enumerate(placed)]
        if any(entry.job.job_id == "job_big" for entry in placed):
            started = tick
            break
    # What ran when it became overdue has ended seven looks later.
    assert 0 <= started <= OVERDUE_SECONDS / 10 + lasts


def _small_jobs(model: ModelFacts, name: str) -> list[JobFacts]:
    return [
        JobFacts(f"job_{name}_{n}", model, 10, 10, card_revision=NAMES[0], submitter_id="new")
        for n in range(20)
    ]


def _big_job(model: ModelFacts, waited_seconds: float) -> JobFacts:
    return JobFacts(
        "job_big",
        model,
        10,
        10,
        card_revision=NAMES[3],
        waited_seconds=waited_seconds,
        submitter_id="old",
    )


def _plain(number: int, lent_gib: int, width: int) -> HostFacts:
    hardware = Hardware(
        chip="Apple M4 Max",
        memory_bytes=lent_gib * 2 * GIB,
        lent_bytes=lent_gib * GIB,
        bandwidth_bytes_per_second=546 * 10**9,
        gpu_cores=40,
        width=width,
        accelerated=True,
    )
    return HostFacts(f"node_{number}", "acct", hardware, lent_gib * GIB, True, False, "ready")


@given(
    first=st.lists(st.floats(0, 1), min_size=168, max_size=168),
    at=st.floats(0, 604_800),
    ahead=st.floats(1, 1e5),
)
@settings(deadline=None, max_examples=50)
def test_an_owner_who_stays_away_surely_is_never_forecast_to_return_sooner(
    first: list[float], at: float, ahead: float
) -> None:
    surer = [chance + (1 - chance) / 2 for chance in first]
    curves = [packed(first), packed(surer)]
    assert all(len(curve) == CURVE_BYTES for curve in curves)
    stacked = [[int(curve[n]) for curve in curves] for n in range(CURVE_BYTES)]
    rates = return_rates(np.array(stacked, dtype=np.uint8), at, ahead)
    assert rates[1] <= rates[0] * (1 + 1e-9)


def test_use_halves_and_what_became_nothing_is_forgotten() -> None:
    used = Decayed(100.0)
    used.add("a", 8.0, now_seconds=0)
    used.add("b", 1.0, now_seconds=0)
    assert used.of("a", now_seconds=200) == 2.0
    used.add("a", -5.0, now_seconds=200)
    used.add("b", 1e12, now_seconds=200)
    assert used.all(now_seconds=200) == {"b": 1e12 + 0.25}
