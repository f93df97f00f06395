"""`mlx-network estimate`: hosts and pods from files, what fits, and why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.catalogue.build import files as card_files
from coordinator.catalogue.cards import BUILT_IN
from coordinator.cli import app
from node_agent.sizing import speed
from node_agent.sizing.hosts import GIB, MacSpec, usable_memory
from node_agent.sizing.work import machine_of, work_of
from tests.unit.sizing.table import DOCUMENT, with_table
from tests.unit.sizing.test_speed import LLAMA, card

STUDIO: dict[str, Any] = {"chip": "Apple M3 Ultra", "gpu_cores": 80, "memory_gib": 512}
AIR: dict[str, Any] = {"chip": "Apple M2", "gpu_cores": 8, "memory_gib": 16}


def estimate(tmp_path: Path, host: dict[str, Any], model: str, *more: str) -> dict[str, Any]:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(host))
    arguments = ["estimate", "--card", model, "--host", str(path), "--json"]
    wanted = [*arguments, *(more or ("--prompt", "1000", "--generate", "200"))]
    done = CliRunner().invoke(app, wanted)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(tmp_path: Path, host: object, *more: str) -> str:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(host))
    arguments = ["estimate", "--card", "llama-3.1-8b", "--host", str(path)]
    done = CliRunner().invoke(app, [*arguments, "--prompt", "10", "--generate", "10", *more])
    assert done.exit_code == 2
    return done.stderr.replace("\n", " ")


def test_every_card_is_what_its_source_gives() -> None:
    for path, text in card_files():
        assert path.read_text("utf-8") == text, path.name


def test_parts_sum_to_the_whole(tmp_path: Path) -> None:
    found = estimate(tmp_path, STUDIO, "llama-3.1-8b")
    assert found["card"] == "llama-3.1-8b-4bit"
    parts, seconds = found["bytes"], found["seconds"]
    assert parts["needed"] == sum(parts[name] for name in ("weights", "kv", "activations", "reserve"))
    assert seconds["total"] == pytest.approx(
        sum(seconds[name] for name in ("download", "load", "prefill", "decode"))
    )
    assert found["fits"]
    assert found["reason"] is None
    assert seconds["decode"] == pytest.approx(200 / found["tokens_per_second"])
    assert parts["limited_by"] == "working_set"


def test_a_cards_file_is_taken_as_well_as_a_name(tmp_path: Path) -> None:
    by_name = estimate(tmp_path, STUDIO, "qwen3-8b")
    assert estimate(tmp_path, STUDIO, str(BUILT_IN / "qwen3-8b-4bit.toml")) == by_name


def test_what_does_not_fit_says_by_how_much(tmp_path: Path) -> None:
    found = estimate(tmp_path, AIR, "llama-3.1-70b")
    assert not found["fits"]
    short = found["bytes"]["needed"] - found["bytes"]["usable"]
    assert f"{short} bytes short" in found["reason"]
    assert found["tokens_per_second"] > 0  # what it would be


def test_a_context_that_is_too_long_is_said_first(tmp_path: Path) -> None:
    found = estimate(tmp_path, STUDIO, "mistral-7b", "--prompt", "40000", "--generate", "1")
    assert not found["fits"]
    assert found["reason"] == (
        "context: a prompt of 40000 tokens with an answer of 1 does not fit the context of 32768 tokens"
    )


@pytest.mark.parametrize("tokens", ["40000", "9" * 400])
def test_a_prompt_beyond_the_context_is_not_computed(tmp_path: Path, tokens: str) -> None:
    path = tmp_path / "host.json"
    for host in (STUDIO, {"members": [STUDIO, STUDIO]}):
        path.write_text(json.dumps(host))
        arguments = ["estimate", "--card", "mistral-7b", "--host", str(path)]
        done = CliRunner().invoke(app, [*arguments, "--prompt", tokens, "--generate", "1"])
        assert done.exit_code == 0, done.output
        assert "does not fit the context of 32768 tokens" in done.stdout
        assert "tokens/s" not in done.stdout
        assert "GB" not in done.stdout


def test_a_key_that_is_there_twice_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text('{"chip": "M2", "memory_gib": 16, "memory_gib": 24}')
    arguments = ["estimate", "--card", "llama-3.1-8b", "--host", str(path)]
    done = CliRunner().invoke(app, [*arguments, "--prompt", "10", "--generate", "10"])
    assert done.exit_code == 2
    assert "the key 'memory_gib' is there twice" in done.stderr


def test_company_costs_memory_and_time(tmp_path: Path) -> None:
    arguments = ("--prompt", "1000", "--generate", "200")
    one = estimate(tmp_path, STUDIO, "llama-3.1-8b", *arguments)
    four = estimate(tmp_path, STUDIO, "llama-3.1-8b", *arguments, "--concurrency", "4")
    assert four["bytes"]["kv"] == 4 * one["bytes"]["kv"]
    assert four["tokens_per_second"] < one["tokens_per_second"] < four["tokens_per_second_all"]


@pytest.mark.parametrize(
    ("extra", "limit"),
    [
        ({"wired_limit_mib": 500_000}, "wired_limit"),
        ({"lent_gib": 100}, "lent"),
        ({"free_gib": 50}, "free"),
        ({"working_set_bytes": 400 * GIB}, "working_set"),
    ],
)
def test_what_keeps_a_model_from_more_is_named(tmp_path: Path, extra: dict[str, Any], limit: str) -> None:
    assert estimate(tmp_path, STUDIO | extra, "llama-3.1-8b")["bytes"]["limited_by"] == limit


def test_macos_keeps_a_third_or_a_quarter() -> None:
    assert usable_memory(24 * GIB).bytes == 16 * GIB
    assert usable_memory(128 * GIB).bytes == 96 * GIB
    # A raised limit cannot take what the system itself needs.
    assert usable_memory(128 * GIB, wired_limit_bytes=1 << 50).bytes == 124 * GIB
    with pytest.raises(ValueError, match="memory_bytes"):
        _ = usable_memory(0)


def test_a_self_test_makes_the_forecast_agree(tmp_path: Path) -> None:
    plain = machine_of(MacSpec.model_validate(AIR).hardware())
    usual = 1 / speed.step_seconds(work_of(LLAMA), plain, context_tokens=1100)
    test = {"card": "llama-3.1-8b", "tokens_per_second": usual / 2, "context_tokens": 1100}
    found = estimate(tmp_path, AIR | {"self_test": test}, "llama-3.1-8b")
    assert found["tokens_per_second"] == pytest.approx(usual / 2)
    other = estimate(tmp_path, AIR | {"self_test": test}, "mistral-7b")
    assert other["tokens_per_second"] < estimate(tmp_path, AIR, "mistral-7b")["tokens_per_second"]


def test_a_pod_says_every_way_best_first(tmp_path: Path) -> None:
    pod = {"members": [STUDIO | {"name": "left"}, STUDIO | {"name": "right"}]}
    found = estimate(tmp_path, pod, "kimi-k2-4bit")
    assert (found["mode"], found["fits"]) == ("tensor", True)
    others = {other["mode"]: other for other in found["others"]}
    assert others["pipeline"]["fits"]
    assert not others["single"]["fits"]
    assert sum(rank["layers"] for rank in others["pipeline"]["ranks"]) == 61
    # What fits one Mac is fastest there: all-reduces cost more than they save.
    assert estimate(tmp_path, pod, "llama-3.1-8b")["mode"] == "single"


def test_uneven_macs_are_dealt_layers_by_their_memory(tmp_path: Path) -> None:
    pod = {"members": [STUDIO, STUDIO | {"memory_gib": 256}]}
    arguments = ("--prompt", "1000", "--generate", "100")
    found = estimate(tmp_path, pod, "deepseek-v3.1-4bit", *arguments)
    ways = {way["mode"]: way for way in (found, *found["others"])}
    large, small = (rank["layers"] for rank in ways["pipeline"]["ranks"])
    assert large > small
    assert ways["pipeline"]["fits"]
    for rank in ways["pipeline"]["ranks"]:
        assert rank["needed"] <= rank["usable"]


def test_a_model_that_cannot_be_cut_says_so(tmp_path: Path) -> None:
    pod = {"members": [STUDIO, STUDIO, STUDIO]}
    found = estimate(tmp_path, pod, "llama-3.1-405b")
    ways = {way["mode"]: way for way in (found, *found["others"])}
    assert "does not divide by 3" in ways["tensor"]["reason"]
    assert "pipeline" in ways["pipeline"]["reason"]


def test_a_pods_measured_row_is_worked_in(tmp_path: Path) -> None:
    measured = {"card": "llama-3.1-405b", "tokens_per_second": 4.31, "single_tokens_per_second": 2.99}
    pod = {"members": [STUDIO, STUDIO], "measured": measured, "single_tokens_per_second": 31.5}
    found = estimate(tmp_path, pod, "qwen2.5-32b-4bit")
    ways = {way["mode"]: way for way in (found, *found["others"])}
    # Measured on that pod: 21.6.
    assert ways["tensor"]["tokens_per_second"] == pytest.approx(21.6, rel=0.12)


@pytest.mark.parametrize(
    ("host", "word"),
    [
        ({"chip": "M4"}, "memory_bytes and memory_gib"),
        ({"chip": "M4", "memory_gib": 16, "colour": 1}, "colour"),
        ({"chip": "M4", "memory_gib": -1}, "memory_gib"),
        ({"chip": "M4", "memory_gib": float("inf")}, "memory_gib"),
        ({"chip": "M4", "memory_gib": 1e300}, "memory_gib"),
        ({"chip": "M4", "memory_bytes": 10**400}, "memory_bytes"),
        ({"chip": "M4", "memory_gib": 16, "decode_factor": 1e308}, "decode_factor"),
        ({"chip": "M4", "memory_gib": 16, "decode_factor": float("nan")}, "decode_factor"),
        ({"chip": "Something", "memory_gib": 16}, "bandwidth_bytes_per_second"),
        ({"chip": "M4", "memory_gib": 16, "model_is": "absent"}, "network_bytes_per_second"),
        ({"members": [{"chip": "M4", "memory_gib": 16}]}, "members"),
        ([], "dict"),
    ],
)
def test_a_bad_host_is_refused_with_the_field(tmp_path: Path, host: object, word: str) -> None:
    assert word in refused(tmp_path, host).replace("dictionary", "dict")


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    assert "no-such-model" in refused(tmp_path, STUDIO, "--card", "no-such-model")


def test_an_unknown_chip_is_taken_by_what_was_measured(tmp_path: Path) -> None:
    host = {"chip": "Apple M9 Max", "memory_gib": 64, "bandwidth_bytes_per_second": 10**12}
    found = estimate(tmp_path, host, "llama-3.1-8b")
    assert found["tokens_per_second"] > estimate(tmp_path, AIR, "llama-3.1-8b")["tokens_per_second"]


def test_a_machine_without_a_gpu_is_forecast_too(tmp_path: Path) -> None:
    host = {
        "chip": "x86",
        "memory_gib": 16,
        "accelerated": False,
        "bandwidth_bytes_per_second": 19 * 10**9,
    }
    found = estimate(tmp_path, host, "small", "--prompt", "100", "--generate", "50")
    assert 5 < found["tokens_per_second"] < 9
    assert found["bytes"]["limited_by"] == "memory"


def test_a_person_is_told_in_words(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(AIR))
    arguments = [
        "estimate",
        "--card",
        "llama-3.1-70b",
        "--host",
        str(path),
        "--prompt",
        "9",
        "--generate",
        "9",
    ]
    done = CliRunner().invoke(app, arguments)
    assert "does not fit" in done.stdout
    assert card("llama-3.1-70b").id in done.stdout


def test_the_documents_table_is_what_estimate_says() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert text == with_table(text), "write it anew: python -m tests.unit.sizing.table --write"
