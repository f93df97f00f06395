"""The network's rates over HTTP: in force, coming, past; and what is coming for an owner."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from coordinator.http import audience, identify, parse_body, read_body, require_operator, runtime_of
from coordinator.openai.strict_json import Json
from coordinator.policy.announcements import announce, effect_for
from coordinator.policy.documents import RateCardDocument
from coordinator.policy.endpoints import as_json, documents_explained
from coordinator.policy.rate_cards import DatedCard, card_in_force, cards
from ledger.ratecard import RateCard, changes

router = APIRouter()

Body = Annotated[bytes, Depends(read_body)]


@router.get("/v1/rates", openapi_extra=audience("public"))
def rates(request: Request) -> Response:
    """The rate card in force, those that are coming with what they change, and those before."""
    database = runtime_of(request).database
    with database.read() as session:
        now_us = database.now_us(session)
        dated, current = cards(session), card_in_force(session, now_us)
    return as_json(rates_json(dated, current, now_us))


def rates_json(dated: Sequence[DatedCard], current: RateCard, now_us: int) -> dict[str, Json]:
    """The answer. A card's `body` is the very text that its `id` is the SHA-256 of."""
    in_force: list[Json] = [card_json(found) for found in dated if found.card.id == current.id]
    coming: list[Json] = []
    before = current
    for found in dated:
        if found.effective_us > now_us:
            shown = card_json(found)
            shown["changes"] = changes_json(before, found.card)
            coming.append(shown)
            before = found.card
    past: list[Json] = [
        card_json(found) for found in dated if found.effective_us <= now_us and found.card.id != current.id
    ]
    return {"object": "rates", "in_force": in_force[0] if in_force else None, "coming": coming, "past": past}


def card_json(dated: DatedCard) -> dict[str, Json]:
    """A card with its dates."""
    card = dated.card
    return {
        "id": card.id,
        "version": card.version,
        "announced_us": dated.announced_us,
        "effective_us": dated.effective_us,
        "rates": json.loads(card.body),
        "body": card.body,
    }


def changes_json(old: RateCard, new: RateCard) -> list[Json]:
    """Every rate that differs, now and then."""
    return [
        {"rate": name, "now": json.loads(json.dumps(now)), "then": json.loads(json.dumps(then))}
        for name, (now, then) in sorted(changes(old, new).items())
    ]


@router.post("/v1/rates", openapi_extra=audience("operator"), status_code=201)
def post_rates(request: Request, body: Body) -> Response:
    """Announce a rate card that enough operators have signed. Jobs quoted before it keep theirs."""
    require_operator(identify(request))
    document = parse_body(RateCardDocument, body)
    database = runtime_of(request).database
    with documents_explained(), database.write() as session:
        now_us = database.now_us(session)
        current = card_in_force(session, now_us)
        dated = announce(session, document, now_us=now_us)
    return as_json(card_json(dated) | {"changes": changes_json(current, dated.card)}, status=201)


@router.get("/v1/rates/effect", openapi_extra=audience("account"))
def effect(request: Request) -> Response:
    """What the next coming card would have meant for the caller's Macs in the last 30 days."""
    caller = identify(request)
    runtime = runtime_of(request)
    with runtime.database.read() as session:
        now_us = runtime.database.now_us(session)
        found = effect_for(session, caller.account_id, runtime.catalogue, now_us=now_us)
    if found is None:
        return as_json({"object": "rates.effect", "coming": None})
    effect = found.effect
    body: dict[str, Json] = {
        "object": "rates.effect",
        "coming": {
            "id": found.announcement.coming.id,
            "version": found.announcement.coming.version,
            "effective_us": found.announcement.effective_us,
        },
        "changes": changes_json(found.announcement.current, found.announcement.coming),
        "work_now_umlx": str(effect.work_now_umlx),
        "work_then_umlx": str(effect.work_then_umlx),
        "availability_now_umlx": str(effect.availability_now_umlx),
        "availability_then_umlx": str(effect.availability_then_umlx),
        "difference_umlx": str(effect.difference_umlx),
        "jobs": found.jobs,
        "slots": found.slots,
        "jobs_left_out": found.jobs_left_out,
    }
    return as_json(body)
