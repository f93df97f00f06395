"""What one node is told: its home folder, its configuration, and how it treats the network."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class SettingsError(ValueError):
    """A setting is wrong; the text names it and says what to do."""


class LinkSettings(BaseSettings):
    """How the socket is held (environment: MLXNODE_LINK_...). Durations in seconds."""

    model_config = SettingsConfigDict(env_prefix="MLXNODE_LINK_", frozen=True)

    # A socket that was steady is dialled again almost at once: most losses are of the moment, and
    # the coordinator gives work away after 2 s. The draw keeps a fleet from coming back at once.
    first_wait_seconds_max: float = Field(default=0.2, ge=0)
    # After further failures: full jitter up to a bound that doubles from the first to the last.
    backoff_seconds_min: float = Field(default=0.5, gt=0)
    backoff_seconds_max: float = Field(default=30.0, gt=0)
    challenge_seconds: float = Field(default=10.0, gt=0)
    # A socket that nobody answers on is given up after both: well before the coordinator, which
    # waits 30 s, gives this node's work to others.
    ping_seconds: float = Field(default=5.0, gt=0)
    pong_seconds: float = Field(default=10.0, gt=0)
    # Frames waiting for a coordinator that reads too slowly; beyond it the socket is renewed.
    data_frames_max: int = Field(default=4096, gt=0)


class NodeConfig(BaseModel):
    """What enrolment decided and the owner chose; `config.json` in the node's home."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    coordinator: str
    node_id: str
    name: str
    owner: str = ""
    width: Annotated[int, Field(ge=1, le=64)] = 8
    models_max: Annotated[int, Field(ge=1, le=16)] = 4
    lend_gib: Annotated[float, Field(gt=0)] | None = None
    models_dir: str | None = None
    # When this Mac is usually lent, in six steps an hour of the week: jobs that would not end in
    # time go elsewhere. False: nothing of it is learnt or told.
    share_habits: bool = True
    place: Literal["none", "country", "area"] = "none"
    place_country: Annotated[str, Field(max_length=2)] = ""
    place_cell: Annotated[str, Field(max_length=15)] = ""
    place_sequence: Annotated[int, Field(ge=0)] = 0


def default_home() -> Path:
    """`MLXNODE_HOME`, or `.mlx-node` in the user's home folder."""
    return Path(os.environ.get("MLXNODE_HOME") or Path.home() / ".mlx-node").expanduser()


def origin_of(url: str) -> str:
    """The coordinator's origin, `scheme://host[:port]`, as it was typed.

    Raises `SettingsError` for anything but an http or https address without path or password.
    """
    parts = urlsplit(url.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError(f"{url!r}: expected an address like https://network.example.org")
    if parts.username or parts.password:
        raise SettingsError("the coordinator's address must not hold a user name or password")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise SettingsError(f"{url!r}: only scheme, host and port are allowed")
    return f"{parts.scheme}://{parts.netloc}"


def config_path(home: Path) -> Path:
    return home / "config.json"


def load_config(home: Path) -> NodeConfig | None:
    """The node's configuration, or None before it joined. Raises `SettingsError`."""
    path = config_path(home)
    try:
        return NodeConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "file"
        raise SettingsError(
            f"{path}: {place}: {first['msg']}. Correct it, or remove the file and join again"
        ) from None


def save_config(home: Path, config: NodeConfig) -> None:
    write_atomically(config_path(home), config.model_dump_json(indent=2).encode() + b"\n")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, readable by this user alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
