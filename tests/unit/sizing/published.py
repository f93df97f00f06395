"""Published speeds of Macs as cases for the speed model.

The files are not part of the repository. `SPEED_DATA` names the folder with single_mac_tps.csv,
cluster_tps.csv and batched_tps.csv; what is read of them is told by `cases` and its neighbours.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from coordinator.catalogue.build import read_models
from node_agent.protocol.shapes import Shape
from node_agent.sizing.chips import find_chip
from node_agent.sizing.config import shape_from_config
from node_agent.sizing.constants import Engine
from node_agent.sizing.weights import weights_for
from node_agent.sizing.work import CORES_LEAST, Machine, Work, chip_kind, work_for

# The files' names of models, and the catalogue's where they differ.
SAME: Final = {
    "llama3-8b": "llama-3.1-8b",
    "llama3.2-1b": "llama-3.2-1b",
    "llama3.2-3b": "llama-3.2-3b",
    "llama3-70b": "llama-3.1-70b",
    "llama3-405b": "llama-3.1-405b",
    "llama4-scout": "llama-4-scout",
    "mistral-7b": "mistral-7b-v0.3",
    "gemma3-1b": "gemma-3-1b",
    "gemma3-4b": "gemma-3-4b",
    "gemma3-12b": "gemma-3-12b",
    "gemma3-27b": "gemma-3-27b",
    "gemma4-26b-a4b": "gemma-4-26b-a4b",
    "gemma4-31b": "gemma-4-31b",
    "minimax-m2": "minimax-m2.5",
    "qwen3-235b-a22b": "qwen3-235b-a22b-2507",
    "qwen3-next-80b": "qwen3-next-80b-a3b",
    "qwen3.5-35b-a3b": "qwen3.6-35b-a3b",
    "deepseek-r1": "deepseek-v3",
    "glm-5.1": "glm-5",
}
PLAIN: Final = {"model_type": "llama", "vocab_size": 32000, "tie_word_embeddings": False}
MORE: Final[dict[str, dict[str, Any]]] = {
    "llama2-7b": PLAIN
    | {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
    },
    "tinyllama-1.1b": PLAIN
    | {
        "num_hidden_layers": 22,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
}
SLOW: Final = "slow host"


@dataclass(frozen=True)
class Case:
    """One published row. Speeds in tokens a second, 0 where none was published."""

    source: str
    host: str
    model: str
    work: Work
    machine: Machine
    prompt_tokens: int
    before_tokens: int
    context_tokens: float
    decode_tps: float
    prefill_tps: float
    batch: int
    is_slow: bool
    parameters: float
    note: str


@cache
def shapes() -> Mapping[str, Shape]:
    """Shapes by the files' names of models."""
    configs = {model.id: model.config for model in read_models()}
    configs |= {name: configs[target] for name, target in SAME.items()} | MORE
    return {name: shape_from_config(config) for name, config in configs.items()}


def data_folder() -> Path | None:
    """The folder that `SPEED_DATA` names, else the one beside the checkout; None if it has no data."""
    named = os.environ.get("SPEED_DATA")
    folder = Path(named) if named else Path(__file__).parents[4] / "shared" / "data"
    return folder if (folder / "single_mac_tps.csv").is_file() else None


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    """A file's rows that are neither press nor slogans."""
    with (folder / name).open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["trust"] != "C"]


