"""A repository of the hub as a model's files: names, sizes and digests, without the weights.

The hub tells the SHA-256 of every large file; small ones are fetched and hashed here. The library
of the `node` extra does the talking.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

import httpx2

from coordinator.catalogue.adding import INDEX, Found
from coordinator.catalogue.cards import CatalogueError
from coordinator.catalogue.safetensors import (
    TensorsOfFile,
    WeightsFaultError,
    check_index,
    check_tensors,
)
from node_agent.protocol.card_rules import RefusedModelError, wanted_names
from node_agent.protocol.cards import HubFile, HubRepo

# The hub keeps larger files aside, and tells their digests.
SMALL_FILE_BYTES_MAX: Final = 64 * 1024**2
LENGTH_BYTES: Final = 8


def look_at_repo(repo: str, revision: str, cache: Path) -> Found:
    """A repository at a revision (a branch, a tag or a commit; the card gets the commit).

    Raises `CatalogueError` with the reason if it cannot be had or is refused.
    """
    if find_spec("huggingface_hub") is None:
        raise CatalogueError(f"{repo}: the hub's library is missing: pip install 'mlx-network[node]'")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    api: Any = huggingface_hub.HfApi()
    fetch = cast("Callable[..., str]", getattr(huggingface_hub, "hf_hub_download"))  # noqa: B009
    try:
        info: Any = api.model_info(repo, revision=revision, files_metadata=True)
        commit = str(info.sha)

        def local(name: str) -> Path:
            return Path(fetch(repo, name, revision=commit, local_dir=str(cache)))

        return _found(repo, commit, info, api, local)
    except (RefusedModelError, WeightsFaultError) as error:
        raise CatalogueError(f"{repo}: {error}") from None
    except (HfHubHTTPError, httpx2.HTTPError, OSError, ValueError) as error:
        raise CatalogueError(f"{repo}: not to be had from the hub: {error}") from None


def _found(repo: str, commit: str, info: Any, api: Any, local: Callable[[str], Path]) -> Found:
    listed = cast("list[Any]", info.siblings or [])
    siblings = {str(entry.rfilename): entry for entry in listed}
    names = wanted_names(siblings)
    files = tuple(_pinned(name, siblings[name], local) for name in names)
    weights = {
        file.name: _tensors(api, repo, commit, file) for file in files if file.name.endswith(".safetensors")
    }
    if INDEX in names:
        check_index(cast("Mapping[str, Any]", json.loads(local(INDEX).read_bytes())), weights)
    return Found(
        default_name=repo.rpartition("/")[2],
        licence=_licence(info),
        files=files,
        read=lambda name: local(name).read_bytes(),
        weights_bytes=sum(file.total_bytes for file in weights.values()),
        source=HubRepo(type="hub", repo=repo, revision=commit, files=files),
    )


def _pinned(name: str, entry: Any, local: Callable[[str], Path]) -> HubFile:
    if entry.lfs is not None:
        return HubFile(name=name, bytes=int(entry.lfs.size), sha256=str(entry.lfs.sha256))
    if (entry.size or 0) > SMALL_FILE_BYTES_MAX:
        raise RefusedModelError(f"{name}: the hub tells no SHA-256 of this file")
    content = local(name).read_bytes()
    return HubFile(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _tensors(api: Any, repo: str, commit: str, file: HubFile) -> TensorsOfFile:
    """The tensors of a file on the hub, from its header, which is all that is fetched of it."""
    metadata: Any = api.parse_safetensors_file_metadata(repo, file.name, revision=commit)
    header = {
        name: {"dtype": facts.dtype, "shape": facts.shape, "data_offsets": facts.data_offsets}
        for name, facts in metadata.tensors.items()
    }
    end = max((int(facts["data_offsets"][1]) for facts in header.values()), default=0)
    # The library does not tell the header's length; the file must be longer than its tensors by it.
    if not LENGTH_BYTES < file.bytes - end <= LENGTH_BYTES + max(file.bytes // 10, 1 << 20):
        raise WeightsFaultError(f"{file.name}: the header tells of {end} bytes, the file has {file.bytes}")
    return check_tensors(file.name, header, end)


def _licence(info: Any) -> str | None:
    tags = [str(tag) for tag in cast("list[object]", info.tags or [])]
    named = [tag.removeprefix("license:") for tag in tags if tag.startswith("license:")]
    return named[0] if named else None
