"""What an ended job must have cost and paid, worked out apart from the product.

The price is rounded once, up. The fee is rounded up. What is left goes to the owners of the Macs by
the tokens of each that reached the submitter, each part within one uMLX of its ratio.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tests.simulation.model import CARDS
from tests.simulation.oracle import FINAL_JOB, AttemptRow, JobRow

FEE_PPM: Final = 100_000
PPM: Final = 1_000_000
# Ends that are the network's own fault, or an operator's affair: nobody pays.
FREE_ENDS: Final = frozenset({"coordinator_restarted"})
# Accounts that may pay owners on top of a job's hold, for what the submitter must not pay.
POOLS: Final = ("pool:", "treasury")

Violate = Callable[[str, str], None]


def ceiling(numerator: int, denominator: int) -> int:
    """The quotient, rounded up."""
    return -(-numerator // denominator)


def price_umlx(job: JobRow, tokens: int) -> int:
    """What the job costs with so many tokens of answer."""
    (price,) = (card.price for card in CARDS if card.id == job.card_id)
    total = job.prompt_tokens * price.input_umlx_per_million + tokens * price.output_umlx_per_million
    return max(price.minimum_umlx, ceiling(total, PPM))


def payable_tokens(attempt: AttemptRow) -> int:
    """What of an attempt is paid: what reached the submitter and is vouched for."""
    is_barred = attempt.state == "declined" or attempt.check_result == "failed"
    return 0 if is_barred or attempt.zero_reason == "not_proven" else attempt.received_tokens


def check_job(
    job: JobRow,
    attempts: Sequence[AttemptRow],
    owners: Mapping[str, str],
    legs: Sequence[tuple[str, int]],
    payer: str,
    violate: Violate,
) -> None:
    """Check one ended job. `legs` are the postings of its capture, `owners` accounts by node."""
    _check_tokens(job, attempts, violate)
    paid = sum(payable_tokens(attempt) for attempt in attempts)
    expected = min(price_umlx(job, paid), job.bound_umlx) if _is_charged(job, attempts, paid) else 0
    if job.charge_umlx != expected:
        violate("L10 charge", f"{job.id} ({job.state}): {job.charge_umlx}, expected {expected}")
    moved: dict[str, int] = defaultdict(int)
    for account, amount in legs:
        if not account.startswith(POOLS):
            moved[_owner_of(account)] += amount
    if moved.pop(payer, 0) != -job.charge_umlx:
        violate("I13 charge is moved", f"{job.id}: {legs}")
    if job.charge_umlx:
        _check_shares(job, attempts, owners, moved, violate)
    elif legs:
        violate("I13 nothing is moved", f"{job.id}: {legs}")


def _check_tokens(job: JobRow, attempts: Sequence[AttemptRow], violate: Violate) -> None:
    delivered = sum(attempt.delivered_tokens for attempt in attempts)
    if delivered != job.output_tokens and job.error_code not in FREE_ENDS:
        violate("delivered is counted", f"{job.id}: attempts {delivered}, answer {job.output_tokens}")
    if job.output_tokens > job.max_tokens:
        violate("L6 at most max_tokens", f"{job.id}: {job.output_tokens} of {job.max_tokens}")
    is_all_received = job.state in {"done", "cancelled"}
    for attempt in attempts:
        is_less = attempt.received_tokens < attempt.delivered_tokens and attempt.zero_reason != "not_proven"
        if attempt.received_tokens > attempt.delivered_tokens or (is_less and is_all_received):
            violate("delivered work is paid", f"{job.id} ({job.state}): {attempt}")


def _is_charged(job: JobRow, attempts: Sequence[AttemptRow], paid: int) -> bool:
    """What was received is paid, and the prompt where the model ended at once."""
    if job.error_code in FREE_ENDS:
        return False
    last = attempts[-1] if attempts else None
    is_empty_answer = last is not None and last.state == "done" and not last.delivered_tokens
    return paid > 0 or (job.state == "done" and is_empty_answer)


def _owner_of(account: str) -> str:
    """An owner's pay may lie in escrow for a time; it is that owner's."""
    kind, _, name = account.partition(":")
    return f"user:{name}" if kind == "escrow" else account


def _check_shares(
    job: JobRow,
    attempts: Sequence[AttemptRow],
    owners: Mapping[str, str],
    moved: dict[str, int],
    violate: Violate,
) -> None:
    fee = ceiling(job.charge_umlx * FEE_PPM, PPM)
    if moved.pop("fee", 0) != fee:
        violate("I13 fee", f"{job.id}: expected {fee} of {job.charge_umlx}")
    rest = job.charge_umlx - fee
    if sum(moved.values()) != rest:
        violate("I13 shares", f"{job.id}: {moved} of {rest}")
    weights: dict[str, int] = defaultdict(int)
    for attempt in attempts:
        weights[owners[attempt.node_id]] += payable_tokens(attempt)
    total = sum(weights.values())
    if not total:  # an answer without a token: its last attempt read the prompt
        weights, total = {owners[attempts[-1].node_id]: 1}, 1
    for owner, weight in weights.items():
        if abs(moved.pop(owner, 0) * total - rest * weight) > total * len(attempts):
            violate("delivered work is paid", f"{job.id}: {owner} delivered {weight} of {total}")
    if any(amount for amount in moved.values()):
        violate("pay for nothing", f"{job.id}: {moved}")


def check_all(
    connection: sqlite3.Connection,
    jobs: Mapping[str, JobRow],
    attempts: Mapping[tuple[str, int], AttemptRow],
    endings: Mapping[str, Sequence[str]],
    violate: Violate,
) -> None:
    """Every ended job's money: exactly one capture or void, and each leg of it."""
    owners = {
        node: f"user:{account}" for node, account in connection.execute("SELECT id, account_id FROM nodes")
    }
    legs: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for reference, account, amount in connection.execute(
        "SELECT j.reference, p.account_id, p.amount_umlx FROM ledger_postings p"
        " JOIN ledger_journal j ON j.seq = p.seq WHERE j.kind = 'capture'"
    ):
        legs[reference].append((account, amount))
    for job in jobs.values():
        if job.state not in FINAL_JOB:
            continue
        ended = list(endings.get(job.id, ()))
        if ended != (["capture"] if job.charge_umlx else ["void_hold"]):
            violate("L3 one capture or void", f"{job.id} ({job.state}, {job.charge_umlx}): {ended}")
        of_job = [attempt for key, attempt in sorted(attempts.items()) if key[0] == job.id]
        check_job(job, of_job, owners, legs[job.id], f"user:{job.account_id}", violate)


__all__ = ["POOLS", "check_all"]
