"""`mlx-network catalogue add`: cards of a model's own files, and what is refused with which reason."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from coordinator.catalogue.adding import Wishes, look_at_folder, make_card
from coordinator.catalogue.cards import CatalogueError, load_catalogue, read_card
from coordinator.catalogue.safetensors import WeightsFaultError, check_tensors
from coordinator.catalogue.toml import card_toml
from node_agent.protocol.cards import HubRepo, LocalFolder, ModelCard

CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "quantization": {"group_size": 32, "bits": 4},
}
TENSORS = {
    "model.embed_tokens": (64, 32),
    "attn.q": (32, 32),
    "attn.k": (16, 32),
    "attn.v": (16, 32),
    "attn.o": (32, 32),
    "mlp.gate": (64, 32),
    "mlp.up": (64, 32),
    "mlp.down": (32, 64),
}
WISHES = Wishes(licence="apache-2.0")


def tensors() -> dict[str, tuple[str, list[int]]]:
    """As mlx-lm saves a 4-bit model of that configuration."""
    found: dict[str, tuple[str, list[int]]] = {}
    for layer in range(2):
        for name, (rows, columns) in TENSORS.items():
            if name.startswith("model.") and layer:
                continue
            path = name if name.startswith("model.") else f"model.layers.{layer}.{name}"
            found[f"{path}.weight"] = ("U32", [rows, columns // 8])
            found[f"{path}.scales"] = ("BF16", [rows, columns // 32])
            found[f"{path}.biases"] = ("BF16", [rows, columns // 32])
        for norm in ("in", "post"):
            found[f"model.layers.{layer}.{norm}.weight"] = ("BF16", [32])
    found["model.norm.weight"] = ("BF16", [32])
    return found


def safetensors(wanted: dict[str, tuple[str, list[int]]]) -> tuple[bytes, int]:
    """A file's bytes, and how many of them are tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    place = 0
    for name, (kind, shape) in wanted.items():
        size = {"U32": 4, "BF16": 2}[kind]
        for length in shape:
            size *= length
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(place), place


