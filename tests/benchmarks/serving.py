"""How much the network costs: against mlx-lm in process and against mlx_lm.server.

    python -m tests.benchmarks.serving [--runs N] [--quick] [--json FILE]

Everything is real: processes, sockets, database, SmolLM2-135M, OpenAI's client. The systems take
turns within each round, so that they share whatever else the machine does, and ratios are taken
within rounds. All answer the same chats greedily to the same length; a run with another number of
tokens is an error. No two rounds use the same chat, so that no prompt cache helps anybody.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

from coordinator.catalogue.cards import load_catalogue
from coordinator.local import LocalError, LocalNetwork
from node_agent.models.store import ModelStore
from tests.benchmarks import report
from tests.benchmarks.in_process import InProcess
from tests.benchmarks.measures import OtherLoad, Prompt, Run, check_tokens
from tests.benchmarks.report import BASE, NETWORK, SERVER, Round
from tests.benchmarks.served import MlxLmServer, WholeNetwork
from tests.benchmarks.tiny import CARD_ID, make_tiny

WIDTH: Final = 8
OTHERS_CORES_MAX: Final = 0.25
AIMS: Final = {
    "decode_ratio_1": (">=", 0.95),
    "aggregate_vs_server_8": (">=", 0.97),
    "added_ttft_ms_p50": ("<=", 50.0),
    "tiny_cpu_ms_per_token": ("<=", 1.2),
}


class System(Protocol):
    """Whatever answers chats."""

    def run(self, prompts: list[Prompt], max_tokens: int) -> Run:
        """Answer all prompts together."""
        ...

    def close(self) -> None:
        """End what was started for it."""
        ...


@dataclass(frozen=True)
class Plan:
    """How much is measured: rounds of each kind, and the answers' lengths in tokens."""

    rounds: int
    first_token_rounds: int
    alone_tokens: int
    together_tokens: int
    tiny_tokens: int


FULL: Final = Plan(7, 25, 48, 32, 400)
QUICK: Final = Plan(2, 5, 16, 12, 200)

_numbers: Final = itertools.count(int(time.time()) % 5000)


def make_prompt() -> Prompt:
    """A chat that was never sent before, always of the same number of tokens: it begins with a
    number, whose digits are a token each, the fastest changing first. It asks for more than any
    answer here may hold."""
    number = f"{next(_numbers) % 10_000:04d}"[::-1]
    return Prompt(
        f"Case {number}. You write long, calm and detailed stories.",
        f"Tell me a very long story about a lighthouse keeper and sheep number {number}, in many chapters.",
    )


def measure(
    systems: dict[str, System], *, rounds: int, width: int, max_tokens: int, say: Callable[[str], None]
) -> list[Round]:
    """Warm every system up, then let them take turns."""
    for name, system in systems.items():
        check_tokens(
            system.run([make_prompt() for _ in range(width)], min(max_tokens, 4)), min(max_tokens, 4), name
        )
    found: list[Round] = []
    for number in range(rounds):
        prompts = [make_prompt() for _ in range(width)]
        one: dict[str, Run] = {}
        for name, system in systems.items():
            say(f"round {number + 1} of {rounds}, {width} at once: {name}")
            one[name] = system.run(prompts, max_tokens)
            check_tokens(one[name], max_tokens, name)
        found.append(one)
    return found


