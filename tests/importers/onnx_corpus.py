"""Models that do harm to importers that trust them, one per kind of harm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto
from onnx import helper as make
from onnx_models import FLOAT, INT64, conv, ints, model, relu, tensor, value

from clnn.errors import ClnnError, HostMemoryError, ModelError, ShapeError, UnsupportedOpError

Build = Callable[[], onnx.ModelProto]
Kinds = type[ClnnError] | tuple[type[ClnnError], ...]
CORPUS: dict[str, tuple[Build, Kinds, str]] = {}


def case(name: str, words: str, kind: Kinds = ModelError) -> Callable[[Build], Build]:
    """Register a model that must be refused with `kind`, in a message with `words`."""

    def register(build: Build) -> Build:
        assert name not in CORPUS
        CORPUS[name] = (build, kind, words)
        return build

    return register


def weights(dims, raw=b"", kind=FLOAT, **fields) -> onnx.ModelProto:
    """y = x + w, with a weight tensor put together by hand."""
    proto = TensorProto(name="w", data_type=kind, dims=dims, **fields)
    if raw is not None:
        proto.raw_data = raw
    return model(
        [make.make_node("Add", ["x", "w"], ["y"], name="add")],
        [value("x", (2, 2))],
        initializers=[proto],
    )


def one(op: str, *inputs: str, outputs=("y",), constants=(), dims=(1, 3, 8, 8), **attrs):
    """One node that reads x and constants."""
    node = make.make_node(op, ["x", *inputs], list(outputs), name="node", **attrs)
    return model([node], [value("x", dims)], outputs[:1], list(constants))


# Shapes and data of tensors that do not agree: reads and writes out of bounds in other importers.

for _name, _dims, _raw, _words in (
    ("raw data longer than the shape", (2, 2), bytes(64), "holds 64 bytes; shape [2, 2]"),
    ("raw data shorter than the shape", (2, 2), bytes(4), "holds 4 bytes; shape [2, 2]"),
    ("raw data missing", (2, 2), b"", "holds 0 bytes; shape [2, 2]"),
    ("raw data of half an element", (1,), bytes(3), "holds 3 bytes"),
    ("product of dims wraps to zero", (2**31 - 1,) * 4, b"", "wants"),
    ("product of dims wraps to one", (2**22, 2**21, 2**21), bytes(4), "wants"),
    ("dim of 2**31", (2**31,), b"", "extent 2147483648 is not from 0"),
    ("dim of 2**63 - 1", (2**63 - 1,), b"", "extent 9223372036854775807 is not from 0"),
    ("negative dim", (-1,), b"", "extent -1 is not from 0"),
    ("most negative dim", (-(2**63), 2), b"", "is not from 0"),
    ("two negative dims", (-2, -2), bytes(16), "extent -2"),
    ("zero times a huge dim", (0, 2**31), b"", "extent 2147483648"),
    ("one hundred axes", (1,) * 100, bytes(4), "has 100 axes"),
    ("terabytes of weights", (2**31 - 1, 1024), b"", "wants"),
):
    case(_name, _words)(lambda d=_dims, r=_raw: weights(d, r))

case("floats fewer than the shape", "holds 3 numbers; shape [2, 2]")(
    lambda: weights((2, 2), None, float_data=[1, 2, 3])
)
case("floats in the field of integers", "holds 0 numbers")(
    lambda: weights((2, 2), None, int32_data=[1, 2, 3, 4])
)
case("element type that is none", "element type 999")(lambda: weights((2, 2), bytes(16), 999))
case("element type undefined", "element type 0")(lambda: weights((2, 2), bytes(16), 0))
case("strings as raw bytes", "holds 16 bytes")(
    lambda: weights((2, 2), bytes(16), TensorProto.STRING)
)
case("packed nibbles too short", "holds 1 bytes; shape [2, 2]")(
    lambda: weights((2, 2), bytes(1), TensorProto.INT4)
)


@case("segments", "stored in segments")
def _segments():
    proto = weights((2, 2), bytes(16))
    proto.graph.initializer[0].segment.begin = 0
    return proto


def sparse(places, dims=(2, 2), count=1):
    proto = model([make.make_node("Add", ["x", "s"], ["y"])], [value("x", (2, 2))])
    data = tensor("s", np.ones(count, np.float32))
    proto.graph.sparse_initializer.add(values=data, indices=tensor("", places), dims=dims)
    return proto


for _name, _places, _options, _words in (
    ("sparse index beyond the end", [4], {}, "indices that do not fit shape [2, 2]"),
    ("sparse index below zero", [-1], {}, "indices that do not fit"),
    ("sparse pair beyond the end", [[0, 2]], {}, "indices that do not fit"),
    ("sparse triple", [[0, 0, 0]], {}, "indices that do not fit"),
    ("sparse with too few indices", [0], {"count": 2}, "indices that do not fit"),
    ("sparse of huge shape", [0], {"dims": (2**31 - 1, 2**20)}, "wants"),
):
    case(_name, _words)(lambda p=_places, o=_options: sparse(np.array(p, np.int64), **o))
case("sparse indices that are floats", "do not fit")(lambda: sparse(np.array([0], np.float32)))

# Window attributes: division by zero, loops without end, wrapped products.

for _name, _attrs, _words in (
    ("stride 0", {"strides": [0, 1]}, "strides are [0, 1]"),
    ("negative stride", {"strides": [-1, 1]}, "strides are [-1, 1]"),
    ("stride of 2**62", {"strides": [2**62, 1]}, "each must be from 1 to 2147483647"),
    ("dilation 0", {"dilations": [1, 0]}, "dilations are [1, 0]"),
    ("negative pad", {"pads": [0, 0, -1, 0]}, "pads are [0, 0, -1, 0]"),
    ("kernel of 0", {"kernel_shape": [0, 3]}, "kernel_shape are [0, 3]"),
    ("group 0", {"group": 0}, "group is 0"),
    ("negative group", {"group": -3}, "group is -3"),
    ("one stride for two axes", {"strides": [1], "kernel_shape": [3, 3]}, "strides has 1 numbers"),
    ("three pads", {"pads": [1, 1, 1], "strides": [1, 1]}, "pads has 3 numbers"),
    ("window of 40 axes", {"strides": [1] * 40}, "does not fit a window of 40 axes"),
):
    case(_name, _words)(lambda a=_attrs: conv(**a))

ANY = (ModelError, ShapeError, UnsupportedOpError)
case("kernel that the weights do not have", "", ANY)(lambda: conv(kernel_shape=[5, 5]))
case("group that does not divide", "", ANY)(lambda: conv(group=2))
case("pads that make 2**32 rows", "kernels index with 32 bits", ShapeError)(
    lambda: conv(pads=[2**31 - 1, 0, 2**31 - 1, 0])
)
case("dilation that makes a border of gigabytes", "", ANY)(
    lambda: conv(dilations=[2**28, 1], pads=[2**28, 1, 2**28, 1])
)


@case("weights of higher rank than the input", "", ANY)
def _weights_of_higher_rank():
    node = make.make_node("Conv", ["x", "w"], ["y"], name="conv")
    return model(
        [node],
        [value("x", (1, 3, 8))],
        initializers=[tensor("w", np.ones((4, 3, 3, 3, 3), np.float32))],
    )


@case("input of lower rank than the weights", "", ANY)
def _input_of_lower_rank():
    node = make.make_node("Conv", ["x", "w"], ["y"], name="conv")
    return model(
        [node], [value("x", (8,))], initializers=[tensor("w", np.ones((4, 3, 3, 3), np.float32))]
    )


@case("bias shorter than the filters", "", ANY)
def _short_bias():
    proto = conv()
    proto.graph.node[0].input.append("b")
    proto.graph.initializer.append(tensor("b", np.ones(2, np.float32)))
    return proto


# Other attributes

case("blocks of 0", "blocksize is 0")(lambda: one("DepthToSpace", blocksize=0))
case("outputs by the billion", "num_outputs is 1000000000")(lambda: one("Split", num_outputs=10**9))
case("axis beyond the rank", "", ANY)(lambda: one("Concat", axis=7))
case("permutation that repeats", "", ANY)(lambda: one("Transpose", perm=[0, 0, 1, 2]))
case("permutation of another rank", "", ANY)(lambda: one("Transpose", perm=[0, 1]))
case("attribute of another type", "Mismatched attribute type")(lambda: one("Transpose", perm=2.5))
case("attribute that is missing", "Required attribute 'axis' is missing")(lambda: one("Concat"))
case("attribute that the op does not have", "Unrecognized attribute: nope")(
    lambda: one("Relu", nope=1)
)
case("too many inputs", "has input size 2 not in range")(lambda: one("Relu", "x"))


@case("attribute given twice", "an attribute is given twice")
def _attribute_twice():
    proto = conv(strides=[1, 1])
    proto.graph.node[0].attribute.append(make.make_attribute("strides", [0, 0]))
    return proto


@case("attribute without a type", "")
def _attribute_without_type():
    proto = one("Transpose", perm=[0, 1, 2, 3])
    proto.graph.node[0].attribute[0].type = 0
    return proto


@case("attribute whose type lies", "", ANY)
def _attribute_type_lies():
    proto = conv(strides=[1, 1])
    proto.graph.node[0].attribute[0].type = onnx.AttributeProto.TENSOR
    return proto


# Small files that ask for much memory or time.

HUGE = ints("s", 2**31 - 1, 2**31 - 1)
case("constant of huge shape", "", ANY)(
    lambda: model([make.make_node("ConstantOfShape", ["s"], ["y"])], initializers=[HUGE])
)
case("constant of negative shape", "", ANY)(
    lambda: model(
        [make.make_node("ConstantOfShape", ["s"], ["y"])], initializers=[ints("s", -1, 4)]
    )
)
case("expansion to terabytes", "", ANY)(
    lambda: model(
        [make.make_node("Expand", ["c", "s"], ["y"])],
        initializers=[tensor("c", np.float32(1)), HUGE],
    )
)
case("expansion of an input", "kernels index with 32 bits", ShapeError)(
    lambda: one("Expand", "s", constants=[ints("s", 2**20, 3, 2**20, 8)], dims=(1, 3, 1, 8))
)
case("repetition without end", "", ANY)(
    lambda: model(
        [make.make_node("Tile", ["c", "s"], ["y"])],
        initializers=[tensor("c", np.ones((2, 2), np.float32)), HUGE],
    )
)
case("range without end", "", ANY)(
    lambda: model(
        [make.make_node("Range", ["a", "b", "c"], ["y"])],
        initializers=[
            tensor("a", np.int64(0)),
            tensor("b", np.int64(2**62)),
            tensor("c", np.int64(1)),
        ],
    )
)
case("range with step 0", "", ANY)(
    lambda: model(
        [make.make_node("Range", ["a", "b", "c"], ["y"])],
        initializers=[
            tensor("a", np.float32(0)),
            tensor("b", np.float32(1)),
            tensor("c", np.float32(0)),
        ],
    )
)
case("range to not a number", "", ANY)(
    lambda: model(
        [make.make_node("Range", ["a", "b", "c"], ["y"])],
        initializers=[
            tensor("a", np.float32(0)),
            tensor("b", np.float32("nan")),
            tensor("c", np.float32(1)),
        ],
    )
)
case("padding by gigabytes", "", ANY)(
    lambda: one("Pad", "p", constants=[ints("p", 0, 0, 2**40, 0, 0, 0, 2**40, 0)])
)
case("padding of a constant by gigabytes", "", ANY)(
    lambda: model(
        [make.make_node("Pad", ["c", "p"], ["y"])],
        initializers=[tensor("c", np.ones(3, np.float32)), ints("p", 2**40, 2**40)],
    )
)
case("one-hot of huge depth", "wants a table of", HostMemoryError)(
    lambda: model(
        [make.make_node("OneHot", ["i", "d", "v"], ["y"])],
        initializers=[ints("i", 1), tensor("d", np.int64(2**45)), tensor("v", np.ones(2))],
    )
)
case("gather that multiplies", "", ANY)(
    lambda: model(
        [make.make_node("Gather", ["c", "i"], ["g"]), make.make_node("Gather", ["g", "i"], ["y"])],
        initializers=[
            tensor("c", np.zeros((2, 4096), np.float32)),
            tensor("i", np.zeros((2048, 2048), np.int64)),
        ],
    )
)
case("outer product of constants", "", ANY)(
    lambda: model(
        [make.make_node("MatMul", ["a", "b"], ["y"])],
        initializers=[
            tensor("a", np.ones((2**18, 1), np.float32)),
            tensor("b", np.ones((1, 2**18), np.float32)),
        ],
    )
)
case("broadcast of constants", "", ANY)(
    lambda: model(
        [make.make_node("Add", ["a", "b"], ["y"])],
        initializers=[
            tensor("a", np.ones((2**18, 1), np.float32)),
            tensor("b", np.ones((1, 2**18), np.float32)),
        ],
    )
)
case("reshape to gigabytes", "", ANY)(
    lambda: one("Reshape", "s", constants=[ints("s", 2**31 - 1, 2**31 - 1)])
)
case("reshape with two open extents", "", ANY)(
    lambda: one("Reshape", "s", constants=[ints("s", -1, -1)])
)
case("reshape to a negative extent", "", ANY)(
    lambda: one("Reshape", "s", constants=[ints("s", -2, -96)])
)


@case("doubling without end", "", ANY)
def _doubling():
    """Sixty concatenations of a value with itself."""
    nodes = [make.make_node("Concat", [f"v{k}", f"v{k}"], [f"v{k + 1}"], axis=0) for k in range(60)]
    return model(nodes, [], ["v60"], [tensor("v0", np.ones(1024, np.float32))])


@case("doubling of an input without end", "kernels index with 32 bits", ShapeError)
def _doubling_input():
    nodes = [make.make_node("Concat", [f"v{k}", f"v{k}"], [f"v{k + 1}"], axis=0) for k in range(60)]
    return model(nodes, [value("v0", (1024,))], ["v60"])


# Structure

case("no such input", "reads 'ghost', which nothing makes")(
    lambda: model([make.make_node("Relu", ["ghost"], ["y"], name="node")], [value("x", (1,))])
)
case("no such output", "value 'y' is made by nothing")(
    lambda: model([make.make_node("Relu", ["x"], ["z"], name="node")], [value("x", (1,))])
)
case("node that reads itself", "wait for each other in a cycle")(
    lambda: model([make.make_node("Relu", ["y"], ["y"], name="node")], [value("x", (1,))])
)
case("cycle of three", "3 nodes wait for each other in a cycle: 'a', 'b', 'c'")(
    lambda: model(
        [
            make.make_node("Relu", ["w"], ["u"], name="a"),
            make.make_node("Relu", ["u"], ["v"], name="b"),
            make.make_node("Add", ["v", "x"], ["w"], name="c"),
        ],
        [value("x", (1,))],
        ["w"],
    )
)
case("value made twice", "value 'y' in graph 'graph' is made twice")(
    lambda: model(
        [make.make_node("Relu", ["x"], ["y"]), make.make_node("Neg", ["x"], ["y"])],
        [value("x", (1,))],
    )
)
case("input made again by a node", "value 'x' in graph 'graph' is made twice")(
    lambda: model([make.make_node("Relu", ["x"], ["x"])], [value("x", (1,))], ["x"])
)
case("weight made again by a node", "is made twice")(
    lambda: model([make.make_node("Relu", ["x"], ["w"])], [value("x", (1,))], ["w"], [ints("w", 1)])
)
case("two inputs of one name", "two inputs named 'x'")(
    lambda: model([make.make_node("Relu", ["x"], ["y"])], [value("x", (1,)), value("x", (2,))])
)
case("two weights of one name", "two initializers named 'w'")(
    lambda: model(
        [make.make_node("Relu", ["x"], ["y"])],
        [value("x", (1,))],
        initializers=[ints("w", 1), ints("w", 2)],
    )
)
case("two outputs of one name", "lists an output twice")(
    lambda: model([make.make_node("Relu", ["x"], ["y"])], [value("x", (1,))], ["y", "y"])
)
case("input without a name", "an input of the model has no name")(
    lambda: model([make.make_node("Relu", ["x"], ["y"])], [value("x", (1,)), value("", (1,))])
)
case("negative extent of an input", "leaves dimensions open", ShapeError)(lambda: relu((-3, 2)))
case("huge extent of an input", "kernels index with 32 bits", ShapeError)(
    lambda: relu((2**31 - 1, 2**31 - 1))
)
case("extent of 2**40", "extent 1099511627776 is not from 0")(lambda: relu((2**40,)))
case("two functions of one name", "defines a function twice")(
    lambda: model(
        [make.make_node("Relu", ["x"], ["y"])],
        [value("x", (1,))],
        functions=[make.make_function("own", "F", ["a"], ["b"], [], [make.make_opsetid("", 21)])]
        * 2,
    )
)


@case("graphs nested deep", "nested deeper than 16")
def _deep():
    inner = make.make_graph([make.make_node("Identity", ["c"], ["y"])], "g", [], [value("y", ())])
    for _ in range(20):
        node = make.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
        inner = make.make_graph([node], "g", [], [value("y", ())])
        inner.node[0].attribute[1].g.Clear()
        inner.node[0].attribute[1].g.node.add(op_type="Identity", input=["c"], output=["y"])
        inner.node[0].attribute[1].g.output.add(name="y")
    proto = model([], [value("c", (), TensorProto.BOOL)])
    proto.graph.node.extend(inner.node)
    return proto


@case("a hundred thousand nodes", "has 100001 nodes")
def _many_nodes():
    proto = model([], [value("x", (1,))], ["x"])
    proto.graph.node.extend([make.make_node("Relu", ["x"], [""])] * 100_001)
    return proto


@case("branches that share a name with the outside", "", ANY)
def _branch_names():
    """An If with a condition that is no boolean and branches that make no outputs."""
    empty = make.make_graph([], "g", [], [])
    node = make.make_node("If", ["i"], ["y"], name="if", then_branch=empty, else_branch=empty)
    return model([node], initializers=[ints("i", 1, 2)])


def raw(proto: onnx.ModelProto, old: bytes, new: bytes) -> onnx.ModelProto:
    """A model whose file has other bytes, which need not be text."""
    data = proto.SerializeToString()
    assert data.count(old) >= 1
    assert len(old) == len(new)
    return onnx.ModelProto.FromString(data.replace(old, new))


for _name, _build in (
    ("input", lambda: relu()),
    ("node", lambda: one("Relu", dims=(4,))),
):
    _what = {"input": b"x", "node": b"node"}[_name]
    case(f"{_name} whose name is no text", "is not UTF-8")(
        lambda b=_build, w=_what: raw(b(), w, b"\xff" * len(w))
    )
case("operator whose name is no text", "is not UTF-8")(lambda: raw(relu(), b"Relu", b"Re\xfe\xff"))


case("gather index beyond the end", "", ANY)(
    lambda: model(
        [make.make_node("Gather", ["c", "i"], ["y"])], initializers=[ints("c", 1, 2), ints("i", 5)]
    )
)
case("slice without starts", "", ANY)(lambda: one("Slice"))
case("split that does not add up", "", ANY)(
    lambda: one("Split", "s", outputs=("y", "z"), constants=[ints("s", 100, -97)], axis=1)
)
case("squeeze of an extent that is not 1", "", ANY)(
    lambda: one("Squeeze", "a", constants=[ints("a", 1)])
)
case("unsqueeze of one axis twice", "", ANY)(
    lambda: one("Unsqueeze", "a", constants=[ints("a", 0, 0)])
)
case("axes without number", "", ANY)(
    lambda: one("Unsqueeze", "a", constants=[ints("a", *range(4, 60))])
)
case("integers where floats belong", "", ANY)(
    lambda: model(
        [make.make_node("Conv", ["x", "w"], ["y"])],
        [value("x", (1, 3, 8, 8), INT64)],
        initializers=[tensor("w", np.ones((4, 3, 3, 3), np.int64))],
    )
)


for _op, _dims in (
    ("LayerNormalization", (9,)),
    ("LayerNormalization", (2, 1, 8)),
    ("RMSNormalization", (4,)),
):

    @case(f"{_op} with a scale of {_dims}", "does not broadcast to the result", ANY)
    def _scale_that_does_not_fit(op=_op, dims=_dims):
        node = make.make_node(op, ["x", "w"], ["y"], name="norm", axis=-1)
        scale = tensor("w", np.ones(dims, np.float32))
        return model([node], [value("x", (2, 8))], initializers=[scale], opset=23)


@case("attribute of a function that is not there", "refers to an attribute 'far'")
def _reference_outside_of_a_function():
    proto = conv(pads=[1, 1, 1, 1])
    proto.graph.node[0].attribute[0].ref_attr_name = "far"
    return proto


for _op, _flag, _more in (
    ("ReduceMax", "keepdims", {}),
    ("ArgMax", "select_last_index", {}),
    ("MaxPool", "ceil_mode", {"kernel_shape": [2, 2]}),
    ("AveragePool", "count_include_pad", {"kernel_shape": [2, 2]}),
):
    case(f"{_flag} that is neither 0 nor 1", f"{_flag} is 127, must be 0 or 1")(
        lambda op=_op, flag=_flag, more=_more: one(op, **more, **{flag: 127})
    )
