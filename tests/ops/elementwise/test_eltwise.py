from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, rng
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_engines import onnxruntime_result
from together import chain, check_together, evaluate, imported, run_together

from clnn.errors import DTypeError, ShapeError
from clnn.graph.ir import Graph, Node, check
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Expand, Slice, Transpose
from clnn.ops.onnx_registry import Unsupported
from clnn.ops.shared.functions import FUNCTIONS, PostOp
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.device.target import target_of
from clnn.runtime.run.session import Session
from clnn.types import F32, I32, I64, TensorType

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1e-40,
    -1e-40,
    1.2e-38,
    1e-7,
    88.0,
    -88.0,
    89.0,
    104.0,
    3e38,
    -3e38,
    1e10,
    -1e10,
    6.0,
    -3.0,
    3.0,
    0.49999997,
    16777217.0,
    np.nan,
    np.inf,
    -np.inf,
]
PARAMS = {
    "leaky_relu": (0.1,),
    "elu": (0.7,),
    "celu": (1.3,),
    "selu": (1.67, 1.05),
    "thresholded_relu": (0.5,),
    "hard_sigmoid": (0.2, 0.5),
    "swish": (1.5,),
    "shrink": (0.5, 0.25),
    "clip": (-0.75, 1.25),
    "at_least": (-0.3,),
    "at_most": (0.6,),
}
# Those of bytes take parameters of their own: tests/graph/test_fuse_byte_sums.py.
PLAIN = {fn: rule for fn, rule in FUNCTIONS.items() if not rule.of_bytes}
UNARY = [fn for fn, rule in PLAIN.items() if not rule.binary]
BINARY = [fn for fn, rule in PLAIN.items() if rule.binary]
INTEGERS = [fn for fn, rule in PLAIN.items() if not rule.floats_only]


def one(fn, params=None, **named):
    return Eltwise((PostOp(fn, PARAMS.get(fn, ()) if params is None else params, **named),))


def samples():
    """Special values, and random ones of every size: first operand, second operand."""
    first = np.concatenate([np.array(SPECIAL), rng(1).standard_normal(160) * 4])
    grid = np.array([(a, b) for a in SPECIAL for b in SPECIAL])
    return first.astype(np.float32), grid[:, 0].astype(np.float32), grid[:, 1].astype(np.float32)


def check_values(got, want, name):
    """NaN and infinities in the same places; relative error 1e-5, or the least normal number."""
    with np.errstate(over="ignore"):
        want = want.astype(np.float32)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=name)
    np.testing.assert_array_equal(got[~finite], want[~finite], err_msg=name)
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("count", [176, 189], ids=["vectors", "scalars"])
def test_every_unary_function_on_special_values(device, count):
    x = samples()[0][:count]
    specs = {fn: one(fn) for fn in UNARY}
    found = run_together(device, specs, [x])
    for fn, spec in specs.items():
        limit = fn == "gelu_tanh"  # at -inf, 0 times infinity, if tanh reaches -1 there
        keep = x != -np.inf if limit else np.full(x.shape, True)
        want = spec.reference(x.astype(np.float64))[0]
        check_values(found[fn][keep], want[keep], f"{fn} on {device}")


@pytest.mark.parametrize("fn", ["sigmoid", "swish", "gelu_tanh", "tanh"])
def test_logistic_functions_of_vectors_over_all_magnitudes(device, fn):
    """The result's own size bounds the error, not the largest's, down to where floats are subnormal."""
    ends = 60.0 if fn != "gelu_tanh" else 4.5
    x = np.linspace(-ends, ends, 1 << 14).astype(np.float32)
    spec = one(fn, (1.0,) if fn == "swish" else ())
    want = spec.reference(x.astype(np.float64))[0]
    got = run_together(device, {fn: spec}, [x])[fn]
    np.testing.assert_allclose(got, want, rtol=6e-7 if fn != "gelu_tanh" else 2e-5)


