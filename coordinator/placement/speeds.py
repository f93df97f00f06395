"""Forecasts for many Macs at once: the functions of `node_agent.sizing` on arrays.

Macs of one chip, bandwidth and self-test are one *class*, and a forecast is made for each class.
Bandwidth and factors are rounded down to steps of about 1 %, far below what a forecast is off by,
so that a fleet of any size has few classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, log2
from typing import Any, Final, cast, final

import numpy as np
from numpy.typing import NDArray

from node_agent.protocol.cards import ModelFacts
from node_agent.protocol.messages import Hardware
from node_agent.sizing import memory, speed
from node_agent.sizing.constants import speed_constants
from node_agent.sizing.work import Machine, Work, machine_of, work_of

Floats = NDArray[np.float64]

STEPS_PER_OCTAVE: Final = 64


def rounded_down(value: float) -> float:
    """The next lower step of 64 an octave; a larger value never becomes a smaller one."""
    return 2.0 ** (floor(log2(value) * STEPS_PER_OCTAVE + 1e-9) / STEPS_PER_OCTAVE)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a formula branches on, and which classes are of that kind, as one machine of arrays."""

    rows: NDArray[np.intp]
    machine: Machine


@dataclass(slots=True)
class _OfModel:
    """What was worked out for one model and `classes` classes."""

    work: Work
    plain: Work
    card: ModelFacts
    classes: int
    base: dict[int, Floats]
    context: list[tuple[Floats, int | None]]


