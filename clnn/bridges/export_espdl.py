"""A simulation of ESP-DL as an .espdl file: node by node, with golden inputs and outputs of one sample.

Inputs and outputs are integers, images with channels last, as ESP-DL's converter writes them; each value
of the simulation is there as its nodes want it, in its own order of axes or with channels last.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clnn.apis.espdl.files import write
from clnn.arith.espdl import GRAIN, HALF_EVEN, EspProducts
from clnn.arith.espdl_maps import (
    EspAverage,
    EspProduct,
    EspQuantise,
    EspRequantise,
    EspSum,
    EspTable,
)
from clnn.arith.mli_maps import Clip
from clnn.arith.quantised_maps import ByteTable, every_byte
from clnn.bridges.espdl import exponent
from clnn.bridges.layers import Layer
from clnn.errors import UnsupportedOpError
from clnn.graph.ir import Graph, Node
from clnn.importers.espdl.model import EspModel, EspNode, EspTensor, EspValue
from clnn.importers.espdl.write import stored_filter
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.movement.views import Concat, Copy, Reshape, Slice, Transpose
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.window import Window
from clnn.types import F32, I8, Array

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # channels last of channels first, and back
ORDER = {8: "(N/16)HWC16", 16: "(N/8)HWC8"}  # of filters on chips with vector units


class ModelWriter:
    """The parts of a file as they grow. A value's name with True behind it is that with channels last."""

    def __init__(self, graph: Graph, layers: Sequence[Layer], bits: int) -> None:
        self.graph, self.bits = graph, bits
        self.nodes: list[EspNode] = []
        self.initializers: dict[str, EspTensor] = {}
        self.values: dict[str, EspValue] = {}
        self.inputs: dict[str, str] = {}  # value of integers -> name of the input
        self._names: dict[tuple[str, bool], str] = {}
        self._exponents: dict[str, int] = {}
        self._same: dict[str, str] = {}  # real numbers -> their integers; rows that are images
        self._producers = graph.producers()
        self._layers = {self._product(la.integers): la for la in layers if "weights" in la.data}
        self._ops = {la.integers: la.op for la in layers}

    def _product(self, value: str) -> str:
        """Return the value of the convolution that a layer is."""
        node = self._producers[value]
        return self._product(str(node.inputs[0])) if isinstance(node.spec, Reshape) else value

    def value_of(self, name: str) -> str:
        """Return the value that another one stands for."""
        return self.value_of(self._same[name]) if name in self._same else name

    def _images(self, *names: str) -> bool:
        return all(self.graph.types[n].rank == 4 for n in names)

    def source(self, name: str, last: bool) -> str:
        """Return the name of a value in an order of axes; it is made where it is not there."""
        name = self.value_of(name)
        if (name, last) not in self._names:
            given = self._names.get((name, not last))
            if given is None:
                raise UnsupportedOpError(f"an .espdl file holds no value {name!r} here.")
            made = self.result(name, last)
            perm = LAST if last else FIRST
            if given in self.initializers:
                kept = self.initializers[given]
                array = kept.array.transpose(perm)
                self.initializers[made] = EspTensor(
                    made, array.shape, np.ascontiguousarray(array).reshape(-1), kept.exponents
                )
            else:
                self._node("Transpose", made, [given], made, {"perm": list(perm)})
        return self._names[name, last]

    def result(self, name: str, last: bool) -> str:
        """Return the name of a new value, and note its type."""
        kind = self.graph.types[name]
        shape = tuple(kind.shape[a] for a in LAST) if last else kind.shape
        made = f"{name}.last" if last else name
        self._names[name, last] = made
        exponents = () if kind.dtype == F32 else (self._exponents[name],)
        self.values[made] = EspValue(made, str(kind.dtype.numpy), shape, exponents)
        return made

    def _node(
        self, op: str, name: str, inputs: Sequence[str], output: str, attributes: dict[str, Any]
    ) -> None:
        self.nodes.append(EspNode(name, op, tuple(inputs), (output,), attributes))

    def _constant(self, name: str, array: Array, *exponents: int) -> str:
        self.initializers[name] = EspTensor(name, array.shape, array.reshape(-1), exponents, "UNK")
        return name

    def add(self, node: Node) -> None:
        """Add what a node of the simulation is. Raises UnsupportedOpError for one of float32."""
        spec = node.spec
        known = {
            Conv2d: self._convolution,
            Pool: self._pool,
            FixedMap: self._map,
            Softmax: self._softmax,
            Concat: self._concat,
            **dict.fromkeys((Reshape, Transpose, Slice, Copy), self._view),
        }
        if isinstance(spec, (Cast, Eltwise)) and self._is_real(node):
            self._same[node.outputs[0]] = str(node.inputs[0])
        elif type(spec) in known:
            known[type(spec)](node)
        else:
            raise self._refused(node)

    def _refused(self, node: Node) -> UnsupportedOpError:
        return UnsupportedOpError(
            f"an .espdl file holds no {node.spec.kind} in float32 ({node.origin or node.name})."
        )

    def _is_real(self, node: Node) -> bool:
        """Whether a node is a part of integers becoming real numbers."""
        spec, source = node.spec, str(node.inputs[0])
        if isinstance(spec, Cast):
            return spec.dtype == F32 and self.value_of(source) in self._exponents
        number = self._exponents.get(self.value_of(source))
        made = self._producers.get(source)
        assert isinstance(spec, Eltwise)
        steps = [(s.fn, tuple(s.params), s.operand) for s in spec.post_ops]
        cast = made is not None and isinstance(made.spec, Cast)
        return cast and number is not None and steps == [("mul", (2.0**number,), None)]

    def _emit(
        self, op: str, node: Node, inputs: Sequence[str], power: int, last: bool, **attributes: Any
    ) -> None:
        out = node.outputs[0]
        self._exponents[out] = power
        given = [self.source(name, last) for name in inputs]
        self._node(op, node.name, given, self.result(out, last), attributes)

    def _convolution(self, node: Node) -> None:
        spec, (x, w, b) = node.spec, (str(n) for n in node.inputs)
        assert isinstance(spec, Conv2d)
        layer, rule = self._layers.get(node.outputs[0]), spec.arith
        if layer is None or not isinstance(rule, EspProducts):
            raise self._refused(node)
        powers, inner = layer.data["exponents"]
        weights, bias = self.graph.consts[w], self.graph.consts[b]
        if spec.group > 1 and weights.shape[1] != 1:
            raise UnsupportedOpError(
                f"ESP-DL has no convolution in {spec.group} groups of {weights.shape[1]} channels."
            )
        up = GRAIN if len(powers) > 1 and len(set(powers)) > 1 else 0
        name = node.name
        order = ORDER[self.bits]
        self.initializers[f"{name}.weight"] = stored_filter(
            f"{name}.weight", weights, powers, order, spec.group > 1
        )
        self._constant(f"{name}.bias", bias >> up, *(e + up for e in inner))
        low, high = rule.limits
        attributes: dict[str, Any] = {"activation": "Relu" if low == 0 else "Linear"}
        flat = self._rows_of(x) if spec.window.kernel == (1, 1) else None
        out, y = node.outputs[0], exponent(layer.grid)  # type: ignore[arg-type]
        self._exponents[out] = y
        given = self.source(x, True) if flat is None else self.source(flat, False)
        last = flat is None
        made = self.result(out, last)
        if flat is not None:
            self.values[made] = EspValue(
                made, str(weights.dtype), self.graph.types[out].shape[:2], (y,)
            )
            self._same[f"{out} as rows"] = out
            op, more = "Gemm", {"alpha": 1.0, "beta": 1.0, "transB": 0}
        else:
            op, more = "Conv", {"group": spec.group, **_window(spec.window)}
        clipped = high < 2 ** (self.bits - 1) - 1
        first = f"{made}.sums" if clipped else made
        parts = [given, f"{name}.weight", f"{name}.bias"]
        self._node(op, name, parts, first, attributes | more)
        if clipped:
            self.values[first] = EspValue(first, str(weights.dtype), self.values[made].dims, (y,))
            self._clip(f"{name}.clip", first, made, low, high, y)

    def _rows_of(self, x: str) -> str | None:
        """Return the rows (n, c) that an image of single points is made of."""
        node = self._producers.get(x)
        if node is None or not isinstance(node.spec, Reshape):
            return None
        source = str(node.inputs[0])
        return source if self.graph.types[source].shape == self.graph.types[x].shape[:2] else None

    def _clip(self, name: str, given: str, made: str, low: int, high: int, power: int) -> None:
        ends = [
            self._constant(f"{name}.{what}", np.array(np.ldexp(np.float32(v), power), np.float32))
            for what, v in (("low", low), ("high", high))
        ]
        self._node("Clip", name, [given, *ends], made, {})

    def _pool(self, node: Node) -> None:
        spec, x = node.spec, self.value_of(str(node.inputs[0]))
        assert isinstance(spec, Pool)
        more = {"kernel_shape": list(spec.window.kernel), **_window(spec.window)}
        if spec.mode == "max":
            self._emit("MaxPool", node, [x], self._exponents[x], True, **more)
        elif isinstance(spec.rule, EspAverage):
            power = self._exponents[x] + spec.rule.shift
            self._emit("AveragePool", node, [x], power, True, **more, count_include_pad=0)
        else:
            raise self._refused(node)

    def _map(self, node: Node) -> None:
        function, inputs = node.spec.function, [str(n) for n in node.inputs]  # type: ignore[attr-defined]
        if isinstance(function, EspQuantise):
            self._quantise(node, function, inputs[0])
            return
        x, last = self.value_of(inputs[0]), self._images(*inputs)
        given = self._exponents[x]
        if isinstance(function, EspRequantise):
            self._emit("RequantizeLinear", node, [x], given + function.shift, last)
        elif isinstance(function, EspSum):
            power = given - function.left[0] + function.shift
            self._emit("Sub" if function.minus else "Add", node, inputs, power, last)
        elif isinstance(function, EspProduct):
            power = sum(self._exponents[self.value_of(n)] for n in inputs) + function.shift
            self._emit("Mul", node, inputs, power, last)
        elif isinstance(function, Clip):
            self._exponents[node.outputs[0]] = given
            made = self.source(x, last), self.result(node.outputs[0], last)
            if (function.low, function.high) == (0, 2 ** (self.bits - 1) - 1):
                self._node("Relu", node.name, made[:1], made[1], {})
            else:
                self._clip(node.name, *made, function.low, function.high, given)
        elif isinstance(function, (ByteTable, EspTable)):
            self._table(node, function, x, last)
        else:
            raise self._refused(node)

    def _table(self, node: Node, function: ByteTable | EspTable, x: str, last: bool) -> None:
        entries = np.array(function.entries, f"int{self.bits}")
        if isinstance(function, ByteTable):
            ordered = np.empty_like(entries)
            ordered[every_byte(I8).astype(np.int64) + 128] = entries
            entries = ordered
        power = 1 - self.bits  # of sigmoid and tanh
        name = self._constant(f"{node.name}.table", entries, power)
        op = {"sigmoid": "Sigmoid", "tanh": "Tanh"}[self._ops[node.outputs[0]]]
        self._emit(op, node, [x], power, last, lut=name)

    def _quantise(self, node: Node, function: EspQuantise, x: str) -> None:
        """Note that integers are an input or a constant, or add the conversion of real numbers."""
        out, power = node.outputs[0], function.exponent
        self._exponents[out] = power
        if x in self.graph.inputs and x not in self.inputs.values():
            self.inputs[out] = x
            self.result(out, self._images(out))
        elif x in self.graph.consts:
            made = self.result(out, False)
            self._constant(made, function.reference(self.graph.consts[x]), power)
            del self.values[made]
        else:
            last = (x, True) in self._names
            self._node(
                "QuantizeLinear", node.name, [self.source(x, last)], self.result(out, last), {}
            )

    def _softmax(self, node: Node) -> None:
        x, spec = str(node.inputs[0]), node.spec
        assert isinstance(spec, Softmax)
        last = self._images(x) and (self.value_of(x), True) in self._names
        axis = LAST.index(spec.axes[0]) if last else spec.axes[0]
        made = self.result(node.outputs[0], last)
        self._node("Softmax", node.name, [self.source(x, last)], made, {"axis": axis})

    def _concat(self, node: Node) -> None:
        inputs, spec = [str(n) for n in node.inputs], node.spec
        assert isinstance(spec, Concat)
        last = self._images(*inputs)
        axis = LAST.index(spec.axis) if last else spec.axis
        self._copy_exponent(node)
        given = [self.source(name, last) for name in inputs]
        self._node("Concat", node.name, given, self.result(node.outputs[0], last), {"axis": axis})

    def _copy_exponent(self, node: Node) -> None:
        power = self._exponents.get(self.value_of(str(node.inputs[0])))
        if power is not None:
            self._exponents[node.outputs[0]] = power

    def _view(self, node: Node) -> None:
        """Add a view, in its own order of axes; between rows and single points there is none."""
        x, out, spec = str(node.inputs[0]), node.outputs[0], node.spec
        shapes = self.graph.types[x].shape, self.graph.types[out].shape
        self._copy_exponent(node)
        if isinstance(spec, Reshape) and self._rows_of(out) == x and self._only_products(out):
            return
        rows = f"{self.value_of(x)} as rows" in self._same
        if rows and shapes[1] == shapes[0][:2]:
            self._same[out] = x
            return
        given = self.source(x, False)
        made = self.result(out, False)
        if isinstance(spec, Transpose):
            self._node("Transpose", node.name, [given], made, {"perm": list(spec.perm)})
        elif isinstance(spec, Slice):
            ends = [
                s + k * n for s, k, n in zip(spec.starts, spec.steps, spec.extents, strict=True)
            ]
            ends = [e if e >= 0 else -(2**31) for e in ends]
            lists = (spec.starts, ends, range(len(ends)), spec.steps)
            names = [
                self._constant(f"{node.name}.{k}", np.array(list(v), np.int64))
                for k, v in enumerate(lists)
            ]
            self._node("Slice", node.name, [given, *names], made, {})
        elif isinstance(spec, Copy):
            self._node("Identity", node.name, [given], made, {})
        else:
            shape = self._constant(f"{node.name}.shape", np.array(shapes[1], np.int64))
            self._node("Reshape", node.name, [given, shape], made, {})

    def _only_products(self, value: str) -> bool:
        return all(isinstance(n.spec, Conv2d) for n in self.graph.consumers()[value])


