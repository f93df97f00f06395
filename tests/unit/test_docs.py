"""The documents say what the code does: links, commands, settings, error codes, examples.

`python -m tests.unit.test_docs` writes the protocol's examples anew from the code.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, get_args

import pytest
import typer.main
from fastapi.routing import APIRoute

from coordinator.cli import app as network_app
from coordinator.main import build_app
from coordinator.settings import Settings
from node_agent.cli import app as node_app
from node_agent.protocol import messages as wire
from node_agent.protocol import signing

ROOT: Final = Path(__file__).parents[2]
PROTOCOL: Final = ROOT / "docs" / "protocol.md"
EXAMPLE_ORIGIN: Final = "https://network.example.org"
JSON_BLOCK: Final = re.compile(r"(?<=```json\n).*?(?=```)", re.DOTALL)
# Read from the environment by other parts than the coordinator's settings.
OTHER_SETTINGS: Final = {"MLXNET_CACHE", "MLXNET_URL", "MLXNET_API_KEY"}
# Codes that the web framework's own errors are given; see `coordinator/http.py`.
NO_CODES: Final = {"code", "error.code", "error.code if error is not None else None"}


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository; without git, those that are there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        found = [ROOT / line for line in listed.splitlines()]
    except (OSError, subprocess.CalledProcessError):
        found = [path for pattern in patterns for path in ROOT.rglob(pattern) if ".venv" not in path.parts]
    return [path for path in found if path.is_file()]


def documents() -> list[Path]:
    return tracked("*.md")


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", documents(), ids=shown)
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    for target in re.findall(r"\[[^\]]+\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (path.parent / name) if name else path
        assert place.exists(), f"{target} does not exist"
        assert place.resolve().is_relative_to(ROOT), f"{target} leads out of the project"
        if anchor:
            assert anchor in anchors(place.read_text("utf-8")), f"no heading for {target}"


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for path in documents():
        named = set(re.findall(r"^make ([a-z-]+)", path.read_text("utf-8"), re.MULTILINE))
        named |= set(re.findall(r"`make ([a-z-]+)", path.read_text("utf-8")))
        assert named <= targets, f"{shown(path)}: {named - targets}"
    assert "demo" in targets


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Every command of a command line, as its words, with its options."""
    yield words, {name for parameter in command.params for name in parameter.opts}
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*words, name))


COMMANDS: Final = {
    "mlx-network": dict(walk(typer.main.get_command(network_app))),
    "mlx-node": dict(walk(typer.main.get_command(node_app))),
}


def commands_named(text: str) -> list[tuple[str, str]]:
    """Program and the rest, in inline code and in lines of code blocks."""
    inline = re.findall(r"`(?:[A-Z_]+=\S+ )?(mlx-network|mlx-node) ([^`]+)`", text)
    lines = re.findall(r"^\s*(?:[A-Z_]+=\S+ )?(mlx-network|mlx-node) (.+)$", text, re.MULTILINE)
    return inline + [line for line in lines if "`" not in line[1]]


def test_commands_and_options_exist() -> None:
    seen = 0
    for path in documents():
        for program, rest in commands_named(path.read_text("utf-8")):
            known = COMMANDS[program]
            words = rest.split()
            command = max((found for found in known if tuple(words[: len(found)]) == found), key=len)
            assert command, f"{shown(path)}: {program} {rest}"
            is_group = any(other[: len(command)] == command and other != command for other in known)
            assert not is_group, f"{shown(path)}: {program} {rest}: which command?"
            options = {word.partition("=")[0] for word in re.findall(r"(?<=\s)--[a-z-]+", " " + rest)}
            assert options <= known[command] | {"--help"}, f"{shown(path)}: {program} {rest}"
            seen += 1
    assert seen > 15


def test_settings_exist() -> None:
    known = {f"MLXNET_{name.upper()}" for name in Settings.model_fields} | OTHER_SETTINGS
    for path in documents():
        named = set(re.findall(r"MLXNET_[A-Z_]+", path.read_text("utf-8")))
        assert named <= known, f"{shown(path)}: {named - known}"


# -- the API -------------------------------------------------------------------------------------


