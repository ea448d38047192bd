"""compile_model as programs call it: from the cache where this model was compiled before, else anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from clnn import logs
from clnn.errors import DeviceError
from clnn.options import Options
from clnn.runtime.build.progress import Listener, heard
from clnn.runtime.doctor.selection import select_device
from clnn.runtime.drivers.trim import trim_loaded
from clnn.runtime.process.forked import refuse
from clnn.runtime.run.compiled import is_compiled, load_as
from clnn.runtime.run.kept import find, keep, keep_behind, key_of
from clnn.runtime.run.session import Session
from clnn.runtime.run.universal import asks_for_set
from clnn.settings import warn_unknown
from clnn.timeline import mark

if TYPE_CHECKING:
    from clnn.compile import Model, Shapes
    from clnn.qdq.option import Calibration
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
        return _kept_or_anew(model, device, options, shapes, _anew)


def compile_fixed(
    model: Model,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
) -> Session:
    """Return what clnn.compile.compile_fixed does, from the cache where it is there; errors are the same."""
    if is_compiled(model) or not isinstance(model, (str, os.PathLike)):
        return _fixed_anew(model, device, options, shapes)
    return _kept_or_anew(model, device, options, shapes, _fixed_anew)


def _kept_or_anew(
    path: str | os.PathLike[str],
    device: str | int | None,
    options: Options | None,
    shapes: Shapes | None,
    anew: Callable[..., Made],
) -> Session | Made:
    logs.configure()
    warn_unknown()
    options = options or Options()
    try:
        info = select_device(device)
    except DeviceError:  # what is wrong with the model is said first
        return anew(path, device, options, shapes)
    mark("device")
    key = key_of(path, info, options, shapes)
    mark("key")
    if key is not None and (kept := find(key, info, options)) is not None:
        return kept
    trim_loaded(info.driver)
    session = anew(path, device, options, shapes)
    unchanged = key is not None and key == key_of(path, info, options, shapes)
    if key is not None and unchanged and isinstance(session, Session):
        how = keep_behind if asks_for_set(options) else keep
        session.once_settled(partial(how, key))
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
