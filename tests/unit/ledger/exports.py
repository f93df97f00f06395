"""Exports without a database: commands decided by the ledger's rules and written as it writes them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from ledger.chain import GENESIS_HEAD, Entry, leaf_of, leaf_text, next_head
from ledger.commands import (
    Adjust,
    Burn,
    Capture,
    Command,
    ExpireHold,
    Mint,
    OpenHold,
    Record,
    Refund,
    Transfer,
    VoidHold,
)
from ledger.export_format import checkpoint_line, entry_line, footer_line, header_line
from ledger.merkle import Frontier
from ledger.notes import Signer
from ledger.rules import Account, Refusal, Sheet, decide

START_US = 1_800_000_000_000_000
SIGNER = Signer.generate("example.com/ledger")


@dataclass
class Writer:
    """Journals commands as the book does; what it does to entries can be changed by a test."""

    accounts: tuple[str, ...]
    head: bytes = GENESIS_HEAD
    seq: int = 0
    postings: int = 0
    tree: Frontier = field(default_factory=Frontier)

    def __post_init__(self) -> None:
        accounts = {name: Account(0, 0, 0) for name in (*self.accounts, "fee")}
        self.sheet = Sheet({"issuance": Account(None, 0, 0), **accounts})

    def line(self, command: Command, now_us: int) -> bytes:
        decision = decide(self.sheet, command, now_us)
        refusal = decision if isinstance(decision, Refusal) else None
        legs: tuple[tuple[str, int], ...] = ()
        if not isinstance(decision, Refusal):
            self.sheet.post(decision)
            legs = decision.legs
        return self.raw(
            Entry(
                self.seq + 1,
                command.id,
                command.kind,
                command.reference,
                now_us,
                command.digest,
                refusal.reason if refusal else "posted",
                refusal.needed_umlx if refusal else None,
                refusal.available_umlx if refusal else None,
                legs,
            ),
            command.body,
        )

    def raw(self, entry: Entry, body: str) -> bytes:
        """An entry as given, with the leaf and head that it has then."""
        leaf = leaf_of(entry)
        self.head = next_head(self.head, leaf)
        self.seq += 1
        self.postings += len(entry.legs)
        self.tree.append(leaf)
        return entry_line(body, leaf_text(entry), self.head, leaf)

    def note(self) -> str:
        return SIGNER.sign_checkpoint(self.tree.size, self.tree.root())

    def whole(self, lines: list[bytes]) -> list[bytes]:
        return [header_line(self.note()), *lines, self.footer(lines)]

    def footer(self, lines: list[bytes]) -> bytes:
        checkpoints = sum(line.startswith(b'{"checkpoint":') for line in lines)
        return footer_line(self.seq, self.head, self.postings, checkpoints)


def ids(seed: int) -> Iterator[UUID]:
    draw = random.Random(seed)
    while True:
        yield UUID(int=draw.getrandbits(128))


def every_kind() -> list[Command]:
    """One of each kind, a refusal and a refund among them."""
    new = ids(5)
    hold, voided, late = (
        OpenHold(
            id=next(new), account_id="user:a", amount_umlx=500, expires_us=START_US + 10, reference="job_1"
        )
        for _ in range(3)
    )
    return [
        Mint(id=next(new), account_id="user:a", amount_umlx=5000, reference='"grant",\\'),
        hold,
        Capture(id=next(new), hold_id=hold.id, pays=(("user:b", 360), ("fee", 40)), reference="job_1"),
        voided,
        VoidHold(id=next(new), hold_id=voided.id),
        late,
        ExpireHold(id=next(new), hold_id=late.id),
        Transfer(id=next(new), source="user:b", target="user:c", amount_umlx=361),
        Transfer(id=next(new), source="user:b", target="user:c", amount_umlx=300),
        Refund(id=next(new), hold_id=hold.id, source="user:b", amount_umlx=60),
        Adjust(
            id=next(new), legs=(("fee", -3), ("user:c", 3)), operators=("Ann", "Bob"), reason="wrong account"
        ),
        Record(id=next(new), subject="node_key:node_1", content_sha256="ab" * 32),
        Burn(id=next(new), account_id="user:a", amount_umlx=1),
    ]


def jobs(count: int, seed: int = 1, accounts: int = 1000) -> Iterator[Command]:
    """About `count` commands as a busy network sends them: mostly a hold and its capture."""
    draw = random.Random(seed)
    names = [f"user:acct_{number:032x}" for number in range(accounts)]
    fresh = lambda: UUID(int=draw.getrandbits(128))
    for name in names:
        yield Mint(id=fresh(), account_id=name, amount_umlx=10**12)
    for number in range((count - accounts) // 2):
        payer, owner = draw.choice(names), draw.choice(names)
        job = f"job_{number:032x}"
        hold = OpenHold(
            id=fresh(), account_id=payer, amount_umlx=5000, expires_us=START_US + 10**12, reference=job
        )
        yield hold
        if draw.random() < 0.05:
            yield VoidHold(id=fresh(), hold_id=hold.id, reference=job)
        else:
            paid = draw.randint(100, 4500)
            pays = ((owner, paid - paid // 10), ("fee", paid // 10))
            yield Capture(id=fresh(), hold_id=hold.id, pays=pays, reference=job)


def export_of(
    commands: Iterable[Command], accounts: tuple[str, ...], checkpoint_every: int = 0
) -> list[bytes]:
    """The lines of a whole export; entry n is recorded n microseconds after the start."""
    writer = Writer(accounts)
    lines: list[bytes] = []
    for command in commands:
        lines.append(writer.line(command, START_US + 5 + writer.seq))
        if checkpoint_every and writer.seq % checkpoint_every == 0:
            lines.append(checkpoint_line(writer.note()))
    return writer.whole(lines)
