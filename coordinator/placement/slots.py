"""The fleet's slots as arrays, each found from its host's row and from its model's revision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from coordinator.placement.ids import IdColumn
from coordinator.placement.types import SlotFacts

NOBODY: Final = -1
SLOT_ID_DIGITS: Final = 32
GROWTH: Final = 1.25
# Of a slot: it has a seat, it has none, or another slot of its host is at work.
FREE, FULL, BESIDE = 0, 1, 2
START_SLOTS: Final = 8

COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("row", "i4"),  # of its host
    ("model", "i4"),
    ("width", "u1"),
    ("live", "u1"),  # attempts
    ("warm", "u1"),
    ("state", "u1"),  # FREE, FULL or BESIDE
    ("tokens", "i4"),  # a sequence's most
    ("bytes", "i8"),
    ("next", "i4"),  # slot of the same host
    ("place", "i4"),  # among its model's slots
    ("clear_at", "f8"),  # when its model is loaded and its attempts' prompts are read
)


@final
class SlotTable:
    """Slots by number. A removed slot's number is used again."""

    row: NDArray[np.int32]
    model: NDArray[np.int32]
    width: NDArray[np.uint8]
    live: NDArray[np.uint8]
    warm: NDArray[np.uint8]
    state: NDArray[np.uint8]
    tokens: NDArray[np.int32]
    bytes: NDArray[np.int64]
    next: NDArray[np.int32]
    place: NDArray[np.int32]
    clear_at: NDArray[np.float64]

    def __init__(self) -> None:
        self._count = 0
        self._capacity = START_SLOTS
        self._ids = IdColumn("slot_", SLOT_ID_DIGITS, self._capacity)
        self._vacant: list[int] = []
        self._models: dict[str, int] = {}
        self._revisions: list[str] = []
        self._members: list[NDArray[np.int32]] = []
        self._sizes: list[int] = []
        self._weights: list[int] = []
        for name, kind in COLUMNS:
            setattr(self, name, np.zeros(self._capacity, dtype=kind))

    def model_number(self, revision: str) -> int:
        """The number of a model; a new one gets the next."""
        found = self._models.get(revision)
        if found is None:
            found = self._models[revision] = len(self._revisions)
            self._revisions.append(revision)
            self._members.append(np.zeros(1, dtype=np.int32))
            self._sizes.append(0)
            self._weights.append(0)
        return found

    def note_weights(self, revision: str, weights_bytes: int) -> None:
        """Remember how large a model is."""
        self._weights[self.model_number(revision)] = weights_bytes

    def weights_lost(self, slots: NDArray[np.int32]) -> NDArray[np.float64]:
        """Bytes of weights in each of these slots, divided by how many slots hold the same model.

        0 for a model whose weights were not noted.
        """
        each = np.asarray(self._weights, dtype=np.float64) / np.maximum(np.asarray(self._sizes), 1)
        return each[self.model[slots]]

    def of_model(self, revision: str) -> NDArray[np.int32]:
        """The numbers of a model's slots on all hosts."""
        model = self.model_number(revision)
        return self._members[model][: self._sizes[model]]

    def of(self, first: int) -> Iterator[int]:
        """The slots of one host, from its first on."""
        slot = first
        while slot != NOBODY:
            following = int(self.next[slot])
            yield slot
            slot = following

    def slot_id(self, slot: int) -> str:
        """The id of a slot."""
        return self._ids.get(slot)

    def name(self, slot: int, slot_id: str) -> None:
        """Give a slot another id."""
        self._ids.set(slot, slot_id)

    def revision(self, slot: int) -> str:
        """The model's revision of a slot."""
        return self._revisions[int(self.model[slot])]

    def add(self, row: int, facts: SlotFacts, following: int, *, now_seconds: float = 0.0) -> int:
        """Enter a slot before the host's others, whose first is `following`; its number."""
        slot = self._number()
        model = self.model_number(facts.card_revision)
        self._ids.set(slot, facts.slot_id)
        self.row[slot], self.model[slot] = row, model
        self.width[slot], self.live[slot] = min(facts.width, 255), min(facts.live, 255)
        self.warm[slot], self.tokens[slot], self.bytes[slot] = facts.is_warm, facts.tokens_max, facts.bytes
        self.next[slot], self.clear_at[slot] = following, now_seconds + facts.clear_seconds
        members, size = self._members[model], self._sizes[model]
        if size == len(members):
            members = np.resize(members, int(size * GROWTH) + 1)
            self._members[model] = members
        members[size], self.place[slot] = slot, size
        self._sizes[model] = size + 1
        return slot

    def remove(self, slot: int) -> None:
        """Take a slot from its model's list; its host's chain is the caller's to mend."""
        model, place = int(self.model[slot]), int(self.place[slot])
        last = self._sizes[model] - 1
        moved = self._members[model][last]
        self._members[model][place], self.place[moved] = moved, place
        self._sizes[model] = last
        self._vacant.append(slot)

    def nbytes(self) -> int:
        """Bytes of all columns."""
        own = sum(getattr(self, name).nbytes for name, _ in COLUMNS)
        return own + self._ids.nbytes() + sum(members.nbytes for members in self._members)

    def _number(self) -> int:
        if self._vacant:
            return self._vacant.pop()
        if self._count == self._capacity:
            self._capacity = int(self._capacity * GROWTH) + START_SLOTS
            self._ids.grow(self._capacity)
            for name, kind in COLUMNS:
                longer = np.zeros(self._capacity, dtype=kind)
                longer[: self._count] = getattr(self, name)
                setattr(self, name, longer)
        self._count += 1
        return self._count - 1
