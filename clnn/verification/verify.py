"""verify: run a model on a device and compare its outputs, its layers, or search the wrong node."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clnn.compile import Model, Shapes, compile_fixed, compile_staged, load_graph, settled
from clnn.errors import SettingError, UnsupportedOpError
from clnn.graph.ir import Graph
from clnn.graph.passes import optimise
from clnn.options import Options
from clnn.qdq.option import Calibration
from clnn.records import dataclass
from clnn.runtime.run.session import Session
from clnn.types import Array
from clnn.verification.bisect import bisect_graph
from clnn.verification.compare import Difference, difference
from clnn.verification.feeds import closed_inputs, inputs_of, random_feeds
from clnn.verification.golden import engine_for, with_golden
from clnn.verification.layers import LAYER_ROUNDING, onnxruntime_layers, reference_layers
from clnn.verification.onnxruntime import OnnxRuntime
from clnn.verification.reference import reference_values, unrounded_values
from clnn.verification.report import Bisection, Layer, VerifyReport

# Of a whole network, by Options.dtype.
TOLERANCES = {"f32": 1e-4, "tf32": 1e-2, "f16": 2e-2, "bf16": 1e-1, "int8": 2e-1}
ENGINES = ("onnxruntime", "reference", "golden")


@dataclass(frozen=True)
class Request:
    """What is to be compared: see verify."""

    model: Model
    against: str
    device: str | int | None
    shapes: Shapes
    feeds: Mapping[str, Array]
    seed: int
    tolerance: float
    options: Options
    per_layer: bool
    bisect: bool
    calibration: Any = None


def verify(
    model: Model,
    against: str = "auto",
    device: str | int | None = None,
    per_layer: bool = False,
    shapes: Shapes | None = None,
    *,
    bisect: bool = False,
    feeds: Mapping[str, Any] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    options: Options | None = None,
    calibration: Calibration | int | None = None,
) -> VerifyReport:
    """Compare what a device computes for a model with another engine.

    against: "onnxruntime", "reference" (numpy in double precision), "golden" (the inputs and outputs
    that an .espdl file brings along), or "auto": golden where there are some, reference for other
    .espdl files, else onnxruntime. per_layer: compare every
    node's result of the unfused network too. bisect: search the first wrong node of the network
    as it is compiled. feeds: inputs by name; those left out are random, from `seed`. tolerance:
    error allowed, relative to an output's largest magnitude (None: by Options.dtype, 1e-4 for f32,
    1e-2 for tf32, 2e-2 for f16, 1e-1 for bf16, 2e-1 for int8); integers must be equal. calibration:
    as in compile_fixed, samples as a list; or a number of random samples, from `seed` on.
    Of a model with stages only the outputs are compared, with onnxruntime.
    The report is true when all is within tolerance. Raises as compile_fixed does, SettingError for
    an argument that is not allowed, MissingPackageError where onnxruntime is not installed.
    """
    options = options or Options()
    request = Request(
        model,
        engine_for(model) if against == "auto" else against,
        device,
        shapes or {},
        feeds or {},
        seed,
        TOLERANCES[options.dtype] if tolerance is None else tolerance,
        options,
        per_layer,
        bisect,
        calibration,
    )
    _check(request)
    return _compared(request)


def _compared(asked: Request) -> VerifyReport:
    """Return what the comparison finds."""
    try:
        graph = load_graph(asked.model, asked.shapes)
    except UnsupportedOpError:
        staged = _compared_in_stages(asked)
        if staged is None:
            raise
        return staged
    request = replace(asked, calibration=_calibration(asked, graph))
    how = request.device, request.options, request.shapes, request.calibration
    model, options = settled(request.model, *how)
    computed = graph if model is request.model else load_graph(model, request.shapes)
    with compile_fixed(computed, request.device, options) as session:
        given = request.feeds
        if request.against == "golden":
            given = with_golden(request.model).golden_inputs
        feeds = random_feeds(session.inputs, request.seed, given)
        got = session(feeds)
        outputs, engine = _outputs(request, graph, session, feeds, got)
        layers: tuple[Layer, ...] = ()
        if request.per_layer:
            layers = _layers(request, model, graph, computed, feeds)
        bisection = _bisect(request, graph, computed, session, feeds) if request.bisect else None
        device = session.device.title
    return VerifyReport(
        _title(request.model),
        device,
        engine,
        request.seed,
        outputs,
        layers,
        bisection,
        reproduction(asked),
    )


def _compared_in_stages(asked: Request) -> VerifyReport | None:
    """Return what the comparison of a model with stages finds; None for other models."""
    session = compile_staged(
        asked.model, asked.device, asked.options, asked.shapes, asked.calibration
    )
    if session is None or isinstance(asked.model, Graph):
        return None
    with session:
        if asked.against != "onnxruntime" or asked.per_layer or asked.bisect:
            raise SettingError(
                "values decide what this model runs: it has stages, of which only the outputs are "
                "compared, with onnxruntime. Leave out per_layer and bisect, and against='reference'."
            )
        feeds = random_feeds(closed_inputs(session.inputs, asked.feeds), asked.seed, asked.feeds)
        got = session(feeds)
        engine = OnnxRuntime(asked.model)
        want = engine(feeds)
        found = tuple(
            difference(info.name, got[info.name], want[info.name], asked.tolerance)
            for info in session.outputs
        )
        title, again = _title(asked.model), reproduction(asked)
        return VerifyReport(title, session.device, engine.title, asked.seed, found, (), None, again)


def _calibration(request: Request, graph: Graph) -> Any:
    """Return what compile_fixed is to calibrate with: random samples where a number is given."""
    samples = request.calibration
    if not isinstance(samples, int):
        return samples
    inputs, seeds = inputs_of(graph), range(request.seed, request.seed + samples)
    return [random_feeds(inputs, seed, request.feeds) for seed in seeds]


def _check(request: Request) -> None:
    if request.against not in ENGINES:
        raise SettingError(
            f"against is {request.against!r}. Use one of auto, {', '.join(ENGINES)}."
        )
    if not 0 < request.tolerance < np.inf:
        raise SettingError(f"tolerance is {request.tolerance}. It must be a number above 0.")
    if request.against == "golden":
        with_golden(request.model)
        if request.feeds:
            raise SettingError("golden values are for their own inputs. Leave other inputs away.")
    if isinstance(request.model, Graph) and request.against == "onnxruntime":
        raise SettingError("a Graph cannot be given to onnxruntime. Use against='reference'.")


def _outputs(
    request: Request,
    graph: Graph,
    session: Session,
    feeds: Mapping[str, Array],
    got: Mapping[str, Array],
) -> tuple[tuple[Difference, ...], str]:
    """Return the differences of the outputs, and the name of the engine compared with."""
    if request.against == "golden":
        want, title = with_golden(request.model).golden_outputs, "the golden values in the file"
        want = {name: array for name, array in want.items() if name in got}
    elif request.against == "reference":
        values = reference_values(graph, feeds)
        want = {name: values[value] for name, value in graph.outputs.items()}
        title = "the numpy reference in double precision"
    else:
        assert not isinstance(request.model, Graph)
        engine = OnnxRuntime(request.model)
        want, title = engine(feeds), engine.title
    names = [info.name for info in session.outputs if info.name in want]
    return tuple(difference(n, got[n], want[n], request.tolerance) for n in names), title


def _layers(
    request: Request, model: Model, graph: Graph, computed: Graph, feeds: Mapping[str, Array]
) -> tuple[Layer, ...]:
    """Compare values of `graph` as `computed`, of `model`, has them."""
    rounding = LAYER_ROUNDING[request.options.dtype]
    options = _unfused(request)
    if request.against in ("reference", "golden"):
        return reference_layers(graph, computed, request.device, options, feeds, rounding)
    assert not isinstance(request.model, Graph)
    return onnxruntime_layers(
        request.model, model, request.shapes, request.device, options, feeds, request.tolerance
    )


def _unfused(request: Request) -> Options:
    """Return the options of a network whose values are looked at."""
    quantised = request.options.dtype == "int8"
    options = replace(request.options, fuse=False)
    return replace(options, dtype="f32", calibration="") if quantised else options


def _bisect(
    request: Request,
    graph: Graph,
    computed: Graph,
    session: Session,
    feeds: Mapping[str, Array],
) -> Bisection | None:
    """Search in the network as it is compiled; in a quantised one as it is written, against the float32 one."""
    options, right = _unfused(request), None
    single = options.dtype == "f32"
    if computed is not graph:
        right = unrounded_values(computed, graph, feeds)
    elif request.options.fuse:
        winograd = options.winograd and single and session.device.type == "cpu"
        computed = optimise(graph, False, True, single, winograd)
    device = session.device.index
    return bisect_graph(computed, device, options, feeds, request.tolerance, right)


def _title(model: Any) -> str:
    if isinstance(model, Graph):
        return model.name or "graph"
    return f"{len(model)} bytes" if isinstance(model, bytes) else os.fspath(model)


def reproduction(request: Request) -> str:
    """Return the command line that repeats a comparison of a model file with random input."""
    words = ["clnn", "verify", _title(request.model), "--against", request.against]
    if request.device is not None:
        words += ["--device", str(request.device)]
    for name, shape in request.shapes.items():
        dims = [shape] if isinstance(shape, int) else shape
        words += ["--shape", f"{name}:{','.join(map(str, dims))}"]
    words += ["--seed", str(request.seed), "--tolerance", f"{request.tolerance:g}"]
    defaults = Options()
    for name, value in vars(request.options).items():
        if value != getattr(defaults, name):
            words += ["--option", f"{name}={value}"]
    if isinstance(request.calibration, (int, str)):
        words += ["--calibrate", str(request.calibration)]
    words += ["--per-layer"] * request.per_layer + ["--bisect"] * request.bisect
    return shlex.join(words)
