"""Placement: gates, reasons, forecasts and choice, as tables and as properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.catalogue.cards import load_catalogue
from coordinator.placement.match import match
from coordinator.placement.slot_plans import WIDTH_MAX, plan_slot
from coordinator.placement.types import HostFacts, JobFacts, NotPlaced, Placed, RejectReason, SlotFacts
from node_agent.protocol.messages import Hardware
from node_agent.sizing import memory

GIB = 1 << 30
CARD = load_catalogue().cards["smollm2-135m-f32"]


def make_job(**changes: object) -> JobFacts:
    job = JobFacts(job_id="job_1", card=CARD, prompt_tokens=100, max_tokens=100)
    return replace(job, **changes)  # pyright: ignore[reportArgumentType]


def make_host(
    name: str = "a", *, lent_gib: float = 8, bandwidth_gb: int = 100, **changes: object
) -> HostFacts:
    lent_bytes = int(lent_gib * GIB)
    host = HostFacts(
        node_id=f"node_{name}",
        owner_id="acct_1",
        hardware=Hardware(
            chip="Apple M4",
            memory_bytes=2 * lent_bytes,
            lent_bytes=lent_bytes,
            bandwidth_bytes_per_second=bandwidth_gb * 10**9,
            accelerated=True,
        ),
        lent_bytes=lent_bytes,
        is_online=True,
        is_suspect=False,
        mode="ready",
    )
    return replace(host, **changes)  # pyright: ignore[reportArgumentType]


def make_slot(revision: str = CARD.revision, **changes: object) -> SlotFacts:
    slot = SlotFacts(
        slot_id="slot_1",
        card_revision=revision,
        bytes=4 * GIB,
        width=8,
        tokens_max=8192,
        live=0,
        is_warm=True,
    )
    return replace(slot, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("job", "host", "reason", "is_ever"),
    [
        (make_job(max_tokens=9000), make_host(), "context_too_long", False),
        (make_job(excluded_node_ids=frozenset({"node_a"})), make_host(), "excluded", False),
        (make_job(), make_host(lent_gib=0.5), "memory_lent_short", False),
        (make_job(), make_host(is_online=False), "offline", True),
        (make_job(), make_host(is_suspect=True), "suspect", True),
        (make_job(), make_host(mode="draining"), "draining", True),
        (make_job(), make_host(mode="away"), "owner_present", True),
        (make_job(), make_host(slots=(make_slot(live=8),)), "slot_full", True),
        (make_job(), make_host(slots=(make_slot("0" * 64, live=1),)), "memory_busy", True),
    ],
)
def test_each_gate_has_its_reason(
    job: JobFacts, host: HostFacts, reason: RejectReason, is_ever: bool
) -> None:
    answer = match(job, [host])
    assert isinstance(answer, NotPlaced)
    assert answer.rejected == {reason: 1}
    assert answer.is_ever is is_ever


def test_no_host_says_what_is_needed_against_the_largest() -> None:
    answer = match(make_job(), [make_host("a", lent_gib=0.25), make_host("b", lent_gib=0.5)])
    assert isinstance(answer, NotPlaced)
    assert answer.largest_lent_bytes == GIB // 2
    assert answer.needed_bytes == memory.needed_bytes(CARD, context_tokens=200, width=1)


def test_a_warm_slot_is_taken_as_it_is() -> None:
    answer = match(make_job(), [make_host(slots=(make_slot(live=7),))])
    assert isinstance(answer, Placed)
    assert (answer.slot_id, answer.new_slot) == ("slot_1", None)
    assert answer.forecast.load_seconds == 0


def test_an_idle_slot_of_another_model_makes_room() -> None:
    answer = match(make_job(), [make_host(slots=(make_slot("0" * 64),))])
    assert isinstance(answer, Placed)
    assert answer.new_slot is not None
    assert answer.new_slot.evict_slot_ids == ("slot_1",)


def test_the_faster_mac_wins_by_far_and_the_less_used_one_among_equals() -> None:
    slow, fast = make_host("a", bandwidth_gb=100), make_host("b", bandwidth_gb=800)
    answer = match(make_job(), [slow, fast])
    assert isinstance(answer, Placed)
    assert answer.node_id == "node_b"
    used, rested = make_host("a", given_tokens=500), make_host("b", given_tokens=10)
    answer = match(make_job(), [used, rested])
    assert isinstance(answer, Placed)
    assert answer.node_id == "node_b"


def test_a_busy_mac_gets_fewer_jobs_than_an_idle_one() -> None:
    busy = make_host("a", slots=(make_slot(live=4),))
    idle = make_host("b", slots=(make_slot(slot_id="slot_2"),))
    answer = match(make_job(), [busy, idle])
    assert isinstance(answer, Placed)
    assert answer.node_id == "node_b"


@given(lent_bytes=st.integers(0, 64 * GIB), prompt=st.integers(1, 4000), answer=st.integers(1, 4000))
def test_a_planned_slot_fits_its_memory_and_its_job(lent_bytes: int, prompt: int, answer: int) -> None:
    job = make_job(prompt_tokens=prompt, max_tokens=answer)
    plan = plan_slot(job, lent_bytes)
    if plan is None:
        assert lent_bytes < memory.needed_bytes(CARD, context_tokens=job.tokens, width=1)
        return
    assert plan.bytes <= lent_bytes
    assert plan.bytes == memory.needed_bytes(CARD, context_tokens=plan.tokens_max, width=plan.width)
    assert job.tokens <= plan.tokens_max <= CARD.context_tokens
    assert 1 <= plan.width <= WIDTH_MAX


@st.composite
def some_hosts(draw: st.DrawFn) -> list[HostFacts]:
    found: list[HostFacts] = []
    for index in range(draw(st.integers(0, 12))):
        live = draw(st.integers(0, 8))
        slots = (make_slot(slot_id=f"slot_{index}", live=live),) if live else ()
        found.append(
            make_host(
                str(index),
                lent_gib=draw(st.floats(0.1, 64)),
                bandwidth_gb=draw(st.integers(50, 900)),
                is_online=draw(st.booleans()),
                mode=draw(st.sampled_from(["ready", "busy", "draining", "away"])),
                given_tokens=draw(st.integers(0, 10**6)),
                slots=slots,
            )
        )
    return found


@given(hosts=some_hosts())
def test_every_host_is_counted_once_and_the_order_does_not_matter(hosts: list[HostFacts]) -> None:
    answer = match(make_job(), hosts)
    assert match(make_job(), list(reversed(hosts))) == answer
    if isinstance(answer, NotPlaced):
        assert sum(answer.rejected.values()) == len(hosts)
    else:
        chosen = next(host for host in hosts if host.node_id == answer.node_id)
        assert chosen.is_online
        assert chosen.mode in {"ready", "busy"}
