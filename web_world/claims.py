"""What is often said of Mac clusters, and the published runs beside it, each with its source.

Figures are as the sources give them; those that are reckoned from published runs say so in the text.
Nothing here was measured by this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Verdict = Literal["true", "partly", "doubtful"]
Quantity = tuple[float, str]
"""A number and its unit; "x" for times as fast."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where something is written."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: its figures by the names that its texts use, who said it, who showed what."""

    key: str
    verdict: Verdict
    figures: Mapping[str, Quantity]
    said_by: Source
    shown_by: tuple[Source, ...]


GEERLING: Final = Source(
    "Jeff Geerling", "https://www.jeffgeerling.com/blog/2025/15-tb-vram-on-mac-studio-rdma-over-thunderbolt-5"
)
EXO: Final = Source("exo", "https://github.com/exo-explore/exo")
ENGADGET: Final = Source(
    "Engadget",
    "https://www.engadget.com/ai/you-can-turn-a-cluster-of-macs-into-an-ai-supercomputer-in-macos-tahoe-262-191500778.html",
)
APPLE_SESSION: Final = Source("Apple, WWDC26", "https://developer.apple.com/videos/play/wwdc2026/233")
APPLE_NOTE: Final = Source(
    "Apple, TN3205",
    "https://developer.apple.com/documentation/technotes/tn3205-low-latency-communication-with-rdma-over-thunderbolt",
)
APPLE_POWER: Final = Source("Apple", "https://support.apple.com/102027")
KARRAY: Final = Source("omar-karray", "https://github.com/omar-karray/mlx-jaccl-cluster")
GURUSWAMI: Final = Source("guruswami-ai", "https://github.com/guruswami-ai/mlx-benchmarks")
MLX_GUIDE: Final = Source(
    "MLX: mlx.launch", "https://ml-explore.github.io/mlx/build/html/usage/launching_distributed.html"
)
MLX_FAULT: Final = Source("ml-explore/mlx #4342", "https://github.com/ml-explore/mlx/issues/4342")

CLAIMS: Final = (
    Claim(
        "latency",
        "partly",
        {
            "before": (300, "µs"),
            "after": (50, "µs"),
            "wire": (25.5, "µs"),
            "low": (44, "µs"),
            "high": (285, "µs"),
        },
        GEERLING,
        (KARRAY, GURUSWAMI),
    ),
    Claim(
        "kimi",
        "partly",
        {"claimed": (30, "tok/s"), "best": (28.3, "tok/s"), "other": (16.1, "tok/s")},
        GEERLING,
        (GEERLING, GURUSWAMI),
    ),
    Claim(
        "speedup",
        "doubtful",
        {
            "two": (1.8, "x"),
            "four": (3.2, "x"),
            "chart_two": (1.34, "x"),
            "chart_four": (1.64, "x"),
            "worst": (0.58, "x"),
            "dense": (2.15, "x"),
            "read_low": (2.5, "x"),
            "read_high": (4.3, "x"),
        },
        EXO,
        (GEERLING, GURUSWAMI),
    ),
    Claim(
        "session",
        "partly",
        {
            "claimed": (3, "x"),
            "low": (2.4, "x"),
            "high": (2.7, "x"),
            "small_low": (1.9, "x"),
            "small_high": (2.2, "x"),
        },
        APPLE_SESSION,
        (),
    ),
    Claim(
        "link",
        "true",
        {"claimed": (80, "Gb/s"), "best": (7.9, "GB/s"), "other": (5.2, "GB/s")},
        ENGADGET,
        (KARRAY, GURUSWAMI),
    ),
    Claim(
        "power",
        "doubtful",
        {
            "claimed": (500, "W"),
            "maker": (270, "W"),
            "low": (223, "W"),
            "high": (290, "W"),
            "all": (4 * 270, "W"),
        },
        ENGADGET,
        (APPLE_POWER, GEERLING),
    ),
)
