"""OpenAI's own client reads our answers over a real connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest

from coordinator import errors
from coordinator.answer import AnswerText, Vocabulary
from coordinator.openai import shapes
from coordinator.openai.chat import parse_chat
from coordinator.openai.shapes import AnswerHead, ChunkWriter, Usage

ANSWER = 'A "quoted" 😀\n\n{"line": 2}'


class Handler(BaseHTTPRequestHandler):
    """Answers a chat with `ANSWER`, byte by byte; a message `lose` loses the host half way, and
    `refuse` is refused."""

    def do_POST(self) -> None:
        request = parse_chat(self.rfile.read(int(self.headers["Content-Length"])))
        assert request.messages is not None
        wish = request.messages[0].content
        head = AnswerHead("chat", "0" * 32, 1_700_000_000, request.model, "ab" * 32)
        if wish == "refuse":
            self.send_error_object(errors.insufficient_balance(needed_umlx=5, available_umlx=1))
        elif request.stream:
            self.send(200, "text/event-stream", b"".join(self.stream(head, wish, request.include_usage)))
        else:
            whole = shapes.whole_answer(head, text=ANSWER, finish_reason="stop", usage=Usage(1, 2))
            self.send(200, "application/json", shapes.dump(whole))

    @staticmethod
    def stream(head: AnswerHead, wish: str, include_usage: bool) -> Iterator[bytes]:
        writer = ChunkWriter(head, include_usage=include_usage)
        answer = AnswerText(Vocabulary([bytes([byte]) for byte in range(256)]))
        ids = list(ANSWER.encode())
        yield shapes.KEEP_ALIVE
        yield shapes.sse_event(writer.first() or b"")
        for offset, token_id in enumerate(ids[: 5 if wish == "lose" else None]):
            yield shapes.sse_event(writer.delta(answer.push([token_id]).text), offset)
        if wish == "lose":
            yield shapes.error_event(errors.host_lost("it went away"))
        else:
            yield shapes.sse_event(writer.last("stop"), len(ids))
            if (usage := writer.usage(Usage(1, answer.completion_tokens))) is not None:
                yield shapes.sse_event(usage)
        yield shapes.DONE

    def send_error_object(self, error: errors.ApiError) -> None:
        self.send(error.status, "application/json", shapes.error_json(error), error.headers())

    def send(
        self, status: int, content_type: str, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": content_type, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        _ = self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        with openai.OpenAI(base_url=url, api_key="k") as client:
            yield client
        server.shutdown()
        thread.join()


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage is not None
    assert answer.usage.total_tokens == 3


def test_a_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ANSWER
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ANSWER.encode())


def test_a_stream_that_breaks_off(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "lose"}], stream=True
    )
    seen = ""
    with pytest.raises(openai.APIError) as caught:
        for chunk in stream:
            seen += chunk.choices[0].delta.content or ""
    assert seen == ANSWER[:5]
    assert caught.value.code == "host_lost"


def test_a_refusal_is_not_tried_again(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        _ = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "refuse"}])
    assert (caught.value.status_code, caught.value.code, caught.value.type) == (
        402,
        "insufficient_balance",
        "insufficient_quota",
    )
