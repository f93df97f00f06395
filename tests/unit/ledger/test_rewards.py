"""What is paid when: every row of the table, in numbers that can be checked by hand.

Rate: 1 uMLX per input token, 10 per output token, fee 10 %, nothing rounded away.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.commands import Capture, settlement_id
from ledger.pricing import PER_MILLION, Rate
from ledger.rewards import AttemptFacts, Ending, JobFacts, Member, Payment, settle

RATE = Rate(
    input_umlx_per_million=1_000_000,
    cached_input_umlx_per_million=250_000,
    output_umlx_per_million=10_000_000,
    minimum_umlx=100,
)
ANN, BOB, CEM = (
    Member(node_id=f"node_{name}", owner=name, held_ppm=PER_MILLION) for name in ("ann", "bob", "cem")
)


def attempt(
    fence: int, member: Member, ending: Ending = "finished", delivered: int = 100, received: int | None = None
) -> AttemptFacts:
    return AttemptFacts(
        fence=fence,
        members=(member,),
        ending=ending,
        delivered_tokens=delivered,
        received_tokens=delivered if received is None else received,
    )


def job(*attempts: AttemptFacts) -> JobFacts:
    """A job of 1000 input tokens and a bound of 11,000 uMLX."""
    return JobFacts(
        job_id="job_1",
        payer="user:sue",
        rate=RATE,
        fee_ppm=100_000,
        bound_umlx=11_000,
        outcome="finished",
        input_tokens=1_000,
        cached_tokens=0,
        attempts=attempts,
    )


def amounts(payments: tuple[Payment, ...]) -> list[tuple[str, int, str | None]]:
    return [(payment.account_id, payment.amount_umlx, payment.reason) for payment in payments]


def test_finished_is_charged_and_paid_less_the_fee() -> None:
    result = settle(job(attempt(1, ANN)))
    assert (result.charge_umlx, result.fee_umlx, result.paid_tokens) == (2_000, 200, 100)
    assert amounts(result.shares) == [("user:ann", 1_800, None)]
    assert result.extra == ()
    assert result.capture_pays() == (("fee", 200), ("user:ann", 1_800))


def test_what_is_paid_out_of_the_hold_is_a_command_of_the_ledger() -> None:
    pays = settle(job(attempt(1, ANN))).capture_pays()
    command = Capture(
        id=settlement_id("job_1", 0, "capture"), hold_id=settlement_id("job_1", 0, "hold"), pays=pays
    )
    assert command.total_umlx == 2_000


def test_cancelled_is_charged_for_the_prompt_and_the_tokens_up_to_it() -> None:
    facts = replace(job(attempt(1, ANN, "cancelled", delivered=70, received=40)), outcome="cancelled")
    result = settle(facts)
    assert (result.charge_umlx, result.fee_umlx) == (1_400, 140)
    assert amounts(result.shares) == [("user:ann", 1_260, None)]


def test_cancelled_before_a_token_costs_nothing() -> None:
    result = settle(replace(job(attempt(1, ANN, "cancelled", delivered=0)), outcome="cancelled"))
    assert (result.charge_umlx, result.capture_pays()) == (0, ())
    assert amounts(result.shares) == [("user:ann", 0, "nothing_delivered")]


@pytest.mark.parametrize("ending", ["reclaimed", "asleep", "disconnected", "crashed"])
def test_a_host_that_left_is_paid_for_what_it_delivered(ending: Ending) -> None:
    """Charge 1000 + 100 x 10 = 2000; owners 1800, by 30 and 70 tokens. The pool pays Bob for reading
    1030 tokens once more: 1030 less 10 % = 927."""
    result = settle(job(attempt(1, ANN, ending, delivered=30), attempt(2, BOB, delivered=70)))
    assert (result.charge_umlx, result.fee_umlx) == (2_000, 200)
    assert amounts(result.shares) == [("user:ann", 540, None), ("user:bob", 1_260, None)]
    assert amounts(result.extra) == [("user:bob", 927, None)]
    assert [payment.source for payment in result.extra] == ["pool:availability"]
    assert result.charge_umlx == settle(job(attempt(1, ANN, delivered=100))).charge_umlx


@pytest.mark.parametrize(
    ("ending", "effect"),
    [("reclaimed", "none"), ("asleep", "none"), ("disconnected", "none"), ("crashed", "minus_one")],
)
def test_only_a_crash_costs_trust(ending: Ending, effect: str) -> None:
    result = settle(job(attempt(1, ANN, ending, delivered=30), attempt(2, BOB, delivered=70)))
    assert [change.effect for change in result.trust] == [effect, "none"]
    assert not any(change.slashes for change in result.trust)


def test_a_host_that_left_without_a_token_gets_nothing_and_causes_no_second_reading() -> None:
    result = settle(job(attempt(1, ANN, "reclaimed", delivered=0), attempt(2, BOB)))
    assert amounts(result.shares) == [("user:ann", 0, "nothing_delivered"), ("user:bob", 1_800, None)]
    assert result.extra == ()


def test_tokens_that_were_delivered_but_never_reached_the_submitter_are_not_paid() -> None:
    result = settle(job(attempt(1, ANN, "disconnected", delivered=30, received=0), attempt(2, BOB)))
    assert amounts(result.shares) == [("user:ann", 0, "not_received"), ("user:bob", 1_800, None)]


def test_a_job_that_fails_in_the_end_is_charged_for_what_arrived() -> None:
    facts = replace(job(attempt(1, ANN, "reclaimed", delivered=30)), outcome="failed")
    result = settle(facts)
    assert (result.charge_umlx, amounts(result.shares)) == (1_300, [("user:ann", 1_170, None)])


def test_a_job_of_which_nothing_arrived_costs_nothing() -> None:
    facts = replace(job(attempt(1, ANN, "reclaimed", delivered=30, received=0)), outcome="expired")
    assert settle(facts).charge_umlx == 0
    assert settle(replace(job(), outcome="cancelled")).charge_umlx == 0


def test_a_late_result_is_worth_nothing() -> None:
    result = settle(job(attempt(1, ANN, "late", delivered=100, received=0), attempt(2, BOB)))
    assert amounts(result.shares) == [("user:ann", 0, "late_result"), ("user:bob", 1_800, None)]
    assert (result.charge_umlx, result.extra) == (2_000, ())


def test_a_declined_offer_is_worth_nothing() -> None:
    result = settle(job(attempt(1, ANN, "declined", delivered=0), attempt(2, BOB)))
    assert amounts(result.shares) == [("user:ann", 0, "declined"), ("user:bob", 1_800, None)]


def test_a_failed_check_is_neither_paid_nor_charged_and_forfeits_the_escrow() -> None:
    result = settle(job(replace(attempt(1, ANN), check="failed")))
    assert (result.charge_umlx, amounts(result.shares)) == (0, [("user:ann", 0, "check_failed")])
    assert [(change.effect, change.slashes) for change in result.trust] == [("reset", True)]


def test_a_failed_check_costs_nothing_to_the_honest_rest_of_the_job() -> None:
    """Charged is the prompt and Bob's 70 tokens: 1700, of which Bob gets 1530. His reading is the
    first that counts, so the charge pays it and the pool does not."""
    bad = replace(attempt(1, ANN, "reclaimed", delivered=30), check="failed")
    result = settle(job(bad, attempt(2, BOB, delivered=70)))
    assert (result.charge_umlx, result.fee_umlx) == (1_700, 170)
    assert amounts(result.shares) == [("user:ann", 0, "check_failed"), ("user:bob", 1_530, None)]
    assert result.extra == ()


def test_a_suspected_result_and_a_new_owner_are_paid_into_escrow() -> None:
    suspected = replace(attempt(1, ANN, "reclaimed", delivered=50), check="suspected")
    result = settle(job(suspected, replace(attempt(2, BOB, delivered=50), is_held=True)))
    assert amounts(result.shares) == [("escrow:ann", 900, None), ("escrow:bob", 900, None)]


def test_an_audit_is_paid_by_its_pool_like_any_job() -> None:
    result = settle(replace(job(attempt(1, ANN)), payer="pool:audit"))
    assert (result.payer, amounts(result.shares)) == ("pool:audit", [("user:ann", 1_800, None)])


@pytest.mark.parametrize("delivered", [100, 0])
@pytest.mark.parametrize("payer", ["pool:availability", "pool:audit"])
def test_a_pool_pays_nobody_for_serving_oneself(payer: str, delivered: int) -> None:
    own = replace(attempt(1, ANN, delivered=delivered), is_linked=True)
    result = settle(replace(job(own), payer=payer))
    reason = "self_dealing" if delivered else "nothing_delivered"
    assert (result.charge_umlx, amounts(result.shares)) == (0, [("user:ann", 0, reason)])
    # Nor does the pool pay for what the others of the job would not have charged it.
    mixed = settle(replace(job(own, attempt(2, BOB)), payer=payer))
    assert mixed.charge_umlx == settle(replace(job(attempt(2, BOB)), payer=payer)).charge_umlx
    # Who pays oneself out of one's own pocket only loses the fee.
    assert settle(job(own)).charge_umlx == settle(job(attempt(1, ANN, delivered=delivered))).charge_umlx


def test_loading_a_model_is_not_paid() -> None:
    """No fact of a settlement says anything of loads: an attempt that only loaded gets nothing."""
    result = settle(replace(job(attempt(1, ANN, "crashed", delivered=0)), outcome="failed"))
    assert (result.charge_umlx, amounts(result.shares)) == (0, [("user:ann", 0, "nothing_delivered")])


def test_a_fault_of_the_network_costs_the_submitter_nothing_and_the_owner_nothing() -> None:
    """The treasury pays what the owner would have had of 1000 + 40 x 10 = 1400, less the fee."""
    facts = replace(
        job(attempt(1, ANN, "disconnected", delivered=40, received=0)), outcome="coordinator_fault"
    )
    result = settle(facts)
    assert (result.charge_umlx, result.fee_umlx, result.shares) == (0, 0, ())
    assert amounts(result.extra) == [("user:ann", 1_260, None)]
    assert [payment.source for payment in result.extra_pays()] == ["treasury"]


def test_the_treasury_pays_nothing_for_dealing_with_oneself() -> None:
    linked = replace(attempt(1, ANN, "disconnected", delivered=40), is_linked=True)
    result = settle(replace(job(linked), outcome="coordinator_fault"))
    assert amounts(result.extra) == [("user:ann", 0, "self_dealing")]


def test_an_answer_that_is_empty_is_paid_for_its_prompt() -> None:
    result = settle(job(attempt(1, ANN, delivered=0)))
    assert (result.charge_umlx, amounts(result.shares)) == (1_000, [("user:ann", 900, None)])


def test_cached_tokens_and_factors_are_in_the_one_charge() -> None:
    """(600 + 400 / 4 + 1000) x 1.25 = 2125."""
    facts = replace(job(attempt(1, ANN)), cached_tokens=400, factor_ppm=1_250_000)
    assert settle(facts).charge_umlx == 2_125


def test_a_charge_never_exceeds_its_bound() -> None:
    facts = replace(job(attempt(1, ANN)), bound_umlx=1_999)
    result = settle(facts)
    assert (result.charge_umlx, result.fee_umlx, result.shares[0].amount_umlx) == (1_999, 200, 1_799)


def test_a_pod_is_paid_by_what_each_member_holds() -> None:
    pod = tuple(
        Member(node_id=f"node_{index}", owner="ann", held_ppm=ppm)
        for index, ppm in enumerate((333_333, 333_333, 333_334))
    )
    facts = job(replace(attempt(1, ANN, delivered=91), members=pod))
    result = settle(facts)
    assert (result.charge_umlx, result.fee_umlx) == (1_910, 191)
    assert [share.amount_umlx for share in result.shares] == [573, 573, 573]
    result = settle(replace(facts, fee_ppm=100_500))
    assert [share.amount_umlx for share in result.shares] == [573, 572, 573]
    assert result.capture_pays() == (("fee", 192), ("user:ann", 1_718))


def test_the_pool_pays_no_second_reading_to_the_owner_who_broke_off() -> None:
    again = replace(ANN, node_id="node_other")
    result = settle(job(attempt(1, ANN, "reclaimed", delivered=30), attempt(2, again, delivered=70)))
    assert amounts(result.extra) == [("user:ann", 0, "own_break")]
    assert sum(share.amount_umlx for share in result.shares) == 1_800


@pytest.mark.parametrize("linked_fence", [1, 2])
def test_the_pool_pays_no_second_reading_of_a_job_to_oneself(linked_fence: int) -> None:
    attempts = (attempt(1, ANN, "reclaimed", delivered=30), attempt(2, BOB, delivered=70))
    facts = job(*(replace(item, is_linked=item.fence == linked_fence) for item in attempts))
    assert amounts(settle(facts).extra) == [("user:bob", 0, "self_dealing")]


def test_the_pool_pays_new_owners_no_more_than_the_job_brought_in() -> None:
    """The fee is 200: Bob's 927 are cut to it, and for Cem nothing is left."""
    facts = job(
        attempt(1, ANN, "reclaimed", delivered=30),
        replace(attempt(2, BOB, "reclaimed", delivered=30), is_held=True),
        replace(attempt(3, CEM, delivered=40), is_held=True),
    )
    assert amounts(settle(facts).extra) == [("escrow:bob", 200, None), ("escrow:cem", 0, "capped_by_fee")]