def _window(window: Window) -> dict[str, Any]:
    """Return the attributes of a window."""
    lists = {"strides": window.strides, "dilations": window.dilations}
    pads = {"pads": [*window.before, *window.after], "ceil_mode": int(window.ceil)}
    return {name: list(v) for name, v in lists.items()} | pads


def write_model(network: Any, folder: Path, title: str) -> Path:
    """Write a simulation of ESP-DL into a folder; return the file. Raises UnsupportedOpError."""
    graph, target = network.graph, network.chosen
    writer = ModelWriter(graph, network.layers, target.bits)
    for node in graph.nodes:
        writer.add(node)
    golden = _golden(network, writer)
    ports: list[dict[str, str]] = [{}, {}]
    for value, public in writer.inputs.items():
        ports[0][public] = writer.source(value, graph.types[value].rank == 4)
    for public, value in graph.outputs.items():
        given = writer.source(value, graph.types[writer.value_of(value)].rank == 4)
        ports[1][public] = given
    chip = "esp32p4" if target.rounding == HALF_EVEN else "esp32s3"
    model = _model(writer, ports, golden, title, chip)
    path = folder / f"{title}_{chip.removeprefix('esp32')}.espdl"
    write(model, path)
    return path


def _golden(network: Any, writer: ModelWriter) -> dict[str, Array]:
    """Return the integers (and real outputs) of the sample that a network keeps, by value."""
    from clnn.bridges.simulate import watched
    from clnn.compile import compile_fixed

    outputs = [writer.value_of(v) for v in network.graph.outputs.values()]
    wanted = [*writer.inputs, *outputs]
    with compile_fixed(watched(network.graph, wanted), *network.how) as session:
        return {name: session(network.sample)[name] for name in wanted}


