"""What is paid when: each row of the table in docs/rewards.md, through the whole coordinator.

A token in costs 2 uMLX, a token out 5, a job at least 20; the fee is a tenth, rounded up. Every
prompt here has 10 tokens. A second reading of n tokens is worth n x 2 x 0.9, rounded down.
"""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from coordinator.accounts.models import Account
from coordinator.jobs.schemas import JobEnd
from coordinator.settlement import end_job
from node_agent.protocol import messages as wire
from tests.fixtures.coordinator import RICH_UMLX, Coordinator, StartCoordinator, price_of
from tests.fixtures.scripted_node import NewNode, ScriptedNode
from tests.integration.attempts import ask, close, connected, who_is_asked
from tests.integration.settling import (
    Pay,
    change_node,
    check_sums,
    checks_passed,
    entries,
    give,
    has,
    pays,
)

pytestmark = pytest.mark.anyio

PROMPT = "0123456789"
POOL = "pool:availability"


async def begun(
    nodes: list[ScriptedNode], sam: httpx2.AsyncClient, text: str, **changes: object
) -> tuple[ScriptedNode, ScriptedNode, wire.Offer]:
    """A streamed job whose first Mac has delivered `text`; the Mac, the other one, and the offer."""
    reading = ask(sam, prompt=PROMPT, max_tokens=8, **changes)
    first, offer = await who_is_asked(*nodes)
    await first.accept(offer)
    await first.say(offer, text)
    await reading.until_text(text)
    other = next(node for node in nodes if node is not first)
    return first, other, offer


async def go_on(other: ScriptedNode, text: str) -> None:
    await other.answer(await other.offered(), text)
    await other.expect(wire.Settled)


# -- one Mac -------------------------------------------------------------------------------------


async def test_finished_pays_the_charge_less_the_fee(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    _ = ask(sam, prompt=PROMPT)
    offer = await node.offered()
    await node.answer(offer, "abcd")
    job = await check_sums(coordinator, offer.job_id)
    # 10 x 2 + 4 x 5 = 40, fee 4.
    assert (job.charge_umlx, pays(coordinator, job.id)) == (40, [Pay(36, 0, None, 4, 4)])
    assert (has(coordinator, "Sam"), has(coordinator, "Ada")) == (RICH_UMLX - 40, 36)


async def test_an_empty_answer_costs_the_prompt(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    _ = ask(sam, prompt=PROMPT * 2)
    offer = await node.offered()
    await node.answer(offer, "")
    job = await check_sums(coordinator, offer.job_id)
    assert (job.charge_umlx, pays(coordinator, job.id)) == (40, [Pay(36, 0, None, 0, 0)])


@pytest.mark.parametrize(("text", "charge", "share"), [("abc", 35, 31), ("", 0, 0)])
async def test_cancelled_pays_what_was_done_up_to_it(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient, text: str, charge: int, share: int
) -> None:
    reading = ask(sam, prompt=PROMPT)
    offer = await node.offered()
    await node.accept(offer)
    await node.say(offer, text)
    if text:
        await reading.until_text(text)
    assert (await sam.post(f"/v1/jobs/{offer.job_id}/cancel")).status_code == 200
    job = await check_sums(coordinator, offer.job_id)
    assert (job.state, job.charge_umlx) == ("cancelled", charge)
    reason = None if text else "nothing_delivered"
    assert pays(coordinator, job.id) == [Pay(share, 0, reason, len(text), len(text))]


# -- two owners ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reclaimed", "runner_crashed", "no network", "goodbye"])
async def test_each_owner_is_paid_for_what_it_delivered_whatever_became_of_its_mac(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient, how: str
) -> None:
    give(coordinator, POOL, 1_000)
    nodes = [await new_node("Ada"), await new_node("Bo")]
    for node in nodes:
        change_node(coordinator, node, checks_passed=5)
    first, other, offer = await begun(nodes, sam, "abc")
    match how:
        case "reclaimed" | "runner_crashed":
            await first.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code=how))
        case "goodbye":
            await first.send(wire.Goodbye(reason="sleep"))
            await first.close()
        case _:
            await first.drop()
    await go_on(other, "defg")
    job = await check_sums(coordinator, offer.job_id)
    # 10 x 2 + 7 x 5 = 55, fee 6; 49 by 3 and 4 tokens: exactly 21 and 28. The pool pays for
    # reading 10 + 3 tokens again: 13 x 2 x 0.9 = 23.4.
    assert job.charge_umlx == 55
    assert pays(coordinator, job.id) == [Pay(21, 0, None, 3, 3), Pay(28, 23, None, 4, 4)]
    assert (has(coordinator, first.owner), has(coordinator, other.owner)) == (21, 28 + 23)
    assert (has(coordinator, "Sam"), has(coordinator, POOL)) == (RICH_UMLX - 1_000 - 55, 1_000 - 23)
    # A crash costs one valid check; coming back, sleep and lost networks cost none.
    assert checks_passed(coordinator, first) == (4 if how == "runner_crashed" else 5)
    assert checks_passed(coordinator, other) == 5


