"""Which light each Mac gets, and which figures may be told beside it. Pure: no clock, no I/O.

The rules, each held by a property test:
- There are exactly as many lights as Macs seen, whatever is hidden.
- A place with a number has at least `OWNERS_MIN` distinct owners. It appears at `OWNERS_TO_APPEAR`
  and goes below `OWNERS_MIN`, so that one owner's coming and going does not make it blink.
- Areas that are too small fold into the larger cell within their country, then into the country.
  What remains of a country is one light there, "at least one", however many there are; the rest
  are stars, lights without a place. That light stays for `ALONE_KEPT_US` after its Mac was last
  seen, so that it does not tell whether somebody is at home.
- Places change at full hours only, all together. A Mac without a place is counted at once.
- Figures about hardware are told for groups that do not overlap and their sums, and are renewed
  only when a group has changed by at least `OWNERS_MIN` owners, so that no difference of two of
  them is one Mac's. In between they follow the number of Macs by the group's average.
- Whoever withdraws a place has none at the next full hour.

What no rule here can stop: somebody who opens several accounts counts as several owners.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from web_world.cells import folded
from web_world.source import MacFacts

OWNERS_MIN: Final = 5
OWNERS_TO_APPEAR: Final = OWNERS_MIN + 2
OWNERS_FOR_BUSY: Final = 10
HOUR_US: Final = 3_600_000_000
SEEN_US: Final = 24 * HOUR_US
ALONE_KEPT_US: Final = 7 * 24 * HOUR_US

SpotKind = Literal["cell", "country", "alone", "star"]


class Spot(NamedTuple):
    """Where lights are drawn: a cell of a country, a country, one light of it, or the sky."""

    kind: SpotKind
    country: str = ""
    cell: str = ""


STAR: Final = Spot("star")
ULTRA: Final = Spot("star", "ultra seats")
PODS: Final = Spot("star", "pods")
"""Groups for figures only: all Macs of a rare kind, wherever they are."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums over a group of Macs. `ultra_seats` and `pods` are 0 where too few owners have one."""

    macs: int
    measured: int
    attested: int
    memory_bytes: int
    bandwidth_bytes_per_second: int
    ultra_seats: int
    pods: int
    pod_macs: int


@dataclass(frozen=True)
class Sheet:
    """A group's figures as last renewed, and whose they are. Kept while they are not told, so that
    they come back as they were."""

    owner_of: Mapping[str, str]
    figures: Figures
    is_told: bool
    was_told: bool


@dataclass(frozen=True)
class Roster:
    """One hour's lights: each Mac that counts as seen, and where it is drawn."""

    hour: int
    spots: Mapping[str, Spot]
    owner_of: Mapping[str, str]
    shown: frozenset[Spot]
    is_open: bool = True
    """No light has ever had a place, so exact figures say nothing of any place."""
    sizes: Mapping[Spot, int] = field(default_factory=dict[Spot, int])
    sheets: Mapping[Spot, Sheet] = field(default_factory=dict[Spot, Sheet])

    def lights(self) -> dict[Spot, list[str]]:
        """The Macs of each spot."""
        found: dict[Spot, list[str]] = defaultdict(list)
        for mac, spot in self.spots.items():
            found[spot].append(mac)
        return found

    def owners(self, macs: Iterable[str]) -> int:
        """How many distinct owners these Macs have."""
        return len({self.owner_of[mac] for mac in macs})


def advance(before: Roster | None, macs: Iterable[MacFacts], now_us: int) -> Roster:
    """The roster for this moment: a new one at a new hour, else the old one with new stars."""
    hour = now_us // HOUR_US
    if before is not None and before.hour >= hour:
        return _with_new_stars(before, macs, now_us)
    known = {mac.mac: mac for mac in macs}
    present = [mac for mac in known.values() if _age_us(mac, now_us) < SEEN_US]
    lingering = [
        mac
        for mac in known.values()
        if mac.place.kind != "none" and SEEN_US <= _age_us(mac, now_us) < ALONE_KEPT_US
    ]
    was_shown = before.shown if before is not None else frozenset[Spot]()
    spots = _place(present, lingering, was_shown)
    roster = Roster(
        hour=hour,
        spots=spots,
        owner_of={mac: known[mac].owner for mac in spots},
        shown=frozenset(spot for spot in spots.values() if spot.kind in {"cell", "country"}),
    )
    return _with_sheets(roster, before, known)


