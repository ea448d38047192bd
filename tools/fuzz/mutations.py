"""Mutations of ONNX models: of the fields of the parsed file, and of its bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

INTS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    16,
    127,
    255,
    2**16,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
]
FLOATS = [0.0, -1.0, 0.5, 1e38, 1e-45, float("inf"), float("nan")]
TEXTS = [
    "",
    "x",
    "y",
    "w",
    "\0",
    "../x",
    "/dev/zero",
    "\N{SNOWMAN}",
    "NOTSET",
    "SAME_UPPER",
    "VALID",
    "n" * 300,
]
OPS = [
    "Relu",
    "Conv",
    "If",
    "Loop",
    "Scan",
    "Concat",
    "Reshape",
    "ConstantOfShape",
    "Range",
    "Tile",
    "Attention",
    "LSTM",
    "Gather",
    "GatherND",
    "ScatterND",
    "Slice",
    "Pad",
    "Resize",
    "Expand",
    "OneHot",
    "TopK",
    "Split",
    "Transpose",
    "Einsum",
    "MatMul",
    "Gemm",
    "AveragePool",
    "MaxPool",
    "ConvTranspose",
    "CumSum",
    "NonZero",
    "Unique",
    "Cast",
    "QuantizeLinear",
    "DequantizeLinear",
    "LayerNormalization",
    "Softmax",
    "ReduceSum",
    "SequenceConstruct",
    "SequenceAt",
    "DepthToSpace",
    "RoiAlign",
    "NonMaxSuppression",
    "Where",
    "Constant",
]
LOCATIONS = [
    "../secret.bin",
    "sub/../../secret.bin",
    "/etc/passwd",
    "link.bin",
    "links/secret.bin",
    "pipe",
    "sub",
    "/dev/zero",
    "w.bin",
    "./w.bin",
    "sub//w.bin",
    "w.bin\0",
    "..",
    "",
    "net.onnx",
    "\\\\host\\w.bin",
    "~/w.bin",
    "file:w.bin",
    "C:w.bin",
    "sub/deep/../../../secret.bin",
    "hard.bin",
    "w" * 5000,
]
NUMBERS = [
    "0",
    "-1",
    "4",
    "48",
    "49",
    "4096",
    str(2**31),
    str(2**63 - 1),
    str(2**64),
    str(2**64 - 40),
    "1e3",
    "0x10",
    " 4",
    "",
    "\N{SUPERSCRIPT TWO}",
    "9" * 400,
]
MOST_BYTES = 2**17


class Mutator:
    """Makes one hostile model of a sound one, from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)

    def up_to(self, most: int, least: int = 0) -> int:
        return int(self.chance.integers(least, most + 1))

    def one_of(self, choices: Any) -> Any:
        return choices[int(self.chance.integers(len(choices)))]

    def mutated(self, seeds: list[onnx.ModelProto]) -> bytes:
        """Return the file of a seed with some fields, or bytes, changed."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.one_of(seeds))
        how = self.chance.random()
        if how < 0.75:
            for _ in range(self.one_of((1, 1, 1, 2, 2, 4))):
                self.one_of(CHANGES)(self, proto, seeds)
        data = proto.SerializeToString()
        return self._bytes(bytearray(data)) if how > 0.7 else data

    def _bytes(self, data: bytearray) -> bytes:
        for _ in range(self.up_to(6, 1)):
            at, size = self.up_to(max(len(data) - 1, 0)), self.up_to(40, 1)
            how = self.up_to(5)
            if not data or how == 0:
                data[at:at] = self.chance.bytes(self.up_to(12, 1))
            elif how == 1:
                data[at] = self.up_to(255)
            elif how == 2:
                data[at] ^= 1 << self.up_to(7)
            elif how == 3:
                del data[at : at + size]
            elif how == 4:
                start = self.up_to(len(data) - 1)
                data[at:at] = data[start : start + size]
            else:
                del data[at:]
        return bytes(data)

    def hostile(self, field: Any) -> Any:
        """Return a value that a field of this kind may hold, and hardly should."""
        kind = field.cpp_type
        if kind in (field.CPPTYPE_INT32, field.CPPTYPE_ENUM):
            return self.one_of([n for n in INTS if -(2**31) <= n < 2**31])
        if kind == field.CPPTYPE_INT64:
            return self.one_of(INTS)
        if kind == field.CPPTYPE_UINT64:
            return abs(self.one_of(INTS))
        if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
            return self.one_of(FLOATS)
        text = self.one_of(TEXTS)
        return text.encode() if field.type == field.TYPE_BYTES else text


def graphs(proto: onnx.ModelProto) -> list[onnx.GraphProto]:
    """Return the graph of a model and those inside of it, not too many."""
    found = [proto.graph]
    for graph in found:
        found += [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
        if len(found) > 30:
            break
    return found


def _any_field(m: Mutator, proto: onnx.ModelProto, seeds: list[onnx.ModelProto]) -> None:
    """Walk down to some message and change a field of it."""
    message: Any = proto
    while True:
        inner = [(f, v) for f, v in message.ListFields() if f.message_type is not None]
        if not inner or m.chance.random() < 0.15:
            break
        field, content = m.one_of(inner)
        repeated = hasattr(content, "add")
        message = m.one_of(content) if repeated else content
    field = m.one_of(list(message.DESCRIPTOR.fields))
    content = getattr(message, field.name)
    repeated = hasattr(content, "append") or hasattr(content, "add")
    if m.chance.random() < 0.15:
        message.ClearField(field.name)
    elif field.message_type is not None:
        if repeated and len(content):
            at = m.up_to(len(content) - 1)
            if m.chance.random() < 0.5:
                content.add().CopyFrom(content[at])
            else:
                del content[at]
    elif repeated:
        if len(content) and m.chance.random() < 0.6:
            at = m.up_to(len(content) - 1)
            content[at] = m.hostile(field)
        else:
            content.append(m.hostile(field))
    else:
        try:
            setattr(message, field.name, m.hostile(field))
        except ValueError:  # an enumeration without that number
            return


def _node(m: Mutator, proto: onnx.ModelProto) -> onnx.NodeProto | None:
    nodes = m.one_of(graphs(proto)).node
    return m.one_of(nodes) if nodes else None


def _names(m: Mutator, proto: onnx.ModelProto, seeds: list[onnx.ModelProto]) -> None:
    """Let a node read or make another value: cycles, gaps, values made twice."""
    graph = m.one_of(graphs(proto))
    names = [n for node in graph.node for n in (*node.input, *node.output)]
    names += [v.name for v in (*graph.input, *graph.output, *graph.initializer)] + ["", "nowhere"]
    rows = [r for node in graph.node for r in (node.input, node.output) if len(r)]
    if not rows or m.chance.random() < 0.2:
        values = [*graph.input, *graph.output, *graph.initializer]
        if values:
            m.one_of(values).name = m.one_of(names)
        return
    row = m.one_of(rows)
    row[m.up_to(len(row) - 1)] = m.one_of(names)


def _order(m: Mutator, proto: onnx.ModelProto, seeds: list[onnx.ModelProto]) -> None:
    """Repeat, drop or move a node, or take one of another model."""
    nodes = m.one_of(graphs(proto)).node
    if not nodes:
        return
    at, how = m.up_to(len(nodes) - 1), m.up_to(3)
    if how == 0:
        nodes.add().CopyFrom(nodes[at])
    elif how == 1:
        del nodes[at]
    elif how == 2:
        kept = onnx.NodeProto()
        kept.CopyFrom(nodes[at])
        del nodes[at]
        nodes.add().CopyFrom(kept)
    else:
        other = m.one_of(seeds).graph.node
        if other:
            taken = nodes.add()
            taken.CopyFrom(m.one_of(other))
            for row in (taken.input, nodes[at].input):
                if len(row) and len(nodes[at].output):
                    row[0] = nodes[at].output[0] if row is taken.input else row[0]


def _operator(m: Mutator, proto: onnx.ModelProto, seeds: list[onnx.ModelProto]) -> None:
    node = _node(m, proto)
    if node is None:
        return
    how = m.up_to(4)
    if how == 0:
        node.op_type = m.one_of(OPS)
    elif how == 1:
        node.domain = m.one_of(["", "ai.onnx", "own", "com.microsoft", "ai.onnx.ml"])
    elif how == 2:
        node.input.append(m.one_of(["", "x", *node.input]))
    elif how == 3 and len(node.input):
        del node.input[m.up_to(len(node.input) - 1)]
    else:
        node.output.append(f"more{m.up_to(3)}")


def _attribute(m: Mutator, proto: onnx.ModelProto, seeds: list[onnx.ModelProto]) -> None:
    """Set, lengthen or retype an attribute, or give a node one of another model's."""
    node = _node(m, proto)
    if node is None:
        return
    others = [a for n in m.one_of(seeds).graph.node for a in n.attribute]
    if others and (not node.attribute or m.chance.random() < 0.3):
        node.attribute.add().CopyFrom(m.one_of(others))
        return
    if not node.attribute:
        return
    attribute: AttributeProto = m.one_of(node.attribute)
    how = m.up_to(4)
    if how == 0:
        attribute.type = m.one_of([1, 2, 3, 4, 5, 6, 7, 8, 11, 13])
    elif how == 1:
        attribute.i = m.one_of(INTS)
    elif how == 2:
        if len(attribute.ints) and m.chance.random() < 0.7:
            attribute.ints[m.up_to(len(attribute.ints) - 1)] = m.one_of(INTS)
        else:
            attribute.ints.extend(m.one_of(INTS) for _ in range(m.up_to(5, 1)))
    elif how == 3:
        attribute.f = m.one_of(FLOATS)
    else:
        attribute.s = m.one_of(TEXTS).encode()


