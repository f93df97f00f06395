"""Every table of a view sums to its total, every cost is its own sum, held pay has its date."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.pricing import PER_MILLION, Rate
from ledger.ratecard import DAY_US, HOUR_US
from ledger.views import (
    AttemptShare,
    EarningRow,
    SpendRow,
    StatementError,
    contributor_view,
    cost_of,
    month_bounds_us,
    month_of,
    submitter_view,
    to_json,
    write_csv,
)

MARCH_US = 20_513 * DAY_US
WORK = EarningRow(
    earned_us=MARCH_US + HOUR_US + 5,
    node_id="node_1",
    card_id="qwen3-8b-4bit",
    kind="work",
    reference="job_1",
    amount_umlx=900,
)
ROWS = (
    WORK,
    replace(WORK, earned_us=MARCH_US + 2 * HOUR_US, amount_umlx=100, reference="job_2"),
    replace(WORK, node_id="node_2", card_id="", kind="availability", reference="slot", amount_umlx=30),
    replace(WORK, amount_umlx=50, hold_reason="under_check", release_us=MARCH_US + 3 * DAY_US),
    replace(WORK, amount_umlx=0, zero_reason="late_result"),
    replace(WORK, amount_umlx=0, zero_reason="pool_empty", earned_us=MARCH_US - 1),
    replace(WORK, amount_umlx=0, zero_reason="late_result"),
)
SPEND = SpendRow(
    ended_us=MARCH_US,
    job_id="job_1",
    key_id="key_1",
    card_id="qwen3-8b-4bit",
    card_revision="ab12",
    rate_card="cd34",
    rate=Rate(1_000_000, 250_000, 10_000_001, 100),
    factor_ppm=PER_MILLION,
    input_tokens=1_000,
    cached_tokens=400,
    output_tokens=100,
    bound_umlx=5_000,
    charge_umlx=1_701,
    refunded_umlx=0,
    fee_umlx=171,
    shares=(
        AttemptShare(fence=1, node_id="node_1", tokens=30, amount_umlx=459),
        AttemptShare(fence=2, node_id="node_2", tokens=70, amount_umlx=1_071),
    ),
)


def test_a_contributor_sees_earnings_by_mac_model_and_hour() -> None:
    view = contributor_view(ROWS)
    assert (view.total_umlx, view.paid_umlx, view.held_umlx) == (1_080, 1_030, 50)
    assert view.by_node == (("node_1", 1_050), ("node_2", 30))
    assert view.by_model == (("", 30), ("qwen3-8b-4bit", 1_050))
    assert view.by_kind == (("availability", 30), ("work", 1_050))
    assert view.by_hour == ((MARCH_US - HOUR_US, 0), (MARCH_US + HOUR_US, 980), (MARCH_US + 2 * HOUR_US, 100))
    assert view.by_month == (("2026-02", 0), ("2026-03", 1_080))


def test_held_pay_is_coming_and_never_missing() -> None:
    (coming,) = contributor_view(ROWS).coming
    assert (coming.shown, coming.amount_umlx, coming.reason) == ("coming on 2026-03-04", 50, "under_check")


def test_what_was_not_paid_is_counted_by_reason() -> None:
    assert contributor_view(ROWS).zeros == (("late_result", 2), ("pool_empty", 1))


@given(
    st.lists(
        st.builds(
            EarningRow,
            earned_us=st.integers(0, 10**16),
            node_id=st.sampled_from("abc"),
            card_id=st.sampled_from("xyz"),
            kind=st.sampled_from(["work", "availability"]),
            reference=st.just(""),
            amount_umlx=st.integers(0, 10**15),
            release_us=st.none() | st.integers(0, 10**16),
        ),
        max_size=20,
    )
)
def test_each_table_sums_to_the_total(rows: list[EarningRow]) -> None:
    view = contributor_view(rows)
    for table in (view.by_node, view.by_model, view.by_kind, view.by_hour, view.by_month):
        assert sum(amount for _, amount in table) == view.total_umlx == sum(row.amount_umlx for row in rows)
    assert view.paid_umlx + view.held_umlx == view.total_umlx
    assert sum(coming.amount_umlx for coming in view.coming) == view.held_umlx


def test_a_cost_is_shown_as_its_sum() -> None:
    assert cost_of(SPEND).as_text() == (
        "600 input tokens x 1000000 uMLX per million = 600 uMLX",
        "400 cached input tokens x 250000 uMLX per million = 100 uMLX",
        "100 output tokens x 10000001 uMLX per million = 1000.0001 uMLX",
        "sum 1700.0001 uMLX -> 1701 uMLX (rounded up)",
        "attempt 1 on node_1: 30 tokens, 459 uMLX",
        "attempt 2 on node_2: 70 tokens, 1071 uMLX",
        "fee 171 uMLX; shares + fee = 1701 uMLX",
    )
    assert (cost_of(SPEND).card, cost_of(SPEND).rate_card) == ("qwen3-8b-4bit@ab12", "cd34")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"charge_umlx": 1_500, "bound_umlx": 1_500}, "bound"),
        ({"bound_umlx": 1_701}, "sum"),
        ({"charge_umlx": 2_000, "rate": Rate(1_000_000, 250_000, 10_000_001, 2_000)}, "minimum"),
        ({"charge_umlx": 1_701, "rate": Rate(1_000_000, 250_000, 10_000_001, 1_701)}, "sum"),
        ({"charge_umlx": 2_126, "factor_ppm": 1_250_000}, "sum"),
    ],
)
def test_a_cost_names_the_rule_of_its_last_step(change: dict[str, object], rule: str) -> None:
    row = replace(SPEND, **change)  # pyright: ignore[reportArgumentType]
    share = replace(SPEND.shares[0], amount_umlx=row.charge_umlx - row.fee_umlx)
    cost = cost_of(replace(row, shares=(share,)))
    assert cost.rule == rule
    assert ("x factor 1.25" in cost.as_text()) == (row.factor_ppm != PER_MILLION)


@pytest.mark.parametrize(
    "change", [{"charge_umlx": 1_702}, {"output_tokens": 101}, {"fee_umlx": 170}, {"shares": ()}]
)
def test_a_row_that_does_not_add_up_is_not_shown_as_if_it_did(change: dict[str, object]) -> None:
    with pytest.raises(StatementError, match="job_1"):
        submitter_view([replace(SPEND, **change)])  # pyright: ignore[reportArgumentType]


def test_a_submitter_sees_spending_by_key_and_model() -> None:
    other = replace(SPEND, job_id="job_2", key_id="key_2", refunded_umlx=701)
    view = submitter_view([SPEND, other])
    assert view.total_umlx == 2_701
    assert view.by_key == (("key_1", 1_701), ("key_2", 1_000))
    assert view.by_model == (("qwen3-8b-4bit", 2_701),)
    assert view.by_month == (("2026-03", 2_701),)


@pytest.mark.parametrize(
    ("month", "days"), [("2026-03", 31), ("2026-02", 28), ("2028-02", 29), ("2026-12", 31)]
)
def test_a_month_has_its_days(month: str, days: int) -> None:
    start, end = month_bounds_us(month)
    assert end - start == days * DAY_US
    assert month_of(start) == month_of(end - 1) == month
    assert month_of(end) != month != month_of(start - 1)


@pytest.mark.parametrize("month", ["2026", "2026-13", "march", ""])
def test_a_month_is_written_in_one_way(month: str) -> None:
    with pytest.raises(ValueError, match="2026-03"):
        month_bounds_us(month)


def test_csv_keeps_integers_and_shows_times() -> None:
    out = io.StringIO()
    write_csv(ROWS[:4], out)
    lines = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert [line["amount_umlx"] for line in lines] == ["900", "100", "30", "50"]
    assert lines[0]["earned_utc"] == "2026-03-01T01:00:00.000005Z"
    assert [line["release_utc"] for line in lines] == ["", "", "", "2026-03-04T00:00:00.000000Z"]


def test_csv_has_no_text_that_a_spreadsheet_would_run() -> None:
    out = io.StringIO()
    write_csv([replace(WORK, reference="=HYPERLINK(1)"), replace(WORK, reference='a,"b"')], out)
    lines = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert [line["reference"] for line in lines] == ["'=HYPERLINK(1)", 'a,"b"']


def test_csv_of_costs_leaves_nested_values_out_and_of_nothing_is_empty() -> None:
    out = io.StringIO()
    write_csv([], out)
    assert not out.getvalue()
    write_csv([SPEND], out)
    (line,) = csv.DictReader(io.StringIO(out.getvalue()))
    assert (line["charge_umlx"], "shares" in line, "rate" in line) == ("1701", False, False)


def test_json_has_amounts_as_decimal_strings() -> None:
    found = json.loads(json.dumps(to_json(contributor_view(ROWS))))
    assert found["total_umlx"] == "1080"
    assert found["by_node"] == [
        {"key": "node_1", "amount_umlx": "1050"},
        {"key": "node_2", "amount_umlx": "30"},
    ]
    assert found["coming"][0]["amount_umlx"] == "50"
    assert found["zeros"][0] == {"reason": "late_result", "count": 2}
    cost = to_json(submitter_view([SPEND]))["costs"][0]
    assert (cost["charge_umlx"], cost["shares"][0]["amount_umlx"], cost["lines"][0]["tokens"]) == (
        "1701",
        "459",
        600,
    )
