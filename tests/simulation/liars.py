"""Nodes that do not keep to the protocol: what they send instead of what their core says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from node_agent.protocol import messages as wire
from node_agent.protocol.signing import encode_bytes, result_statement, tokens_digest
from tests.simulation.model import ORDINARY_FROM, VOCAB
from tests.simulation.scenario import Lie

if TYPE_CHECKING:
    from tests.simulation.macs import Mac

Frame = wire.Message | str
KEPT_MAX: Final = 20


@final
class Liar:
    """Stands between a node's core and its socket."""

    def __init__(self, lie: Lie, mac: Mac) -> None:
        self.lie: Final = lie
        self._mac = mac
        self._sent: dict[tuple[str, int], list[int]] = {}
        self._kept: list[wire.Message] = []

    def instead_of(self, message: wire.Message) -> list[Frame]:
        """The frames that go out in the place of this one."""
        match message:
            case wire.Chunk():
                return self._chunk(message)
            case wire.Finished():
                return self._finished(message)
            case wire.Accept() if self.lie == "cancels":
                return [message, self._end_of(message.job_id, message.fence, "cancelled")]
            case wire.Heartbeat():
                return [message, *self._idle_talk()]
            case _:
                return [message]

    # -- tokens ----------------------------------------------------------------------------------

    def _chunk(self, chunk: wire.Chunk) -> list[Frame]:
        if self.lie == "garbage":
            chunk = chunk.model_copy(update={"token_ids": tuple(_other(one) for one in chunk.token_ids)})
        if self.lie == "impossible_ids" and chunk.offset:
            chunk = chunk.model_copy(update={"token_ids": (VOCAB + 7,) * len(chunk.token_ids)})
        self._note(chunk)
        frames: list[Frame] = [chunk]
        match self.lie:
            case "gap" if self._mac.draws.random() < 0.3:
                frames = []
            case "old_fence" if chunk.fence > 1:
                frames.append(_foreign(chunk, chunk.fence - 1))
            case "newer_fence":
                frames.append(_foreign(chunk, chunk.fence + 1))
            case "early_end" | "early_length":
                frames.append(
                    self._end_of(chunk.job_id, chunk.fence, "eos" if self.lie == "early_end" else "length")
                )
            case _:
                pass
        return frames

    def _note(self, chunk: wire.Chunk) -> None:
        sent = self._sent.setdefault((chunk.job_id, chunk.fence), [])
        sent[chunk.offset :] = chunk.token_ids
        self._kept = [*self._kept, chunk][-KEPT_MAX:]

    # -- ends ------------------------------------------------------------------------------------

    def _finished(self, end: wire.Finished) -> list[Frame]:
        self._kept = [*self._kept, end][-KEPT_MAX:]
        match self.lie:
            case "wrong_digest":
                return [end.model_copy(update={"output_digest": "0" * 64})]
            case "wrong_signature":
                return [end.model_copy(update={"signature": encode_bytes(bytes(64))})]
            case "too_many":
                return self._more(end)
            case "garbage":
                return [self._end_of(end.job_id, end.fence, end.finish_reason)]
            case "old_fence" if end.fence > 1:
                return [self._end_of(end.job_id, end.fence - 1, end.finish_reason), end]
            case "newer_fence":
                return [self._end_of(end.job_id, end.fence + 1, end.finish_reason), end]
            case "never_ends":
                return []
            case _:
                return [end]

    def _more(self, end: wire.Finished) -> list[Frame]:
        more = wire.Chunk(
            job_id=end.job_id,
            fence=end.fence,
            offset=end.token_count,
            token_ids=tuple(range(ORDINARY_FROM, ORDINARY_FROM + 100)),
        )
        self._note(more)
        return [more, self._end_of(end.job_id, end.fence, end.finish_reason)]

    def _end_of(self, job_id: str, fence: int, reason: wire.FinishReason) -> wire.Finished:
        """A well signed end over all that was sent."""
        ids = self._sent.get((job_id, fence), [])
        digest = tokens_digest(ids)
        core = self._mac.core
        attempt = core.book.attempts.get(job_id) if core is not None else None
        revision = attempt.offer.card_revision if attempt is not None else "0" * 64
        statement = result_statement(
            job_id=job_id, fence=fence, card_revision=revision, token_count=len(ids), output_digest=digest
        )
        return wire.Finished(
            job_id=job_id,
            fence=fence,
            finish_reason=reason,
            token_count=len(ids),
            output_digest=digest,
            signature=self._mac.sign(statement),
        )

    # -- out of nothing --------------------------------------------------------------------------

    def _idle_talk(self) -> list[Frame]:
        draws = self._mac.draws
        match self.lie:
            case "replay" if self._kept:
                return list(draws.choices(self._kept, k=3))
            case "unknown_job":
                job_id = f"job_{draws.getrandbits(128):032x}"
                chunk = wire.Chunk(job_id=job_id, fence=1, offset=0, token_ids=(ORDINARY_FROM,))
                return [wire.Accept(job_id=job_id, fence=1), chunk, self._end_of(job_id, 1, "eos")]
            case "foreign_job":
                return [frame for job_id, fence in self._mac.elsewhere() for frame in _theft(job_id, fence)]
            case "malformed" if draws.random() < 0.3:
                return ['{"type": "chunk", "job_id": 7']
            case "malformed":
                return ['{"type": "telepathy"}']
            case _:
                return []


def _theft(job_id: str, fence: int) -> list[Frame]:
    """Frames about an attempt that another node has."""
    ids = (ORDINARY_FROM, ORDINARY_FROM)
    return [
        wire.Chunk(job_id=job_id, fence=fence, offset=offset, token_ids=ids) for offset in range(0, 20, 2)
    ]


def _foreign(chunk: wire.Chunk, fence: int) -> wire.Chunk:
    """What would go on behind a chunk if its fence were taken for the current one."""
    end = chunk.offset + len(chunk.token_ids)
    return wire.Chunk(job_id=chunk.job_id, fence=fence, offset=end, token_ids=(ORDINARY_FROM,))


def _other(token_id: int) -> int:
    return ORDINARY_FROM + (token_id - ORDINARY_FROM + 1) % (VOCAB - ORDINARY_FROM)