def _shape(m: Mutator, proto: onnx.ModelProto, seeds: list[onnx.ModelProto]) -> None:
    """Change a declared shape or element type of an input, output or constant."""
    graph = m.one_of(graphs(proto))
    if graph.initializer and m.chance.random() < 0.5:
        _tensor(m, m.one_of(graph.initializer))
        return
    values = [*graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    kind = m.one_of(values).type
    how = m.up_to(5)
    dims = kind.tensor_type.shape.dim
    if how == 0:
        kind.tensor_type.elem_type = m.up_to(25)
    elif how == 1:
        kind.Clear()
    elif how == 2 or not len(dims):
        dims.add(dim_value=m.one_of(INTS))
    elif how == 3:
        del dims[m.up_to(len(dims) - 1)]
    elif how == 4:
        m.one_of(dims).dim_param = m.one_of(["n", "", "d1", "m" * 500])
    else:
        m.one_of(dims).dim_value = m.one_of(INTS)


def _tensor(m: Mutator, tensor: TensorProto) -> None:
    how = m.up_to(6)
    if how == 0:
        tensor.data_type = m.up_to(26)
    elif how == 1 and len(tensor.dims):
        tensor.dims[m.up_to(len(tensor.dims) - 1)] = m.one_of(INTS)
    elif how == 2:
        tensor.dims.append(m.one_of(INTS))
    elif how == 3:
        tensor.raw_data = tensor.raw_data[: m.up_to(len(tensor.raw_data))] + bytes(m.up_to(9))
    elif how == 4:
        tensor.raw_data = m.chance.bytes(len(tensor.raw_data))
    elif how == 5:
        tensor.int64_data.append(m.one_of(INTS))
    else:
        _place(m, tensor)


def _place(m: Mutator, tensor: TensorProto) -> None:
    """Let a tensor's data lie in a file, most often where it must not be read."""
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("external_data")
    tensor.ClearField("raw_data")
    for key, texts in (("location", LOCATIONS), ("offset", NUMBERS), ("length", NUMBERS)):
        if m.chance.random() < 0.8:
            tensor.external_data.add(key=key, value=m.one_of(texts))
    if m.chance.random() < 0.1:
        tensor.external_data.add(
            key=m.one_of(["location", "__class__", "basepath"]), value=m.one_of(LOCATIONS)
        )


def _places(m: Mutator, proto: onnx.ModelProto, seeds: list[onnx.ModelProto]) -> None:
    tensors = [t for graph in graphs(proto) for t in graph.initializer]
    tensors += [
        a.t for graph in graphs(proto) for n in graph.node for a in n.attribute if a.HasField("t")
    ]
    if tensors:
        _place(m, m.one_of(tensors))


def _nested(m: Mutator, proto: onnx.ModelProto, seeds: list[onnx.ModelProto]) -> None:
    """Put the graph into branches, or a function into itself."""
    if proto.functions and m.chance.random() < 0.5:
        function = m.one_of(proto.functions)
        call = function.node.add(op_type=function.name, domain=function.domain)
        call.input.extend(function.input)
        call.output.extend(["again"] if m.chance.random() < 0.5 else function.output)
        return
    for _ in range(m.one_of([1, 2, 20])):
        inner = onnx.GraphProto()
        inner.CopyFrom(proto.graph)
        if inner.ByteSize() > MOST_BYTES:
            return
        del inner.input[:]
        names = [v.name for v in inner.output]
        del proto.graph.node[:]
        truth = "c" if m.chance.random() < 0.5 else "c_"
        node = proto.graph.node.add(op_type="If", input=[truth], output=names)
        for name in ("then_branch", "else_branch"):
            node.attribute.add(name=name, type=AttributeProto.GRAPH).g.CopyFrom(inner)
        if truth == "c_":
            del proto.graph.initializer[:]
            proto.graph.initializer.add(name="c_", data_type=TensorProto.BOOL, raw_data=b"\1")


def _versions(m: Mutator, proto: onnx.ModelProto, seeds: list[onnx.ModelProto]) -> None:
    if len(proto.opset_import) and m.chance.random() < 0.8:
        m.one_of(proto.opset_import).version = m.one_of([*range(30), *INTS])
    else:
        proto.ir_version = m.one_of([*range(15), *INTS])


Change = Callable[[Mutator, onnx.ModelProto, list[onnx.ModelProto]], None]
CHANGES: tuple[Change, ...] = (
    *(_any_field, _any_field, _any_field, _names, _order, _operator, _attribute, _attribute),
    *(_shape, _shape, _places, _nested, _versions),
)
