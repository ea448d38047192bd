"""clnn.quantize_onnx: a float32 ONNX model as a quantised one in QDQ form, from samples of its input."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from clnn.bridges.qdq.report import NodeCost, QdqReport
from clnn.bridges.qdq.sensitivity import Question, Sensitivity, picked, sensitivity
from clnn.compile import Model, Shapes
from clnn.entry import compile_model
from clnn.errors import SettingError
from clnn.graph.histograms import METHODS
from clnn.graph.rounding import Range
from clnn.importers.onnx.qdq.model import QdqModel
from clnn.importers.onnx.qdq.write import quantised
from clnn.options import Options
from clnn.qdq.bench import Bench, OnProgress
from clnn.qdq.option import check_samples, source_of
from clnn.qdq.search import Choice, choose
from clnn.qdq.signals import Signals
from clnn.records import dataclass
from clnn.types import Array

NAN = float("nan")


@dataclass(frozen=True)
class QuantizedOnnx:
    """What clnn.quantize_onnx makes. model: an onnx.ModelProto, which compile_model takes. ranges: of values.

    report: what each node costs; None where that was not asked for. samples: how many there were.
    """

    model: Any
    ranges: dict[str, Range]
    samples: int
    report: QdqReport | None = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file."""
        Path(path).write_bytes(self.model.SerializeToString())


def quantize_onnx(
    model: Model,
    samples: Iterable[Mapping[str, Array]],
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
    *,
    method: str = "minmax",
    per_channel: bool = True,
    equalise: bool | None = None,
    correct_bias: bool = True,
    exclude: Sequence[str] = (),
    exclude_worst: int = 0,
    least_sqnr: float | None = None,
    report: bool = False,
    on_progress: OnProgress | None = None,
) -> QuantizedOnnx:
    """Return a float32 ONNX model with uint8 activations and int8 weights, in QDQ form.

    model: a path, bytes or onnx.ModelProto. samples: typical feeds; they give the ranges. method: of
    clnn.graph.histograms.METHODS, how ranges follow from values. per_channel: weights have a scale for each
    output channel. equalise: channels of products in a row share their sizes first; None: where the outputs
    keep more over the samples. correct_bias: what rounding of weights adds on the average is taken from the
    biases, where the outputs keep more. exclude: names of nodes that stay float32; exclude_worst: so many
    more, those that cost most; least_sqnr: and as many as it takes for this signal to noise in dB of the
    outputs over the samples. report: measure what each node costs. on_progress: is called with what is
    done, and how many of how many.
    Raises SettingError for settings or samples that are none, for names of no node, where there is nothing to
    quantise or nothing is left, and where least_sqnr is not reached with anything quantised; InputNameError
    for feeds of other inputs; ModelError for models that are not valid; else what compile_model raises.
    """
    feeds = list(samples) if not isinstance(samples, Mapping) else []
    _check(method, exclude_worst, least_sqnr)
    source = source_of(model, per_channel)
    check_samples(source.model, feeds)
    if not source.wanted():
        raise SettingError(
            "the model has no operator that is quantised: no convolution or product of constant weights in "
            "float32. It is quantised already, or needs none."
        )
    named = dict.fromkeys(_units(source, exclude), "by name")
    bench = Bench(feeds, lambda m: compile_model(m, device, options, shapes), on_progress)
    asks = report or exclude_worst > 0 or least_sqnr is not None
    kept = _left(source, list(named))
    choice = choose(bench, kept, method, equalise, correct_bias, asks)
    if not asks:
        made = quantised(choice.model, choice.measured.ranges)
        return QuantizedOnnx(made, choice.measured.ranges, len(feeds))
    return _with_report(bench, source, choice, named, method, exclude_worst, least_sqnr)


def _check(method: str, exclude_worst: int, least_sqnr: float | None) -> None:
    if method not in METHODS:
        raise SettingError(f"method is {method!r}. Use one of {', '.join(METHODS)}.")
    if exclude_worst < 0:
        raise SettingError(f"exclude_worst is {exclude_worst}. It is a number of nodes, from 0 on.")
    if least_sqnr is not None and not math.isfinite(least_sqnr):
        raise SettingError(f"least_sqnr is {least_sqnr}. It is a number of dB.")