def _model(
    writer: ModelWriter,
    ports: Sequence[dict[str, str]],
    golden: dict[str, Array],
    title: str,
    chip: str,
) -> EspModel:
    """Return the model, whose ports have their public names."""
    renamed = {made: public for side in ports for public, made in side.items()}
    extra = [
        EspNode(f"{public}.copy", "Identity", (renamed[made],), (public,), {})
        for side in ports
        for public, made in side.items()
        if renamed[made] != public
    ]

    def named(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(renamed.get(n, n) for n in names)

    nodes = [
        EspNode(n.name, n.op_type, named(n.inputs), named(n.outputs), n.attributes)
        for n in writer.nodes
    ]
    sides: list[tuple[EspValue, ...]] = []
    tests: list[dict[str, EspTensor]] = []
    back = {made: value for (value, _), made in writer._names.items()}
    for side in ports:
        values, tensors = [], {}
        for public, made in side.items():
            known = writer.values[made]
            values.append(EspValue(public, known.dtype, known.dims, known.exponents))
            array = golden[back[made]]
            array = array.transpose(LAST) if made.endswith(".last") else array
            flat = np.ascontiguousarray(array.reshape(known.dims)).reshape(-1)
            tensors[public] = EspTensor(public, known.dims, flat, known.exponents, "UNK")
        sides.append(tuple(values))
        tests.append(tensors)
    inner = {n: v for n, v in writer.values.items() if n not in renamed}
    return EspModel(
        "clnn",
        1,
        {"chip": chip},
        title,
        (*nodes, *extra),
        writer.initializers,
        sides[0],
        sides[1],
        inner,
        tests[0],
        tests[1],
    )
