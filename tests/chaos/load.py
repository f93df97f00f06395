"""Submitters that do not give up: they reconnect as docs/api.md says, and keep what they were sent."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

import httpx2

Kind = Literal["stream", "whole", "async", "cancel"]
KINDS: Final[tuple[Kind, ...]] = ("stream", "stream", "stream", "whole", "async", "cancel")
BODIES: Final = 24
GIVE_UP_SECONDS: Final = 240.0  # twice the longest silence of the network's own clocks, and a restart
RETRY_SECONDS: Final = 0.25
CANCEL_BEHIND_TOKENS: Final = 20
# Codes that say: nothing was accepted, come back later.
LATER: Final = frozenset({429, 500, 502, 503, 504})


@dataclass
class Asked:
    """One request and all that came of it. `gaps` are seconds between two pieces of its text."""

    kind: Kind
    body: int
    key: str
    job_id: str | None = None
    text: str = ""
    last_id: int = 0
    tokens: int = 0
    is_whole: bool = False
    finish_reason: str | None = None
    error: str | None = None
    reconnects: int = 0
    longest_gap_seconds: float = 0.0


def request_of(number: int) -> dict[str, Any]:
    """One of the requests: seeded sampling at temperature 1, so that its answer is known."""
    return {
        "model": "tiny",
        "prompt": f"Story {number}",
        "max_tokens": 150 + 40 * (number % 12),
        "temperature": 1,
        "seed": number,
        "logit_bias": {"2": -100},  # the end of a turn never comes
    }


@dataclass
class Record:
    """What all submitters have asked."""

    asked: list[Asked] = field(default_factory=list[Asked])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, one: Asked) -> None:
        """Note a request before it is sent."""
        with self.lock:
            self.asked.append(one)


@final
class Submitter(threading.Thread):
    """Sends one request after the other until `stop` is set; finishes the one it is at."""

    def __init__(self, number: int, *, url: str, api_key: str, record: Record, stop: threading.Event) -> None:
        super().__init__(daemon=True, name=f"submitter-{number}")
        self._random: Final = random.Random(number)
        self._record: Final = record
        self._stop_asking: Final = stop
        self._http: Final = httpx2.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}", "x-mlxnet-on-disconnect": "continue"},
            timeout=httpx2.Timeout(60.0, connect=5.0),
        )

    def run(self) -> None:
        """Ask until told to stop."""
        while not self._stop_asking.is_set():
            one = Asked(self._random.choice(KINDS), self._random.randrange(BODIES), uuid.uuid4().hex)
            self._record.add(one)
            self.ask(one)
            time.sleep(self._random.random() * 0.2)
        self.close()

    def close(self) -> None:
        """Close its connections; `run` does so at its end."""
        self._http.close()

    def ask(self, one: Asked) -> None:
        """Carry one request through to its end, or to giving up."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < deadline and not one.is_whole and one.error is None:
            try:
                match one.kind:
                    case "whole":
                        self._whole(one)
                    case "async":
                        self._asynchronous(one)
                    case "stream" | "cancel":
                        self._stream(one)
            except httpx2.TransportError:
                one.reconnects += 1
            except _LaterError:
                pass
            if not one.is_whole and one.error is None:
                time.sleep(RETRY_SECONDS)
        if not one.is_whole and one.error is None:
            one.error = "gave_up"

    def _whole(self, one: Asked) -> None:
        response = self._http.post(
            "/v1/completions", json=request_of(one.body), headers={"Idempotency-Key": one.key}
        )
        found = _json_of(one, response)
        if found is not None:
            _take(one, found)

    def _asynchronous(self, one: Asked) -> None:
        if one.job_id is None:
            body = {"kind": "completions", "request": request_of(one.body)}
            response = self._http.post("/v1/jobs", json=body, headers={"Idempotency-Key": one.key})
            if _json_of(one, response) is None:
                return
        found = _json_of(one, self._http.get(f"/v1/jobs/{one.job_id}"))
        if found is None or found["state"] in {"queued", "running"}:
            return
        if found["state"] != "done":
            one.error = str(found["error"])
            return
        result = _json_of(one, self._http.get(f"/v1/jobs/{one.job_id}/result"))
        if result is not None:
            _take(one, result)

    def _stream(self, one: Asked) -> None:
        if one.job_id is None:
            call = self._http.stream(
                "POST",
                "/v1/completions",
                json=request_of(one.body) | {"stream": True, "stream_options": {"include_usage": True}},
                headers={"Idempotency-Key": one.key},
            )
        else:
            call = self._http.stream("GET", f"/v1/jobs/{one.job_id}/events", params={"after": one.last_id})
        with call as response:
            if response.status_code >= httpx2.codes.BAD_REQUEST:
                response.read()
                _ = _json_of(one, response)
                return
            one.job_id = response.headers.get("x-job-id", one.job_id)
            self._read(one, response)

    def _read(self, one: Asked, response: httpx2.Response) -> None:
        seen_at, is_cancelled = time.monotonic(), False
        for event_id, data in _events(response.iter_lines()):
            if data == "[DONE]":
                one.is_whole = one.error is None
                return
            event: dict[str, Any] = json.loads(data)
            if "error" in event:
                one.error = str(event["error"]["code"])
                continue
            if event.get("usage"):
                one.tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                if choice.get("text"):
                    now = time.monotonic()
                    one.longest_gap_seconds = max(one.longest_gap_seconds, now - seen_at)
                    seen_at, one.text = now, one.text + choice["text"]
                one.finish_reason = choice["finish_reason"] or one.finish_reason
            one.last_id = event_id if event_id is not None else one.last_id
            if one.kind == "cancel" and one.last_id > CANCEL_BEHIND_TOKENS and not is_cancelled:
                is_cancelled = True
                _ = self._http.post(f"/v1/jobs/{one.job_id}/cancel", json={})


def _take(one: Asked, found: dict[str, Any]) -> None:
    choice = found["choices"][0]
    one.text, one.finish_reason, one.is_whole = choice["text"], choice["finish_reason"], True
    one.tokens = found["usage"]["completion_tokens"]


class _LaterError(Exception):
    """Refused for now."""


def _json_of(one: Asked, response: httpx2.Response) -> dict[str, Any] | None:
    """The answer; None if it was an error that is now on record."""
    one.job_id = response.headers.get("x-job-id", one.job_id)
    if response.status_code in LATER:
        raise _LaterError
    if response.status_code >= httpx2.codes.BAD_REQUEST:
        one.error = str(response.json()["error"]["code"])
        return None
    found: dict[str, Any] = response.json()
    if found.get("object") == "job":
        one.job_id = found["id"]
    return found


def _events(lines: Iterator[str]) -> Iterator[tuple[int | None, str]]:
    """(id, data) of each event of a stream."""
    event_id: int | None = None
    for line in lines:
        if line.startswith("id: "):
            event_id = int(line.removeprefix("id: "))
        elif line.startswith("data: "):
            yield event_id, line.removeprefix("data: ")
