"""What a token is, for everyone: what one MLX buys today, how many there are, where the pools stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import APIRouter, Request
from sqlalchemy import or_, select
from starlette.responses import Response

from coordinator.catalogue.cards import Catalogue
from coordinator.http import audience, runtime_of
from coordinator.openai.shapes import dump
from coordinator.openai.strict_json import Json
from coordinator.settlement import rate_of
from ledger import models
from ledger.commands import FEE, ISSUANCE, TREASURY
from ledger.pricing import PER_MILLION
from ledger.ratecard import CARD, RateCard, output_tokens_per_mlx

router = APIRouter()

WHAT: Final = (
    "An MLX token is a credit for work on this network. It is earned by lending a Mac and spent on jobs. "
    "It is not bought, not sold and not paid out in money."
)


@router.get("/v1/tokens", openapi_extra=audience("public"))
def tokens(request: Request) -> Response:
    """What one MLX buys of each model, the supply, the pools, the fee, the rate card in force."""
    runtime = runtime_of(request)
    accounts = models.accounts.c
    with runtime.database.read() as session:
        rows = session.execute(
            select(accounts.id, accounts.posted_umlx).where(
                or_(accounts.id.in_((ISSUANCE, FEE, TREASURY)), accounts.kind == "pool")
            )
        )
        balances = {row.id: row.posted_umlx for row in rows}
    body = tokens_json(runtime.catalogue, balances, fee_ppm=CARD.fees.fee_ppm, card=CARD)
    return Response(dump(body), media_type="application/json")


def tokens_json(
    catalogue: Catalogue, balances: Mapping[str, int], *, fee_ppm: int, card: RateCard
) -> dict[str, Json]:
    """The answer, from the network's own accounts' posted balances in uMLX.

    The supply is what was minted less what was burned: issuance holds exactly the negative of it.
    """
    return {
        "object": "tokens",
        "what": WHAT,
        "umlx_per_mlx": str(PER_MILLION),
        "models": models_json(catalogue),
        "supply_umlx": str(-balances.get(ISSUANCE, 0)),
        "network_accounts": [
            {"account": name, "balance_umlx": str(balances[name])}
            for name in sorted(balances)
            if name != ISSUANCE
        ],
        "fee_ppm": fee_ppm,
        "rate_card": {"id": card.id, "version": card.version},
    }


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
