"""clnn.quantize: a float network as what a target system computes, in one session on the device."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clnn.bridges.bias import Averages
from clnn.bridges.equalise import Pair, equalised, pairs
from clnn.bridges.espdl import ESPDL_INT8, ESPDL_INT16
from clnn.bridges.fixed import MLI_FX16, MLI_FX16_FX8, MLI_SA8, TIDL_8, TIDL_16
from clnn.bridges.layers import RELU6, Layer
from clnn.bridges.q78 import OPENVX_Q78
from clnn.bridges.report import LayerErrors, Report
from clnn.bridges.simulate import Simulation, float_layers, watched
from clnn.bridges.target import Target
from clnn.compile import Model, Shapes, compile_fixed, load_graph
from clnn.errors import InputNameError, SettingError
from clnn.graph.histograms import METHODS, RangeObserver
from clnn.graph.ir import Graph
from clnn.options import Options
from clnn.qdq.signals import decibels
from clnn.types import F32, Array

_MLI, _TIDL = (MLI_SA8, MLI_FX16, MLI_FX16_FX8), (TIDL_8, TIDL_16)
_ALL: tuple[Target, ...] = (OPENVX_Q78, *_MLI, *_TIDL, ESPDL_INT8, ESPDL_INT16)
TARGETS = {target.name: target for target in _ALL}
Feeds = Sequence[Mapping[str, Array]]


class Quantized:
    """A network in a target's integers, made by clnn.quantize.

    Call it as a session. target: its name. layers: what became of each layer, in order. graph: the
    simulation; floats: the float network beside it, of the same layers, and
    original the one that was given, where channels were equalised. session: runs the simulation.
    how: its device and options.
    sample: the first feed of the calibration. chosen: the target itself.
    """

    def __init__(
        self,
        floats: Graph,
        graph: Graph,
        layers: Sequence[Layer],
        target: Target,
        device: str | int | None,
        options: Options,
        sample: Mapping[str, Array],
    ) -> None:
        self.floats, self.graph, self.layers = floats, graph, tuple(layers)
        self.target, self.sample, self.chosen = target.name, dict(sample), target
        self.original = floats
        self._device, self._options = self.how = device, options
        self.session = compile_fixed(graph, device, options)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Return {output name: array} for {input name: array}, as a session does."""
        return self.session(feeds)

    def values(self, feeds: Feeds) -> list[dict[str, Array]]:
        """Return for each feed the integers of every layer that has some, by layer name."""
        names = [layer.integers for layer in self.layers if layer.integers]
        more = [name for layer in self.layers for name in layer.inputs]
        with compile_fixed(
            watched(self.graph, [*names, *more]), self._device, self._options
        ) as session:
            return [session(feed) for feed in feeds]

    def report(self, samples: Iterable[Mapping[str, Array]]) -> Report:
        """Return what is lost against the float network over samples.

        Raises SettingError where there are none, else what a session raises.
        """
        layers = [layer for layer in self.layers if layer.integers]
        errors = {layer.name: LayerErrors(layer) for layer in layers}
        totals = {name: [0.0, 0.0, 0, 0] for name in self.graph.outputs}
        seen = 0
        plain = watched(self.floats, [layer.value for layer in layers])
        made = watched(self.graph, [layer.integers for layer in layers])
        with (
            compile_fixed(plain, self._device, self._options) as real,
            compile_fixed(made, self._device, self._options) as simulated,
            compile_fixed(self.original, self._device, self._options) as original,
        ):
            for feed in samples:
                want, got = real(feed), simulated(feed)
                public = want if self.original is self.floats else original(feed)
                seen += 1
                for layer in layers:
                    errors[layer.name].see(want[layer.value], got[layer.integers])
                for name, total in totals.items():
                    _compare(public[name], got[name], total)
        if not seen:
            raise SettingError("a report needs samples. Give at least one feed of all inputs.")
        outputs = {
            n: (decibels(s, e), same / max(rows, 1)) for n, (s, e, same, rows) in totals.items()
        }
        rows = [errors[la.name].row if la.integers else _unmeasured(la) for la in self.layers]
        return Report(self.target, seen, tuple(rows), outputs)

    def export(self, folder: str | os.PathLike[str], title: str = "network") -> list[Path]:
        """Write the network in the target's own form into a folder; return the files.

        MLI: a header and a C file with integers and quantisation of all layers. OpenVX: a graph of
        vxExportBinary. TIDL: the descriptor of the buffers. ESP-DL: an .espdl file with golden inputs and
        outputs, of the first sample of the calibration. Raises UnsupportedOpError for layers that
        the form does not hold.
        """
        from clnn.bridges.export import write

        return write(self, Path(folder), title)

    def close(self) -> None:
        """Free the device memory."""
        self.session.close()

    def __enter__(self) -> Quantized:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _unmeasured(layer: Layer) -> Any:
    from clnn.bridges.report import LayerRow

    return LayerRow(layer.name, layer.op, "float32", float("nan"), 0, 0, 0, float("nan"))


