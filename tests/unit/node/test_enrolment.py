"""Joining, against a coordinator on this machine that decides as the test says."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from node_agent import enrolment
from node_agent.identity import load_identity
from node_agent.protocol.messages import Hardware

HARDWARE = Hardware(memory_bytes=2, lent_bytes=1, bandwidth_bytes_per_second=1)
STARTED = {"code": "ABCD-EFGH", "poll_token": "t", "expires_in_seconds": 5.0, "poll_seconds": 0.0}

Answer = tuple[int, Any]


@contextmanager
def coordinator(*polls: Answer, start: Answer = (201, STARTED)) -> Generator[str]:
    """Answers an enrolment with `start` and its polls in turn; the last one is repeated."""
    left = list(polls)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(start)

        def do_GET(self) -> None:
            assert self.headers["Authorization"] == "Bearer t"
            self.answer(left.pop(0) if len(left) > 1 else left[0])

        def answer(self, answer: Answer) -> None:
            body = json.dumps(answer[1]).encode()
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def join(origin: str, home: Path) -> enrolment.Outcome:
    with httpx2.Client(timeout=5) as client:
        started = enrolment.start(client, origin, load_identity(home), "attic", HARDWARE)
        return enrolment.wait(client, origin, started)


def test_it_waits_through_pending_and_a_restart_until_approved(tmp_path: Path) -> None:
    pending = (200, {"state": "pending", "owner": None})
    approved = (200, {"state": "approved", "owner": "acct_1", "node_id": "node_1", "name": "attic"})
    with coordinator(pending, (503, {}), pending, approved) as origin:
        outcome = join(origin, tmp_path)
    assert (outcome.state, outcome.owner) == ("approved", "acct_1")


@pytest.mark.parametrize(
    ("poll", "words"),
    [
        ((200, {"state": "refused"}), "refused this node"),
        ((200, {"state": "expired"}), "join again"),
        ((404, {"error": "no"}), "does not know this enrolment: HTTP 404"),
        ((200, {"state": "maybe"}), "does not answer like"),
        ((200, "words"), "does not answer like"),
    ],
)
def test_every_other_outcome_is_told(poll: Answer, words: str, tmp_path: Path) -> None:
    with coordinator(poll) as origin, pytest.raises(enrolment.EnrolmentError, match=words):
        join(origin, tmp_path)


def test_a_refused_start_and_a_stranger_are_told(tmp_path: Path) -> None:
    with (
        coordinator((200, {}), start=(403, {"error": "signature"})) as origin,
        pytest.raises(enrolment.EnrolmentError, match="HTTP 403"),
    ):
        join(origin, tmp_path)
    with (
        coordinator((200, {}), start=(201, {"hello": "world"})) as origin,
        pytest.raises(enrolment.EnrolmentError, match="does not answer like"),
    ):
        join(origin, tmp_path)


def test_a_code_that_nobody_approves_runs_out(tmp_path: Path) -> None:
    short = STARTED | {"expires_in_seconds": 0.5}
    with (
        coordinator((200, {"state": "pending"}), start=(201, short)) as origin,
        pytest.raises(enrolment.EnrolmentError, match="expired unapproved"),
    ):
        join(origin, tmp_path)
