"""Who may do what: keys, others' jobs, every route, operators and owners."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from node_agent.protocol import messages as wire
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import (
    RICH_UMLX,
    Coordinator,
    price_of,
)
from tests.fixtures.scripted_node import ScriptedNode, always
from tests.integration.records import NOTHING, error_of, rows

pytestmark = pytest.mark.anyio

PAGES = ("about", "privacy", "ultra", "models", "calculator", "clusters", "status")


async def test_without_a_key_or_with_a_wrong_one_there_is_no_answer(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    key = coordinator.people["Sam"].key
    other = "A" if key[-1] != "A" else "E"
    wrong = [None, "", "Bearer", "Bearer x", f"Basic {key}", f"Bearer {key[:-1]}{other}", f"Bearer {key}x"]
    anybody = coordinator.client(None)
    for value in wrong:
        headers = {} if value is None else {"Authorization": value}
        answer = await anybody.post("/v1/completions", json=completion(), headers=headers)
        assert answer.status_code == 401, value
        assert answer.headers["www-authenticate"] == "Bearer"
    assert rows(coordinator) == NOTHING


async def test_anothers_job_does_not_exist(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    submitted = await sam.post("/v1/jobs", json={"kind": "completions", "request": completion()})
    job_id = submitted.json()["id"]
    pat = coordinator.client("Pat")
    for owner_state in ("queued or running", "done"):
        for method, path in (
            ("GET", f"/v1/jobs/{job_id}"),
            ("POST", f"/v1/jobs/{job_id}/cancel"),
            ("GET", f"/v1/jobs/{job_id}/result"),
            ("GET", f"/v1/jobs/{job_id}/events"),
            ("GET", f"/v1/jobs/{job_id}/explanation"),
        ):
            answer = await pat.request(method, path)
            assert error_of(answer) == (404, "job_not_found", None), (owner_state, path)
            nothing = await pat.request(method, path.replace(job_id, "job_" + "0" * 32))
            assert error_of(nothing)[:2] == (404, "job_not_found")
        if owner_state != "done":
            await node.answer(await node.offered(), "mine")
            await node.expect(wire.Settled)
    assert (await pat.get("/v1/jobs")).json()["data"] == []
    removed = await pat.delete(f"/v1/nodes/{node.node_id}")
    assert error_of(removed) == (404, "node_not_found", None)
    # Operators see the books, not what people ask.
    operator = coordinator.client("Operator")
    assert error_of(await operator.get(f"/v1/jobs/{job_id}")) == (404, "job_not_found", None)
    assert error_of(await operator.get(f"/v1/jobs/{job_id}/result")) == (404, "job_not_found", None)


async def test_every_route_says_who_it_is_for_and_keeps_to_it(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    anybody, pat = coordinator.client(None), coordinator.client("Pat")
    walked: dict[str, str] = {}
    for path, methods, audience in routes_of(coordinator):
        assert audience in {"public", "account", "operator", "node"}, path
        real = path.replace("{job_id}", "job_" + "0" * 32).replace("{node_id}", "node_" + "0" * 64)
        real = (
            real.replace("{name:path}", "tiny").replace("{name}", "world.css").replace("{code}", "AAAA-AAAA")
        )
        for method in methods:
            walked[f"{method} {path}"] = audience
            if audience == "public":
                continue
            answer = await anybody.request(method, real)
            assert answer.status_code in {401, 403}, f"{method} {path}: {answer.status_code}"
            if audience == "operator":
                answer = await pat.request(method, real)
                assert answer.status_code == 403, f"{method} {path}: {answer.status_code}"
    assert {name for name, audience in walked.items() if audience == "public"} == {
        "GET /",
        "GET /ar/",
        "GET /en/",
        "GET /pl/",
        "GET /ur/",
        *(f"GET /{language}" for language in ("ar", "en", "pl", "ur")),
        "GET /healthz",
        "GET /readyz",
        "GET /v1/budgets",
        "GET /v1/ledger/checkpoint",
        "GET /v1/ledger/consistency",
        "GET /v1/ledger/inclusion",
        "GET /v1/ledger/key",
        "GET /v1/rates",
        "GET /v1/tokens",
        "GET /world/share/{name:path}",
        "GET /world/static/{name:path}",
        "GET /world/v1/events",
        "GET /world/v1/snapshot.json",
        "POST /nodes/v1/enrolments",
        *(f"GET {prefix}/{slug}" for slug in PAGES for prefix in ("", "/ar", "/en", "/pl", "/ur")),
    }
    assert len(walked) >= 20


def routes_of(coordinator: Coordinator) -> list[tuple[str, set[str], str]]:
    """(path, methods, audience) of every HTTP route of the application."""
    app: Any = coordinator.app
    found: list[tuple[str, set[str], str]] = []

    def walk(routes: Any, prefix: str) -> None:
        for route in routes:
            inner = getattr(route, "routes", None) or getattr(
                getattr(route, "original_router", None), "routes", None
            )
            if inner and not getattr(route, "methods", None):
                walk(inner, prefix)
            elif getattr(route, "methods", None):
                extra: dict[str, str] = getattr(route, "openapi_extra", None) or {}
                found.append((route.path, set(route.methods) - {"HEAD"}, extra.get("x-audience", "missing")))

    walk(app.routes, "")
    return found


async def test_an_operator_sees_books_and_metrics(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("x")
    assert (await sam.post("/v1/completions", json=completion())).status_code == 200
    operator = coordinator.client("Operator")
    books = (await operator.get("/v1/ledger/trial-balance")).json()
    assert (books["total_umlx"], books["drifts"]) == ("0", [])
    metrics = (await operator.get("/metrics")).text
    assert "mlxnet_jobs_ended_total 1.0" in metrics
    assert "mlxnet_nodes_connected 1.0" in metrics


async def test_a_statement_shows_the_account_of_its_owner_alone(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("four")
    assert (await sam.post("/v1/completions", json=completion("abcdef"))).status_code == 200
    await wait_until(lambda: coordinator.posted("Ada") > 0, "Ada to be paid")
    sams = (await sam.get("/v1/statement")).json()
    assert [entry["amount_umlx"] for entry in sams["entries"]] == [str(RICH_UMLX), str(-price_of(6, 4))]
    assert sams["closing_umlx"] == str(RICH_UMLX - price_of(6, 4))
    pats = (await coordinator.client("Pat").get("/v1/statement")).json()
    assert len(pats["entries"]) == 1
