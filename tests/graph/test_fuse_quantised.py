"""Real operators between dequantisation and quantisation: which are fused, and that integers are right."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from onnx import TensorProto, helper, numpy_helper
from reference_engines import exact_session

import clnn
from clnn.arith.quantised import Requantised, Written
from clnn.graph.passes import optimise
from clnn.graph.passes._quantised import function_of
from clnn.importers.onnx.importer import import_onnx
from clnn.ops.conv.spec import Conv2d

pytest.importorskip("onnxruntime")
F = np.float32


class Net:
    """A network with quantisation around its operators, built node by node."""

    def __init__(self, kind: str = "uint8", seed: int = 0) -> None:
        self.kind, self.random = np.dtype(kind), rng(seed)
        self.nodes, self.consts, self.count = [], [], 0

    def const(self, array) -> str:
        self.count += 1
        self.consts.append(numpy_helper.from_array(np.asarray(array), f"c{self.count}"))
        return f"c{self.count}"

    def op(self, kind, *inputs, **attrs) -> str:
        self.count += 1
        self.nodes.append(helper.make_node(kind, list(inputs), [f"v{self.count}"], **attrs))
        return f"v{self.count}"

    def scale(self) -> tuple[str, str]:
        info = np.iinfo(self.kind)
        zero = self.random.integers(info.min, info.max, (), self.kind)
        return self.const(F(self.random.uniform(0.02, 0.06))), self.const(zero)

    def quantised(self, x, pair=None) -> str:
        """Return a value that went through integers."""
        pair = pair or self.scale()
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *pair), *pair)

    def weights(self, *shape, kind="int8", axis=0, zero=0) -> tuple[str, np.ndarray]:
        info, count = np.iinfo(kind), shape[axis]
        steps = self.random.uniform(0.002, 0.02, count).astype(F)
        raw = self.random.integers(info.min, info.max, shape, np.dtype(kind), endpoint=True)
        parts = self.const(raw), self.const(steps), self.const(np.full(count, zero, kind))
        return self.op("DequantizeLinear", *parts, axis=axis), steps

    def model(self, y, shape) -> bytes:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_empty_tensor_value_info(y)],
            self.consts,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return made.SerializeToString()


def check(device, net, y, shape, fused=True, tolerance=0):
    """Compare with onnxruntime; fused: no real operator is left. Returns the graph."""
    made, x = net.model(y, shape), net.random.normal(0, 2, shape).astype(F)
    session = exact_session(made)
    (want,) = session.run(None, {"x": x})
    with clnn.compile_model(made, device) as mine:
        got = mine({"x": x})[y]
    if tolerance:
        assert (got != want).mean() <= tolerance
    else:
        np.testing.assert_array_equal(got, want)
    graph = optimise(import_onnx(made))
    left = [n.origin for n in graph.nodes if function_of(n)]
    assert not fused or len(left) == 2, left
    return graph


def convolution(net, x, ic, oc, group=1, bias=True, **window):
    pair = net.scale()
    x = net.quantised(x, pair)
    w, steps = net.weights(oc, ic // group, 3, 3)
    inputs = [x, w]
    if bias:
        step = np.array(
            steps * numpy_helper.to_array(next(c for c in net.consts if c.name == pair[0]))
        )
        raw = net.const(net.random.integers(-999, 999, oc, np.int32))
        inputs.append(net.op("DequantizeLinear", raw, net.const(step), axis=0))
    return net.op("Conv", *inputs, group=group, pads=[1, 1, 1, 1], **window)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("group", [1, 8])
@pytest.mark.parametrize("after", ["", "Relu", "Clip"])
def test_convolutions(device, kind, group, after):
    net = Net(kind)
    y = convolution(net, "x", 8, 16 if group == 1 else 8, group, strides=[1, 2])
    pair = net.scale()
    if after:
        least = net.const(np.array(np.iinfo(net.kind).min, net.kind))
        pair = (pair[0], least)
        limits = [net.const(F(0)), net.const(F(6))] if after == "Clip" else []
        y = net.op(after, y, *limits)
    y = net.quantised(y, pair)
    # A Clip that the quantisation does not imply keeps onnxruntime from fusing.
    graph = check(device, net, y, (1, 8, 9, 11), tolerance=2e-3 if after == "Clip" else 0)
    assert any(
        isinstance(n.spec, Conv2d) and isinstance(n.spec.arith, Requantised) for n in graph.nodes
    )


@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
def test_products(device, op):
    net = Net()
    w, _ = net.weights(*((20, 33) if op == "Gemm" else (33, 20)), axis=0 if op == "Gemm" else 1)
    attrs = {"transB": 1} if op == "Gemm" else {}
    shape = (5, 33) if op == "Gemm" else (2, 3, 33)
    check(device, net, net.quantised(net.op(op, net.quantised("x"), w, **attrs)), shape)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    "factors", [{}, {"beta": 2.0}, {"alpha": 0.5}, {"alpha": 0.5, "beta": 0.5}]
)
def test_products_with_a_bias_and_factors(device, kind, factors):
    """Factors before the addend keep the product real, and right."""
    net = Net(kind)
    pair = net.scale()
    x, (w, steps) = net.quantised("x", pair), net.weights(20, 33)
    scale = numpy_helper.to_array(next(c for c in net.consts if c.name == pair[0]))
    raw = net.const(net.random.integers(-999, 999, 20, np.int32))
    bias = net.op("DequantizeLinear", raw, net.const(np.array(steps * scale)), axis=0)
    made = net.op("Gemm", x, w, bias, transB=1, **factors)
    check(device, net, net.quantised(made), (5, 33), fused=not factors, tolerance=2e-2)


def test_int8_convolutions_that_are_read_twice_add_their_bias_as_it_is_written(device):
    net = Net("int8")
    y = net.quantised(convolution(net, "x", 8, 8))
    both = net.quantised(net.op("Add", y, net.quantised(net.op("Relu", y))))
    graph = check(device, net, both, (1, 8, 5, 5), fused=False, tolerance=2e-2)
    kinds = {type(n.spec.arith) for n in graph.nodes if isinstance(n.spec, Conv2d)}
    assert kinds == {Written}


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Div"])
def test_two_operands(device, kind, op):
    net = Net(kind)
    a, b = net.quantised("x"), net.quantised(net.op("Sigmoid", "x"))
    check(device, net, net.quantised(net.op(op, a, b)), (1, 8, 5, 7), fused=False)


def test_int8_that_is_read_twice_is_added_as_it_is_written(device):
    net = Net("int8")
    a = net.quantised("x")
    b = net.quantised(convolution(net, a, 8, 8))
    y = net.quantised(net.op("Add", a, b))
    graph = check(device, net, y, (1, 8, 9, 7), fused=False, tolerance=2e-3)
    steps = [step.fn for n in graph.nodes for step in getattr(n.spec, "post_ops", ())]
    assert steps == ["written_sum"]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "GlobalAveragePool"])
def test_pooling(device, op):
    window = {} if op[0] == "G" else {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    net = Net()
    pair = net.scale()
    x = net.quantised("x", pair)
    made = net.op(op, x, **window)
    check(
        device,
        net,
        net.quantised(made, pair if op == "MaxPool" else None),
        (1, 8, 6, 7),
        op != "AveragePool",
    )


def test_moves_keep_their_integers(device):
    net = Net()
    pair = net.scale()

    def step(value, op, *more, **attrs):
        return net.quantised(net.op(op, value, *more, **attrs), pair)

    y = step(net.quantised("x", pair), "Transpose", perm=[0, 2, 3, 1])
    y = step(y, "Reshape", net.const(np.array([1, 6, 7, 8])))
    y = step(y, "Pad", net.const(np.array([0, 0, 1, 2, 0, 0, 0, 1])))
    y = step(
        y, "Slice", net.const(np.array([1])), net.const(np.array([7])), net.const(np.array([2]))
    )
    y = step(
        y,
        "Resize",
        "",
        net.const(np.array([1, 1, 2, 2], F)),
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    y = step(y, "Concat", y, axis=1)
    check(device, net, y, (1, 8, 6, 7))


@pytest.mark.parametrize("op", ["Sigmoid", "LeakyRelu", "Tanh", "HardSwish", "Softmax"])
def test_functions(device, op):
    net = Net()
    made = net.op(op, net.quantised("x"))
    pair = (net.const(F(1 / 256)), net.const(np.uint8(0))) if op == "Softmax" else None
    check(device, net, net.quantised(made, pair), (3, 40))


def test_a_bias_of_another_scale_stays_as_it_is_written(device):
    net = Net()
    x, (w, steps) = net.quantised("x"), net.weights(6, 8, 3, 3)
    bias = net.op(
        "DequantizeLinear", net.const(np.arange(6, dtype=np.int32)), net.const(steps * F(3)), axis=0
    )
    made = net.model(net.quantised(net.op("Conv", x, w, bias)), (1, 8, 5, 5))
    kinds = {
        type(n.spec.arith) for n in optimise(import_onnx(made)).nodes if isinstance(n.spec, Conv2d)
    }
    assert not kinds & {Requantised, Written}
    assert device


def test_results_that_others_read_stay_real(device):
    net = Net()
    y = convolution(net, "x", 8, 8)
    both = net.op("Add", y, net.quantised(y))
    check(device, net, both, (1, 8, 5, 5), fused=False, tolerance=1)


def test_without_fusing_everything_is_as_it_is_written(device):
    net = Net()
    y = net.quantised(convolution(net, "x", 8, 8))
    made, x = net.model(y, (1, 8, 6, 6)), net.random.normal(0, 2, (1, 8, 6, 6)).astype(F)
    got = [
        clnn.compile_model(made, device, clnn.Options(fuse=fuse))({"x": x})[y]
        for fuse in (True, False)
    ]
    assert (got[0] != got[1]).mean() < 0.02


ERF = 2**-0.5


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("ends", ["both", "each"])
def test_gelu_that_is_written_out_is_one_table(device, kind, ends):
    """Whether its steps are quantised each, as ONNX Runtime's tool does it but for Erf, or at its ends alone."""
    net = Net(kind)
    step = net.quantised if ends == "each" else lambda value: value
    x = net.quantised("x")
    erf = step(net.op("Erf", net.op("Div", x, net.const(F(2**0.5)))))
    more = step(net.op("Add", net.const(F(1)), erf))
    y = net.quantised(net.op("Mul", step(net.op("Mul", x, more)), net.const(F([0.5]))))
    graph = check(device, net, y, (2, 8, 13), tolerance=0.02 if ends == "both" else 0)
    assert [getattr(n.spec.function, "name", "") for n in graph.nodes][1:-1] == ["byte_table"]


