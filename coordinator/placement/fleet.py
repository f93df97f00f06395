"""The fleet as arrays: what a decision reads of every host, in under 400 bytes each.

`put` gives a host a row, which the caller keeps: no dictionary of ids is held here. A host's facts
are replaced as a whole (`replace`), or the two things that change most by themselves: the
attempts in a slot (`set_live`) and work given (`give`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from coordinator.placement import survival
from coordinator.placement.ids import IdColumn
from coordinator.placement.reject import CODES, RejectReason
from coordinator.placement.slots import BESIDE, FREE, FULL, NOBODY, SlotTable
from coordinator.placement.speeds import SpeedClasses
from coordinator.placement.types import HostFacts, SlotFacts

NODE_ID_DIGITS: Final = 64
GROWTH: Final = 1.25
START_ROWS: Final = 8
KINDS: Final = ("chat", "completion", "embedding", "finetune", "evaluation")
EVERY_KIND: Final = 255
WORD_BITS: Final = 64

# Bits of `flags`.
PROBATION, APART, HELD, PROVEN, DISK_KNOWN = 1, 2, 4, 8, 16

VACANT: Final = 255  # the code of a row without a host

# Columns by name and type; the comment says what they hold.
COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("tie", "u8"),  # a hash of the id: order among equals
    ("classes", "i8"),  # of speed
    ("owner", "i4"),
    ("region", "i2"),
    ("price", "i4"),  # ppm
    ("lent", "i8"),  # bytes
    ("limit", "i8"),  # bytes: of the lent ones those that are free
    ("room", "i8"),  # bytes for a new slot, idle ones evicted
    ("spare", "i8"),  # the same with none evicted
    ("live", "u2"),  # attempts
    ("base", "u1"),  # the code of the first gate that stands without regard to attempts
    ("code", "u1"),  # the same with regard to them
    ("flags", "u1"),
    ("kinds", "u1"),
    ("width", "u1"),
    ("slots_max", "u1"),
    ("first_slot", "i4"),
    ("fetch_rate", "f4"),  # seconds a byte from the network; inf: never
    ("disk_free", "i8"),
    ("disk", "u8"),  # a bit for each of the first 64 models
    ("given", "f8"),  # seconds of work
    ("fed_at", "f8"),
    ("seat_at", "f8"),  # when a seat of a full slot is free; inf: not known
    ("idle_at", "f8"),
)


@final
class Fleet:
    """Hosts as columns. Rows from 0 to `rows`; a removed host's row is used again."""

    tie: NDArray[np.uint64]
    classes: NDArray[np.int64]
    owner: NDArray[np.int32]
    region: NDArray[np.int16]
    price: NDArray[np.int32]
    lent: NDArray[np.int64]
    limit: NDArray[np.int64]
    room: NDArray[np.int64]
    spare: NDArray[np.int64]
    live: NDArray[np.uint16]
    base: NDArray[np.uint8]
    code: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    kinds: NDArray[np.uint8]
    width: NDArray[np.uint8]
    slots_max: NDArray[np.uint8]
    first_slot: NDArray[np.int32]
    fetch_rate: NDArray[np.float32]
    disk_free: NDArray[np.int64]
    disk: NDArray[np.uint64]
    given: NDArray[np.float64]
    fed_at: NDArray[np.float64]
    seat_at: NDArray[np.float64]
    idle_at: NDArray[np.float64]

    def __init__(self, capacity: int = START_ROWS) -> None:
        self.rows = 0
        self.count = 0
        self.speeds = SpeedClasses()
        self.slots = SlotTable()
        self.has_curves = False
        self.has_disks = False
        self.has_twins = False  # slots of the same model on some host
        self.has_room_beside = False  # for a second model on some host
        self.curves: NDArray[np.uint8] = np.zeros((survival.CURVE_BYTES, 0), dtype=np.uint8)
        self._capacity = max(capacity, 1)
        self._ids = IdColumn("node_", NODE_ID_DIGITS, self._capacity)
        # By held row: the model, and how many older jobs of it the host is held for.
        self.held_for: dict[int, tuple[str, int]] = {}
        self._vacant: list[int] = []
        self._owners: dict[str, int] = {}
        self._regions: dict[str, int] = {}
        self._more_disk: dict[int, NDArray[np.uint64]] = {}
        for name, kind in COLUMNS:
            setattr(self, name, np.zeros(self._capacity, dtype=kind))

    # -- changing ----------------------------------------------------------------------------------

    def put(self, host: HostFacts, *, now_seconds: float = 0.0) -> int:
        """Take a host in; the row that it has until it is removed.

        Raises `ValueError` for a curve that is none.
        """
        if self._vacant:
            row = self._vacant.pop()
        else:
            row = self.rows
            if row == self._capacity:
                self._grow()
            self.rows += 1
        self.first_slot[row] = NOBODY
        self.count += 1
        self._write(row, host, now_seconds)
        return row

    def replace(self, row: int, host: HostFacts, *, now_seconds: float = 0.0) -> None:
        """Put new facts in a host's row, its slots included."""
        self._drop_slots(row)
        self._write(row, host, now_seconds)

    def remove(self, row: int) -> None:
        """Forget the host of that row."""
        self._drop_slots(row)
        self.base[row] = self.code[row] = VACANT
        self.lent[row] = self.limit[row] = self.room[row] = self.spare[row] = self.live[row] = 0
        self.count -= 1
        self._vacant.append(row)

    def set_live(self, slot: int, live: int) -> None:
        """Change how many attempts run in a slot (its number in `slots`)."""
        row = int(self.slots.row[slot])
        self.live[row] = int(self.live[row]) + live - int(self.slots.live[slot])
        self.slots.live[slot] = live
        self._refresh(row)

    def make_slot(self, row: int, facts: SlotFacts, evicted: Collection[str] = ()) -> int:
        """Enter a slot on a host, those of the ids taken out before; its number."""
        first, kept = NOBODY, list(self.slots.of(int(self.first_slot[row])))
        for slot in reversed(kept):
            if self.slots.slot_id(slot) in evicted:
                self.slots.remove(slot)
            else:
                self.slots.next[slot] = first
                first = slot
        self.first_slot[row] = self.slots.add(row, facts, first)
        self.live[row] = sum(int(self.slots.live[slot]) for slot in self.slots.of(int(self.first_slot[row])))
        models = [int(self.slots.model[slot]) for slot in self.slots.of(int(self.first_slot[row]))]
        self.has_twins = self.has_twins or len(set(models)) < len(models)
        self._refresh(row)
        return int(self.first_slot[row])

    def give(self, row: int, seconds: float, *, now_seconds: float) -> None:
        """Note that a host was given work of so many seconds."""
        self.given[row] += seconds
        self.fed_at[row] = now_seconds

    def hold(self, row: int, *, is_held: bool) -> None:
        """Keep a host for an older job, or no longer."""
        flags = int(self.flags[row])
        self.flags[row] = flags | HELD if is_held else flags & ~HELD
        self._refresh(row)

    def expect_free(self, row: int, *, seat_at: float, idle_at: float) -> None:
        """Note when a seat of the host will be free and when nothing will run there."""
        self.seat_at[row], self.idle_at[row] = seat_at, idle_at

    # -- reading -----------------------------------------------------------------------------------

    def node_id(self, row: int) -> str:
        """The id of the host in that row."""
        return self._ids.get(row)

    def rows_of(self, node_ids: frozenset[str]) -> list[int]:
        """The rows of those of the ids that are here. Takes a pass over all rows for each."""
        found: list[int] = []
        for node_id in sorted(node_ids):
            same = np.flatnonzero(self.tie[: self.rows] == tie_of(node_id.encode()))
            here = (int(row) for row in same if self.code[row] != VACANT)
            found += [row for row in here if self.node_id(row) == node_id]
        return found

    def owner_number(self, owner_id: str) -> int:
        """The number of an owner, or -1 if none of the hosts is theirs."""
        return self._owners.get(owner_id, -1)

    def region_number(self, region: str) -> int:
        """The number of a region, or -1 if no host lies there."""
        return self._regions.get(region, -1)

    @property
    def region_count(self) -> int:
        """Regions are numbered below this."""
        return len(self._regions)

    def has_model(self, revision: str) -> NDArray[np.bool_]:
        """By row, whether the model is on the host's disk. A host that did not say has all."""
        known = (self.flags[: self.rows] & DISK_KNOWN) != 0
        word, bit = divmod(self.slots.model_number(revision), WORD_BITS)
        column = self._disk_word(word)[: self.rows]
        return ~known | ((column >> np.uint64(bit)) & np.uint64(1)).astype(bool)

    def nbytes(self) -> int:
        """Bytes of all columns, slots included."""
        own = sum(getattr(self, name).nbytes for name, _ in COLUMNS)
        return (
            own
            + self._ids.nbytes()
            + self.curves.nbytes
            + sum(c.nbytes for c in self._more_disk.values())
            + self.slots.nbytes()
        )

    # -- inside ------------------------------------------------------------------------------------

    def _write(self, row: int, host: HostFacts, now: float) -> None:
        self._ids.set(row, host.node_id)
        self.tie[row] = tie_of(host.node_id.encode())
        self.classes[row] = self.speeds.number(
            host.hardware, host.decode_factor, host.prefill_factor, host.disk_bytes_per_second
        )
        self.has_twins = self.has_twins or len({slot.card_revision for slot in host.slots}) < len(host.slots)
        self.owner[row] = self._owners.setdefault(host.owner_id, len(self._owners))
        self.region[row] = self._regions.setdefault(host.region, len(self._regions))
        self.price[row] = host.price_factor_ppm
        self.lent[row] = host.lent_bytes
        self.limit[row] = (
            host.lent_bytes if host.free_bytes is None else min(host.lent_bytes, host.free_bytes)
        )
        self.base[row] = _base_code(host)
        self.flags[row] = _flags(host)
        self.kinds[row] = _kinds(host)
        self.width[row] = min(host.hardware.width, 255)
        self.slots_max[row] = min(host.slots_max, 255)
        self.has_room_beside = self.has_room_beside or host.slots_max > 1
        self._write_disk(row, host)
        self._write_times(row, host, now)
        self.live[row] = host.live
        for slot in reversed(host.slots):
            first = int(self.first_slot[row])
            self.first_slot[row] = self.slots.add(row, slot, first, now_seconds=now)
        self._refresh(row)

    def _write_times(self, row: int, host: HostFacts, now: float) -> None:
        given = host.given_seconds
        if given is None:
            given = host.given_tokens / host.hardware.bandwidth_bytes_per_second
        self.given[row] = given
        self.fed_at[row] = now - host.hungry_seconds
        self.seat_at[row] = np.inf if host.seat_free_seconds is None else now + host.seat_free_seconds
        self.idle_at[row] = np.inf if host.idle_in_seconds is None else now + host.idle_in_seconds
        if host.survival or self.has_curves:
            if not self.has_curves:
                self.has_curves = True
                self.curves = np.zeros((survival.CURVE_BYTES, self._capacity), dtype=np.uint8)
            self.curves[:, row] = survival.packed(host.survival)

    def _write_disk(self, row: int, host: HostFacts) -> None:
        rate = host.network_bytes_per_second
        self.fetch_rate[row] = np.inf if rate is None else 1 / rate
        free = host.disk_free_bytes
        self.disk_free[row] = np.iinfo(np.int64).max if free is None else free
        if host.on_disk is None:
            return
        self.has_disks = True
        words: dict[int, int] = {0: 0, **dict.fromkeys(self._more_disk, 0)}
        for revision in sorted(host.on_disk):
            word, bit = divmod(self.slots.model_number(revision), WORD_BITS)
            words[word] = words.get(word, 0) | 1 << bit
        for word, bits in words.items():
            self._disk_word(word)[row] = bits

    def _disk_word(self, word: int) -> NDArray[np.uint64]:
        if word == 0:
            return self.disk
        if word not in self._more_disk:
            self._more_disk[word] = np.zeros(self._capacity, dtype=np.uint64)
        return self._more_disk[word]

    def _refresh(self, row: int) -> None:
        """What follows from attempts and slots: the code of the gate, and room for another slot."""
        live, flags = int(self.live[row]), int(self.flags[row])
        code = int(self.base[row])
        if not code and flags & PROBATION and live:
            code = CODES["on_probation"]
        if not code and flags & APART:
            code = CODES["kept_apart"]
        if not code and flags & HELD:
            code = CODES["held_for_older"]
        self.code[row] = code
        # One model is at work at a time: two would take turns with the same bandwidth.
        slots, here = self.slots, list(self.slots.of(int(self.first_slot[row])))
        for slot in here:
            is_full = slots.live[slot] >= slots.width[slot]
            slots.state[slot] = BESIDE if live > slots.live[slot] else FULL if is_full else FREE
        limit = 0 if live else max(int(self.limit[row]), 0)
        is_more = len(here) < self.slots_max[row]
        self.room[row] = limit
        self.spare[row] = max(limit - sum(int(slots.bytes[slot]) for slot in here), 0) if is_more else 0

    def _drop_slots(self, row: int) -> None:
        for slot in self.slots.of(int(self.first_slot[row])):
            self.slots.remove(slot)
        self.first_slot[row] = NOBODY
        self.live[row] = 0

    def _grow(self) -> None:
        self._capacity = int(self._capacity * GROWTH) + START_ROWS
        self._ids.grow(self._capacity)
        for name, kind in COLUMNS:
            setattr(self, name, _longer(getattr(self, name), self._capacity, kind))
        for word, column in self._more_disk.items():
            self._more_disk[word] = _longer(column, self._capacity, "u8")
        if self.has_curves:
            wider = np.zeros((survival.CURVE_BYTES, self._capacity), dtype=np.uint8)
            wider[:, : self.curves.shape[1]] = self.curves
            self.curves = wider


def tie_of(key: bytes) -> int:
    """A hash of an id of 64 bits, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def _longer(column: NDArray[Any], capacity: int, kind: str) -> NDArray[Any]:
    found = np.zeros(capacity, dtype=kind)
    found[: len(column)] = column
    return found


def _base_code(host: HostFacts) -> int:
    reason: RejectReason | None = None
    if not host.is_online:
        reason = "offline"
    elif host.is_suspect:
        reason = "suspect"
    elif host.mode == "draining":
        reason = "draining"
    elif host.mode == "away":
        reason = "owner_present"
    elif host.standing == "paused":
        reason = "paused_after_faults"
    return 0 if reason is None else CODES[reason]


def _flags(host: HostFacts) -> int:
    return (
        (PROBATION if host.standing == "on_probation" else 0)
        | (APART if host.is_kept_apart else 0)
        | (HELD if host.is_held_for_older else 0)
        | (PROVEN if host.is_proven else 0)
        | (DISK_KNOWN if host.on_disk is not None else 0)
    )


def _kinds(host: HostFacts) -> int:
    if host.kinds is None:
        return EVERY_KIND
    return sum(1 << KINDS.index(kind) for kind in host.kinds if kind in KINDS)
