"""Write an export of a million entries and verify it: entries a second, and the memory it takes.

`python -m tests.benchmarks.ledger.verify [ENTRIES]`. The export is decided by the ledger's own
rules (a thousand accounts, holds, captures, voids). Each file is verified in a process of its own,
so that its peak memory is seen; a tenth of the file is verified, too, to show that memory is flat.
Last line: one JSON object.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ledger.notes import VerifierKey
from ledger.verify import Verified, verify_export
from tests.unit.ledger.exports import SIGNER, START_US, Writer, jobs


def write_export(path: Path, entries: int) -> int:
    """Write an export of about `entries` entries with 1000 accounts; returns how many."""
    names = tuple(f"user:acct_{number:032x}" for number in range(1000))
    writer = Writer(names)
    body = path.with_suffix(".body")
    with body.open("wb") as file:
        for command in jobs(entries):
            file.write(writer.line(command, START_US + 5 + writer.seq))
    header, footer = writer.whole([])
    with path.open("wb") as file, body.open("rb") as lines:
        file.write(header)
        while part := lines.read(1 << 20):
            file.write(part)
        file.write(footer)
    body.unlink()
    return writer.seq


def verify_here(path: Path, key: str) -> dict[str, float]:
    """Verify in this process: seconds (wall and CPU), entries, peak memory in MiB."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = verify_export(path, VerifierKey.parse(key))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if not isinstance(found, Verified):
        raise TypeError(f"the export is not sound: {found[:3]}")
    return {
        "entries": found.size,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "peak_mib": _peak_mib(),
    }


def _peak_mib() -> float:
    # On Linux ru_maxrss of a new program begins with its parent's, so it would show the writer's memory.
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def measure(folder: Path, entries: int) -> dict[str, float]:
    """Write and verify one export in a process of its own."""
    path = folder / f"{entries}.jsonl"
    write_export(path, entries)
    command = [sys.executable, "-m", "tests.benchmarks.ledger.verify", "--file", str(path), str(SIGNER.key)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    found["file_mib"] = path.stat().st_size / (1 << 20)
    path.unlink()
    return found


def main(arguments: list[str]) -> None:
    """Measure a tenth and the whole, and print a line for each."""
    if arguments[:1] == ["--file"]:
        print(json.dumps(verify_here(Path(arguments[1]), arguments[2])))
        return
    entries = int(arguments[0]) if arguments else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        small, large = (measure(Path(name), count) for count in (entries // 10, entries))
    for found in (small, large):
        print(
            f"{found['entries']:>9,.0f} entries, {found['file_mib']:6.1f} MiB: {found['wall_seconds']:6.2f} s "
            f"({found['cpu_seconds']:.2f} s CPU), peak {found['peak_mib']:.1f} MiB"
        )
    print(
        json.dumps(
            {
                "verify_entries_per_s": round(large["entries"] / large["wall_seconds"]),
                "verify_entries_per_cpu_s": round(large["entries"] / large["cpu_seconds"]),
                "verify_million_seconds": round(1e6 * large["wall_seconds"] / large["entries"], 1),
                "verify_peak_mib": round(large["peak_mib"], 1),
                "verify_peak_mib_of_a_tenth": round(small["peak_mib"], 1),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
