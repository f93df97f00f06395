"""Run the self-test in a child process: MLX is never loaded into the agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import Final, cast

import structlog

from node_agent.protocol import messages as wire
from node_agent.runner.environment import runner_environment

log = structlog.get_logger()

MODULE: Final = "node_agent.hardware.selftest"
SPARE_SECONDS: Final = 60.0  # Python, MLX and the array's first touch come on top
OUTPUT_BYTES_MAX: Final = 4096


def parse_result(text: str, nonce: str) -> wire.SelfTestResult | None:
    """The child's line of JSON as the answer to the challenge `nonce`; None if it is not one."""
    try:
        found = cast("object", json.loads(text))
        return wire.SelfTestResult.model_validate(
            {**found, "nonce": nonce} if isinstance(found, dict) else {}
        )
    except ValueError:
        return None


async def run_self_test(
    test: wire.SelfTest, size_bytes: int, *, accelerated: bool
) -> wire.SelfTestResult | None:
    """Measure over `size_bytes` of memory; None if it could not be done. Cancelling kills the child."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", MODULE, "--bytes", str(size_bytes)),
        *("--warm-up-seconds", str(test.warm_up_seconds), "--measure-seconds", str(test.measure_seconds)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=runner_environment(os.environ, accelerated=accelerated),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(test.warm_up_seconds + test.measure_seconds + SPARE_SECONDS):
            out, err = await child.communicate()
    except TimeoutError:
        log.warning("self_test_failed", reason="it took too long")
        return None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
    result = parse_result(out[:OUTPUT_BYTES_MAX].decode("utf-8", "replace"), test.nonce)
    if result is None:
        reason = err[-OUTPUT_BYTES_MAX:].decode("utf-8", "replace").strip().splitlines()
        log.warning("self_test_failed", reason=reason[-1] if reason else "no result")
    return result
