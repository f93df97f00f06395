"""What is done in a coordinator's folder beside the coordinator: its settings read, an account made."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from coordinator.accounts.service import AccountError, create_account, create_key
from coordinator.client import ClientError
from coordinator.db import Database, DatabaseFull, DatabaseUnavailable, make_engine, migrate
from coordinator.policy.local_operators import ensure_local_budgets
from coordinator.policy.operator_keyfile import KeyFileError
from coordinator.settings import Settings


def read_settings(home: Path, **given: object) -> Settings:
    """Settings from the environment and what was `given`. Raises `ClientError` naming the setting."""
    chosen = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings.model_validate(Settings(home=home).model_dump() | chosen)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = "MLXNET_" + "_".join(str(part) for part in first["loc"]).upper()
        raise ClientError(f"{name}: {first['msg']}") from None


def make_account(home: Path, name: str, *, grant_umlx: int, is_operator: bool) -> tuple[str, str]:
    """Make an account and a key in the coordinator's database: (account id, key).

    A grant is drawn from a budget; a network without operators' keys gets local ones in `home`
    that sign it. Raises `ClientError`.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = read_settings(home)
    try:
        engine = make_engine(settings.sqlalchemy_url)
        migrate(engine)
    except (DatabaseUnavailable, DatabaseFull, OSError, ValueError) as error:
        raise ClientError(str(error)) from error
    database = Database(engine)
    try:
        with database.write() as session:
            if grant_umlx:
                _ = ensure_local_budgets(session, home, now_us=database.now_us(session))
            account = create_account(session, name, grant_umlx=grant_umlx, is_operator=is_operator)
            return account.id, create_key(session, account, "first")
    except (AccountError, KeyFileError, OSError) as error:
        raise ClientError(str(error)) from None
    finally:
        database.close()
