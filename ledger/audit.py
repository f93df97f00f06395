"""Replay a journal and find the first thing in it that the rules do not allow. Pure.

Written apart from `ledger.rules` on purpose: it knows only what an entry must look like from
outside (its command, its postings, what was before), so that a fault there is a finding here.
Memory grows with accounts and with holds that are open at once, not with entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger.limits import MAX_AMOUNT_UMLX, MAX_BALANCE_UMLX

ISSUANCE: Final = "issuance"
POSTED: Final = "posted"
REASONS: Final = frozenset(
    {
        "unknown_account",
        "insufficient_funds",
        "balance_limit",
        "unknown_hold",
        "hold_not_open",
        "exceeds_hold",
        "already_expired",
        "not_yet_expired",
        "not_captured",
        "exceeds_captured",
    }
)

Legs = list[tuple[str, int]]


class Finding(Exception):
    """What an entry breaks: `rule` is one stable word, the text says it with numbers."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(detail)
        self.rule = rule
        self.detail = detail


@dataclass(frozen=True)
class OpenHold:
    """A reservation that has not ended yet."""

    account_id: str
    amount_umlx: int
    expires_us: int


@dataclass(frozen=True)
class Settled:
    """Money that a hold let go (`captured`) or got back (`refunded`), for a check by hold."""

    hold_id: str
    is_refund: bool
    amount_umlx: int
    payer: str


class Auditor:
    """The state of the books after the entries seen so far."""

    def __init__(self) -> None:
        self.posted: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.open_holds: dict[str, OpenHold] = {}
        self._recorded_us = 0

    def see(self, entry: list[Any], body: Mapping[str, Any]) -> Settled | None:
        """Check the next entry and carry it out; tells what it settled of a hold.

        `entry` is the array that the leaf covers, as JSON gives it. Raises Finding, or TypeError,
        KeyError, ValueError for an entry that is not shaped like one; the state is then undefined.
        """
        _, identity, kind, reference, recorded_us, _, result, needed, available, legs = entry
        if (body["id"], body["kind"], body["reference"]) != (identity, kind, reference):
            raise Finding("body_is_of_the_entry", "the command is another than the entry says")
        if type(recorded_us) is not int or recorded_us < self._recorded_us:
            raise Finding("time_goes_on", f"recorded at {recorded_us}, before {self._recorded_us}")
        self._recorded_us = recorded_us
        if result != POSTED:
            if result not in REASONS or legs:
                raise Finding("refused_changes_nothing", f"refused as {result} with {len(legs)} postings")
            return None
        if needed is not None or available is not None:
            raise Finding("posted_has_no_reason", "it was posted and says what was lacking")
        found = [(name, amount) for name, amount in legs]
        _check_shape(found)
        settled = self._carry_out(kind, identity, body, found, recorded_us)
        self._post(found)
        return settled

    def _carry_out(
        self, kind: str, identity: str, body: Mapping[str, Any], legs: Legs, recorded_us: int
    ) -> Settled | None:
        match kind:
            case "mint":
                _expect(legs, [(ISSUANCE, -_amount(body)), (body["account_id"], _amount(body))])
            case "burn":
                _expect(legs, [(body["account_id"], -_amount(body)), (ISSUANCE, _amount(body))])
            case "transfer":
                _expect(legs, [(body["source"], -_amount(body)), (body["target"], _amount(body))])
            case "adjust":
                _expect(legs, [(name, amount) for name, amount in body["legs"]])
                if len({name.casefold() for name in body["operators"]}) < 2 or not body["reason"]:
                    raise Finding("two_people_adjust", "an adjustment needs two people and a reason")
            case "record":
                _expect(legs, [])
            case "open_hold":
                _expect(legs, [])
                self._open(identity, OpenHold(body["account_id"], _amount(body), body["expires_us"]))
            case "void_hold" | "expire_hold":
                _expect(legs, [])
                hold = self._end(body["hold_id"])
                if kind == "expire_hold" and recorded_us < hold.expires_us:
                    raise Finding("expires_at_its_time", f"expired at {recorded_us}, due {hold.expires_us}")
            case "capture":
                return self._capture(body, legs)
            case "refund":
                return _refund(body, legs)
            case _:
                raise Finding("kind_is_known", f"there is no kind {kind!r}")
        return None

    def _open(self, identity: str, hold: OpenHold) -> None:
        if identity in self.open_holds:
            raise Finding("hold_opens_once", "a hold with this id is open")
        self.open_holds[identity] = hold
        self.held[hold.account_id] = self.held.get(hold.account_id, 0) + hold.amount_umlx
        self._check_balance(hold.account_id)

    def _end(self, hold_id: str) -> OpenHold:
        hold = self.open_holds.pop(hold_id, None)
        if hold is None:
            raise Finding("hold_ends_once", f"hold {hold_id} is not open")
        self.held[hold.account_id] -= hold.amount_umlx
        return hold

    def _capture(self, body: Mapping[str, Any], legs: Legs) -> Settled:
        hold = self._end(body["hold_id"])
        pays = [(name, amount) for name, amount in body["pays"]]
        if any(type(amount) is not int or amount < 0 for _, amount in pays):
            raise Finding("amounts_are_whole", "a payment is not a whole amount")
        total = sum(amount for _, amount in pays)
        if total > hold.amount_umlx:
            raise Finding("capture_within_hold", f"captured {total} of {hold.amount_umlx}")
        _expect(legs, [(hold.account_id, -total), *pays])
        return Settled(body["hold_id"], is_refund=False, amount_umlx=total, payer=hold.account_id)

    def _post(self, legs: Legs) -> None:
        for name, amount in legs:
            self.posted[name] = self.posted.get(name, 0) + amount
        for name, _ in legs:
            self._check_balance(name)

    def _check_balance(self, name: str) -> None:
        posted, held = self.posted.get(name, 0), self.held.get(name, 0)
        if name != ISSUANCE and posted - held < 0:
            raise Finding("above_floor", f"{name} has {posted} and {held} of it held")
        if abs(posted) > MAX_BALANCE_UMLX:
            raise Finding("balance_within_limits", f"{name} has {posted}")


