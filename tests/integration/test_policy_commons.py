"""Public work: for allowed accounts, in quiet hours, within the day's part, paid by the pool."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import httpx2
import pytest
from sqlalchemy import select, update

from coordinator.accounts.models import Account
from coordinator.accounts.service import create_account
from coordinator.db import Database, make_engine
from coordinator.errors import ApiError
from coordinator.ids import new_id
from coordinator.jobs.models import Attempt, Job
from coordinator.policy.commons import require_allowance, spent_today_umlx
from coordinator.policy.demand import DemandGauge, busy_us, read_demand
from coordinator.policy.grants import top_up_pools
from coordinator.policy.rate_cards import card_in_force, ensure_first_card
from ledger.ratecard import CARD, HOUR_US
from tests.fixtures.asking import completion
from tests.fixtures.coordinator import RICH_UMLX, Coordinator, fee_of, price_of
from tests.fixtures.scripted_node import ScriptedNode, always
from tests.integration.policies import MLX, add_budget, add_operators, assert_sound, now_us
from tests.integration.records import error_of
from tests.integration.settling import settled

pytestmark = pytest.mark.anyio
fresh_demand = pytest.mark.usefixtures("_fresh_demand")

COMMONS = {"x-mlxnet-commons": "true"}


def prepare(coordinator: Coordinator, pool_umlx: int, *, allowed: str | None = "Sam") -> None:
    """A pool with this much in it, and an account that may ask for public work."""
    add_operators(coordinator.database)
    _ = add_budget(coordinator.database, "availability", pool_umlx)
    assert top_up_pools(coordinator.database) == 1
    if allowed is not None:
        allow(coordinator, allowed)


def allow(coordinator: Coordinator, name: str) -> None:
    with coordinator.database.write() as session:
        session.execute(update(Account).where(Account.name == name).values(may_ask_commons=True))


@pytest.fixture
def _fresh_demand(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    gauge = DemandGauge(coordinator.database, keep_seconds=0)
    monkeypatch.setattr(coordinator.runtime, "demand", gauge)


@fresh_demand
async def test_the_pool_pays_for_public_work(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    prepare(coordinator, MLX)
    node.behaviour = always("four")
    answer = await sam.post("/v1/completions", json=completion("abcdef"), headers=COMMONS)
    assert answer.status_code == 200
    job = await settled(coordinator, answer.headers["x-job-id"])
    price = price_of(6, 4)
    assert (job.payer, job.charge_umlx) == ("pool:availability", price)
    balances = coordinator.balances()
    assert balances["Sam"] == (RICH_UMLX, 0)
    assert balances["pool:availability"] == (MLX - price, 0)
    assert balances["Ada"] == (price - fee_of(price), 0)
    spending = (await sam.get("/v1/spending")).json()
    assert (spending["total_umlx"], spending["jobs"]) == ("0", [])
    with coordinator.database.read() as session:
        demand = read_demand(session, now_us())
        assert spent_today_umlx(session, now_us()) == price
    assert (demand.day.jobs, demand.paid_busy_ppm) == (0, 0), "public work is no paid demand"
    assert_sound(coordinator.database)


@fresh_demand
async def test_only_allowed_accounts_may_ask(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    prepare(coordinator, MLX, allowed=None)
    refused = await sam.post("/v1/completions", json=completion(), headers=COMMONS)
    assert error_of(refused)[:2] == (403, "permission_denied")
    odd = await sam.post("/v1/completions", json=completion(), headers={"x-mlxnet-commons": "yes"})
    assert error_of(odd) == (400, "invalid_value", "x-mlxnet-commons")
    assert coordinator.balances()["pool:availability"] == (MLX, 0)


@fresh_demand
async def test_public_work_waits_while_paid_work_is_plenty(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    prepare(coordinator, MLX)
    node.behaviour = always("four")
    paid = await sam.post("/v1/completions", json=completion())
    _ = await settled(coordinator, paid.headers["x-job-id"])
    now = now_us()
    for minutes, status in ((31, 409), (29, 200)):
        with coordinator.database.write() as session:
            times = {"accepted_us": now - minutes * 60_000_000, "ended_us": now}
            own = select(Job.id).where(Job.payer.startswith("user:"))
            session.execute(update(Attempt).where(Attempt.job_id.in_(own)).values(**times))
        answer = await sam.post("/v1/completions", json=completion(), headers=COMMONS)
        assert answer.status_code == status, answer.text
        if status == 409:
            assert error_of(answer) == (409, "commons_demand_high", "x-mlxnet-commons")


@fresh_demand
async def test_a_days_part_and_the_pool_bound_public_work(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    # No Mac: the jobs wait, and their holds count.
    bound = price_of(4, 10)
    prepare(coordinator, 2 * bound)
    allow(coordinator, "Pat")
    pat = coordinator.client("Pat")
    body = {"kind": "completions", "request": completion("abcd", max_tokens=10)}
    answers = await asyncio.gather(
        *(client.post("/v1/jobs", json=body, headers=COMMONS) for client in (sam, pat, sam, pat))
    )
    assert sorted(answer.status_code for answer in answers) == [202, 202, 402, 402]
    refused = next(answer for answer in answers if answer.status_code == 402)
    assert error_of(refused) == (402, "commons_used_up", "x-mlxnet-commons")
    assert coordinator.balances()["pool:availability"] == (2 * bound, 2 * bound)
    with coordinator.database.write() as session:
        assert spent_today_umlx(session, now_us()) == 2 * bound
        session.execute(update(Job).values(created_us=1))
        assert spent_today_umlx(session, now_us()) == 0, "yesterday's work is not today's"


@fresh_demand
async def test_a_key_stands_for_one_payer(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    prepare(coordinator, MLX)
    body = {"kind": "completions", "request": completion()}
    key = {"Idempotency-Key": "k"}
    first = await sam.post("/v1/jobs", json=body, headers=COMMONS | key)
    again = await sam.post("/v1/jobs", json=body, headers=COMMONS | key)
    assert (again.json()["id"], again.headers["idempotency-hit"]) == (first.json()["id"], "true")
    assert error_of(await sam.post("/v1/jobs", json=body, headers=key))[:2] == (409, "idempotency_key_reused")


@fresh_demand
async def test_the_demand_is_read_at_most_now_and_then(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("four")
    kept = DemandGauge(coordinator.database, keep_seconds=3600)
    assert kept.demand().day.jobs == 0
    answer = await sam.post("/v1/completions", json=completion("abcdef"))
    job = await settled(coordinator, answer.headers["x-job-id"])
    assert kept.demand().day.jobs == 0
    demand = (await coordinator.client(None).get("/v1/tokens")).json()["demand"]
    paid = {"jobs": 1, "tokens": 10, "charged_umlx": str(job.charge_umlx)}
    assert (demand["last_24_hours"], demand["last_30_days"]) == (paid, paid)


def ask_for(database: Database, account_id: str, bound_umlx: int, barrier: Barrier) -> bool:
    """What a submit does with the allowance, in a transaction of its own."""
    barrier.wait()
    try:
        with database.write() as session:
            account = session.get_one(Account, account_id)
            card = card_in_force(session, now_us())
            require_allowance(session, account, bound_umlx, paid_busy_ppm=0, card=card, now_us=now_us())
            job = Job(
                id=new_id("job"),
                account_id=account_id,
                kind="chat",
                state="queued",
                is_async=True,
                card_id="tiny",
                card_revision="",
                prompt_tokens=1,
                max_tokens=1,
                request_digest="",
                payer="pool:availability",
                rate_card_id=CARD.id,
                fee_ppm=0,
                factor_ppm=1,
                bound_umlx=bound_umlx,
                created_us=now_us(),
            )
            session.add(job)
    except ApiError as error:
        assert error.code == "commons_used_up"
        return False
    return True


def test_several_coordinators_share_one_allowance(database_url: str) -> None:
    databases = [Database(make_engine(database_url)) for _ in range(6)]
    first, barrier = databases[0], Barrier(6)
    add_operators(first)
    _ = add_budget(first, "availability", CARD.availability.cap_umlx_per_day)
    with first.write() as session:
        ensure_first_card(session, now_us())
        account = create_account(session, "Sam")
        account.may_ask_commons = True
    assert top_up_pools(first) == 1
    part = CARD.availability.cap_umlx_per_day * CARD.policy.commons_pool_ppm // 1_000_000

    def ask(each: Database) -> bool:
        return ask_for(each, account.id, part // 2, barrier)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, databases))
    assert sum(answers) == 2
    for opened in databases:
        opened.close()


@pytest.mark.parametrize(
    ("intervals", "busy"),
    [([], 0), ([(0, 5), (5, 7)], 7), ([(0, 5), (1, 2), (4, 8)], 8), ([(0, 2), (6, 7)], 3), ([(5, 5)], 0)],
)
def test_overlapping_work_counts_once(intervals: list[tuple[int, int]], busy: int) -> None:
    assert busy_us(intervals) == busy
    assert busy_us(intervals[::-1]) == busy
    assert busy <= HOUR_US
