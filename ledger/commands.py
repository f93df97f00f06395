"""What the ledger can be asked to do, and what it answers. Pure.

A command is a frozen value with an id that its caller made and stored before sending it. The same
command sent again gets the first answer; the same id with other content gets `Conflict`.

Amounts are integers of uMLX, times UTC microseconds. An account id is a word, or a kind and a
name with a colon between: `issuance`, `fee`, `treasury`, `pool:availability`, `user:acct_...`,
`escrow:acct_...`. A reference is any short word of the caller (a job's id); the ledger never
reads it. Never put anything private in a reference: it is hashed into the public chain.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final, Literal
from uuid import UUID, uuid5

from ledger.limits import MAX_AMOUNT_UMLX

ISSUANCE: Final = "issuance"
FEE: Final = "fee"
TREASURY: Final = "treasury"

ACCOUNT_PATTERN: Final = re.compile(r"^(issuance|fee|treasury|(pool|user|escrow):[A-Za-z0-9_.-]{1,100})$")
REFERENCE_PATTERN: Final = re.compile(r"^[\x20-\x7e]{0,200}$")
SUBJECT_PATTERN: Final = re.compile(r"^[a-z][a-z0-9_]{0,31}:[A-Za-z0-9_.@:/+-]{1,160}$")
SHA256_PATTERN: Final = re.compile(r"^[0-9a-f]{64}$")
OPERATOR_PATTERN: Final = re.compile(r"^[\x21-\x7e]([\x20-\x7e]{0,98}[\x21-\x7e])?$")
MAX_PAYS: Final = 256
MAX_TIME_US: Final = 2**62

# The namespace of derived ids; changing it would let old jobs be paid again.
_SETTLEMENT_NAMESPACE: Final = UUID("6f0a3c1e-6a39-5d0e-9c56-0d4a7f8b21c3")


def settlement_id(job_id: str, fence: int, purpose: str) -> UUID:
    """The id of a job's ledger command (`hold`, `capture`, `void`, ...): UUIDv5 of all three.

    Derived, not drawn: a settlement tried twice is the same command, so nothing is paid twice.
    """
    return uuid5(_SETTLEMENT_NAMESPACE, json.dumps([job_id, fence, purpose]))


def account_kind(account_id: str) -> str:
    """The kind of an account, from its id. Raises ValueError if the id is malformed."""
    if not ACCOUNT_PATTERN.fullmatch(account_id):
        raise ValueError(
            f"account id {account_id!r} is malformed; write e.g. user:acct_1 or pool:availability"
        )
    return account_id.partition(":")[0]


# Made once: `json.dumps` would make one for each call.
_CANONICAL: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


def canonical_json(value: object) -> str:
    """JSON with sorted keys, no spaces, ASCII only: one text for one value."""
    return _CANONICAL.encode(value)


def _check_amount(name: str, amount_umlx: int, least: int = 1) -> None:
    # bool is an int to Python, but True is no amount.
    if type(amount_umlx) is not int or not least <= amount_umlx <= MAX_AMOUNT_UMLX:
        raise ValueError(f"{name} must be an integer of uMLX from {least} to {MAX_AMOUNT_UMLX}")


def _check_party(name: str, account_id: str) -> None:
    if account_kind(account_id) == ISSUANCE:
        raise ValueError(f"{name} must not be issuance; only Mint and Burn touch it")


@dataclass(frozen=True, kw_only=True)
class _Command:
    kind: ClassVar[str]
    id: UUID
    reference: str = ""

    def __post_init__(self) -> None:
        if not REFERENCE_PATTERN.fullmatch(self.reference):
            raise ValueError("reference must be at most 200 printable ASCII characters")
        self._check()

    def _check(self) -> None:
        raise NotImplementedError

    def _fields(self) -> dict[str, object]:
        raise NotImplementedError

    @cached_property
    def body(self) -> str:
        """Canonical JSON of the whole command; what the journal stores and the digest covers."""
        return canonical_json(
            {"kind": self.kind, "id": str(self.id), "reference": self.reference, **self._fields()}
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the body, 32 bytes."""
        return hashlib.sha256(self.body.encode("ascii")).digest()


