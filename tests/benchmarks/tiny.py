"""A random model of a few milliseconds a token, with its card: what is left is the path's cost."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import safetensors.numpy

from node_agent.runner.environment import runner_environment
from tests.benchmarks.in_process import IS_MAC

CARD_ID: Final = "tiny-random"
# About 5 ms a token on one core of a small x86 server.
SHAPE: Final[dict[str, int]] = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}
# Its row of the embedding, which is the last layer too, is made zero: it is never the likeliest,
# and as the end token it ends no answer before its length.
NEVER_ID: Final = 511


def make_tiny(folder: Path) -> tuple[Path, Path]:
    """Make model and card: (models folder, catalogue folder). Uses a child process for mlx."""
    models, catalogue = folder / "models", folder / "catalogue"
    model = models / CARD_ID
    overrides = {**SHAPE, "eos_token_id": NEVER_ID}
    command = [sys.executable, "-m", "tests.fixtures.tiny_models", "--out", str(model)]
    command += ["--config", json.dumps(overrides)]
    environment = runner_environment(os.environ, accelerated=IS_MAC)
    subprocess.run(command, check=True, env=environment)
    _never_end(model)
    catalogue.mkdir()
    (catalogue / f"{CARD_ID}.toml").write_text(_card(model), "utf-8")
    return models, catalogue


def _never_end(model: Path) -> None:
    weights = model / "model.safetensors"
    arrays: dict[str, Any] = safetensors.numpy.load_file(weights)  # pyright: ignore[reportUnknownMemberType]
    arrays["model.embed_tokens.weight"][NEVER_ID] = 0
    safetensors.numpy.save_file(  # pyright: ignore[reportUnknownMemberType]
        arrays, weights, metadata={"format": "mlx"}
    )
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8"))
    config["eos_token"] = f"<unused{NEVER_ID}>"
    path.write_text(json.dumps(config, indent=2), "utf-8")


def _card(model: Path) -> str:
    names = ("config.json", "model.safetensors", "model.safetensors.index.json")
    names += ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    files = "".join(
        f'[[source.files]]\nname = "{name}"\nbytes = {(model / name).stat().st_size}\n'
        f'sha256 = "{_sha256(model / name)}"\n'
        for name in names
    )
    return f"""id = "{CARD_ID}"
name = "Tiny random model"
kind = "chat"
licence = "apache-2.0"
context_tokens = {SHAPE["max_position_embeddings"]}
weights_bytes = {(model / "model.safetensors").stat().st_size}

[source]
type = "folder"
folder = "{CARD_ID}"
{files}
[shape]
model_type = "llama"
layers = {SHAPE["num_hidden_layers"]}
hidden = {SHAPE["hidden_size"]}
intermediate = {SHAPE["intermediate_size"]}
heads = {SHAPE["num_attention_heads"]}
kv_heads = {SHAPE["num_key_value_heads"]}
head_dim = {SHAPE["head_dim"]}
vocab = {SHAPE["vocab_size"]}
activation_bytes = 4

[tokenizer]
eos_ids = [{NEVER_ID}]
tokenizer_sha256 = "{_sha256(model / "tokenizer.json")}"
chat_template_sha256 = "{_sha256(model / "chat_template.jinja")}"

[price]
input_umlx_per_million = 1000
cached_input_umlx_per_million = 250
output_umlx_per_million = 10000
"""


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
