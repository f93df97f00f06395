"""Seats are taken many at once, each only while it is still there, and only by who may."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from coordinator.accounts.service import create_account
from coordinator.commits import GroupCommit
from coordinator.db import Database
from coordinator.jobs.models import Attempt, Job, JobEvent
from coordinator.nodes.models import Node, Slot
from coordinator.placement.types import Forecast, Placed, SlotPlan
from coordinator.reservations import AcceptedOffer, Reservations, Wanted
from tests.fixtures.coordinator import Shelf

SECOND = Forecast(0.0, 0.5, 0.5, 20.0)
NODE, SLOT = "node_1", "slot_1"


def fill(database: Database, shelf: Shelf, *, jobs: int, width: int) -> None:
    """A node of 1000 bytes with a slot of 600, and queued jobs `job_0`, `job_1`, ..."""
    with database.write() as session:
        account = create_account(session, "Sam", grant_umlx=0, is_operator=False)
        session.flush()
        session.add(
            Node(
                id=NODE,
                account_id=account.id,
                public_key="k",
                device="d",
                name="Mac",
                state="ready",
                hardware={},
                lent_bytes=1000,
                reserved_bytes=600,
                created_us=0,
                seen_us=0,
            )
        )
        session.flush()
        session.add(
            Slot(
                id=SLOT,
                node_id=NODE,
                card_id=shelf.card.id,
                card_revision="older",
                bytes=600,
                width=width,
                tokens_max=100,
                created_us=0,
            )
        )
        for number in range(jobs):
            session.add(
                Job(
                    id=f"job_{number}",
                    account_id=account.id,
                    kind="chat",
                    state="queued",
                    is_async=False,
                    card_id=shelf.card.id,
                    card_revision=shelf.card.revision,
                    prompt_tokens=1,
                    max_tokens=1,
                    request_digest="",
                    payer=account.ledger_account,
                    rate_card_id="",
                    fee_ppm=0,
                    factor_ppm=0,
                    bound_umlx=0,
                    created_us=number,
                )
            )


def wanted(shelf: Shelf, number: int, plan: SlotPlan | None = None) -> Wanted:
    choice = Placed(NODE, SLOT if plan is None else None, plan, SECOND)
    return Wanted(f"job_{number}", shelf.card, choice)


def seen(database: Database) -> tuple[dict[str, str], dict[str, int], list[Attempt]]:
    """States of jobs, seats taken of slots, and all attempts."""
    with database.read() as session:
        states = {job.id: job.state for job in session.scalars(select(Job))}
        live = {slot.id: slot.live for slot in session.scalars(select(Slot))}
        return states, live, list(session.scalars(select(Attempt).order_by(Attempt.job_id)))


def test_all_that_can_be_taken_is_taken_in_one_transaction(
    database: Database, commits: GroupCommit, shelf: Shelf
) -> None:
    fill(database, shelf, jobs=4, width=2)
    with database.write() as session:
        session.get_one(Job, "job_0").state = "cancelled"
    found = Reservations(commits).reserve([wanted(shelf, number) for number in range(4)])
    assert [None if one is None else one.fence for one in found] == [None, 1, 1, None]
    states, live, attempts = seen(database)
    assert states == {"job_0": "cancelled", "job_1": "running", "job_2": "running", "job_3": "queued"}
    assert live == {SLOT: 2}
    assert [attempt.job_id for attempt in attempts] == ["job_1", "job_2"]
    assert len({attempt.offered_us for attempt in attempts}) == 1


def test_one_that_breaks_a_rule_of_the_database_leaves_the_others_theirs(
    database: Database, commits: GroupCommit, shelf: Shelf
) -> None:
    fill(database, shelf, jobs=3, width=3)
    with database.write() as session:
        session.add(
            Attempt(
                id="att_x",
                job_id="job_1",
                fence=7,
                node_id=NODE,
                slot_id=SLOT,
                owner_account_id=session.get_one(Node, NODE).account_id,
                state="offered",
                forecast_ms=1,
                offered_us=0,
            )
        )
    found = Reservations(commits).reserve([wanted(shelf, number) for number in range(3)])
    assert [one is not None for one in found] == [True, False, True]
    states, live, _ = seen(database)
    assert states == {"job_0": "running", "job_1": "queued", "job_2": "running"}
    assert live == {SLOT: 2}


@pytest.mark.parametrize(("bytes_", "is_made"), [(1000, True), (1001, False)])
def test_a_slot_that_cannot_be_made_gives_back_what_it_evicted(
    database: Database, commits: GroupCommit, shelf: Shelf, bytes_: int, is_made: bool
) -> None:
    fill(database, shelf, jobs=1, width=2)
    plan = SlotPlan(bytes_, 2, 100, (SLOT,))
    (found,) = Reservations(commits).reserve([wanted(shelf, 0, plan)])
    states, live, _ = seen(database)
    assert (found is not None) == is_made
    assert states == {"job_0": "running" if is_made else "queued"}
    assert (SLOT in live) == (not is_made)
    with database.read() as session:
        assert session.get_one(Node, NODE).reserved_bytes == (bytes_ if is_made else 600)


def test_only_the_holder_of_the_lease_reserves(
    database: Database, commits: GroupCommit, shelf: Shelf
) -> None:
    fill(database, shelf, jobs=3, width=3)
    ours, theirs = Reservations(commits), Reservations(commits)
    assert ours.reserve([wanted(shelf, 0)]) != [None]
    assert theirs.reserve([wanted(shelf, 1), wanted(shelf, 2)]) == [None, None]
    ours.release_lease()
    assert None not in theirs.reserve([wanted(shelf, 1)])
    assert ours.reserve([wanted(shelf, 2)]) == [None]


def test_accepts_are_recorded_unless_the_attempt_moved_on(
    database: Database, commits: GroupCommit, shelf: Shelf
) -> None:
    fill(database, shelf, jobs=2, width=2)
    reservations = Reservations(commits)
    assert None not in reservations.reserve([wanted(shelf, 0), wanted(shelf, 1)])
    with database.write() as session:
        attempt = session.scalars(select(Attempt).where(Attempt.job_id == "job_1")).one()
        attempt.state = "done"
    reservations.record_accepts([AcceptedOffer("job_0", 1, 17), AcceptedOffer("job_1", 1, 17)])
    _, _, attempts = seen(database)
    assert [(one.state, one.accepted_us) for one in attempts] == [("accepted", 17), ("done", None)]
    with database.read() as session:
        accepted = session.scalars(select(JobEvent.job_id).where(JobEvent.to_state == "accepted")).all()
        started = session.scalars(select(Job.id).where(Job.started_us.is_not(None))).all()
    assert list(accepted) == list(started) == ["job_0"]
