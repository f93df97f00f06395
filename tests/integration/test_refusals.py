"""What is refused at the door: second coordinators, endless heads, false claims, odd headers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.http_limits import HEAD_BYTES_MAX, LimitedHttpProtocol
from coordinator.main import build_app
from coordinator.sole_use import InUseError
from node_agent.protocol.signing import encode_bytes, enrolment_statement
from tests.fixtures.asking import completion, wait_until
from tests.fixtures.coordinator import POOR_UMLX, Coordinator, StartCoordinator
from tests.fixtures.scripted_node import ScriptedNode, always
from tests.integration.records import NOTHING, error_of, rows

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


async def trickled(coordinator: Coordinator, first: bytes, each: bytes) -> bytes:
    """What comes back on a connection that sends a little again and again, until it is closed."""
    reader, writer = await asyncio.open_connection(coordinator.settings.host, coordinator.settings.port)

    async def trickle() -> None:
        writer.write(first)
        with contextlib.suppress(ConnectionError):
            while each:
                writer.write(each)
                await writer.drain()
                await asyncio.sleep(0.02)

    trickling = asyncio.create_task(trickle())
    found = b""
    try:
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):  # how it ends for who is still talking
                while part := await reader.read(1000):
                    found += part
    finally:
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)
        writer.close()
    return found


async def test_a_head_that_never_ends_is_cut_off(
    start_coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitedHttpProtocol, "head_seconds_max", 1.0)
    coordinator = start_coordinator()
    whole, begun = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /healthz HTTP/1.1\r\nx-slow: "
    with_body = b"POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"
    silent, slow, second, empty, body = await asyncio.gather(
        trickled(coordinator, b"", b""),
        trickled(coordinator, begun, b"a"),
        trickled(coordinator, whole + begun, b"a"),
        trickled(coordinator, whole, b"\r\n"),
        trickled(coordinator, with_body, b"a"),
    )
    assert silent == b""
    assert slow == b"" or slow.startswith(b"HTTP/1.1 408 ")
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in (second, empty))
    assert body.startswith(b"HTTP/1.1 404 ")


async def test_what_takes_long_for_good_reason_is_not_cut_off(
    start_coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_seconds = 1.0
    monkeypatch.setattr(LimitedHttpProtocol, "head_seconds_max", limit_seconds)
    coordinator = start_coordinator()
    node = ScriptedNode(coordinator, "Ada", name="a Mac")
    await node.enrol()
    await node.connect()
    channel = coordinator.runtime.fleet.get(node.node_id)
    reader, writer = await asyncio.open_connection(coordinator.settings.host, coordinator.settings.port)
    # Some clients send an empty line behind their request.
    writer.write(b"GET /world/v1/events HTTP/1.1\r\nhost: x\r\n\r\n\r\n")
    async with asyncio.timeout(60):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(2 * limit_seconds)
        writer.write(b"\r\n")
        await asyncio.sleep(2 * limit_seconds)
        assert not reader.at_eof()
        writer.write(b"\r\n")
        for _ in range(2):
            assert await reader.readuntil(b"\n\n")
    assert channel is not None and coordinator.runtime.fleet.get(node.node_id) is channel
    writer.close()
    await node.close()


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
        *(
            ({name: text}, 400, name)
            for name in ("x-mlxnet-max-wait", "x-mlxnet-deadline", "x-mlxnet-min-tokens-per-second")
            for text in ("1_0", "+1", "1e1", "nan", "inf", "0x10", "1.", ".5", "", "\xa05", "1" * 20)
        ),
        *(
            ({"x-mlxnet-max-charge-umlx": text}, 400, "x-mlxnet-max-charge-umlx")
            for text in ("1_0", "+1", "1e1", "1.0", "-1", "", "\xa05", "1" * 20)
        ),
        ({"content-encoding": "gzip"}, 415, None),
    ],
)
async def test_odd_headers_are_refused(
    coordinator: Coordinator, sam: httpx2.AsyncClient, headers: dict[str, str], status: int, param: str | None
) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = await sam.post("/v1/completions", json=completion(), headers=raw)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert (await sam.get("/v1/jobs")).json()["data"] == []


async def test_a_header_that_comes_twice_is_refused(
    coordinator: Coordinator, sam: httpx2.AsyncClient
) -> None:
    for path, body in (
        ("/v1/completions", completion()),
        ("/v1/jobs", {"kind": "completions", "request": completion()}),
        ("/v1/quotes", {"kind": "completions", "request": completion()}),
        ("/v1/transfers", {"to": "Pat", "amount_umlx": "5"}),
    ):
        for name, values in (
            ("x-mlxnet-max-charge-umlx", ("5", "9")),
            ("X-MLXNet-Own", ("any", "any")),
            ("x-mlxnet-of-tomorrow", ("a", "b")),
            ("Idempotency-Key", ("a", "b")),
        ):
            answer = await sam.post(path, json=body, headers=[(name, value) for value in values])
            param = name if name == "Idempotency-Key" else name.lower()
            assert error_of(answer) == (400, "invalid_value", param), path
            assert "twice" in answer.json()["error"]["message"]
    assert rows(coordinator) == NOTHING
    assert coordinator.posted("Pat") == POOR_UMLX
    # What others may send more than once is none of our business.
    assert (await sam.get("/v1/models", headers=[("accept", "a/b"), ("accept", "c/d")])).status_code == 200


async def test_head_answers_wherever_get_does(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    node.behaviour = always("x")
    body = {"kind": "completions", "request": completion()}
    job_id = (await sam.post("/v1/jobs", json=body)).json()["id"]
    await wait_until(lambda: coordinator.posted("Ada") > 0, "the job to end")
    for address in (
        "/en/about",
        "/healthz",
        "/v1/models",
        "/v1/jobs?limit=1",
        "/v1/rates",
        f"/v1/jobs/{job_id}",
        f"/v1/jobs/{job_id}/result",
        f"/v1/jobs/{job_id}/events",
        "/world/v1/events",
        "/v1/chat/completions",
        "/v1/jobs?before=x",
        "/nothing",
    ):
        head = await sam.head(address)  # a stream's, too: it would never end if it were begun
        assert head.content == b""
        async with sam.stream("GET", address) as whole:
            assert head.status_code == whole.status_code, address
            told = ("content-type", "content-length", "location", "allow", "x-job-id", "content-language")
            assert [head.headers.get(name) for name in told] == [whole.headers.get(name) for name in told]
    # The result was still there when GET came: asking for its head had not used it up.


async def test_the_head_of_a_stream_is_no_reader(
    coordinator: Coordinator, node: ScriptedNode, sam: httpx2.AsyncClient
) -> None:
    body = {"kind": "completions", "request": completion()}
    job_id = (await sam.post("/v1/jobs", json=body)).json()["id"]
    _ = await node.offered()
    assert (await sam.head(f"/v1/jobs/{job_id}/events")).status_code == 200
    live = coordinator.runtime.jobs.get(job_id)
    assert live is not None
    await wait_until(lambda: live.stream.readers == 0, "the reader to be gone")
    assert (await sam.get(f"/v1/jobs/{job_id}")).json()["state"] == "running"


JOB, NODE = "job_" + "0" * 32, "node_" + "0" * 64


@pytest.mark.parametrize(
    ("address", "code", "param"),
    [
        *(
            (f"/v1/jobs?limit={text}", "invalid_value", "limit")
            for text in ("1_0", "%2B1", "%201", "1.0", "1e1", "\uff11", "", "0", "1" * 20)
        ),
        ("/v1/jobs?limit=1&limit=2", "invalid_value", "limit"),
        ("/v1/jobs?before=x", "invalid_value", "before"),
        ("/v1/jobs?before=", "invalid_value", "before"),
        ("/v1/jobs?befor=x", "unknown_parameter", "befor"),
        (f"/v1/jobs/{JOB}?x=1", "unknown_parameter", "x"),
        (f"/v1/jobs/{JOB}/events?after=1_0", "invalid_value", "after"),
        ("/v1/earnings?node=", "unknown_parameter", "node"),
        ("/v1/earnings?month=", "invalid_value", "month"),
        ("/v1/earnings?since_us=1_0", "invalid_value", "since_us"),
        ("/v1/spending?until_us=%2B5", "invalid_value", "until_us"),
        ("/v1/spending?limit=1_0", "invalid_value", "limit"),
        ("/v1/statement?node=x", "invalid_value", "node"),
        ("/v1/statement?node=", "invalid_value", "node"),
        ("/v1/statement?form=csv", "unknown_parameter", "form"),
        ("/v1/ledger/inclusion?seq=1_0", "invalid_value", "seq"),
        ("/v1/ledger/consistency?from=1&old=1", "unknown_parameter", "old"),
        ("/v1/ledger/entries?proofs=", "invalid_value", "proofs"),
        ("/v1/ledger/entries?since_seq=1_0", "invalid_value", "since_seq"),
        ("/v1/nodes?x=", "unknown_parameter", "x"),
        ("/v1/tokens?x", "unknown_parameter", "x"),
        ("/v1/rates?x=1", "unknown_parameter", "x"),
        ("/v1/budgets?x=1", "unknown_parameter", "x"),
    ],
)
async def test_odd_addresses_are_refused(
    sam: httpx2.AsyncClient, address: str, code: str, param: str
) -> None:
    assert error_of(await sam.get(address)) == (400, code, param)


async def test_honest_addresses_are_not(sam: httpx2.AsyncClient) -> None:
    for address in (
        f"/v1/jobs?limit=010&before={JOB}",
        "/v1/earnings?per=hour&since_us=0",
        "/v1/statement?format=csv&month=2026-03",
        "/v1/ledger/entries?limit=1&proofs=none",
        "/v1/models?of=others",  # OpenAI's clients may send more than we read
        "/healthz?from=monitor",
    ):
        assert (await sam.get(address)).status_code == 200, address
    answer = await sam.get(f"/v1/statement?node={NODE}")
    assert error_of(answer)[:2] == (404, "node_not_found")


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
