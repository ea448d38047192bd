"""Models of ESP-DL (.espdl) as ONNX models in a domain of their own, so that all else takes them.

Nodes that compute get the domain "espdl" (clnn/ops/espdl/nodes.py) with their exponents and the rounding
of the chip as attributes; nodes that only move elements are ONNX's own. Filters are unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from clnn import logs
from clnn.arith.espdl import CHIPS, HALF_EVEN
from clnn.errors import ModelError, SettingError
from clnn.importers.espdl.filters import block_of, unpacked
from clnn.importers.espdl.model import EspModel, EspNode, EspTensor, EspValue, read_espdl
from clnn.importers.onnx.limits import show
from clnn.settings import setting
from clnn.types import Array

DOMAIN, VERSION, OPSET = "espdl", 1, 18
AUTO, LANES = "auto", "+lanes"
FILTERED = ("Conv", "Gemm", "MatMul")  # their second input is a filter, their third a bias
MOVES = {  # ONNX operators that only move elements
    "Concat": (),
    "Expand": (),
    "Flatten": (),
    "Gather": (),
    "Identity": (),
    "Pad": (0, 2),
    "Reshape": (),
    "Slice": (),
    "Split": (),
    "Squeeze": (),
    "Transpose": (),
    "Unsqueeze": (),
}
OWN = ("quant_type", "activation", "lut")  # attributes that ONNX's operators do not have
NAMED = re.compile(r"(?<![a-z0-9])(?:esp32)?(p4|s31|s3)(?![a-z0-9])")  # a chip in a path


def chip_of(model: EspModel, path: Path | None, chip: str = "") -> tuple[str, bool]:
    """Return (chip that a model is for, whether sums have its lanes of 20 bits).

    `chip`, else CLNN_ESPDL_CHIP says which; where it is auto, "chip" in the file's metadata may, then its
    name and folder ("..._p4.espdl", "esp32p4/..."), else filters in blocks are for the ESP32-S3 and others
    for the C kernels. Raises SettingError for a chip that clnn does not know.
    """
    asked = (chip or str(setting("CLNN_ESPDL_CHIP"))).lower()
    name = asked.removesuffix(LANES)
    if name != AUTO:
        if name not in CHIPS:
            raise SettingError(
                f"the chip (CLNN_ESPDL_CHIP) is {asked!r}. It must be {AUTO} or one of {', '.join(CHIPS)},"
                f" perhaps with {LANES} behind it."
            )
        return name, asked.endswith(LANES)
    said = model.metadata.get("chip", "").lower()
    if said in CHIPS:
        return said, asked.endswith(LANES)
    words = [] if path is None else [path.stem.lower(), path.parent.name.lower()]
    for word in words:
        found = NAMED.search(word)
        if found:
            return f"esp32{found[1]}", asked.endswith(LANES)
    if not any(block_of(t.layout) for t in model.initializers.values()):
        return "c", False
    logs.log.warning(
        "the .espdl model does not say for which chip it is; the ESP32-S3 is assumed, on which ties "
        "are rounded up. Set CLNN_ESPDL_CHIP, for example to esp32p4, where they go to even."
    )
    return "esp32s3", asked.endswith(LANES)


def proto_of(
    data: memoryview | bytes | EspModel, path: Path | None = None, chip: str = ""
) -> onnx.ModelProto:
    """Return the ONNX model that an .espdl file becomes. Raises ModelError or SettingError.

    path: where it lies, chip: which it is for, as chip_of takes them.
    """
    model = data if isinstance(data, EspModel) else read_espdl(data)
    chip, lanes = chip_of(model, path, chip)
    return _Conversion(model, CHIPS[chip], lanes).proto(chip)


class _Conversion:
    """One conversion: what is known of values, and the initializers that nodes want."""

    def __init__(self, model: EspModel, rounding: str, lanes: bool) -> None:
        self.model, self.rounding, self.lanes = model, rounding, lanes
        ports = (*model.inputs, *model.outputs)
        self.values = {**{v.name: v for v in ports}, **model.values}
        self.made: dict[str, onnx.TensorProto] = {}

    def proto(self, chip: str) -> onnx.ModelProto:
        """Return the whole model."""
        nodes = [self._node(node) for node in self.model.nodes]
        fed = [v for v in self.model.inputs if v.name not in self.model.initializers]
        graph = onnx.helper.make_graph(
            nodes,
            self.model.name or "espdl",
            [_port(v) for v in fed],
            [_port(v) for v in self.model.outputs],
            list(self.made.values()),
        )
        imports = [onnx.helper.make_opsetid(*pair) for pair in (("", OPSET), (DOMAIN, VERSION))]
        proto = onnx.helper.make_model(
            graph, opset_imports=imports, producer_name=self.model.producer
        )
        proto.ir_version = 8
        known = {"espdl.chip": chip + (LANES if self.lanes else "")}
        for value in (*fed, *self.model.outputs):
            if value.exponents:
                known[f"espdl.exponent.{value.name}"] = str(value.exponents[0])
        onnx.helper.set_model_props(proto, {**self.model.metadata, **known})
        return proto

    def exponents(self, name: str) -> tuple[int, ...]:
        """Return the exponents of a value or an initializer; (0,) where the file has none."""
        tensor = self.model.initializers.get(name)
        known = tensor or self.values.get(name)
        return (known.exponents if known else ()) or (0,)

    def _exponent(self, name: str) -> int:
        return self.exponents(name)[0]

    def _kind(self, name: str) -> str:
        value, tensor = self.values.get(name), self.model.initializers.get(name)
        return str(tensor.data.dtype) if tensor is not None else value.dtype if value else ""

    def _node(self, node: EspNode) -> onnx.NodeProto:
        if not node.outputs:
            raise ModelError(f"node {show(node.name)} ({show(node.op_type)}) makes nothing.")
        attributes = {k: _plain(v) for k, v in node.attributes.items()}
        if node.op_type in MOVES or (node.op_type == "Resize" and _is_nearest(attributes)):
            return self._move(node, attributes)
        return self._computing(node, attributes)

    def _move(self, node: EspNode, attributes: dict[str, Any]) -> onnx.NodeProto:
        """Return a node of ONNX's own domain. Raises ModelError where it would change exponents."""
        moved = {self._exponent(n) for n in (*node.inputs[:1], *node.outputs)}
        if node.op_type == "Concat":
            moved |= {self._exponent(n) for n in node.inputs}
        if len(moved) > 1:
            raise ModelError(
                f"node {show(node.name)} ({node.op_type}) has values with exponents {sorted(moved)}:"
                " what only moves elements needs one."
            )
        kept = {k: v for k, v in attributes.items() if k not in OWN}
        inputs = [self._plain_input(name) for name in node.inputs]
        return onnx.helper.make_node(
            node.op_type, inputs, list(node.outputs), node.name, **_filled(kept)
        )

    def _plain_input(self, name: str) -> str:
        tensor = self.model.initializers.get(name)
        if tensor is not None:
            self._keep(name, tensor.array)
        return name

    def _keep(self, name: str, array: Array) -> str:
        if name not in self.made:
            self.made[name] = onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def _computing(self, node: EspNode, attributes: dict[str, Any]) -> onnx.NodeProto:
        kind, inputs = node.op_type, list(node.inputs)
        table = attributes.pop("lut", None)
        if isinstance(table, str) and table:
            if table not in self.model.initializers:
                raise ModelError(
                    f"node {show(node.name)} wants the table {show(table)}, not there."
                )
            kind, inputs = "LUT", [*inputs[:1], table]
        given = [self._exponent(name) for name in inputs]
        if kind in FILTERED:
            inputs[1:] = self._filtered(node, inputs)
            attributes["e_w"] = list(self.exponents(node.inputs[1]))
            if len(node.inputs) > 2:
                attributes["e_bias"] = list(self.exponents(node.inputs[2]))
        else:
            inputs = [self._plain_input(name) for name in inputs]
        attributes |= {
            "e_in": given,
            "e_out": self._exponent(node.outputs[0]),
            "out_type": self._kind(node.outputs[0]),
            "rounding": self.rounding,
            "lanes": int(self.lanes and self.rounding != HALF_EVEN),
        }
        return onnx.helper.make_node(
            kind, inputs, list(node.outputs), node.name, domain=DOMAIN, **_filled(attributes)
        )

    def _filtered(self, node: EspNode, inputs: Sequence[str]) -> list[str]:
        """Return the names of a node's filter, unpacked, and of its bias."""
        if len(inputs) < 2 or inputs[1] not in self.model.initializers:
            raise ModelError(
                f"node {show(node.name)} ({node.op_type}) has no constant filter, which is not"
                " supported."
            )
        tensor = self.model.initializers[inputs[1]]
        groups = node.attributes.get("group", 1) if node.op_type == "Conv" else 1
        name = f"{inputs[1]}#{node.op_type}{groups}"
        if name not in self.made:
            self._keep(name, _filter(node, tensor, groups != 1))
        return [name, *(self._plain_input(other) for other in inputs[2:])]


