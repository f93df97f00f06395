"""Configurations of tiny models, one a family, as the published `config.json` files name things."""

from __future__ import annotations

from typing import Any, Final

Config = dict[str, Any]

PLAIN: Final[Config] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
EXPERTS: Final[Config] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
LATENT: Final[Config] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "routed_scaling_factor": 1.0,
    "kv_lora_rank": 64,
    "q_lora_rank": 96,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "qk_nope_head_dim": 32,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
GATED_DELTA: Final[Config] = {
    "linear_num_value_heads": 8,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "partial_rotary_factor": 0.5,
}

FAMILIES: Final[dict[str, Config]] = {
    "llama": PLAIN | {"model_type": "llama"},
    "mistral untied": PLAIN | {"model_type": "mistral", "tie_word_embeddings": False},
    "qwen2": PLAIN | {"model_type": "qwen2"},
    "qwen3": PLAIN | {"model_type": "qwen3"},
    "phi": PLAIN | {"model_type": "phi", "partial_rotary_factor": 0.5, "tie_word_embeddings": False},
    "phi3": PLAIN | {"model_type": "phi3", "tie_word_embeddings": False},
    "mixtral": PLAIN
    | {
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    },
    "qwen3_moe": PLAIN | EXPERTS | {"model_type": "qwen3_moe"},
    "deepseek_v2": LATENT
    | {
        "model_type": "deepseek_v2",
        "topk_method": "gready",
        "scoring_func": "softmax",
        "rope_scaling": {
            "type": "yarn",
            "factor": 2.0,
            "mscale_all_dim": 0,
            "original_max_position_embeddings": 2048,
        },
    },
    "deepseek_v3": LATENT | {"model_type": "deepseek_v3"},
    "deepseek_v32": LATENT
    | {"model_type": "deepseek_v32", "index_n_heads": 4, "index_head_dim": 64, "index_topk": 64},
    "glm4_moe": PLAIN
    | {
        "model_type": "glm4_moe",
        "moe_intermediate_size": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "use_qk_norm": False,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    },
    "glm4_moe_lite": LATENT | {"model_type": "glm4_moe_lite"},
    "minimax": PLAIN
    | {
        "model_type": "minimax",
        "intermediate_size": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 0,
        "rotary_dim": 16,
        "tie_word_embeddings": False,
    },
    "gemma2": PLAIN | {"model_type": "gemma2", "attn_logit_softcapping": 50.0},
    "gemma3": PLAIN
    | {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "sliding_window": 64,
        "sliding_window_pattern": 3,
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 32,
    },
    "gpt_oss": PLAIN
    | {
        "model_type": "gpt_oss",
        "tie_word_embeddings": False,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 256,
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "qwen3_next": PLAIN
    | EXPERTS
    | GATED_DELTA
    | {"model_type": "qwen3_next", "shared_expert_intermediate_size": 128},
    "qwen3_5": {
        "model_type": "qwen3_5",
        "text_config": PLAIN | GATED_DELTA | {"model_type": "qwen3_5_text", "tie_word_embeddings": False},
    },
    "mamba": {
        "model_type": "mamba",
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "state_size": 16,
        "num_hidden_layers": 4,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 16,
    },
    "mamba2": {
        "model_type": "mamba2",
        "num_heads": 16,
        "head_dim": 32,
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "state_size": 32,
        "num_hidden_layers": 4,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
        "time_step_limit": [0.0, 1e9],
        "time_step_rank": 16,
    },
    "falcon_h1": PLAIN
    | {
        "model_type": "falcon_h1",
        "mamba_d_ssm": 512,
        "mamba_n_heads": 16,
        "mamba_d_head": 32,
        "mamba_d_state": 32,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
    },
}