def test_a_second_reading_without_a_token_is_not_paid() -> None:
    facts = job(
        attempt(1, ANN, "reclaimed", delivered=60),
        attempt(2, BOB, "crashed", delivered=0),
        attempt(3, CEM, delivered=40),
    )
    assert amounts(settle(facts).extra) == [("user:bob", 0, "nothing_delivered"), ("user:cem", 954, None)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": ()}, "held_ppm must sum"),
        ({"members": (replace(ANN, held_ppm=999_999),)}, "held_ppm must sum"),
        ({"members": (replace(ANN, held_ppm=-1), replace(BOB, held_ppm=1_000_001))}, "must not be negative"),
        ({"members": (replace(ANN, held_ppm=1), replace(ANN, held_ppm=999_999))}, "appear once"),
        ({"received_tokens": 101}, "received_tokens"),
        ({"received_tokens": -1}, "received_tokens"),
    ],
)
def test_attempts_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(attempt(1, ANN), **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bound_umlx": -1}, "bound_umlx"),
        ({"fee_ppm": 1_000_001}, "fee_ppm"),
        ({"cached_tokens": 1_001}, "cached_tokens"),
        ({"attempts": (attempt(2, ANN), attempt(1, BOB))}, "order of their fences"),
        ({"attempts": (attempt(1, ANN), attempt(1, BOB))}, "order of their fences"),
    ],
)
def test_jobs_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(job(attempt(1, ANN)), **changes)  # pyright: ignore[reportArgumentType]
