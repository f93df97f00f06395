"""`mlx-node`: join a network, run, look, leave.

Heavy modules are imported inside the commands that need them, so that `--help` answers at once
and an install without the `node` extra can say what is missing.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

if TYPE_CHECKING:
    from node_agent.protocol.messages import Hardware
    from node_agent.settings import NodeConfig

NEEDED: Final = ("websockets", "psutil", "mlx", "mlx_lm", "tokenizers", "gguf", "filelock")
EXIT_FAILED: Final = 1
EXIT_REFUSED: Final = 3

app = typer.Typer(
    name="mlx-node",
    help="Lend this Mac to an MLX Network: join once, then run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Home = Annotated[Path | None, typer.Option("--home", help="The node's folder [MLXNODE_HOME, ~/.mlx-node].")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")]
ModelsDir = Annotated[
    Path | None,
    typer.Option("--models-dir", help="Where local model folders lie [MLXNODE_MODELS_DIR]."),
]
LendGib = Annotated[
    float | None,
    typer.Option("--lend-gib", help="Memory to lend, GiB [0.7 of a Mac's, 0.5 on Linux]."),
]
PlaceKind = Annotated[
    str | None,
    typer.Option("--place", help="What the public map shows of this Mac: country, area or none."),
]
Country = Annotated[
    str | None,
    typer.Option("--country", help="The country's code of two letters; else that of the time zone."),
]
Near = Annotated[
    str | None,
    typer.Option("--near", help='For an area: a town, or "LATITUDE,LONGITUDE"; it stays on this Mac.'),
]
HabitsChoice = Annotated[
    str | None,
    typer.Option(
        "--habits",
        metavar="[told|kept]",
        help="Whether it is told, roughly, when this Mac is usually lent, so that long jobs fit; told unless kept is said.",
    ),
]
Width = Annotated[int, typer.Option("--width", min=1, max=64, help="Attempts at the same time.")]
ModelsMax = Annotated[
    int,
    typer.Option("--models-max", min=1, max=16, help="Models in memory side by side; one works at a time."),
]


@app.command()
def join(
    url: Annotated[str, typer.Argument(help="The coordinator, https://network.example.org")],
    name: Annotated[str | None, typer.Option("--name", help="What this node is called.")] = None,
    lend_gib: LendGib = None,
    width: Width = 8,
    models_max: ModelsMax = 4,
    models_dir: ModelsDir = None,
    place: PlaceKind = None,
    country: Country = None,
    near: Near = None,
    habits: HabitsChoice = None,
    no_run: Annotated[bool, typer.Option("--no-run", help="Join, but do not run yet.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Join a coordinator (once; its user approves a code), then run in the foreground."""
    _check_install()
    from node_agent.place_cli import choose_place, tell_place
    from node_agent.settings import NodeConfig, SettingsError, load_config, origin_of, save_config

    folder = _home(home)
    try:
        if habits not in {None, "told", "kept"}:
            raise SettingsError(f"--habits {habits}: say told or kept")
        origin = origin_of(url)
        config = load_config(folder)
        if config is not None and config.coordinator != origin:
            raise SettingsError(
                f"this node belongs to {config.coordinator}. Run mlx-node leave, or name another --home"
            )
        asks = not as_json and config is None
        chosen = choose_place(place, country, near, asks=asks) if asks or place is not None else None
        hardware = _measure(lend_gib)
        if config is None:
            config = _enrol(folder, origin, name, hardware, as_json)
        changed = config.model_dump() | {
            "width": width,
            "models_max": models_max,
            "lend_gib": lend_gib,
            "models_dir": str(models_dir.expanduser().resolve()) if models_dir else None,
        }
        if habits is not None:
            changed["share_habits"] = habits == "told"
        config = NodeConfig.model_validate(changed)
        save_config(folder, config)
        if chosen is not None and (chosen.kind != "none" or config.place != "none"):
            config, _ = tell_place(folder, config, chosen)
    except ValueError as error:
        _die(str(error), as_json)
    if not no_run:
        _run(folder, config, as_json, hardware)


