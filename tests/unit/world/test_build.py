"""The built files are those of the sources; where Node is, the build gives the same bytes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from web_world import pages

ROOT = Path(pages.__file__).parent
SOURCES = ROOT / "src"
KINDS = {".ts", ".css", ".mjs", ".svg", ".json"}


def fingerprint() -> str:
    paths = sorted(
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*")
        if path.suffix in KINDS and "node_modules" not in path.parts
    )
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.encode() + b"\0" + (SOURCES / path).read_bytes() + b"\0")
    return digest.hexdigest()


def test_what_the_browser_gets_was_built_from_these_sources() -> None:
    built = (ROOT / "static" / "sources.sha256").read_text().strip()
    assert built == fingerprint(), "run: cd web_world/src && npm ci && npm run build"


def test_the_build_gives_the_same_bytes(tmp_path: Path) -> None:
    if shutil.which("node") is None or not (SOURCES / "node_modules").is_dir():
        pytest.skip("needs Node and: cd web_world/src && npm ci")
    subprocess.run(["node", str(SOURCES / "build.mjs"), str(tmp_path)], check=True, timeout=100)
    for folder in ("static", "data"):
        built = {
            path.relative_to(tmp_path).as_posix(): path.read_bytes()
            for path in (tmp_path / folder).rglob("*")
            if path.is_file()
        }
        kept = {
            path.relative_to(ROOT).as_posix(): path.read_bytes()
            for path in (ROOT / folder).rglob("*")
            if path.is_file()
        }
        assert {name for name in built | kept if built.get(name) != kept.get(name)} == set()


def test_the_script_is_well_typed() -> None:
    compiler = SOURCES / "node_modules" / ".bin" / "tsc"
    if shutil.which("node") is None or not compiler.exists():
        pytest.skip("needs Node and: cd web_world/src && npm ci")
    done = subprocess.run(
        [str(compiler), "--noEmit", "-p", str(SOURCES)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_notices_of_others_work_are_shipped() -> None:
    notices = (ROOT / "static" / "THIRD_PARTY.txt").read_text()
    for name in ("d3-geo", "@fluent/bundle", "world-atlas", "vazirmatn", "noto-nastaliq-urdu"):
        assert name in notices
    assert "SIL OPEN FONT LICENSE" in notices.upper()