@final
class SpeedClasses:
    """The classes of a fleet, numbered from 0 in the order in which they were met."""

    def __init__(self) -> None:
        self._ids: dict[tuple[Any, ...], int] = {}
        self._machines: list[Machine] = []
        self._load_rates: list[float] = []
        self._kinds: list[_Kind] = []
        self._models: dict[str, _OfModel] = {}

    def __len__(self) -> int:
        return len(self._machines)

    def machine(self, number: int) -> Machine:
        """A class as the scalar functions take it."""
        return self._machines[number]

    def number(
        self,
        hardware: Hardware,
        decode_factor: float = 1.0,
        prefill_factor: float = 1.0,
        disk_bytes_per_second: int = speed.DISK_BYTES_PER_SECOND,
    ) -> int:
        """The class of a Mac; a new one is made if it is the first of its kind."""
        key = (
            hardware.chip,
            hardware.gpu_cores,
            hardware.accelerated,
            rounded_down(hardware.bandwidth_bytes_per_second),
            rounded_down(decode_factor),
            rounded_down(prefill_factor),
            rounded_down(disk_bytes_per_second),
        )
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._machines)
            machine = machine_of(
                hardware,
                decode_factor=key[4],
                prefill_factor=key[5],
                chunk_tokens=memory.PREFILL_CHUNK_TOKENS,
            )
            self._machines.append(replace(machine, bandwidth_bytes_per_second=key[3]))
            self._load_rates.append(1 / key[6])
            self._kinds = []
        return found

    def load_seconds(self, card: ModelFacts) -> Floats:
        """Seconds by class from a file on disk to a first token."""
        return speed.RUNNER_START_SECONDS + memory.weights_bytes(card) * np.asarray(self._load_rates)

    def step_seconds(
        self, card: ModelFacts, revision: str, *, context_tokens: float, batch: int = 1
    ) -> Floats:
        """Seconds a token by class, of one sequence among `batch` in a context of that length."""
        model = self._model(card, revision)
        found = model.base.get(batch)
        if found is None:
            found = model.base[batch] = self._base(model, batch)
        found = found.copy()
        for each, window in model.context:
            found += (batch * (context_tokens if window is None else min(context_tokens, window))) * each
        return found

    def prompt_seconds(
        self, card: ModelFacts, revision: str, tokens: int, *, before_tokens: int = 0
    ) -> Floats:
        """Seconds by class to read `tokens` of a prompt after `before_tokens` that are cached."""
        model = self._model(card, revision)
        found = np.zeros(len(self))
        for kind in self._all_kinds():
            if kind.machine.is_accelerated:
                found[kind.rows] = speed.prompt_seconds(
                    model.work, kind.machine, tokens, before_tokens=before_tokens
                )
            else:
                each = _cpu_step(card, kind.machine, batch=1)
                found[kind.rows] = tokens * each / speed.CPU_PREFILL_RATIO / kind.machine.prefill_factor
        return found

    def _model(self, card: ModelFacts, revision: str) -> _OfModel:
        found = self._models.get(revision)
        if found is None:
            work = work_of(card)
            found = _OfModel(work, replace(work, attention=()), card, -1, {}, [])
            self._models[revision] = found
        if found.classes != len(self):
            found.classes = len(self)
            found.base = {}
            found.context = self._context(found)
        return found

    def _base(self, model: _OfModel, batch: int) -> Floats:
        """A step without its attention, which `step_seconds` of sizing would compare by element."""
        found = np.zeros(len(self))
        for kind in self._all_kinds():
            if kind.machine.is_accelerated:
                found[kind.rows] = speed.step_seconds(model.plain, kind.machine, batch=batch)
            else:
                found[kind.rows] = _cpu_step(model.card, kind.machine, batch=batch)
        return found

    def _context(self, model: _OfModel) -> list[tuple[Floats, int | None]]:
        """Seconds a step takes longer for each token of context, with the window that bounds it."""
        found: list[tuple[Floats, int | None]] = []
        for layers in model.work.attention:
            each = np.zeros(len(self))
            for kind in self._all_kinds():
                machine = kind.machine
                if machine.is_accelerated:
                    rate = speed_constants().decode.attention_share.of(machine.engine) * machine.vector_peak
                    read = layers.bytes / machine.bandwidth_bytes_per_second
                    each[kind.rows] = np.maximum(layers.operations / rate, read) / machine.decode_factor
            found.append((each, layers.window))
        each = np.zeros(len(self))
        for kind in self._all_kinds():
            if not kind.machine.is_accelerated:
                each[kind.rows] = memory.kv_bytes_per_token(model.card) / _cpu_rate(kind.machine)
        if each.any():
            found.append((each, None))
        return found

    def _all_kinds(self) -> list[_Kind]:
        if not self._kinds:
            groups: dict[tuple[int, bool, bool], list[int]] = {}
            for number, one in enumerate(self._machines):
                groups.setdefault((one.generation, one.is_ultra, one.is_accelerated), []).append(number)
            self._kinds = [self._kind(numbers) for numbers in groups.values()]
        return self._kinds

    def _kind(self, numbers: list[int]) -> _Kind:
        """One machine whose numbers are arrays: sizing's arithmetic does not mind."""
        members = [self._machines[number] for number in numbers]
        machine = replace(
            members[0],
            bandwidth_bytes_per_second=_column([one.bandwidth_bytes_per_second for one in members]),
            gpu_cores=_column([one.gpu_cores for one in members]),
            decode_factor=_column([one.decode_factor for one in members]),
            prefill_factor=_column([one.prefill_factor for one in members]),
        )
        return _Kind(np.asarray(numbers, dtype=np.intp), machine)


def _column(values: list[float] | list[int]) -> Any:
    return np.asarray(values, dtype=np.float64)


def _cpu_rate(machine: Machine) -> Floats:
    rate = speed.CPU_DECODE_EFFICIENCY * machine.bandwidth_bytes_per_second * machine.decode_factor
    return cast("Floats", rate)


def _cpu_step(card: ModelFacts, machine: Machine, *, batch: int) -> Floats:
    """Without a GPU, as `decode_seconds_per_token` has it; a batch reads the weights once."""
    if batch < 1:
        raise ValueError("batch must be at least 1")
    return memory.weights_bytes(card) / _cpu_rate(machine)
