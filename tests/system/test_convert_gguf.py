"""A GGUF becomes a folder that computes what the GGUF's model computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quants
from tokenizers import Tokenizer

from tests.fixtures.runners import load_in_process
from tests.fixtures.tiny_models import CHAT_TEMPLATE, VOCAB, make_tiny_model

HEADS, KV_HEADS, LAYERS = 4, 2, 2
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}
Matrix = np.ndarray[Any, np.dtype[Any]]


def interleave(weight: Matrix, heads: int) -> Matrix:
    """The order of rows in which GGUF keeps a rotary projection."""
    halves: Matrix = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    rows: Matrix = halves.swapaxes(1, 2).reshape(weight.shape)
    return np.ascontiguousarray(rows)


def write_gguf(folder: Path, path: Path, *, quantised: bool, **extra: str) -> Path:
    """The tiny llama of `folder` as a GGUF file, its matrices in float32 or Q8_0."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(128)
    writer.add_feed_forward_length(256)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [tokenizer.id_to_token(index) or "" for index in range(VOCAB)]
    writer.add_token_list([*tokens[:-1], "ab"])
    writer.add_token_types([3, 3, 3, *[1] * (VOCAB - 3)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    for key, value in extra.items():
        writer.add_string(key.replace("__", "."), value)
    add_tensors(writer, folder, quantised=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensors(writer: GGUFWriter, folder: Path, *, quantised: bool) -> None:
    weights: Any = mx.load(str(folder / "model.safetensors"))
    for original, array in weights.items():
        name, weight = str(original), np.array(array)
        if "q_proj" in name or "k_proj" in name:
            weight = interleave(weight, HEADS if "q_proj" in name else KV_HEADS)
        for theirs, gguf_name in GGUF_NAMES.items():
            name = name.replace(theirs, gguf_name)
        if quantised and weight.ndim == 2:
            packed = quants.quantize(weight, GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, packed, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, weight)


def convert(gguf: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "node_agent.runner.convert_gguf", "--gguf", str(gguf)]
    return subprocess.run([*command, "--out", str(out)], check=False, capture_output=True, text=True)


def logits(folder: Path) -> Matrix:
    network: Any = load_in_process(folder).network
    return np.array(network(mx.array([[1, 40, 50, 60, 70, 80, 90]]))[0])


# Eight-bit blocks keep some 1 % of a weight's range.
@pytest.mark.parametrize(("quantised", "error"), [(False, 1e-4), (True, 0.05)])
def test_the_converted_model_computes_the_same(tmp_path: Path, quantised: bool, error: float) -> None:
    original = make_tiny_model(tmp_path / "original", overrides={"rms_norm_eps": 1e-5})
    gguf = write_gguf(original, tmp_path / "model.gguf", quantised=quantised)
    done = convert(gguf, tmp_path / "converted")
    assert done.returncode == 0, done.stderr
    expected, computed = logits(original), logits(tmp_path / "converted")
    assert float(np.abs(computed - expected).mean()) < error * float(expected.std())
    names = {path.name for path in (tmp_path / "converted").iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}


def test_a_refused_gguf_leaves_nothing_behind(tmp_path: Path) -> None:
    original = make_tiny_model(tmp_path / "original")
    gguf = write_gguf(original, tmp_path / "model.gguf", quantised=False, llama__rope__scaling__type="yarn")
    done = convert(gguf, tmp_path / "out" / "converted")
    assert done.returncode == 1
    assert "rope.scaling" in done.stderr
    assert not list((tmp_path / "out").iterdir())
    (tmp_path / "there").mkdir()
    assert "exists" in convert(gguf, tmp_path / "there").stderr
