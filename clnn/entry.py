"""compile_model as programs call it: from the cache where this model was compiled before, else anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from clnn import logs
from clnn.errors import DeviceError
from clnn.options import Options
from clnn.runtime.build.progress import Listener, heard
from clnn.runtime.doctor.selection import select_device
from clnn.runtime.drivers.trim import trim_loaded
from clnn.runtime.process.forked import refuse
from clnn.runtime.run.compiled import is_compiled, load_as
from clnn.runtime.run.held_model import HeldModel
from clnn.runtime.run.kept import find, keep, keep_behind, key_of
from clnn.runtime.run.session import Session
from clnn.runtime.run.universal import asks_for_set
from clnn.settings import warn_unknown
from clnn.timeline import mark

if TYPE_CHECKING:
    from clnn.compile import Model, Shapes
    from clnn.open_model import OpenModel
    from clnn.qdq.option import Calibration
    from clnn.runtime.device.device import DeviceInfo
    from clnn.runtime.run.kept_shapes import KeptShapes
    from clnn.runtime.run.open_ports import KnownPorts
    from clnn.runtime.run.open_session import OpenSession
    from clnn.runtime.stages.session import StagedSession
    from clnn.runtime.stages.valued import ValuedSession

Made = TypeVar("Made")


def compile_model(
    model: Model,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
    calibration: Calibration | None = None,
    *,
    progress: Listener | None = None,
) -> Session | OpenSession | StagedSession | ValuedSession:
    """Return a session that runs `model` on `device`.

    It is an OpenSession where dimensions stay open, a StagedSession where values decide shapes or
    what runs, a ValuedSession where values of small inputs alone do.

    model: path of an .onnx or .clnn file, the former's bytes, an onnx.ModelProto, or a Graph. What is
    made of an .onnx file is kept in the cache. device: "auto", "cpu", "gpu", an index, or part of a
    platform's or device's name (default: CLNN_DEVICE). shapes: fixes symbolic dimensions, by input
    name -> shape or dimension name -> extent. calibration: for Options(dtype="int8"), samples of inputs
    as an iterable of feeds, by which the model is quantised as `quantize_onnx` does it, or ranges as `calibrate`
    returns them. progress: is
    called with a BuildProgress (done, total, title) as kernels are built for known shapes.
    Raises ModelError, UnsupportedOpError, NoDeviceError, DeviceError, BuildError,
    OutOfDeviceMemoryError, HostMemoryError where the host has not the memory, or ForkError in a
    process forked from one that has used a device.
    """
    refuse()
    with heard(progress):
        if is_compiled(model):
            return load_as(model, device, options, shapes, calibration)
        if calibration is not None or not isinstance(model, (str, os.PathLike)):
            return _anew(model, device, options, shapes, calibration)
        held = HeldModel(model)
        return _kept_or_anew(held, device, options, shapes, _anew, held.readable)


def compile_read(
    held: HeldModel, device: str | None, options: Options, read: Callable[[], Any]
) -> Any:
    """Return what compile_model returns for a model that is held.

    read: returns it as clnn.compile.compile_model takes it.
    """
    refuse()

    def anew(given: object, *how: Any) -> Any:
        return _anew(read(), *how)

    return _kept_or_anew(held, device, options, None, anew, read)


def compile_fixed(
    model: Model,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
) -> Session:
    """Return what clnn.compile.compile_fixed does, from the cache where it is there; errors are the same."""
    if is_compiled(model) or not isinstance(model, (str, os.PathLike)):
        return _fixed_anew(model, device, options, shapes)
    made = _kept_or_anew(HeldModel(model), device, options, shapes, _fixed_anew)
    assert isinstance(made, Session), "nothing else is read without `read`"
    return made


def _kept_or_anew(
    held: HeldModel,
    device: str | int | None,
    options: Options | None,
    shapes: Shapes | None,
    anew: Callable[..., Made],
    read: Callable[[], Model] | None = None,
) -> Session | OpenSession | ValuedSession | Made:
    """read: returns the model for shapes that come later, None where all are known."""
    logs.configure()
    warn_unknown()
    options = options or Options()
    try:
        info = select_device(device)
    except DeviceError:  # what is wrong with the model is said first
        return anew(held.given, device, options, shapes)
    mark("device")
    key = key_of(held, info, options, shapes)
    mark("key")
    if key is None:
        trim_loaded(info.driver)
        return anew(held.given, device, options, shapes)
    if (found := find(key, info, options)) is not None:
        return found
    kept = None if read is None else _kept_shapes(key, info, options)
    if kept and read and (opened := _open(kept, device, options, read)) is not None:
        return opened
    trim_loaded(info.driver)
    session = anew(held.given, device, options, shapes)
    if held.is_unchanged() and key == key_of(held, info, options, shapes):
        _keep(key, kept, session, options)
    return session


def _kept_shapes(key: str, info: DeviceInfo, options: Options) -> KeptShapes:
    """Return what is kept of a model at shapes; a network of known shapes that was found needs none of it."""
    from clnn.runtime.run.kept_shapes import KeptShapes

    return KeptShapes(key, info, options)


def _keep(key: str, kept: KeptShapes | None, session: Any, options: Options) -> None:
    """Keep what was made of a model."""
    if isinstance(session, Session):
        how = keep_behind if asks_for_set(options) else keep
        session.once_settled(partial(how, key))
        return
    from clnn.runtime.run.open_session import OpenSession
    from clnn.runtime.stages.valued import ValuedSession

    is_known = isinstance(session, OpenSession) and session.doubt is None
    if kept is not None and (is_known or isinstance(session, ValuedSession)):
        session.keep_in(kept)


def _open(
    kept: KeptShapes, device: str | int | None, options: Options, read: Callable[[], Model]
) -> OpenSession | ValuedSession | None:
    """Return the session of a model that ran at open shapes before, or for values, None for others."""
    ports = kept.ports()
    if ports is None:
        return None
    if ports.deciding:
        return _valued(kept, ports, device, options, read)
    from clnn.runtime.run.later_model import LaterModel
    from clnn.runtime.run.open_session import OpenSession

    def made() -> OpenModel:
        from clnn.compile import open_model

        return open_model(read(), device, options, ports.inputs, kept.device)

    later = LaterModel(made, ports.first, options.dtype)
    gears = later.gears if kept.specialise == "background" else None
    session = OpenSession(ports.inputs, ports.outputs, later, gears, free=later.close)
    session.keep_in(kept)
    return session


def _valued(
    kept: KeptShapes,
    ports: KnownPorts,
    device: str | int | None,
    options: Options,
    read: Callable[[], Model],
) -> ValuedSession:
    """Return the session of a model of which values of inputs decide what runs."""
    from clnn.runtime.stages.valued import ValuedSession

    @cache
    def model() -> Callable[..., Any]:
        from clnn.compile import valued_model

        return valued_model(read(), device, options)

    def at(*given: Any) -> Any:
        return model()(*given)

    session = ValuedSession(ports.inputs, ports.outputs, ports.deciding, at)
    session.keep_in(kept)
    return session


def _fixed_anew(
    model: Model, device: str | int | None, options: Options | None, shapes: Shapes | None
) -> Session:
    from clnn.compile import compile_fixed as compile_anew

    return compile_anew(model, device, options, shapes)


def _anew(
    model: Model,
    device: str | int | None,
    options: Options | None,
    shapes: Shapes | None,
    calibration: Calibration | None = None,
) -> Session | OpenSession | StagedSession | ValuedSession:
    from clnn.compile import compile_model as compile_anew

    if options is None or options.specialise != "background":
        return compile_anew(model, device, options, shapes, calibration)
    from clnn.geared import compile_geared

    return compile_anew(model, device, options, shapes, calibration, compile_geared)