def number(text: str | None) -> float:
    """0 for an empty field or words."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def engine_of(row: Mapping[str, str]) -> Engine:
    """The engine as the model knows them; builds of 2023 tell themselves by their date."""
    text = row["engine"].lower()
    if "ollama" in text:
        return "ollama"
    if "mlx" in text or "exo" in text:
        return "mlx"
    return "llama.cpp-2023" if "2023" in row.get("version_or_date", "") else "llama.cpp"


def machine(row: Mapping[str, str], engine: Engine) -> Machine:
    """The Mac of a row."""
    generation, kind = chip_kind(row["chip"])
    cores = int(number(row.get("gpu_cores")))
    known = find_chip(" ".join(row["chip"].split()[:2]) if kind else row["chip"].split()[0], cores)
    bandwidth = number(row.get("bandwidth_gbs")) * 1e9
    if not bandwidth and known is not None:
        bandwidth = known.bandwidth_bytes_per_second
    if not cores:
        cores = known.gpu_cores if known is not None else CORES_LEAST[kind]
    return Machine(bandwidth, generation, cores, kind == "Ultra", engine=engine)


def work(model: str, weights_bytes: float, bits: float) -> Work | None:
    """The model of a row, or None if its shape is not known."""
    shape = shapes().get(model)
    if shape is None or not bits:
        return None
    size = weights_bytes or weights_for(shape, 10**9).parameters_total * bits / 8
    return replace(work_for(shape, round(size)), is_float=bits >= 16)


def cases(folder: Path) -> list[Case]:
    """Single Macs, one sequence at a time. Rows of models whose shape is not known are left out."""
    found: list[Case] = []
    for row in rows(folder, "single_mac_tps.csv"):
        bits = number(row["eff_bits"])
        made = work(row["model_key"], number(row["weight_bytes"]), bits)
        if made is None:
            continue
        engine = engine_of(row)
        prompt, depth = int(number(row["prompt_len"])), int(number(row["depth"]))
        # llama.cpp's own bench generates from an empty cache, whatever prompt it read before.
        is_empty = engine in {"llama.cpp", "llama.cpp-2023"} and prompt <= 2048
        context = depth + (0 if is_empty else prompt) + number(row["gen_len"]) / 2
        found.append(
            Case(
                source=row["group"],
                host=f"{row['group']} {row['chip']} {row['gpu_cores']} {row['mem_gb']} {engine}",
                model=row["model"],
                work=made,
                machine=machine(row, engine),
                prompt_tokens=prompt,
                before_tokens=depth,
                context_tokens=context,
                decode_tps=number(row["decode_tps"]),
                prefill_tps=number(row["prefill_tps"]),
                batch=1,
                is_slow=SLOW in row["note"],
                parameters=number(row["params_active_excl_emb"]),
                note=row["note"],
            )
        )
    return found


BATCHED: Final = {
    "gpt-oss-20b": ("gpt-oss-20b", 4.63),
    "gpt-oss-120b": ("gpt-oss-120b", 4.34),
    "Qwen3-Coder-30B-A3B": ("qwen3-30b-a3b", 8.5),
    "Qwen2.5-Coder-7B": ("qwen2.5-7b", 8.5),
    "gemma-3-4b": ("gemma3-4b", 4.6),
    "GLM-4.7-Flash": ("glm-4.7-flash", 8.5),
    "Llama-3.2-1B-4bit": ("llama3.2-1b", 4.5),
    "Llama-3.2-3B-4bit": ("llama3.2-3b", 4.5),
    "Qwen3-0.6B-8bit": ("qwen3-0.6b", 8.5),
    "Qwen3-30B-A3B-4bit": ("qwen3-30b-a3b", 4.5),
}


def batched_cases(folder: Path) -> list[Case]:
    """Several sequences at once; `decode_tps` is of all of them together."""
    found: list[Case] = []
    for row in rows(folder, "batched_tps.csv"):
        named = BATCHED.get(row["model"])
        made = work(named[0], 0, named[1]) if named else None
        if made is None:
            continue
        engine: Engine = "mlx" if re.search("mlx", row["engine"], re.IGNORECASE) else "llama.cpp"
        chip = row["chip"].split(" (")[0]
        found.append(
            Case(
                source="batched",
                host=f"{row['chip']} {row['model']} {row['prompt_len']}",
                model=row["model"],
                work=made,
                machine=machine({**row, "chip": chip}, engine),
                prompt_tokens=int(number(row["prompt_len"])),
                before_tokens=0,
                context_tokens=number(row["prompt_len"]) + 16,
                decode_tps=number(row["aggregate_decode_tps"]),
                prefill_tps=0.0,
                batch=int(number(row["batch"])),
                is_slow=False,
                parameters=0.0,
                note="",
            )
        )
    return found


@dataclass(frozen=True)
class TensorCase:
    """A pod's row beside that of one of its Macs alone."""

    pod: str
    ranks: int
    model: str
    work: Work
    machine: Machine
    single_tps: float
    pod_tps: float


# M3 Ultras with 80 cores, RDMA over Thunderbolt 5, mlx 0.30.7, 4-bit: tokens a second on one, two and
# four (guruswami-ai/mlx-benchmarks, February and March 2026); the files do not hold these.
QUOTED: Final = {
    "llama3-405b": (2.99, 4.31, 6.44),
    "qwen2.5-32b": (31.5, 21.6, 18.4),
    "deepseek-v3": (20.2, 16.2, 16.9),
}


def quoted_cases() -> list[TensorCase]:
    """One laboratory's pods of two and four."""
    mac = Machine(819e9, 2, 80, is_ultra=True)
    found: list[TensorCase] = []
    for model, (single, two, four) in QUOTED.items():
        made = work(model, 0, 4.5)
        if made is not None:
            found += [
                TensorCase("guruswami", n, model, made, mac, single, tps) for n, tps in ((2, two), (4, four))
            ]
    return found


def tensor_cases(folder: Path) -> list[TensorCase]:
    """Pods whose Mac alone was measured with the same model, by the same source and stack."""
    table = rows(folder, "cluster_tps.csv")
    singles = {
        (r["group"], r["model_key"], r["engine"]): number(r["decode_tps"]) for r in table if r["n"] == "1"
    }
    found = quoted_cases()
    for row in table:
        single = singles.get((row["group"], row["model_key"], row["engine"]))
        made = work(row["model_key"], 0, number(row["eff_bits"]))
        if row["mode"] != "tensor" or not single or made is None or not number(row["decode_tps"]):
            continue
        chip = re.match(r"M\d+(?: (?:Pro|Max|Ultra))?", row["machines"])
        mac = machine({"chip": chip.group() if chip else "M1", "gpu_cores": "", "engine": "mlx"}, "mlx")
        found.append(
            TensorCase(
                f"{row['group']} {row['backend']}",
                int(row["n"]),
                row["model_key"],
                made,
                mac,
                single,
                number(row["decode_tps"]),
            )
        )
    return found
