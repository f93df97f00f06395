"""Fit the speed model's constants to published speeds, and write `speed.toml`.

    SPEED_DATA=FOLDER python -m tests.unit.sizing.fit [--write]

Least squares on the logarithm of the seconds, made robust against outliers by reweighting, with a
prior on every constant: what physics, the chips' data sheets and the engines' own accounts of
themselves let one expect, and how sure that is (a standard deviation of the logarithm). A source
counts by the square root of its rows, so that one busy tester does not decide. No constant belongs
to a source, a host or a model.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from node_agent.sizing.constants import SpeedConstants
from node_agent.sizing.speed import prompt_seconds, step_seconds
from tests.unit.sizing.published import Case, batched_cases, cases, data_folder

Prior = Mapping[str, tuple[float, float]]
Vector = npt.NDArray[np.float64]

DECODE: Final[Prior] = {
    "bandwidth_share": (0.86, 0.3),
    **{f"generation_share.{index}": (1.0, 0.05) for index in range(5)},
    "ultra_share": (1.0, 0.05),
    "engine_share.mlx": (1.0, 0.05),
    "engine_share.ollama": (0.9, 0.1),
    "float_share": (1.0, 0.03),
    "layer_seconds.mlx": (45e-6, 0.4),
    "layer_seconds.llama~cpp": (60e-6, 0.4),
    "layer_seconds.llama~cpp-2023": (110e-6, 0.4),
    "layer_seconds.ollama": (110e-6, 0.4),
    "older_layer": (1.05, 0.05),
    "expert_layer.mlx": (1.0, 0.4),
    "expert_layer.other": (1.0, 0.4),
    "sandwich_layer": (1.5, 0.3),
    "recurrent_layer.mlx": (1.3, 0.3),
    "recurrent_layer.other": (2.0, 0.4),
    "ultra_layer.mlx": (1.7, 0.2),
    "ultra_layer.other": (1.2, 0.2),
    "attention_share.mlx": (0.06, 0.3),
    "attention_share.other": (0.1, 0.3),
}
BATCH: Final[Prior] = {"batch_share.mlx": (0.15, 0.5), "batch_share.other": (0.3, 0.5)}
PREFILL: Final[Prior] = {
    "matrix_share": (0.8, 0.2),
    **{f"generation_share.{index}": (1.0, 0.07 if index < 4 else 0.15) for index in range(5)},
    "engine_share.mlx": (0.9, 0.1),
    "engine_share.llama~cpp-2023": (0.85, 0.1),
    "engine_share.ollama": (0.85, 0.2),
    "mlx_m5_share": (1.1, 0.15),
    "ultra_share": (1.0, 0.05),
    "float_share": (1.1, 0.1),
    "expert_share": (0.8, 0.2),
    "half_tokens.mlx": (24.0, 0.7),
    "half_tokens.other": (6.0, 0.7),
    "attention_share": (0.6, 0.4),
    "weights_factor": (1.0, 0.3),
    "layer_seconds.mlx": (0.6e-3, 0.5),
    "layer_seconds.other": (0.2e-3, 0.6),
    "recurrent_share.mlx": (0.9, 0.2),
    "recurrent_share.other": (0.8, 0.2),
    "sandwich_share": (1.0, 0.1),
}
# Where an engine's share is the unit that the others are told in.
UNITS: Final[dict[str, dict[str, float]]] = {
    "decode": {"llama.cpp": 1.0, "llama.cpp-2023": 1.0},
    "prefill": {"llama.cpp": 1.0},
}
STEPS: Final = 15
NOISE: Final = 0.08
OUTLIER: Final = 0.03


def nested(prior: Prior, values: Sequence[float], part: str) -> dict[str, Any]:
    """Dotted names as tables; `~` stands for a dot inside a name, a number for a place in a list."""
    found: dict[str, Any] = {}
    for name, value in zip(prior, values, strict=True):
        head, _, rest = name.partition(".")
        if not rest:
            found[head] = value
        elif rest.isdigit():
            found.setdefault(head, []).append(value)
        else:
            found.setdefault(head, {})[rest.replace("~", ".")] = value
    found.setdefault("engine_share", {}).update(UNITS[part])
    return found


class Fit:
    """The constants as three vectors of logarithms, one for each prior."""

    def __init__(self) -> None:
        self.vectors: dict[str, Vector] = {name: _logs(prior) for name, prior in _PRIORS.items()}

    def constants(self, **changed: Vector) -> SpeedConstants:
        """The constants, with some vectors replaced."""
        vectors = self.vectors | changed
        values = {name: [math.exp(v) for v in vector] for name, vector in vectors.items()}
        decode = nested(DECODE, values["decode"], "decode")
        decode |= {k: v for k, v in nested(BATCH, values["batch"], "decode").items() if k != "engine_share"}
        prefill = nested(PREFILL, values["prefill"], "prefill")
        return SpeedConstants.model_validate({"decode": decode, "prefill": prefill})

    def run(self, name: str, seen: Sequence[Case], seconds: Callable[[Case, SpeedConstants], float]) -> None:
        """Fit one vector to cases; `seconds` forecasts one, `observed` is what it took."""
        prior = _PRIORS[name]
        start = _logs(prior)
        sigma: Vector = np.array([spread for _, spread in prior.values()], dtype=np.float64)
        goal: Vector = np.log([observed(case, name) for case in seen])
        counts = Counter(case.source for case in seen)
        weight: Vector = np.array([counts[case.source] ** -0.5 for case in seen], dtype=np.float64)
        weight /= weight.mean()
        vector: Vector = start.copy()
        for _ in range(STEPS):
            base, slope = self._slope(name, vector, seen, seconds)
            off: Vector = goal - base
            trust: Vector = weight / (NOISE * np.sqrt(off * off + OUTLIER**2))
            left: Vector = slope.T @ (slope * trust[:, None]) + np.diag(1 / sigma**2)
            right: Vector = slope.T @ (trust * off) - (vector - start) / sigma**2
            step = np.linalg.solve(left, right).astype(np.float64)
            vector = vector + np.clip(step, -0.4, 0.4)  # pyright: ignore[reportUnknownMemberType]
        self.vectors[name] = vector

    def _slope(
        self,
        name: str,
        vector: Vector,
        seen: Sequence[Case],
        seconds: Callable[[Case, SpeedConstants], float],
    ) -> tuple[Vector, Vector]:
        def logs(at: Vector) -> Vector:
            constants = self.constants(**{name: at})
            return np.log([seconds(case, constants) for case in seen])

        base, columns = logs(vector), list[Vector]()
        for index in range(len(vector)):
            moved = vector.copy()
            moved[index] += 1e-4
            columns.append((logs(moved) - base) / 1e-4)
        return base, np.stack(columns, axis=1)


_PRIORS: Final[dict[str, Prior]] = {"decode": DECODE, "batch": BATCH, "prefill": PREFILL}


def _logs(prior: Prior) -> Vector:
    return np.log([value for value, _ in prior.values()])


def observed(case: Case, name: str) -> float:
    """Seconds of a step, or of a prompt."""
    if name == "prefill":
        return case.prompt_tokens / case.prefill_tps
    return case.batch / case.decode_tps


def decode_forecast(case: Case, constants: SpeedConstants) -> float:
    """Seconds of a step of the case."""
    return step_seconds(
        case.work,
        case.machine,
        context_tokens=case.context_tokens,
        batch=case.batch,
        constants=constants,
    )


def prefill_forecast(case: Case, constants: SpeedConstants) -> float:
    """Seconds to read the case's prompt."""
    return prompt_seconds(
        case.work,
        case.machine,
        case.prompt_tokens,
        before_tokens=case.before_tokens,
        constants=constants,
    )