async def test_a_second_reading_is_not_paid_out_of_an_empty_pool_and_the_owner_is_told(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    give(coordinator, POOL, 22)  # one less than it takes
    nodes = [await new_node("Ada"), await new_node("Bo")]
    first, other, offer = await begun(nodes, sam, "abc")
    await first.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="reclaimed"))
    await go_on(other, "defg")
    job = await check_sums(coordinator, offer.job_id)
    assert pays(coordinator, job.id) == [Pay(21, 0, None, 3, 3), Pay(28, 0, "pool_empty", 4, 4)]
    assert (has(coordinator, other.owner), has(coordinator, POOL)) == (28, 22)
    assert [(kind, result) for kind, result, _ in entries(coordinator, job.id)] == [
        ("capture", "posted"),
        ("transfer", "insufficient_funds"),
    ]
    earned = (await coordinator.client(other.owner).get("/v1/earnings")).json()
    assert (earned["total_umlx"], earned["zeros"]) == ("28", [{"reason": "pool_empty", "count": 1}])


async def test_the_pool_pays_nobody_for_breaking_off_on_its_own_mac(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    give(coordinator, POOL, 1_000)
    nodes = [await new_node("Ada"), await new_node("Ada")]
    first, other, offer = await begun(nodes, sam, "abc")
    await first.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="reclaimed"))
    await go_on(other, "defg")
    job = await check_sums(coordinator, offer.job_id)
    assert pays(coordinator, job.id) == [Pay(21, 0, None, 3, 3), Pay(28, 0, "own_break", 4, 4)]
    assert (has(coordinator, "Ada"), has(coordinator, POOL)) == (49, 1_000)


async def test_a_late_result_changes_nothing_and_is_told_as_such(
    start_coordinator: StartCoordinator,
) -> None:
    coordinator = start_coordinator(offer_seconds_max=0.3)
    nodes = await connected(coordinator, "Ada", "Bo")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam, prompt=PROMPT)
        silent, offer = await who_is_asked(*nodes)
        other, again = await who_is_asked(*nodes)
        await silent.say(offer, "late")
        await silent.finish(offer, "late")
        await silent.expect(wire.Settled)
        await other.answer(again, "abcd")
        assert (await reading.whole()).text == "abcd"
    job = await check_sums(coordinator, offer.job_id)
    # What came late was not a first reading: nothing is read a second time.
    assert pays(coordinator, job.id) == [Pay(0, 0, "late_result", 0, 0), Pay(36, 0, None, 4, 4)]
    async with coordinator.client(silent.owner) as owner:
        zeros = (await owner.get("/v1/earnings")).json()["zeros"]
    assert zeros == [{"reason": "late_result: offer_unanswered", "count": 1}]
    await close(*nodes)


# -- what does not hold --------------------------------------------------------------------------


