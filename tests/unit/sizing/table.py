"""The table of docs/placement.md: ten models on five Macs, as `mlx-network estimate` has them.

python -m tests.unit.sizing.table --write
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from coordinator.catalogue.cards import load_catalogue
from node_agent.sizing.estimate import Estimate, Job, estimate_mac
from node_agent.sizing.hosts import MacSpec

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "placement.md"
BEGIN, END = "<!-- table begins -->", "<!-- table ends -->"
JOB: Final = Job(prompt_tokens=2048, generate_tokens=256)
MACS: Final = (
    ("M1, 16 GB", "Apple M1", 8, 16),
    ("M4, 24 GB", "Apple M4", 10, 24),
    ("M4 Pro, 48 GB", "Apple M4 Pro", 20, 48),
    ("M4 Max, 128 GB", "Apple M4 Max", 40, 128),
    ("M3 Ultra, 512 GB", "Apple M3 Ultra", 80, 512),
)
MODELS: Final = (
    "llama-3.2-3b-4bit",
    "mistral-7b",
    "llama-3.1-8b",
    "gpt-oss-20b",
    "qwen-27b",
    "qwen3-30b-a3b",
    "llama-3.3-70b",
    "gpt-oss-120b",
    "llama-3.1-405b",
    "deepseek-v3",
)


def lines() -> list[str]:
    """The table as Markdown."""
    catalogue = load_catalogue()
    found = ["| model | " + " | ".join(name for name, *_ in MACS) + " |", "| --- " * (len(MACS) + 1) + "|"]
    for name in MODELS:
        card = catalogue.known(name)
        assert card is not None
        cells: list[str] = []
        for _, chip, cores, memory in MACS:
            mac = MacSpec(chip=chip, gpu_cores=cores, memory_gib=memory, model_is="in_memory")
            cells.append(cell(estimate_mac(card, mac, JOB)))
        found.append(f"| {card.id} | " + " | ".join(cells) + " |")
    return found


def cell(found: Estimate) -> str:
    """Speeds where it fits, else how much it needs and may use, in GiB."""
    needed, usable = found.ranks[0].needed.total_bytes / 2**30, found.ranks[0].usable.bytes / 2**30
    if not found.fits:
        return f"needs {needed:.0f} of {usable:.0f}"
    return f"{found.tokens_per_second:.0f} / {found.prompt_tokens_per_second:.0f}"


def with_table(text: str) -> str:
    """The document with the table as it is now."""
    before, after = text.split(BEGIN, maxsplit=1)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n\n" + "\n".join(lines()) + f"\n\n{END}{after}"


if __name__ == "__main__":
    made = with_table(DOCUMENT.read_text("utf-8"))
    if "--write" in sys.argv:
        _ = DOCUMENT.write_text(made, "utf-8")
    sys.stdout.write("\n".join(lines()) + "\n")
