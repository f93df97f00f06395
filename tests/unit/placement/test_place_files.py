"""`mlx-network place` on files: the matcher's own answers, the documented keys, clear refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from coordinator.cli import app
from coordinator.placement.reject import EXPLAINED

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "placement.md"
STUDIO: Final[dict[str, Any]] = {"chip": "M3 Ultra", "gpu_cores": 80, "memory_gib": 512}


def host(name: str, chip: str = "M4 Pro", gib: int = 48, **more: Any) -> dict[str, Any]:
    return {"id": name, "mac": {"chip": chip, "memory_gib": gib}, **more}


def job(name: str, model: str = "llama-3.1-8b", **more: Any) -> dict[str, Any]:
    return {"id": name, "model": model, "prompt_tokens": 500, "max_tokens": 200, **more}


def fleet() -> list[dict[str, Any]]:
    """Twenty: eighteen alike, one in use, one large."""
    alike = [host(f"mini-{n:02}") for n in range(18)]
    return [*alike, host("air", "M2", 16, mode="away"), {"id": "studio", "mac": STUDIO}]


def place(folder: Path, hosts: list[dict[str, Any]], jobs: list[dict[str, Any]], **more: Any) -> Result:
    (folder / "fleet.json").write_text(json.dumps({"hosts": hosts, **more}))
    (folder / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    paths = ["--fleet", str(folder / "fleet.json"), "--jobs", str(folder / "jobs.json")]
    return CliRunner().invoke(app, ["place", *paths, "--json"])


def placed(folder: Path, *args: Any, **more: Any) -> list[dict[str, Any]]:
    result = place(folder, *args, **more)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["jobs"]


def test_each_job_sees_what_those_before_it_took_and_every_host_is_counted(tmp_path: Path) -> None:
    jobs = [job("a", "llama-3.3-70b"), job("b", waited_seconds=3), job("c", waited_seconds=300)]
    found = placed(tmp_path, fleet(), jobs)
    assert found[0]["id"] == "c"
    by_id = {entry["id"]: entry for entry in found}
    assert by_id["c"]["overdue"] is True
    for entry in found:
        assert sum(entry["rejected"].values()) + (entry["host"] is not None) == 20
        assert len(entry["reasons"]) == sum(entry["rejected"].values())
    assert by_id["a"]["rejected"]["memory_lent_short"] == 19
    assert by_id["b"]["reasons"]["air"] == "owner_present"
    assert by_id["c"]["host"] == "studio"
    assert by_id["c"]["seconds"]["total"] == pytest.approx(
        sum(by_id["c"]["seconds"][part] for part in ("wait", "load", "prefill", "decode"))
    )


def test_a_job_that_fits_nowhere_says_what_it_needs(tmp_path: Path) -> None:
    (entry,) = placed(tmp_path, [host(f"mini-{n}") for n in range(20)], [job("a", "llama-3.1-405b")])
    assert (entry["host"], entry["ever"]) == (None, False)
    assert entry["rejected"] == {"memory_lent_short": 20}
    assert entry["needed_bytes"] > entry["largest_lent_bytes"] > 30 << 30


def test_an_overdue_job_holds_the_host_that_can_be_free_first(tmp_path: Path) -> None:
    slots = [{"model": "llama-3.1-8b", "live": 1}]
    hosts = [
        host("late", slots=slots, idle_in_seconds=90.0),
        host("soon", slots=slots, idle_in_seconds=10.0),
    ]
    jobs = [job("old", "qwen2.5-14b-4bit", waited_seconds=500.0), job("new")]
    old, new = placed(tmp_path, hosts, jobs)
    assert (old["host"], old["holds"], old["soonest"]["host"]) == (None, "soon", "soon")
    assert (new["host"], new["reasons"]) == ("late", {"soon": "held_for_older"})


@pytest.mark.parametrize(
    ("hosts", "jobs", "word"),
    [
        ([host("a", "M99")], [job("j")], "not in the table"),
        ([host("a"), host("a")], [job("j")], "'a' is there twice"),
        ([host("a", fast=True)], [job("j")], "hosts.0.fast"),
        ([host("a", survival=[0.5])], [job("j")], "168 chances"),
        ([host("a")], [job("j", prompt_tokens=0)], "jobs.0.prompt_tokens"),
        ([host("a")], [job("j", "no-such-model")], "no-such-model"),
        ([host("a")], [job("j", deadline_seconds=-1)], "jobs.0.deadline_seconds"),
        ([{**host("a"), "mac": {**STUDIO, "self_test": {"card": "x"}}}], [job("j")], "decode_factor"),
    ],
)
def test_what_is_not_right_is_refused_by_name(
    tmp_path: Path, hosts: list[dict[str, Any]], jobs: list[dict[str, Any]], word: str
) -> None:
    result = place(tmp_path, hosts, jobs)
    assert result.exit_code == 2
    assert word in " ".join(result.stderr.split())


@pytest.mark.parametrize("name", ["fleet", "jobs"])
def test_a_key_that_is_there_twice_is_refused_by_name(tmp_path: Path, name: str) -> None:
    assert place(tmp_path, [host("a")], [job("j")]).exit_code == 0
    path = tmp_path / f"{name}.json"
    text = path.read_text()
    path.write_text(text.replace('"id": ', '"id": "other", "id": ', 1))
    paths = ["--fleet", str(tmp_path / "fleet.json"), "--jobs", str(tmp_path / "jobs.json")]
    refused = CliRunner().invoke(app, ["place", *paths])
    assert refused.exit_code == 2
    assert f"{name}.json: the key 'id' is there twice" in refused.stderr


def test_people_are_told_reasons_in_words(tmp_path: Path) -> None:
    assert place(tmp_path, fleet(), [job("a")]).exit_code == 0
    paths = ["--fleet", str(tmp_path / "fleet.json"), "--jobs", str(tmp_path / "jobs.json")]
    shown = CliRunner().invoke(app, ["place", *paths]).stdout
    assert "a -> studio" in shown
    assert "1 x owner_present: its owner uses it" in shown


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"prompt_tokens": 10_000_000}, "10000200 tokens do not fit the context of"),
        ({"only_hosts": ["nobody"]}, "2 not_named (the submitter named other Macs; name more Macs"),
        ({"tokens_per_second_min": 1e6}, "2 too_slow"),
    ],
)
def test_people_are_told_the_reason_that_holds_and_bytes_where_memory_is_it(
    tmp_path: Path, wish: dict[str, Any], words: str
) -> None:
    hosts = [host("a"), host("b", "M2", 16)]
    paths = ["--fleet", str(tmp_path / "fleet.json"), "--jobs", str(tmp_path / "jobs.json")]
    assert place(tmp_path, hosts, [job("j", **wish)]).exit_code == 0
    shown = CliRunner().invoke(app, ["place", *paths]).stdout
    assert "j no host can ever take it: of 2 Macs: 2 " in shown
    assert words in shown
    assert "bytes" not in shown
    assert place(tmp_path, hosts, [job("j", "llama-3.1-405b")]).exit_code == 0
    shown = CliRunner().invoke(app, ["place", *paths]).stdout
    assert "bytes" in shown
    assert "the largest Mac lends" in shown


def test_the_document_lists_every_reason_in_the_order_of_the_gates() -> None:
    text = DOCUMENT.read_text("utf-8")
    table = text.split("<!-- reasons begin -->")[1].split("<!-- reasons end -->")[0]
    rows = [line.split("|")[1:3] for line in table.strip().splitlines()[2:]]
    assert [(name.strip(" `"), words.strip()) for name, words in rows] == list(EXPLAINED.items())
