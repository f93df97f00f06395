"""A Mac's facts out of `sysctl`, `system_profiler` and `sw_vers`."""

from __future__ import annotations

import json
from typing import cast

from node_agent.hardware.command import output_of


def parse_sysctl(text: str) -> dict[str, str]:
    """`sysctl NAME ...`: one `name: value` a line; other lines are left out."""
    pairs = (line.partition(": ") for line in text.splitlines())
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}


def parse_profiler_chip(text: str) -> str | None:
    """The chip of `system_profiler -json SPHardwareDataType`, or None if it does not say.

    Under Rosetta and in virtual machines it says "Unknown".
    """
    for entry in _profiler_entries(text, "SPHardwareDataType"):
        chip = entry.get("chip_type")
        if isinstance(chip, str) and chip != "Unknown":
            return chip
    return None


def parse_profiler_gpu_cores(text: str) -> int:
    """GPU cores of `system_profiler -json SPDisplaysDataType`, 0 if it does not say."""
    for entry in _profiler_entries(text, "SPDisplaysDataType"):
        cores = str(entry.get("sppci_cores", ""))
        if cores.isdecimal():
            return int(cores)
    return 0


def parse_sw_vers(text: str) -> str:
    """`sw_vers` as "macOS 26.5.1", or "macOS" if it does not say."""
    pairs = (line.partition(":") for line in text.splitlines())
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    return f"{facts.get('ProductName', 'macOS')} {facts.get('ProductVersion', '')}".strip()


def read_chip() -> str:
    """The chip, "Apple M4 Pro", or "unknown"."""
    chip = parse_profiler_chip(output_of("system_profiler", "-json", "SPHardwareDataType"))
    if chip is not None:
        return chip
    facts = parse_sysctl(output_of("sysctl", "machdep.cpu.brand_string"))
    return facts.get("machdep.cpu.brand_string") or "unknown"


def read_memory_bytes() -> int:
    """Installed memory, 0 if it cannot be read."""
    value = parse_sysctl(output_of("sysctl", "hw.memsize")).get("hw.memsize", "")
    return int(value) if value.isdecimal() else 0


def read_gpu_cores() -> int:
    return parse_profiler_gpu_cores(output_of("system_profiler", "-json", "SPDisplaysDataType"))


def read_os() -> str:
    return parse_sw_vers(output_of("sw_vers"))


def _profiler_entries(text: str, kind: str) -> list[dict[str, object]]:
    try:
        data = cast("object", json.loads(text))
    except ValueError:
        return []
    found: object = cast("dict[str, object]", data).get(kind) if isinstance(data, dict) else None
    if not isinstance(found, list):
        return []
    entries = cast("list[object]", found)
    return [cast("dict[str, object]", entry) for entry in entries if isinstance(entry, dict)]