@pytest.mark.parametrize("fn", ["Add", "Sub", "Mul", "Div", "Pow", "Max"])
@pytest.mark.parametrize("swapped", [False, True])
def test_functions_of_bytes_and_a_number(device, fn, swapped):
    """Each of them between two other functions: a table, whichever side the number is on."""
    net = Net()
    x = net.op("Sigmoid", net.quantised("x"))
    sides = [x, net.const(F(1.3))]
    made = net.op(fn, *(sides[::-1] if swapped else sides))
    graph = check(device, net, net.quantised(net.op("Tanh", made)), (2, 8, 13), tolerance=0.01)
    assert [n.spec.function.name for n in graph.nodes][1:-1] == ["byte_table"]


def test_what_is_read_between_stays_real(device):
    net = Net()
    x = net.op("Exp", net.quantised("x"))
    y = net.op("Add", net.quantised(net.op("Tanh", x)), net.op("Relu", x))
    graph = check(device, net, net.quantised(y), (2, 8, 13), fused=False, tolerance=0.01)
    functions = [getattr(n.spec, "function", None) for n in graph.nodes]
    assert "byte_table" not in [getattr(f, "name", "") for f in functions]


def test_numbers_along_an_axis_are_no_table(device):
    net = Net()
    x = net.op("Div", net.quantised("x"), net.const(net.random.uniform(1, 2, 13).astype(F)))
    check(device, net, net.quantised(net.op("Tanh", x)), (2, 8, 13), fused=False, tolerance=0.01)


