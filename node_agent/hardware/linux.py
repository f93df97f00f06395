"""A Linux machine's facts out of /proc and the control group."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

MEMINFO: Final = Path("/proc/meminfo")
CPUINFO: Final = Path("/proc/cpuinfo")
CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def parse_meminfo_total(text: str) -> int:
    """`MemTotal` of /proc/meminfo in bytes, 0 if it is missing."""
    for line in text.splitlines():
        parts = line.split()
        if parts[:1] == ["MemTotal:"] and len(parts) == 3 and parts[1].isdecimal():
            return int(parts[1]) * 1024
    return 0


def parse_cpuinfo_model(text: str) -> str:
    """The first `model name` of /proc/cpuinfo, or "unknown"."""
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if separator and name.strip() == "model name" and value.strip():
            return value.strip()
    return "unknown"


def parse_cgroup_limit(text: str) -> int | None:
    """`memory.max` of a control group in bytes; None for "max" or anything unreadable."""
    value = text.strip()
    return int(value) if value.isdecimal() else None


def read_chip() -> str:
    return parse_cpuinfo_model(_read(CPUINFO))


def read_memory_bytes() -> int:
    """Memory that this machine or container may use, 0 if it cannot be read."""
    total, limit = parse_meminfo_total(_read(MEMINFO)), parse_cgroup_limit(_read(CGROUP_LIMIT))
    return total if limit is None else min(total, limit)


def read_os() -> str:
    return f"{platform.system()} {platform.release()}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
