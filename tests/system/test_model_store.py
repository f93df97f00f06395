"""The store against a real package index on this machine, which breaks connections on order."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import gguf
import pytest

from node_agent.models import files
from node_agent.models.admit import RefusedModelError, check_config, check_folder, check_names
from node_agent.models.files import DiskShortError, HashMismatchError, ModelUnavailableError
from node_agent.models.gguf_tokenizer import write_tokenizer
from node_agent.models.store import ModelStore, default_cache, files_of_folder
from node_agent.protocol.cards import ModelCard
from tests.properties.test_node_state import make_card

ROOT: Final = Path(__file__).parents[2]
MEMBER: Final = "tiny_model/tiny.gguf"
WHEEL: Final = "tiny_model-1.0-py3-none-any.whl"


class Index:
    """A package index (PEP 691) with ranges; `cut_after` bytes it drops a connection, once."""

    def __init__(self, wheel: bytes) -> None:
        self.wheel = wheel
        self.cut_after: int | None = None
        self.requests: list[tuple[str, str | None]] = []
        self.url = ""

    def listing(self) -> bytes:
        digest = hashlib.sha256(self.wheel).hexdigest()
        file = {"filename": WHEEL, "url": f"../../files/{WHEEL}", "hashes": {"sha256": digest}}
        return json.dumps({"meta": {"api-version": "1.0"}, "files": [file]}).encode()


@contextmanager
def index(wheel: bytes) -> Generator[Index]:
    state = Index(wheel)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.requests.append((self.path, wanted))
            is_file = self.path.endswith(WHEEL)
            body = state.wheel if is_file else state.listing()
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            if is_file and state.cut_after is not None:
                end, state.cut_after = start + state.cut_after, None
                self.wfile.write(body[start:end])
                self.wfile.flush()
                self.connection.close()
                return
            self.wfile.write(body[start:])

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/simple/"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def tiny_gguf(path: Path) -> bytes:
    """A real GGUF file with a byte-level tokenizer and no tensors that matter."""
    writer = gguf.GGUFWriter(path, "llama")
    tokens = ["<eos>", *(chr(256 + n) for n in range(40)), "a", "b", "ab"]
    writer.add_context_length(128)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture
def packaged(tmp_path: Path) -> tuple[ModelCard, bytes]:
    """A card whose GGUF lies in a wheel of some megabytes, and the wheel."""
    model = tiny_gguf(tmp_path / "tiny.gguf")
    write_tokenizer(tmp_path / "tiny.gguf", tmp_path / "pinned")
    with zipfile.ZipFile(tmp_path / WHEEL, "w") as archive:
        archive.writestr(MEMBER, model)
        archive.writestr("tiny_model/padding.bin", os.urandom(3 << 20))
    wheel = (tmp_path / WHEEL).read_bytes()
    pinned = {f.name: f.sha256 for f in files_of_folder(tmp_path / "pinned")}
    facts = make_card("tiny").model_dump(mode="json") | {
        "source": {
            "type": "packaged-gguf",
            "package": "tiny-model",
            "version": "1.0",
            "wheel": WHEEL,
            "wheel_bytes": len(wheel),
            "wheel_sha256": hashlib.sha256(wheel).hexdigest(),
            "member": MEMBER,
            "member_bytes": len(model),
            "member_sha256": hashlib.sha256(model).hexdigest(),
            "dequantise_to": "float32",
        },
        "tokenizer": {
            "eos_ids": [0],
            "tokenizer_sha256": pinned["tokenizer.json"],
            "chat_template_sha256": pinned["chat_template.jinja"],
        },
    }
    return ModelCard.model_validate(facts), wheel


def test_the_tokenizer_of_a_packaged_model(
    packaged: tuple[ModelCard, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, wheel = packaged
    store, seen = ModelStore(tmp_path / "cache"), list[tuple[int, int]]()
    with index(wheel) as server:
        monkeypatch.setenv("MLXNET_PACKAGE_INDEX", server.url)
        folder = store.tokenizer(card, lambda done, total: seen.append((done, total)))
        asked = len(server.requests)
        assert store.tokenizer(card) == folder
        assert len(server.requests) == asked, "a second call asked the network"
    assert (folder / "tokenizer.json").is_file()
    assert (folder / "chat_template.jinja").read_text() == "{{ messages[0].content }}"
    assert seen[-1] == (len(wheel), len(wheel))
    assert not list((tmp_path / "cache").rglob("*.whl")), "the wheel was kept"


def test_a_cut_download_goes_on_where_it_stopped(
    packaged: tuple[ModelCard, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, wheel = packaged
    store = ModelStore(tmp_path / "cache")
    with index(wheel) as server:
        monkeypatch.setenv("MLXNET_PACKAGE_INDEX", server.url)
        server.cut_after = 2 << 20
        with pytest.raises(ModelUnavailableError):
            store.tokenizer(card)
        (partial,) = (tmp_path / "cache").rglob("*.part")
        kept = partial.stat().st_size
        assert kept > 0
        store.tokenizer(card)
        assert server.requests[-1] == (f"/files/{WHEEL}", f"bytes={kept}-")


def test_a_changed_wheel_is_refused_and_not_kept(
    packaged: tuple[ModelCard, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, wheel = packaged
    changed = bytearray(wheel)
    changed[len(wheel) // 2] ^= 1
    with index(wheel) as server:
        monkeypatch.setenv("MLXNET_PACKAGE_INDEX", server.url)
        listing = server.listing()
        server.listing = lambda: listing  # the index still names the pinned hash
        server.wheel = bytes(changed)
        with pytest.raises(HashMismatchError, match=WHEEL):
            ModelStore(tmp_path / "cache").tokenizer(card)
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_an_index_that_names_another_hash_is_not_even_asked_for_the_file(
    packaged: tuple[ModelCard, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, wheel = packaged
    with index(wheel + b"!") as server:
        monkeypatch.setenv("MLXNET_PACKAGE_INDEX", server.url)
        with pytest.raises(HashMismatchError):
            ModelStore(tmp_path / "cache").tokenizer(card)
        assert [path for path, _ in server.requests] == ["/simple/tiny-model/"]


def test_without_a_network_it_says_what_to_do(
    packaged: tuple[ModelCard, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLXNET_PACKAGE_INDEX", "http://127.0.0.1:9/simple/")
    with pytest.raises(ModelUnavailableError) as caught:
        ModelStore(tmp_path / "cache").tokenizer(packaged[0])
    message = str(caught.value)
    assert "127.0.0.1:9 could not be reached" in message
    for way in ("HTTPS_PROXY", "MLXNET_PACKAGE_INDEX", WHEEL):
        assert way in message


def test_a_wheel_that_was_put_in_place_needs_no_network(
    packaged: tuple[ModelCard, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, wheel = packaged
    monkeypatch.setenv("MLXNET_PACKAGE_INDEX", "http://127.0.0.1:9/simple/")
    store = ModelStore(tmp_path / "cache")
    place = store.path_of(card) / "fetch"
    place.mkdir(parents=True)
    (place / WHEEL).write_bytes(wheel)
    assert store.tokenizer(card).is_dir()


def test_a_full_disk_is_said_before_anything_is_fetched(
    packaged: tuple[ModelCard, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, wheel = packaged
    monkeypatch.setattr(files, "DISK_MARGIN_BYTES", 1 << 60)
    with index(wheel) as server:
        monkeypatch.setenv("MLXNET_PACKAGE_INDEX", server.url)
        with pytest.raises(DiskShortError, match=r"\d+ bytes are needed, \d+ are free"):
            ModelStore(tmp_path / "cache").tokenizer(card)
        assert server.requests == []


def test_two_processes_fetch_once(packaged: tuple[ModelCard, bytes], tmp_path: Path) -> None:
    card, wheel = packaged
    (tmp_path / "card.json").write_text(card.model_dump_json())
    with index(wheel) as server:
        environment = os.environ | {"MLXNET_PACKAGE_INDEX": server.url}
        arguments = ["--card", str(tmp_path / "card.json"), "--cache", str(tmp_path / "cache")]
        command = [sys.executable, "-m", "node_agent.models", "tokenizer", *arguments]
        children = [
            subprocess.Popen(
                [*command, "--out", str(tmp_path / name), "--json"],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                cwd=ROOT,
            )
            for name in ("one", "two")
        ]
        outputs = [child.communicate(timeout=60)[0] for child in children]
        assert [child.returncode for child in children] == [0, 0]
        fetched = [path for path, _ in server.requests if path.endswith(WHEEL)]
        assert len(fetched) == 1
    for output, name in zip(outputs, ("one", "two"), strict=True):
        last = json.loads(output.splitlines()[-1])
        assert last["event"] == "done"
        assert last["revision"] == card.revision
        assert (tmp_path / name / "tokenizer.json").is_file()


def local(tmp_path: Path, **contents: bytes) -> tuple[ModelCard, Path]:
    """A card for a folder below a models folder, with a pinned tokenizer."""
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    given = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}
    for name, content in (given | contents).items():
        (folder / name).write_bytes(content)
    facts = make_card("mine").model_dump(mode="json")
    facts["source"] = {
        "type": "folder",
        "folder": "mine",
        "files": [file.model_dump() for file in files_of_folder(folder)],
    }
    facts["tokenizer"]["tokenizer_sha256"] = hashlib.sha256(b"{}").hexdigest()
    return ModelCard.model_validate(facts), folder


def test_a_local_folder_is_hashed_once_until_a_file_is_touched(tmp_path: Path) -> None:
    card, folder = local(tmp_path)
    store = ModelStore(tmp_path / "cache", tmp_path / "models")
    assert store.folder_of(card) is None
    assert store.on_disk() == ()
    assert store.fetch(card) == folder
    assert store.folder_of(card) == folder
    assert store.on_disk() == (card.revision[:16],)
    weights = folder / "model.safetensors"
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(1, 1))
    assert store.folder_of(card) is None
    with pytest.raises(HashMismatchError, match=r"model\.safetensors"):
        store.fetch(card)


def test_a_local_folder_without_its_parent_or_a_file_says_so(tmp_path: Path) -> None:
    card, folder = local(tmp_path)
    with pytest.raises(ModelUnavailableError, match="--models-dir"):
        ModelStore(tmp_path / "cache").fetch(card)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailableError, match=r"model\.safetensors: missing"):
        ModelStore(tmp_path / "cache", tmp_path / "models").fetch(card)


@pytest.mark.parametrize(
    "config", [b'{"auto_map": {"AutoModel": "x.Y"}}', b'{"text_config": [{"model_file": "m.py"}]}']
)
def test_a_config_that_would_run_code_is_refused(tmp_path: Path, config: bytes) -> None:
    card, _ = local(tmp_path, **{"config.json": config})
    with pytest.raises(RefusedModelError, match="would run code"):
        ModelStore(tmp_path / "cache", tmp_path / "models").fetch(card)


@pytest.mark.parametrize(
    "name",
    ["m.py", "m.bin", "m.pt", "m.pth", "m.npy", "m.pkl", "m.so", "..", ".hidden.json", "a/b.json"],
)
def test_names_of_other_kinds_are_refused(name: str) -> None:
    with pytest.raises(RefusedModelError):
        check_names([name])


def test_a_link_or_a_folder_inside_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inner.json").mkdir()
    with pytest.raises(RefusedModelError, match="plain files"):
        check_folder(tmp_path)
    check_config({"architectures": ["LlamaForCausalLM"], "rope": {"a": [1, 2]}})


@pytest.mark.parametrize(
    ("platform", "variables", "place"),
    [
        ("darwin", {}, "/home/x/Library/Caches/mlx-network"),
        ("linux", {}, "/home/x/.cache/mlx-network"),
        ("linux", {"XDG_CACHE_HOME": "/c"}, "/c/mlx-network"),
        ("darwin", {"MLXNET_CACHE": "/big/disk"}, "/big/disk"),
    ],
)
def test_the_cache_lies_where_the_platform_puts_caches(
    platform: str, variables: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLXNET_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_cache() == Path(place)
