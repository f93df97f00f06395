"""Write `sharding.toml` anew: which model families the installed mlx-lm can divide, and how.

    python -m node_agent.sizing.make_sharding [--check]

Reads the library's source without importing it. A family can be run tensor parallel if its `Model`,
or a class that it inherits from, has a `shard` method; as a pipeline if the decoder that
`Model.model` leads to is a `PipelineMixin` or has a `pipeline` method of its own.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final

TARGET: Final = Path(__file__).with_name("sharding.toml")


@dataclass
class Family:
    """One module of the library: its classes, and what it takes from its neighbours."""

    source: str
    classes: dict[str, ast.ClassDef] = field(default_factory=dict[str, ast.ClassDef])
    imported: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


def read_family(path: Path) -> Family:
    """Parse one module."""
    source = path.read_text("utf-8")
    found = Family(source)
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found.classes[node.name] = node
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            for name in node.names:
                # `from . import other` brings a module, `from .other import Name` a class.
                place = (node.module or name.name, name.name if node.module else "")
                found.imported[name.asname or name.name] = place
    return found


def shard_source(families: dict[str, Family], family: str, name: str = "Model") -> str | None:
    """The text of the `shard` method that a class has or inherits, or None."""
    found = families.get(family)
    if found is None:
        return None
    node = found.classes.get(name)
    if node is None:
        module, imported = found.imported.get(name, (family, ""))
        return shard_source(families, module, imported) if imported else None
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "shard":
            return ast.get_source_segment(found.source, part)
    for base in bases(node):
        outer, _, attribute = base.partition(".")
        module, imported = found.imported.get(outer, (family, outer))
        inherited = shard_source(families, module, attribute or imported)
        if inherited is not None:
            return inherited
    return None


def bases(node: ast.ClassDef) -> list[str]:
    """Names of a class's bases, dotted where they are."""
    return [ast.unparse(base) for base in node.bases]


def has_pipeline(families: dict[str, Family], family: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether the family's decoder is a pipeline, its own or that of the family that it wraps."""
    found = families.get(family)
    if found is None or family in seen:
        return False
    if "Model" not in found.classes:
        module, _ = found.imported.get("Model", (family, ""))
        return has_pipeline(families, module, seen | {family})
    if any(_is_pipeline(node) for node in found.classes.values()):
        return _leads_to_decoder(found)
    neighbours = {module for module, _ in found.imported.values() if _is_wrapped(found, module)}
    is_there = any(has_pipeline(families, module, seen | {family}) for module in neighbours)
    return is_there and _leads_to_decoder(found)


def _is_pipeline(node: ast.ClassDef) -> bool:
    own = any(isinstance(part, ast.FunctionDef) and part.name == "pipeline" for part in node.body)
    return own or "PipelineMixin" in bases(node)


def _is_wrapped(found: Family, module: str) -> bool:
    """Whether a class of another module is a base of `Model`, or is what `Model` makes inside."""
    text = ast.unparse(found.classes["Model"])
    names = [name for name, (place, _) in found.imported.items() if place == module]
    inner = " ".join(ast.unparse(node) for node in found.classes.values())
    return any(f"{name}(" in inner or f"{name}." in inner or f"({name})" in text for name in names)


def _leads_to_decoder(found: Family) -> bool:
    """Whether `Model` has a `model`, set by itself, as a property, or inherited."""
    node = found.classes["Model"]
    text = ast.unparse(node)
    is_inherited = any(base != "nn.Module" for base in bases(node))
    return "self.model =" in text or "def model(" in text or is_inherited


def table() -> str:
    """The text of the table for the installed library. Raises `RuntimeError` without one."""
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("mlx-lm is not installed: pip install 'mlx-network[node]'")
    folder = Path(next(iter(spec.submodule_search_locations))) / "models"
    families = {path.stem: read_family(path) for path in sorted(folder.glob("*.py"))}
    shards = {name: shard_source(families, name) for name in families}
    tensor = [name for name, text in shards.items() if text]
    repeats = [name for name in tensor if "repeat" in (shards[name] or "")]
    vocab = [name for name in tensor if "vocab_size" in (shards[name] or "")]
    pipeline = [name for name in families if has_pipeline(families, name)]
    return "\n".join(
        [
            "# Which model families mlx-lm can divide among Macs. Written by",
            "# `python -m node_agent.sizing.make_sharding`; do not edit.",
            f'mlx_lm = "{metadata.version("mlx-lm")}"',
            "# `Model.shard` exists.",
            _line("tensor", tensor),
            "# Fewer KV heads than ranks are repeated.",
            _line("repeats_kv_heads", repeats),
            "# The output layer is cut by the vocabulary, which must divide.",
            _line("splits_vocab", vocab),
            "# The decoder is a pipeline that the loader can reach.",
            _line("pipeline", pipeline),
            "",
        ]
    )


def _line(name: str, families: list[str]) -> str:
    return f"{name} = [\n" + "".join(f'    "{family}",\n' for family in families) + "]"


def main() -> int:
    """Write the table, or with `--check` say whether it is current (exit code 1 if not)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    made = table()
    if parser.parse_args().check:
        return 0 if TARGET.read_text("utf-8") == made else 1
    TARGET.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