def _units(source: QdqModel, names: Sequence[str]) -> list[str]:
    """Return the units of nodes by these names. Raises SettingError for names of none."""
    known: dict[str, list[str]] = {}
    producers = source.producers
    for unit in source.units():
        for result in unit.results:
            for name in {producers[result].name, result}:
                known.setdefault(name, []).append(unit.key)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise SettingError(f"exclude: {name!r} is no node that is quantised.{hint}")
    return [key for name in names for key in known[name]]


def _left(model: QdqModel, units: Sequence[str]) -> QdqModel:
    """Return the model without these units. Raises SettingError where nothing is left."""
    made = model.excluding(units)
    if not made.wanted():
        raise SettingError(
            f"with {len(units)} nodes in float32 nothing is quantised. Exclude fewer."
        )
    return made


def _with_report(
    bench: Bench,
    source: QdqModel,
    choice: Choice,
    named: Mapping[str, str],
    method: str,
    exclude_worst: int,
    least_sqnr: float | None,
) -> QuantizedOnnx:
    """Return the model with further nodes excluded, and what each costs."""
    with closing(Question(bench, choice)) as question:
        costs = sensitivity(bench, choice, question)
        worst = picked(costs.without, [], question.picking, exclude_worst)
        reasons = {**named, **dict.fromkeys(worst, f"one of {exclude_worst} that cost most")}
        final, signals = _final(bench, choice, worst)
        if least_sqnr is not None:
            more, final, signals = _enough(bench, choice, question, costs, worst, least_sqnr)
            reasons |= dict.fromkeys(more, f"for {least_sqnr:g} dB")
    made = quantised(final, choice.measured.ranges)
    rows = _rows(source, choice, final, reasons, costs)
    assert choice.plain is not None and choice.signals is not None
    numbers = choice.plain.whole, choice.signals.whole, signals.whole, signals.each
    feeds = len(bench.samples)
    found = QdqReport(feeds, method, source.per_channel, choice.way, *numbers, rows)
    return QuantizedOnnx(made, choice.measured.ranges, feeds, found)


def _final(bench: Bench, choice: Choice, units: Sequence[str]) -> tuple[QdqModel, Signals]:
    """Return the model without these units, and what its file keeps."""
    assert choice.signals is not None
    if not units:
        return choice.model, choice.signals
    final = _left(choice.model, units)
    return final, bench.cost(final, choice.measured.ranges, choice.measured.outputs)


def _enough(
    bench: Bench,
    choice: Choice,
    question: Question,
    costs: Sensitivity,
    worst: Sequence[str],
    least: float,
) -> tuple[list[str], QdqModel, Signals]:
    """Return units that are left float32 besides the worst for `least` dB, the model, and what its file keeps.

    Switches count few samples, and sums of float32: where the file falls short, more is asked of them.
    Raises SettingError where the file does not reach it with anything quantised.
    """
    more, asked = list[str](), least
    final, signals = _final(bench, choice, worst)
    rounded = {key: snr for key, snr in costs.alone.items() if math.isfinite(snr)}
    best = max(rounded, key=lambda key: rounded[key], default="")
    while signals.whole < least:
        if not best or rounded[best] < asked or len(more) + len(worst) >= len(costs.alone) - 1:
            name = choice.model.producers[best].name if best else "nothing"
            raise SettingError(
                f"{least:g} dB are not reached with anything quantised: with {name} alone the outputs keep"
                f" {rounded.get(best, math.inf):.1f} dB."
            )
        more = picked(costs.without, worst, question.picking, least=asked)
        final, signals = _final(bench, choice, [*worst, *more])
        asked += max(least - signals.whole, 0.1)
    return more, final, signals


def _rows(
    source: QdqModel,
    choice: Choice,
    final: QdqModel,
    reasons: Mapping[str, str],
    costs: Sensitivity,
) -> tuple[NodeCost, ...]:
    """Return what became of each node."""
    kept = {u.key for u in final.units()}
    rows = []
    for unit in source.units():
        key, why = unit.key, ""
        if key not in kept:
            why = reasons.get(key, "all around it is")
        fixed = choice.model.corrections.get(key)
        count = 0 if fixed is None or why else int((fixed != 0).sum())
        each = (costs.alone, costs.without, costs.weights, costs.values)
        alone, without, weights, values = (found.get(key, NAN) for found in each)
        is_equal = key in choice.equalised
        row = NodeCost(unit.name, unit.op, alone, without, weights, values, why, is_equal, count)
        rows.append(row)
    return tuple(rows)