class Bench:
    """All systems of one bench; `close` ends every process that was started."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-bench-")))
        self._models, catalogue = make_tiny(folder)
        os.environ["MLXNET_CATALOGUE_DIRS"] = json.dumps([str(catalogue)])
        os.environ["MLXNET_MODELS_DIR"] = os.environ["MLXNODE_MODELS_DIR"] = str(self._models)
        self._network = LocalNetwork(
            home=folder / "home", port=0, nodes_wanted=1, node_options=("--width", str(WIDTH))
        )

    def __enter__(self) -> Self:
        self._stack.callback(self._network.stop)
        try:
            self._network.start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure_all(self, say: Callable[[str], None]) -> dict[str, list[Round]]:
        """Rounds by what they measure."""
        plan = self._plan
        card = load_catalogue().resolve("small")
        folder = ModelStore().folder_of(card) if card is not None else None
        if card is None or folder is None:
            raise LocalError("the small model is not in the cache")
        with ExitStack() as stack:
            network, base = WholeNetwork(self._network, card.id), InProcess(folder)
            stack.callback(network.close)
            stack.callback(base.close)
            two: dict[str, System] = {BASE: base, NETWORK: network}
            found = {"first": measure(two, rounds=plan.first_token_rounds, width=1, max_tokens=2, say=say)}
            server = MlxLmServer(folder)
            stack.callback(server.close)
            three: dict[str, System] = {BASE: base, SERVER: server, NETWORK: network}
            for width in (1, 4, WIDTH):
                tokens = plan.alone_tokens if width == 1 else plan.together_tokens
                found[str(width)] = measure(
                    three, rounds=plan.rounds, width=width, max_tokens=tokens, say=say
                )
        return found | {"tiny": self._measure_tiny(say)}

    def _measure_tiny(self, say: Callable[[str], None]) -> list[Round]:
        with ExitStack() as stack:
            network, base = WholeNetwork(self._network, CARD_ID), InProcess(self._models / CARD_ID)
            stack.callback(network.close)
            stack.callback(base.close)
            systems: dict[str, System] = {BASE: base, NETWORK: network}
            return measure(
                systems,
                rounds=self._plan.rounds,
                width=1,
                max_tokens=self._plan.tiny_tokens,
                say=say,
            )


def figures(rounds: dict[str, list[Round]]) -> dict[str, Any]:
    """The JSON object: the four keys with aims, and what they were chosen from."""
    alone, full = rounds["1"], rounds[str(WIDTH)]
    decode_wall = report.ratio(alone, NETWORK, BASE, report.speed_by_wall)
    decode_cpu = report.ratio(alone, NETWORK, BASE, report.speed_by_cpu)
    full_wall = report.ratio(full, NETWORK, SERVER, report.total_by_wall)
    full_cpu = report.ratio(full, NETWORK, SERVER, report.total_by_cpu)
    decode_by, decode = report.steadier(decode_wall, decode_cpu)
    full_by, together = report.steadier(full_wall, full_cpu)
    same = [one[NETWORK].answers[0].text == one[BASE].answers[0].text for one in alone]
    values = {
        "decode_ratio_1": decode,
        "aggregate_vs_server_8": together,
        "added_ttft_ms_p50": report.added_first_token_ms(rounds["first"]),
        "tiny_cpu_ms_per_token": report.added_cpu_ms_per_token(rounds["tiny"]),
        "decode_ratio_1_wall": decode_wall.value,
        "decode_ratio_1_cpu": decode_cpu.value,
        "aggregate_vs_server_8_wall": full_wall.value,
        "aggregate_vs_server_8_cpu": full_cpu.value,
        "ttft_ms_p50_8_network": report.first_token_ms(one[NETWORK] for one in full),
        "ttft_ms_p50_8_server": report.first_token_ms(one[SERVER] for one in full),
        "tiny_tokens_per_second_ratio": report.ratio(
            rounds["tiny"], NETWORK, BASE, report.speed_by_wall
        ).value,
    }
    rounded: dict[str, Any] = {name: round(value, 4) for name, value in values.items()}
    return rounded | {
        "decode_ratio_1_by": decode_by,
        "aggregate_vs_server_8_by": full_by,
        "same_text_rounds": f"{sum(same)}/{len(same)}",
        "rounds": len(alone),
    }


def print_report(rounds: dict[str, list[Round]], found: dict[str, Any]) -> None:
    """The tables, each aim and whether it was met."""
    print(report.table("time to the first token, 2 tokens, SmolLM2-135M", rounds["first"]))
    for width in ("1", "4", str(WIDTH)):
        title = f"{width} at once, SmolLM2-135M"
        print(report.table(title, rounds[width], decode_only=width == "1"))
    print(report.table("1 at once, tiny random model", rounds["tiny"], decode_only=True))
    print(
        f"decode_ratio_1 is by {found['decode_ratio_1_by']}, aggregate_vs_server_8 by"
        f" {found['aggregate_vs_server_8_by']} (whichever spreads less over the rounds)"
    )
    if found["cores_used_by_others"] > OTHERS_CORES_MAX:
        print(
            f"  NOT A QUIET MACHINE: others kept {found['cores_used_by_others']} cores busy; what waits"
            " for a turn on a core waits longer on the path of four processes than on that of one"
        )
    for name, (sign, aim) in AIMS.items():
        value = found[name]
        is_met = value >= aim if sign == ">=" else value <= aim
        print(f"  {name:24} {value:8.3f}  aim {sign} {aim:<5g} {'met' if is_met else 'MISSED'}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="serving", description="What does the network cost?")
    parser.add_argument("--runs", type=int, default=None, help="rounds of each kind [7]")
    parser.add_argument("--quick", action="store_true", help="two short rounds: does it work at all?")
    parser.add_argument("--json", type=Path, default=None, help="also write the JSON object here")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else FULL
    if options.runs is not None:
        plan = Plan(
            options.runs, 3 * options.runs + 4, plan.alone_tokens, plan.together_tokens, plan.tiny_tokens
        )

    def say(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)

    began = time.monotonic()
    with Bench(plan) as bench:
        others = OtherLoad()
        rounds = bench.measure_all(say)
        cores = others.cores()
    say("")
    found = figures(rounds) | {
        "seconds": round(time.monotonic() - began),
        "cores_used_by_others": round(cores, 2),
    }
    print_report(rounds, found)
    line = json.dumps(found)
    if options.json is not None:
        options.json.write_text(line + "\n", "utf-8")
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