def _refund(body: Mapping[str, Any], legs: Legs) -> Settled:
    source, amount = body["source"], _amount(body)
    # To whom it goes back is known from the capture alone; that is checked by hold.
    payer = next((name for name, _ in legs if name != source), source)
    _expect(legs, [(source, -amount), (payer, amount)])
    return Settled(body["hold_id"], is_refund=True, amount_umlx=amount, payer=payer)


def _amount(body: Mapping[str, Any]) -> int:
    amount = body["amount_umlx"]
    if type(amount) is not int or not 1 <= amount <= MAX_AMOUNT_UMLX:
        raise Finding("amounts_are_whole", f"{amount!r} is not a whole amount of uMLX")
    return amount


def _check_shape(legs: Legs) -> None:
    if any(type(amount) is not int or amount == 0 for _, amount in legs):
        raise Finding("amounts_are_whole", "a posting is not a whole amount, or is 0")
    if sum(amount for _, amount in legs) != 0:
        raise Finding("entry_sums_to_zero", f"the postings sum to {sum(amount for _, amount in legs)}")
    if any(legs[i][0] >= legs[i + 1][0] for i in range(len(legs) - 1)):
        raise Finding("one_posting_an_account", "accounts are not in order, or one stands twice")


def _expect(legs: Legs, wanted: Legs) -> None:
    totals: dict[str, int] = {}
    for name, amount in wanted:
        totals[name] = totals.get(name, 0) + amount
    if legs != sorted((name, total) for name, total in totals.items() if total):
        raise Finding("postings_are_of_the_command", "the postings are not what the command asks for")