async def test_a_failed_check_is_neither_paid_nor_charged(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    for node in nodes:
        change_node(coordinator, node, checks_passed=12)
    liar, honest, offer = await begun(nodes, sam, "abc")
    await liar.finish(offer, "abc", signature=liar.sign(b"something else"))
    await go_on(honest, "defg")
    job = await check_sums(coordinator, offer.job_id)
    assert job.charge_umlx == 10 * 2 + 4 * 5
    assert pays(coordinator, job.id) == [Pay(0, 0, "check_failed", 3, 3), Pay(36, 0, None, 4, 4)]
    assert (checks_passed(coordinator, liar), checks_passed(coordinator, honest)) == (0, 12)


async def test_what_is_not_vouched_for_is_not_charged_and_costs_no_trust(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    nodes = [await new_node("Ada"), await new_node("Bo")]
    for node in nodes:
        change_node(coordinator, node, checks_passed=12)
    first, other, offer = await begun(nodes, sam, "abc")
    await first.finish(offer, "abc", "cancelled")
    await go_on(other, "defg")
    job = await check_sums(coordinator, offer.job_id)
    assert pays(coordinator, job.id) == [Pay(0, 0, "not_proven", 0, 3), Pay(36, 0, None, 4, 4)]
    assert checks_passed(coordinator, first) == 12


async def test_a_job_that_fails_in_the_end_costs_what_arrived(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(attempts_max=1)
    (node,) = await connected(coordinator, "Ada")
    async with coordinator.client("Sam") as sam:
        reading = ask(sam, prompt=PROMPT)
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "abc")
        await reading.until_text("abc")
        await node.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="runner_crashed"))
        await reading.whole()
    job = await check_sums(coordinator, offer.job_id)
    assert (job.state, job.charge_umlx) == ("failed", 35)
    assert pays(coordinator, job.id) == [Pay(31, 0, None, 3, 3)]
    await close(node)


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_never_reached_the_submitter_costs_nothing(
    start_coordinator: StartCoordinator, is_async: bool
) -> None:
    """A job that fails before anybody has read of it: whoever waits for the whole gets an error."""
    coordinator = start_coordinator(attempts_max=1)
    (node,) = await connected(coordinator, "Ada")
    async with coordinator.client("Sam") as sam:
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8}
        job_body = {"kind": "completions", "request": body}
        asked = asyncio.create_task(
            sam.post("/v1/jobs", json=job_body) if is_async else sam.post("/v1/completions", json=body)
        )
        offer = await node.offered()
        await node.accept(offer)
        await node.say(offer, "abc")
        await node.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="runner_crashed"))
        assert (await asked).status_code == (202 if is_async else 502)
    job = await check_sums(coordinator, offer.job_id)
    assert (job.state, job.charge_umlx, has(coordinator, "Sam")) == ("failed", 0, RICH_UMLX)
    assert pays(coordinator, job.id) == [Pay(0, 0, "not_received", 0, 3)]
    await close(node)


# -- oneself -------------------------------------------------------------------------------------


async def test_ones_own_mac_is_free_and_earns_nothing(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    own = await new_node("Sam")
    _ = ask(sam, prompt=PROMPT)
    offer = await own.offered()
    await own.answer(offer, "abcd")
    job = await check_sums(coordinator, offer.job_id)
    assert (pays(coordinator, job.id), has(coordinator, "Sam")) == (
        [Pay(0, 0, "own_mac", 4, 4)],
        RICH_UMLX,
    )
    assert job.charge_umlx == 0
    spent = (await sam.get("/v1/spending")).json()
    assert (spent["total_umlx"], spent["jobs"]) == ("0", [])


async def test_only_what_strangers_macs_made_is_charged(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient
) -> None:
    """An answer that one's own Mac began: the other Mac is paid for the prompt and its own tokens."""
    nodes = [await new_node("Sam"), await new_node("Bo")]
    first, other, offer = await begun(nodes, sam, "abc")
    await first.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="reclaimed"))
    await go_on(other, "defg")
    job = await check_sums(coordinator, offer.job_id)
    own_first = first.owner == "Sam"
    foreign_tokens = 4 if own_first else 3
    assert job.charge_umlx == price_of(10, foreign_tokens)
    zero = Pay(0, 0, "own_mac", 3, 3) if own_first else Pay(0, 0, "own_mac", 4, 4)
    assert zero in pays(coordinator, job.id)
    spent = (await sam.get("/v1/spending")).json()
    assert spent["total_umlx"] == str(price_of(10, foreign_tokens))
    assert spent["jobs"][0]["sum"] is not None