def light_of(roster: Roster, mac: str) -> Spot | None:
    """Where the owner's own Mac is drawn; None if it does not count as seen. For its owner only."""
    return roster.spots.get(mac)


def has_places(roster: Roster) -> bool:
    """Whether any light stands at a place."""
    return any(spot != STAR for spot in roster.spots.values())


def tells_figures(roster: Roster) -> bool:
    """Whether the network's work may be told: with fewer owners than `OWNERS_MIN` only while no
    light has had a place, since the two together would say what goes on there."""
    return roster.is_open or roster.owners(roster.spots) >= OWNERS_MIN


def _age_us(mac: MacFacts, now_us: int) -> int:
    return max(0, now_us - mac.seen_us)


def _with_new_stars(before: Roster, macs: Iterable[MacFacts], now_us: int) -> Roster:
    known = {mac.mac: mac for mac in macs}
    added = {
        mac.mac: mac
        for mac in known.values()
        if mac.mac not in before.spots and mac.place.kind == "none" and _age_us(mac, now_us) < SEEN_US
    }
    if not added:
        return before
    roster = replace(
        before,
        spots={**before.spots, **dict.fromkeys(added, STAR)},
        owner_of={**before.owner_of, **{mac: facts.owner for mac, facts in added.items()}},
    )
    is_whole = all(mac in known for mac in roster.spots)
    return _with_sheets(roster, before, known) if is_whole and roster.is_open else roster


# -- places --------------------------------------------------------------------------------------


def _place(present: list[MacFacts], lingering: list[MacFacts], shown: frozenset[Spot]) -> dict[str, Spot]:
    spots: dict[str, Spot] = dict.fromkeys((mac.mac for mac in present), STAR)
    pools: dict[str, list[MacFacts]] = defaultdict(list)
    for mac in _fold(present, shown, spots):
        pools[mac.place.country].append(mac)
    alone: dict[str, list[MacFacts]] = {}
    for country, pool in pools.items():
        spot = Spot("country", country)
        if _is_enough(pool, spot, shown):
            spots.update((mac.mac, spot) for mac in pool)
        else:
            alone[country] = pool
    taken = set(spots.values())
    for mac in lingering:
        if not any(spot in taken for spot in _candidates(mac)):
            alone.setdefault(mac.place.country, []).append(mac)
    for country, pool in alone.items():
        # Those seen today first: a light is one of the Macs that count anyway, if there is one.
        chosen = min(pool, key=lambda mac: (mac.mac not in spots, mac.mac))
        spots[chosen.mac] = Spot("alone", country)
    return spots


def _candidates(mac: MacFacts) -> tuple[Spot, ...]:
    """The spots with a number where this Mac could be, finest first."""
    country = Spot("country", mac.place.country)
    if mac.place.kind != "area":
        return (country,)
    cell = mac.place.cell
    return (Spot("cell", mac.place.country, cell), Spot("cell", mac.place.country, folded(cell)), country)


def _fold(present: list[MacFacts], shown: frozenset[Spot], spots: dict[str, Spot]) -> list[MacFacts]:
    """Place what can be placed in cells; return the Macs that are left for their country."""
    left = [mac for mac in present if mac.place.kind == "area"]
    for level in (0, 1):
        groups: dict[Spot, list[MacFacts]] = defaultdict(list)
        for mac in left:
            groups[_candidates(mac)[level]].append(mac)
        left = list[MacFacts]()
        for spot, group in groups.items():
            if _is_enough(group, spot, shown):
                spots.update((mac.mac, spot) for mac in group)
            else:
                left += group
    return left + [mac for mac in present if mac.place.kind == "country"]


def _is_enough(group: list[MacFacts], spot: Spot, shown: frozenset[Spot]) -> bool:
    return len({mac.owner for mac in group}) >= (OWNERS_MIN if spot in shown else OWNERS_TO_APPEAR)


# -- figures -------------------------------------------------------------------------------------


def figures_at(roster: Roster, spot: Spot) -> Figures | None:
    """A numbered spot's figures, brought to the number of Macs it has now; None if withheld."""
    return _scaled(roster.sheets.get(_group(spot)), roster.sizes.get(_group(spot), 0))