@dataclass(frozen=True, kw_only=True)
class Mint(_Command):
    """Make money: from issuance to `account_id`."""

    kind = "mint"
    account_id: str
    amount_umlx: int

    def _check(self) -> None:
        _check_party("account_id", self.account_id)
        _check_amount("amount_umlx", self.amount_umlx)

    def _fields(self) -> dict[str, object]:
        return {"account_id": self.account_id, "amount_umlx": self.amount_umlx}


@dataclass(frozen=True, kw_only=True)
class Burn(_Command):
    """Unmake money: from `account_id` to issuance."""

    kind = "burn"
    account_id: str
    amount_umlx: int

    def _check(self) -> None:
        _check_party("account_id", self.account_id)
        _check_amount("amount_umlx", self.amount_umlx)

    def _fields(self) -> dict[str, object]:
        return {"account_id": self.account_id, "amount_umlx": self.amount_umlx}


@dataclass(frozen=True, kw_only=True)
class Transfer(_Command):
    """Move money from `source` to `target`."""

    kind = "transfer"
    source: str
    target: str
    amount_umlx: int

    def _check(self) -> None:
        _check_party("source", self.source)
        _check_party("target", self.target)
        if self.source == self.target:
            raise ValueError("source and target must differ")
        _check_amount("amount_umlx", self.amount_umlx)

    def _fields(self) -> dict[str, object]:
        return {"source": self.source, "target": self.target, "amount_umlx": self.amount_umlx}


@dataclass(frozen=True, kw_only=True)
class OpenHold(_Command):
    """Reserve money on `account_id`; the hold's id is the command's id.

    After `expires_us` a sweeper *may* expire it; until it does, the hold can still be captured:
    its state decides, not the clock.
    """

    kind = "open_hold"
    account_id: str
    amount_umlx: int
    expires_us: int

    def _check(self) -> None:
        _check_party("account_id", self.account_id)
        _check_amount("amount_umlx", self.amount_umlx)
        if type(self.expires_us) is not int or not 0 <= self.expires_us <= MAX_TIME_US:
            raise ValueError("expires_us must be UTC microseconds since 1970")

    def _fields(self) -> dict[str, object]:
        return {"account_id": self.account_id, "amount_umlx": self.amount_umlx, "expires_us": self.expires_us}


@dataclass(frozen=True, kw_only=True)
class Capture(_Command):
    """Pay `pays` (account, amount) out of a hold and release the rest, in one entry.

    Amounts may be 0 and accounts may repeat, also the payer's own: legs are netted per account.
    """

    kind = "capture"
    hold_id: UUID
    pays: tuple[tuple[str, int], ...]

    @property
    def total_umlx(self) -> int:
        """All that is paid out of the hold."""
        return sum(amount_umlx for _, amount_umlx in self.pays)

    def _check(self) -> None:
        if len(self.pays) > MAX_PAYS:
            raise ValueError(f"pays must have at most {MAX_PAYS} items")
        for account_id, amount_umlx in self.pays:
            _check_party("pays", account_id)
            _check_amount("pays", amount_umlx, least=0)

    def _fields(self) -> dict[str, object]:
        return {"hold_id": str(self.hold_id), "pays": [list(pay) for pay in self.pays]}


@dataclass(frozen=True, kw_only=True)
class VoidHold(_Command):
    """Release a whole hold."""

    kind = "void_hold"
    hold_id: UUID

    def _check(self) -> None:
        pass

    def _fields(self) -> dict[str, object]:
        return {"hold_id": str(self.hold_id)}


@dataclass(frozen=True, kw_only=True)
class ExpireHold(_Command):
    """Release a whole hold because its time is over; refused before `expires_us`."""

    kind = "expire_hold"
    hold_id: UUID

    def _check(self) -> None:
        pass

    def _fields(self) -> dict[str, object]:
        return {"hold_id": str(self.hold_id)}


