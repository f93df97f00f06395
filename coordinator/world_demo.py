"""Made-up demand over the built-in catalogue, for looking at the pages before there is any.

Accounts, tokens and earnings are invented, and which models are served; sizes, prices and forecasts
are the catalogue's own.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Final

from coordinator.catalogue.cards import load_catalogue
from coordinator.world_market import catalogue_market
from web_world.demo import GIB, demo_fleet
from web_world.market import Lent, MarketFacts, Settled

SERVED: Final = (
    "llama-3.2-3b-4bit",
    "qwen3-8b-4bit",
    "gpt-oss-20b-mxfp4-q8",
    "qwen3-30b-a3b-4bit",
    "gemma-3-27b-4bit",
    "llama-3.3-70b-4bit",
    "gpt-oss-120b-mxfp4-q8",
    "qwen3-235b-a22b-2507-4bit",
)
LENT_SHARE: Final = 0.7
ACCOUNTS_MAX: Final = 400
MACS_PER_ACCOUNT: Final = 40


@cache
def demo_market(macs: int, seed: int) -> MarketFacts:
    """The market of a made-up fleet of so many Macs, the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - a picture, not a secret
    catalogue = load_catalogue()
    settled: list[Settled] = []
    for rank, model in enumerate(SERVED):
        accounts = min(ACCOUNTS_MAX, macs // MACS_PER_ACCOUNT // (rank + 1))
        for index in range(accounts):
            day = round(draw.lognormvariate(12, 1.2))
            settled.append(Settled(model, f"account{index}", day, round(day * draw.uniform(15, 32))))
    lent = tuple(
        Lent(
            owner=mac.owner,
            memory_bytes=mac.memory_bytes,
            lent_bytes=round(mac.memory_bytes * LENT_SHARE),
            earned_umlx=round(draw.lognormvariate(15, 0.8) * mac.memory_bytes / (32 * GIB)),
            is_connected=draw.random() < LENT_SHARE,
        )
        for mac in demo_fleet(macs, seed=seed, now_us=0)
    )
    return catalogue_market(catalogue, settled=tuple(settled), lent=lent, served=frozenset(SERVED))
