"""What is refused at the door: second coordinators, endless heads, false claims, odd headers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.http_limits import HEAD_BYTES_MAX
from coordinator.main import build_app
from coordinator.sole_use import InUseError
from node_agent.protocol.signing import encode_bytes, enrolment_statement
from tests.fixtures.asking import completion
from tests.fixtures.coordinator import Coordinator, StartCoordinator

pytestmark = pytest.mark.anyio


def enrolment(coordinator: Coordinator, **changes: Any) -> dict[str, Any]:
    key = Ed25519PrivateKey.generate()
    public = encode_bytes(key.public_key().public_bytes_raw())
    nonce = "n" * 24
    statement = enrolment_statement(audience=coordinator.settings.origin, public_key=public, nonce=nonce)
    hardware = {"memory_bytes": 2**34, "lent_bytes": 2**33, "bandwidth_bytes_per_second": 10**11}
    return {
        "public_key": public,
        "nonce": nonce,
        "signature": encode_bytes(key.sign(statement)),
        "name": "a Mac",
        "hardware": hardware | changes,
    }


async def test_a_second_coordinator_may_not_use_the_same_database(coordinator: Coordinator) -> None:
    with pytest.raises(InUseError, match="another coordinator"):
        _ = build_app(coordinator.settings)
    coordinator.stop()
    coordinator.start()  # and after it has ended, the next one may


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"memory_bytes": 2**70}, "hardware.memory_bytes"),
        ({"bandwidth_bytes_per_second": 10**15}, "hardware.bandwidth_bytes_per_second"),
        ({"lent_bytes": 2**35}, "hardware"),
        ({"chip": "x" * 5000}, "hardware.chip"),
    ],
)
async def test_hardware_that_no_mac_has_is_refused(
    coordinator: Coordinator, sam: httpx2.AsyncClient, changes: dict[str, Any], field: str
) -> None:
    answer = await sam.post("/nodes/v1/enrolments", json=enrolment(coordinator, **changes))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", field)


async def test_one_address_may_not_fill_the_table(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(enrolments_per_address_max=3)
    async with coordinator.client("Sam") as sam:
        found = [
            (await sam.post("/nodes/v1/enrolments", json=enrolment(coordinator))).status_code
            for _ in range(3)
        ]
        assert found == [201, 201, 201]
        refused = await sam.post("/nodes/v1/enrolments", json=enrolment(coordinator))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
    assert 0 < int(refused.headers["retry-after"]) <= coordinator.settings.enrolment_seconds


async def test_codes_of_macs_cannot_be_guessed(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(wrong_codes_per_account_max=3)
    sam, pat = coordinator.client("Sam"), coordinator.client("Pat")

    async def approve(client: httpx2.AsyncClient, code: str) -> httpx2.Response:
        return await client.post("/v1/nodes/approve", json={"code": code})

    async def shown() -> str:
        started = await sam.post("/nodes/v1/enrolments", json=enrolment(coordinator))
        return started.json()["code"]

    # An owner of many Macs is not held up, nor one who types what cannot be a code.
    for _ in range(5):
        assert (await approve(sam, await shown())).status_code == 200
        assert (await approve(sam, "no code")).status_code == 400
    guesses = await asyncio.gather(*(approve(sam, f"AAAA-AAA{digit}") for digit in "23456789"))
    assert sorted(guess.status_code for guess in guesses) == [404] * 3 + [429] * 5
    code = await shown()
    refused = await approve(sam, code)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
    assert 0 < int(refused.headers["retry-after"]) <= coordinator.settings.enrolment_seconds
    assert (await approve(pat, code)).status_code == 200


async def test_an_endless_head_is_cut_off(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    reader, writer = await asyncio.open_connection(coordinator.settings.host, coordinator.settings.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(4 * HEAD_BYTES_MAX // 8192):
            writer.write(b"a" * 8192)
            await writer.drain()
        # The answer may be lost with the connection, whose other half was still talking.
        answer = await asyncio.wait_for(reader.read(100), 10)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    writer.close()
    assert (await sam.get("/healthz")).status_code == 200


async def test_long_but_honest_requests_go_through(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    long = {"x-note": "a" * (HEAD_BYTES_MAX // 4)}
    assert (await sam.get("/v1/models", headers=long)).status_code == 200
    # A body is no head, however many there are on one connection.
    body = b" " * HEAD_BYTES_MAX + json.dumps({"kind": "completions", "request": completion()}).encode()
    for _ in range(3):
        assert (await sam.post("/v1/jobs", content=body)).status_code == 202


@pytest.mark.parametrize(
    ("headers", "status", "param"),
    [
        ({"x-mlxnet-on-disconnect": "maybe"}, 400, "x-mlxnet-on-disconnect"),
        ({"x-mlxnet-max-wait": "soon"}, 400, "x-mlxnet-max-wait"),
        ({"content-encoding": "gzip"}, 415, None),
    ],
)
async def test_odd_headers_are_refused(
    coordinator: Coordinator, sam: httpx2.AsyncClient, headers: dict[str, str], status: int, param: str | None
) -> None:
    answer = await sam.post("/v1/completions", json=completion(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert (await sam.get("/v1/jobs")).json()["data"] == []


async def test_a_trailing_slash_leads_nowhere(coordinator: Coordinator, sam: httpx2.AsyncClient) -> None:
    answer = await sam.get("/v1/jobs/", headers={"host": "elsewhere.example"}, follow_redirects=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "route_not_found")


async def test_a_body_that_does_not_come_is_not_waited_for(start_coordinator: StartCoordinator) -> None:
    coordinator = start_coordinator(body_seconds_max=0.3)
    reader, writer = await asyncio.open_connection(coordinator.settings.host, coordinator.settings.port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {coordinator.people['Sam'].key}\r\n"
    writer.write(head.encode() + b"content-length: 100\r\n\r\n{")
    answer = await asyncio.wait_for(reader.read(4096), 10)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body_too_slow" in answer
    writer.close()
