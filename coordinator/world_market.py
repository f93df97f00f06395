"""Tells MLX World what models there are, how fast Macs run them, and what was paid for; what of it
may be seen is decided over there (`web_world.market`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from sqlalchemy import case, exists, func, select
from sqlalchemy.orm import Session

from coordinator.catalogue.cards import Catalogue
from coordinator.db import database_now_us
from coordinator.jobs.models import Attempt, Job
from coordinator.nodes.models import Node
from coordinator.policy.demand import first_id
from coordinator.runtime import Runtime
from ledger.ratecard import DAY_US
from node_agent.protocol.cards import ModelFacts
from node_agent.sizing import estimate, memory
from node_agent.sizing.chips import all_chips
from node_agent.sizing.estimate import Estimate, estimate_mac, estimate_pod
from node_agent.sizing.hosts import MacSpec, PodSpec, usable_memory
from web_world.market import (
    GIB,
    MEMORY_CLASSES,
    TOKENS_CONTEXT,
    Forecast,
    Lent,
    Mac,
    MarketFacts,
    ModelOffer,
    Settled,
    Speeds,
)

MONTH_US: Final = 30 * DAY_US
ANSWER_PART: Final = 4  # a quarter of the context that is told of is the answer
EXAMPLES: Final = (
    Mac("M4", 10, 16 * GIB),
    Mac("M4 Pro", 20, 48 * GIB),
    Mac("M4 Max", 40, 128 * GIB),
    Mac("M3 Ultra", 80, 512 * GIB),
)
"""The Macs whose speeds the page of models shows."""


def market_of(runtime: Runtime) -> MarketFacts:
    """The catalogue with its speeds, and the last 30 days' settled work. Blocking."""
    connected = frozenset(runtime.fleet.channels)
    with runtime.database.read() as session:
        now_us = database_now_us(session)
        settled = settled_work(session, now_us)
        lent = lent_macs(session, now_us, connected)
    return catalogue_market(runtime.catalogue, settled=settled, lent=lent)


def catalogue_market(
    catalogue: Catalogue,
    *,
    settled: tuple[Settled, ...] = (),
    lent: tuple[Lent, ...] = (),
    served: frozenset[str] | None = None,
) -> MarketFacts:
    """A catalogue's models with this demand. `served` are ids that count as served; None: those
    whose files are pinned."""
    cards: dict[str, ModelFacts] = {**catalogue.unpinned, **catalogue.cards}
    is_served = frozenset(catalogue.cards) if served is None else served
    return MarketFacts(
        models=tuple(_offer(card, card.id in is_served) for card in cards.values()),
        examples=EXAMPLES,
        chips=tuple((chip.name, chip.gpu_cores) for chip in all_chips()),
        forecast=_forecast_of(cards.values()),
        settled=settled,
        lent=lent,
    )


# -- models --------------------------------------------------------------------------------------


def _sequence(card: ModelFacts) -> estimate.Job:
    tokens = min(TOKENS_CONTEXT, card.context_tokens)
    return estimate.Job(tokens - tokens // ANSWER_PART, tokens // ANSWER_PART)


def _offer(card: ModelFacts, is_served: bool) -> ModelOffer:
    needed = memory.needed_bytes(card, context_tokens=_sequence(card).tokens, width=1)
    fitting = (each for each in MEMORY_CLASSES if usable_memory(each).bytes >= needed)
    forecasts = [_speeds(estimate_mac(card, _spec(mac), _sequence(card))) for mac in EXAMPLES]
    return ModelOffer(
        id=card.id,
        name=card.name,
        is_served=is_served,
        weights_bytes=card.weights_bytes,
        needed_bytes=needed,
        least_memory_bytes=min(fitting, default=None),
        input_umlx_per_million=card.price.input_umlx_per_million,
        output_umlx_per_million=card.price.output_umlx_per_million,
        writes=tuple(each.write_tokens_per_second if each.fits else None for each in forecasts),
    )


def _forecast_of(cards: Iterable[ModelFacts]) -> Forecast:
    by_id = {card.id: card for card in cards}

    @lru_cache(maxsize=4096)
    def forecast(model: str, mac: Mac, macs: int) -> Speeds:
        card, spec = by_id[model], _spec(mac)
        if macs == 1:
            return _speeds(estimate_mac(card, spec, _sequence(card)))
        return _speeds(estimate_pod(card, PodSpec(members=(spec,) * macs), _sequence(card))[0])

    return forecast


def _spec(mac: Mac) -> MacSpec:
    return MacSpec(chip=mac.chip, gpu_cores=mac.gpu_cores, memory_bytes=mac.memory_bytes)


def _speeds(found: Estimate) -> Speeds:
    tightest = min(found.ranks, key=lambda rank: rank.usable.bytes - rank.needed.total_bytes)
    return Speeds(
        mode=found.mode,
        fits=found.fits,
        read_tokens_per_second=found.prompt_tokens_per_second,
        write_tokens_per_second=found.tokens_per_second,
        needed_bytes=tightest.needed.total_bytes,
        usable_bytes=tightest.usable.bytes,
    )


# -- demand --------------------------------------------------------------------------------------


def settled_work(session: Session, now_us: int) -> tuple[Settled, ...]:
    """Paid work of strangers by model and account: neither public work nor work for oneself."""
    for_oneself = exists().where(Attempt.job_id == Job.id, Attempt.is_linked)
    tokens = Job.prompt_tokens + Job.output_tokens
    is_new = Job.id >= first_id("job", now_us - DAY_US)
    rows = session.execute(
        select(
            Job.card_id,
            Job.account_id,
            func.sum(case((is_new, tokens), else_=0)),
            func.sum(case((is_new, 0), else_=tokens)),
        )
        .where(
            Job.id >= first_id("job", now_us - MONTH_US),
            Job.charge_umlx > 0,
            Job.payer.startswith("user:"),
            ~for_oneself,
        )
        .group_by(Job.card_id, Job.account_id)
    )
    return tuple(Settled(model, account, int(day), int(earlier)) for model, account, day, earlier in rows)


def lent_macs(session: Session, now_us: int, connected: frozenset[str]) -> tuple[Lent, ...]:
    """Macs seen in the last 30 days, with what strangers' settled jobs paid each one's owner."""
    rows = session.execute(
        select(Attempt.node_id, func.sum(Attempt.share_umlx))
        .join(Job, Job.id == Attempt.job_id)
        .where(
            Attempt.id >= first_id("att", now_us - MONTH_US),
            Attempt.share_umlx > 0,
            Attempt.is_linked.is_(False),
            Job.payer.startswith("user:"),
        )
        .group_by(Attempt.node_id)
    )
    earned: dict[str, int] = {node_id: int(total) for node_id, total in rows}
    nodes = session.execute(
        select(Node.id, Node.account_id, Node.hardware, Node.lent_bytes).where(
            Node.revoked_us.is_(None), Node.seen_us > now_us - MONTH_US
        )
    )
    return tuple(
        Lent(owner, hardware["memory_bytes"], lent_bytes, earned.get(node_id, 0), node_id in connected)
        for node_id, owner, hardware, lent_bytes in nodes
    )
