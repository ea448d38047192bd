"""ONNX's backend interface: prepare a model, run it, or run one node; used by ONNX's own tests.

ONNX's device "CPU" is the device that CLNN_DEVICE names, else a CPU; "CUDA" is an OpenCL GPU.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as _OnnxBackend
from onnx.backend.base import BackendRep, Device, DeviceType, namedtupledict

from clnn.apis.sessions import SessionStore
from clnn.compile import compile_fixed, compile_staged
from clnn.errors import ClnnError, InputNameError, UnsupportedOpError
from clnn.importers.onnx.importer import import_onnx
from clnn.importers.onnx.load import load_model
from clnn.options import Options
from clnn.runtime.device.device import discover, select
from clnn.runtime.run.session import Session
from clnn.runtime.stages.session import StagedSession
from clnn.settings import setting
from clnn.types import Array

SESSIONS = 8  # that a prepared model keeps


class PreparedModel(BackendRep):  # type: ignore[misc]
    """A model that runs on one device; compiled for each new set of input shapes.

    Where an op needs an input as a constant (a shape, axes, pads), the model is compiled for the
    value that is passed.
    """

    def __init__(
        self, model: onnx.ModelProto | bytes | str, device: str, options: Options | None
    ) -> None:
        self._model, _ = load_model(model)
        self._source = model
        self._device, self._options = device, options
        fixed = {t.name for t in self._model.graph.initializer}
        values = [v for v in self._model.graph.input if v.name not in fixed]
        self._inputs = [v.name for v in values]
        self._tensors = {v.name for v in values if v.type.HasField("tensor_type")}
        self._outputs = [v.name for v in self._model.graph.output]
        self._sessions: SessionStore[Session] = SessionStore(SESSIONS)
        self._staged: SessionStore[StagedSession] = SessionStore(SESSIONS)
        self._constant: set[frozenset[str]] = set()  # inputs that imports took as constants

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Return the outputs, also by name. inputs: arrays in the model's order, or by name."""
        feeds = self._feeds(inputs)
        staged = self._staged.get(_staged_key(feeds))
        if staged is not None:
            results = staged(feeds)
        else:
            try:
                session, constants = self._session(feeds)
            except UnsupportedOpError:
                results = self._staged_session(feeds)(feeds)
            else:
                results = session({n: a for n, a in feeds.items() if n not in constants})
        outputs = namedtupledict("Outputs", self._outputs)
        return outputs(*(results[name] for name in self._outputs))  # type: ignore[no-any-return]

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        """Return the array of each input, lists and None of those that are no tensors."""
        if not isinstance(inputs, Mapping):
            listed = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(listed) > len(self._inputs):
                raise InputNameError(
                    f"{len(listed)} inputs were given, the model has {len(self._inputs)}: "
                    f"{self._inputs}."
                )
            inputs = dict(zip(self._inputs, listed, strict=False))
        others = set(self._inputs) - self._tensors
        return {str(n): a if n in others else np.asarray(a) for n, a in inputs.items()}

    def _staged_session(self, feeds: Mapping[str, Any]) -> StagedSession:
        """Return a session for these shapes where values decide others. Raises as compile_model."""
        shapes = {n: a.shape for n, a in feeds.items() if n in self._tensors}
        session = compile_staged(self._source, self._device, self._options, shapes)
        if session is None:
            raise UnsupportedOpError("no node of the model is decided by values")
        return self._staged.put(_staged_key(feeds), session)

    def _session(self, feeds: Mapping[str, Any]) -> tuple[Session, frozenset[str]]:
        """Return a session for these shapes, and the inputs whose values it has as constants."""
        feeds = {name: a for name, a in feeds.items() if name in self._tensors}
        for constants in self._constant:
            session = self._sessions.get(_key(feeds, constants))
            if session is not None:
                return session, constants
        shapes = {name: a.shape for name, a in feeds.items() if name in self._tensors}
        graph = import_onnx(self._source, shapes, feeds)
        constants = frozenset(feeds) - frozenset(graph.inputs)
        self._constant.add(constants)
        session = compile_fixed(graph, self._device, self._options)
        return self._sessions.put(_key(feeds, constants), session), constants


def _key(feeds: Mapping[str, Array], constants: frozenset[str]) -> Hashable:
    """Return what a session is made for: shapes and types, and the values of constants."""
    return tuple(
        (name, a.shape, a.dtype.str, a.tobytes() if name in constants else None)
        for name, a in sorted(feeds.items())
    )


def _staged_key(feeds: Mapping[str, Any]) -> Hashable:
    """Return what a session of stages is made for."""
    kinds = ((n, a.shape, a.dtype.str) for n, a in feeds.items() if isinstance(a, np.ndarray))
    return "staged", *sorted(kinds)


class Backend(_OnnxBackend):  # type: ignore[misc]
    """clnn as an ONNX backend."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Return `model`, checked, ready to run. options: clnn.Options. Raises ModelError."""
        return PreparedModel(model, device_name(device), kwargs.get("options"))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Array, ...]:
        """Return the outputs of `model` for `inputs`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Return the outputs of one node. opset_version: of its operator (default: the newest)."""
        names = list(dict.fromkeys(n for n in node.input if n))
        arrays = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
        values = [_value(name, np.asarray(arrays[name])) for name in names]
        outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
        graph = onnx.helper.make_graph([node], "node", values, outputs)
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        opset = onnx.helper.make_opsetid(node.domain, version)
        model = onnx.helper.make_model(graph, opset_imports=[opset])
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is a usable OpenCL device for ONNX's `device` ("CPU", "CUDA", "CUDA:1")."""
        try:
            select(device_name(device))
        except (ClnnError, AttributeError, ValueError):
            return False
        return True


def _value(name: str, array: Array) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, array.shape)


def device_name(device: str) -> str:
    """Return clnn's name of the device that ONNX calls "CPU", "CUDA" or "CUDA:1".

    Raises AttributeError or ValueError for other names, as ONNX's own Device does.
    """
    wanted = Device(device)
    if wanted.type == DeviceType.CPU:
        chosen = str(setting("CLNN_DEVICE"))
        return "cpu" if chosen == "auto" else chosen
    gpus = [d for d in discover() if d.type == "gpu" and d.usable]
    if wanted.device_id >= len(gpus):
        raise ValueError(f"{device} is not there: this machine has {len(gpus)} usable OpenCL GPUs.")
    return str(gpus[wanted.device_id].index)
