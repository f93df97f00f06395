"""Tiny random models in MLX: bytes of weights and caches as the library itself has them.

Reads a JSON list of cases on standard input, answers with a JSON list; run as a child process,
because nothing that sizes models may import mlx.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def build(case: dict[str, Any]) -> Any:
    """The model of a case, random and lazy: nothing is computed until it is asked for."""
    mx: Any = importlib.import_module("mlx.core")
    utils: Any = importlib.import_module("mlx.utils")
    config = case["config"]
    model_class, args_class = importlib.import_module("mlx_lm.utils")._get_classes(config)
    model = model_class(args_class.from_dict(config))
    kind = mx.bfloat16 if case["activation_bytes"] == 2 else mx.float32

    def as_kind(array: Any) -> Any:
        return array.astype(kind) if mx.issubdtype(array.dtype, mx.floating) else array

    model.update(utils.tree_map(as_kind, model.parameters()))
    if case.get("quantization"):
        quantise(importlib.import_module("mlx.nn"), model, case["quantization"])
    return model


def measure(case: dict[str, Any]) -> dict[str, int]:
    """Bytes of one case's weights, and of its cache after a prompt and some tokens."""
    mx: Any = importlib.import_module("mlx.core")
    utils: Any = importlib.import_module("mlx.utils")
    config, model = case["config"], build(case)
    # Some classes make an output layer that loading a tied model's files takes away again.
    is_tied = config.get("tie_word_embeddings", False)
    weights = sum(
        array.nbytes
        for name, array in utils.tree_flatten(model.parameters())
        if not (is_tied and "lm_head." in name)
    )
    if case["prompt"] == 0:
        return {"weights_bytes": weights, "cache_bytes": 0}
    cache = importlib.import_module("mlx_lm.models.cache").make_prompt_cache(model)
    done, chunk = 0, case["chunk"]
    while done < case["prompt"]:
        count = min(chunk, case["prompt"] - done)
        mx.eval(model(mx.zeros((1, count), dtype=mx.int32), cache=cache))
        done += count
    for _ in range(case["generate"]):
        mx.eval(model(mx.zeros((1, 1), dtype=mx.int32), cache=cache))
    return {"weights_bytes": weights, "cache_bytes": sum(entry.nbytes for entry in cache)}


def quantise(nn: Any, model: Any, table: dict[str, Any]) -> None:
    """As `mlx_lm.utils.quantize_model` does. Tables inside the table are for the modules whose path
    ends with their name, or, where the name ends with a dot, holds it. Without `bits` of its own the
    table leaves all others alone."""
    special: dict[str, dict[str, Any]] = {k: v for k, v in table.items() if isinstance(v, dict)}

    def wanted(path: str, module: Any) -> bool | dict[str, Any]:
        own = table
        for key, value in special.items():
            if path.endswith(key) or (key.endswith(".") and key in path):
                own = value
        if "bits" not in own or not hasattr(module, "to_quantized"):
            return False
        if module.weight.shape[-1] % own["group_size"] != 0:
            return False
        return {key: own[key] for key in ("group_size", "bits", "mode") if key in own}

    nn.quantize(model, class_predicate=wanted)


def main() -> None:
    """Answer every case; a fault is answered as such, so that one does not hide the others."""
    found: list[dict[str, Any]] = []
    for case in json.load(sys.stdin):
        try:
            found.append(measure(case))
        except Exception as error:
            found.append({"error": repr(error)})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    importlib.import_module("mlx_lm")
    main()
