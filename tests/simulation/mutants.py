"""Faults seeded into the product's code, each of which the simulator must find.

A fault replaces one text, or several, each of which must stand exactly once in its file; they are put
in while the modules are imported, in a process of its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import structlog

VARIABLE: Final = "MLXNET_SIMULATION_MUTANT"
SEEDS_SECONDS_MAX: Final = 1800
SILENT_LEVEL: Final = 50


@dataclass(frozen=True)
class Mutant:
    """One seeded fault: in `module`, `old` becomes `new`.

    `also` are further (module, old, new), for what two guards keep from happening.
    """

    name: str
    module: str
    old: str
    new: str
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def edits(self) -> tuple[tuple[str, str, str], ...]:
        """All of them."""
        return ((self.module, self.old, self.new), *self.also)


MUTANTS: Final = (
    Mutant(
        "fence not checked",
        "coordinator.relay",
        "and attempt.fence == message.fence\n",
        "",
    ),
    Mutant(
        "node not checked",
        "coordinator.relay",
        "            and attempt.node_id == channel.node_id\n",
        "",
    ),
    Mutant(
        "no dedupe by offset",
        "coordinator.relay",
        "        known = len(attempt.received) - chunk.offset\n",
        "        known = min(0, len(attempt.received) - chunk.offset)\n",
    ),
    Mutant(
        "gap accepted",
        "coordinator.relay",
        "        known = len(attempt.received) - chunk.offset\n",
        "        known = max(0, len(attempt.received) - chunk.offset)\n",
    ),
    Mutant(
        "more than max_tokens",
        "coordinator.relay",
        "        if len(ids) > live.work.max_tokens - len(live.token_ids):\n",
        "        if False:\n",
    ),
    Mutant(
        "signature and digest not checked",
        "coordinator.relay",
        "if not is_whole or not is_signed_by(public_key, message.signature, statement):",
        "if False:",
    ),
    Mutant(
        "next attempt starts again",
        "coordinator.relay",
        "            prefix_ids=tuple(live.token_ids),\n",
        "            prefix_ids=(),\n",
    ),
    Mutant(
        "next attempt gets all tokens again",
        "coordinator.relay",
        "            max_tokens=live.work.max_tokens - len(live.token_ids),\n",
        "            max_tokens=live.work.max_tokens,\n",
    ),
    Mutant(
        "no resume after a reconnect",
        "coordinator.relay",
        "                self._accepted(job, attempt)\n                self._ask_again(channel, job, attempt)\n",
        "                self._accepted(job, attempt)\n",
    ),
    Mutant(
        "lost node not noticed",
        "coordinator.relay",
        "                attempt.gone_since = clock.monotonic()\n",
        "                attempt.last_progress_at = 1e12\n",
    ),
    Mutant(
        "reclaimed counts as a fault",
        "coordinator.relay",
        'self._endings.drop_attempt(live, "reclaimed", "owner_returned", is_fault=False)',
        'self._endings.drop_attempt(live, "lost", "node_lost", is_fault=True)',
    ),
    Mutant(
        "who failed is asked again at once",
        "coordinator.endings",
        "        live.excluded[attempt.node_id] = clock.monotonic() + self._settings.fault_pause_seconds\n",
        "",
    ),
    Mutant(
        "exclude list ignored",
        "coordinator.live",
        "frozenset(n for n, until in self.excluded.items() if until > now)",
        "frozenset()",
    ),
    Mutant(
        "an end that fails is given up",
        "coordinator.endings",
        "                return await self._commits.written(write)\n            except REFUSALS:",
        "                return await self._commits.written(write)\n            except Exception:",
    ),
    Mutant(
        "seat not given back",
        "coordinator.settlement",
        ".values(live=Slot.live - 1)",
        ".values(live=Slot.live)",
    ),
    Mutant(
        "one seat too many",
        "coordinator.reservations",
        ".where(Slot.id == slot_id, Slot.live < Slot.width, ~others_at_work)\n            .values(live=Slot.live + 1)",
        ".where(Slot.id == slot_id)\n            .values(live=Slot.live)",
    ),
    Mutant(
        "two models at work on one Mac",
        "coordinator.reservations",
        "Slot.live < Slot.width, ~others_at_work)",
        "Slot.live < Slot.width)",
        also=(("coordinator.placement.fleet", "= BESIDE if live > slots.live[slot] else ", "= "),),
    ),
    Mutant(
        "memory of a new slot not reserved",
        "coordinator.reservations",
        ".values(reserved_bytes=Node.reserved_bytes - freed + plan.bytes)",
        ".values(reserved_bytes=Node.reserved_bytes - freed)",
    ),
    Mutant(
        "hold never voided",
        "coordinator.settlement",
        "        if self._job.hold_id is not None:\n",
        "        if self._job.hold_id is not None and self._settlement.charge_umlx:\n",
    ),
    Mutant(
        "ended job ended again",
        "coordinator.settlement",
        "    if job.state in FINAL_JOB_STATES:\n        return Written(Settled(job.charge_umlx, was_settled_before=True))\n",
        "",
    ),
    Mutant(
        "lost attempt not paid",
        "coordinator.endings",
        "            delivered_tokens=len(attempt.received),\n",
        "            delivered_tokens=len(attempt.received) if state == 'done' else 0,\n",
    ),
    Mutant(
        "recovery forgets running jobs",
        "coordinator.recovery",
        '            .where(Job.state == "running")\n',
        '            .where(Job.state == "lost")\n',
    ),
    Mutant(
        "recovery counts delivered tokens anew",
        "coordinator.recovery",
        "        received=live.tokens_of(fence),\n",
        "        received=0,\n",
    ),
    Mutant(
        "prefix not stored",
        "coordinator.live",
        "    def restore(self, prefix: Prefix) -> None:\n",
        "    def restore(self, prefix: Prefix) -> None:\n        return\n\n    def restore_all(self, prefix: Prefix) -> None:\n",
    ),
    Mutant(
        "queued again under a newer attempt",
        "coordinator.settlement",
        " or job.fence != end.fence",
        "",
        also=(("coordinator.dispatch", " or live.is_being_queued:", ":"),),
    ),
    Mutant(
        "reservation of unknown fate forgotten",
        "coordinator.offers",
        "                self._endings.requeue_unsent(one.live, one.choice.node_id)\n",
        "                pass\n",
    ),
    Mutant(
        "idempotency key not looked up",
        "coordinator.jobs.service",
        "    replay = _replay_of(earlier, submission)\n    if replay is not None:",
        "    replay = None\n    if replay is not None:",
    ),
    Mutant(
        "node forgets its tokens before they are settled",
        "node_agent.attempt_book",
        "        if attempt.report is None:\n            return\n",
        "        if attempt.report is None:\n            return\n        attempt.token_ids = []\n",
    ),
    Mutant(
        "node computes on when its owner is back",
        "node_agent.state",
        '                self.book.stop(attempt, "reclaimed")\n\n    # -- after',
        "                pass\n\n    # -- after",
    ),
    Mutant(
        "node answers cancel with silence",
        "node_agent.state",
        '            if cancel.reason == "lost":\n                self.book.leave(attempt, Phase.LOST)\n',
        '            if cancel.reason == "lost":\n                pass\n',
    ),
)


Edits = tuple[tuple[str, str, str], ...]


@final
class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, mutant: Mutant, edits: Edits, name: str, path: str) -> None:
        super().__init__(name, path)
        self._mutant, self._edits = mutant, edits

    def get_code(self, fullname: str) -> Any:
        # Past the cache of compiled code.
        return self.source_to_code(self.get_data(self.path), self.path)

    def get_data(self, path: Any) -> bytes:
        text = super().get_data(path).decode()
        for module, old, new in self._edits:
            if text.count(old) != 1:
                raise MutantError(f"{self._mutant.name}: its text is not in {module} once")
            text = text.replace(old, new)
        return text.encode()


class MutantError(RuntimeError):
    """A seeded fault that does not fit the code any more."""


@final
class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        edits = tuple(edit for edit in self._mutant.edits if edit[0] == fullname)
        if not edits:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Loader(self._mutant, edits, fullname, spec.origin)
        return spec


def install() -> None:
    """Seed the fault that the environment names, if it does."""
    name = os.environ.get(VARIABLE)
    if name is not None:
        (mutant,) = (one for one in MUTANTS if one.name == name)
        for module, _, _ in mutant.edits:
            if module in sys.modules:
                raise MutantError(f"{module} is imported already")
        sys.meta_path.insert(0, _Finder(mutant))


def begin_process() -> None:
    """Prepare a process of a farm; nothing of the product may be imported in it before."""
    install()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(SILENT_LEVEL))


def try_mutants(words: Sequence[str], *, seeds: int) -> dict[str, Any]:
    """Try all, or those whose names contain a word, and print a table. The figures of it."""
    chosen = [one for one in MUTANTS if not words or any(word in one.name for word in words)]
    states: dict[str, str] = {}
    for mutant in chosen:
        began = time.monotonic()
        state, by = _try(mutant, seeds)
        states[mutant.name] = state
        print(f"{state:8} {mutant.name:48} {time.monotonic() - began:5.1f} s  {by}", flush=True)
    missed = [name for name, state in states.items() if state != "caught"]
    return {"seeded_faults": len(chosen), "seeded_faults_missed": len(missed), "missed": missed}


def _try(mutant: Mutant, seeds: int) -> tuple[str, str]:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(seeds), "--until-caught"]
    done = subprocess.run(
        command,
        env={**os.environ, VARIABLE: mutant.name},
        capture_output=True,
        text=True,
        check=False,
        timeout=SEEDS_SECONDS_MAX,
    )
    if done.returncode == 1 and "MutantError" in done.stderr:
        return "broken", done.stderr.strip().splitlines()[-1]
    found = next((line for line in done.stdout.splitlines() if line.startswith("seed ")), "")
    if found:
        return "caught", found[:110]
    return ("survived", "") if done.returncode == 0 else ("broken", done.stderr[-200:])
