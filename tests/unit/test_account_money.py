"""The pure parts of statements, earnings, spending and tokens; every figure is worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from coordinator.accounts.captures import Captured
from coordinator.accounts.earnings import Share, by_day, held_or_paid, kind_of, work_rows, zero_text
from coordinator.accounts.money_endpoints import exact
from coordinator.accounts.periods import Period, read_period
from coordinator.accounts.spending import NO_RATE, Charged, explain, spending_of
from coordinator.accounts.statement_files import file_name, file_text
from coordinator.accounts.token_endpoints import tokens_json
from coordinator.catalogue.cards import Catalogue, load_catalogue
from coordinator.errors import ApiError
from coordinator.policy.models import HeldPayRow
from ledger.pricing import PER_MILLION, Rate
from ledger.ratecard import CARD, DAY_US, HOUR_US, FeeRates
from ledger.statements import Statement, StatementEntry
from ledger.views import AttemptShare, EarningRow, contributor_view

MARCH_US = 20_513 * DAY_US  # 2026-03-01
APRIL_US = MARCH_US + 31 * DAY_US


# -- periods -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "now_us", "expected"),
    [
        ((None, None, None), 50, (0, 51)),
        ((None, 7, None), 50, (7, 51)),
        ((None, 7, 9), 50, (7, 9)),
        ((None, 7, 7), 50, (7, 7)),
        ((None, 99, None), 50, (51, 51)),
        (("2026-03", None, None), APRIL_US + 5, (MARCH_US, APRIL_US)),
        (("2026-03", None, None), MARCH_US, (MARCH_US, MARCH_US + 1)),
        (("1970-01", None, None), APRIL_US, (0, 31 * DAY_US)),
    ],
)
def test_a_period_ends_by_now(asked: Any, now_us: int, expected: tuple[int, int]) -> None:
    found = read_period(*asked, now_us=now_us)
    assert (found.since_us, found.until_us) == expected


@pytest.mark.parametrize(
    ("asked", "param", "word"),
    [
        (("2026-03", None, None), "month", "not begun"),
        (("2026-00", None, None), "month", "2026-03"),
        (("2026-02 ", None, None), "month", "2026-03"),
        (("٢٠٢٦-03", None, None), "month", "2026-03"),
        (("1969-12", None, None), "month", "2026-03"),
        (("2026-02", None, 5), "month", "not both"),
        ((None, 9, 8), "until_us", "before"),
    ],
)
def test_a_period_that_cannot_be_is_refused_by_name(asked: Any, param: str, word: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_period(*asked, now_us=MARCH_US - 1)
    assert caught.value.param == param
    assert word in caught.value.message


def test_a_period_names_the_field_that_made_it() -> None:
    assert (Period(0, 1).field, Period(0, 1, "1970-01").field) == ("since_us", "month")


# -- files ---------------------------------------------------------------------------------------


STATEMENT = Statement(
    account_id="user:acct_1",
    since_us=MARCH_US,
    until_us=APRIL_US,
    opening_umlx=5,
    entries=(StatementEntry(7, UUID(int=9), MARCH_US + 1, "transfer", "=1+1", 3),),
    closing_umlx=8,
    open_holds=(),
)


def test_a_file_is_named_for_month_and_mac() -> None:
    assert file_name("csv", month=None, node_id=None) == "statement.csv"
    assert file_name("hledger", month="2026-03", node_id=None) == "statement-2026-03.journal"
    node_id = "node_0123456789abcdef"
    assert (
        file_name("beancount", month="2026-03", node_id=node_id)
        == "statement-2026-03-node_01234567.beancount"
    )


def test_csv_has_a_running_balance_and_no_formulas() -> None:
    lines = file_text(STATEMENT, "csv", title="Ann", stated_closing_umlx=8).splitlines()
    assert [line.split(",")[2:6] for line in lines[1:]] == [
        ["opening", "", "0", "5"],
        ["transfer", "'=1+1", "3", "8"],
        ["closing", "", "0", "8"],
    ]


def test_plain_text_books_assert_what_the_ledger_states_and_not_the_sum_of_the_entries() -> None:
    text = file_text(STATEMENT, "beancount", title="Ann", stated_closing_umlx=9)
    assert "balance Assets:User:N-acct-1  0.000009 ~ 0 MLX" in text
    assert "balance Equity:Issuance  -0.000009 ~ 0 MLX" in text
    assert "  Assets:User:N-acct-1  0.000005 MLX" in text
    journal = file_text(STATEMENT, "hledger", title="Ann", stated_closing_umlx=9)
    assert "user:acct_1  0.000000 MLX = 0.000009 MLX" in journal
    with pytest.raises(ValueError, match="json"):
        file_text(STATEMENT, "json", title="Ann", stated_closing_umlx=8)


# -- earnings ------------------------------------------------------------------------------------


ANN, ESCROW = "user:acct_ann", "escrow:acct_ann"
CAPTURE = Captured(MARCH_US + 1, "job_1", ((ANN, 10), ("user:acct_bob", 40), (ESCROW, 17), ("fee", 8)))


def test_a_capture_is_what_it_paid_out() -> None:
    assert (CAPTURE.charge_umlx, CAPTURE.paid_umlx(ANN, ESCROW), CAPTURE.paid_umlx("fee")) == (75, 27, 8)
    assert CAPTURE.paid_umlx(ANN) == 10


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([("node_1", 10), ("node_2", 17)], [("node_1", 10), ("node_2", 17)]),
        # No attempt stands for a part of it: that part is shown without a Mac.
        ([("node_2", 17)], [("node_2", 17), ("", 10)]),
        ([], [("", 27)]),
        # More than the ledger paid Ann: not to be told apart.
        ([("node_1", 10), ("node_2", 17), ("node_3", 40)], [("", 27)]),
    ],
)
def test_rows_of_a_capture_sum_to_what_the_ledger_paid(
    shares: list[tuple[str, int]], expected: list[tuple[str, int]]
) -> None:
    known = [Share("job_1", node_id, amount) for node_id, amount in shares]
    others = [Share("job_2", "node_1", 999)]
    rows = work_rows([CAPTURE], (ANN, ESCROW), [*known, *others], {"job_1": "qwen3-8b-4bit"})
    assert [(row.node_id, row.amount_umlx) for row in rows] == expected
    assert {(row.card_id, row.kind, row.earned_us, row.reference) for row in rows} == {
        ("qwen3-8b-4bit", "work", MARCH_US + 1, "job_1")
    }


@pytest.mark.parametrize(
    ("kind", "reference", "amount", "sources", "expected"),
    [
        ("transfer", "slot:7", 5, {"pool:availability"}, "availability"),
        ("transfer", "second:job_" + "a" * 32, 5, {"pool:availability"}, "second_reading"),
        ("transfer", "fault:job_" + "a" * 32 + ":1:node", 5, {"treasury"}, "work"),
        ("transfer", "a present", 5, {"treasury"}, None),
        ("transfer", "slot:7", 5, {"pool:audit"}, None),
        ("transfer", "slot:7", 5, {"user:acct_1"}, None),
        ("transfer", "slot:7", -5, {"pool:availability"}, None),
        ("mint", "grant:first_hour:device", 5, {"issuance"}, "grant"),
        ("mint", "acct_1", 5, {"issuance"}, None),
        ("burn", "grant:first_hour:device", -5, set[str](), None),
    ],
)
def test_what_an_entry_pays_for(
    kind: str, reference: str, amount: int, sources: set[str], expected: str | None
) -> None:
    assert kind_of(kind, reference, amount, sources) == expected


def held_row(**changes: Any) -> HeldPayRow:
    fields: dict[str, Any] = {
        "id": "work:1",
        "owner_account_id": "acct_ann",
        "node_id": "node_1",
        "job_id": "job_1",
        "amount_umlx": 17,
        "earned_us": MARCH_US,
        "release_us": MARCH_US + 7 * DAY_US,
        "reason": "new_owner",
        **changes,
    }
    return HeldPayRow(**fields)


def test_held_back_pay_is_earned_and_shown_until_it_comes_or_is_lost() -> None:
    row = EarningRow(
        earned_us=MARCH_US, node_id="node_1", card_id="", kind="work", reference="job_1", amount_umlx=17
    )
    assert held_or_paid(row, None) == [row]
    (coming,) = held_or_paid(row, held_row())
    assert (coming.hold_reason, coming.release_us) == ("new_owner", MARCH_US + 7 * DAY_US)
    assert held_or_paid(row, held_row(released_us=MARCH_US + 7 * DAY_US)) == [row]
    rest, part = held_or_paid(row, held_row(amount_umlx=5))  # 12 were refunded
    assert (rest.amount_umlx, rest.release_us, part.amount_umlx) == (12, None, 5)
    (lost,) = held_or_paid(row, held_row(forfeited_us=MARCH_US + 1))
    view = contributor_view([row, coming, lost])
    assert (view.total_umlx, view.paid_umlx, view.held_umlx, view.forfeited_umlx) == (51, 17, 17, 17)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (("declined", "declined", "busy"), "declined: busy"),
        (("check_failed", "failed", "result_not_proven"), "check_failed: result_not_proven"),
        (("pool_empty", "done", "stop"), "pool_empty"),
        ((None, "lost", None), "lost"),
    ],
)
def test_a_zero_says_what_became_of_the_attempt(
    known: tuple[str | None, str, str | None], expected: str
) -> None:
    assert zero_text(*known) == expected


def test_days_are_sums_of_hours() -> None:
    hours = [(MARCH_US, 1), (MARCH_US + 23 * HOUR_US, 2), (MARCH_US + 24 * HOUR_US, 4)]
    assert by_day(hours) == [(MARCH_US, 3), (MARCH_US + DAY_US, 4)]


# -- spending ------------------------------------------------------------------------------------


# 10 x 1.5 + 4 x 2.25 = 24; fee 3; shares of 21 by 1 and 3 tokens: 5 and 16.
RATE = Rate(1_500_000, 0, 2_250_000, 20)
JOB = Charged(
    charged_us=MARCH_US,
    job_id="job_1",
    key_id="key_1",
    card_id="qwen3-8b-4bit",
    card_revision="ab",
    rate_card_id="card_1",
    factor_ppm=PER_MILLION,
    input_tokens=10,
    bound_umlx=50,
    charge_umlx=24,
    refunded_umlx=0,
    fee_umlx=3,
    shares=(
        AttemptShare(fence=1, node_id="node_1", tokens=1, amount_umlx=5),
        AttemptShare(fence=2, node_id="node_2", tokens=3, amount_umlx=16),
    ),
)


def rate_of(card_id: str, revision: str) -> Rate | None:
    return RATE if (card_id, revision) == ("qwen3-8b-4bit", "ab") else None


def test_a_jobs_sum_is_computed_anew() -> None:
    row, found = explain(JOB, RATE)
    assert row is not None
    assert found.cost is not None
    assert [line.millionths for line in found.cost.lines] == [15_000_000, 0, 9_000_000]
    assert (found.cost.rule, found.cost.charge_umlx, found.why) == ("sum", 24, None)
    _, bound = explain(replace(JOB, charge_umlx=22, bound_umlx=22, fee_umlx=1), RATE)
    assert bound.cost is not None
    assert bound.cost.rule == "bound"


def test_what_does_not_add_up_is_shown_with_the_reason_and_counted() -> None:
    other = replace(JOB, job_id="job_2", key_id="key_2", card_id="gone", charge_umlx=100, refunded_umlx=30)
    wrong = replace(JOB, job_id="job_3", charge_umlx=25, charged_us=APRIL_US)
    uneven = replace(JOB, job_id="job_4", fee_umlx=4)
    found = spending_of([JOB, other, wrong, uneven], rate_of)
    assert (found.total_umlx, found.charged_umlx) == (24 + 70 + 25 + 24, 24 + 100 + 25 + 24)
    assert found.by_key == (("key_1", 73), ("key_2", 70))
    assert found.by_model == (("gone", 70), ("qwen3-8b-4bit", 73))
    assert found.by_month == (("2026-03", 118), ("2026-04", 25))
    assert [job.cost is None for job in found.jobs] == [False, True, True, True]
    assert [job.why for job in found.jobs] == [
        None,
        NO_RATE,
        "job_3: charge_umlx is 25, its tokens give 24",
        "job_4: shares + fee are 25, charge_umlx is 24",
    ]


def test_exact_amounts_lose_no_digit() -> None:
    assert [exact(value) for value in (0, 1, 1_500_000, 24_000_000)] == ["0", "0.000001", "1.5", "24"]


# -- tokens --------------------------------------------------------------------------------------


def test_tokens_of_a_free_and_of_a_dear_model() -> None:
    (card,) = load_catalogue().cards.values()
    free = card.model_copy(
        update={
            "id": "free",
            "weights_bytes": 1,
            "price": card.price.model_copy(update={"output_umlx_per_million": 0}),
        }
    )
    catalogue = Catalogue({card.id: card, "free": free}, {"small": card.id}, {})
    balances = {"issuance": -500, "fee": 8, "pool:availability": 30}
    other = replace(CARD, version=2, fees=FeeRates(fee_ppm=50_000))
    found: Any = tokens_json(catalogue, balances, card=other)
    assert [(model["id"], model["output_tokens_per_mlx"]) for model in found["models"]] == [
        ("free", None),
        ("smollm2-135m-f32", 185_222),
    ]
    assert (found["supply_umlx"], found["fee_ppm"]) == ("500", 50_000)
    assert found["network_accounts"] == [
        {"account": "fee", "balance_umlx": "8"},
        {"account": "pool:availability", "balance_umlx": "30"},
    ]
    assert found["rate_card"] == {"id": other.id, "version": 2}
    assert [(example["size"], example["model"]) for example in found["examples"]] == [
        ("small", "free"),
        ("middle", "smollm2-135m-f32"),
        ("large", "smollm2-135m-f32"),
    ]
    empty: Any = tokens_json(catalogue, {}, card=CARD)
    assert (empty["supply_umlx"], empty["network_accounts"]) == ("0", [])
