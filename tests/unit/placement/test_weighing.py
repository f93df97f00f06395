"""What a choice weighs beside its own seconds: models that go, those who sit there, hungry Macs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from coordinator.catalogue.cards import load_catalogue
from coordinator.placement.match import match
from coordinator.placement.types import HostFacts, JobFacts, Outlook, Placed, Policy, SlotFacts
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
