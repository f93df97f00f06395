"""`mlx-network estimate`: what a job would take on a Mac or a pod, from files, without a network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from coordinator.json_files import load_json
from coordinator.terminal import Terminal
from node_agent.sizing.words import memory_text

if TYPE_CHECKING:
    from node_agent.protocol.cards import ModelFacts
    from node_agent.sizing.estimate import Estimate
    from node_agent.sizing.hosts import MacSpec, PodSpec

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

placement_app = typer.Typer(help="Where jobs fit and how long they take.")
out = Terminal()
err = Terminal(stderr=True)


@placement_app.command()
def estimate(
    card: Annotated[str, typer.Option("--card", help="A card's file, or the id or alias of a known model.")],
    host: Annotated[Path, typer.Option("--host", help="A file that describes a Mac or a pod.")],
    prompt: Annotated[int, typer.Option("--prompt", min=1, help="Tokens of the prompt.")],
    generate: Annotated[int, typer.Option("--generate", min=1, help="Tokens of the answer.")],
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=65_536, help="Sequences at once.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a job would take on a Mac: bytes and seconds by part, and whether it fits."""
    from node_agent.sizing.estimate import Job, beyond_context, estimate_mac, estimate_pod
    from node_agent.sizing.hosts import MacSpec

    model = read_model(card)
    spec = read_host(host)
    job = Job(prompt, generate, concurrency)
    asked = {
        "card": model.id,
        "prompt_tokens": prompt,
        "generate_tokens": generate,
        "concurrency": concurrency,
    }
    beyond = beyond_context(model, job)
    if beyond is not None:
        _refuse(asked, beyond, as_json=as_json)
        return
    found = (estimate_mac(model, spec, job),) if isinstance(spec, MacSpec) else estimate_pod(model, spec, job)
    if as_json:
        others = [other.as_json() for other in found[1:]]
        body = {**asked, **found[0].as_json(), "others": others}
        sys.stdout.write(json.dumps(body, indent=1) + "\n")
        return
    for each in found:
        _show(each, model)


def _refuse(asked: dict[str, Any], reason: str, *, as_json: bool) -> None:
    """Say that no Mac can do it, without bytes and seconds that nothing would ever take."""
    if as_json:
        sys.stdout.write(
            json.dumps({**asked, "fits": False, "reason": reason, "others": []}, indent=1) + "\n"
        )
    else:
        out.print(f"[bold]{asked['card']}[/bold]  does not fit: {reason}", highlight=False, soft_wrap=True)


def read_model(name: str) -> ModelFacts:
    """The model of a card's file, or of the catalogue by id or alias. Exits with a message."""
    from coordinator.catalogue.cards import CatalogueError, load_catalogue, read_card

    try:
        path = Path(name)
        if path.suffix == ".toml" or path.is_file():
            return read_card(path)
        catalogue = load_catalogue()
    except CatalogueError as error:
        _fail(str(error))
    found = catalogue.known(name)
    if found is None:
        _fail(f"--card: there is no file and no model named {name!r}; see mlx-network catalogue list")
    return found


def read_host(path: Path) -> MacSpec | PodSpec:
    """The Mac or pod of a file, its self-tests worked in. Exits with a message naming the field."""
    from pydantic import ValidationError

    from node_agent.sizing.hosts import MacSpec, PodSpec

    try:
        table: Any = load_json(path.read_text("utf-8"))
        is_pod = isinstance(table, dict) and "members" in table
        spec = PodSpec.model_validate(table) if is_pod else MacSpec.model_validate(table)
    except (OSError, ValueError) as error:
        if not isinstance(error, ValidationError):
            _fail(f"{path}: {error}")
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        _fail(f"{path}: {place + ': ' if place else ''}{first['msg']}")
    return _pod_tested(spec) if isinstance(spec, PodSpec) else _mac_tested(spec)


def _mac_tested(mac: MacSpec) -> MacSpec:
    """The Mac with what its self-test says of it as factors."""
    from node_agent.sizing import speed
    from node_agent.sizing.work import work_of

    test = mac.self_test
    if test is None:
        return mac
    work, plain = work_of(read_model(test.card)), mac.machine()
    changes: dict[str, float] = {}
    if test.tokens_per_second is not None:
        seconds = 1 / test.tokens_per_second
        changes["decode_factor"] = speed.decode_factor(
            work, plain, seconds, context_tokens=test.context_tokens
        )
    if test.prompt_tokens_per_second is not None:
        forecast = speed.prompt_seconds(work, plain, test.prompt_tokens)
        changes["prefill_factor"] = forecast * test.prompt_tokens_per_second / test.prompt_tokens
    return mac.model_copy(update=changes)


def _pod_tested(pod: PodSpec) -> PodSpec:
    """The pod with the cost of an all-reduce that its measured row tells."""
    from node_agent.sizing.pods import alpha_of
    from node_agent.sizing.work import work_of

    members = tuple(_mac_tested(mac) for mac in pod.members)
    test = pod.measured
    if test is None:
        return pod.model_copy(update={"members": members})
    single = test.single_tokens_per_second
    slowest = min(
        (mac.machine() for mac in members), key=lambda m: m.bandwidth_bytes_per_second * m.decode_factor
    )
    alpha = alpha_of(
        work_of(read_model(test.card)),
        slowest,
        len(members),
        1 / test.tokens_per_second,
        1 / single if single else None,
        context_tokens=test.context_tokens,
        link=pod.link.link(),
    )
    link = pod.link.model_copy(update={"alpha_us": alpha * 1e6})
    return pod.model_copy(update={"members": members, "link": link})


def _show(found: Estimate, model: ModelFacts) -> None:
    verdict = "fits" if found.fits else f"does not fit: {found.reason}"
    out.print(f"[bold]{model.id}[/bold]  {found.mode}, {verdict}", highlight=False, soft_wrap=True)
    for rank in found.ranks:
        parts = rank.needed
        needed, weights, cache, working, reserve = (
            memory_text(size, is_need=True)
            for size in (
                parts.total_bytes,
                parts.weights_bytes,
                parts.kv_bytes,
                parts.activation_bytes,
                parts.reserve_bytes,
            )
        )
        out.print(
            f"  {rank.name or 'memory'}: {needed} of {memory_text(rank.usable.bytes)} (weights {weights},"
            f" cache {cache}, working {working}, reserve {reserve})",
            highlight=False,
        )
    seconds = found.seconds
    out.print(
        f"  {seconds.total:.1f} s: load {seconds.download + seconds.load:.1f}, prompt {seconds.prefill:.1f},"
        f" answer {seconds.decode:.1f}; {found.tokens_per_second:.1f} tokens/s"
        f" ({found.tokens_per_second_all:.1f} in all), {found.prompt_tokens_per_second:.0f} of prompt",
        highlight=False,
    )


def _fail(message: str) -> NoReturn:
    err.print(f"[red]error:[/red] {message}", highlight=False, soft_wrap=True)
    raise typer.Exit(EXIT_USAGE)