def test_gelu_of_vectors_is_within_its_bound_of_x(device):
    """The bound that _common/epilogue states for wide vectors; built-in functions of others round more often."""
    tiny = np.logspace(-30, 0, 1 << 12)
    x = np.concatenate([np.linspace(-8, 8, 1 << 16), tiny, -tiny]).astype(np.float32)
    want = one("gelu").reference(x.astype(np.float64))[0]
    got = run_together(device, {"gelu": one("gelu")}, [x])["gelu"]
    is_wide = target_of(select(device)).vector >= 8
    bound = 1.7e-7 if is_wide else 3e-7
    np.testing.assert_array_less(np.abs(got - want), bound * np.abs(x) + 1e-45)
    assert not is_wide or not got[x < -5.9].any()


def test_every_binary_function_on_special_values(device):
    _, a, b = samples()
    specs = {fn: one(fn, operand=1) for fn in BINARY}
    specs |= {f"{fn} swapped": one(fn, operand=1, swapped=True) for fn in ("sub", "div", "pow")}
    specs |= {f"{fn} number": one(fn, (1.5,)) for fn in ("add", "mul", "pow")}
    found = run_together(device, specs, [a, b])
    for fn, spec in specs.items():
        wide = spec.reference(a.astype(np.float64), b.astype(np.float64))[0]
        check_values(found[fn], wide, f"{fn} on {device}")


def test_tiny_results_survive_or_become_zero(device):
    """Devices may flush numbers below the least normal one, and only those."""
    x = np.array([1.2e-38, 2.4e-38, -3e-38, 1e-37], np.float32)
    got = run_together(device, {"half": one("mul", (0.5,))}, [x])["half"]
    want = x * np.float32(0.5)
    tiny = np.abs(want) < 1.1754944e-38
    assert ((got == want) | (tiny & (got == 0))).all()


ONNX_UNARY = [
    ("Relu", {}),
    ("LeakyRelu", {"alpha": 0.1}),
    ("Elu", {"alpha": 0.7}),
    ("Selu", {}),
    ("Celu", {"alpha": 1.3}),
    ("ThresholdedRelu", {"alpha": 0.5}),
    ("Sigmoid", {}),
    ("HardSigmoid", {}),
    ("HardSwish", {}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("Gelu", {}),
    ("Gelu", {"approximate": "tanh"}),
    ("Mish", {}),
    ("Tanh", {}),
    ("Erf", {}),
    ("Exp", {}),
    ("Log", {}),
    ("Sqrt", {}),
    ("Reciprocal", {}),
    ("Floor", {}),
    ("Ceil", {}),
    ("Round", {}),
    ("Sin", {}),
    ("Cos", {}),
    ("Tan", {}),
    ("Asin", {}),
    ("Acos", {}),
    ("Atan", {}),
    ("Sinh", {}),
    ("Cosh", {}),
    ("Asinh", {}),
    ("Acosh", {}),
    ("Atanh", {}),
    ("Abs", {}),
    ("Neg", {}),
    ("Sign", {}),
    ("Shrink", {"lambd": 0.5, "bias": 0.25}),
]
# Where onnxruntime leaves the definition: its polynomials are not made for these arguments.
NOT_COMPARED = {
    "Sign": np.isnan,
    "Softplus": np.isnan,
    "Gelu": np.isinf,
    "Mish": np.isinf,
    "Tan": np.isinf,
    "ThresholdedRelu": np.isnan,
    "HardSigmoid": np.isnan,
    "HardSwish": np.isnan,
}


@pytest.mark.parametrize("op,attrs", ONNX_UNARY)
def test_references_agree_with_onnxruntime(op, attrs):
    x = samples()[0]
    x = x[~NOT_COMPARED.get(op, np.zeros_like)(x).astype(bool)]
    want = onnxruntime_result(op, [x], attrs)[0]
    got = evaluate(imported(op, [x], attrs), [x.astype(np.float64)])
    check_values(want, got, op)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "PRelu"])