@pytest.mark.parametrize("is_same_device", [True, False])
async def test_the_pool_pays_no_second_reading_to_who_looks_like_the_submitter(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient, is_same_device: bool
) -> None:
    give(coordinator, POOL, 1_000)
    nodes = [await new_node("Ada"), await new_node("Bo")]
    if is_same_device:
        # A Mac that Sam enrolled once and Bo owns now, under another key.
        before = await new_node("Sam")
        await before.close()
        change_node(coordinator, before, device="d" * 64)
        change_node(coordinator, nodes[1], device="d" * 64)
    first, other, offer = await begun(nodes, sam, "abc")
    await first.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="reclaimed"))
    await go_on(other, "defg")
    job = await check_sums(coordinator, offer.job_id)
    expected = Pay(28, 0, "self_dealing", 4, 4) if is_same_device else Pay(28, 23, None, 4, 4)
    assert pays(coordinator, job.id) == [Pay(21, 0, None, 3, 3), expected]


@pytest.mark.parametrize("owner", ["Ada", "Sam"])
async def test_a_pool_pays_for_public_work_but_not_on_ones_own_mac(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient, owner: str
) -> None:
    give(coordinator, POOL, 1_000_000)
    with coordinator.database.write() as session:
        session.get_one(Account, coordinator.people["Sam"].account_id).may_ask_commons = True
    node = await new_node(owner)
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8}
    asked = asyncio.create_task(sam.post("/v1/completions", json=body, headers={"x-mlxnet-commons": "true"}))
    offer = await node.offered()
    await node.answer(offer, "abcd")
    assert (await asked).status_code == 200
    job = await check_sums(coordinator, offer.job_id)
    is_own = owner == "Sam"
    assert (job.payer, job.charge_umlx) == (POOL, 0 if is_own else 40)
    assert pays(coordinator, job.id) == [
        Pay(0, 0, "self_dealing", 4, 4) if is_own else Pay(36, 0, None, 4, 4)
    ]
    assert has(coordinator, POOL) == (1_000_000 if is_own else 1_000_000 - 40)
    assert has(coordinator, "Sam") == RICH_UMLX - 1_000_000
    spent = (await sam.get("/v1/spending")).json()
    assert (spent["total_umlx"], spent["jobs"]) == ("0", [])


# -- the network's own fault ---------------------------------------------------------------------


@pytest.mark.parametrize("treasury", [1_000, 0])
async def test_the_treasury_pays_for_the_networks_own_fault(
    coordinator: Coordinator, new_node: NewNode, sam: httpx2.AsyncClient, treasury: int
) -> None:
    if treasury:
        give(coordinator, "treasury", treasury)
    nodes = [await new_node("Ada"), await new_node("Bo")]
    first, other, offer = await begun(nodes, sam, "abcd")
    await first.send(wire.Failed(job_id=offer.job_id, fence=offer.fence, code="reclaimed"))
    _ = await other.offered()
    runtime = coordinator.runtime
    end = JobEnd(
        state="expired",
        finish_reason=None,
        error_code="coordinator_restarted",
        output_tokens=0,
        received_tokens=0,
        output_digest=None,
        attempt=None,
    )
    _ = await asyncio.to_thread(
        runtime.commits.write,
        lambda session: end_job(
            session,
            offer.job_id,
            end,
            price=coordinator.shelf.card.price,
            payloads=runtime.payloads,
            result=None,
            result_keep_us=0,
        ),
    )
    job = await check_sums(coordinator, offer.job_id)
    # The owner's part of 10 x 2 + 4 x 5 = 40.
    assert (job.charge_umlx, has(coordinator, "Sam")) == (0, RICH_UMLX - treasury)
    paid = Pay(36, 0, None, 0, 4) if treasury else Pay(0, 0, "treasury_empty", 0, 4)
    assert pays(coordinator, job.id) == [paid, Pay(0, 0, "nothing_delivered", 0, 0)]
    assert has(coordinator, first.owner) == (36 if treasury else 0)
    earned = (await coordinator.client(first.owner).get("/v1/earnings")).json()
    assert earned["total_umlx"] == ("36" if treasury else "0")
    if treasury:
        assert [row["amount_umlx"] for row in earned["by_kind"] if row["key"] == "work"] == ["36"]
    statement = (
        await coordinator.client(first.owner).get("/v1/statement", params={"node": first.node_id})
    ).json()
    assert statement["closing_umlx"] == ("36" if treasury else "0")
