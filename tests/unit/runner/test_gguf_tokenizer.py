"""A GGUF's tokenizer, converted: same tokens, same bytes each time, faults named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer, pre_tokenizers

from node_agent.models.gguf_tokenizer import UnsupportedGgufError, write_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [
    *SPECIAL,
    "<tool>",
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    "he",
    "ll",
    "hell",
    "12",
]
TYPES = [3, 3, 3, 4, *[1] * (len(TOKENS) - 4)]
MERGES = ["h e", "l l", "he ll", "1 2"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"


def write_gguf(path: Path, **changes: Any) -> Path:
    """A GGUF without tensors."""
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": TOKENS,
        "types": TYPES,
        "merges": MERGES,
        "template": TEMPLATE,
        **changes,
    }
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_tokenizer_model(fields["model"])
    writer.add_tokenizer_pre(fields["pre"])
    writer.add_token_list(fields["tokens"])
    writer.add_token_types(fields["types"])
    writer.add_token_merges(fields["merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if fields["template"]:
        writer.add_chat_template(fields["template"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_it_encodes_as_the_gguf_says(tmp_path: Path) -> None:
    write_tokenizer(write_gguf(tmp_path / "a.gguf"), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))

    def encode(text: str) -> list[str]:
        return tokenizer.encode(text, add_special_tokens=False).tokens

    assert encode("hello") == ["hell", "o"]
    assert encode("<|im_start|>he<tool>") == ["<|im_start|>", "he", "<tool>"]
    # SmolLM2's tokenizer keeps digits apart, whatever the merges say.
    assert encode("12") == ["1", "2"]
    for text in ("héllo  wörld\n", "日本語 🎉", " leading", "\t\x00"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_split_follows_the_named_pre_tokenizer(tmp_path: Path) -> None:
    write_tokenizer(write_gguf(tmp_path / "a.gguf", pre="gpt-2"), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.encode("12").tokens == ["12"]


def test_ids_config_and_template_are_the_ggufs(tmp_path: Path) -> None:
    write_tokenizer(write_gguf(tmp_path / "a.gguf"), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert [tokenizer.token_to_id(token) for token in TOKENS] == list(range(len(TOKENS)))
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>"
    assert config["bos_token"] == "<|im_start|>"
    assert "pad_token" not in config
    assert config["model_max_length"] == 4096
    assert config["chat_template"] == TEMPLATE
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == TEMPLATE


def test_the_same_gguf_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    write_tokenizer(path, tmp_path / "one")
    write_tokenizer(path, tmp_path / "two")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model"),
        ({"pre": "unheard-of"}, "tokenizer.ggml.pre"),
        ({"template": None}, "tokenizer.chat_template"),
        ({"types": TYPES[:-1]}, "tokenizer.ggml.token_type"),
        ({"merges": ["h e x"]}, "tokenizer.ggml.merges"),
        ({"merges": ["h z"]}, "tokenizer.ggml.merges"),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    path = write_gguf(tmp_path / "a.gguf", **changes)
    with pytest.raises(UnsupportedGgufError, match=key):
        write_tokenizer(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"nothing of the kind" * 10)
    with pytest.raises(UnsupportedGgufError, match=r"a\.gguf"):
        write_tokenizer(path, tmp_path / "out")
