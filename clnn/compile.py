"""From a model to a session: load it, calibrate it, run the passes over it, compile or tune it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clnn import logs
from clnn.budget import host_memory
from clnn.errors import NoDeviceError, OpenShapeError, SettingError, UnsupportedOpError
from clnn.graph.histograms import METHODS, RangeObserver
from clnn.graph.ir import Graph
from clnn.graph.mapped import forget, mapped_files, one_of_each, require_unchanged
from clnn.graph.passes import optimise
from clnn.graph.passes.fuse_attention import fuse_attention
from clnn.graph.passes.fuse_rotary import fuse_rotary
from clnn.graph.passes.phases_of_dilated import dilates
from clnn.graph.passes.quantise import in_steps, observed, quantise
from clnn.graph.passes.share_heads import share_heads
from clnn.graph.passes.store import store_as
from clnn.graph.rounding import Range
from clnn.importers.onnx.stages.program import is_staged
from clnn.open_model import OpenModel
from clnn.ops.shared import amx
from clnn.options import Options
from clnn.ports import ports_of
from clnn.runtime.build.program import Device
from clnn.runtime.device.target import allowed, kind_of, target_of
from clnn.runtime.doctor.selection import select_device
from clnn.runtime.drivers.trim import trim_loaded
from clnn.runtime.process.forked import refuse
from clnn.runtime.run.compiled import is_compiled, load_as, refuse_compiled
from clnn.runtime.run.handed import exchange_of
from clnn.runtime.run.open_ports import OpenTensorInfo
from clnn.runtime.run.open_session import OpenSession
from clnn.runtime.run.session import Session
from clnn.runtime.run.universal import asks_for_set
from clnn.runtime.run.watch import timeout_of
from clnn.runtime.stages.on_device import functions_on
from clnn.runtime.stages.session import StagedSession
from clnn.runtime.stages.valued import ValuedSession
from clnn.settings import warn_unknown
from clnn.timeline import mark
from clnn.tune.choose import chooser
from clnn.tune.report import Report
from clnn.tune.tuner import Progress, TuneRequest, tune_graph
from clnn.types import STORAGE, Array

if TYPE_CHECKING:
    from clnn.importers.onnx.load import Loaded
    from clnn.qdq.option import Calibration

# The path of an .onnx file, its bytes, an onnx.ModelProto, or a Graph.
Model = str | os.PathLike[str] | bytes | Graph | Any
# Input name -> shape, or name of a symbolic dimension -> extent.
Shapes = Mapping[str, Sequence[int] | int]


@host_memory("the compilation of the model")
def compile_model(
    model: Model,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
    calibration: Calibration | None = None,
    at_known: Callable[..., Session] | None = None,
) -> Session | OpenSession | StagedSession | ValuedSession:
    """Do what clnn.compile_model does, without its cache. at_known: does what compile_fixed does, in its place."""
    from clnn.importers.onnx.load import Loaded, load_model, load_parts

    refuse()
    if is_compiled(model):
        return load_as(model, device, options, shapes, calibration)
    model, options = settled(model, device, options, shapes, calibration)
    mapped = options.tune not in ("quick", "full")
    parts = model if isinstance(model, Graph) else load_parts(model, mapped)
    try:
        return (at_known or compile_fixed)(parts, device, options, shapes)
    except (OpenShapeError, UnsupportedOpError) as err:
        is_open, doubt = isinstance(err, OpenShapeError), None
        whole = model if isinstance(model, Graph) else Loaded(*load_model(model))
        made: Any = _compile_valued(whole, device, options, shapes)
        try:
            made = made or compile_staged(whole, device, options, shapes)
        except UnsupportedOpError as unsupported:  # shapes that come later may fold what is
            doubt = unsupported
        if made is not None:
            return made  # type: ignore[no-any-return]
        if not is_open:
            raise doubt or err from None
        return _compile_open(parts, device, options, ports_of(whole, shapes), doubt)


def _compile_valued(
    model: Model, device: str | int | None, options: Options | None, shapes: Shapes | None
) -> ValuedSession | None:
    """Return the session of a model of which values of small inputs decide what runs, else None."""
    from clnn.importers.onnx.load import Loaded, load_model
    from clnn.importers.onnx.stages.branches import deciding_values

    if isinstance(model, Graph):
        return None
    loaded = Loaded(*load_model(model))
    names = deciding_values(loaded.proto.graph)
    if not names:
        return None
    select_device(device)
    return ValuedSession(*ports_of(model, shapes), names, valued_model(loaded, device, options))


def valued_model(
    model: Model, device: str | int | None, options: Options | None
) -> Callable[[Mapping[str, Array], Mapping[str, tuple[int, ...]]], Any]:
    """Return what compiles a model for values of inputs, which become constants, and shapes of the others."""
    from clnn.importers.onnx.interface import with_inputs
    from clnn.importers.onnx.load import Loaded, load_model

    loaded = Loaded(*load_model(model))

    def at(values: Mapping[str, Array], extents: Mapping[str, tuple[int, ...]]) -> Any:
        part = with_inputs(loaded, {}, values)
        try:
            return compile_fixed(part, device, options, extents)
        except UnsupportedOpError:
            staged = compile_staged(part, device, options, extents)
            if staged is None:
                raise
            return staged

    return at


def compile_staged(
    model: Model,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
    calibration: Calibration | None = None,
) -> StagedSession | None:
    """Return the session of a model of which values decide shapes or what runs; None for others.

    Arguments and errors are those of compile_model.
    """
    from clnn.importers.onnx.stages.build import read_program

    model, options = settled(model, device, options, shapes, calibration)
    if isinstance(model, Graph):
        return None
    program = read_program(model, shapes)
    if not is_staged(program):
        return None
    opened = Device.open(select_device(device))

    exchange = exchange_of(opened, timeout_of(options))

    def stage(part: Model, close: bool) -> Session | OpenSession:
        close = close and exchange is None  # other ones hand tensors on, in one context
        try:
            return compile_fixed(part, device, options, opened=None if close else opened)
        except OpenShapeError:
            ports = ports_of(part, None)
            return _compile_open(part, device, options, ports, opened=opened, close=close)

    ports, own = ports_of(model, shapes), functions_on(opened, timeout_of(options))
    return StagedSession(program, *ports, stage, opened.info.title, exchange, own)


def _compile_open(
    model: Model,
    device: str | int | None,
    options: Options | None,
    ports: tuple[list[OpenTensorInfo], list[OpenTensorInfo]],
    doubt: UnsupportedOpError | None = None,
    opened: Device | None = None,
    close: bool = False,
) -> OpenSession:
    """Return the session of a model with open dimensions; nothing is compiled yet. ports: ports_of.

    opened: as in compile_fixed. close: whether its calls follow each other closely.
    """
    select_device(device)
    inputs, outputs = ports
    made = open_model(model, device, options or Options(), inputs, opened, close)
    return OpenSession(inputs, outputs, made, made.gears(), doubt, made.close)


def open_model(
    model: Model,
    device: str | int | None,
    options: Options,
    inputs: Sequence[OpenTensorInfo],
    opened: Device | None = None,
    close: bool = False,
) -> OpenModel:
    """Return what makes sessions of a model with open dimensions. opened, close: as in OpenModel."""
    dims = {value.name: value.shape for value in inputs}

    def read(loaded: Loaded, shapes: Shapes) -> Graph:
        graph = load_graph(loaded, shapes, is_open=True)
        return prepare(graph, options, device=device, fixed=False)

    def alone(shapes: Shapes) -> Session:
        return compile_fixed(model, device, options, shapes, opened=opened)

    return OpenModel(model, device, options, dims, opened, read, alone, close)


def compile_fixed(
    model: Model,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
    calibration: Calibration | None = None,
    opened: Device | None = None,
) -> Session:
    """Return the Session of a model whose dimensions are all known, else raise OpenShapeError.

    opened: has the context that it is to use. Other arguments and errors are compile_model's.
    """
    logs.configure()
    warn_unknown()
    if is_compiled(model):
        return load_as(model, device, options, shapes, calibration)
    model, options = settled(model, device, options, shapes, calibration)
    tuned = options.tune in ("quick", "full")
    graph = load_graph(model, shapes, mapped=not tuned)
    mark("model")
    info = select_device(device)
    trim_loaded(info.driver)
    mark("device")
    sources = one_of_each(mapped_files(graph.consts.values()))
    require_unchanged(sources)
    graph = prepare(graph, options, device=device)
    require_unchanged(sources)
    forget(mapped_files(graph.consts.values()))
    mark("passes")
    if tuned:
        report = tune_graph(graph, info, options, TuneRequest(options.tune, resume=True))
        logs.log.info("%s", report.closing())
    with chooser(info, options.tune) as choose:
        return Session(graph, info, options, choose, device=opened and opened.beside())


@host_memory("the compilation of the model")
def tune_model(
    model: Model,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
    *,
    level: str = "full",
    budget: float = 0.0,
    resume: bool = False,
    retry: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Measure which kernels are fastest for a model on a device, and keep that for later sessions.

    level: "quick" or "full" (candidates per layer). budget: seconds for all, reading and building the
    model included (0: 30 or 250). resume: measure only what no result is stored for. retry: try again
    what failed before. progress: called after each candidate. Raises as compile_model does, and
    SettingError for a level that is not there.
    """
    refuse()
    began = time.monotonic()
    options = options or Options()
    request = TuneRequest(level, budget, resume, retry)
    model, options = settled(model, device, options, shapes)
    graph = prepare(load_graph(model, shapes), options, device=device)
    show = progress or (lambda where: None)
    return tune_graph(graph, select_device(device), options, request, show, began=began)


