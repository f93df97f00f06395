"""How long a reader waits when its Mac dies, and how soon a cancelled job leaves its Mac."""

from __future__ import annotations

import json
import signal
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import psutil

from coordinator.local import LocalNode
from tests.chaos.network import ChaosNetwork

TOKENS: Final = 1900
BEGUN_TOKENS: Final = 30
WAIT_SECONDS: Final = 120.0
CANCEL_LOOK_SECONDS: Final = 4.0
CANCEL_TICK_SECONDS: Final = 0.1
IDLE_SHARE: Final = 0.25  # of one core; an idle runner only answers pings


@dataclass(frozen=True)
class Measured:
    """The longest of each, in seconds; None if it was not measured.

    Silent: the Mac stops without a word and its socket stays open. Closed: its processes are
    killed, and its system closes the socket. Cancel: from the request to an
    idle runner.
    """

    longest_silent_seconds: float | None = None
    longest_closed_seconds: float | None = None
    longest_cancel_seconds: float | None = None


def measure(network: ChaosNetwork, *, rounds: int) -> Measured:
    """Kill the Mac that answers, `rounds` times in each way, with nothing else going on."""
    if rounds == 0:
        return Measured()
    closed = [_closed(network) for _ in range(rounds)]
    cancels = [_cancel(network) for _ in range(rounds)]
    silent = [_silent(network) for _ in range(rounds)]
    return Measured(round(max(silent), 2), round(max(closed), 2), round(max(cancels), 2))


class _Reading(threading.Thread):
    """Reads one long answer and notes when each piece of it came."""

    def __init__(self, network: ChaosNetwork) -> None:
        super().__init__(daemon=True)
        self._network = network
        self.job_id = ""
        self.times: list[float] = []
        self.begun = threading.Event()
        self.error: str | None = None

    def run(self) -> None:
        body = {
            "model": "tiny",
            "prompt": f"Once {uuid.uuid4().hex}",
            "max_tokens": TOKENS,
            "temperature": 1,
            "seed": 1,
            "logit_bias": {"2": -100},
            "stream": True,
        }
        headers = {"Authorization": f"Bearer {self._network.local.keys['Sam']}"}
        with (
            httpx2.Client(base_url=self._network.local.url, headers=headers, timeout=WAIT_SECONDS) as http,
            http.stream("POST", "/v1/completions", json=body) as response,
        ):
            self.job_id = response.headers["x-job-id"]
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    self.error = str(event["error"]["code"])
                    self.begun.set()
                    return
                self.times.append(time.monotonic())
                if len(self.times) == BEGUN_TOKENS:
                    self.begun.set()

    def first_after(self, moment: float) -> float:
        """Seconds from `moment` to the first piece that came behind a pause that began there."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            later = [at for at in self.times if at > moment + 0.3]
            if later:
                return later[0] - moment
            if self.error is not None:
                raise RuntimeError(f"the answer ended with {self.error}")
            time.sleep(0.02)
        raise RuntimeError("the answer did not go on")


def _begin(network: ChaosNetwork) -> tuple[_Reading, LocalNode]:
    """A long answer under way, and the node that gives it."""
    reading = _Reading(network)
    reading.start()
    if not reading.begun.wait(WAIT_SECONDS) or reading.error is not None:
        raise RuntimeError(f"no answer began ({reading.error})")
    job = network.local.client("Sam").get(f"/v1/jobs/{reading.job_id}")
    node_id = job["attempts"][-1]["node"]
    for node in network.local.nodes:
        own = network.local.client(node.owner).get("/v1/nodes")["data"]
        if any(one["id"] == node_id for one in own):
            return reading, node
    raise RuntimeError(f"nobody owns {node_id}")


def _closed(network: ChaosNetwork) -> float:
    reading, node = _begin(network)
    moment = time.monotonic()
    network.kill_node(node)
    waited = reading.first_after(moment)
    network.local.restart_node(node)
    _settle(network, reading)
    return waited


def _silent(network: ChaosNetwork) -> float:
    reading, node = _begin(network)
    moment = time.monotonic()
    network.signal_node(node, signal.SIGSTOP)
    try:
        waited = reading.first_after(moment)
    finally:
        network.signal_node(node, signal.SIGCONT)
    _settle(network, reading)
    return waited


def _cancel(network: ChaosNetwork) -> float:
    """Until the cancel is answered and the runner uses no more processor time."""
    reading, node = _begin(network)
    runner = network.runner_of(node)
    if runner is None:
        raise RuntimeError(f"{node.name} answers without a runner")
    moment = last_busy = time.monotonic()
    used = _cpu_seconds(runner)
    _ = network.local.client("Sam").post(f"/v1/jobs/{reading.job_id}/cancel")
    answered = time.monotonic()
    while time.monotonic() - moment < CANCEL_LOOK_SECONDS:
        time.sleep(CANCEL_TICK_SECONDS)
        now = _cpu_seconds(runner)
        if now - used > CANCEL_TICK_SECONDS * IDLE_SHARE:
            last_busy = time.monotonic()
        used = now
    return max(last_busy, answered) - moment


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _settle(network: ChaosNetwork, reading: _Reading) -> None:
    """Wait for the answer's end and for all Macs to be warm again."""
    reading.join(WAIT_SECONDS)
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        small = network.local.client("Sam").get("/v1/models/small")
        if int(small["macs_warm_now"]) == len(network.local.nodes):
            return
        time.sleep(0.2)
    raise RuntimeError("a Mac did not come back")
