"""`mlx-node why`: what this Mac was looked at for, what it took, and why not the rest."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import httpx2
from pydantic import BaseModel, ConfigDict, ValidationError

from node_agent.enrolment import refusal_of
from node_agent.identity import Identity
from node_agent.protocol.signing import why_statement
from node_agent.sizing.words import memory_text

HTTP_TIMEOUT: Final = httpx2.Timeout(20.0, connect=10.0)
HTTP_OK: Final = 200
HTTP_UNAUTHORIZED: Final = 401
NONCE_HEADER: Final = "x-mlxnet-nonce"
CHALLENGE: Final = re.compile(r'MLX-Node nonce="([A-Za-z0-9_-]{16,200})"')


class WhyError(ValueError):
    """The coordinator did not tell; the text says why and what to do."""


class _Part(BaseModel):
    # What a newer coordinator adds is left aside.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Reason(_Part):
    """One reject reason, how many jobs, and what the owner can do about it."""

    reason: str
    jobs: int
    meaning: str
    can_change: bool
    change: str


class LendMore(_Part):
    """So many GiB more lent, so many of the jobs that lacked memory would have fitted."""

    gib: int
    jobs: int


class Hour(_Part):
    """One hour's counts; its start in UTC microseconds."""

    start_us: int
    seen: int
    taken: int
    rejected: dict[str, int]


class Speed(_Part):
    """How fast the Mac was seen to be: shares of the forecast of its kind, and from how much."""

    decode_of_forecast: float
    decode_timed: int
    prefill_of_forecast: float
    prefill_timed: int
    change: str | None


class Why(_Part):
    """The coordinator's answer."""

    name: str
    state: str
    why: str | None
    since_us: int
    lent_bytes: int
    seen: int
    taken: int
    rejected: list[Reason]
    lend_more: list[LendMore]
    hours: list[Hour]
    speed: Speed | None = None  # an older coordinator does not tell


def ask_why(client: httpx2.Client, origin: str, identity: Identity) -> Why:
    """Ask the coordinator, proving this Mac's key with the nonce that it gives. Raises `WhyError`."""
    address = f"{origin}/nodes/v1/why"
    try:
        challenge = CHALLENGE.fullmatch(client.get(address).headers.get("www-authenticate", ""))
        if challenge is None:
            raise WhyError(f"{origin} knows no 'why': it is no coordinator, or an older one")
        nonce = challenge[1]
        statement = why_statement(audience=origin, node_id=identity.node_id, nonce=nonce)
        headers = {
            "Authorization": f"MLX-Node {identity.node_id} {identity.sign(statement)}",
            NONCE_HEADER: nonce,
        }
        response = client.get(address, headers=headers)
    except httpx2.HTTPError as error:
        raise WhyError(f"{origin} could not be reached ({type(error).__name__}). Try again") from error
    if response.status_code != HTTP_OK:
        raise WhyError(f"{origin} does not tell: {refusal_of(response)}")
    try:
        return Why.model_validate_json(response.content)
    except ValidationError:
        raise WhyError(f"{origin} does not answer like an MLX Network coordinator") from None


def why_lines(found: Why) -> list[str]:
    """The answer as text: the sum, each reason with what could be changed, then the hours."""
    lines = [f"{found.name}: {found.state}" + (f", {found.why}" if found.why else "")]
    since = _local(found.since_us)
    lines += speed_lines(found.speed)
    lines.append(f"jobs seen in the last 24 hours, or since {since}: {found.seen}, taken: {found.taken}")
    for row in found.rejected:
        lines.append(f"  {row.jobs} x {row.reason}: {row.meaning}")
        lines.append(f"    {'to change' if row.can_change else 'to do'}: {row.change}")
    lines += [
        f"  lend {step.gib} GB more than {memory_text(found.lent_bytes)}: {step.jobs} more jobs would have fitted"
        for step in found.lend_more
    ]
    for hour in found.hours:
        why = ", ".join(f"{count} {reason}" for reason, count in hour.rejected.items())
        lines.append(f"  {_local(hour.start_us)}  seen {hour.seen}, taken {hour.taken}  {why}".rstrip())
    if not found.seen:
        lines.append("  no job came since then that any Mac was looked at for")
    return lines


def speed_lines(speed: Speed | None) -> list[str]:
    """How the Mac's answers and prompts compare with the forecast, as far as they were timed."""
    if speed is None or not (speed.decode_timed or speed.prefill_timed):
        return []
    parts: list[str] = []
    if speed.decode_timed:
        parts.append(f"answers {speed.decode_of_forecast:.0%} (timed {speed.decode_timed} times)")
    if speed.prefill_timed:
        parts.append(f"prompts {speed.prefill_of_forecast:.0%} (timed {speed.prefill_timed} times)")
    lines = [f"speed against the forecast for its kind: {', '.join(parts)}"]
    return lines if speed.change is None else [*lines, f"  to change: {speed.change}"]


def _local(at_us: int) -> str:
    return f"{datetime.fromtimestamp(at_us / 1e6).astimezone():%Y-%m-%d %H:%M}"
