"""Money of random job histories: nothing is lost, nobody gains by dealing with himself.

The oracle below says in its own words, with fractions, what each Mac is due; it shares no code
with the rule but the types of its input and output.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.pricing import PER_MILLION, Rate, bound_umlx
from ledger.rewards import AttemptFacts, Check, Ending, JobFacts, Member, Outcome, Settlement, settle

HISTORIES = 10_000
OWNERS = ("ann", "bob", "cem", "dia")
SUBMITTERS = ("sue", "tom", *OWNERS[:2])


def random_members(dice: random.Random) -> tuple[Member, ...]:
    owner, count = dice.choice(OWNERS), dice.choice((1, 1, 1, 2, 3, 4))
    cuts = sorted(dice.choices(range(PER_MILLION + 1), k=count - 1))
    parts = [high - low for low, high in zip([0, *cuts], [*cuts, PER_MILLION], strict=True)]
    return tuple(
        Member(node_id=f"{owner}_{index}", owner=owner, held_ppm=part) for index, part in enumerate(parts)
    )


def random_attempt(dice: random.Random, fence: int, submitter: str) -> AttemptFacts:
    members = random_members(dice)
    ending: Ending = dice.choice(get_args(Ending))
    delivered = 0 if ending == "declined" else dice.choice((0, 1, 2, dice.randrange(5_000)))
    check: Check = dice.choices(get_args(Check), weights=(5, 3, 1, 1))[0]
    return AttemptFacts(
        fence=fence,
        members=members,
        ending=ending,
        delivered_tokens=delivered,
        received_tokens=dice.choice((delivered, delivered, dice.randint(0, delivered))),
        check=check,
        is_held=dice.random() < 0.3,
        is_linked=members[0].owner == submitter,
    )


def random_job(dice: random.Random, number: int) -> JobFacts:
    submitter = dice.choice(SUBMITTERS)
    attempts = tuple(
        random_attempt(dice, fence, submitter)
        for fence in sorted(dice.sample(range(1, 20), dice.choice((0, 1, 1, 2, 3, 6))))
    )
    input_tokens = dice.choice((0, 1, dice.randrange(100), dice.randrange(100_000)))
    output = dice.choice((0, 1, 3, dice.randrange(10**9)))
    rate = Rate(output // 10, output // 40, output, dice.choice((0, 1, 100)))
    factor_ppm = dice.choice((PER_MILLION, 1_250_000, 1_111_111))
    tokens = sum(attempt.delivered_tokens for attempt in attempts)
    return JobFacts(
        job_id=f"job_{number}",
        payer=f"user:{submitter}",
        rate=rate,
        fee_ppm=dice.choice((0, 1, 100_000, 333_333, PER_MILLION)),
        bound_umlx=bound_umlx(rate, input_tokens, dice.choice((tokens, tokens // 2)), factor_ppm),
        outcome=dice.choice(get_args(Outcome)),
        input_tokens=input_tokens,
        cached_tokens=dice.randint(0, input_tokens),
        attempts=attempts,
        factor_ppm=factor_ppm,
    )


def histories(seed: int, count: int) -> Iterator[JobFacts]:
    dice = random.Random(seed)
    for number in range(count):
        yield random_job(dice, number)


def weights_of(job: JobFacts) -> dict[tuple[int, str], int]:
    """The oracle: received tokens x part held, of attempts that count. One's own Macs are free."""
    return {
        (attempt.fence, member.node_id): attempt.received_tokens * member.held_ppm
        for attempt in job.attempts
        if attempt.ending not in {"late", "declined"} and attempt.check != "failed"
        for member in attempt.members
        if f"user:{member.owner}" != job.payer
    }


def exact_charge(job: JobFacts, output_tokens: int) -> Fraction:
    tokens_umlx = (
        (job.input_tokens - job.cached_tokens) * job.rate.input_umlx_per_million
        + job.cached_tokens * job.rate.cached_input_umlx_per_million
        + output_tokens * job.rate.output_umlx_per_million
    )
    return Fraction(tokens_umlx, PER_MILLION) * Fraction(job.factor_ppm, PER_MILLION)


def move(result: Settlement, balances: dict[str, int]) -> None:
    """Carry out a settlement on plain sums: the hold's pays, then each transfer."""
    for account_id, amount_umlx in result.capture_pays():
        balances[result.payer] -= amount_umlx
        balances[account_id] += amount_umlx
    for payment in result.extra_pays():
        balances[payment.source] -= payment.amount_umlx
        balances[payment.account_id] += payment.amount_umlx


def of_person(balances: dict[str, int], name: str) -> int:
    return balances[f"user:{name}"] + balances[f"escrow:{name}"]


def test_ten_thousand_histories_conserve_money() -> None:
    balances: dict[str, int] = defaultdict(int)
    charged = owners = fees = 0
    for job in histories(1, HISTORIES):
        result = settle(job)
        move(result, balances)
        charged += result.charge_umlx
        fees += result.fee_umlx
        owners += sum(share.amount_umlx for share in result.shares)
    assert charged == owners + fees > 0
    assert sum(balances.values()) == 0
    assert balances["fee"] == fees
    assert balances["pool:availability"] < 0


