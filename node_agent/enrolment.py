"""Show this node's key to a coordinator and wait until its user approves it there."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Final, Literal, TypeVar

import httpx2
from pydantic import BaseModel, Field, ValidationError

from node_agent.identity import Identity
from node_agent.protocol.messages import Hardware
from node_agent.protocol.signing import encode_bytes, enrolment_statement

HTTP_TIMEOUT: Final = httpx2.Timeout(20.0, connect=10.0)
HTTP_OK: Final = 200
HTTP_CREATED: Final = 201
POLL_SECONDS_MIN: Final = 0.2
# A coordinator that restarts must not end an enrolment that its user is about to approve.
POLL_FAILURES_MAX: Final = 30


class EnrolmentError(Exception):
    """The node could not join; the text says why and what to do."""


class Started(BaseModel):
    """The coordinator's answer to a new key."""

    code: str = Field(max_length=32)
    poll_token: str
    expires_in_seconds: float
    poll_seconds: float


class Outcome(BaseModel):
    """How an enrolment stands."""

    state: Literal["pending", "approved", "refused", "expired"]
    owner: str | None = None
    node_id: str | None = None
    name: str | None = None


def start(
    client: httpx2.Client,
    origin: str,
    identity: Identity,
    name: str,
    hardware: Hardware,
    *,
    device: str | None = None,
) -> Started:
    """Ask to join. Raises `EnrolmentError`."""
    nonce = encode_bytes(secrets.token_bytes(24))
    statement = enrolment_statement(audience=origin, public_key=identity.public_key, nonce=nonce)
    body = {
        "public_key": identity.public_key,
        "nonce": nonce,
        "signature": identity.sign(statement),
        "name": name,
        "device": device,
        "hardware": hardware.model_dump(mode="json"),
    }
    try:
        response = client.post(f"{origin}/nodes/v1/enrolments", json=body)
    except httpx2.HTTPError as error:
        raise EnrolmentError(
            f"{origin} could not be reached ({type(error).__name__}: {error}). Check the address"
            " and the network; behind a proxy set HTTPS_PROXY"
        ) from error
    if response.status_code != HTTP_CREATED:
        raise EnrolmentError(f"{origin} refused the enrolment: {refusal_of(response)}")
    return _parse(Started, response, origin)


def wait(
    client: httpx2.Client,
    origin: str,
    started: Started,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Poll until the user has decided. Raises `EnrolmentError` unless it was approved."""
    url = f"{origin}/nodes/v1/enrolments/{started.code}"
    headers = {"Authorization": f"Bearer {started.poll_token}"}
    deadline = time.monotonic() + started.expires_in_seconds
    failures = 0
    while time.monotonic() < deadline:
        try:
            response = client.get(url, headers=headers)
            failures = failures + 1 if response.is_server_error else 0
        except httpx2.TransportError:
            failures, response = failures + 1, None
        if failures > POLL_FAILURES_MAX:
            raise EnrolmentError(f"{origin} stopped answering while the approval was awaited")
        if response is not None and not response.is_server_error:
            outcome = _decided(origin, response)
            if outcome is not None:
                return outcome
        sleep(max(started.poll_seconds, POLL_SECONDS_MIN))
    raise EnrolmentError(f"the code {started.code} expired unapproved; join again for a new one")


def _decided(origin: str, response: httpx2.Response) -> Outcome | None:
    if response.status_code != HTTP_OK:
        raise EnrolmentError(f"{origin} does not know this enrolment: {refusal_of(response)}")
    outcome = _parse(Outcome, response, origin)
    match outcome.state:
        case "pending":
            return None
        case "approved":
            return outcome
        case "refused":
            raise EnrolmentError("the coordinator's user refused this node")
        case "expired":
            raise EnrolmentError("the code expired unapproved; join again for a new one")


T = TypeVar("T", bound=BaseModel)


def _parse(kind: type[T], response: httpx2.Response, origin: str) -> T:
    try:
        return kind.model_validate_json(response.content)
    except ValidationError:
        raise EnrolmentError(f"{origin} does not answer like an MLX Network coordinator") from None


def refusal_of(response: httpx2.Response) -> str:
    """What the coordinator says is wrong, or else the status."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"