def code_argument(call: ast.Call) -> tuple[str, ast.expr] | None:
    """The expression that becomes an error's code, with the name of what is called."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "ApiError" and len(call.args) > 1:
        return name, call.args[1]
    if name in {"conflict", "not_found"} and call.args:
        return name, call.args[0]
    for keyword in call.keywords:
        if keyword.arg == "error_code":
            return name, keyword.value
    return None


def codes_of(name: str, value: ast.expr) -> set[str]:
    if name == "not_found" and isinstance(value, ast.Constant):
        return {f"{value.value}_not_found"}
    if ast.unparse(value) in NO_CODES or isinstance(value, ast.JoinedStr):
        return set()  # passed on from elsewhere, or made in `not_found` itself
    return texts_in(value)


def codes_in_code() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "coordinator").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            argument = code_argument(node) if isinstance(node, ast.Call) else None
            if argument is not None:
                found |= codes_of(*argument)
            if path.name == "http.py" and isinstance(node, ast.Assign):
                targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
                if targets == {"code"}:
                    found |= texts_in(node.value)
    return found


def texts_in(value: ast.expr) -> set[str]:
    """Every string constant in an expression."""
    constants = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
    return {constant for constant in constants if isinstance(constant, str)}


def test_error_codes_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    section = text.partition("\n## Errors\n")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)
    assert len(documented) == len(set(documented))
    assert set(documented) == codes_in_code()


def routes_of(routes: Iterable[Any]) -> set[tuple[str, str, str]]:
    found: set[tuple[str, str, str]] = set()
    for route in routes:
        if isinstance(route, APIRoute):
            audience = (route.openapi_extra or {}).get("x-audience", "missing")
            path = route.path.replace(":path", "")
            found |= {(method, path, audience) for method in route.methods or ()}
        elif (included := getattr(route, "original_router", None)) is not None:
            found |= routes_of(included.routes)
    return found


def test_routes_are_those_of_the_application(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    documented = set(
        re.findall(r"^\| (GET|HEAD|POST|PUT|DELETE) \| `([^`]+)` \| (\w+) \|", text, re.MULTILINE)
    )
    app = build_app(Settings(home=tmp_path))
    try:
        assert documented == routes_of(app.routes)
    finally:
        app.state.runtime.tokenizers.close()
        app.state.runtime.database.close()


# -- the protocol's examples ---------------------------------------------------------------------


def examples(text: str) -> list[tuple[str, str]]:
    """Each `### type` heading of the protocol, with its side and its block."""
    found: list[tuple[str, str]] = []
    for part in text.split("\n## From ")[1:]:
        side = "node" if part.startswith("coordinator to node") else "coordinator"
        found += [(side, block) for block in JSON_BLOCK.findall(part)]
    return found


def parse(side: str, block: str) -> wire.Message:
    return wire.parse_to_node(block) if side == "node" else wire.parse_to_coordinator(block)


def written(message: wire.Message) -> str:
    return json.dumps(json.loads(wire.encode(message)), indent=1, ensure_ascii=False) + "\n"


def types_of(union: Any) -> set[str]:
    return {member.model_fields["type"].default for member in get_args(get_args(union)[0])}


def test_the_protocols_examples_are_what_the_code_writes() -> None:
    seen: dict[str, set[str]] = {"node": set(), "coordinator": set()}
    for side, block in examples(PROTOCOL.read_text("utf-8")):
        message = parse(side, block)
        assert written(message) == block, "stale: run python -m tests.unit.test_docs"
        seen[side].add(str(json.loads(block)["type"]))
    assert seen["node"] == types_of(wire.ToNode)
    assert seen["coordinator"] == types_of(wire.ToCoordinator)


def test_the_protocols_example_signatures_are_good() -> None:
    found = {type(m): m for m in (parse(*e) for e in examples(PROTOCOL.read_text("utf-8")))}
    hello, finished, offer = found[wire.Hello], found[wire.Finished], found[wire.Offer]
    challenge, chunk = found[wire.Challenge], found[wire.Chunk]
    assert isinstance(hello, wire.Hello)
    assert isinstance(finished, wire.Finished)
    assert isinstance(offer, wire.Offer)
    assert isinstance(challenge, wire.Challenge)
    assert isinstance(chunk, wire.Chunk)
    key = signing.decode_bytes(hello.public_key)
    greeting = signing.hello_statement(audience=EXAMPLE_ORIGIN, node_id=hello.node_id, nonce=challenge.nonce)
    assert signing.is_signed_by(key, hello.signature, greeting)
    assert offer.card.revision == offer.card_revision
    assert signing.tokens_digest(chunk.token_ids) == finished.output_digest
    result = signing.result_statement(
        job_id=offer.job_id,
        fence=offer.fence,
        card_revision=offer.card_revision,
        token_count=len(chunk.token_ids),
        output_digest=finished.output_digest,
    )
    assert signing.is_signed_by(key, finished.signature, result)


# -- nothing outside the project -----------------------------------------------------------------


def climbs(tree: ast.AST, path: Path) -> Iterator[int]:
    """Lines where `Path(__file__).parents[n]` is a folder outside the project."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
            continue
        level = node.slice.value
        is_own = ast.unparse(node.value) == "Path(__file__).parents"
        if is_own and isinstance(level, int) and not path.parents[level].is_relative_to(ROOT):
            yield node.lineno


# Outputs of macOS commands that others recorded are not ours to publish; where they lie beside a
# checkout these tests read them, else they skip and say so.
READERS_OF_RECORDINGS = frozenset(
    {ROOT / "tests/unit/node/test_hardware.py", ROOT / "tests/unit/sizing/published.py"}
)


def test_nothing_names_a_place_outside_the_project() -> None:
    neighbours = [str(place) for place in ROOT.parent.iterdir() if len(place.parts) > 2]
    faults: list[str] = []
    for path in tracked("*.py", "*.md", "*.toml", "*.yml", "Makefile", ".ci/*", "*.js", "*.html"):
        text = path.read_text("utf-8")
        named = [place for place in neighbours if re.search(re.escape(place) + r"(?![\w.-])", text)]
        faults += [f"{shown(path)}: {place}" for place in named]
        if path.suffix == ".py" and path not in READERS_OF_RECORDINGS:
            faults += [f"{shown(path)}:{line}: climbs out" for line in climbs(ast.parse(text), path)]
    assert not faults


def rewrite_examples() -> None:
    """Write the examples anew: fields that the code has added appear with their defaults."""
    text = PROTOCOL.read_text("utf-8")
    for side, block in examples(text):
        text = text.replace(block, written(parse(side, block)))
    PROTOCOL.write_text(text, "utf-8")


if __name__ == "__main__":
    rewrite_examples()
