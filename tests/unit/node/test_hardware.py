"""Parsers of a machine's facts, on outputs of real machines where the samples lie."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from node_agent.hardware import facts, linux, mac

SAMPLES = Path(__file__).parents[4] / "shared" / "samples"


def sample(name: str) -> str:
    path = SAMPLES / name
    if not path.exists():
        pytest.skip(f"the folder of recorded outputs has no {name}: {SAMPLES}")
    return path.read_text()


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("sphardware_m2_air.json", "Apple M2"),
        ("sphardware_m4_mbp.json", "Apple M4"),
        ("sphardware_rosetta_chip_unknown.json", None),
    ],
)
def test_the_chip_of_system_profiler(name: str, chip: str | None) -> None:
    assert mac.parse_profiler_chip(sample(name)) == chip


def test_sysctl_of_two_macs() -> None:
    studio = mac.parse_sysctl(sample("sysctl_m3ultra_512.txt"))
    assert studio["hw.memsize"] == "549755813888"
    assert studio["machdep.cpu.brand_string"] == "Apple M3 Ultra"
    mini = mac.parse_sysctl(sample("sysctl_m2pro_mini_32.txt"))
    assert mini["hw.memsize"] == "34359738368"


def test_sw_vers() -> None:
    assert mac.parse_sw_vers(sample("sw_vers_26_5_1.txt")) == "macOS 26.5.1"


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"SPHardwareDataType": 1}', "{}"])
def test_broken_outputs_say_nothing(text: str) -> None:
    assert mac.parse_profiler_chip(text) is None
    assert mac.parse_profiler_gpu_cores(text) == 0


def test_gpu_cores_are_read_from_the_first_display_that_has_them() -> None:
    text = '{"SPDisplaysDataType": [{"_name": "x"}, {"sppci_cores": "40"}]}'
    assert mac.parse_profiler_gpu_cores(text) == 40


def test_linux_files() -> None:
    assert linux.parse_meminfo_total("MemTotal:       16384 kB\nMemFree: 1 kB\n") == 16384 * 1024
    assert linux.parse_meminfo_total("MemTotal: many kB") == 0
    assert linux.parse_cpuinfo_model("processor : 0\nmodel name\t: AMD EPYC\n") == "AMD EPYC"
    assert linux.parse_cpuinfo_model("") == "unknown"
    assert linux.parse_cgroup_limit("max\n") is None
    assert linux.parse_cgroup_limit("1073741824\n") == 1 << 30


def test_lent_memory_defaults_and_bounds() -> None:
    assert facts.lent_bytes(100, None, on_mac=True) == 70
    assert facts.lent_bytes(100, None, on_mac=False) == 50
    assert facts.lent_bytes(8 << 30, 2.5, on_mac=True) == 5 << 29
    for asked in (0.0, -1.0, 8.1):
        with pytest.raises(ValueError, match="--lend-gib"):
            facts.lent_bytes(8 << 30, asked, on_mac=True)


def test_this_machine_is_measured() -> None:
    found = facts.measure_hardware(0.5)
    assert found.lent_bytes == 1 << 29
    assert found.memory_bytes > found.lent_bytes
    assert found.bandwidth_bytes_per_second > 10**8
    assert found.accelerated == (sys.platform == "darwin")
    assert 0 < facts.free_memory_bytes() <= found.memory_bytes
    assert facts.free_disk_bytes(Path("/no/such/folder/yet")) > 0
    assert facts.version_of("no-such-package-here") == "none"
