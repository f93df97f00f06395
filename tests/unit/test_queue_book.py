"""Every queued job is looked at, a bounded part at a time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.catalogue.cards import load_catalogue
from coordinator.placement.fairness import OVERDUE_SECONDS
from coordinator.placement.types import JobFacts
from coordinator.queue_book import PART_MAX, PART_MIN, QueueBook, part_of
from coordinator.settings import Settings

CARD = next(iter(load_catalogue().cards.values()))
MANY_HOSTS = 1_000_000  # so many that a look takes the fewest jobs


def job(number: int, *, submitter: str = "", waited: float = 0.0) -> JobFacts:
    return JobFacts(
        job_id=f"job_{number:05}",
        card=CARD,
        prompt_tokens=10,
        max_tokens=10,
        submitter_id=submitter or f"acct_{number % 3}",
        waited_seconds=waited,
    )


def test_a_look_is_bounded_by_the_hosts_that_each_decision_looks_at() -> None:
    assert part_of(0) == PART_MAX
    assert part_of(10) > 0.9 * PART_MAX
    assert part_of(10_000) * 10_000 <= 2_000_000
    assert part_of(10**9) == PART_MIN


def test_a_short_queue_is_a_round_a_look() -> None:
    book = QueueBook(120.0)
    jobs = [job(number) for number in range(5)]
    for _ in range(2):
        part, is_first, is_last = book.next_part(jobs, {}, hosts=10)
        assert (len(part), is_first, is_last) == (5, True, True)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 100), st.lists(st.integers(0, 60), max_size=8))
def test_none_is_passed_over_however_many_come_in_between(waiting: int, coming: list[int]) -> None:
    book = QueueBook(120.0)
    jobs = [job(number) for number in range(waiting)]
    seen: set[str] = set()
    looks = 0
    is_last = False
    while not is_last:
        part, is_first, is_last = book.next_part(jobs, {}, hosts=MANY_HOSTS)
        assert is_first == (looks == 0)
        assert len(part) <= PART_MIN
        assert not seen & {one.job_id for one in part}
        seen |= {one.job_id for one in part}
        if not is_last and looks < len(coming):
            # Newcomers who used nothing yet go before all the others.
            jobs += [
                job(1000 * (looks + 1) + extra, submitter=f"new_{looks}") for extra in range(coming[looks])
            ]
        looks += 1
    assert seen == {one.job_id for one in jobs}


def test_overdue_jobs_come_first_in_their_round() -> None:
    book = QueueBook(120.0)
    jobs = [job(number, waited=200.0 if number >= 90 else 1.0) for number in range(100)]
    part, _, _ = book.next_part(jobs, {}, hosts=MANY_HOSTS)
    assert {one.job_id for one in part} >= {one.job_id for one in jobs[90:]}
    assert [one.is_overdue for one in part] == [True] * 10 + [False] * (PART_MIN - 10)


def test_reading_goes_on_behind_the_last_page_and_begins_again_at_its_end() -> None:
    book = QueueBook(120.0)
    book.unsure.update({"job_2", "job_9"})
    book.was_read([("job_1", 5), ("job_2", 7)], is_whole=False)
    assert (book.after, book.unsure) == ((7, "job_2"), {"job_9"})
    book.was_read([("job_3", 8)], is_whole=True)
    assert book.after < (0, "")
    book.was_read([], is_whole=False)
    assert book.after < (0, "")


def test_the_coordinator_and_the_matcher_agree_when_a_job_is_overdue() -> None:
    assert Settings.model_fields["overdue_seconds"].default == OVERDUE_SECONDS