@pytest.mark.parametrize("kinds", [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
@pytest.mark.parametrize("terms", [5, 64, 197])
@pytest.mark.parametrize("after", ["", "Relu"])
def test_products_of_computed_matrices(device, kinds, terms, after):
    """Attention's: both matrices are computed, their sums are exact, every second of them a tie of the result."""
    net, tenth = Net(kinds[0]), F(0.1)
    left = net.op("Slice", "x", *map(net.const, np.array([[0], [9], [2]])))
    right = net.op("Slice", "x", *map(net.const, np.array([[9], [32], [2]])))
    right = net.op("Transpose", right, perm=[0, 1, 3, 2])
    zeros = [np.array(np.iinfo(kind).min if after else 3, kind) for kind in kinds]
    sides = [
        net.quantised(v, (net.const(tenth), net.const(zero)))
        for v, zero in zip((left, right), zeros, strict=True)
    ]
    y = net.op("MatMul", *sides)
    if after:
        y = net.op(after, y)
    y = net.quantised(y, (net.const(F(0.02) * F(2 if terms > 5 else 1)), net.const(zeros[0])))
    graph = check(device, net, y, (2, 3, 32, terms), fused=False)
    (maker,) = (n for n in graph.nodes if n.inputs[0] in _results_of(graph, "gemm"))
    assert maker.spec.function.whole


@pytest.mark.parametrize("shape", [(3, 64, 7), (2, 1, 64, 7), (64,)])
def test_products_of_constants_of_several_matrices(device, shape):
    """Or of a column; every second sum is a tie of the result."""
    net, tenth = Net(), F(0.1)
    pair = net.const(tenth), net.const(np.array(3, np.uint8))
    raw = net.random.integers(0, 9, shape, np.uint8)
    made = net.op(
        "MatMul", net.quantised("x", pair), net.op("DequantizeLinear", net.const(raw), *pair)
    )
    y = net.quantised(made, (net.const(F(0.02)), net.const(np.array(99, np.uint8))))
    graph = check(device, net, y, (2, 3, 32, 64), fused=False)
    (maker,) = (n for n in graph.nodes if n.inputs[0] in _results_of(graph, "gemm"))
    assert maker.spec.function.whole


def _results_of(graph, kind):
    return [n.outputs[0] for n in graph.nodes if n.spec.kind == kind]
