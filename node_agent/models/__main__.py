"""Fetch a card's files, or its tokenizer alone, as a process.

    python -m node_agent.models fetch --card CARD.toml [--json]
    python -m node_agent.models tokenizer --card CARD.toml --out DIR [--json]

Neither needs mlx except for the conversion of a GGUF, which runs in a child of its own.
Exit codes: 0 done, 1 not available, 2 the card is not valid.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import tomllib
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from node_agent.models.admit import RefusedModelError
from node_agent.models.files import ModelUnavailableError
from node_agent.models.store import TOKENIZER_FILES, ModelStore
from node_agent.protocol.cards import ModelCard

PROGRESS_SECONDS: Final = 0.5


class Reporter:
    """Progress and results as JSON lines or as plain text, on standard output."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._last_seconds = 0.0

    def progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._last_seconds >= PROGRESS_SECONDS:
            self._last_seconds = now
            self.say("progress", f"{done} of {total} bytes", done_bytes=done, total_bytes=total)

    def say(self, event: str, text: str, **facts: object) -> None:
        line = json.dumps({"event": event, **facts}) if self._as_json else text
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def fail(self, message: str) -> None:
        if self._as_json:
            self.say("error", message, message=message)
        else:
            sys.stderr.write(message + "\n")


def read_card(path: Path) -> ModelCard:
    """Parse a card, TOML or (by its suffix) JSON. Raises `ValueError` naming the field, `OSError`."""
    try:
        if path.suffix == ".json":
            return ModelCard.model_validate_json(path.read_bytes())
        return ModelCard.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path}: {place}: {first['msg']}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None


def _copy_tokenizer(folder: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (folder / name).exists():
            partial = out / f".{name}.part"
            shutil.copyfile(folder / name, partial)
            partial.replace(out / name)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m node_agent.models", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("fetch", "tokenizer"):
        command = commands.add_parser(name)
        command.add_argument("--card", type=Path, required=True)
        command.add_argument("--cache", type=Path)
        command.add_argument("--models-dir", type=Path)
        command.add_argument("--json", action="store_true")
        if name == "tokenizer":
            command.add_argument("--out", type=Path, required=True)
    return parser


def main() -> int:
    chosen = _arguments().parse_args()
    reporter = Reporter(chosen.json)
    try:
        card = read_card(chosen.card)
    except (ValueError, OSError) as error:
        reporter.fail(str(error))
        return 2
    store = ModelStore(chosen.cache, chosen.models_dir)
    try:
        if chosen.command == "fetch":
            folder = store.fetch(card, reporter.progress)
        else:
            _copy_tokenizer(store.tokenizer(card, reporter.progress), chosen.out)
            folder = chosen.out
    except (ModelUnavailableError, RefusedModelError, OSError) as error:
        reporter.fail(str(error))
        return 1
    reporter.say("done", str(folder), folder=str(folder), revision=card.revision)
    return 0


if __name__ == "__main__":
    sys.exit(main())
