"""Seed each fault of `tests.mutation.faults` into a copy of the code and run the tests that guard it.

`python -m tests.mutation.ledger [WORD ...]`: all faults, or those whose names contain a word. The
tests must pass on the unchanged copy, and fail for each fault. Prints a table; the last line is one
JSON object; exits 1 if a fault survives or cannot be seeded.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutation.faults import FAULTS, Fault

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("coordinator", "ledger", "migrations", "node_agent", "web_world")
TESTS: Final = ("unit/ledger", "properties/ledger", "integration", "fixtures")
WORKERS: Final = 2
SECONDS_MAX: Final = 120
TESTS_FAILED: Final = 1  # pytest's exit status; others mean that it could not run

CONFTEST: Final = 'pytest_plugins = ["tests.fixtures.databases"]\n'


@dataclass(frozen=True)
class Result:
    """What became of a fault: `found` by a test, `survived`, or `broken`: it could not be tried."""

    fault: Fault
    state: str
    by: str
    seconds: float


def copy_code(folder: Path) -> Path:
    """The code and the tests that are needed, without anything compiled."""
    skip = shutil.ignore_patterns("__pycache__", "node_modules", "src", "static")
    (folder / "tests").mkdir(parents=True)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    for name in TESTS:
        shutil.copytree(ROOT / "tests" / name, folder / "tests" / name, ignore=skip)
    for name in ("unit", "properties", ""):
        (folder / "tests" / name / "__init__.py").touch()
    # The whole conftest would import the application for each run.
    (folder / "tests" / "conftest.py").write_text(CONFTEST)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_tests(folder: Path, tests: str) -> tuple[int, str]:
    """Run pytest on the copy: (exit status, the first test that failed)."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    # Compiled files are told apart by second and size, which a small fault may not change.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    try:
        done = subprocess.run(
            [*command, *shlex.split(tests)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TESTS_FAILED, f"no end within {SECONDS_MAX} s"
    failed = [
        line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))
    ]
    last = done.stdout.strip().splitlines()[-1:] or done.stderr.strip().splitlines()[-1:] or ["no output"]
    return done.returncode, failed[0].rpartition("::")[2] if failed else last[0]


def try_fault(folder: Path, fault: Fault) -> Result:
    """Seed the fault, run its tests, take the fault out again."""
    path = folder / fault.file
    whole = path.read_text("utf-8")
    started = time.monotonic()
    if whole.count(fault.old) != 1:
        return Result(fault, "broken", f"its text stands {whole.count(fault.old)} times in {fault.file}", 0.0)
    path.write_text(whole.replace(fault.old, fault.new), "utf-8")
    try:
        status, by = run_tests(folder, fault.tests)
    finally:
        path.write_text(whole, "utf-8")
    state = {0: "survived", TESTS_FAILED: "found"}.get(status, "broken")
    return Result(fault, state, by, time.monotonic() - started)


def unmutated_failures(folder: Path, faults: tuple[Fault, ...]) -> list[str]:
    """The test selections that fail without any fault; nothing can be learnt from them."""
    selections = sorted({fault.tests for fault in faults})
    return [f"{tests}: {by}" for tests in selections for status, by in [run_tests(folder, tests)] if status]


def try_all(folders: list[Path], faults: tuple[Fault, ...]) -> list[Result]:
    """All faults, one copy of the code for each that runs at the same time."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for folder in folders:
        free.put(folder)

    def one(fault: Fault) -> Result:
        folder = free.get()
        try:
            result = try_fault(folder, fault)
        finally:
            free.put(folder)
        print(f"{result.state:9} {result.seconds:5.1f} s  {fault.name:36} {result.by}", flush=True)
        return result

    with ThreadPoolExecutor(len(folders)) as pool:
        return list(pool.map(one, faults))


def main(words: list[str]) -> int:
    """Try the faults; 0 if all were found."""
    chosen = tuple(fault for fault in FAULTS if not words or any(word in fault.name for word in words))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mlxnet-mutation-") as name:
        folders = [copy_code(Path(name) / str(number)) for number in range(WORKERS)]
        unsound = unmutated_failures(folders[0], chosen)
        results = [] if unsound else try_all(folders, chosen)
    for text in unsound:
        print(f"fails without any fault: {text}")
    bad = [result.fault.name for result in results if result.state != "found"]
    print(
        json.dumps(
            {
                "faults": len(chosen),
                "found": sum(result.state == "found" for result in results),
                "not_found": bad,
                "unsound": unsound,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )
    return 1 if bad or unsound else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
