"""Cards whose files lie on the hub, fetched by the hub's own library from a server on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

REPO = "someone/tiny-model"
REVISION = "0123456789abcdef0123456789abcdef01234567"
CONTENT = {
    "config.json": json.dumps({"model_type": "llama", "vocab_size": 8}).encode(),
    "model.safetensors": bytes(range(256)) * 4096,
    "tokenizer.json": b'{"version": "1.0"}',
}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as `resolve` is: files of one repository at one commit."""

    asked: list[str]
    content: dict[str, bytes]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        self.asked.append(f"{self.command} {self.path}")
        name = self.path.removeprefix(f"/{REPO}/resolve/{REVISION}/")
        body = self.content.get(name)
        if body is None:
            self.send_response(404)
            self.send_header("x-error-code", "EntryNotFound")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("x-repo-commit", REVISION)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def hub() -> Generator[tuple[str, type[Hub]]]:
    handler = type("OneHub", (Hub,), {"asked": [], "content": dict(CONTENT)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
        server.shutdown()
        thread.join()


def card_at(place: Path) -> Path:
    files = "\n".join(
        f'[[source.files]]\nname = "{name}"\nbytes = {len(body)}\nsha256 = "{hashlib.sha256(body).hexdigest()}"'
        for name, body in CONTENT.items()
    )
    path = place / "card.toml"
    path.write_text(
        f"""
id = "tiny-hub"
name = "Tiny, from the hub"
kind = "completion"
licence = "apache-2.0"
context_tokens = 64
weights_bytes = {len(CONTENT["model.safetensors"])}
[source]
type = "hub"
repo = "{REPO}"
revision = "{REVISION}"
{files}
[shape]
model_type = "llama"
layers = 1
hidden = 8
intermediate = 8
heads = 1
kv_heads = 1
head_dim = 8
vocab = 8
[tokenizer]
eos_ids = [2]
tokenizer_sha256 = "{hashlib.sha256(CONTENT["tokenizer.json"]).hexdigest()}"
[price]
input_umlx_per_million = 1
cached_input_umlx_per_million = 1
output_umlx_per_million = 1
"""
    )
    return path


def fetch(card: Path, cache: Path, endpoint: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "node_agent.models", "fetch", "--json"]
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache / "hf")}
    done = subprocess.run(
        [*command, "--card", str(card), "--cache", str(cache)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_files_are_fetched_at_the_pinned_commit_and_kept(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    endpoint, server = hub
    card = card_at(tmp_path)
    code, last = fetch(card, tmp_path / "cache", endpoint)
    assert (code, last["event"]) == (0, "done")
    folder = Path(last["folder"])
    assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
    paths = {line.split()[1] for line in server.asked}
    assert {path for path in paths if "/resolve/" in path} == {
        f"/{REPO}/resolve/{REVISION}/{name}" for name in CONTENT
    }
    server.asked.clear()
    assert fetch(card, tmp_path / "cache", endpoint) == (0, last)
    assert not any(REPO in line for line in server.asked)


def test_changed_files_are_refused(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    endpoint, server = hub
    body = bytearray(CONTENT["model.safetensors"])
    body[1000] ^= 1
    server.content["model.safetensors"] = bytes(body)
    code, last = fetch(card_at(tmp_path), tmp_path / "cache", endpoint)
    assert (code, last["event"]) == (1, "error")
    assert "model.safetensors" in last["message"]


def test_a_hub_that_does_not_answer_says_what_to_do(tmp_path: Path) -> None:
    code, last = fetch(card_at(tmp_path), tmp_path / "cache", "http://127.0.0.1:9")
    assert code == 1
    assert "127.0.0.1:9" in last["message"] or "huggingface.co" in last["message"]
