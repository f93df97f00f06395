"""What a running node tells its owner: a small file in its home, and a lock while it runs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError

from node_agent.settings import SettingsError, write_atomically


class HeldModel(BaseModel):
    """A model in memory or on its way there. `bytes`: what its process holds by now."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    card_id: str
    phase: str
    bytes: int = 0
    at_work: bool = False

    @property
    def text(self) -> str:
        """For people: its name, and how it is."""
        return f"{self.card_id} ({'at work' if self.at_work else self.phase})"


class Status(BaseModel):
    """A node as it was a second ago; holds no prompt, answer or job id.

    `card_id` and `card_phase` are those of the model that was used last, the first of `models`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    pid: int
    state: str
    coordinator: str
    name: str
    card_id: str | None = None
    card_phase: str | None = None
    models: tuple[HeldModel, ...] = ()
    attempts: int = 0
    unsettled: int = 0


def shown_models(status: Status) -> str:
    """The models for people; a node of an older version wrote only the one it had."""
    if status.models:
        return ", ".join(model.text for model in status.models)
    return f"{status.card_id} ({status.card_phase})" if status.card_id else "no model"


def write_status(home: Path, status: Status) -> None:
    write_atomically(home / "status.json", status.model_dump_json(indent=2).encode() + b"\n")


def read_status(home: Path) -> Status | None:
    """The status of the node that runs from this home, or None if none runs."""
    if not is_running(home):
        return None
    try:
        return Status.model_validate_json((home / "status.json").read_bytes())
    except (OSError, ValidationError):
        return None


def is_running(home: Path) -> bool:
    """Whether a process holds this home's lock; the system frees it when the process dies."""
    if not (home / "node.lock").exists():
        return False
    try:
        with FileLock(home / "node.lock", timeout=0):
            return False
    except Timeout:
        return True


@contextmanager
def running(home: Path) -> Generator[None, None, None]:
    """Hold the home's lock. Raises `SettingsError` if another process runs this node."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = FileLock(home / "node.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise SettingsError(
            f"{home}: this node runs already. Stop it first, or name another --home"
        ) from None
    try:
        yield
    finally:
        lock.release()