def test_owners_shares_and_fee_are_the_one_charge() -> None:
    """I13, and the charge is that of the tokens that count, rounded up once."""
    for job in histories(2, HISTORIES):
        result = settle(job)
        shares = {(share.fence, share.node_id): share.amount_umlx for share in result.shares}
        assert sum(shares.values()) + result.fee_umlx == result.charge_umlx <= job.bound_umlx
        assert result.fee_umlx == -(-result.charge_umlx * job.fee_ppm // PER_MILLION)
        weights = weights_of(job)
        if job.outcome == "coordinator_fault" or not any(weights.values()):
            continue
        tokens = sum(weights.values()) // PER_MILLION
        assert result.paid_tokens == tokens
        least = max(job.rate.minimum_umlx, exact_charge(job, tokens))
        assert result.charge_umlx == job.bound_umlx or 0 <= result.charge_umlx - least < 1
        for key, amount_umlx in shares.items():
            ideal = Fraction(
                (result.charge_umlx - result.fee_umlx) * weights.get(key, 0), sum(weights.values())
            )
            assert abs(amount_umlx - ideal) < 1


def test_a_share_does_not_depend_on_the_order_of_a_pods_members() -> None:
    for job in histories(3, HISTORIES // 10):
        turned = replace(
            job,
            attempts=tuple(replace(item, members=item.members[::-1]) for item in job.attempts),
        )
        shares = {(share.fence, share.node_id): share for share in settle(job).shares}
        assert {(share.fence, share.node_id): share for share in settle(turned).shares} == shares


def test_dealing_with_oneself_never_gains() -> None:
    """I19: whoever pays for a job and owns Macs that served it ends with no more than before."""
    seen = 0
    for job in histories(4, HISTORIES):
        balances: dict[str, int] = defaultdict(int)
        move(settle(job), balances)
        submitter = job.payer.removeprefix("user:")
        if any(attempt.is_linked for attempt in job.attempts):
            assert of_person(balances, submitter) <= 0
            seen += 1
    assert seen > HISTORIES // 20


def test_a_job_on_ones_own_macs_alone_moves_nothing() -> None:
    for job in histories(8, HISTORIES // 10):
        owner = job.payer.removeprefix("user:")
        own = (Member(node_id="own", owner=owner, held_ppm=PER_MILLION),)
        attempts = tuple(replace(item, members=own, is_linked=True) for item in job.attempts)
        result = settle(replace(job, attempts=attempts))
        assert (result.charge_umlx, result.capture_pays(), result.extra_pays()) == (0, (), ())
        assert all(share.reason is not None for share in (*result.shares, *result.extra))


def test_new_strangers_who_are_one_person_never_gain() -> None:
    """Without any link being seen: all owners and the submitter together, all in probation."""
    seen = 0
    for job in histories(5, HISTORIES):
        if job.outcome == "coordinator_fault":
            continue
        strangers = (replace(item, is_held=True, is_linked=False) for item in job.attempts)
        result = settle(replace(job, attempts=tuple(strangers)))
        balances: dict[str, int] = defaultdict(int)
        move(result, balances)
        assert balances["pool:availability"] + balances["fee"] >= 0
        seen += bool(result.extra_pays())
    assert seen > HISTORIES // 100


def test_every_zero_has_its_reason_and_nothing_else_has_one() -> None:
    for job in histories(6, HISTORIES):
        result = settle(job)
        for payment in (*result.shares, *result.extra):
            assert payment.amount_umlx >= 0
            assert (payment.amount_umlx == 0) == (payment.reason is not None)
        members = sum(len(attempt.members) for attempt in job.attempts)
        paid_from = result.extra if job.outcome == "coordinator_fault" else result.shares
        assert sum(payment.source in {"charge", "treasury"} for payment in paid_from) == members


def test_the_submitter_never_pays_for_a_second_reading() -> None:
    """Cut into any attempts on honest Macs, an answer costs what it costs in one."""
    dice = random.Random(7)
    for job in histories(7, HISTORIES // 10):
        tokens = [dice.randrange(1, 300) for _ in range(dice.randrange(1, 5))]
        endings: list[Ending] = ["reclaimed"] * len(tokens)
        endings[-1] = "finished"
        attempts = tuple(
            AttemptFacts(
                fence=fence,
                members=random_members(dice),
                ending=ending,
                delivered_tokens=count,
                received_tokens=count,
            )
            for fence, (count, ending) in enumerate(zip(tokens, endings, strict=True), start=1)
        )
        whole = replace(attempts[-1], delivered_tokens=sum(tokens), received_tokens=sum(tokens))
        facts = replace(job, payer="user:sue", outcome="finished", bound_umlx=10**18)
        parts = settle(replace(facts, attempts=attempts))
        assert parts.charge_umlx == settle(replace(facts, attempts=(whole,))).charge_umlx


@given(
    received=st.integers(1, 10**6),
    more=st.integers(1, 10**6),
    ending=st.sampled_from(["reclaimed", "asleep", "disconnected", "crashed"]),
)
def test_one_delivered_token_more_never_pays_its_owner_less(received: int, more: int, ending: Ending) -> None:
    served: tuple[tuple[str, Ending], ...] = (("ann", ending), ("bob", "finished"))

    def share(tokens: int) -> int:
        attempts = tuple(
            AttemptFacts(
                fence=fence,
                members=(Member(node_id=owner, owner=owner, held_ppm=PER_MILLION),),
                ending=end,
                delivered_tokens=count,
                received_tokens=count,
            )
            for fence, ((owner, end), count) in enumerate(zip(served, (tokens, 7), strict=True), 1)
        )
        facts = JobFacts(
            job_id="job_1",
            payer="user:sue",
            rate=Rate(100, 25, 1_000_000, 100),
            fee_ppm=100_000,
            bound_umlx=10**15,
            outcome="finished",
            input_tokens=500,
            cached_tokens=0,
            attempts=attempts,
        )
        return settle(facts).shares[0].amount_umlx

    assert share(received) <= share(received + more)


@pytest.mark.parametrize("seed", [8])
def test_the_same_facts_give_the_same_settlement(seed: int) -> None:
    first = [settle(job) for job in histories(seed, 200)]
    assert first == [settle(job) for job in histories(seed, 200)]
