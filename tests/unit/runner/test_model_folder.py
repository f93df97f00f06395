"""Folders that hold code, or weights of another kind, are refused before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node_agent.runner.folder import FolderRefusedError, read_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    return tmp_path


def test_a_folder_of_data_gives_its_config(folder: Path) -> None:
    assert read_config(folder) == {"model_type": "llama"}


@pytest.mark.parametrize("key", ["model_file", "auto_map"])
def test_a_config_that_asks_for_code_is_refused(folder: Path, key: str) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", key: "x.py"}))
    with pytest.raises(FolderRefusedError, match=key):
        read_config(folder)


@pytest.mark.parametrize(
    "name", ["modeling.py", "sub/modeling.py", "x.pyc", "pytorch_model.bin", "w.gguf", "w.pkl"]
)
def test_code_and_other_weights_are_refused_by_name(folder: Path, name: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    with pytest.raises(FolderRefusedError, match=path.name):
        read_config(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_an_unreadable_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(FolderRefusedError, match=r"config\.json"):
        read_config(folder)


def test_absent_files_are_refused(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FolderRefusedError, match=r"model-2\.safetensors"):
        read_config(folder)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").unlink()
    with pytest.raises(FolderRefusedError, match="safetensors"):
        read_config(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FolderRefusedError, match=r"config\.json"):
        read_config(folder)
