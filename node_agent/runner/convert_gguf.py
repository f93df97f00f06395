"""Convert a llama-architecture GGUF file to a folder that mlx-lm loads.

    python -m node_agent.runner.convert_gguf --gguf FILE --out FOLDER [--dtype float32]

Quantised tensors are expanded to one floating type: GGUF's own layouts (fp16 scales) run some
fifty times slower than float32 on MLX's CPU backend, and are no faster to load. Rows of the
query and key projections are put back into the order that mlx-lm's rotary embedding expects.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final, cast

import mlx.core as mx

from node_agent.models.gguf_tokenizer import GgufMetadata, UnsupportedGgufError, write_tokenizer

DTYPES: Final[dict[str, mx.Dtype]] = {
    "float32": mx.float32,
    "bfloat16": mx.bfloat16,
    "float16": mx.float16,
}
# A block of every GGUF type that MLX keeps quantised (Q4_0, Q4_1, Q8_0) is 32 values wide.
GROUP_SIZE: Final = 32

BLOCK_NAMES: Final[dict[str, str]] = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES: Final[dict[str, str]] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

Tensors = dict[str, mx.array]


def convert(gguf_path: Path, out: Path, dtype: str = "float32") -> int:
    """Write the folder `out` and return its weights' size in bytes.

    `out` appears whole or not at all. Raises `UnsupportedGgufError` for an architecture, a
    tensor or a tokenizer that this cannot convert faithfully, `FileExistsError` if `out` exists.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists: remove it or choose another --out")
    metadata = GgufMetadata(gguf_path)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        weights_bytes = _write_folder(metadata, gguf_path, unfinished, dtype)
        unfinished.chmod(0o755)
        unfinished.replace(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return weights_bytes


def _write_folder(metadata: GgufMetadata, gguf_path: Path, folder: Path, dtype: str) -> int:
    config = _config(metadata, dtype)
    source = cast("Tensors", mx.load(str(gguf_path), format="gguf"))
    weights = _weights(source, config, DTYPES[dtype])
    config["tie_word_embeddings"] = "lm_head.weight" not in weights
    write_tokenizer(gguf_path, folder)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})  # pyright: ignore[reportUnknownMemberType]
    total_bytes = sum(tensor.nbytes for tensor in weights.values())
    index = {
        "metadata": {"total_size": total_bytes},
        "weight_map": dict.fromkeys(sorted(weights), "model.safetensors"),
    }
    _write_json(folder / "model.safetensors.index.json", index)
    _write_json(folder / "config.json", config)
    return total_bytes


def _write_json(path: Path, value: object) -> None:
    path.write_bytes(json.dumps(value, indent=2, sort_keys=True).encode() + b"\n")


def _config(metadata: GgufMetadata, dtype: str) -> dict[str, object]:
    architecture = metadata.get("general.architecture", str)
    if architecture != "llama":
        raise UnsupportedGgufError(f"general.architecture: {architecture!r} is not 'llama'")
    heads = metadata.get("llama.attention.head_count", int)
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": metadata.get("llama.embedding_length", int),
        "intermediate_size": metadata.get("llama.feed_forward_length", int),
        "max_position_embeddings": metadata.get("llama.context_length", int),
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": metadata.get("llama.block_count", int),
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", int),
        "rms_norm_eps": metadata.get("llama.attention.layer_norm_rms_epsilon", float),
        "rope_theta": metadata.get("llama.rope.freq_base", float),
        "torch_dtype": dtype,
        "vocab_size": metadata.get("llama.vocab_size", int),
    }
    scaling = "llama.rope.scaling.type"
    if metadata.has(scaling) and metadata.get(scaling, str) != "none":
        raise UnsupportedGgufError(f"{scaling}: scaled rotary positions are not converted")
    if metadata.has("llama.attention.key_length"):
        config["head_dim"] = metadata.get("llama.attention.key_length", int)
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if metadata.has(f"tokenizer.ggml.{key}_token_id"):
            config[f"{name}_token_id"] = metadata.get(f"tokenizer.ggml.{key}_token_id", int)
    return config


def _weights(source: Tensors, config: dict[str, object], dtype: mx.Dtype) -> Tensors:
    heads = {
        "attn_q": cast("int", config["num_attention_heads"]),
        "attn_k": cast("int", config["num_key_value_heads"]),
    }
    weights: Tensors = {}
    for name in sorted(source):
        stem, _, part = name.rpartition(".")
        if part in ("scales", "biases") and f"{stem}.scales" in source:
            continue
        tensor = _expand(source, stem) if f"{stem}.scales" in source else source[name]
        kind = stem.rpartition(".")[2]
        if kind in heads:
            tensor = _unpermute(tensor, heads[kind])
        weights[f"{_rename(stem)}.{part}"] = tensor.astype(dtype)
    mx.eval(weights)  # pyright: ignore[reportUnknownMemberType]
    return weights


def _expand(source: Tensors, stem: str) -> mx.array:
    packed, scales = source[f"{stem}.weight"], source[f"{stem}.scales"]
    bits = packed.shape[1] * 32 // (scales.shape[1] * GROUP_SIZE)
    # The scales are fp16 in the file; multiplying them out in fp32 loses nothing.
    return mx.dequantize(
        packed,
        scales.astype(mx.float32),
        source[f"{stem}.biases"].astype(mx.float32),
        GROUP_SIZE,
        bits,
    )


def _unpermute(tensor: mx.array, heads: int) -> mx.array:
    """GGUF interleaves the two halves of each head's rotary pairs; mlx-lm keeps them apart."""
    rows = tensor.shape[0]
    pairs = tensor.reshape(heads, rows // heads // 2, 2, *tensor.shape[1:])  # pyright: ignore[reportUnknownMemberType]
    return pairs.swapaxes(1, 2).reshape(tensor.shape)  # pyright: ignore[reportUnknownMemberType]


def _rename(stem: str) -> str:
    if stem in TOP_NAMES:
        return TOP_NAMES[stem]
    head, _, rest = stem.partition(".")
    number, _, kind = rest.partition(".")
    if head != "blk" or not number.isdigit() or kind not in BLOCK_NAMES:
        raise UnsupportedGgufError(f"tensor {stem!r} has no place in a plain llama model")
    return f"model.layers.{number}.{BLOCK_NAMES[kind]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="convert_gguf", description="Convert GGUF to mlx-lm.")
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    options = parser.parse_args(arguments)
    try:
        weights_bytes = convert(options.gguf, options.out, options.dtype)
    except (UnsupportedGgufError, OSError) as error:
        sys.stderr.write(f"convert_gguf: {error}\n")
        return 1
    sys.stdout.write(json.dumps({"out": str(options.out), "weights_bytes": weights_bytes}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
