"""A model's shape read from its `config.json`, as mlx-lm's model classes read it.

Names of keys are those of the published configurations. What a family does by itself and no key
says (its gates, biases, interleaving) is told here, family by family, and checked against the
library's modules in tests. A family that is not known is read as a plain decoder or a plain mixture
of experts: its size then tells whether that was right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from pydantic import ValidationError

from node_agent.protocol.shapes import Shape

Config = Mapping[str, Any]

# mlx-lm runs these with the classes of another family.
SAME_AS: Final = {
    "mistral": "llama",
    "xverse": "llama",
    "iquestcoder": "llama",
    "kimi_k2": "deepseek_v3",
    "joyai_llm_flash": "deepseek_v3",
    "minimax_m2": "minimax",
    "falcon_mamba": "mamba",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5",
    "kimi_k25": "deepseek_v3",
    "llama4": "llama4_text",
}
BIASES: Final = {"qwen2": "qkv", "qwen2_moe": "qkv", "phi": "all", "gpt_oss": "all", "glm4_moe": None}
GATED: Final = frozenset({"qwen3_next", "qwen3_5"})
# The choice of experts is a plain parameter here, which is never quantised.
RAW_ROUTERS: Final = frozenset(
    {"deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "exaone_moe"}
)
# Latent attention that mlx-lm caches expanded to all heads.
EXPANDED: Final = frozenset({"deepseek_v2", "minicpm3"})
UNTIED_ALWAYS: Final = frozenset(
    {"gpt_oss", "phi", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa"}
)
TIED_ALWAYS: Final = frozenset({"gemma", "gemma2"})
TIED_UNLESS_SAID: Final = frozenset({"gemma3_text", "gemma4_text", "falcon_h1", "mamba", "mamba2", "cohere2"})


class UnreadableConfigError(ValueError):
    """The configuration lacks a size, or has one that makes no sense; names the key."""


class _Reader:
    """Integers of a configuration under any of several names."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def maybe(self, *names: str) -> int | None:
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            if type(value) is not int or value < 0:
                raise UnreadableConfigError(f"config.json: {name}: must be a whole number, not {value!r}")
            return value
        return None

    def need(self, *names: str) -> int:
        found = self.maybe(*names)
        if not found:
            raise UnreadableConfigError(f"config.json: {names[0]}: is missing, and the model's size needs it")
        return found