@host_memory("the compilation of the model")
def calibrate(
    model: Model,
    samples: Iterable[Mapping[str, Any]],
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
    *,
    method: str = "minmax",
) -> dict[str, Range]:
    """Return the ranges of a network's values, for Options(dtype="int8"): value name -> (least, largest).

    The float32 network runs on `device` over `samples`, an iterable of feeds. method: of
    clnn.graph.histograms.METHODS, how ranges follow from values. The result may be kept as JSON; it belongs
    to this network. Raises SettingError for samples that are none, and what compile_model and a session raise.
    """
    from clnn.qdq.option import observed_ranges

    if isinstance(samples, Mapping):
        raise SettingError("samples are an iterable of feeds. For one feed give [feed].")
    if method not in METHODS:
        raise SettingError(f"method is {method!r}. Use one of {', '.join(METHODS)}.")
    feeds, plain = list(samples), _measuring(options or Options())
    if isinstance(model, Graph):
        return _ranges(model, feeds, device, plain, method)
    refuse_compiled(model)
    return observed_ranges(
        model, feeds, lambda variant: compile_model(variant, device, plain, shapes), method
    )


def settled(
    model: Model,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
    calibration: Calibration | None = None,
) -> tuple[Model, Options]:
    """Return a model and options without dtype "int8": for that, the quantised model that it stands for.

    A model of which nothing can be bytes stays as it is. Arguments are compile_model's; samples run on `device`.
    Raises SettingError where calibration is missing, or of no use, and what compile_model raises.
    """
    options = options or Options()
    if options.dtype != "int8":
        if calibration is not None:
            raise SettingError(f"calibration is of no use with Options(dtype={options.dtype!r}).")
        return model, options
    from clnn.qdq.option import quantised_model, ranges_or_samples

    given = options.calibration if calibration is None else calibration
    plain = replace(options, dtype="f32", calibration="")
    measuring = _measuring(options)
    if isinstance(model, Graph):
        known = ranges_or_samples(given)
        if not isinstance(known, dict):
            known = _ranges(model, known, device, measuring)
        return quantise(model, known), plain
    refuse_compiled(model)
    made = quantised_model(
        model, given, lambda variant: compile_model(variant, device, measuring, shapes)
    )
    return (model if made is None else made), plain


