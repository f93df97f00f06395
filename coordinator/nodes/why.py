"""Why a Mac gets work or none, for its owner: `GET /v1/nodes/{node_id}/why`, and for the Mac itself.

A node proves its key by signing a nonce that it was just given: 401 with `WWW-Authenticate:
MLX-Node nonce="…"`, then the same request with `Authorization: MLX-Node NODE_ID SIGNATURE` and the
nonce in a header. A nonce answers once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from coordinator.errors import ApiError
from coordinator.http import audience, identify, runtime_of
from coordinator.nodes import service
from coordinator.nodes.models import Node
from coordinator.nodes.nonces import Nonces
from coordinator.nodes.pace_book import Pace
from coordinator.nodes.places import AUTHORIZATION, SCHEME
from coordinator.nodes.tallies import HOURS, LEND_STEPS_GIB, Tally
from coordinator.nodes.views import state_of
from coordinator.openai.shapes import dump
from coordinator.openai.strict_json import Json
from coordinator.placement.reject import EXPLAINED, REASONS, RejectReason
from coordinator.runtime import Runtime
from node_agent.protocol.signing import decode_bytes, is_signed_by, why_statement

router = APIRouter()

NONCE_HEADER: Final = "x-mlxnet-nonce"

# What the owner can do about each reason; None: nothing, and nothing is wrong with the Mac.
OWNER_CHANGES: Final[dict[RejectReason, str | None]] = {
    "context_too_long": None,
    "excluded": "see the last fault with 'mlx-network nodes list'; a Mac that declines much gets less",
    "not_named": None,
    "not_own": None,
    "other_region": None,
    "too_dear": None,
    "cannot_load_kind": None,
    "unproven": "keep it running: each valid check brings it nearer to sealed jobs",
    "memory_lent_short": "lend more memory: 'mlx-node join URL --lend-gib N'",
    "too_slow": None,
    "too_late": None,
    "model_absent": "let it fetch models: free disk space, and a connection that is not metered",
    "disk_short": "free disk space for models",
    "offline": "keep it on, awake and connected; 'mlx-node run' dials again by itself",
    "suspect": "mend its connection: nothing was heard of it for a while",
    "draining": "start it again: it was closing",
    "owner_present": "leave it idle for longer, or promise a seat that your own use does not stop",
    "paused_after_faults": "mend the fault that 'mlx-network nodes list' shows; it gets work again by itself",
    "on_probation": "nothing: one job that ends well, and it takes several again",
    "kept_apart": None,
    "held_for_older": None,
    "memory_free_short": "close programs that use the memory that is lent, or lend less",
    "slot_full": None,
    "memory_busy": "nothing: one model is at work at a time, since two would take turns with the same memory bandwidth",
    "crowded": None,
    "better_soon": None,
    "kept_for_big": None,
    "leaves_soon": "leave it idle for longer at the same hours: it learns when you come back",
    "slower": None,
    "less_owed": None,
}
NOTHING: Final = "nothing: this is as it should be"
SLOW: Final = 0.85  # the forecast itself is off by about 7 % in the median
SPEED_UP: Final = "turn off low power mode, let it cool, close programs that keep its GPU busy"


@router.get("/v1/nodes/{node_id}/why", openapi_extra=audience("account"))
def owners_why(request: Request, node_id: str) -> Response:
    """What a Mac of the caller's was counted under in the last 24 hours. Raises 404 for another's."""
    caller = identify(request)
    runtime = runtime_of(request)
    with runtime.database.read() as session:
        node = service.own_node(session, caller.account_id, node_id)
        return _respond(runtime, node)


@router.get("/nodes/v1/why", openapi_extra=audience("node"))
def nodes_why(
    request: Request,
    authorization: Annotated[str | None, Header()] = None,
    nonce: Annotated[str | None, Header(alias=NONCE_HEADER, max_length=200)] = None,
) -> Response:
    """The same for the Mac itself, which proves its key. Raises 401 with a nonce, 403."""
    runtime = runtime_of(request)
    signed = AUTHORIZATION.fullmatch(authorization or "")
    if signed is None or nonce is None or not runtime.nonces.is_good(nonce):
        raise _challenge(runtime.nonces)
    with runtime.database.read() as session:
        node = session.get(Node, signed[1])
        if node is None or node.revoked_us is not None:
            raise _refused("This node is not enrolled here: run 'mlx-node join'.")
        key = decode_bytes(node.public_key)
        statements = (
            why_statement(audience=origin, node_id=node.id, nonce=nonce)
            for origin in runtime.settings.origins
        )
        if not any(is_signed_by(key, signed[2], statement) for statement in statements):
            raise _refused(f"The signature does not fit the node's key and {runtime.settings.origin}.")
        if not runtime.nonces.use(nonce):
            raise _challenge(runtime.nonces)
        return _respond(runtime, node)


def _challenge(nonces: Nonces) -> ApiError:
    return ApiError(
        401,
        "invalid_api_key",
        f"Sign the nonce of WWW-Authenticate and send it back in {NONCE_HEADER} within a minute, once.",
        type="authentication_error",
        headers={"WWW-Authenticate": f'{SCHEME} nonce="{nonces.make()}"'},
    )


def _refused(message: str) -> ApiError:
    return ApiError(403, "permission_denied", message, type="permission_error")


def _respond(runtime: Runtime, node: Node) -> Response:
    channel = runtime.fleet.get(node.id)
    found = state_of(node, channel, runtime.endings.health, runtime.settings)
    view = why_json(
        runtime.tallies.of(node.id), since_us=runtime.tallies.since_us, lent_bytes=node.lent_bytes
    )
    view["speed"] = speed_json(runtime.endings.paces.of(node.device))
    body: dict[str, Json] = {"id": node.id, "object": "node.why", "name": node.name, **found, **view}
    return Response(dump(body), media_type="application/json")


# -- the view, pure ----------------------------------------------------------------------------------


def why_json(hours: Sequence[Tally], *, since_us: int, lent_bytes: int) -> dict[str, Json]:
    """Jobs seen, taken and every reason, by hour and in sum, and what the owner could change.

    `since_us`: counting began then; before it nothing is known.
    """
    seen, taken = sum(hour.seen for hour in hours), sum(hour.taken for hour in hours)
    rejected = _summed(hours)
    short = [sum(counts) for counts in zip(*(hour.short for hour in hours), strict=True)]
    return {
        "since_us": since_us,
        "hours_kept": HOURS,
        "lent_bytes": lent_bytes,
        "seen": seen,
        "taken": taken,
        "rejected": _reasons_json(rejected),
        "lend_more": lend_more_json(short),
        "hours": [
            {
                "start_us": hour.start_us,
                "seen": hour.seen,
                "taken": hour.taken,
                "rejected": {reason: hour.rejected[reason] for reason in REASONS if reason in hour.rejected},
            }
            for hour in hours
        ],
    }


def speed_json(pace: Pace) -> dict[str, Json]:
    """What the Mac is reckoned with, as a share of what is forecast of its kind, and from how much.

    `change` is what its owner can do; None where there is nothing to do.
    """
    is_slow = min(pace.decode_factor, pace.prefill_factor) < SLOW
    return {
        "decode_of_forecast": round(pace.decode_factor, 2),
        "decode_timed": pace.decode_seen,
        "prefill_of_forecast": round(pace.prefill_factor, 2),
        "prefill_timed": pace.prefill_seen,
        "change": SPEED_UP if is_slow else None,
    }


def _summed(hours: Iterable[Tally]) -> dict[RejectReason, int]:
    found: dict[RejectReason, int] = {}
    for hour in hours:
        for reason, count in hour.rejected.items():
            found[reason] = found.get(reason, 0) + count
    return found


def _reasons_json(rejected: dict[RejectReason, int]) -> list[Json]:
    """The most frequent first, each with its meaning and what could be changed."""
    order = sorted(rejected, key=lambda reason: (-rejected[reason], reason))
    return [
        {
            "reason": reason,
            "jobs": rejected[reason],
            "meaning": EXPLAINED[reason],
            "can_change": OWNER_CHANGES[reason] is not None,
            "change": OWNER_CHANGES[reason] or NOTHING,
        }
        for reason in order
    ]


def lend_more_json(short: Sequence[int]) -> list[Json]:
    """For each step that lets more jobs fit: so many GiB more, so many jobs of those counted."""
    found: list[Json] = []
    total = 0
    for gib, count in zip(LEND_STEPS_GIB, short, strict=False):
        total += count
        if count:
            found.append({"gib": gib, "jobs": total})
    return found
