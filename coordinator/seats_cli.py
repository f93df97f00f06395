"""`mlx-network seat` and `upkeep`: what a Mac of yours promises, and how well that is kept."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import typer

from coordinator.client import ClientError
from coordinator.options import AsJson, Key, Url
from coordinator.policy_cli import client_of
from coordinator.statements_cli import mlx
from coordinator.terminal import Terminal

PPM_PER_PERCENT: Final = 10_000

seats_app = typer.Typer()
out = Terminal()

NodeId = Annotated[str, typer.Argument(help="One of your Macs; see: mlx-network nodes list")]


@seats_app.command()
def seat(
    node_id: NodeId,
    seat: Annotated[
        Literal["idle", "dedicated", "ultra"] | None,
        typer.Option("--seat", help="Ask for this seat; idle is stepping back. Without it, only look."),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            "--hours", min=0, max=24, help="Promised of every day; without it, what the seat needs."
        ),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option("--days", min=0, max=366, help="Promised for so long; without it, what the seat needs."),
    ] = None,
    interrupt: Annotated[
        bool | None,
        typer.Option("--interrupt/--no-interrupt", help="Whether your own use stops the network's work."),
    ] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show a Mac's seat, or ask for another."""
    wish = {
        "seat": seat,
        "promised_seconds_per_day": round(hours * 3600) if hours is not None else None,
        "promised_days": days,
        "owner_may_interrupt": interrupt,
    }
    given = {name: value for name, value in wish.items() if value is not None}
    path = f"/v1/nodes/{node_id}/seat"
    with client_of(url, api_key) as client:
        if given and seat is None:
            raise ClientError("say which seat the promise is for: --seat idle, dedicated or ultra")
        found = client.put(path, given) if given else client.get(path)
    if as_json:
        _print_json(found)
    else:
        for line in seat_lines(found):
            out.print(line, highlight=False, soft_wrap=True)


def seat_lines(found: dict[str, Any]) -> list[str]:
    """The answer as text: what is held, what fails and how to mend it, service, upkeep, pay."""
    follows = f", from the next slot on {found['next_seat']}" if found["next_seat"] != found["seat"] else ""
    lines = [f"[bold]{found['seat']}[/bold] seat{follows}; wanted: {found['wanted_seat']}"]
    lines += [
        f"  {one['condition']}: found {one['found']}, needed {one['needed']}. {one['fix']}"
        for one in found["failing"]
    ]
    hardware = found["hardware"]
    measured = hardware["measured_bandwidth_bytes_per_second"] // 10**9
    specified = hardware["specified_bandwidth_bytes_per_second"] // 10**9
    lines.append(
        f"  hardware {hardware['trust']}: {measured} GB/s measured, {specified} GB/s specified,"
        f" {hardware['checks_passed']} checks passed"
    )
    service = found["service"]
    percents = {name: part["service_ppm"] / PPM_PER_PERCENT for name, part in service.items()}
    lines.append(
        f"  promise kept: today {percents['today']:g} %, last 24 hours {percents['last_24_hours']:g} %,"
        f" this week {percents['this_week']:g} %"
    )
    upkeep, earned = found["upkeep"], found["earned"]
    lines.append(f"  upkeep left this week: {upkeep['left_seconds'] // 60} min")
    lines.append(
        f"  standing ready earned {mlx(earned['today_umlx'])} MLX today,"
        f" {mlx(earned['this_week_umlx'])} this week, {mlx(earned['last_30_days_umlx'])} in 30 days"
    )
    return lines


@seats_app.command()
def upkeep(
    node_id: NodeId,
    starts_in: Annotated[
        int, typer.Option("--in", min=0, help="Minutes until it begins; announce it before.")
    ] = 0,
    minutes: Annotated[
        int | None, typer.Option("--for", min=1, help="Minutes that it lasts. Without it, only look.")
    ] = None,
    cancel: Annotated[
        str | None, typer.Option("--cancel", help="Take back upkeep that has not begun.")
    ] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show or announce times in which a Mac is down: two hours a week count as kept."""
    path = f"/v1/nodes/{node_id}/upkeep"
    with client_of(url, api_key) as client:
        if cancel is not None:
            _ = client.delete(f"{path}/{cancel}")
        elif minutes is not None:
            _ = client.post(path, {"starts_in_seconds": starts_in * 60, "seconds": minutes * 60})
        found = client.get(path)
    if as_json:
        _print_json(found)
        return
    out.print(f"{found['left_seconds'] // 60} of {found['allowed_seconds'] // 60} minutes are left this week")
    for window in found["windows"]:
        out.print(
            f"  {_when(window['start_us'])} to {_when(window['end_us'])}  {window['id']}", soft_wrap=True
        )


def _when(at_us: int) -> str:
    return f"{datetime.fromtimestamp(at_us / 1e6, tz=UTC):%Y-%m-%d %H:%M} UTC"


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
