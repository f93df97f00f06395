"""How fast a Mac is seen to be, against what is forecast of its kind. Pure.

A Mac without a fan, in low power mode, or shared with other programs is slower than its chip says.
What it says of itself is not asked: tokens are timed where they arrive. Each observation is a factor,
seen speed over forecast; a Mac's own is the median of its last ones, drawn towards 1 while they are
few and as they grow old: a slow Mac gets little work, and would else never show that it is slow no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Final

from node_agent.protocol.cards import ModelFacts
from node_agent.protocol.messages import Hardware
from node_agent.sizing import speed
from node_agent.sizing.work import machine_of, work_of

# Tokens come in chunks, and networks hold them up: below these, one chunk more or less says too much.
DECODED_TOKENS_MIN: Final = 32
DECODED_SECONDS_MIN: Final = 0.5
# A prompt's time has a round trip and a first step in it.
PROMPT_SECONDS_MIN: Final = 1.0
# A prompt read faster than this had its beginning cached.
PROMPT_FACTOR_MAX: Final = 1.5
SEEN_MAX: Final = 9  # observations kept: one hot hour is forgotten within ten answers
PRIOR: Final = 1.0  # observations that the forecast itself counts as
OLD_HALF_LIFE_SECONDS: Final = 6 * 3600.0  # a hot afternoon is forgotten overnight
# Finer steps are noise, and each makes a class of its own in the tables of speeds.
STEP: Final = 0.05


@dataclass(frozen=True)
class Stretch:
    """A time in which `batch` sequences were decoded and nothing else was done on the Mac.

    `tokens` arrived of one of them in `seconds`, at `context_tokens` in the middle of it.
    """

    tokens: int
    seconds: float
    context_tokens: int
    batch: int


def seen_decoding(card: ModelFacts, hardware: Hardware, stretch: Stretch) -> float | None:
    """The factor of decoding that a stretch shows, from 0.05 to 3. None if it is too short."""
    if stretch.tokens < DECODED_TOKENS_MIN or stretch.seconds < DECODED_SECONDS_MIN:
        return None
    step_seconds = stretch.seconds / stretch.tokens
    if hardware.accelerated:
        return speed.decode_factor(
            work_of(card),
            machine_of(hardware),
            step_seconds,
            context_tokens=stretch.context_tokens,
            batch=stretch.batch,
        )
    forecast = speed.decode_seconds_per_token(
        card, hardware, context_tokens=stretch.context_tokens, batch=stretch.batch
    )
    return _bounded(forecast / step_seconds)


def seen_reading(card: ModelFacts, hardware: Hardware, *, tokens: int, seconds: float) -> float | None:
    """The factor of reading prompts that one of `tokens` shows, read alone by a loaded model, whose
    first answer token arrived after `seconds`. None if it is too short, or seems to have been cached.
    """
    forecast = speed.prefill_seconds(card, tokens, hardware)
    if forecast < PROMPT_SECONDS_MIN or forecast > PROMPT_FACTOR_MAX * seconds:
        return None
    return _bounded(forecast / seconds)


def learnt_factor(seen: Sequence[float], *, age_seconds: float = 0.0) -> float:
    """The factor that a Mac is forecast by: 1 without observations, and in steps of 5 %.

    The last of them was made `age_seconds` ago.
    """
    if not seen:
        return 1.0
    weight = len(seen) / (len(seen) + PRIOR) * 0.5 ** (max(age_seconds, 0.0) / OLD_HALF_LIFE_SECONDS)
    drawn = weight * log(median(seen))
    return exp(round(drawn / STEP) * STEP)


def _bounded(factor: float) -> float:
    return min(max(factor, speed.FACTOR_LEAST), speed.FACTOR_MOST)
