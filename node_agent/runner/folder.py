"""Is a model folder data only? Refused before anything in it is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, cast

# Keys of config.json by which a folder asks for its own Python to be run.
CODE_KEYS: Final = ("model_file", "auto_map")
# Weight formats that can carry code, or that are not what the card's hashes were taken of.
OTHER_WEIGHTS: Final = frozenset(
    {".bin", ".ckpt", ".gguf", ".h5", ".keras", ".msgpack", ".npy", ".npz"}
    | {".onnx", ".pickle", ".pkl", ".pt", ".pth", ".so", ".dylib", ".tflite"}
)


class FolderRefusedError(ValueError):
    """The folder may not be loaded; the text says which file and why."""


def read_config(folder: Path) -> dict[str, object]:
    """The folder's config.json, once the folder is found to hold no code.

    Raises `FolderRefusedError` for code, for weights other than safetensors, for weight files
    that the index names but that are absent, and for an unreadable config.json.
    """
    config = _json_object(folder / "config.json")
    for key in CODE_KEYS:
        if config.get(key) is not None:
            raise FolderRefusedError(f"config.json: {key!r} asks to run the folder's own code")
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".pyc"):
            raise FolderRefusedError(f"{path.name}: a model folder may not hold Python code")
        if path.suffix in OTHER_WEIGHTS:
            raise FolderRefusedError(f"{path.name}: only safetensors weights are loaded")
    _check_weights_present(folder)
    return config


def _json_object(path: Path) -> dict[str, object]:
    try:
        value: object = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FolderRefusedError(f"{path.name}: cannot be read as JSON ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise FolderRefusedError(f"{path.name}: not a JSON object")
    return cast("dict[str, object]", value)


def _check_weights_present(folder: Path) -> None:
    present = {path.name for path in folder.glob("model*.safetensors")}
    if not present:
        raise FolderRefusedError("no model*.safetensors file in the folder")
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return
    weight_map = _json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise FolderRefusedError(f"{index.name}: no 'weight_map' object")
    absent = {str(name) for name in cast("dict[str, object]", weight_map).values()} - present
    if absent:
        raise FolderRefusedError(f"{min(absent)}: named by the index but not in the folder")
