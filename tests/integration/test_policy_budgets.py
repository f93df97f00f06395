"""Nothing is minted but under a budget that two operators signed, and never more than its cap."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from uuid import uuid4

import pytest
from sqlalchemy import select, update

from coordinator.accounts.service import AccountError, create_account
from coordinator.db import Database, make_engine
from coordinator.nodes.models import Node
from coordinator.policy.budgets import budget_states, draw_from, submit_budget
from coordinator.policy.documents import BudgetDocument
from coordinator.policy.grants import grant_first_hours, top_up_pools
from coordinator.policy.local_operators import ensure_local_budgets
from coordinator.policy.models import BudgetDraw, OperatorKey, SignedBudgetRow
from coordinator.policy.operators import OperatorError, add_operator_key, revoke_operator_key
from coordinator.seats.models import SelfTest, StandingTime
from ledger import book, statements
from ledger.budgets import Budget, BudgetError, Draw, DrawRefused, draw
from ledger.commands import Transfer
from ledger.ratecard import CARD, DAY_US, SLOT_US
from ledger.signatures import SignatureError
from node_agent.protocol.signing import encode_bytes
from tests.integration import policies
from tests.integration.policies import (
    MLX,
    TWO,
    add_budget,
    add_operators,
    assert_sound,
    budget,
    drawn,
    now_us,
)

CAP = CARD.availability.cap_umlx_per_day


def submit(database: Database, document: BudgetDocument) -> SignedBudgetRow:
    with database.write() as session:
        return submit_budget(session, document, now_us=now_us())


def grant(database: Database, name: str, amount_umlx: int) -> str:
    with database.write() as session:
        return create_account(session, name, grant_umlx=amount_umlx).ledger_account


def posted(database: Database, account: str) -> int:
    with database.read() as session:
        balance = statements.balance(session.connection(), account)
    return 0 if balance is None else balance.posted_umlx


def test_a_budget_takes_two_operators(database: Database) -> None:
    add_operators(database, ("olga", "otto", "omar"))
    for signed_by in ((), ("olga",)):
        with pytest.raises(SignatureError, match="needs 2"):
            submit(database, budget(signed_by=signed_by))
    other = budget(signed_by=())
    forged = other.model_copy(update={"signatures": budget().signatures})
    with pytest.raises(SignatureError, match="0 valid"):
        submit(database, forged)
    with pytest.raises(AccountError, match="no budget for grants"):
        grant(database, "Ann", 1)
    row = submit(database, budget())
    assert sorted(row.signatures) == list(TWO)
    assert posted(database, grant(database, "Bea", 5 * MLX)) == 5 * MLX
    with database.read() as session:
        (state,) = budget_states(session, now_us=now_us())
    assert (state.signers, state.drawn_umlx, state.left_umlx) == (TWO, 5 * MLX, 95 * MLX)
    assert f"budget:{row.id}={state.document.digest}" in policies.records(database)
    assert policies.supply(database) == drawn(database) == 5 * MLX
    assert_sound(database)


def test_a_known_budget_gathers_signatures_and_its_content_stands(database: Database) -> None:
    add_operators(database, ("olga", "otto", "omar"))
    document = budget()
    row = submit(database, document)
    third = policies.sign(document.model_copy(update={"signatures": {}}), "omar", policies.OPERATORS["omar"])
    assert sorted(submit(database, third).signatures) == ["olga", "omar", "otto"]
    larger = budget(cap_umlx=200 * MLX, id=row.id)
    with pytest.raises(BudgetError, match="another budget"):
        submit(database, larger)
    with pytest.raises(BudgetError, match="expires_us is in the past"):
        submit(database, budget(valid_from_us=1, expires_us=2))


def test_a_revoked_signature_stops_draws_until_another_operator_signs(database: Database) -> None:
    add_operators(database, ("olga", "otto", "omar"))
    document = budget()
    submit(database, document)
    with database.write() as session:
        revoke_operator_key(session, "otto", now_us=now_us())
    with pytest.raises(AccountError, match="no budget for grants"):
        grant(database, "Ann", 1)
    submit(database, policies.sign(document, "omar", policies.OPERATORS["omar"]))
    assert posted(database, grant(database, "Ann", 1)) == 1
    with database.write() as session, pytest.raises(OperatorError, match="new name"):
        add_operator_key(session, "otto", encode_bytes(bytes(range(32))), now_us=now_us())


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        ("an na", "A" * 43, "name: use letters"),
        ("anna", "A" * 42, "public key"),
        ("anna", encode_bytes(bytes(32)), "public key"),
        ("anna", None, "'olga' has it"),
    ],
)
def test_bad_operators_keys_are_refused(database: Database, name: str, key: str | None, said: str) -> None:
    add_operators(database)
    given = key or policies.public_key_of(policies.OPERATORS["olga"])
    with database.write() as session, pytest.raises(OperatorError, match=said):
        add_operator_key(session, name, given, now_us=now_us())


def test_the_cap_holds_to_the_last_umlx(database: Database) -> None:
    add_operators(database)
    add_budget(database, cap_umlx=10)
    assert posted(database, grant(database, "Ann", 9)) == 9
    with pytest.raises(AccountError, match="cap_reached"):
        grant(database, "Bea", 2)
    assert posted(database, grant(database, "Cem", 1)) == 1
    with pytest.raises(AccountError, match="cap_reached"):
        grant(database, "Dan", 1)
    add_budget(database, cap_umlx=5)
    assert posted(database, grant(database, "Eve", 5)) == 5
    assert policies.supply(database) == drawn(database) == 15


def test_the_cap_holds_for_many_who_draw_at_once(database_url: str) -> None:
    first = Database(make_engine(database_url))
    add_operators(first)
    budget_id = add_budget(first, cap_umlx=100)
    workers, each = 8, 30
    # An engine each, as processes have.
    databases = [Database(make_engine(database_url)) for _ in range(workers)]
    barrier = Barrier(workers)

    def draw_some(index: int) -> int:
        def decide(found: Budget, drawn_umlx: int) -> Draw | DrawRefused:
            return draw(
                found,
                purpose="grants",
                account_id=f"user:u{index}",
                amount_umlx=each,
                drawn_umlx=drawn_umlx,
                now_us=now_us(),
                reference=f"grant:start:{uuid4()}",
            )

        barrier.wait()
        with databases[index].write() as session:
            return int(isinstance(draw_from(session, budget_id, decide, now_us=now_us()), Draw))

    with ThreadPoolExecutor(workers) as pool:
        done = sum(pool.map(draw_some, range(workers)))
    assert (done, drawn(first), policies.supply(first)) == (3, 90, 90)
    assert_sound(first)
    for opened in (first, *databases):
        opened.close()


def test_the_pool_is_filled_once_a_day_and_never_above_its_cap(database: Database) -> None:
    assert top_up_pools(database) == 0
    add_operators(database)
    add_budget(database, "availability", CAP + 70)
    days = {
        day: Database(database.engine, clock_us=lambda day=day: now_us() + day * DAY_US) for day in range(4)
    }
    assert (top_up_pools(days[0]), top_up_pools(days[0])) == (1, 0)
    assert posted(database, "pool:availability") == CAP
    assert top_up_pools(days[1]) == 0, "a full pool is not filled"
    spend(database, 100)
    assert top_up_pools(days[1]) == 1
    # The budget had 70 left, and gave what it had.
    assert posted(database, "pool:availability") == CAP - 30
    assert (top_up_pools(days[2]), posted(database, "pool:availability")) == (0, CAP - 30)
    assert policies.supply(database) == drawn(database) == CAP + 70


def spend(database: Database, amount_umlx: int) -> None:
    with database.write() as session:
        transfer = Transfer(
            id=uuid4(), source="pool:availability", target="treasury", amount_umlx=amount_umlx
        )
        book.apply(session.connection(), [transfer])


def add_node(database: Database, node_id: str, owner: str, *, device: str, checks: int = 1) -> None:
    with database.write() as session:
        session.add(
            Node(
                id=node_id,
                account_id=owner.removeprefix("user:"),
                public_key=encode_bytes(node_id.encode().ljust(32)[:32]),
                name=node_id,
                state="ready",
                device=device,
                checks_passed=checks,
                first_lent_us=1,
                hardware={},
                lent_bytes=1,
                created_us=1,
                seen_us=1,
            )
        )


def stood(database: Database, node_id: str, slots: int, *, tested_at_slot: int | None = 0) -> None:
    """Slots of ten minutes in which the Mac was there, tested in the given one."""
    with database.write() as session:
        for slot in range(slots):
            session.add(StandingTime(node_id=node_id, slot_start_us=slot * SLOT_US, present_seconds=600))
        if tested_at_slot is not None:
            at_us = tested_at_slot * SLOT_US + 1
            session.add(
                SelfTest(
                    id=f"test_{node_id}",
                    node_id=node_id,
                    at_us=at_us,
                    bandwidth_bytes_per_second=1,
                    is_warm=True,
                )
            )


def test_the_first_verified_hour_is_granted_once_an_owner_and_a_mac(database: Database) -> None:
    ann, bea, cem, dan = (grant(database, name, 0) for name in ("Ann", "Bea", "Cem", "Dan"))
    add_node(database, "node_a", ann, device="a" * 64)
    add_node(database, "node_a2", ann, device="b" * 64)
    add_node(database, "node_b", bea, device="a" * 64)
    add_node(database, "node_c", cem, device="c" * 64, checks=0)
    add_node(database, "node_d", dan, device="d" * 64)
    for node_id in ("node_a", "node_a2", "node_b", "node_c"):
        stood(database, node_id, 6)
    stood(database, "node_d", 6, tested_at_slot=1)
    assert grant_first_hours(database) == 0, "there is no budget"
    add_operators(database)
    add_budget(database)
    hour = CARD.policy.first_hour_grant_umlx
    assert (grant_first_hours(database), grant_first_hours(database)) == (1, 0)
    paid = [posted(database, account) for account in (ann, bea, cem, dan)]
    assert paid == [hour, 0, 0, 0], "Bea has Ann's Mac, Cem no check, Dan's Mac five slots since its test"
    with database.write() as session:
        session.add(StandingTime(node_id="node_d", slot_start_us=6 * SLOT_US, present_seconds=599))
    assert grant_first_hours(database) == 0
    with database.write() as session:
        session.execute(
            update(StandingTime).where(StandingTime.node_id == "node_d").values(present_seconds=600)
        )
        session.execute(update(Node).where(Node.id == "node_c").values(checks_passed=1))
    assert grant_first_hours(database) == 2
    assert [posted(database, account) for account in (ann, bea, cem, dan)] == [hour, 0, hour, hour]
    with database.read() as session:
        references = session.scalars(select(BudgetDraw.reference).order_by(BudgetDraw.reference)).all()
    assert references == [f"grant:first_hour:{letter * 64}" for letter in "acd"]
    assert_sound(database)


# -- a network on one machine --------------------------------------------------------------------


def test_a_local_network_signs_its_own_budgets_until_it_has_operators(
    database: Database, tmp_path: Path
) -> None:
    for _ in range(2):
        with database.write() as session:
            assert ensure_local_budgets(session, tmp_path, now_us=now_us())
    with database.read() as session:
        assert len(budget_states(session, now_us=now_us())) == 3
        assert session.scalars(select(OperatorKey.name).order_by(OperatorKey.name)).all() == [
            "local-1",
            "local-2",
        ]
    keys = sorted((tmp_path / "operators").iterdir())
    assert [path.name for path in keys] == ["local-1.key", "local-2.key"]
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    assert posted(database, grant(database, "Ann", 7)) == 7
    assert top_up_pools(database) == 1

    with database.write() as session:
        key = policies.public_key_of(policies.OPERATORS["olga"])
        assert add_operator_key(session, "olga", key, now_us=now_us()) == ["local-1", "local-2"]
        assert not ensure_local_budgets(session, tmp_path, now_us=now_us())
    with pytest.raises(AccountError, match="no budget for grants"):
        grant(database, "Bea", 1)
    add_operators(database, ("otto",))
    add_budget(database, cap_umlx=3)
    assert posted(database, grant(database, "Bea", 3)) == 3
