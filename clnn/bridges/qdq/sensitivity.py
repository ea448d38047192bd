"""What the quantisation of each node costs a network's outputs, and which nodes had better stay float32.

One session computes everything both ways; switches choose for each node and value (clnn/importers/onnx/qdq/
switched.py). So a question takes a run, not a compilation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from clnn.graph.rounding import Step
from clnn.importers.onnx.qdq.model import QdqModel, Unit
from clnn.importers.onnx.qdq.observe import observed
from clnn.importers.onnx.qdq.switched import SWITCHES, Switched
from clnn.qdq.bench import Bench, spread
from clnn.qdq.search import Choice
from clnn.qdq.signals import Signals, decibels, powers
from clnn.records import dataclass
from clnn.types import Array

SAMPLES = 4  # that tell what a node costs
TRIED = 8
Ask = Callable[[Sequence[str]], float]  # signal to noise with these units excluded


@dataclass(frozen=True)
class Sensitivity:
    """Signal to noise in dB, by the key of each unit.

    alone: of the outputs, with this unit quantised and no other. without: with this one in float32, and all
    others quantised. weights: of its weights. values: of its result.
    """

    alone: dict[str, float]
    without: dict[str, float]
    weights: dict[str, float]
    values: dict[str, float]


class Question:
    """A session that tells what a network keeps with any choice of units left float32; to be closed."""

    def __init__(self, bench: Bench, choice: Choice) -> None:
        self._model, self._samples, self._bench = (
            choice.model,
            spread(bench.samples, SAMPLES),
            bench,
        )
        self._switched = Switched(choice.model, choice.measured.ranges)
        self._session = bench.session(self._switched.proto)
        everything = [u.key for u in choice.model.units()]
        self._wanted = list(self._outputs(choice.model.excluding(everything)))

    def without(self, units: Iterable[str]) -> float:
        """Return signal to noise in dB with these units left float32, and all others quantised."""
        found = Signals(self._wanted[0])
        made = self._outputs(self._model.excluding(units))
        for wanted, got in zip(self._wanted, made, strict=True):
            found.see(wanted, got)
        return found.whole

    def picking(self, units: Sequence[str]) -> float:
        """Do what `without` does, and tell how many are picked."""
        found = self.without(units)
        self._bench.tell("picking nodes", len(units), len(self._model.units()))
        return found

    def close(self) -> None:
        """Free the device memory."""
        self._session.close()

    def _outputs(self, chosen: QdqModel) -> Iterable[dict[str, Array]]:
        switches = self._switched.of(chosen)
        for feed in self._samples:
            yield dict(self._session({**feed, SWITCHES: switches}))


def sensitivity(bench: Bench, choice: Choice, question: Question) -> Sensitivity:
    """Return what the quantisation of each unit costs."""
    units = choice.model.units()
    keys = {u.key for u in units}
    alone, without = dict[str, float](), dict[str, float]()
    for unit in bench.counted("measuring nodes", units):
        alone[unit.key] = question.without(keys - {unit.key})
        without[unit.key] = question.without([unit.key])
    steps = choice.model.steps(choice.measured.ranges)
    products = {n.output[0]: n for n in choice.model.products()}
    weights = {k: _weights(choice.model, n, steps) for k, n in products.items()}
    return Sensitivity(alone, without, weights, _values(bench, choice.model, units, steps))


def picked(
    gains: Mapping[str, float],
    given: Iterable[str],
    ask: Ask,
    count: int | None = None,
    least: float = math.inf,
) -> list[str]:
    """Return units to leave float32 besides those given: so many, or as many as it takes for `least` dB.

    One after another is taken, the one that gains most: of the TRIED that gained most when they were asked
    for last, at first in `gains`. Where `least` is reached, what turns out not to be needed is quantised after
    all. All but one are returned where it is not.
    """
    given, taken = list(given), list[str]()
    hopes = {key: gain for key, gain in gains.items() if key not in given}
    reached = ask(given) if count is None else -math.inf
    most = len(hopes) - 1 if count is None else count
    while reached < least and len(taken) < most:
        tried = sorted(hopes, key=lambda key: -hopes[key])[:TRIED]
        hopes |= {key: ask([*given, *taken, key]) for key in tried}
        best = max(tried, key=lambda key: hopes[key])
        taken.append(best)
        reached = hopes.pop(best)
    for key in reversed(taken[:-1]) if reached >= least else ():
        fewer = [k for k in taken if k != key]
        if ask([*given, *fewer]) >= least:
            taken = fewer
    return taken


def _weights(model: QdqModel, node: Any, steps: Mapping[str, Step]) -> float:
    """Return signal to noise of a product's weights in dB."""
    made = model.rounded(node, float(steps[node.input[0]][0])).weights
    return decibels(*powers(model.weights(node), made))


def _values(
    bench: Bench, model: QdqModel, units: Sequence[Unit], steps: Mapping[str, Step]
) -> dict[str, float]:
    """Return signal to noise of the results of units in dB, by their keys, where they are rounded."""
    results = {u.result: u.key for u in units if u.result in steps}
    sums = {name: np.zeros(2) for name in results}
    proto, _ = observed(model)
    for values in bench.run(proto, "measuring rounding", spread(bench.samples, SAMPLES)):
        for name, total in sums.items():
            total += powers(values[name], rounded_values(values[name], steps[name]))
    return {key: decibels(*map(float, sums[name])) for name, key in results.items()}


def rounded_values(values: Array, step: Step) -> Array:
    """Return values as their bytes stand for them."""
    scale, zero = step
    whole = np.clip(np.rint(values / scale), -zero, 255 - zero)
    return np.asarray(whole * scale, np.float32)
