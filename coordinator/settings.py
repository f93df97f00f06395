"""Every setting of the coordinator, with its unit and why it has the value it has.

Values come from the environment (`MLXNET_…`) or from the caller; nothing else reads the
environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")


class Settings(BaseSettings):
    """Settings of one coordinator process."""

    model_config = SettingsConfigDict(env_prefix="MLXNET_", extra="ignore")

    # -- where things are
    home: Path = Path.home() / ".mlx-network"
    host: str = "127.0.0.1"
    port: int = Field(default=8400, ge=0, le=65535)
    public_url: str | None = None  # origin that nodes sign for; default http://host:port
    database_url: SecretStr | None = None  # default: SQLite in `home`
    redis_url: SecretStr | None = None  # default: wake-ups inside the process
    models_dir: Path | None = None  # for cards whose source is a local folder
    catalogue_dirs: tuple[Path, ...] = ()  # further folders of cards, beside the built-in ones

    # -- limits
    body_bytes_max: int = 8 << 20  # the largest prompts in use are under 2 MiB of text
    body_seconds_max: float = 60.0  # 8 MiB at 1 Mbit/s; a slower body holds a connection for nothing
    enrolments_per_address_max: int = 20  # in `enrolment_seconds`: a household's Macs, several tries
    # An account's, in `enrolment_seconds`, while a code lives: a guess meets one of the most codes
    # that may wait with a chance of 1 in 850 million, and nobody mistypes twenty.
    wrong_codes_per_account_max: int = 20
    answer_tokens_default: int = 4096  # bounds the hold of requests that name no limit
    template_seconds_max: float = 2.0  # real templates take under 5 ms; this stops loops
    jobs_per_account_max: int = 64  # queued or running at once; more gets 429
    idempotency_key_chars_max: int = 255  # what other APIs of this shape accept

    # -- waiting for a host
    max_wait_seconds: float = 30.0  # below the 60 s after which common proxies give up
    max_wait_seconds_least: float = 1.0  # placing takes tens of milliseconds; "at once" means this
    max_wait_seconds_limit: float = 300.0  # what the header may ask for
    offer_seconds_max: float = 10.0  # a healthy node answers an offer in milliseconds
    attempts_max: int = 3  # a job that fails on three hosts is likely at fault itself
    losses_max: int = 5  # in a row and without one new token: no network is that bad by chance
    fault_pause_seconds: float = 30.0  # after a Mac's first fault; doubles with each one more
    fault_pause_seconds_max: float = 3600.0  # an owner who mends a Mac sees it work again today
    resume_wait_seconds: float = 45.0  # a stream that has begun waits so long: over the first pause
    queue_seconds_max: float = 2 * 86_400.0  # a queued job ends then; its hold lives far longer

    # -- placement
    residency_seconds: float = 60.0  # so often it is planned anew what idle Macs should hold
    overdue_seconds: float = 240.0  # waited so long, a job goes first: see placement.fairness
    # Of a Mac that does not say how fast it fetches models: a usual home's line, 100 Mbit/s.
    fetch_bytes_per_second: int = Field(default=12_500_000, gt=0)

    # -- leases
    heartbeat_seconds: float = 5.0  # one small frame a node; 3 missed make a node suspect
    node_suspect_seconds: float = 15.0
    node_lost_seconds: float = 30.0
    socket_grace_seconds: float = 2.0  # a node dials again within 0.7 s; its readers wait meanwhile
    restart_grace_seconds: float = 10.0  # after our own restart nodes get so long to come back
    progress_floor_seconds: float = 30.0  # least time without a token before a lease is lost
    progress_forecast_factor: float = 10.0  # and this many times the forecast for one step

    # -- streams
    keep_alive_seconds: float = 10.0  # comments on an idle stream; well under proxies' 60 s
    reader_stall_seconds: float = 60.0  # a reader that takes nothing for so long is cut
    rejoin_seconds: float = 60.0  # after our own restart readers get so long to come back
    drain_seconds: float = 10.0  # answers under way get so long to end when we are told to stop
    prefix_seconds: float = 1.0  # what was delivered is stored so often; a crash makes the rest again
    stream_keep_seconds: float = 600.0  # a finished stream can be read again for so long
    result_keep_seconds: float = 86_400.0  # an unfetched asynchronous result

    # -- money
    hold_seconds: float = 7 * 86_400.0  # a hold outlives every job that can run on it

    quote_seconds: float = 60.0  # time to decide; a rate card is announced two weeks ahead
    quotes_per_minute_max: int = 120  # an account's: each renders a prompt and costs nothing

    # -- enrolment
    enrolment_seconds: float = 900.0  # time to walk over to another screen and type a code
    enrolments_pending_max: int = 1000

    @property
    def sqlalchemy_url(self) -> str:
        """The database's URL; SQLite in the home folder unless one is set."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.home / 'coordinator.sqlite3'}"

    @property
    def origin(self) -> str:
        """Scheme, host and port that nodes and clients use."""
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")

    @property
    def origins(self) -> tuple[str, ...]:
        """All that nodes may have typed for this coordinator: its origin, and on a loopback
        address the other names of it."""
        if self.public_url is None and self.host in LOOPBACK_HOSTS:
            return tuple(f"http://{host}:{self.port}" for host in LOOPBACK_HOSTS)
        return (self.origin,)
