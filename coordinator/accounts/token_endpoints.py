"""What a token is, for everyone: what one MLX buys today, how many there are, where the pools stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fastapi import APIRouter, Request
from sqlalchemy import or_, select
from starlette.responses import Response

from coordinator.catalogue.cards import Catalogue
from coordinator.http import audience, runtime_of
from coordinator.openai.shapes import dump
from coordinator.openai.strict_json import Json
from coordinator.policy.budgets import BudgetState, budget_states
from coordinator.policy.demand import Demand, Paid
from coordinator.policy.rate_cards import card_in_force, cards
from coordinator.policy.rate_endpoints import rates_json
from coordinator.settlement import rate_of
from ledger import models
from ledger.commands import FEE, ISSUANCE, TREASURY
from ledger.pricing import PER_MILLION
from ledger.ratecard import RateCard, output_tokens_per_mlx

router = APIRouter()

WHAT: Final = (
    "An MLX token is a credit for work on this network. It is earned by lending a Mac and spent on jobs. "
    "It is not bought, not sold and not paid out in money."
)


@router.get("/v1/tokens", openapi_extra=audience("public"))
def tokens(request: Request) -> Response:
    """What one MLX buys of each model, the supply, pools and budgets, the demand, the rate cards."""
    runtime = runtime_of(request)
    accounts = models.accounts.c
    with runtime.database.read() as session:
        now_us = runtime.database.now_us(session)
        rows = session.execute(
            select(accounts.id, accounts.posted_umlx).where(
                or_(accounts.id.in_((ISSUANCE, FEE, TREASURY)), accounts.kind == "pool")
            )
        )
        balances = {row.id: row.posted_umlx for row in rows}
        budgets = budget_states(session, now_us=now_us)
        dated, card = cards(session), card_in_force(session, now_us)
    body = tokens_json(runtime.catalogue, balances, card=card)
    body["budgets"] = budgets_json(budgets, card, now_us=now_us)
    body["demand"] = demand_json(runtime.demand.demand())
    body["coming_rate_cards"] = rates_json(dated, card, now_us)["coming"]
    return Response(dump(body), media_type="application/json")


def tokens_json(catalogue: Catalogue, balances: Mapping[str, int], *, card: RateCard) -> dict[str, Json]:
    """The answer, from the network's own accounts' posted balances in uMLX.

    The supply is what was minted less what was burned: issuance holds exactly the negative of it.
    """
    return {
        "object": "tokens",
        "what": WHAT,
        "umlx_per_mlx": str(PER_MILLION),
        "examples": examples_json(catalogue),
        "models": models_json(catalogue),
        "supply_umlx": str(-balances.get(ISSUANCE, 0)),
        "network_accounts": [
            {"account": name, "balance_umlx": str(balances[name])}
            for name in sorted(balances)
            if name != ISSUANCE
        ],
        "fee_ppm": card.fees.fee_ppm,
        "rate_card": {"id": card.id, "version": card.version},
    }


def budgets_json(states: Iterable[BudgetState], card: RateCard, *, now_us: int) -> list[Json]:
    """What may still be minted, for each purpose: of the budgets that are in their time and validly
    signed by enough operators.
    """
    sums: dict[str, list[int]] = {}
    for state in states:
        text = state.document.budget
        is_usable = len(state.signers) >= card.policy.budget_signatures
        if is_usable and text.valid_from_us <= now_us < text.expires_us:
            parts = (int(text.cap_umlx), state.drawn_umlx, state.promised_umlx, state.left_umlx)
            so_far = sums.get(text.purpose, [0] * len(parts))
            sums[text.purpose] = [total + part for total, part in zip(so_far, parts, strict=True)]
    names = ("cap_umlx", "drawn_umlx", "promised_umlx", "left_umlx")
    return [
        {"purpose": purpose, **{name: str(part) for name, part in zip(names, sums[purpose], strict=True)}}
        for purpose in sorted(sums)
    ]


def demand_json(demand: Demand) -> dict[str, Json]:
    """Paid work of late, and the part of the Macs' last hour that it took."""

    def paid(found: Paid) -> Json:
        return {"jobs": found.jobs, "tokens": found.tokens, "charged_umlx": str(found.charged_umlx)}

    return {
        "last_24_hours": paid(demand.day),
        "last_30_days": paid(demand.month),
        "paid_busy_ppm": demand.paid_busy_ppm,
    }


def examples_json(catalogue: Catalogue) -> list[Json]:
    """What one MLX buys of a small, a middle and a large model of the catalogue, at its price: the
    smallest that is served, and the middle and largest that are known. `is_served` tells whether
    jobs can ask for it yet.
    """
    known = (*catalogue.cards.values(), *catalogue.unpinned.values())
    by_size = sorted(known, key=lambda card: (card.weights_bytes, card.id))
    if not by_size:
        return []
    small = next((card for card in by_size if card.id in catalogue.cards), by_size[0])
    chosen = {"small": small, "middle": by_size[len(by_size) // 2], "large": by_size[-1]}
    return [
        {
            "size": size,
            "model": card.id,
            "is_served": card.id in catalogue.cards,
            "output_tokens_per_mlx": output_tokens_per_mlx(rate_of(card.price)),
        }
        for size, card in chosen.items()
    ]


def models_json(catalogue: Catalogue) -> list[Json]:
    """Each model, smallest first: its aliases and how many answer tokens one MLX buys, rounded
    down; null if answers are free.
    """
    aliases: dict[str, list[Json]] = {}
    for alias, card_id in sorted(catalogue.aliases.items()):
        aliases.setdefault(card_id, []).append(alias)
    return [
        {
            "id": card.id,
            "name": card.name,
            "revision": card.revision,
            "aliases": aliases.get(card.id, []),
            "output_umlx_per_million_tokens": str(card.price.output_umlx_per_million),
            "output_tokens_per_mlx": output_tokens_per_mlx(rate_of(card.price)),
        }
        for card in sorted(catalogue.cards.values(), key=lambda card: (card.weights_bytes, card.id))
    ]
