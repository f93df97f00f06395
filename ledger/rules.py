"""The ledger's rules: what a command does to accounts and holds, or why not. Pure, no database.

`Sheet` is the part of the books that a batch of commands touches. `decide` reads it, `Sheet.post`
changes it; both are called in turn for each command, so a batch behaves as its commands one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from ledger.commands import (
    ISSUANCE,
    Adjust,
    Burn,
    Capture,
    Command,
    ExpireHold,
    Mint,
    OpenHold,
    Reason,
    Record,
    Refund,
    Transfer,
    VoidHold,
)
from ledger.limits import MAX_BALANCE_UMLX

HoldState = Literal["open", "posted", "voided", "expired"]


@dataclass
class Account:
    """One account's balances in uMLX; `floor_umlx` None means that it may go below zero."""

    floor_umlx: int | None
    posted_umlx: int
    held_umlx: int

    @property
    def available_umlx(self) -> int:
        """What can be spent or reserved."""
        return self.posted_umlx - self.held_umlx


@dataclass
class Hold:
    """One reservation."""

    account_id: str
    amount_umlx: int
    state: HoldState
    expires_us: int
    captured_umlx: int = 0
    refunded_umlx: int = 0


@dataclass(frozen=True)
class Refusal:
    """Why a command changes nothing."""

    reason: Reason
    needed_umlx: int | None = None
    available_umlx: int | None = None


@dataclass(frozen=True)
class Effect:
    """What a command changes.

    `legs` sum to zero, sorted by account, one an account, none zero. `held_umlx` is added to what
    `held_account` has reserved. `hold` is the new value of the hold `hold_id`.
    """

    legs: tuple[tuple[str, int], ...] = ()
    held_account: str | None = None
    held_umlx: int = 0
    hold_id: UUID | None = None
    hold: Hold | None = None


@dataclass
class Sheet:
    """The accounts and holds that a batch of commands names."""

    accounts: dict[str, Account]
    holds: dict[UUID, Hold] = field(default_factory=dict[UUID, Hold])

    def post(self, effect: Effect) -> None:
        """Carry out what `decide` returned."""
        for account_id, amount_umlx in effect.legs:
            self.accounts[account_id].posted_umlx += amount_umlx
        if effect.held_account is not None:
            self.accounts[effect.held_account].held_umlx += effect.held_umlx
        if effect.hold_id is not None and effect.hold is not None:
            self.holds[effect.hold_id] = effect.hold


def decide(sheet: Sheet, command: Command, now_us: int) -> Effect | Refusal:
    """What `command` does to `sheet` at `now_us`, or why it is refused. Changes nothing."""
    effect = _effect(sheet, command, now_us)
    if isinstance(effect, Refusal):
        return effect
    return _refusal_of_balances(sheet, effect) or effect


def _effect(sheet: Sheet, command: Command, now_us: int) -> Effect | Refusal:
    match command:
        case Mint():
            return Effect(_net([(ISSUANCE, -command.amount_umlx), (command.account_id, command.amount_umlx)]))
        case Burn():
            return Effect(_net([(command.account_id, -command.amount_umlx), (ISSUANCE, command.amount_umlx)]))
        case Transfer():
            return Effect(
                _net([(command.source, -command.amount_umlx), (command.target, command.amount_umlx)])
            )
        case OpenHold():
            return _open(command, now_us)
        case Capture():
            return _capture(sheet.holds.get(command.hold_id), command)
        case VoidHold():
            return _release(sheet.holds.get(command.hold_id), command.hold_id, "voided")
        case ExpireHold():
            hold = sheet.holds.get(command.hold_id)
            if hold is not None and hold.state == "open" and now_us < hold.expires_us:
                return Refusal("not_yet_expired")
            return _release(hold, command.hold_id, "expired")
        case Refund():
            return _refund(sheet.holds.get(command.hold_id), command)
        case Adjust():
            return Effect(_net(command.legs))
        case Record():
            return Effect()


def _net(legs: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    totals: dict[str, int] = {}
    for account_id, amount_umlx in legs:
        totals[account_id] = totals.get(account_id, 0) + amount_umlx
    return tuple(sorted((account_id, total) for account_id, total in totals.items() if total != 0))


def _open(command: OpenHold, now_us: int) -> Effect | Refusal:
    if command.expires_us <= now_us:
        return Refusal("already_expired")
    hold = Hold(command.account_id, command.amount_umlx, "open", command.expires_us)
    return Effect(
        held_account=command.account_id, held_umlx=command.amount_umlx, hold_id=command.id, hold=hold
    )


def _capture(hold: Hold | None, command: Capture) -> Effect | Refusal:
    if hold is None:
        return Refusal("unknown_hold")
    if hold.state != "open":
        return Refusal("hold_not_open")
    if command.total_umlx > hold.amount_umlx:
        return Refusal("exceeds_hold", command.total_umlx, hold.amount_umlx)
    return Effect(
        legs=_net([(hold.account_id, -command.total_umlx), *command.pays]),
        held_account=hold.account_id,
        held_umlx=-hold.amount_umlx,
        hold_id=command.hold_id,
        hold=Hold(hold.account_id, hold.amount_umlx, "posted", hold.expires_us, command.total_umlx),
    )


def _release(hold: Hold | None, hold_id: UUID, state: HoldState) -> Effect | Refusal:
    if hold is None:
        return Refusal("unknown_hold")
    if hold.state != "open":
        return Refusal("hold_not_open")
    return Effect(
        held_account=hold.account_id,
        held_umlx=-hold.amount_umlx,
        hold_id=hold_id,
        hold=Hold(hold.account_id, hold.amount_umlx, state, hold.expires_us),
    )


def _refund(hold: Hold | None, command: Refund) -> Effect | Refusal:
    if hold is None:
        return Refusal("unknown_hold")
    if hold.state != "posted":
        return Refusal("not_captured")
    refundable_umlx = hold.captured_umlx - hold.refunded_umlx
    if command.amount_umlx > refundable_umlx:
        return Refusal("exceeds_captured", command.amount_umlx, refundable_umlx)
    refunded_umlx = hold.refunded_umlx + command.amount_umlx
    return Effect(
        legs=_net([(command.source, -command.amount_umlx), (hold.account_id, command.amount_umlx)]),
        hold_id=command.hold_id,
        hold=Hold(
            hold.account_id, hold.amount_umlx, hold.state, hold.expires_us, hold.captured_umlx, refunded_umlx
        ),
    )


def _refusal_of_balances(sheet: Sheet, effect: Effect) -> Refusal | None:
    changes = {account_id: (amount_umlx, 0) for account_id, amount_umlx in effect.legs}
    if effect.held_account is not None:
        changes[effect.held_account] = (changes.get(effect.held_account, (0, 0))[0], effect.held_umlx)
    if any(account_id not in sheet.accounts for account_id in changes):
        return Refusal("unknown_account")
    for account_id, (posted_umlx, held_umlx) in sorted(changes.items()):
        account = sheet.accounts[account_id]
        needed_umlx = held_umlx - posted_umlx
        if account.floor_umlx is not None and needed_umlx > account.available_umlx - account.floor_umlx:
            return Refusal("insufficient_funds", needed_umlx, account.available_umlx - account.floor_umlx)
        if max(abs(account.posted_umlx + posted_umlx), account.held_umlx + held_umlx) > MAX_BALANCE_UMLX:
            return Refusal("balance_limit")
    return None
