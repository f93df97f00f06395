"""A job's stream as OpenAI's answers: whole, or as server-sent events from any offset on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from coordinator.answer import LoggedToken
from coordinator.errors import ApiError
from coordinator.jobs.stream import Delta, Ending, JobStream
from coordinator.openai import shapes
from coordinator.openai.request import Kind
from node_agent.protocol.cards import ModelCard

RETRY_HINT: Final = b"retry: 2000\n"


def head_of(*, job_id: str, kind: Kind, card: ModelCard, created_us: int) -> shapes.AnswerHead:
    """What every part of the job's answer repeats."""
    return shapes.AnswerHead(
        kind=kind,
        job_hex=job_id.removeprefix("job_"),
        created_unix_seconds=created_us // 1_000_000,
        model=card.id,
        revision=card.revision,
    )


def whole_result(
    stream: JobStream,
    ending: Ending,
    *,
    job_id: str,
    kind: Kind,
    card: ModelCard,
    created_us: int,
    wants_logprobs: bool,
) -> bytes:
    """The JSON body of a finished answer. Raises `ValueError` if it did not end well."""
    if ending.finish_reason is None:
        raise ValueError("the job did not end well")
    logprobs: list[LoggedToken] | None = None
    if wants_logprobs:
        logprobs = [logged for delta in stream.deltas for logged in delta.logprobs]
    answer = shapes.whole_answer(
        head_of(job_id=job_id, kind=kind, card=card, created_us=created_us),
        text="".join(delta.text for delta in stream.deltas),
        finish_reason=ending.finish_reason,
        usage=shapes.Usage(ending.prompt_tokens, ending.output_tokens),
        logprobs=logprobs,
    )
    return shapes.dump(answer)


async def events(
    stream: JobStream,
    head: shapes.AnswerHead,
    *,
    include_usage: bool,
    wants_logprobs: bool,
    keep_alive_seconds: float,
    after: int | None = None,
) -> AsyncIterator[bytes]:
    """The answer as server-sent events; each one's `id:` is the offset of the tokens behind it.

    `after` None starts with the role chunk; a number goes on behind that offset.
    """
    writer = shapes.ChunkWriter(head, include_usage=include_usage)
    if after is None and (first := writer.first()) is not None:
        yield shapes.sse_event(first, 0)
    last_id = after or 0
    try:
        async for item in stream.read(after=last_id, keep_alive_seconds=keep_alive_seconds):
            if item is None:
                yield shapes.KEEP_ALIVE
            elif isinstance(item, Delta):
                last_id = item.end
                if item.text or item.logprobs:
                    logged = item.logprobs if wants_logprobs else None
                    yield shapes.sse_event(writer.delta(item.text, logged), item.end)
            else:
                for event in _ending_events(writer, item, last_id):
                    yield event
    except ApiError as error:
        # Readers that know server-sent events come back by themselves, to where they were.
        yield RETRY_HINT + shapes.error_event(error)
        yield shapes.DONE


def _ending_events(writer: shapes.ChunkWriter, ending: Ending, last_id: int) -> list[bytes]:
    if ending.error is not None or ending.finish_reason is None:
        found = [shapes.error_event(ending.error)] if ending.error is not None else []
        return [*found, shapes.DONE]
    end_id = max(last_id, ending.output_tokens)
    found = [shapes.sse_event(writer.last(ending.finish_reason), end_id)]
    usage = writer.usage(shapes.Usage(ending.prompt_tokens, ending.output_tokens))
    if usage is not None:
        found.append(shapes.sse_event(usage, end_id))
    return [*found, shapes.DONE]
