"""`mlx-network place`: the network's own matcher on files, without a network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from coordinator.json_files import load_json
from coordinator.terminal import Terminal

if TYPE_CHECKING:
    from coordinator.placement.files import Models
    from coordinator.placement.queue import Entry
    from node_agent.protocol.cards import ModelFacts

EXIT_USAGE: Final = 2

out = Terminal()
err = Terminal(stderr=True)


def place(
    fleet: Annotated[Path, typer.Option("--fleet", help="A file that describes the hosts.")],
    jobs: Annotated[Path, typer.Option("--jobs", help="A file with the queued jobs.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which job goes to which host, and for every other host why not."""
    from pydantic import ValidationError

    from coordinator.placement.files import FleetSpec, JobsSpec, entry_json, host_facts, job_facts
    from coordinator.placement.fleet import Fleet
    from coordinator.placement.queue import place_queue

    path = fleet
    try:
        hosts = FleetSpec.model_validate(_read(fleet))
        path = jobs
        queue = JobsSpec.model_validate(_read(jobs))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place_of = ".".join(str(part) for part in first["loc"])
        _fail(f"{path}: {place_of + ': ' if place_of else ''}{first['msg']}")
    models = _models()
    index = Fleet(len(hosts.hosts))
    for host in hosts.hosts:
        _ = index.put(host_facts(host, models))
    wanted = [job_facts(job, models) for job in queue.jobs]
    found = place_queue(wanted, index, usage=queue.usage, outlook=hosts.outlook())
    ids = tuple(host.id for host in hosts.hosts)
    body = [entry_json(entry, ids) for entry in found]
    if as_json:
        sys.stdout.write(json.dumps({"jobs": body}, indent=1) + "\n")
        return
    for entry, row in zip(found, body, strict=True):
        _show(row, _why_not(entry))


def _read(path: Path) -> Any:
    try:
        return load_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        _fail(f"{path}: {error}")


def _models() -> Models:
    """Finds each model once, by id or alias in the catalogue or by the path of its card."""
    from coordinator.catalogue.cards import CatalogueError, load_catalogue, read_card

    known: dict[str, ModelFacts] = {}

    def find(name: str) -> ModelFacts:
        if name in known:
            return known[name]
        try:
            card = read_card(Path(name)) if name.endswith(".toml") else load_catalogue().known(name)
        except CatalogueError as error:
            _fail(str(error))
        if card is None:
            _fail(f"model: there is none named {name!r}; see mlx-network catalogue list")
        known[name] = card
        return card

    return find


def _why_not(entry: Entry) -> str:
    """For a job that found no host: why, by the reason and not by its bytes alone."""
    from coordinator.explain import unservable_text
    from coordinator.placement.types import NotPlaced

    choice = entry.decision.choice
    if not isinstance(choice, NotPlaced):
        return ""
    if choice.is_ever:
        return "waits; no host can take it just now"
    return f"no host can ever take it: {unservable_text(entry.job, choice)}"


def _show(entry: dict[str, Any], why: str) -> None:
    from coordinator.placement.files import meanings

    if entry["host"] is not None:
        seconds = entry["seconds"]
        where = f"slot {entry['slot']}" if entry["slot"] else "a new slot"
        out.print(
            f"[bold]{entry['id']}[/bold] -> {entry['host']}, {where}: {seconds['total']:.1f} s (load"
            f" {seconds['load']:.1f}, prompt {seconds['prefill']:.1f}, answer {seconds['decode']:.1f}),"
            f" {entry['tokens_per_second']:.1f} tokens/s",
            highlight=False,
            soft_wrap=True,
        )
    else:
        out.print(f"[bold]{entry['id']}[/bold] {why}", highlight=False, soft_wrap=True)
    for line in meanings(entry["rejected"]):
        out.print(f"  {line}", highlight=False, soft_wrap=True)


def _fail(message: str) -> NoReturn:
    err.print(f"[red]error:[/red] {message}", highlight=False, soft_wrap=True)
    raise typer.Exit(EXIT_USAGE)
