"""A whole network on one machine: a coordinator and a few nodes as real processes.

`mlx-network up` and `mlx-network demo` run on this. Everything goes through the same doors as on
many machines: nodes enrol by code, dial the coordinator's socket, and keep their own keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from sqlalchemy import select

from coordinator.accounts.models import Account
from coordinator.accounts.service import create_account, create_key
from coordinator.catalogue.cards import load_catalogue
from coordinator.client import CONFIG_FILE, Access, Client, ClientError
from coordinator.db import Database, make_engine, migrate
from coordinator.policy.local_operators import ensure_local_budgets
from coordinator.settings import Settings
from coordinator.sole_use import InUseError, SoleUse

GRANT_UMLX: Final = 1_000_000_000  # 1,000 MLX: a few hundred million tokens of the small model
OWNERS: Final = ("Ada", "Bo", "Cem", "Dua")
START_SECONDS_MAX: Final = 60.0
READY_SECONDS_MAX: Final = 900.0
STOP_SECONDS_MAX: Final = 15.0
POLL_SECONDS: Final = 0.2
LEND_GIB_MAX: Final = 5.0
LEND_SHARE: Final = 0.35  # of the machine's memory, at most, by each local node

Report = Callable[[str, int, int], None]


class LocalError(Exception):
    """Why the local network did not come up, and what to do."""


@dataclass
class LocalNode:
    """One node of the local network."""

    name: str
    owner: str
    home: Path
    process: subprocess.Popen[str]


@dataclass
class LocalNetwork:
    """Start with `start`, end with `stop`; `keys` are the accounts' API keys by name."""

    home: Path
    port: int
    nodes_wanted: int = 2
    report: Report = lambda _what, _done, _total: None
    node_options: tuple[str, ...] = ()  # further options of `mlx-node join`, for every node
    catalogue_dirs: tuple[Path, ...] = ()  # further cards, and the alias `small` to wait for
    models_dir: Path | None = None  # for cards whose source is a local folder
    environment: dict[str, str] = field(default_factory=dict[str, str])  # of all its processes
    join_url: str | None = None  # where nodes dial, if something stands between them and the coordinator
    keys: dict[str, str] = field(default_factory=dict[str, str])
    nodes: list[LocalNode] = field(default_factory=list[LocalNode])
    _coordinator: subprocess.Popen[str] | None = None
    _clients: dict[str, Client] = field(default_factory=dict[str, Client])
    _logs: list[TextIO] = field(default_factory=list[TextIO])

    @property
    def url(self) -> str:
        """The coordinator's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def coordinator_pid(self) -> int | None:
        """The coordinator's process, or None before it is started."""
        return self._coordinator.pid if self._coordinator is not None else None

    def client(self, account: str) -> Client:
        """A client with this account's key."""
        if account not in self._clients:
            self._clients[account] = Client(Access(self.url, self.keys[account]))
        return self._clients[account]

    def _environment(self) -> dict[str, str]:
        found = os.environ | {"MLXNET_HOME": str(self.home)} | self.environment
        if self.catalogue_dirs:
            found["MLXNET_CATALOGUE_DIRS"] = json.dumps([str(path) for path in self.catalogue_dirs])
        if self.models_dir is not None:
            found["MLXNET_MODELS_DIR"] = found["MLXNODE_MODELS_DIR"] = str(self.models_dir)
        return found

    # -- starting --------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring everything up; returns when every node has the small model loaded.

        Raises `LocalError`. What was started until then is ended by `stop`.
        """
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._check_home()
        self._choose_port()
        self._fetch_model()
        self._make_accounts()
        self._start_coordinator()
        for owner in OWNERS[: self.nodes_wanted]:
            self._start_node(owner)
        self._await_ready()

    def _check_home(self) -> None:
        """Change nothing in a home in which a coordinator runs."""
        engine = make_engine(Settings(home=self.home).sqlalchemy_url)
        sole_use = SoleUse(engine)
        try:
            sole_use.acquire()
        except InUseError as error:
            raise LocalError(str(error)) from None
        finally:
            sole_use.release()
            engine.dispose()

    def _choose_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError as error:
                raise LocalError(
                    f"port {self.port} cannot be used ({error.strerror}): end what listens there, "
                    "or choose another with --port"
                ) from None
            self.port = probe.getsockname()[1]

    def _fetch_model(self) -> None:
        catalogue = load_catalogue(self.catalogue_dirs)
        card = catalogue.resolve("small")
        if card is None:
            raise LocalError("the catalogue has no model named 'small'")
        command = [sys.executable, "-m", "node_agent.models", "fetch", "--json"]
        command += ["--card", str(catalogue.files[card.id])]
        self.report("model", 0, 0)
        environment = self._environment()
        # In a session of its own, so that Ctrl-C reaches this process alone, which then ends it.
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        ) as child:
            message = ""
            try:
                for event in _json_lines(child.stdout):
                    if event.get("event") == "progress":
                        self.report("model", int(event["done_bytes"]), int(event["total_bytes"]))
                    message = str(event.get("message", message))
            except BaseException:
                child.terminate()
                raise
        if child.returncode != 0:
            raise LocalError(message or f"fetching {card.id} failed with exit code {child.returncode}")
        self.report("model", 1, 1)

    def _make_accounts(self) -> None:
        """Accounts and keys, made once; the keys stay in a file that only the user can read."""
        path = self.home / "keys.json"
        if path.exists():
            self.keys = json.loads(path.read_text("utf-8"))
        settings = Settings(home=self.home, port=self.port)
        engine = make_engine(settings.sqlalchemy_url)
        migrate(engine)
        database = Database(engine)
        wanted = [("Sam", GRANT_UMLX, False), ("Operator", 0, True)]
        wanted += [(owner, 0, False) for owner in OWNERS[: self.nodes_wanted]]
        with database.write() as session:
            _ = ensure_local_budgets(session, self.home, now_us=database.now_us(session))
            for name, grant_umlx, is_operator in wanted:
                account = session.scalar(select(Account).where(Account.name == name))
                if account is None:
                    account = create_account(session, name, grant_umlx=grant_umlx, is_operator=is_operator)
                if name not in self.keys:
                    self.keys[name] = create_key(session, account, "local")
        database.close()
        _write_private(path, self.keys)
        _write_private(self.home / CONFIG_FILE, {"url": self.url, "api_key": self.keys["Sam"]})

    def _start_coordinator(self) -> None:
        self.report("coordinator", 0, 1)
        command = [sys.executable, "-m", "coordinator", "serve", "--port", str(self.port)]
        log = self._log("coordinator")
        self._coordinator = subprocess.Popen(
            command, stdout=log, stderr=log, text=True, env=self._environment(), start_new_session=True
        )
        client = self.client("Operator")
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._coordinator.poll() is not None:
                raise LocalError(f"the coordinator ended at once: see {log.name}\n{_tail(log.name)}")
            with contextlib.suppress(ClientError):
                _ = client.get("/v1/models")
                self.report("coordinator", 1, 1)
                return
            time.sleep(POLL_SECONDS)
        raise LocalError(f"the coordinator does not answer: see {log.name}")

    def restart_coordinator(self) -> None:
        """Kill the coordinator and start another one on the same database. Raises `LocalError`."""
        if self._coordinator is not None:
            self._coordinator.kill()
            _ = self._coordinator.wait()
        self._start_coordinator()

    def restart_node(self, node: LocalNode) -> None:
        """Kill the node's agent and start another one in its home. Raises `LocalError`."""
        node.process.kill()
        _reap(node.process)
        self.nodes.remove(node)
        self._start_node(node.owner)

    def _start_node(self, owner: str) -> None:
        name = f"{owner}'s Mac"
        home = self.home / "nodes" / owner.lower()
        command = [sys.executable, "-m", "node_agent", "join", self.join_url or self.url, "--json"]
        command += ["--home", str(home), "--name", name, "--lend-gib", f"{_lend_gib():.2f}"]
        command += self.node_options
        log = self._log(f"node-{owner.lower()}")
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # Each stands for a Mac of its own; by themselves they would be told as one.
            env=self._environment() | {"MLXNODE_DEVICE_ID": str(home)},
            start_new_session=True,
        )
        self.nodes.append(LocalNode(name, owner, home, process))
        if (home / "config.json").exists():
            return
        for event in _json_lines(process.stdout):
            if event.get("event") == "code":
                _ = self.client(owner).post("/v1/nodes/approve", {"code": event["code"]})
            if event.get("event") == "joined":
                return
        raise LocalError(f"{name} did not join: see {log.name}\n{_tail(log.name)}")

    def _await_ready(self) -> None:
        client = self.client("Sam")
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            small = client.get("/v1/models/small")
            warm = int(small["macs_warm_now"])
            self.report("nodes", warm, len(self.nodes))
            if warm == len(self.nodes):
                return
            for node in self.nodes:
                if node.process.poll() is not None:
                    path = self.home / "logs" / f"node-{node.owner.lower()}.log"
                    raise LocalError(f"{node.name} ended: see {path}\n{_tail(str(path))}")
            time.sleep(POLL_SECONDS)
        raise LocalError("the nodes did not load the model in time; see the logs in the home folder")

    # -- ending ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the nodes, then the coordinator; whatever does not go in time is killed."""
        for node in self.nodes:
            _interrupt(node.process)
        for node in self.nodes:
            _reap(node.process)
        if self._coordinator is not None:
            _interrupt(self._coordinator)
            _reap(self._coordinator)
        for client in self._clients.values():
            client.close()
        for log in self._logs:
            log.close()

    def wait(self, on_node_gone: Callable[[LocalNode, Path], None]) -> Path:
        """Return when the coordinator ends by itself, or the last node does: the log to look at.

        A node that ends while others run is told to `on_node_gone`; its work goes to them.
        """
        running = list(self.nodes)
        while True:
            if self._coordinator is None or self._coordinator.poll() is not None:
                return self._log_path("coordinator")
            for node in list(running):
                if node.process.poll() is not None:
                    running.remove(node)
                    on_node_gone(node, self._log_path(f"node-{node.owner.lower()}"))
            if self.nodes and not running:
                return self._log_path(f"node-{self.nodes[-1].owner.lower()}")
            time.sleep(POLL_SECONDS)

    def _log_path(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def _log(self, name: str) -> TextIO:
        path = self._log_path(name)
        path.parent.mkdir(exist_ok=True)
        log = path.open("a", encoding="utf-8")
        self._logs.append(log)
        return log


def _lend_gib() -> float:
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return min(LEND_GIB_MAX, LEND_SHARE * pages * page_bytes / (1 << 30))


def _json_lines(stream: Any) -> Iterator[dict[str, Any]]:
    for line in stream or ():
        with contextlib.suppress(ValueError):
            event: object = json.loads(line)
            if isinstance(event, dict):
                yield event


def _write_private(path: Path, content: dict[str, str]) -> None:
    partial = path.with_suffix(".part")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
    partial.replace(path)


def _tail(path: str, lines: int = 15) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(Path(path).read_text("utf-8", "replace").splitlines()[-lines:])
    return ""


def _interrupt(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)


def _reap(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