def test_binary_references_agree_with_onnxruntime(op):
    _, a, b = samples()
    want = onnxruntime_result(op, [a, b], opset=15)[0]
    wide = [a.astype(np.float64), b.astype(np.float64)]
    check_values(want, evaluate(imported(op, [a, b], opset=15), wide), op)


def integers(dtype, shape, seed=0):
    """Numbers small enough to multiply, with the extremes of the type."""
    low = 0 if np.dtype(dtype).kind == "u" else -9
    drawn = rng(seed).integers(low, 10, shape).astype(dtype)
    drawn.reshape(-1)[:2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    return drawn


def check_integers(device, dtype, functions=INTEGERS):
    a, b = integers(dtype, (5, 37), 1), integers(dtype, (5, 37), 2)
    signed = np.dtype(dtype).kind == "i"
    a[1, :4], b[1, :4] = np.iinfo(dtype).min, np.array(-1).astype(dtype)
    params = {"clip": (1 if not signed else -3, 6), "at_least": (2,), "at_most": (4,)}
    specs = {}
    for fn in functions:
        if FUNCTIONS[fn].binary:
            specs[fn] = one(fn, operand=1)
        elif signed or fn not in ("neg", "sign"):
            specs[fn] = one(fn, params.get(fn, ()))
    check_together(device, specs, [a, b])


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_integer_functions(device, dtype):
    """Overflow wraps; the quotient that overflows, and divisors of 0, do not stop the device."""
    check_integers(device, dtype)


@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_integer_arithmetic(device, dtype):
    check_integers(device, dtype, ("add", "mul", "div", "min", "clip", "abs"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "uint32", "int64", "uint64"])
def test_integer_functions_of_other_types(device, dtype):
    check_integers(device, dtype)


def test_integers_divide_towards_zero():
    a = np.array([7, -7, 7, -7, 0, 9], np.int32)
    b = np.array([2, 2, -2, -2, 5, 0], np.int32)
    np.testing.assert_array_equal(one("div", operand=1).reference(a, b)[0], [3, -3, -3, 3, 0, 9])
    base, power = np.array([2, -2, 1, -1, -1, 3, 5]), np.array([-1, -2, -5, -1, -2, 0, 3])
    want = [0, 0, 1, -1, 1, 1, 125]
    np.testing.assert_array_equal(one("pow", operand=1).reference(base, power)[0], want)


SHAPES = [
    [(2, 5, 4, 6), (5, 1, 1)],
    [(2, 5, 4, 6), (6,)],
    [(5, 1, 1), (2, 5, 4, 6)],
    [(2, 1, 4, 1), (1, 5, 1, 6)],
    [(1,), (2, 3)],
    [(), (3, 4)],
    [(), ()],
    [(3, 1), (1, 4)],
    [(0, 3), (1, 3)],
    [(1, 16, 1, 1), (1, 16, 7, 7)],
    [(2, 3, 4), (2, 3, 1), (1, 1, 4)],
]


@pytest.mark.parametrize("shapes", SHAPES)
def test_broadcasting(device, shapes):
    inputs = [normal(s, k) for k, s in enumerate(shapes)]
    post_ops = [PostOp("sub", operand=k, swapped=k == 2) for k in range(1, len(shapes))]
    check_op(device, Eltwise((*post_ops, PostOp("relu"))), inputs)


ORDERS = [
    {"i0": (0, 2, 3, 1)},
    {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)},
    {"i1": (3, 2, 1, 0), "o0": (0, 2, 3, 1)},
    {"i0": (0, 2, 3, 1), "i1": (2, 1, 0, 3)},
]


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("border", [0, 2])
def test_mixed_layouts(device, orders, border):
    inputs = [normal((2, 19, 5, 4)), normal((2, 19, 5, 4), 1)]
    check_op(device, Eltwise((PostOp("mul", operand=1),)), inputs, orders=orders, border=border)


