"""What of an answer was delivered already, stored so that the answer goes on after a crash.

The relay's memory is ahead of the store by a second at most. What is stored counts as delivered;
what is not is made again, and for a seeded draw on the same model it is made the same.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from coordinator.jobs.models import Job, JobPayload
from coordinator.jobs.payloads import PayloadBox
from coordinator.jobs.states import FINAL_JOB_STATES
from node_agent.protocol.messages import TokenLogprob

PART: Final = "prefix"
_LENGTH: Final = struct.Struct("<I")
_CHOSEN: Final = struct.Struct("<dI")
_OTHER: Final = struct.Struct("<Id")
_ID_MAX: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Prefix:
    """The delivered tokens of a job, and what must be known of them to go on.

    `fence` and `fence_tokens`: the last attempt that delivered, and how many of the last tokens
    are its own. `taken_tokens` of them a reader has had. `logprobs` is as long as `token_ids`, or
    None where none are wanted.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    fence: int
    fence_tokens: int
    taken_tokens: int
    unproven_tokens: int
    faults: int

    def to_bytes(self) -> bytes:
        """A head in JSON, the ids as 32-bit integers, then the log probabilities as doubles."""
        head = json.dumps(
            {
                "fence": self.fence,
                "fence_tokens": self.fence_tokens,
                "taken_tokens": self.taken_tokens,
                "unproven_tokens": self.unproven_tokens,
                "faults": self.faults,
                "tokens": len(self.token_ids),
                "logprobs": self.logprobs is not None,
            }
        ).encode()
        parts = [_LENGTH.pack(len(head)), head, _ids_to_bytes(self.token_ids)]
        for logged in self.logprobs or ():
            # A number that is no token's shows nothing and need not be kept.
            top = [other for other in logged.top if 0 <= other[0] <= _ID_MAX]
            parts.append(_CHOSEN.pack(logged.logprob, len(top)))
            parts.extend(_OTHER.pack(*other) for other in top)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, content: bytes) -> Prefix:
        """Inverse of `to_bytes`."""
        start = _LENGTH.size + _LENGTH.unpack_from(content)[0]
        head: dict[str, Any] = json.loads(content[_LENGTH.size : start])
        count = int(head["tokens"])
        end = start + 4 * count
        logprobs = _logprobs_from(content, end, count) if head["logprobs"] else None
        return cls(
            token_ids=_ids_from(content[start:end]),
            logprobs=logprobs,
            fence=head["fence"],
            fence_tokens=head["fence_tokens"],
            taken_tokens=head["taken_tokens"],
            unproven_tokens=head["unproven_tokens"],
            faults=head["faults"],
        )


def _ids_to_bytes(ids: Sequence[int]) -> bytes:
    words = array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _ids_from(content: bytes) -> tuple[int, ...]:
    words = array("I")
    words.frombytes(content)
    if sys.byteorder == "big":
        words.byteswap()
    return tuple(words)


def _logprobs_from(content: bytes, at: int, count: int) -> tuple[TokenLogprob, ...]:
    found: list[TokenLogprob] = []
    for _ in range(count):
        logprob, others = _CHOSEN.unpack_from(content, at)
        at += _CHOSEN.size
        end = at + others * _OTHER.size
        top = tuple(_OTHER.iter_unpack(content[at:end]))
        # Checked when it came from the node.
        found.append(TokenLogprob.model_construct(logprob=logprob, top=top))
        at = end
    return tuple(found)


def store(session: Session, prefixes: Mapping[str, Prefix], payloads: PayloadBox) -> None:
    """Write the prefixes of these jobs in place of older ones: two statements for all.

    A job that has ended meanwhile keeps none: what it was delivered has gone with its payload.
    """
    running = session.scalars(
        select(Job.id)
        .where(Job.id.in_(prefixes), Job.state.not_in(FINAL_JOB_STATES))
        .order_by(Job.id)
        .with_for_update()
    ).all()
    if not running:
        return
    rows: list[dict[str, Any]] = []
    for job_id in running:
        wrapped, ciphertext = payloads.seal(prefixes[job_id].to_bytes(), job_id=job_id, part=PART)
        rows.append({"job_id": job_id, "part": PART, "wrapped_key": wrapped, "ciphertext": ciphertext})
    _ = session.execute(delete(JobPayload).where(JobPayload.job_id.in_(running), JobPayload.part == PART))
    _ = session.execute(insert(JobPayload), rows)


def load(session: Session, job_id: str, payloads: PayloadBox) -> Prefix | None:
    """The job's stored prefix, decrypted. None if there is none; raises `PayloadError`."""
    row = session.get(JobPayload, (job_id, PART))
    if row is None:
        return None
    return Prefix.from_bytes(payloads.open(row.wrapped_key, row.ciphertext, job_id=job_id, part=PART))
