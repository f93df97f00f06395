"""What a choice weighs beside its own seconds: models that go, those who sit there, hungry Macs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from coordinator.catalogue.cards import load_catalogue
from coordinator.placement.fleet import Fleet
from coordinator.placement.match import decide, match
from coordinator.placement.queue import place_queue
from coordinator.placement.types import HostFacts, JobFacts, Outlook, Placed, Policy, SlotFacts
from node_agent.sizing.speed import load_seconds
from tests.properties.test_placement import OUTLOOKS, some_hosts, some_job
from tests.unit.placement.test_match import make_host

NAME, OTHER = "llama-3.2-3b-4bit", "llama-3.1-8b-4bit"


def job_of(answer: int, name: str = NAME) -> JobFacts:
    card = load_catalogue().known(name)
    assert card is not None
    return JobFacts("job_1", card, prompt_tokens=50, max_tokens=answer, card_revision=name)


def slot_of(name: str, live: int = 0) -> SlotFacts:
    return SlotFacts(f"slot_{name}_{live}", name, 6 << 30, 4, 8192, live, is_warm=True)


def chosen(job: JobFacts, hosts: list[HostFacts], policy: Policy) -> str:
    found = match(job, hosts, policy=policy)
    assert isinstance(found, Placed)
    return found.node_id


def test_a_model_that_would_go_weighs_more_than_its_load() -> None:
    """A slow Mac has it loaded; the fast one would load it in the place of another model."""
    hosts = [
        make_host("slow", lent_gib=12, bandwidth_gb=100, slots=(slot_of(NAME),)),
        make_host("fast", lent_gib=12, bandwidth_gb=600, slots=(slot_of(OTHER),)),
    ]
    job = job_of(500)
    assert chosen(job, hosts, Policy(switch_factor=0.0)) == "node_fast"
    assert chosen(job, hosts, Policy(switch_factor=1.0)) == "node_slow"
    # Where nothing goes, nothing is weighed.
    empty = [hosts[0], replace(hosts[1], slots=())]
    assert chosen(job, empty, Policy(switch_factor=1.0)) == "node_fast"
    # An overdue job does not ask what it costs others.
    assert chosen(replace(job, is_overdue=True), hosts, Policy(switch_factor=1.0)) == "node_fast"


def test_what_others_lose_counts_as_often_as_the_policy_says() -> None:
    hosts = [
        make_host("shared", lent_gib=12, bandwidth_gb=300, slots=(slot_of(NAME, live=1),)),
        make_host("alone", lent_gib=12, bandwidth_gb=60, slots=(slot_of(NAME),)),
    ]
    assert chosen(job_of(500), hosts, Policy(beside_factor=0.0)) == "node_shared"
    assert chosen(job_of(500), hosts, Policy(beside_factor=20.0)) == "node_alone"


def test_short_jobs_feed_a_hungry_mac_and_long_ones_do_not() -> None:
    hosts = [
        make_host("fast", lent_gib=12, bandwidth_gb=600, slots=(slot_of(NAME),)),
        make_host("small", lent_gib=12, bandwidth_gb=100, slots=(slot_of(NAME),), hungry_seconds=900),
    ]
    policy = Policy()
    assert chosen(job_of(30), hosts, policy) == "node_small"
    assert chosen(job_of(400), hosts, policy) == "node_fast"
    fed = [hosts[0], replace(hosts[1], hungry_seconds=0)]
    assert chosen(job_of(30), fed, policy) == "node_fast"


def test_a_mac_that_was_hungry_for_long_gets_any_job_that_fits() -> None:
    hosts = [
        make_host("fast", lent_gib=12, bandwidth_gb=800, slots=(slot_of(NAME),)),
        make_host("small", lent_gib=12, bandwidth_gb=60, slots=(slot_of(NAME),), hungry_seconds=4500),
    ]
    assert chosen(job_of(900), hosts, Policy()) == "node_small"


@given(hosts=some_hosts(), job=some_job(), outlook=OUTLOOKS)
@settings(deadline=None)
def test_leaving_out_hosts_that_are_too_slow_changes_nothing(
    hosts: list[HostFacts], job: JobFacts, outlook: Outlook
) -> None:
    """Own Macs may become cheaper by weighing, so for jobs that prefer them all hosts are weighed."""
    nobody = replace(job, own="any", submitter_id="acct_nobody")
    assert match(nobody, hosts, outlook=outlook) == match(
        replace(nobody, own="prefer"), hosts, outlook=outlook
    )


def test_memory_that_is_kept_for_others_makes_no_job_wait() -> None:
    """The idle Mac is worth keeping; the busy one is no better than it is."""
    idle = make_host("idle", lent_gib=12, bandwidth_gb=100, slots=(slot_of(NAME),))
    full = make_host("full", lent_gib=7, bandwidth_gb=100, slots=(slot_of(NAME, live=4),))
    busy = replace(full, seat_free_seconds=1.0, idle_in_seconds=9.0)
    kept = Outlook(big_needs=(11 << 30,))
    found = match(job_of(500), [idle, busy], policy=Policy(keep_factor=10.0), outlook=kept)
    assert isinstance(found, Placed)
    assert found.node_id == "node_idle"


def test_of_two_models_the_one_that_others_hold_too_goes() -> None:
    """Two equal Macs: what only one of them holds would have to be loaded again."""
    third = "qwen2.5-7b-4bit"
    jobs = [job_of(100, OTHER), job_of(100, NAME)]
    for rare, common in (("a", "b"), ("b", "a")):
        fleet = Fleet()
        for name, held in ((rare, OTHER), (common, NAME), ("else", NAME)):
            place = make_host(name, lent_gib=12, bandwidth_gb=300, slots=(slot_of(held),))
            _ = fleet.put(replace(place, mode="away") if name == "else" else place)
        for job in jobs:
            _ = decide(job, fleet)
        wanted = replace(job_of(100), job_id="job_3", card_revision=third)
        found = decide(wanted, fleet, policy=Policy(band=1.0)).choice
        assert isinstance(found, Placed)
        assert found.node_id == f"node_{common}"
        # One that was long given nothing is not missed.
        for row in fleet.rows_of(frozenset({f"node_{rare}"})):
            fleet.fed_at[row] = -1e6
        found = decide(wanted, fleet, policy=Policy(band=1.0, hungry_after=1e12)).choice
        assert isinstance(found, Placed)
        assert found.node_id == f"node_{rare}"


def test_a_job_that_has_waited_asks_less_what_others_lose() -> None:
    fleet = Fleet()
    for name, speed, held in (("slow", 100, NAME), ("fast", 600, OTHER)):
        _ = fleet.put(make_host(name, lent_gib=12, bandwidth_gb=speed, slots=(slot_of(held),)))
    _ = decide(job_of(100, OTHER), fleet)
    policy = Policy(switch_factor=0.0, lost_factor=20.0)
    for seconds, expected in ((0.0, "node_slow"), (100.0, "node_fast")):
        found = decide(replace(job_of(500), waited_seconds=seconds), fleet, policy=policy).choice
        assert isinstance(found, Placed)
        assert found.node_id == expected


def test_prompts_that_are_read_before_it_are_waited_for() -> None:
    ahead = replace(slot_of(NAME, live=1), clear_seconds=30.0)
    behind = make_host("behind", lent_gib=12, bandwidth_gb=600, slots=(ahead,))
    found = match(job_of(100), [behind])
    assert isinstance(found, Placed)
    assert found.forecast.wait_seconds == 30.0
    assert found.forecast.load_seconds == 0.0
    slow = make_host("slow", lent_gib=12, bandwidth_gb=40, slots=(slot_of(NAME),))
    assert chosen(job_of(100), [behind, slow], Policy()) == "node_slow"
    free = replace(behind, slots=(slot_of(NAME, live=1),))
    assert chosen(job_of(100), [free, slow], Policy()) == "node_behind"


def test_a_model_that_is_being_loaded_is_not_loaded_twice() -> None:
    """What is left of the load is waited for, in place of a whole one."""
    card = job_of(1).card
    cold = replace(slot_of(NAME, live=1), is_warm=False)
    whole = match(job_of(100), [make_host("a", lent_gib=12, slots=(cold,))])
    rest = match(job_of(100), [make_host("a", lent_gib=12, slots=(replace(cold, clear_seconds=0.5),))])
    assert isinstance(whole, Placed)
    assert isinstance(rest, Placed)
    assert whole.forecast.load_seconds >= load_seconds(card) * 0.9
    assert (rest.forecast.load_seconds, rest.forecast.wait_seconds) == (0.0, 0.5)


def test_a_choice_is_waited_for_by_the_next_until_its_prompt_is_read() -> None:
    fleet = Fleet()
    _ = fleet.put(make_host("a", lent_gib=12, bandwidth_gb=300))
    first, second = (replace(job_of(100), job_id=f"job_{n}", prompt_tokens=3000) for n in (1, 2))
    entries = place_queue([first, second], fleet, now_seconds=50.0)
    forecasts = [one.decision.choice.forecast for one in entries if isinstance(one.decision.choice, Placed)]
    assert len(forecasts) == 2
    assert forecasts[0].wait_seconds == 0.0
    begins = forecasts[0].load_seconds + forecasts[0].prefill_seconds
    assert forecasts[1].wait_seconds == pytest.approx(begins)
    # What it waits for is not work of that Mac for it.
    given = sum(one.total_seconds for one in forecasts) - forecasts[1].wait_seconds
    assert fleet.given[0] == pytest.approx(given)