def _measuring(options: Options) -> Options:
    """Return the options with which a float32 network is measured for others."""
    return replace(options, dtype="f32", calibration="", tune="cached", states=1, guard=0)


def _ranges(
    graph: Graph,
    samples: Sequence[Mapping[str, Any]],
    device: str | int | None,
    options: Options,
    method: str = "minmax",
) -> dict[str, Range]:
    """Return the ranges of the values of a graph that become bytes, over samples."""
    names = observed(graph)
    observer = RangeObserver(names, method)
    watched = replace(in_steps(graph), outputs={name: name for name in names} or graph.outputs)
    with compile_fixed(watched, device, options) as session:
        for see in (observer.see, observer.count)[: 1 + observer.counts]:
            for feed in samples:
                see(session({name: feed[name] for name in graph.inputs if name in feed}))
    return observer.ranges()


def prepare(
    graph: Graph,
    options: Options,
    calibration: Calibration | None = None,
    device: str | int | None = None,
    fixed: bool = True,
) -> Graph:
    """Return the graph as it is planned: after the passes that `options` ask for.

    calibration: as in compile_model; samples run on `device`. fixed: no other shape is to share its
    kernels. Raises SettingError where calibration is missing.
    """
    seen, options = settled(graph, device, options, calibration=calibration)
    assert isinstance(seen, Graph)
    graph, whole = seen, fixed and asks_for_set(options) and _is_cpu(device)
    single = options.dtype == "f32"
    winograd = options.winograd and single and fixed and dilates(graph) and _is_cpu(device)
    graph = optimise(graph, whole, fixed, single, winograd) if options.fuse else graph
    if options.fuse and fixed and not whole and (single or _attends(options, device)):
        graph = share_heads(fuse_attention(fuse_rotary(graph) if single else graph))
    return store_as(graph, STORAGE[options.dtype])


def _is_cpu(device: str | int | None) -> bool:
    """Whether a device is a CPU, as is the one that plans are shown for where there is none."""
    try:
        return kind_of(select_device(device)) == "cpu"
    except NoDeviceError:
        return True


def _attends(options: Options, device: str | int | None) -> bool:
    """Whether a device has a kernel for all of an attention of values that are stored in bfloat16."""
    if options.dtype != "bf16":
        return False
    try:
        return bool(amx.how(allowed(target_of(select_device(device)), options)))
    except NoDeviceError:
        return False


def load_graph(
    model: Model, shapes: Shapes | None = None, *, mapped: bool = False, is_open: bool = False
) -> Graph:
    """Return the Graph of a model, before any pass.

    mapped: large constants are mapped from the model's files, which must stay as they are while
    the Graph is used. is_open: as in import_onnx.
    """
    if isinstance(model, Graph):
        return model
    refuse_compiled(model)
    from clnn.importers.onnx.importer import import_onnx

    return import_onnx(model, shapes, mapped=mapped, is_open=is_open)