def _compare(want: Array, got: Array, total: list[Any]) -> None:
    """Add signal, noise, rows with the same largest element, and rows to the totals of an output."""
    real = want.astype(np.float64)
    total[0] += float((real**2).sum())
    total[1] += float(((got - real) ** 2).sum())
    rows = want.reshape(want.shape[0] if want.ndim > 1 else 1, -1)
    total[2] += int((rows.argmax(1) == got.reshape(rows.shape).argmax(1)).sum())
    total[3] += len(rows)


def measured(
    graph: Graph, samples: Feeds, device: str | int | None, options: Options, method: str
) -> tuple[dict[str, tuple[float, float]], dict[str, Array]]:
    """Return the least and largest value of each float value of a graph over samples, and averages."""
    names = [n for n, t in graph.types.items() if t.dtype == F32 and n not in graph.consts]
    inputs = set(graph.inputs)
    made = [n for n in names if n not in inputs]
    averages = Averages(graph)
    observer = RangeObserver([*made, *(n for n in names if n in inputs)], method)
    with compile_fixed(watched(graph, made), device, options) as session:
        for feed in samples:
            values = {**session(feed), **feed}
            observer.see(values)
            averages.see(values)
        if observer.counts:
            for feed in samples:
                observer.count({**session(feed), **feed})
    return observer.ranges(), averages.images()


def _peaks(
    graph: Graph, found: Sequence[Pair], samples: Feeds, device: str | int | None, options: Options
) -> dict[str, Array]:
    """Return the largest value of each channel behind the ReLU6 of a pair, over samples."""
    names = [pair.value for pair in found if pair.activation == RELU6]
    peaks: dict[str, Array] = {}
    if names:
        with compile_fixed(watched(graph, names), device, options) as session:
            for feed in samples:
                values = session(feed)
                for name in names:
                    axes = (0, *range(2, values[name].ndim))
                    top = values[name].max(axes)
                    peaks[name] = np.maximum(peaks.get(name, top), top)
    return peaks


def quantize(
    model: Model,
    calibration: Iterable[Mapping[str, Array]],
    target: str,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
    *,
    method: str = "minmax",
    per_channel: bool = False,
    equalise: bool | None = None,
    correct_bias: bool = True,
) -> Quantized:
    """Return a float network as a bit-exact simulation of what a target computes.

    calibration: typical feeds; they give the ranges from which scales are made. target: one of
    TARGETS. method: of clnn.graph.histograms.METHODS, how ranges follow from values. Layers that the
    target does not have are computed in float32 between conversions, and the report names them.
    per_channel: weights have a scale for each output channel, where the target has such a mode. equalise:
    channels of convolutions in a row share their sizes first (clnn/bridges/equalise.py); None: where the
    weights of a layer have 8 bits and one scale. correct_bias: what rounding of weights adds on the
    average is taken from the biases.
    Raises SettingError for a target, method, mode or calibration that is none, InputNameError for feeds of
    other inputs, else what compile_model raises.
    """
    if target not in TARGETS:
        raise SettingError(f"target {target!r} is not one of {', '.join(TARGETS)}.")
    chosen = TARGETS[target].by_channel() if per_channel else TARGETS[target]
    if chosen is None:
        raise SettingError(f"{target} has no scales for each channel. Leave per_channel out.")
    if method not in METHODS:
        raise SettingError(f"method {method!r} is not one of {', '.join(METHODS)}.")
    if isinstance(calibration, Mapping):
        raise SettingError("calibration is an iterable of feeds. For one feed give [feed].")
    plain, samples = options or Options(), list(calibration)
    if not samples:
        raise SettingError("calibration got no samples. Give at least one feed of all inputs.")
    floats = float_layers(load_graph(model, shapes))
    for feed in samples:
        if set(feed) != set(floats.inputs):
            raise InputNameError(
                f"a sample has inputs {', '.join(feed)}, the model {', '.join(floats.inputs)}."
            )
    given = floats
    if chosen.equalise if equalise is None else equalise:
        found = pairs(floats)
        floats = equalised(floats, found, _peaks(floats, found, samples, device, plain))
    ranges, averages = measured(floats, samples, device, plain, method)
    simulation = Simulation(floats, ranges, chosen, averages if correct_bias else None)
    graph = simulation.run()
    made = Quantized(floats, graph, simulation.layers, chosen, device, plain, samples[0])
    made.original = given
    return made
