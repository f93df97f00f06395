"""The habits of this Mac as a file in the node's home, kept only if the owner lets them be told."""

from __future__ import annotations

from pathlib import Path
from typing import Final, final

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from node_agent.habits import Habits, are_counts
from node_agent.settings import write_atomically

log = structlog.get_logger()

FILE: Final = "habits.json"


class _Stored(BaseModel):
    model_config = ConfigDict(extra="ignore")

    began: list[float]
    stayed: list[float]


@final
class HabitBook:
    """Habits that outlive the process. Without `is_told` nothing is learnt, and what was is removed."""

    def __init__(self, home: Path, *, is_told: bool) -> None:
        self._path: Final = home / FILE
        self._is_told: Final = is_told
        self._habits: Final = Habits()
        if is_told:
            self._load()
        else:
            self._path.unlink(missing_ok=True)
        self._told = self._habits.told()

    def _load(self) -> None:
        try:
            found = _Stored.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError):
            log.warning("habits_not_read", file=str(self._path))
            return
        if are_counts(found.began, found.stayed):
            self._habits.began, self._habits.stayed = found.began, found.stayed

    def look(self, unix_seconds: float, *, is_lent: bool) -> None:
        """Note whether the Mac is lent now; at least every few minutes."""
        if self._is_told and self._habits.look(unix_seconds, is_lent=is_lent):
            self._told = self._habits.told()
            self._save()

    def told(self) -> tuple[float, ...]:
        """What may be told of the habits: 168 chances in few steps, or nothing."""
        return self._told

    def _save(self) -> None:
        content = _Stored(began=self._habits.began, stayed=self._habits.stayed).model_dump_json()
        try:
            write_atomically(self._path, content.encode())
        except OSError:  # a full disk must not end the work
            log.warning("habits_not_written", file=str(self._path))
