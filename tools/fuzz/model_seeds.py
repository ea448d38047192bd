"""Sound models from which hostile ones are made: hand-made, drawn, and the two of the demonstration."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import cases
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ZOO = Path(__file__).resolve().parents[1] / "examples" / "models"
DRAWN = 120
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, dims: object, kind: int = FLOAT) -> onnx.ValueInfoProto:
    """Return a tensor value's declaration; dims None: of any rank."""
    return helper.make_tensor_value_info(name, kind, dims)


def ints(name: str, *numbers: int) -> onnx.TensorProto:
    """Return a constant of int64."""
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: str = "y",
    consts: tuple[onnx.TensorProto, ...] = (),
    **more: object,
) -> onnx.ModelProto:
    """Return a model whose outputs, words of `outputs`, are of any shape."""
    graph = helper.make_graph(
        nodes, "g", inputs, [value(n, None) for n in outputs.split()], list(consts)
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


def _shapes() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=1),
        helper.make_node("Gather", ["s", "i"], ["g"]),
        helper.make_node("Unsqueeze", ["g", "ax"], ["u"]),
        helper.make_node("Concat", ["u", "r"], ["t"], axis=0),
        helper.make_node("ConstantOfShape", ["t2"], ["k"]),
        helper.make_node("Reshape", ["x", "t"], ["z"]),
        helper.make_node("Add", ["z", "k"], ["q"]),
        helper.make_node("Slice", ["q", "a", "b", "ax"], ["y"]),
    ]
    numbers = {"ax": [0], "r": [-1], "t2": [1, 16], "a": [0], "b": [2]}
    consts = [ints(name, *row) for name, row in numbers.items()]
    return model(
        nodes, [value("x", (1, 2, 4, 4))], "y", (*consts, numpy_helper.from_array(np.int64(0), "i"))
    )


def _choice() -> onnx.ModelProto:
    then, other = (
        helper.make_graph([helper.make_node(op, ["x"], ["o"])], op, [], [value("o", None)])
        for op in ("Relu", "Neg")
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    return model([node], [value("x", (2, 2)), value("c", (), BOOL)])


def _function() -> onnx.ModelProto:
    body = [helper.make_node("Neg", ["a"], ["n"]), helper.make_node("Mul", ["n", "a"], ["b"])]
    function = helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 21)])
    call = helper.make_node("F", ["x"], ["y"], domain="own")
    return model([call], [value("x", ("n", 3))], functions=[function])


def _external() -> onnx.ModelProto:
    """A model whose weights lie in the file `w.bin` beside it."""
    weights = TensorProto(
        name="w", data_type=FLOAT, dims=(3, 4), data_location=TensorProto.EXTERNAL
    )
    for key, text in (("location", "w.bin"), ("offset", "0"), ("length", "48")):
        weights.external_data.add(key=key, value=text)
    return model(
        [helper.make_node("Add", ["x", "w"], ["y"])], [value("x", (3, 4))], "y", (weights,)
    )


def _sparse() -> onnx.ModelProto:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", (3, 4))])
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    proto.graph.sparse_initializer.add(values=values, indices=ints("", 1, 7), dims=(3, 4))
    return proto


@cache
def seeds() -> list[onnx.ModelProto]:
    """Return sound models that together reach most of the importer."""
    zoo = [onnx.load(str(path)) for path in sorted(ZOO.glob("*.onnx"))]
    drawn = (cases.draw(seed) for seed in range(5_000_000, 5_000_000 + DRAWN))
    hand = [_shapes(), _choice(), _function(), _external(), _sparse()]
    return [*hand * 8, *zoo * 2, *(case.model for case in drawn if case.outputs)]