@app.command(name="place")
def change_place(
    kind: Annotated[str | None, typer.Argument(metavar="[country|area|none]")] = None,
    country: Country = None,
    near: Near = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Choose what the public map shows of this Mac, change it, or withdraw it with none.

    Without a choice: say what it shows now.
    """
    _check_install()
    from node_agent.place_cli import choose_place, tell_place
    from node_agent.settings import SettingsError

    folder = _home(home)
    try:
        config = _joined(folder)
        if kind is None:
            shown = " ".join(part for part in (config.place, config.place_country, config.place_cell) if part)
            _say(shown, as_json, place=config.place, country=config.place_country, cell=config.place_cell)
            return
        found = choose_place(kind, country, near, asks=not as_json)
        config, light = tell_place(folder, config, found)
    except (SettingsError, ValueError) as error:
        _die(str(error), as_json)
    text = "The map shows it like this from the next full hour."
    if light is not None:
        text += f" Its light now: {light}."
    _say(text, as_json, event="place", place=config.place, light=light)


@app.command()
def run(home: Home = None, as_json: AsJson = False) -> None:
    """Run this node in the foreground; Ctrl-C ends it in order."""
    _check_install()
    from node_agent.settings import SettingsError

    place = _home(home)
    try:
        config = _joined(place)
        hardware = _measure(config.lend_gib)
    except (SettingsError, ValueError) as error:
        _die(str(error), as_json)
    _run(place, config, as_json, hardware)


@app.command()
def status(home: Home = None, as_json: AsJson = False) -> None:
    """Say whether this node runs, and what it is doing. Exit code 1 if it does not run."""
    _check_install()
    from node_agent.status import read_status, shown_models

    found = read_status(_home(home))
    if found is None:
        _say("not running", as_json, state="stopped")
        raise typer.Exit(EXIT_FAILED)
    models = shown_models(found)
    text = f"{found.name}: {found.state}, {models}, {found.attempts} attempts, pid {found.pid}"
    _say(text, as_json, **found.model_dump())


@app.command()
def why(home: Home = None, as_json: AsJson = False) -> None:
    """Say what this Mac was looked at for in the last 24 hours, what it took, and why not the rest."""
    _check_install()
    import httpx2

    from node_agent import why_cli
    from node_agent.identity import load_identity
    from node_agent.settings import SettingsError

    folder = _home(home)
    try:
        config = _joined(folder)
        with httpx2.Client(timeout=why_cli.HTTP_TIMEOUT) as client:
            found = why_cli.ask_why(client, config.coordinator, load_identity(folder))
    except (SettingsError, ValueError) as error:
        _die(str(error), as_json)
    _say("\n".join(why_cli.why_lines(found)), as_json, **found.model_dump())


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models in this machine's cache [MLXNET_CACHE] and their sizes."""
    _check_install()
    from node_agent.models.store import ModelStore

    store = ModelStore()
    stored = store.stored()
    for model in stored:
        _say(
            f"{model.card_id}  {model.revision_start}  {model.bytes / 1e9:.2f} GB",
            as_json,
            card_id=model.card_id,
            revision_start=model.revision_start,
            bytes=model.bytes,
            folder=str(model.folder),
        )
    if not stored and not as_json:
        typer.echo(f"no models in {store.cache}")


@app.command()
def leave(home: Home = None, as_json: AsJson = False) -> None:
    """Leave the network: say goodbye to the coordinator and forget the configuration.

    The key stays, so the node may join again under the same id.
    """
    _check_install()
    import asyncio

    from node_agent.farewell import say_goodbye
    from node_agent.settings import SettingsError, config_path
    from node_agent.status import running

    place = _home(home)
    try:
        config = _joined(place)
        with running(place):
            told = asyncio.run(say_goodbye(place, config, _measure(config.lend_gib)))
            config_path(place).unlink()
    except (SettingsError, ValueError) as error:
        _die(str(error), as_json)
    text = "left" if told is None else f"left, but the coordinator does not know it: {told}"
    _say(text, as_json, event="left", coordinator_told=told is None)


def _run(place: Path, config: NodeConfig, as_json: bool, hardware: Hardware) -> None:
    import asyncio

    from node_agent.agent import Agent
    from node_agent.link import RefusedError
    from node_agent.log import configure
    from node_agent.parts import make_parts
    from node_agent.settings import SettingsError
    from node_agent.status import running

    configure(as_json)
    try:
        with running(place):
            asyncio.run(Agent(make_parts(place, config, hardware)).run())
    except RefusedError as error:
        _die(str(error), as_json, EXIT_REFUSED)
    except SettingsError as error:
        _die(str(error), as_json)


def _enrol(place: Path, origin: str, name: str | None, hardware: Hardware, as_json: bool) -> NodeConfig:
    import platform

    import httpx2

    from node_agent import enrolment
    from node_agent.hardware.device import device_of
    from node_agent.identity import load_identity
    from node_agent.settings import NodeConfig

    identity = load_identity(place)
    called = name or platform.node().split(".")[0] or "node"
    try:
        with httpx2.Client(timeout=enrolment.HTTP_TIMEOUT) as client:
            device = device_of(origin)
            started = enrolment.start(client, origin, identity, called, hardware, device=device)
            _say(
                f"approve with: mlx-network nodes approve {started.code}",
                as_json,
                event="code",
                code=started.code,
            )
            outcome = enrolment.wait(client, origin, started)
    except enrolment.EnrolmentError as error:
        _die(str(error), as_json)
    config = NodeConfig(
        coordinator=origin,
        node_id=identity.node_id,
        name=outcome.name or called,
        owner=outcome.owner or "",
    )
    _say(
        f"joined {origin} as {config.name}",
        as_json,
        event="joined",
        node_id=config.node_id,
        name=config.name,
    )
    return config


def _joined(place: Path) -> NodeConfig:
    from node_agent.settings import SettingsError, load_config

    config = load_config(place)
    if config is None:
        raise SettingsError(f"{place}: this node has not joined. Run: mlx-node join URL")
    return config


def _measure(lend_gib: float | None) -> Hardware:
    from node_agent.hardware.facts import HardwareUnknownError, measure_hardware

    try:
        return measure_hardware(lend_gib)
    except HardwareUnknownError as error:
        raise ValueError(str(error)) from error


def _home(home: Path | None) -> Path:
    from node_agent.settings import default_home

    return home.expanduser() if home is not None else default_home()


def _check_install() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        typer.echo(
            f"MLX Node is not installed here ({', '.join(missing)} missing)."
            " Run: pip install 'mlx-network[node]'",
            err=True,
        )
        raise typer.Exit(EXIT_FAILED)


def _say(text: str, as_json: bool, **facts: object) -> None:
    typer.echo(json.dumps(facts) if as_json else text)


def _die(message: str, as_json: bool, code: int = EXIT_FAILED) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"event": "error", "message": message}))
    else:
        typer.echo(message, err=True)
    raise typer.Exit(code)


def main() -> None:
    app()
