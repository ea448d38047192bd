"""The public functions: compile a model, list devices, diagnose, verify."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clnn import logs
from clnn.graph.ir import Graph
from clnn.graph.mapped import forget, mapped_files
from clnn.graph.passes import optimise
from clnn.graph.passes.store import store_as
from clnn.options import Options
from clnn.settings import warn_unknown
from clnn.types import STORAGE

if TYPE_CHECKING:
    from clnn.runtime.device import DeviceInfo
    from clnn.runtime.doctor import Check
    from clnn.runtime.session import Session
    from clnn.tune.report import Report
    from clnn.tune.tuner import Progress
    from clnn.verification.report import VerifyReport

Model = "str | os.PathLike[str] | bytes | Graph"


def compile_model(
    model: str | os.PathLike[str] | bytes | Graph | Any,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
) -> Session:
    """Return a Session that runs `model` on `device`.

    model: path of an .onnx file, its bytes, an onnx.ModelProto, or a Graph. device: "auto", "cpu",
    "gpu", an index, or part of a platform's or device's name (default: CLNN_DEVICE). shapes: fixes
    symbolic dimensions, by input name -> shape or dimension name -> extent.
    Raises ModelError, UnsupportedOpError, NoDeviceError, DeviceError, BuildError or
    OutOfDeviceMemoryError.
    """
    from clnn.runtime.device import select
    from clnn.runtime.session import Session
    from clnn.tune.choose import chooser

    logs.configure()
    warn_unknown()
    options = options or Options()
    tuned = options.tune in ("quick", "full")
    graph = prepare(load_graph(model, shapes, mapped=not tuned), options)
    forget(mapped_files(graph.consts.values()))
    info = select(device)
    if tuned:
        from clnn.tune.tuner import Wish, tune_graph

        report = tune_graph(graph, info, options, Wish(options.tune, resume=True))
        logs.log.info("%s", report.closing())
    with chooser(info, options.tune) as choose:
        return Session(graph, info, options, choose)


def tune_model(
    model: str | os.PathLike[str] | bytes | Graph | Any,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    *,
    level: str = "full",
    budget: float = 0.0,
    resume: bool = False,
    retry: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Measure which kernels are fastest for a model on a device, and keep that for later sessions.

    level: "quick" or "full" (candidates per layer). budget: seconds (0: 30 or 250). resume: measure
    only what no result is stored for. retry: try again what failed before. progress: called after
    each candidate. Raises as compile_model does, SettingError for a level that is not there.
    """
    from clnn.runtime.device import select
    from clnn.tune.tuner import Wish, tune_graph

    options = options or Options()
    wish = Wish(level, budget, resume, retry)
    graph = load_graph(model, shapes)
    graph = prepare(graph, options)
    return tune_graph(graph, select(device), options, wish, progress or (lambda where: None))


def prepare(graph: Graph, options: Options) -> Graph:
    """Return the graph as it is planned: after the passes that `options` ask for."""
    graph = optimise(graph) if options.fuse else graph
    return store_as(graph, STORAGE[options.dtype])


def load_graph(
    model: str | os.PathLike[str] | bytes | Graph | Any,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    *,
    mapped: bool = False,
) -> Graph:
    """Return the Graph of a model, before any pass.

    mapped: large constants are mapped from the model's files, which must stay as they are while
    the Graph is used.
    """
    if isinstance(model, Graph):
        return model
    from clnn.importers.onnx import import_onnx

    return import_onnx(model, shapes, mapped=mapped)


def devices() -> list[DeviceInfo]:
    """Return every OpenCL device, usable or not (see DeviceInfo.why_not)."""
    from clnn.runtime.device import discover

    return discover()


def doctor() -> list[Check]:
    """Return the checks of `clnn doctor`, in order."""
    from clnn.runtime.doctor import doctor_report

    return doctor_report()


def verify(
    model: str | os.PathLike[str] | bytes | Graph,
    against: str = "onnxruntime",
    device: str | int | None = None,
    per_layer: bool = False,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    *,
    bisect: bool = False,
    feeds: Mapping[str, Any] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    options: Options | None = None,
) -> VerifyReport:
    """Compare what a device computes for a model with another engine.

    against: "onnxruntime", or "reference" (numpy in double precision). per_layer: compare every
    node's result of the unfused network too. bisect: search the first wrong node of the network
    as it is compiled. feeds: inputs by name; those left out are random, from `seed`. tolerance:
    error allowed, relative to an output's largest magnitude (None: 1e-4; with a network stored in
    16 bits 2e-2 for f16, 1e-1 for bf16); integers must be equal.
    The report is true when all is within tolerance. Raises as compile_model does, SettingError for
    an argument that is not allowed, MissingPackageError where onnxruntime is not installed.
    """
    from clnn.verification.verify import TOLERANCES, Request
    from clnn.verification.verify import verify as run

    options = options or Options()
    limit = TOLERANCES[options.dtype] if tolerance is None else tolerance
    request = Request(model, against, device, shapes or {}, feeds or {}, seed, limit, options,
                      per_layer, bisect)  # fmt: skip
    return run(request)