def text_config(config: Config) -> Config:
    """The language model's part of a configuration that has parts for pictures or sound."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return config
    outer = {key: value for key, value in config.items() if key in {"quantization", "tie_word_embeddings"}}
    return {**outer, **cast("Config", inner)}


def shape_from_config(config: Config, *, activation_bytes: int = 2) -> Shape:
    """The shape that a `config.json` describes. Raises `UnreadableConfigError` naming the key."""
    inner = text_config(config)
    declared = inner.get("model_type") or config.get("model_type")
    if not isinstance(declared, str):
        raise UnreadableConfigError("config.json: model_type: is missing")
    family = SAME_AS.get(declared, declared)
    read = _Reader(inner)
    fields: dict[str, Any] = {
        "model_type": str(config.get("model_type") or declared),
        "layers": read.need("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "hidden": read.need("hidden_size", "d_model", "n_embd"),
        "vocab": read.need("vocab_size"),
        "activation_bytes": activation_bytes,
        "tied": _tied(family, inner),
        **_attention(family, inner, read),
        **_feed(family, inner, read),
        **_recurrent(family, inner, read),
        "quantisation": quantisation(config) or quantisation(inner),
    }
    if fields["quantisation"] and family in RAW_ROUTERS:
        fields["quantisation"]["parts"]["router"] = _table((16, 64, "affine"))
    if read.maybe("kv_lora_rank"):
        fields["latent"] = _latent(family, read)
    try:
        return Shape.model_validate(_plain(fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UnreadableConfigError(f"config.json: {place or 'shape'}: {first['msg']}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {key: _plain(inner) for key, inner in table.items() if inner is not None}
    return value


def _tied(family: str, config: Config) -> bool:
    if family in UNTIED_ALWAYS:
        return False
    if family in TIED_ALWAYS:
        return True
    said = config.get("tie_word_embeddings")
    return bool(said) if said is not None else family in TIED_UNLESS_SAID


def _attention(family: str, config: Config, read: _Reader) -> dict[str, Any]:
    if family in {"mamba", "mamba2"}:
        return {"heads": 1, "kv_heads": 1, "head_dim": 1, "attention_layers": 0}
    heads = read.need("num_attention_heads", "n_head", "n_heads")
    hidden = read.need("hidden_size", "d_model", "n_embd")
    bias = BIASES.get(family, "qkv" if config.get("attention_bias") else None)
    return {
        "heads": heads,
        "kv_heads": read.maybe("num_key_value_heads", "n_kv_heads") or heads,
        "head_dim": read.maybe("head_dim") or hidden // heads,
        "bias": bias,
        "gated_attention": True if family in GATED else None,
        "softcap": True if config.get("attn_logit_softcapping") else None,
        **_sliding(family, config, read),
    }


def _sliding(family: str, config: Config, read: _Reader) -> dict[str, Any]:
    layers = read.need("num_hidden_layers")
    window = read.maybe("sliding_window")
    kinds = config.get("layer_types")
    pattern = read.maybe("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(kinds, list):
        sliding = cast("list[object]", kinds).count("sliding_attention")
    elif family in {"gemma3_text", "gemma4_text", "cohere2"}:
        sliding = layers - layers // (pattern or {"gemma3_text": 6, "gemma4_text": 5, "cohere2": 4}[family])
    elif family == "gpt_oss":
        sliding = layers // 2
    else:
        sliding = 0
    if not window or not sliding:
        return {}
    found: dict[str, Any] = {"window": window, "layers": sliding}
    wide = read.maybe("global_head_dim")
    if wide and family == "gemma4_text":
        found |= {"kv_heads": read.need("num_key_value_heads"), "head_dim": read.need("head_dim")}
        kv_heads = read.maybe("num_global_key_value_heads") or read.need("num_key_value_heads")
        return {"sliding": found, "head_dim": wide, "kv_heads": kv_heads}
    return {"sliding": found}


def _feed(family: str, config: Config, read: _Reader) -> dict[str, Any]:
    count = read.maybe("num_experts", "num_local_experts", "n_routed_experts")
    if family in {"mamba", "mamba2"}:
        return {"intermediate": read.need("intermediate_size", "d_inner"), "mlp_layers": 0}
    wide = read.maybe("intermediate_size") or read.maybe("moe_intermediate_size") or 0
    fields: dict[str, Any] = {
        "intermediate": read.maybe("intermediate_size_mlp") or wide or read.need("intermediate_size"),
        "mlp_matrices": 2 if family == "phi" else None,
    }
    if not count or (family == "gemma4_text" and not config.get("enable_moe_block")):
        return fields
    own = read.maybe("moe_intermediate_size") or wide
    shared = read.maybe("shared_expert_intermediate_size", "shared_intermediate_size") or 0
    shared += (read.maybe("n_shared_experts") or 0) * own
    if family == "llama4_text":
        shared = own
    elif family == "gemma4_text":
        shared = wide
    fields["experts"] = {
        "count": count,
        "per_token": read.need("num_experts_per_tok", "top_k_experts", "num_experts_per_token"),
        "intermediate": own,
        "shared_intermediate": shared,
        "dense_layers": read.maybe("first_k_dense_replace") or 0,
    }
    return fields


def _latent(family: str, read: _Reader) -> dict[str, Any]:
    return {
        "kv_rank": read.need("kv_lora_rank"),
        "rope_dim": read.need("qk_rope_head_dim"),
        "nope_dim": read.need("qk_nope_head_dim"),
        "value_dim": read.need("v_head_dim"),
        "query_rank": read.maybe("q_lora_rank") or 0,
        "index_heads": read.maybe("index_n_heads") or 0,
        "index_dim": read.maybe("index_head_dim") or 0,
        "expanded": family in EXPANDED,
    }


def _recurrent(family: str, config: Config, read: _Reader) -> dict[str, Any]:
    if family in GATED:
        return {"recurrent": _gated_delta(read)}
    if family == "mamba2":
        return {"recurrent": _mamba2(read, "num_heads", "head_dim", "state_size", "n_groups", "conv_kernel")}
    if family == "falcon_h1":
        names = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")
        return {"recurrent": _mamba2(read, *names), "attention_layers": read.need("num_hidden_layers")}
    if family == "mamba":
        return {"recurrent": _mamba(config, read)}
    return {}


def _gated_delta(read: _Reader) -> dict[str, Any]:
    layers = read.need("num_hidden_layers")
    keys = read.need("linear_num_key_heads") * read.need("linear_key_head_dim")
    value_heads, value_dim = read.need("linear_num_value_heads"), read.need("linear_value_head_dim")
    values = value_heads * value_dim
    channels = 2 * keys + values
    return {
        "layers": layers - layers // (read.maybe("full_attention_interval") or 4),
        "in_columns": channels + values + 2 * value_heads,
        "out_rows": values,
        "conv_channels": channels,
        "conv_kernel": read.need("linear_conv_kernel_dim"),
        "state_values": values * read.need("linear_key_head_dim"),
        "heads": read.need("linear_num_key_heads"),
        "other_values": 2 * value_heads + value_dim,
    }


def _mamba2(read: _Reader, heads: str, dim: str, state: str, groups: str, kernel: str) -> dict[str, Any]:
    inner = read.need(heads) * read.need(dim)
    channels = inner + 2 * read.need(groups) * read.need(state)
    return {
        "layers": read.need("num_hidden_layers"),
        "in_columns": inner + channels + read.need(heads),
        "out_rows": inner,
        "conv_channels": channels,
        "conv_kernel": read.need(kernel),
        "state_values": inner * read.need(state),
        "heads": read.need(heads),
        "other_values": channels + 3 * read.need(heads) + inner,
    }


def _mamba(config: Config, read: _Reader) -> dict[str, Any]:
    inner, state = read.need("intermediate_size", "d_inner"), read.need("state_size", "d_state")
    hidden = read.need("hidden_size", "d_model")
    rank = -(-hidden // 16) if config.get("time_step_rank") == "auto" else read.need("time_step_rank")
    return {
        "layers": read.need("num_hidden_layers", "n_layer"),
        "in_columns": 2 * inner,
        "out_rows": inner,
        "conv_channels": inner,
        "conv_kernel": read.need("conv_kernel", "d_conv"),
        "state_values": inner * state,
        "state_bytes": 2,
        "inner_columns": rank + 2 * state,
        "other_values": inner * (rank + state) + 3 * inner,
    }


MODE_DEFAULTS: Final[dict[str, tuple[int, int]]] = {
    "affine": (64, 4),
    "mxfp4": (32, 4),
    "mxfp8": (32, 8),
    "nvfp4": (16, 4),
}
# Parts of a module's path, the most telling first, and the part of the model that they stand for.
PLACES: Final = (
    ("embed_tokens", "embedding"),
    ("lm_head", "head"),
    ("shared_expert", "shared"),
    ("switch_mlp", "experts"),
    ("experts.", "experts"),
    ("gate_proj", "mlp"),
    ("up_proj", "mlp"),
    ("down_proj", "mlp"),
    ("router", "router"),
    ("mlp.gate", "router"),
    ("linear_attn", "recurrent"),
    ("mixer", "recurrent"),
    ("attn", "attention"),
)


def quantisation(config: Config) -> dict[str, Any] | None:
    """The widths that a `quantization` table gives, with the overrides of single modules gathered by
    the part of the model they are in: the width of most of a part's modules is taken for all."""
    table = config.get("quantization")
    if not isinstance(table, Mapping):
        return None
    found = cast("Config", table)
    votes: dict[str, list[tuple[int, int, str]]] = {}
    for path, value in found.items():
        place = next((part for token, part in PLACES if token in path), None)
        if place is None or not isinstance(value, (Mapping, bool)):
            continue
        width = _width(cast("Config", value)) if isinstance(value, Mapping) else (16, 64, "affine")
        votes.setdefault(place, []).append(width)
    most = {place: max(set(widths), key=widths.count) for place, widths in votes.items()}
    return {**_table(_width(found)), "parts": {place: _table(width) for place, width in most.items()}}


def _width(table: Config) -> tuple[int, int, str]:
    mode = str(table.get("mode", "affine"))
    if mode not in MODE_DEFAULTS:
        raise UnreadableConfigError(f"config.json: quantization.mode: {mode!r} is not known")
    group, bits = MODE_DEFAULTS[mode]
    read = _Reader(table)
    return read.maybe("bits") or bits, read.maybe("group_size") or group, mode


def _table(width: tuple[int, int, str]) -> dict[str, Any]:
    return {"bits": width[0], "group_size": width[1], "mode": width[2]}