def files() -> dict[str, bytes]:
    """A whole small model, as a folder or a repository holds it."""
    weights, size = safetensors(tensors())
    index = {
        "metadata": {"total_size": size},
        "weight_map": dict.fromkeys(tensors(), "model.safetensors"),
    }
    return {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors": weights,
        "model.safetensors.index.json": json.dumps(index).encode(),
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "Tiny-Llama-4bit"
    place.mkdir()
    for name, content in files().items():
        (place / name).write_bytes(content)
    return place


def test_a_folder_becomes_a_card_that_can_be_served(folder: Path, tmp_path: Path) -> None:
    card = make_card(look_at_folder(folder), WISHES)
    assert (card.id, card.kind, card.context_tokens) == ("tiny-llama-4bit", "chat", 512)
    assert card.weights_bytes == safetensors(tensors())[1]
    assert card.tokenizer.eos_ids == (2,)
    assert isinstance(card.source, LocalFolder)
    assert {f.name: f.sha256 for f in card.source.files} == {
        name: hashlib.sha256(content).hexdigest() for name, content in files().items()
    }
    cards = tmp_path / "cards"
    cards.mkdir()
    (cards / f"{card.id}.toml").write_text(card_toml(card))
    found = load_catalogue([cards]).cards[card.id]
    assert found == card
    assert found.revision == card.revision


def change(place: Path, name: str, edit: Callable[[Any], Any]) -> None:
    value = json.loads((place / name).read_bytes())
    (place / name).write_text(json.dumps(edit(value)))


def longer_header(place: Path) -> None:
    content = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(content + bytes(64))


def larger_tensor(place: Path) -> None:
    content = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(content.replace(b'"shape": [64, 4]', b'"shape": [64, 8]', 1))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "code": (lambda f: (f / "modeling_tiny.py").write_text("import os"), "modeling_tiny.py"),
    "a pickle": (lambda f: (f / "pytorch_model.bin").write_bytes(b"\x80"), "pytorch_model.bin"),
    "auto_map": (
        lambda f: change(f, "config.json", lambda c: c | {"auto_map": {"AutoModel": "x.Y"}}),
        "auto_map",
    ),
    "model_file": (lambda f: change(f, "config.json", lambda c: c | {"model_file": "m.py"}), "model_file"),
    "code of the tokenizer": (
        lambda f: change(f, "tokenizer_config.json", lambda c: c | {"auto_map": {}}),
        "tokenizer_config.json",
    ),
    "an index that lies": (
        lambda f: change(f, "model.safetensors.index.json", lambda i: i | {"metadata": {"total_size": 10}}),
        "total_size is 10",
    ),
    "an index of another file": (
        lambda f: change(
            f, "model.safetensors.index.json", lambda i: i | {"weight_map": {"a": "b.safetensors"}}
        ),
        "b.safetensors is named and is not there",
    ),
    "a file that holds more": (longer_header, "the header tells of"),
    "a tensor that claims more": (larger_tensor, "not as large as its shape"),
    "a configuration of another size": (
        lambda f: change(f, "config.json", lambda c: c | {"num_hidden_layers": 4}),
        "the shape and its quantisation give",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "no end": (
        lambda f: change(f, "config.json", lambda c: {k: v for k, v in c.items() if k != "eos_token_id"}),
        "eos_token_id",
    ),
    "no layers": (
        lambda f: change(
            f, "config.json", lambda c: {k: v for k, v in c.items() if k != "num_hidden_layers"}
        ),
        "num_hidden_layers",
    ),
    "a size that is no number": (
        lambda f: change(f, "config.json", lambda c: c | {"hidden_size": "32"}),
        "hidden_size",
    ),
    "no weights at all": (
        lambda f: [(f / name).unlink() for name in ("model.safetensors", "model.safetensors.index.json")],
        "no weights",
    ),
    "not a safetensors file": (
        lambda f: (f / "model.safetensors").write_bytes(b"GGUF" * 100),
        "not a safetensors file",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_not_what_it_says_is_refused(folder: Path, name: str) -> None:
    spoil, word = REFUSED[name]
    spoil(folder)
    with pytest.raises(CatalogueError, match=re.escape(word)):
        _ = make_card(look_at_folder(folder), WISHES)


def test_without_a_licence_nobody_may_serve_it(folder: Path) -> None:
    with pytest.raises(CatalogueError, match="--licence"):
        _ = make_card(look_at_folder(folder), Wishes())


def test_without_a_template_it_completes_and_does_not_chat(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert make_card(look_at_folder(folder), WISHES).kind == "completion"
    with pytest.raises(CatalogueError, match="chat_template"):
        _ = make_card(look_at_folder(folder), Wishes(kind="chat", licence="mit"))


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('kind = "chat"', 'kind = "chat"\ncolour = 1', "colour"),
        ("weights_bytes = ", "weights_bytes = 9", "weights_bytes"),
        ("[shape]", "[shape]\nwidth = 3", "shape.width"),
        ('name = "config.json"', 'name = "config.py"', "config.py"),
    ],
)
def test_a_cards_file_that_lies_is_refused(
    folder: Path, tmp_path: Path, old: str, new: str, word: str
) -> None:
    text = card_toml(make_card(look_at_folder(folder), WISHES))
    assert old in text
    path = tmp_path / "bad.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(CatalogueError, match=word):
        _ = read_card(path)


def test_a_header_can_hold_no_negative_place() -> None:
    with pytest.raises(WeightsFaultError):
        _ = check_tensors("x", {"t": {"dtype": "BF16", "shape": [1], "data_offsets": [-2, 0]}}, 0)


# -- the hub -------------------------------------------------------------------------------------

REPO = "someone/Tiny-Llama-4bit"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
READ_BY_PEOPLE = {"README.md": b"# Tiny", ".gitattributes": b"* text"}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as describing and fetching one repository takes."""

    content: dict[str, bytes]
    asked: list[str]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(self.path.split("?")[0])
        self.asked.append(f"{self.command} {path} {self.headers.get('range', '')}")
        if path.startswith(f"/api/models/{REPO}"):
            self._send(json.dumps(self._description()).encode(), "application/json", with_body=with_body)
            return
        body = self.content.get(path.rpartition("/")[2])
        if body is None:
            self.send_response(404)
            self.send_header("x-error-code", "EntryNotFound")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self._send(body, "application/octet-stream", with_body=with_body)

    def _description(self) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = []
        for name, body in self.content.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(body), "blobId": "0" * 40}
            if name.endswith(".safetensors"):
                digest = hashlib.sha256(body).hexdigest()
                entry["lfs"] = {"size": len(body), "sha256": digest, "pointerSize": 130}
            siblings.append(entry)
        return {"id": REPO, "sha": COMMIT, "siblings": siblings, "tags": ["license:mit", "mlx"]}

    def _send(self, body: bytes, kind: str, *, with_body: bool) -> None:
        ranged = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("range") or "")
        total, digest = len(body), hashlib.sha256(body).hexdigest()
        if ranged:
            first, last = int(ranged[1]), min(int(ranged[2]), total - 1)
            body = body[first : last + 1]
            self.send_response(206)
            self.send_header("content-range", f"bytes {first}-{last}/{total}")
        else:
            self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", f'"{digest}"')
        self.send_header("x-repo-commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def hub() -> Generator[tuple[str, type[Hub]]]:
    handler = type("OneHub", (Hub,), {"content": files() | READ_BY_PEOPLE, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
        server.shutdown()
        thread.join()


def run(arguments: list[str], endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "COLUMNS": "200"}
    command = [sys.executable, "-c", "from coordinator.cli import main; main()", "catalogue", "add"]
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_repository_becomes_a_card_without_its_weights_being_fetched(
    hub: tuple[str, type[Hub]], tmp_path: Path
) -> None:
    endpoint, server = hub
    done = run([REPO, "--to", str(tmp_path / "cards"), "--json"], endpoint, tmp_path / "hf")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    card = read_card(Path(found["file"]))
    assert isinstance(card, ModelCard)
    assert isinstance(card.source, HubRepo)
    assert (card.source.revision, card.licence, card.revision) == (COMMIT, "mit", found["revision"])
    assert {file.name for file in card.source.files} == set(files())
    asked = [line for line in server.asked if "model.safetensors " in line and line.startswith("GET")]
    assert all("bytes=" in line for line in asked)


@pytest.mark.parametrize("name", ["modeling.py", "model.pkl"])
def test_a_repository_with_code_or_pickles_is_refused(
    hub: tuple[str, type[Hub]], tmp_path: Path, name: str
) -> None:
    endpoint, server = hub
    server.content[name] = b"x"
    done = run([REPO, "--to", str(tmp_path)], endpoint, tmp_path / "hf")
    assert done.returncode == 1
    assert name in done.stderr
    assert not list(tmp_path.glob("*.toml"))


def test_a_hub_that_does_not_answer_is_said_to_be_so(tmp_path: Path) -> None:
    done = run([REPO, "--to", str(tmp_path)], "http://127.0.0.1:9", tmp_path / "hf")
    assert done.returncode == 1
    assert REPO in done.stderr


def test_a_card_is_never_overwritten(folder: Path, tmp_path: Path) -> None:
    arguments = [str(folder), "--to", str(tmp_path / "cards"), "--licence", "mit"]
    assert run(arguments, "http://127.0.0.1:9", tmp_path).returncode == 0
    again = run(arguments, "http://127.0.0.1:9", tmp_path)
    assert again.returncode == 1
    assert "is there already" in again.stderr
