"""The machine as the protocol describes it, and what of it is free just now."""

from __future__ import annotations

import platform
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil

from node_agent.hardware import linux, mac
from node_agent.protocol.messages import Hardware
from node_agent.sizing.chips import find_chip

GIB: Final = 1024**3
# Shares of the installed memory lent unless the owner says otherwise. On a Mac the GPU may wire
# about three quarters; a Linux machine is more often shared with services.
MAC_LENT_SHARE: Final = 0.7
LINUX_LENT_SHARE: Final = 0.5
COPY_BYTES: Final = 64 * 1024**2
COPY_ROUNDS: Final = 4


class HardwareUnknownError(Exception):
    """A fact without which no work can be placed could not be read."""


def measure_hardware(lend_gib: float | None = None) -> Hardware:
    """Read this machine's facts; takes a second or two.

    Raises `HardwareUnknownError` if the memory cannot be read, `ValueError` if `lend_gib` is
    not above 0 and within the installed memory.
    """
    on_mac = sys.platform == "darwin"
    source = mac if on_mac else linux
    memory = source.read_memory_bytes()
    if memory <= 0:
        raise HardwareUnknownError("the installed memory could not be read on this system")
    chip, cores = source.read_chip(), mac.read_gpu_cores() if on_mac else 0
    return Hardware(
        chip=chip,
        memory_bytes=memory,
        lent_bytes=lent_bytes(memory, lend_gib, on_mac=on_mac),
        bandwidth_bytes_per_second=bandwidth(chip, cores),
        gpu_cores=cores,
        os=source.read_os(),
        accelerated=on_mac and platform.machine() == "arm64",
    )


def lent_bytes(memory_bytes: int, lend_gib: float | None, *, on_mac: bool) -> int:
    """Bytes lent: what the owner said, or the default share of the installed memory.

    Raises `ValueError` if the owner lends nothing or more than there is.
    """
    if lend_gib is None:
        return int(memory_bytes * (MAC_LENT_SHARE if on_mac else LINUX_LENT_SHARE))
    asked = int(lend_gib * GIB)
    if not 0 < asked <= memory_bytes:
        raise ValueError(f"--lend-gib: {lend_gib:g} is not above 0 and at most {memory_bytes / GIB:.1f}")
    return asked


def bandwidth(chip: str, gpu_cores: int) -> int:
    """Memory bandwidth in bytes per second: the chip's from the table, else a measured copy."""
    known = find_chip(chip, gpu_cores)
    return known.bandwidth_bytes_per_second if known is not None else measure_copy()


def measure_copy() -> int:
    """Bytes per second of the fastest of a few large copies by one core.

    Conservative: a copy reads and writes, and only the bytes copied are counted.
    """
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    fastest = float("inf")
    for _ in range(COPY_ROUNDS):
        began = time.perf_counter()
        target[:] = source
        fastest = min(fastest, time.perf_counter() - began)
    return int(COPY_BYTES / fastest)


def free_memory_bytes() -> int:
    """Memory that could be taken now without swapping."""
    return int(psutil.virtual_memory().available)


def free_disk_bytes(folder: Path) -> int:
    """Free bytes of the disk that holds `folder`, or will hold it."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return shutil.disk_usage(existing).free


def version_of(package: str) -> str:
    """An installed package's version, or "none"; the package is not imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
