"""ONNX's backend interface: prepare a model, run it, or run one node; used by ONNX's own tests.

ONNX's device "CPU" is the device that CLNN_DEVICE names, else a CPU; "CUDA" is an OpenCL GPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as _OnnxBackend
from onnx.backend.base import BackendRep, Device, DeviceType, namedtupledict

from clnn.errors import ClnnError, InputNameError
from clnn.importers.onnx.importer import import_onnx
from clnn.importers.onnx.load import load_model
from clnn.settings import setting
from clnn.types import Array

_MOST_SESSIONS = 8


def _late(module: str) -> Any:
    """Return a module of a later room, imported only when it is needed."""
    return importlib.import_module(module)


class PreparedModel(BackendRep):  # type: ignore[misc]
    """A model that runs on one device; compiled for each new set of input shapes.

    Where an op needs an input as a constant (a shape, axes, pads), the model is compiled for the
    value that is passed.
    """

    def __init__(self, model: onnx.ModelProto | bytes | str, device: str, options: Any) -> None:
        self._model, _ = load_model(model)
        self._source = model
        self._device, self._options = device, options
        fixed = {t.name for t in self._model.graph.initializer}
        values = [v for v in self._model.graph.input if v.name not in fixed]
        self._inputs = [v.name for v in values]
        self._tensors = {v.name for v in values if v.type.HasField("tensor_type")}
        self._outputs = [v.name for v in self._model.graph.output]
        self._sessions: dict[Any, Any] = {}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Return the outputs, also by name. inputs: arrays in the model's order, or by name."""
        feeds = self._feeds(inputs)
        session, constants = self._session(feeds)
        made = session({name: a for name, a in feeds.items() if name not in constants})
        outputs = namedtupledict("Outputs", self._outputs)
        return outputs(*(made[name] for name in self._outputs))  # type: ignore[no-any-return]

    def _feeds(self, inputs: Any) -> dict[str, Array]:
        """Return what is given for each input; the import refuses inputs that are no tensors."""
        if not isinstance(inputs, Mapping):
            listed = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(listed) > len(self._inputs):
                raise InputNameError(
                    f"{len(listed)} inputs were given, the model has {len(self._inputs)}: "
                    f"{self._inputs}."
                )
            inputs = dict(zip(self._inputs, listed, strict=False))
        others = set(self._inputs) - self._tensors
        return {str(n): np.asarray(a) for n, a in inputs.items() if n not in others}

    def _session(self, feeds: Mapping[str, Array]) -> tuple[Any, frozenset[str]]:
        """Return a session for these shapes (and values, where they had to be constants)."""
        shapes = tuple((name, a.shape, a.dtype.str) for name, a in sorted(feeds.items()))
        for key, (session, constants) in self._sessions.items():
            if key == (shapes, _bytes(feeds, constants)):
                return session, constants
        given = {name: a.shape for name, a in feeds.items() if name in self._tensors}
        graph = import_onnx(self._source, given, feeds)
        constants = frozenset(feeds) - frozenset(graph.inputs)
        session = _late("clnn.api").compile_model(graph, self._device, self._options)
        if len(self._sessions) >= _MOST_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))[0].close()
        self._sessions[shapes, _bytes(feeds, constants)] = session, constants
        return session, constants


def _bytes(feeds: Mapping[str, Array], names: frozenset[str]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, feeds[name].tobytes()) for name in sorted(names))


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
            _late("clnn.runtime.device.device").select(device_name(device))
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
    gpus = [
        d for d in _late("clnn.runtime.device.device").discover() if d.type == "gpu" and d.usable
    ]
    if wanted.device_id >= len(gpus):
        raise ValueError(f"{device} is not there: this machine has {len(gpus)} usable OpenCL GPUs.")
    return str(gpus[wanted.device_id].index)