def fitted(seen: Sequence[Case], batched: Sequence[Case] = ()) -> Fit:
    """Constants fitted to the normal hosts among the cases."""
    fit = Fit()
    normal = [case for case in seen if not case.is_slow]
    fit.run("decode", [case for case in normal if case.decode_tps], decode_forecast)
    fit.run("prefill", [c for c in normal if c.prefill_tps and c.prompt_tokens], prefill_forecast)
    if batched:
        fit.run("batch", batched, decode_forecast)
    return fit


def toml(constants: SpeedConstants, rows: int) -> str:
    """The constants as the text of `speed.toml`."""
    lines = [
        f"# Constants of the speed model, fitted to {rows} published rows of single Macs.",
        "# Written by the fit; what each is, is told in constants.py.",
    ]
    for part, table in constants.model_dump(mode="json").items():
        plain = {name: value for name, value in table.items() if not isinstance(value, dict)}
        lines += ["", f"[{part}]", *(f"{name} = {_rounded(value)}" for name, value in plain.items())]
        for name, value in table.items():
            if name not in plain:
                lines += ["", f"[{part}.{name}]"]
                lines += [f"{json.dumps(key)} = {_rounded(each)}" for key, each in value.items()]
    return "\n".join(lines) + "\n"


def _rounded(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_rounded(each) for each in value) + "]"  # pyright: ignore[reportUnknownVariableType]
    return f"{value:.4g}"


def main() -> int:
    """Fit, print the constants, and with `--write` put them in force."""
    from node_agent.sizing import constants as module

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    is_write = parser.parse_args().write
    folder = data_folder()
    if folder is None:
        sys.stderr.write("SPEED_DATA must name the folder with single_mac_tps.csv\n")
        return 2
    seen = cases(folder)
    text = toml(fitted(seen, batched_cases(folder)).constants(), sum(not case.is_slow for case in seen))
    sys.stdout.write(text)
    if is_write:
        from pathlib import Path

        _ = Path(module.__file__).with_name("speed.toml").write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