def test_reversed_stepped_stretched_and_turned_operands(device):
    """Operands that are views have pitches that are negative, larger than 1, or 0."""
    x = TensorType((6, 8))
    views = {
        "reversed": Slice((5, 7), (6, 4), (-1, -2)),
        "turned": Transpose((1, 0)),
        "stretched": Expand((6, 4)),
    }
    types = {"x": x, "t": TensorType((8, 6)), "c": TensorType((6, 1)), "k": TensorType((8, 6))}
    types |= {
        "reversed": TensorType((6, 4)),
        "turned": x,
        "stretched": TensorType((6, 4)),
        "y": TensorType((6, 4)),
        "z": TensorType((6, 8)),
    }
    nodes = (
        Node("r", views["reversed"], ("x",), ("reversed",)),
        Node("e", views["stretched"], ("c",), ("stretched",)),
        Node("t", views["turned"], ("t",), ("turned",)),
        Node("y", Eltwise((PostOp("sub", operand=1),)), ("reversed", "stretched"), ("y",)),
        Node("z", Eltwise((PostOp("add", operand=1),)), ("turned", "x"), ("z",)),
    )
    del types["k"]
    graph = check(Graph(nodes, types, {}, ("x", "t", "c"), {"y": "y", "z": "z"}))
    feeds = {"x": normal((6, 8)), "t": normal((8, 6), 1), "c": normal((6, 1), 2)}
    with Session(graph, select(device), Options()) as session:
        got = session(feeds)
        assert session.plan.copied_bytes == 0
    np.testing.assert_array_equal(got["y"], feeds["x"][::-1, 7::-2] - feeds["c"])
    np.testing.assert_array_equal(got["z"], feeds["t"].T + feeds["x"])


@settings(max_examples=4, deadline=None)
@given(st.data())
def test_any_shapes_that_broadcast(device, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5)))
    inputs = []
    for k in range(data.draw(st.integers(1, 3))):
        mine = tuple(d if data.draw(st.booleans()) else 1 for d in shape)
        inputs.append(normal(mine[data.draw(st.integers(0, len(shape) - 1)) :], k))
    post_ops = tuple(PostOp("add", operand=k) for k in range(1, len(inputs)))
    order = tuple(data.draw(st.permutations(range(inputs[0].ndim))))
    check_op(device, Eltwise((*post_ops, PostOp("abs"))), inputs, orders={"i0": order})


@pytest.mark.parametrize("dtype", ["float16", "float64", "bool", "uint8", "int64"])
def test_an_empty_chain_copies_any_type(device, dtype):
    x = rng().integers(0, 2, (3, 35)).astype(dtype)
    check_op(device, Eltwise(()), [x], orders={"i0": (1, 0)}, tolerance=0)


def test_double_precision_where_the_device_has_it(device):
    x = rng(5).standard_normal((3, 17))
    if not select(device).caps.fp64:
        with pytest.raises(Exception, match="fp64"):
            run_together(device, {"e": one("exp")}, [x])
        return
    got = run_together(device, {"e": one("exp"), "d": one("div", (3.0,))}, [x])
    np.testing.assert_allclose(got["e"], np.exp(x), rtol=1e-14)
    np.testing.assert_array_equal(got["d"], x / 3)


def test_types_must_agree():
    with pytest.raises(DTypeError, match="float32, int32"):
        one("add", operand=1).infer([TensorType((2,), F32), TensorType((2,), I32)])
    with pytest.raises(DTypeError, match="exp of int64"):
        one("exp").infer([TensorType((2,), I64)])
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(2, 4\)"):
        one("add", operand=1).infer([TensorType((2, 3)), TensorType((2, 4))])


CLIPS = [
    (np.float32, -0.5, 0.5),
    (np.float32, 2.0, -2.0),
    (np.float32, None, 0.25),
    (np.float32, 0.25, None),
    (np.int64, -(2**63), 2**63 - 1),
    (np.int64, 2**53 + 1, None),
    (np.int8, -5, 100),
    (np.uint8, 3, 250),
    (np.float32, -np.inf, np.inf),
]


