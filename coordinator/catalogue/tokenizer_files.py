"""Tokenizers of the catalogue's cards: fetched once by a process of their own, then kept loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final, cast

import structlog

from coordinator.catalogue.cards import Catalogue
from coordinator.errors import ApiError
from coordinator.template_worker import TemplateWorkers
from coordinator.tokens import CardTokenizer
from node_agent.protocol.cards import ModelCard

log = structlog.get_logger()

FETCH_SECONDS_MAX: Final = 900.0  # a tokenizer may lie inside a package of 100 MB
REVISION_DIGITS: Final = 16


class Tokenizers:
    """One loaded tokenizer a card revision. Thread safe; callers of one card share its loading."""

    def __init__(
        self,
        home: Path,
        catalogue: Catalogue,
        *,
        models_dir: Path | None,
        template_seconds_max: float,
    ) -> None:
        self._home: Final = home / "tokenizers"
        self._catalogue: Final = catalogue
        self._models_dir: Final = models_dir
        self._workers: Final = TemplateWorkers(limit_seconds=template_seconds_max)
        self._loaded: Final[dict[str, CardTokenizer]] = {}
        self._locks: Final[dict[str, threading.Lock]] = {}
        self._lock: Final = threading.Lock()

    def get(self, card: ModelCard) -> CardTokenizer:
        """The card's tokenizer, fetched and loaded if need be.

        Raises `ApiError` (503) when its files cannot be had; the log says why.
        """
        with self._lock:
            lock = self._locks.setdefault(card.revision, threading.Lock())
        with lock:
            tokenizer = self._loaded.get(card.revision)
            if tokenizer is None:
                folder = self._folder(card)
                tokenizer = CardTokenizer(folder, self._workers, model_vocab=card.shape.vocab)
                self._loaded[card.revision] = tokenizer
            return tokenizer

    def close(self) -> None:
        """End the template workers."""
        self._workers.close()

    def _folder(self, card: ModelCard) -> Path:
        folder = self._home / f"{card.id}-{card.revision[:REVISION_DIGITS]}"
        if not (folder / "tokenizer.json").exists():
            self._fetch(card, folder)
        return folder

    def _fetch(self, card: ModelCard, folder: Path) -> None:
        command = [sys.executable, "-m", "node_agent.models", "tokenizer", "--json"]
        command += ["--card", str(self._catalogue.files[card.id]), "--out", str(folder)]
        if self._models_dir is not None:
            command += ["--models-dir", str(self._models_dir)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            reason = f"not finished after {FETCH_SECONDS_MAX:.0f} s"
        else:
            if done.returncode == 0:
                return
            reason = _last_message(done.stdout) or done.stderr.strip()[-500:]
        log.error("tokenizer_not_available", card=card.id, reason=reason)
        raise ApiError(
            503,
            "model_not_ready",
            f"The tokenizer of {card.id} is not available to the coordinator yet.",
            type="server_error",
            retry_after_seconds=30,
            should_retry=True,
        )


def _last_message(lines: str) -> str:
    for line in reversed(lines.splitlines()):
        try:
            event = cast("dict[str, Any]", json.loads(line))
        except ValueError:
            continue
        if "message" in event:
            return str(event["message"])
    return ""
