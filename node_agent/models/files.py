"""Files fetched over HTTP, resumable and checked: the part that knows no cards."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx2

BLOCK_BYTES: Final = 1 << 20
HTTP_PARTIAL_CONTENT: Final = 206
# Kept free beside what a download needs, so that a full disk never harms the owner.
DISK_MARGIN_BYTES: Final = 512 * 1024**2
HTTP_TIMEOUT: Final = httpx2.Timeout(30.0, connect=15.0)

# done bytes, total bytes
OnProgress = Callable[[int, int], None]


class ModelUnavailableError(Exception):
    """A model's files cannot be had; the text says why and what to do."""


class DiskShortError(ModelUnavailableError):
    """The disk has too little room for the files."""

    def __init__(self, folder: Path, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            f"{folder}: {needed_bytes} bytes are needed, {free_bytes} are free. Free some space,"
            " or set MLXNET_CACHE to a folder on a larger disk"
        )
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class HashMismatchError(ModelUnavailableError):
    """A file's content is not the one that its card pins."""

    def __init__(self, name: str, expected: str, found: str) -> None:
        super().__init__(
            f"{name}: SHA-256 is {found}, the card pins {expected}. The file was changed or"
            " damaged: remove it and fetch it again, or report it to the coordinator"
        )


def no_progress(done: int, total: int) -> None:
    """A progress callback that does nothing."""


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raise `DiskShortError` unless `folder`'s disk has room for that and the margin."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + DISK_MARGIN_BYTES:
        raise DiskShortError(folder, needed_bytes + DISK_MARGIN_BYTES, free)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, expected_bytes: int, expected_sha256: str) -> None:
    """Raise `HashMismatchError` unless size and SHA-256 are the pinned ones."""
    size = path.stat().st_size
    if size != expected_bytes:
        raise HashMismatchError(path.name, f"{expected_bytes} bytes", f"of {size} bytes")
    found = sha256_of(path)
    if found != expected_sha256:
        raise HashMismatchError(path.name, expected_sha256, found)


def unreachable(url: str, error: Exception, *, put_at: Path | None = None) -> ModelUnavailableError:
    """What could not be reached, why, and the three ways out."""
    host = urlsplit(url).netloc or url
    place = f", or put the file at {put_at} and try again" if put_at is not None else ""
    return ModelUnavailableError(
        f"{host} could not be reached ({type(error).__name__}: {error}). Check the network; behind"
        f" a proxy set HTTPS_PROXY; to use another package index set MLXNET_PACKAGE_INDEX{place}"
    )


def download(
    client: httpx2.Client,
    url: str,
    target: Path,
    *,
    expected_bytes: int,
    expected_sha256: str,
    on_progress: OnProgress = no_progress,
) -> None:
    """Fetch `url` to `target`, going on where an earlier try stopped; checked before it appears.

    Raises `HashMismatchError` (the partial file is removed), `ModelUnavailableError`.
    """
    partial = target.with_name(target.name + ".part")
    done = partial.stat().st_size if partial.exists() else 0
    if done > expected_bytes:
        partial.unlink()
        done = 0
    if done < expected_bytes:
        try:
            _receive(client, url, partial, done, expected_bytes, on_progress)
        except httpx2.HTTPError as error:
            raise unreachable(url, error, put_at=target) from error
    try:
        check_file(partial, expected_bytes, expected_sha256)
    except HashMismatchError:
        partial.unlink()
        raise
    partial.replace(target)


def _receive(
    client: httpx2.Client,
    url: str,
    partial: Path,
    done: int,
    total: int,
    on_progress: OnProgress,
) -> None:
    headers = {"Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    with client.stream("GET", url, headers=headers) as response:
        response.raise_for_status()
        resumed = response.status_code == HTTP_PARTIAL_CONTENT
        done = done if resumed else 0
        with partial.open("ab" if resumed else "wb") as file:
            for block in response.iter_raw(BLOCK_BYTES):
                done += len(block)
                if done > total:
                    raise ModelUnavailableError(f"{url}: more than the pinned {total} bytes came")
                file.write(block)
                on_progress(done, total)
            file.flush()
            os.fsync(file.fileno())
    if done < total:
        raise ModelUnavailableError(
            f"{url}: the connection ended after {done} of {total} bytes; try again, it resumes"
        )