@pytest.mark.parametrize("dtype,low,high", CLIPS)
def test_clip_of_constants(device, dtype, low, high):
    """Limits of 64-bit integers stay exact; where they cross, the upper one wins."""
    x = normal((40,)) * 2 if dtype == np.float32 else integers(dtype, (40,))
    inputs = [x, *(None if v is None else np.array(v, dtype) for v in (low, high))]
    spec = imported("Clip", inputs, consts=(1, 2)).spec
    got = run_together(device, {"y": spec}, [x])["y"]
    want = onnxruntime_result("Clip", inputs)[0]
    np.testing.assert_array_equal(got, want)


def test_clip_of_limits_that_are_fed(device):
    inputs = [normal((30,)), np.array(-0.5, np.float32), np.array(0.25, np.float32)]
    emitted = imported("Clip", inputs)
    check_op(device, emitted.spec, [inputs[k] for k in emitted.inputs], tolerance=0)
    np.testing.assert_array_equal(evaluate(emitted, inputs), np.clip(inputs[0], -0.5, 0.25))
    only = imported("Clip", [inputs[0], None, inputs[2]])
    np.testing.assert_array_equal(
        evaluate(only, [inputs[0], None, inputs[2]]), np.minimum(inputs[0], 0.25)
    )


def test_clip_forms():
    x = normal((4,))
    assert imported("Clip", [x]) == 0
    assert imported("Clip", [x], {"min": 1.0}, 6).spec == one("at_least", (1.0,))
    with pytest.raises(ShapeError, match=r"min has shape \(4,\)"):
        imported("Clip", [x, x], consts=(1,))


@pytest.mark.parametrize("op", ["Min", "Max", "Sum", "Mean"])
def test_variadic_operators(op):
    assert imported(op, [normal((3,))]) == 0
    inputs = [normal((3, 1)), normal((1, 4), 1), normal((3, 4), 2)]
    want = onnxruntime_result(op, inputs)[0]
    np.testing.assert_allclose(evaluate(imported(op, inputs), inputs), want, rtol=1e-6)


POWERS = [
    (np.float32, np.int64),
    (np.float32, np.float64),
    (np.int32, np.int64),
    (np.int64, np.float32),
    (np.float64, np.int32),
    (np.int32, np.int32),
]


@pytest.mark.parametrize("base,exponent", POWERS)
def test_power_of_mixed_types(base, exponent):
    a = np.array([1, 2, 3, -2, 5, 7], base)
    b = np.array([4, 5, 6, 3, 0, 2], exponent)
    want = onnxruntime_result("Pow", [a, b], opset=15)[0]
    got = evaluate(imported("Pow", [a, b], opset=15), [a, b])
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_power_of_two_is_a_product():
    x = normal((3, 4))
    made = imported("Pow", [x, np.array(2, np.int64)], opset=13, consts=(1,))
    assert made.spec.post_ops == (PostOp("square"),)
    np.testing.assert_array_equal(evaluate(made, [x]), x * x)
    assert chain(imported("Pow", [x, np.array(3, np.int64)], opset=13)) == ["eltwise"]


def test_dropout_in_inference_hands_its_input_on():
    x = normal((3, 4))
    assert imported("Dropout", [x]) == 0
    values = imported("Dropout", [x], n_outputs=2)
    assert values[0] == 0 and values[1].dtype == bool and values[1].all()
    assert imported("Dropout", [x], opset=7, n_outputs=2)[1].dtype == np.float32
    with pytest.raises(Unsupported, match="training"):
        imported("Dropout", [x, np.array(0.5), np.array(True)], consts=(1, 2))


def test_every_unary_function_is_reached_by_an_operator():
    x = normal((2,))
    found = {step.fn for op, attrs in ONNX_UNARY for step in imported(op, [x], attrs).spec.post_ops}
    found |= {"clip", "at_least", "at_most", "square"}
    found |= {imported("Swish", [x]).spec.post_ops[0].fn}
    found |= {
        fn for fn in UNARY if fn.startswith("rational_")
    }  # tests/graph/test_rational_functions.py
    assert found == set(UNARY)
