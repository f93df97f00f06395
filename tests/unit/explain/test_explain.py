"""Every reject reason as submitters and owners read it, on a fleet of twenty; why a host was chosen."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.explain import (
    CHOICE_REASONS,
    CHOSEN,
    SUBMITTER_CHANGES,
    ChoiceReason,
    Note,
    changes_json,
    class_of_mac,
    note_json,
    note_of,
    rejected_json,
    tokens_that_fit,
    unservable_text,
)
from coordinator.nodes.tallies import Tallies
from coordinator.nodes.why import NOTHING, OWNER_CHANGES, why_json
from coordinator.placement.fleet import Fleet
from coordinator.placement.match import POLICY, decide
from coordinator.placement.queue import Entry, place_queue
from coordinator.placement.reject import ABLE_REASONS, EXPLAINED, PASSING_REASONS, REASONS, RejectReason
from coordinator.placement.types import HostFacts, JobFacts, NotPlaced, Outlook, Placed
from node_agent.sizing import memory
from tests.unit.placement.test_match import CARD, GIB, make_host, make_job, make_slot
from tests.unit.placement.test_twenty import CASES, fleet_of_twenty, job_of

BETTER_SOON = [
    make_host("odd", bandwidth_gb=800, slots=(make_slot(live=8),), seat_free_seconds=0.5),
    *(make_host(f"{n:02}", bandwidth_gb=20) for n in range(19)),
]


def scene(reason: RejectReason) -> tuple[list[HostFacts], JobFacts, Outlook]:
    """Twenty hosts and a job of which at least one is rejected for `reason`."""
    if reason == "better_soon":
        return BETTER_SOON, make_job(), Outlook()
    case = CASES[reason]
    return fleet_of_twenty(case), job_of(case), case.outlook


def entry_of(hosts: list[HostFacts], job: JobFacts, outlook: Outlook | None = None) -> tuple[Entry, Fleet]:
    fleet = Fleet()
    for host in hosts:
        _ = fleet.put(host)
    decision = decide(job, fleet, outlook=outlook or Outlook())
    return Entry(job, decision, decision.slot), fleet


def rejected_host(entry: Entry, fleet: Fleet, reason: RejectReason) -> str:
    return next(fleet.node_id(row) for row in range(fleet.rows) if entry.decision.reason(row) == reason)


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_is_told_to_the_submitter_and_to_the_owner(reason: RejectReason) -> None:
    hosts, job, outlook = scene(reason)
    entry, fleet = entry_of(hosts, job, outlook)
    choice = entry.decision.choice
    # The submitter: every host once, this reason among them, in words.
    shown = rejected_json(choice.rejected)
    assert {"reason": reason, "hosts": choice.rejected[reason], "meaning": EXPLAINED[reason]} in shown
    assert sum(choice.rejected.values()) + isinstance(choice, Placed) == 20
    if isinstance(choice, NotPlaced):
        changes = changes_json(job, choice)
        assert sum(row["hosts"] for row in changes if isinstance(row, dict)) == 20  # pyright: ignore[reportArgumentType, reportCallIssue]
    # The owner of a Mac that was rejected for it: one job seen, none taken, and what could be changed.
    tallies = Tallies(lambda: 0)
    tallies(entry, fleet)
    view = why_json(tallies.of(rejected_host(entry, fleet, reason)), since_us=0, lent_bytes=0)
    assert (view["seen"], view["taken"]) == (1, 0)
    assert view["rejected"] == [
        {
            "reason": reason,
            "jobs": 1,
            "meaning": EXPLAINED[reason],
            "can_change": OWNER_CHANGES[reason] is not None,
            "change": OWNER_CHANGES[reason] or NOTHING,
        }
    ]


def test_every_reason_has_a_scene_and_words_for_both_sides() -> None:
    assert set(CASES) | {"better_soon"} == set(REASONS)
    assert set(SUBMITTER_CHANGES) == set(OWNER_CHANGES) == set(REASONS)
    # What only the job or its wishes can open, its submitter is told how to.
    assert all(SUBMITTER_CHANGES[reason] for reason in REASONS if reason not in PASSING_REASONS)


# -- why that host ---------------------------------------------------------------------------------


def chosen(hosts: list[HostFacts], job: JobFacts, outlook: Outlook | None = None) -> Note:
    entry, fleet = entry_of(hosts, job, outlook)
    choice = entry.decision.choice
    assert isinstance(choice, Placed)
    return note_of(entry, choice, fleet, band=POLICY.band, at_us=7)


FAST = [make_host(f"{n:02}", bandwidth_gb=800) for n in range(19)]
STAYS = tuple(0.999 for _ in range(168))
WARM = (make_slot(),)
LEAVES = tuple(1e-9 for _ in range(168))
CHOICES: dict[ChoiceReason, tuple[str, list[HostFacts], JobFacts, Outlook]] = {
    "overdue": (
        "node_odd",
        [make_host("odd", bandwidth_gb=900), *FAST],
        make_job(is_overdue=True),
        Outlook(),
    ),
    "only_one": (
        "node_odd",
        [make_host("odd"), *(replace(host, mode="away") for host in FAST)],
        make_job(),
        Outlook(),
    ),
    "soonest": (
        "node_odd",
        [make_host("odd", bandwidth_gb=900, given_tokens=0), *(replace(h, given_tokens=10**9) for h in FAST)],
        make_job(max_tokens=2000),
        Outlook(),
    ),
    "owed_most": (
        "node_odd",
        [make_host("odd", bandwidth_gb=760), *(replace(h, given_tokens=10**9) for h in FAST)],
        make_job(max_tokens=2000),
        Outlook(),
    ),
    "own": (
        "node_odd",
        [make_host("odd", bandwidth_gb=400, owner_id="acct_me"), *FAST],
        make_job(own="prefer", submitter_id="acct_me", max_tokens=2000),
        Outlook(),
    ),
    "owner_stays": (
        "node_odd",
        [
            make_host("odd", bandwidth_gb=19, survival=STAYS),
            *(make_host(f"{n:02}", bandwidth_gb=21, survival=LEAVES) for n in range(19)),
        ],
        make_job(max_tokens=4000),
        Outlook(week_seconds=1800.0),
    ),
    "kept_for_big": (
        "node_odd",
        [make_host("odd", bandwidth_gb=100), make_host("big", lent_gib=64, bandwidth_gb=150)],
        make_job(max_tokens=2000),
        Outlook(big_needs=(40 * GIB,)),
    ),
    "spares_others": (
        "node_odd",
        [
            make_host("odd", bandwidth_gb=100, slots=(make_slot(slot_id="slot_odd"),)),
            make_host("busy", bandwidth_gb=800, slots=(make_slot(slot_id="slot_busy", live=1),)),
        ],
        make_job(prompt_tokens=6000, max_tokens=200),
        Outlook(),
    ),
    "trial": (
        "node_odd",
        [
            make_host("odd", bandwidth_gb=250, hungry_seconds=10**6, slots=WARM),
            *(replace(h, slots=WARM) for h in FAST),
        ],
        make_job(max_tokens=200),
        Outlook(),
    ),
}


@pytest.mark.parametrize("reason", CHOICE_REASONS)
def test_each_reason_of_a_choice(reason: ChoiceReason) -> None:
    node_id, hosts, job, outlook = CHOICES[reason]
    note = chosen(hosts, job, outlook)
    assert (note.node_id, note.reason) == (node_id, reason)
    shown = note_json(note)
    assert shown["meaning"] == CHOSEN[reason]
    able = sum(note.rejected.get(word, 0) for word in ABLE_REASONS)
    assert (note.able, shown["could_have_taken_it"]) == (1 + able, 1 + able)
    assert "node_" not in str(shown)
    assert "acct_" not in str(shown)


def test_a_busy_mac_that_was_owed_as_much_is_spared_and_not_tried() -> None:
    _, hosts, _, _ = CHOICES["spares_others"]
    note = chosen(hosts, make_job(prompt_tokens=4000, max_tokens=200))
    assert (note.node_id, note.reason) == ("node_odd", "spares_others")


def test_a_note_tells_whether_the_model_was_loaded() -> None:
    warm = chosen([make_host(slots=(make_slot(),))], make_job())
    assert (warm.was_loaded, warm.has_new_slot, warm.forecast.load_seconds) == (True, False, 0)
    cold = chosen([make_host()], make_job())
    assert (cold.was_loaded, cold.has_new_slot) == (False, True)


# -- what no host can run --------------------------------------------------------------------------


def test_too_large_a_job_is_told_in_bytes_and_how_much_of_it_would_fit() -> None:
    job = make_job(prompt_tokens=4000, max_tokens=4000)
    least = memory.needed_bytes(CARD, context_tokens=1, width=1)
    needed = memory.needed_bytes(CARD, context_tokens=8000, width=1)
    middle = (least + needed) // 2
    entry, _ = entry_of([make_host("a", lent_gib=middle / GIB), make_host("b", lent_gib=0.25)], job)
    choice = entry.decision.choice
    assert isinstance(choice, NotPlaced)
    text = unservable_text(job, choice)
    assert f"needs {needed} bytes" in text
    assert f"the largest Mac lends {int(middle / GIB * GIB)} bytes" in text
    tokens = tokens_that_fit(job, choice.largest_lent_bytes)
    assert 0 < tokens < 8000
    assert f"at most {tokens} tokens together" in text
    assert memory.needed_bytes(CARD, context_tokens=tokens, width=1) <= choice.largest_lent_bytes
    assert memory.needed_bytes(CARD, context_tokens=tokens + 1, width=1) > choice.largest_lent_bytes
    assert tokens_that_fit(job, least - 1) == 0


def test_what_memory_is_not_to_blame_for_is_told_by_reason() -> None:
    job = make_job(tokens_per_second_min=1000.0)
    entry, _ = entry_of([make_host("a"), make_host("b")], job)
    choice = entry.decision.choice
    assert isinstance(choice, NotPlaced)
    assert "2 too_slow" in unservable_text(job, choice)
    assert "lower the least speed" in unservable_text(job, choice)


@pytest.mark.parametrize("hosts", [1, 3])
def test_a_context_that_is_too_long_is_told_by_tokens_and_not_by_bytes(hosts: int) -> None:
    job = make_job(prompt_tokens=CARD.context_tokens, max_tokens=1)
    small = [make_host(f"n{n}", lent_gib=0.25) for n in range(hosts)]
    entry, _ = entry_of(small, job)
    choice = entry.decision.choice
    assert isinstance(choice, NotPlaced)
    assert choice.needed_bytes > choice.largest_lent_bytes
    text = unservable_text(job, choice)
    assert f"{hosts} context_too_long ({CARD.context_tokens + 1} tokens do not fit the context of" in text
    assert "bytes" not in text


def test_macs_that_were_not_named_are_not_told_as_memory() -> None:
    job = make_job(prompt_tokens=4000, max_tokens=4000, only_node_ids=frozenset({"node_a"}))
    needed = memory.needed_bytes(CARD, context_tokens=8000, width=1)
    hosts = [make_host("a", lent_gib=0.25), make_host("b"), make_host("c")]
    entry, _ = entry_of(hosts, job)
    choice = entry.decision.choice
    assert isinstance(choice, NotPlaced)
    assert choice.rejected == {"not_named": 2, "memory_lent_short": 1}
    assert needed < choice.largest_lent_bytes
    text = unservable_text(job, choice)
    assert text.startswith("of 3 Macs: 2 not_named (the submitter named other Macs; name more Macs, or none)")
    assert "1 memory_lent_short" in text
    assert "bytes" not in text


def test_memory_that_firmware_keeps_is_counted_as_sold() -> None:
    hardware = make_host(lent_gib=12).hardware.model_copy(update={"memory_bytes": 25_276_510_208})
    assert class_of_mac(hardware)["memory_gib"] == 24


def test_a_class_of_mac_is_a_chip_of_the_table_and_a_size_that_is_sold() -> None:
    hardware = make_host(lent_gib=12).hardware
    assert class_of_mac(hardware) == {"chip": "M4", "memory_gib": 24}
    odd = hardware.model_copy(update={"chip": "Ada's Mac, Lahore", "memory_bytes": 41 * GIB})
    assert class_of_mac(odd) == {"chip": "other", "memory_gib": 36}


def test_a_queue_tells_owners_what_it_decided() -> None:
    """The observer sees what `place_queue` made of a queue on a kept fleet."""
    fleet = Fleet()
    for n in range(20):
        _ = fleet.put(make_host(f"{n:02}"))
    tallies = Tallies(lambda: 0)
    entries = place_queue([make_job(job_id=f"job_{n}") for n in range(30)], fleet)
    for entry in entries:
        tallies(entry, fleet)
    found = [tallies.of(f"node_{n:02}")[0] for n in range(20)]
    assert {one.seen for one in found} == {30}
    assert sum(one.taken for one in found) == 30


def test_the_document_has_the_reasons_of_a_choice() -> None:
    text = (Path(__file__).parents[3] / "docs" / "explain.md").read_text("utf-8")
    table = text.partition("<!-- choices begin -->")[2].partition("<!-- choices end -->")[0]
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.+) \|$", table, re.MULTILINE))
    assert rows.pop("why") == "meaning"
    assert rows == CHOSEN