def _filter(node: EspNode, tensor: EspTensor, depthwise: bool) -> Array:
    dims, rank = tensor.dims, len(tensor.dims)
    if node.op_type != "Conv":
        if rank == 2 and not block_of(tensor.layout):
            return tensor.array.T
        if rank not in (2, 4) or (rank == 4 and dims[:2] != (1, 1)):
            raise ModelError(f"the filter {show(tensor.name)} of a product of rows is {dims}.")
        dims = (1, 1, *dims[-2:])
        return unpacked(tensor.data, dims, tensor.layout or "NHWC", False)[:, :, 0, 0]
    if rank not in (3, 4):
        raise ModelError(f"the filter {show(tensor.name)} is {dims}; it needs 3 or 4 axes.")
    return unpacked(tensor.data, dims, tensor.layout, depthwise)


def _is_nearest(attributes: Mapping[str, Any]) -> bool:
    return bool(attributes.get("mode", "nearest") == "nearest")


def _plain(value: Any) -> Any:
    """Return an attribute's value as onnx.helper takes it."""
    if isinstance(value, EspTensor):
        return onnx.numpy_helper.from_array(value.array, value.name)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value


def _filled(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that say something; empty lists have no type."""
    return {k: v for k, v in attributes.items() if k and v is not None and v != []}


def _port(value: EspValue) -> onnx.ValueInfoProto:
    if not value.dtype:
        raise ModelError(f"{show(value.name)} of the .espdl model has no type.")
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    return onnx.helper.make_tensor_value_info(value.name, kind, list(value.dims))
