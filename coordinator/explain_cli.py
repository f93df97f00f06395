"""`mlx-network explain` and `quote`: why a job waits or ran where it did, and what one would cost."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Final

import typer

from coordinator.arguments import question_of
from coordinator.options import AsJson, Key, Url
from coordinator.policy_cli import client_of
from coordinator.statements_cli import mlx
from coordinator.terminal import Terminal
from node_agent.sizing.words import memory_text

ANSWER_TOKENS: Final = 512  # as `mlx-network submit` asks for

out = Terminal()


def explain(
    job_id: Annotated[str, typer.Argument(help="One of your jobs; operators: any.")],
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Say why a job waits and until when, or why it ran where it did."""
    with client_of(url, api_key) as client:
        found = client.get(f"/v1/jobs/{job_id}/explanation")
    _show(found, explain_lines(found), as_json=as_json)


def quote(
    message: Annotated[str, typer.Argument(help="What to ask; '-' reads standard input.")],
    model: Annotated[str, typer.Option("--model", "-m", help="A model's id or alias.")] = "small",
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")
    ] = ANSWER_TOKENS,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Say what a question would cost at most, and how long it would take. Asking is free."""
    text = question_of(message)
    turns = [{"role": "system", "content": system}] if system is not None else []
    request = {
        "model": model,
        "messages": [*turns, {"role": "user", "content": text}],
        "max_tokens": max_tokens,
    }
    with client_of(url, api_key) as client:
        found = client.post("/v1/quotes", {"kind": "chat.completions", "request": request})
    _show(found, quote_lines(found), as_json=as_json)


def _show(found: dict[str, Any], lines: list[str], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        return
    for line in lines:
        out.print(line, highlight=False, soft_wrap=True)


# -- as text ---------------------------------------------------------------------------------------


def explain_lines(found: dict[str, Any]) -> list[str]:
    """An explanation as lines of text."""
    lines = [f"[bold]{found['id']}[/bold]  {found['state']}, {found['model']}"]
    if found["waiting"] is not None:
        lines += waiting_lines(found["waiting"])
    for attempt in found["attempts"]:
        lines += _attempt_lines(attempt)
    return lines


def waiting_lines(waiting: dict[str, Any]) -> list[str]:
    """Place in the queue, forecast, what is in the way, what would change it."""
    lines = [f"  {waiting['why']}"]
    if waiting["position"] is not None:
        left_out = waiting["unservable_left_out"]
        note = f" ({left_out} that no Mac can run are left out)" if left_out else ""
        lines.append(f"  number {waiting['position']} of {waiting['queued']} in the queue{note}")
    if waiting["forecast"] is not None:
        lines.append(f"  {_forecast(waiting['forecast'])}")
    elif waiting["can_ever_run"]:
        lines.append("  no forecast: no Mac that could take it says when it is free")
    if any(row["reason"] == "memory_lent_short" for row in waiting["rejected"]):
        needed = memory_text(waiting["needed_bytes"], is_need=True)
        largest = memory_text(waiting["largest_lent_bytes"])
        lines.append(f"  it needs {needed} of lent memory; the largest Mac lends {largest}")
    lines += [f"  {row['hosts']} x {row['reason']}: {row['meaning']}" for row in waiting["rejected"]]
    lines += [
        f"  to change: {row['change']} ({row['reason'] or 'the others'}, {row['hosts']} Macs)"
        for row in waiting.get("changes", [])
    ]
    return lines


def _forecast(forecast: dict[str, Any]) -> str:
    parts = forecast["seconds"]
    return (
        f"begins in {forecast['starts_in_seconds']:.1f} s, ends in {forecast['ends_in_seconds']:.1f} s: wait"
        f" {parts['wait']:.1f}, load {parts['load']:.1f}, prompt {parts['prefill']:.1f}, answer"
        f" {parts['decode']:.1f}; {forecast['tokens_per_second']:.1f} tokens/s"
    )


def _attempt_lines(attempt: dict[str, Any]) -> list[str]:
    took = attempt["took_seconds"]
    end = f": {attempt['end']}" if attempt["end"] else ""
    reason = f" ({attempt['reason']})" if attempt["reason"] else ""
    lines = [
        f"  attempt {attempt['fence']} on {mac_text(attempt['mac'])}: {attempt['state']}{reason}{end},"
        f" {attempt['delivered_tokens']} tokens"
        + (f" in {took:.1f} s" if took is not None else "")
        + f", forecast {attempt['forecast_seconds']:.1f} s"
    ]
    chosen = attempt["chosen"]
    if chosen is None:
        return [*lines, f"    why there: {attempt['chosen_missing']}"]
    parts = chosen["forecast_seconds"]
    loaded = "the model was loaded" if chosen["model_was_loaded"] else "the model had to be loaded"
    lines.append(f"    why there: {chosen['meaning']}; {loaded}")
    lines.append(
        f"    forecast: load {parts['load']:.1f} s, prompt {parts['prefill']:.1f}, answer {parts['decode']:.1f},"
        f" {chosen['tokens_per_second']:.1f} tokens/s; it had waited {chosen['waited_seconds']:.1f} s"
    )
    others = chosen["could_have_taken_it"] - 1
    lines.append(f"    {others} other Macs could have taken it, {chosen['as_good']} of them as good")
    lines += [f"    {row['hosts']} x {row['reason']}: {row['meaning']}" for row in chosen["rejected"]]
    return lines


def mac_text(mac: dict[str, Any] | None) -> str:
    """A class of Mac in words."""
    if mac is None:
        return "a Mac"
    chip = "another chip" if mac["chip"] == "other" else mac["chip"]
    return f"a Mac with {chip}, {mac['memory_gib']} GB installed"


def quote_lines(found: dict[str, Any]) -> list[str]:
    """A quote as lines of text."""
    sample = found["expected_from_jobs"]
    basis = f"as your last {sample} answers of it" if sample else "for the longest answer"
    lines = [
        f"[bold]{found['model']}[/bold]  {found['prompt_tokens']} tokens in, at most {found['max_tokens']} out",
        f"  costs at most {mlx(found['bound_umlx'])} MLX",
        f"  {mlx(found['expected_umlx'])} MLX for {found['expected_output_tokens']} tokens, {basis}",
    ]
    if found["mac"] is not None:
        lines.append(f"  on {mac_text(found['mac'])}")
    if found["waiting"] is not None:
        lines += waiting_lines(found["waiting"])
    elif found["forecast"] is not None:
        lines.append(f"  {_forecast(found['forecast'])}")
    lines.append(f"  holds for {found['valid_seconds']:g} s with the header {found['header']}: {found['id']}")
    return lines