@dataclass(frozen=True, kw_only=True)
class Refund(_Command):
    """Give back, from `source` to the account that paid, at most what was captured from a hold."""

    kind = "refund"
    hold_id: UUID
    source: str
    amount_umlx: int

    def _check(self) -> None:
        _check_party("source", self.source)
        _check_amount("amount_umlx", self.amount_umlx)

    def _fields(self) -> dict[str, object]:
        return {"hold_id": str(self.hold_id), "source": self.source, "amount_umlx": self.amount_umlx}


@dataclass(frozen=True, kw_only=True)
class Adjust(_Command):
    """Put a wrong entry right by new postings: `legs` sum to zero and never touch issuance.

    `operators` are the names of two different people who agree, `reason` says why; both are part
    of the entry for ever. Nobody's balance goes below its floor by it.
    """

    kind = "adjust"
    legs: tuple[tuple[str, int], ...]
    operators: tuple[str, str]
    reason: str

    def _check(self) -> None:
        if not 2 <= len(self.legs) <= MAX_PAYS:
            raise ValueError(f"legs must have from 2 to {MAX_PAYS} items")
        for account_id, amount_umlx in self.legs:
            _check_party("legs", account_id)
            _check_amount("legs", abs(amount_umlx) if type(amount_umlx) is int else amount_umlx)
        if len({account_id for account_id, _ in self.legs}) != len(self.legs):
            raise ValueError("legs must name each account once")
        if sum(amount_umlx for _, amount_umlx in self.legs) != 0:
            raise ValueError("legs must sum to zero")
        self._check_operators()
        if not self.reason.strip() or not REFERENCE_PATTERN.fullmatch(self.reason):
            raise ValueError("reason must be 1 to 200 printable ASCII characters; say what was wrong")

    def _check_operators(self) -> None:
        if len(self.operators) != 2 or not all(map(OPERATOR_PATTERN.fullmatch, self.operators)):
            raise ValueError("operators must be two names of 1 to 100 printable ASCII characters")
        first, second = (name.casefold() for name in self.operators)
        if first == second:
            raise ValueError("operators must be two different people")

    def _fields(self) -> dict[str, object]:
        return {
            "legs": [list(leg) for leg in self.legs],
            "operators": list(self.operators),
            "reason": self.reason,
        }


@dataclass(frozen=True, kw_only=True)
class Record(_Command):
    """Log that `subject` (as `node_key:node_1`) had the content with this SHA-256; moves no money.

    The content itself is kept elsewhere; whoever shows it can prove when it was logged.
    """

    kind = "record"
    subject: str
    content_sha256: str

    def _check(self) -> None:
        if not SUBJECT_PATTERN.fullmatch(self.subject):
            raise ValueError("subject must be a kind and a name, as node_key:node_1")
        if not SHA256_PATTERN.fullmatch(self.content_sha256):
            raise ValueError("content_sha256 must be 64 lower-case hexadecimal digits")

    def _fields(self) -> dict[str, object]:
        return {"subject": self.subject, "content_sha256": self.content_sha256}


Command = Mint | Burn | Transfer | OpenHold | Capture | VoidHold | ExpireHold | Refund | Adjust | Record

Reason = Literal[
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
]


@dataclass(frozen=True)
class Applied:
    """Done, as entry `seq`. `replayed` marks an answer given before; it does not count in `==`."""

    id: UUID
    seq: int
    recorded_us: int
    replayed: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Rejected:
    """Refused, as entry `seq`; no balance changed. The amounts are set where the reason has them."""

    id: UUID
    seq: int
    recorded_us: int
    reason: Reason
    needed_umlx: int | None = None
    available_umlx: int | None = None
    replayed: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Conflict:
    """The id was used before, as entry `seq`, for a command with other content. Nothing was written."""

    id: UUID
    seq: int


Outcome = Applied | Rejected | Conflict
