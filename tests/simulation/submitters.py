"""Submitters: they ask through the real endpoints, leave, come back, cancel, and check each byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol, final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from coordinator import errors
from coordinator.errors import ApiError
from coordinator.http import respond_with
from coordinator.jobs import endpoints as jobs_api
from coordinator.openai import endpoints as openai_api
from tests.simulation.loop import VirtualLoop
from tests.simulation.model import DIGITS, VOCAB, answer, text_of
from tests.simulation.process import DATABASE_ERRORS, Coordinator
from tests.simulation.scenario import JobSpec
from tests.simulation.storage import KnownSubmitter

Endpoint = Callable[[Request], Awaitable[Response]]
STATUS_GONE: Final = 499
STATUS_INTERNAL: Final = 500
RETRY_STATUSES: Final = frozenset({429, 500, 503})


class Watch(Protocol):
    """Who is told what submitters see."""

    def tell(self, who: str, what: object) -> None:
        """A line for the story."""
        ...

    def violate(self, rule: str, why: str) -> None:
        """A rule is broken."""
        ...

    def came_to_nothing(self, job_id: str) -> bool:
        """Whether no Mac took the job, which frees its key."""
        ...

    def internal_error(self, error: Exception) -> None:
        """A handler raised what it must not."""
        ...

    def is_false(self, job_id: str) -> bool:
        """Whether a node that invents tokens had this job."""
        ...

    @property
    def is_calm(self) -> bool:
        """Whether all faults are over."""
        ...


class BrokenError(Exception):
    """The connection is gone."""


@final
class Exchange:
    """One HTTP request and its answer, as both ends see it."""

    def __init__(self, loop: VirtualLoop, draws: Random) -> None:
        self._loop = loop
        self._draws = draws
        self._due = 0.0
        self._body: list[bytes] = []
        self._gone = loop.create_future()
        self._news = loop.create_future()
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.is_whole = False
        self.is_broken = False

    # -- the coordinator's end -------------------------------------------------------------------

    def with_body(self, body: bytes) -> Exchange:
        """What the request carries."""
        self._body.append(body)
        return self

    async def receive(self) -> dict[str, Any]:
        """ASGI: the body, then the end of the connection."""
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await asyncio.wait({self._gone})
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """ASGI: a part of the answer, which arrives later."""
        if self._gone.done():
            return
        now = self._loop.time()
        self._due = max(self._due, now + self._draws.uniform(0.0, 0.05))
        _ = self._loop.after(self._due - now, self._arrive, message)

    # -- the submitter's end ---------------------------------------------------------------------

    def _arrive(self, message: dict[str, Any]) -> None:
        if self.is_broken:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {key.decode().lower(): value.decode() for key, value in message["headers"]}
        else:
            if message.get("body"):
                self.parts.append(message["body"])
            self.is_whole = not message.get("more_body", False)
        self._notify()

    def _notify(self) -> None:
        if not self._news.done():
            self._news.set_result(None)

    def break_off(self) -> None:
        """The connection is gone, for both ends."""
        if not self.is_whole:
            self.is_broken = True
        self.leave()
        self._notify()

    def leave(self) -> None:
        """The submitter closes its end."""
        if not self._gone.done():
            self._gone.set_result(None)

    async def changed(self) -> None:
        """Wait for more. Raises `BrokenError`."""
        if not self.is_broken and not self.is_whole:
            await self._news
            self._news = self._loop.create_future()
        if self.is_broken:
            raise BrokenError

    async def whole(self) -> bytes:
        """The whole answer. Raises `BrokenError`."""
        while not self.is_whole:
            await self.changed()
        return b"".join(self.parts)


@dataclass
class Heard:
    """What one reader was told of one answer."""

    text: str = ""
    last_id: int = 0
    finish_reason: str | None = None
    error: str | None = None
    is_done: bool = False
    usage: dict[str, int] = field(default_factory=dict[str, int])


@final
class Submitter:
    """One submitter with one thing to ask."""

    def __init__(
        self,
        loop: VirtualLoop,
        spec: JobSpec,
        account: KnownSubmitter,
        model: str,
        *,
        coordinator: Coordinator,
        draws: Random,
        watch: Watch,
    ) -> None:
        self.spec: Final = spec
        self.account: Final = account
        self._loop: Final = loop
        self._coordinator: Final = coordinator
        self._draws: Final = draws
        self._watch: Final = watch
        self.name: Final = f"submitter{spec.index}"
        prompts = draws
        self.prompt_ids: Final = tuple(prompts.randrange(VOCAB) for _ in range(spec.prompt_tokens))
        whole = answer(self.prompt_ids, spec.seed, spec.max_tokens)
        text = text_of(whole.token_ids)
        cut = text.find(spec.stop) if spec.stop is not None else -1
        self.text: Final = text if cut < 0 else text[:cut]
        self.tokens: Final = len(whole.token_ids) if cut < 0 else -(-(cut + len(spec.stop or "")) // DIGITS)
        self.finish_reason: Final = "stop" if cut >= 0 or whole.finish_reason == "eos" else "length"
        self.job_ids: Final[list[str]] = []  # those it was told of
        self.requests = 0  # those that may have made a job
        self.open: Final[set[Exchange]] = set()
        self.charges: Final[dict[str, int]] = {}
        self._was_refused = False
        self._body: Final = {
            "model": model,
            "prompt": list(self.prompt_ids),
            "max_tokens": spec.max_tokens,
            "seed": spec.seed,
            **({"stop": [spec.stop]} if spec.stop is not None else {}),
        }

    # -- what it does ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask, and see the answer through as far as it cares."""
        await asyncio.sleep(self.spec.at)
        if self.spec.mode == "async":
            await self._run_async()
            return
        asks = [self._ask()]
        if self.spec.repeats and self.spec.has_key:
            asks.append(self._ask())
        _ = await asyncio.gather(*asks)
        made = {job_id for job_id in self.job_ids if not self._watch.came_to_nothing(job_id)}
        if self.spec.has_key and len(made) > 1:
            self._watch.violate("idempotency", f"one key made {sorted(made)}")

    async def _ask(self) -> None:
        """Ask until there is an answer that no second try could better."""
        left_once = False
        for _ in range(6):
            leaves = self.spec.leaves_after if not left_once else None
            try:
                is_over = await self._ask_once(leaves)
            except BrokenError:
                is_over = False
                self._watch.tell(self.name, "lost its connection")
            else:
                left_once = left_once or not is_over
            # Without a key a second try would be a second job: as a careful client, it does not try.
            if is_over or not ((self.spec.returns and self.spec.has_key) or self._was_refused):
                return
            await asyncio.sleep(self._draws.uniform(0.1, 5.0))

    async def _ask_once(self, leaves_after: float | None) -> bool:
        """One request. False if it was left, or is worth another try."""
        is_stream = self.spec.mode == "stream"
        exchange = self._send(
            openai_api.completions, {**self._body, "stream": is_stream}, self._headers(), may_submit=True
        )
        watcher = self._leave_later(exchange, leaves_after)
        try:
            heard = await self._hear(exchange) if is_stream else await self._hear_whole(exchange)
        finally:
            watcher.cancel()
        if exchange.status == STATUS_GONE or heard is None:
            return exchange.status not in RETRY_STATUSES and exchange.status != STATUS_GONE
        self._check_end(exchange, heard)
        return True

    def _leave_later(self, exchange: Exchange, seconds: float | None) -> asyncio.TimerHandle:
        return self._loop.after(seconds if seconds is not None else 1e7, exchange.break_off)

    def _headers(self) -> dict[str, str]:
        found = {"x-mlxnet-max-wait": str(self.spec.max_wait_seconds)}
        if self.spec.has_key:
            found["idempotency-key"] = f"key-{self.spec.index}"
        if self.spec.is_kept:
            found["x-mlxnet-on-disconnect"] = "continue"
        return found

    async def _hear_whole(self, exchange: Exchange) -> Heard | None:
        body = json.loads(await exchange.whole() or b"{}")
        self._note(exchange)
        self._watch.tell(self.name, f"is answered {exchange.status} {_code(body)}")
        if exchange.status == STATUS_INTERNAL:
            self._watch.violate("no internal errors", f"{self.name} is told of one")
        if exchange.status != 200:
            return None
        (choice,) = body["choices"]
        return Heard(choice["text"], finish_reason=choice["finish_reason"], is_done=True, usage=body["usage"])

    async def _hear(self, exchange: Exchange, heard: Heard | None = None) -> Heard | None:
        """Read a stream to its end. None if it was no stream."""
        heard = heard or Heard()
        read = 0
        cancel_at = self._loop.time() + self.spec.cancels_after if self.spec.cancels_after else None
        while True:
            while read < len(exchange.parts) and exchange.status == 200:
                self._hear_event(exchange.parts[read], heard)
                read += 1
            self._note(exchange)
            if exchange.is_whole:
                break
            if cancel_at is not None and self._loop.time() >= cancel_at and self.job_ids:
                cancel_at = None
                _ = self._loop.start(self._cancel(self.job_ids[-1]))
            await exchange.changed()
        if exchange.status != 200:
            code = _code(json.loads(b"".join(exchange.parts) or b"{}"))
            self._watch.tell(self.name, f"is answered {exchange.status} {code}")
            return None
        self._watch.tell(
            self.name,
            f"has {len(heard.text) // DIGITS} tokens, {heard.finish_reason or heard.error}",
        )
        if not heard.is_done:
            self._watch.violate("stream ends", f"{self.name}: a stream ended without [DONE]")
        return heard

    def _hear_event(self, event: bytes, heard: Heard) -> None:
        for line in event.decode().splitlines():
            name, _, value = line.partition(": ")
            if name == "id":
                heard.last_id = int(value)
            elif name == "data" and value == "[DONE]":
                heard.is_done = True
            elif name == "data":
                self._hear_chunk(json.loads(value), heard)

    def _hear_chunk(self, chunk: dict[str, Any], heard: Heard) -> None:
        if "error" in chunk:
            heard.error = str(chunk["error"].get("code"))
            if heard.error == "internal_error":
                self._watch.violate("no internal errors", f"{self.name} is told of one in its stream")
            return
        if chunk.get("usage"):
            heard.usage = chunk["usage"]
        for choice in chunk["choices"]:
            heard.text += choice["text"]
            heard.finish_reason = choice["finish_reason"] or heard.finish_reason

    def _note(self, exchange: Exchange) -> None:
        job_id = exchange.headers.get("x-job-id")
        if job_id is not None and job_id not in self.job_ids:
            self.job_ids.append(job_id)

    # -- what it checks --------------------------------------------------------------------------

    def _check_end(self, exchange: Exchange, heard: Heard) -> None:
        self._note(exchange)
        job_id = exchange.headers["x-job-id"]
        charge = exchange.headers.get("x-mlxnet-charge-umlx")
        if charge is not None:
            self.charges[job_id] = int(charge)
        self.check_text(job_id, heard)

    def check_text(self, job_id: str, heard: Heard) -> None:
        """L6: what was read is the model's own sequence, from its start, without gap or repeat."""
        if self._watch.is_false(job_id):
            return
        if not self.text.startswith(heard.text):
            at = next((n for n, (a, b) in enumerate(zip(heard.text, self.text, strict=False)) if a != b), -1)
            self._watch.violate("L6 tokens", f"{job_id}: the answer differs from the model's at {at}")
        if heard.finish_reason is None:
            return
        if heard.text != self.text or heard.finish_reason != self.finish_reason:
            self._watch.violate(
                "L6 tokens",
                f"{job_id}: ended as {heard.finish_reason} with {len(heard.text)} characters; "
                f"the model's answer ends as {self.finish_reason} with {len(self.text)}",
            )
        if heard.usage and heard.usage["completion_tokens"] != self.tokens:
            self._watch.violate("L6 tokens", f"{job_id}: usage {heard.usage}, tokens {self.tokens}")

    # -- asynchronous jobs -----------------------------------------------------------------------

    async def _run_async(self) -> None:
        job_id = None
        for _ in range(8):
            try:
                exchange = self._send(
                    jobs_api.submit,
                    {"kind": "completions", "request": self._body},
                    self._headers(),
                    may_submit=True,
                )
                body = json.loads(await exchange.whole())
            except BrokenError:
                if not self.spec.has_key and not self._was_refused:
                    return
            else:
                self._note(exchange)
                self._watch.tell(self.name, f"is answered {exchange.status} {_code(body)}")
                if exchange.status == 202:
                    job_id = body["id"]
                    break
                if exchange.status not in RETRY_STATUSES:
                    return
            await asyncio.sleep(self._draws.uniform(0.5, 5.0))
        if job_id is None:
            return
        if self.spec.cancels_after is not None:
            _ = self._loop.start(self._cancel_later(job_id, self.spec.cancels_after))
        await self._follow(job_id)
        await self._fetch(job_id)

    async def _cancel_later(self, job_id: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._cancel(job_id)

    async def _cancel(self, job_id: str) -> None:
        self._watch.tell(self.name, f"cancels {job_id}")
        for _ in range(10):
            try:
                exchange = self._send(lambda request: jobs_api.cancel(request, job_id))
                _ = await exchange.whole()
            except BrokenError:
                pass
            else:
                if exchange.status == 200:
                    return
            await asyncio.sleep(self._draws.uniform(0.5, 5.0))

    async def _follow(self, job_id: str) -> None:
        """Read the events, leave once in the middle, and go on where it was."""
        heard = Heard()
        leaves = self.spec.leaves_after
        for _ in range(10):
            headers = {"last-event-id": str(heard.last_id)} if heard.last_id else {}
            exchange = self._send(lambda request: jobs_api.events(request, job_id, None), None, headers)
            watcher = self._leave_later(exchange, leaves)
            try:
                if await self._hear(exchange, heard) is not None:
                    self.check_text(job_id, heard)
                    return
            except BrokenError:
                self.check_text(job_id, heard)
            finally:
                watcher.cancel()
            leaves = None
            if exchange.status == 410:
                return
            await asyncio.sleep(self._draws.uniform(0.1, 5.0))

    async def _fetch(self, job_id: str) -> None:
        """Ask for the result until there is one, or none will come."""
        for _ in range(400):
            try:
                exchange = self._send(lambda request: jobs_api.result(request, job_id))
                body = json.loads(await exchange.whole())
            except BrokenError:
                pass
            else:
                code = _code(body)
                if exchange.status == 200:
                    (choice,) = body["choices"]
                    self.check_text(job_id, Heard(choice["text"], finish_reason=choice["finish_reason"]))
                    return
                if exchange.status not in RETRY_STATUSES and code != "job_not_ended":
                    self._watch.tell(self.name, f"has no result: {exchange.status} {code}")
                    return
            await asyncio.sleep(5.0)

    # -- asking ----------------------------------------------------------------------------------

    def _send(
        self,
        endpoint: Endpoint,
        body: object = None,
        headers: dict[str, str] | None = None,
        *,
        may_submit: bool = False,
    ) -> Exchange:
        exchange = Exchange(self._loop, self._draws).with_body(json.dumps(body).encode())
        life = self._coordinator.life
        if life is None or not self._coordinator.is_serving:
            # Nobody listened, so that another try is no second job.
            self._was_refused = True
            exchange.break_off()
            return exchange
        self._was_refused = False
        self.requests += may_submit
        self.open.add(exchange)
        names = {"authorization": f"Bearer {self.account.api_key}", **(headers or {})}
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in names.items()],
            "app": self._coordinator.app,
        }
        _ = self._loop.start(self._serve(endpoint, scope, exchange), life)
        return exchange

    async def _serve(self, endpoint: Endpoint, scope: dict[str, Any], exchange: Exchange) -> None:
        """What the framework does around an endpoint."""
        request = Request(scope, exchange.receive)
        try:
            response = await endpoint(request)
        except ApiError as error:
            response = respond_with(error)
        except ClientDisconnect:
            response = Response(status_code=STATUS_GONE)
        except DATABASE_ERRORS:
            response = respond_with(ApiError(503, "database_unavailable", "", type="server_error"))
        except Exception as error:
            self._watch.internal_error(error)
            response = respond_with(errors.internal_error("simulated"))
        try:
            await response(scope, exchange.receive, exchange.send)
        except DATABASE_ERRORS:
            pass  # a background task's: the answer is out
        finally:
            self.open.discard(exchange)


def _code(body: Any) -> str:
    try:
        return str(body["error"]["code"])
    except (KeyError, TypeError):
        return ""
