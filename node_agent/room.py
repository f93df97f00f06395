"""Which models give way: room for the next one, and for the Mac's owner. Pure.

Two bounds hold for models side by side. Of what is *lent*: the plans of all of them fit into it. Of
what is *free*: what the next one needs, and what others still load, is free or comes back from
children that go; and something stays free besides, because an idle model is never worth swapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from node_agent.admission import memory_fault
from node_agent.attempt_book import CoreSettings
from node_agent.events import FactsMeasured
from node_agent.protocol.cards import ModelCard
from node_agent.self_tests import SelfTests
from node_agent.sizing.memory import needed_bytes
from node_agent.slot import Slot, SlotKeeper

WHY_FOR_OTHERS = "dropped: its memory was needed for another model"
WHY_FOR_OWNER = "dropped: other programs need this machine's memory"


@final
class Room:
    """Knows the measured facts and drops idle models, never one that is at work."""

    def __init__(self, settings: CoreSettings, keeper: SlotKeeper, self_tests: SelfTests) -> None:
        self.facts = FactsMeasured(free_bytes=0, disk_free_bytes=0)
        self._settings = settings
        self._keeper = keeper
        self._self_tests = self_tests
        self._short_since_seconds: float | None = None

    @property
    def free_bytes(self) -> int:
        """Free as soon as what was told to go has gone: children, and a self-test."""
        return self.facts.free_bytes + sum(self._keeper.closing.values()) + self._self_tests.held_bytes

    @property
    def available_bytes(self) -> int:
        """What one model could have if all others went."""
        return min(self._settings.lent_bytes, self._free_without_models_bytes)

    @property
    def _free_without_models_bytes(self) -> int:
        # What our own children hold is either kept or given back before the next model is loaded.
        return self.facts.free_bytes + self._keeper.children_bytes + self._self_tests.held_bytes

    def fault(self, card: ModelCard) -> str | None:
        """Why this model could not be held even alone, or None."""
        return memory_fault(card, 1, 1, self.available_bytes)

    def make(self, card: ModelCard, revision: str, longest: int, width: int, evict: Sequence[str]) -> None:
        """Drop what must go so that `width` sequences of up to `longest` tokens fit.

        Those that `evict` names go first, in its order, then the least recently used; none that
        need not go. The caller knows that the model fits alone and that all others are idle.
        """
        others = self._keeper.others(revision)
        rank = {name: place for place, name in enumerate(evict)}
        order = sorted(others, key=lambda slot: rank.get(slot.revision, len(rank)))
        needed = needed_bytes(card, longest, width)
        gone = 0
        while gone < len(order) and not self._fits(needed, order[gone:]):
            gone += 1
        going, kept = order[:gone], order[gone:]
        # One that went early may have been too small to matter: it stays if the rest suffices.
        for slot in reversed(going[:-1]):
            if self._fits(needed, [*kept, slot]):
                going.remove(slot)
                kept.append(slot)
        self._keeper.drop(going, WHY_FOR_OTHERS)

    def _fits(self, needed: int, kept: Sequence[Slot]) -> bool:
        if not kept:
            return True
        if len(kept) >= self._settings.models_max:
            return False
        lent = self._settings.lent_bytes - sum(slot.planned_bytes for slot in kept)
        taken = sum(slot.child_bytes + slot.coming_bytes for slot in kept)
        free = self._free_without_models_bytes - taken
        return needed <= min(lent, free - self._settings.spare_bytes)

    def measured(self, facts: FactsMeasured, idle: Sequence[Slot], now_seconds: float) -> None:
        """Note the facts; what is idle goes, in this order, where it takes what it should not.

        That is more than is lent, all models together, if one of them grew beyond its plan. And it
        is memory that other programs need: with less than `short_bytes` free for `short_seconds`,
        models go until `spare_bytes` are free. Figures of free memory swing by what programs take
        for a moment, and a model that goes for a moment's need is loaded again for minutes.
        """
        self.facts = facts
        loaded = [slot for slot in idle if slot.generation is not None]
        self._keep_to_lent(loaded)
        if self.free_bytes >= self._settings.short_bytes or not loaded:
            self._short_since_seconds = None
            return
        if self._short_since_seconds is None:
            self._short_since_seconds = now_seconds
        if now_seconds - self._short_since_seconds >= self._settings.short_seconds:
            for slot in loaded:
                if self.free_bytes < self._settings.spare_bytes:
                    self._keeper.drop([slot], WHY_FOR_OWNER)

    def _keep_to_lent(self, loaded: list[Slot]) -> None:
        slots = self._keeper.slots
        while loaded and len(slots) > 1:
            if sum(slot.planned_bytes for slot in slots.values()) <= self._settings.lent_bytes:
                return
            self._keeper.drop([loaded.pop(0)], WHY_FOR_OTHERS)