def world_figures(roster: Roster) -> Figures | None:
    """The whole network's figures: the sum of what may be told of each group; None if nothing may.

    Groups whose figures are withheld are left out, so `macs` may be less than the lights.
    """
    groups = [group for group in roster.sizes if group not in {ULTRA, PODS}]
    told = [found for group in groups if (found := figures_at(roster, group)) is not None]
    if not told:
        return None
    ultra, pods = (_scaled(roster.sheets.get(group), roster.sizes.get(group, 0)) for group in (ULTRA, PODS))
    return Figures(
        macs=sum(part.macs for part in told),
        measured=sum(part.measured for part in told),
        attested=sum(part.attested for part in told),
        memory_bytes=sum(part.memory_bytes for part in told),
        bandwidth_bytes_per_second=sum(part.bandwidth_bytes_per_second for part in told),
        ultra_seats=ultra.ultra_seats if ultra is not None else 0,
        pods=pods.pods if pods is not None else 0,
        pod_macs=pods.pod_macs if pods is not None else 0,
    )


def _group(spot: Spot) -> Spot:
    """The group in which a spot's Macs are summed: single lights and stars make one."""
    return STAR if spot.kind == "alone" else spot


def _with_sheets(roster: Roster, before: Roster | None, known: Mapping[str, MacFacts]) -> Roster:
    groups: dict[Spot, list[MacFacts]] = defaultdict(list)
    for mac, spot in roster.spots.items():
        groups[_group(spot)].append(known[mac])
        if known[mac].is_ultra_seat:
            groups[ULTRA].append(known[mac])
        if known[mac].pod:
            groups[PODS].append(known[mac])
    older: Mapping[Spot, Sheet] = before.sheets if before is not None else {}
    resting = {group: replace(sheet, is_told=False) for group, sheet in older.items() if group not in groups}
    is_open = not has_places(roster) and (before is None or before.is_open)
    owners_min = 0 if is_open else OWNERS_MIN
    sheets = {group: _sheet(macs, older.get(group), owners_min) for group, macs in groups.items()}
    return replace(
        roster,
        is_open=is_open,
        sizes={group: len(macs) for group, macs in groups.items()},
        sheets={**resting, **sheets},
    )


def _sheet(macs: list[MacFacts], older: Sheet | None, owners_min: int) -> Sheet:
    owner_of = {mac.mac: mac.owner for mac in macs}
    figures = _figures(macs, owners_min)
    is_enough = len(set(owner_of.values())) >= owners_min
    if older is None or not older.was_told:
        return Sheet(owner_of, figures, is_enough, was_told=is_enough)
    changed = older.owner_of.items() ^ owner_of.items()
    if is_enough and len({owner for _, owner in changed}) >= owners_min:
        return Sheet(owner_of, figures, is_told=True, was_told=True)
    # Marks that fewer than five owners share now go at once, whatever the sheet says.
    kept = replace(
        older.figures,
        ultra_seats=older.figures.ultra_seats if figures.ultra_seats else 0,
        pods=older.figures.pods if figures.pods else 0,
        pod_macs=older.figures.pod_macs if figures.pods else 0,
    )
    is_told = is_enough and len(set(older.owner_of.values())) >= owners_min
    return Sheet(older.owner_of, kept, is_told, was_told=True)


def _scaled(sheet: Sheet | None, macs: int) -> Figures | None:
    if sheet is None or not sheet.is_told:
        return None
    old = sheet.figures
    return Figures(
        macs=macs,
        measured=old.measured * macs // old.macs,
        attested=old.attested * macs // old.macs,
        memory_bytes=old.memory_bytes * macs // old.macs,
        bandwidth_bytes_per_second=old.bandwidth_bytes_per_second * macs // old.macs,
        ultra_seats=min(old.ultra_seats, macs),
        pods=min(old.pods, macs // 2),
        pod_macs=min(old.pod_macs, macs),
    )


def _figures(macs: list[MacFacts], owners_min: int) -> Figures:
    ultra = [mac for mac in macs if mac.is_ultra_seat]
    in_pods = [mac for mac in macs if mac.pod]
    tells_ultra = len({mac.owner for mac in ultra}) >= owners_min
    tells_pods = len({mac.owner for mac in in_pods}) >= owners_min
    return Figures(
        macs=len(macs),
        measured=sum(mac.is_measured for mac in macs),
        attested=sum(mac.is_attested for mac in macs),
        memory_bytes=sum(mac.memory_bytes for mac in macs),
        bandwidth_bytes_per_second=sum(mac.bandwidth_bytes_per_second for mac in macs),
        ultra_seats=len(ultra) if tells_ultra else 0,
        pods=len({mac.pod for mac in in_pods}) if tells_pods else 0,
        pod_macs=len(in_pods) if tells_pods else 0,
    )
