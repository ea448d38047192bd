from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from harness import check_op, check_subgroups, compare, normal, rng
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_engines import onnx_result
from targets import GPU, generate_for
from together import check_together, evaluate, imported, run_together

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout
from clnn.ops.onnx_registry import Unsupported
from clnn.ops.problem import Operand, Problem
from clnn.ops.rows.reduce import FOLDS, Reduce
from clnn.ops.shared.functions import PostOp
from clnn.target import Target
from clnn.types import BOOL, F16, F32, I32, TensorType

NHWC = {"i0": (0, 2, 3, 1)}
SCALE = (PostOp("mul", operand=1), PostOp("relu"))

GEOMETRIES = {  # shape, axes, memory orders: how vectors lie on rows, and how many there are
    "images": ((2, 24, 5, 7), (2, 3), NHWC),
    "planes": ((2, 5, 7, 21), (2, 3), {}),
    "channels": ((1, 35, 5, 7), (1,), NHWC),
    "batch": ((3, 5, 77), (0,), {}),
    "ends": ((3, 40, 6), (0, 2), {}),
    "middle": ((5, 6, 7), (1,), {"i0": (1, 2, 0)}),
    "short rows": ((75, 3), (1,), {}),
    "few short rows": ((2, 3), (1,), {}),
    "all": ((3, 5, 7), (0, 1, 2), {}),
    "none": ((4, 6), (), {}),
    "one element": ((), (), {}),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(device, name):
    shape, axes, orders = GEOMETRIES[name]
    ran = check_op(device, Reduce("sum", axes), [normal(shape)], orders=orders)
    assert ran[-1].endswith("across_v1x1")


@pytest.mark.parametrize("name", ["images", "channels", "ends", "all"])
def test_axes_that_go(device, name):
    shape, axes, orders = GEOMETRIES[name]
    check_op(device, Reduce("max", axes, False), [normal(shape)], orders=orders, border=1)


def test_every_function_along_rows_and_across(device):
    x = np.abs(normal((6, 37))) + 0.1
    for axis in (0, 1):
        specs = {fn: Reduce(fn, (axis,), power=3.0) for fn in FOLDS}
        check_together(device, specs, [x], 1e-5)


def test_rows_in_parts(device):
    """Few long rows are divided between work-items, and their parts joined by a second launch."""
    post_ops = (PostOp("mul", operand=1), PostOp("add", (0.5,)))
    x = normal((1, 33, 90, 89)) + 1
    for fn in ("mean", "l2", "max"):
        spec = Reduce(fn, (2, 3), post_ops=post_ops)
        ran = check_op(device, spec, [x, normal((33, 1, 1), 1)], orders=NHWC, border=1, only="_p")
        assert len(ran) == 1
    ran = check_op(device, Reduce("sum", (0, 1)), [normal((300, 901)) + 1])
    assert "along" in ran[0] and "_p" in ran[0]


def test_long_sums_keep_their_precision(device):
    """A running sum of a million halves would stop far from the exact one."""
    x = np.full((1 << 20, 1), 0.1, np.float32) + normal((1 << 20, 1)) * 1e-3
    for array, axis in ((x, 0), (x.reshape(1, -1), 1)):
        for fn in ("sum", "mean", "l2"):
            spec = Reduce(fn, (axis,))
            want = spec.reference(array.astype(np.float64))[0]
            found = run_together(device, {"y": spec}, [array])["y"]
            compare(found, want, 5e-7, fn)


WHOLE = {
    "int32": ["sum", "mean", "prod", "max", "min", "l1", "sum_square"],
    "int64": ["sum", "mean", "max"],
    "uint64": ["l1", "min"],
    "uint8": ["max", "min"],
    "bool": ["max", "min"],
}


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers(device, dtype):
    lowest = -9 if dtype in ("int32", "int64") else 0
    x = rng(1).integers(lowest, 2 if dtype == "bool" else 100, (5, 19)).astype(dtype)
    for axis in (0, 1):
        check_together(device, {fn: Reduce(fn, (axis,)) for fn in WHOLE[dtype]}, [x])


ENDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("dtype", ENDS)
def test_the_ends_of_a_type(device, dtype):
    """Rows of one value alone: nothing lies below the greatest's start, or above the least's."""
    ends = np.iinfo(dtype)
    x = np.array([[ends.min] * 19, [ends.max] * 19, [ends.min + 1] * 19], dtype)
    for array, axis in ((x, 1), (np.ascontiguousarray(x.T), 0)):
        check_together(device, {fn: Reduce(fn, (axis,)) for fn in ("max", "min")}, [array])


def test_double_precision(device):
    x = rng(2).standard_normal((9, 41))
    for axis in (0, 1):
        specs = {fn: Reduce(fn, (axis,)) for fn in ("sum", "l2", "log_sum_exp", "max")}
        check_together(device, specs, [x], 1e-14)


def test_nan_and_infinity(device):
    x = normal((9, 40))
    x[1, 38], x[2, 3], x[3, 39] = np.nan, np.inf, -np.inf
    x[4, :2], x[5], x[6, 5:7] = (np.inf, -np.inf), -np.inf, (np.nan, np.inf)
    for axis in (0, 1):
        specs = {fn: Reduce(fn, (axis,)) for fn in ("max", "min", "sum", "log_sum_exp")}
        check_together(device, specs, [x], 1e-5)


def test_no_elements(device):
    x = np.zeros((2, 0, 4), np.float32)
    names = ("sum", "mean", "prod", "max", "log_sum", "log_sum_exp")
    check_together(device, {fn: Reduce(fn, (1,), False) for fn in names}, [x], 1e-6)
    check_together(device, {fn: Reduce(fn, (2,)) for fn in names}, [x], 1e-6)
    whole = {fn: Reduce(fn, (0,)) for fn in ("max", "min", "prod")}
    check_together(device, whole, [np.zeros((0,), np.int32)])


@pytest.mark.parametrize("name", ["images", "planes", "batch"])
def test_fused_steps(device, name):
    shape, axes, orders = GEOMETRIES[name]
    made = Reduce("sum", axes).infer([TensorType(shape)])[0].shape
    for operand in (made, (1,) * len(shape)):
        check_op(
            device,
            Reduce("sum", axes, post_ops=SCALE),
            [normal(shape), normal(operand, 1)],
            orders=orders,
        )


def test_fused_steps_where_axes_went(device):
    spec = Reduce("mean", (1,), False, post_ops=SCALE)
    check_op(device, spec, [normal((7, 5, 18)), normal((7, 18), 1)])


@pytest.mark.parametrize("name", ["images", "planes", "channels", "batch", "short rows", "all"])
def test_code_for_gpus(device, as_gpu, name):
    shape, axes, orders = GEOMETRIES[name]
    check_op(device, Reduce("log_sum_exp", axes), [normal(shape)], orders=orders)


def test_groups_and_parts_of_gpus(device, as_gpu):
    post_ops = {"post_ops": SCALE}
    ran = check_op(
        device, Reduce("mean", (0,), **post_ops), [normal((901, 37)), normal((1, 37), 1)]
    )
    assert "_g" not in ran[0] and "_p" in ran[0]
    ran = check_op(device, Reduce("max", (1,), **post_ops), [normal((1, 70001)), normal((1, 1), 1)])
    assert "_g256" in ran[0] and "_p" in ran[0]


@pytest.mark.parametrize("fn", ["mean", "max", "log_sum_exp"])
def test_members_of_groups_share_rows_that_lie_across(device, as_gpu, fn):
    """Global pooling of an image with its channels innermost, a border around it."""
    spec = Reduce(fn, (2, 3), post_ops=(PostOp("mul", operand=1),))
    inputs = [normal((2, 12, 6, 7)), normal((1, 12, 1, 1), 1)]
    (name, _) = check_op(device, spec, inputs, orders={"i0": (0, 2, 3, 1)}, border=fn == "max")
    assert "_across_v1x1_g" in name


def test_members_of_groups_share_parts_of_rows(device, monkeypatch):
    large = replace(GPU, compute_units=64)
    generate_for(monkeypatch, large)
    x = normal((3001, 16))
    x[2000, 3] = np.nan
    for fn in ("sum", "max"):
        (name, _) = check_op(device, Reduce(fn, (0,)), [x])
        assert "_across_v1x1_g16_p2" in name
    ran = check_op(device, Reduce("sum", (1,)), [normal((2, 9001))])
    assert "_along" in ran[0] and "_g256" in ran[0]


ATTRS = st.fixed_dictionaries({"keepdims": st.integers(0, 1)})
OPS = {
    "ReduceSum": 13,
    "ReduceMean": 18,
    "ReduceProd": 18,
    "ReduceMax": 18,
    "ReduceMin": 18,
    "ReduceL1": 18,
    "ReduceL2": 18,
    "ReduceSumSquare": 18,
    "ReduceLogSum": 18,
    "ReduceLogSumExp": 18,
}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), ATTRS, st.sampled_from(sorted(OPS)), st.booleans())
def test_importer_agrees_with_the_definition(data, attrs, op, old):
    x = np.abs(normal((2, 3, 4))) + 0.1
    axes = data.draw(
        st.none() | st.lists(st.integers(-3, 2), max_size=3, unique_by=lambda a: a % 3)
    )
    opset, inputs = OPS[op], [x]
    if old:
        opset -= 2
        attrs |= {} if not axes else {"axes": axes}
    else:
        attrs["noop_with_empty_axes"] = data.draw(st.integers(0, 1))
        inputs = [x] if axes is None else [x, np.array(axes, np.int64)]
    want = onnx_result(op, inputs, attrs, opset, consts=(1,))[0]
    found = evaluate(imported(op, inputs, attrs, opset, consts=(1,)), inputs)
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=1e-5)


@pytest.mark.parametrize("op,fold", [("GlobalAveragePool", np.mean), ("GlobalMaxPool", np.max)])
@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
def test_global_pools(op, fold, shape):
    x = normal(shape)
    want = fold(x, axis=tuple(range(2, len(shape))), keepdims=True)
    np.testing.assert_allclose(evaluate(imported(op, [x]), [x]), want, rtol=1e-5)


@pytest.mark.parametrize("power,fn", [(1, "l1"), (2, "l2"), (3, "lp")])
def test_global_norms(power, fn):
    x = normal((2, 3, 4, 5))
    made = imported("GlobalLpPool", [x], {"p": power})
    assert made.spec.fn == fn
    want = (np.abs(x) ** power).sum((2, 3), keepdims=True) ** (1 / power)
    np.testing.assert_allclose(evaluate(made, [x]), want, rtol=1e-5)


def test_axes_must_be_known_and_there():
    x = normal((2, 3))
    with pytest.raises(Unsupported, match="axes"):
        imported("ReduceSum", [x, np.array([1])], opset=13)
    with pytest.raises(ShapeError, match="axis 2 is outside of rank 2"):
        imported("ReduceMax", [x], {"axes": [2]}, 12)
    with pytest.raises(Unsupported, match="2 axes"):
        imported("GlobalMaxPool", [x])


@pytest.mark.parametrize(
    "fn,axes,dtype,error,words",
    [
        ("sum", (2,), F32, ShapeError, "(3, 4)"),
        ("sum", (0,), F16, DTypeError, "float16"),
        ("l2", (0,), I32, DTypeError, "int32"),
        ("sum", (0,), BOOL, DTypeError, "bool"),
    ],
)
def test_bad_inputs_name_the_values(fn, axes, dtype, error, words):
    with pytest.raises(error) as caught:
        Reduce(fn, axes).infer([TensorType((3, 4), dtype)])
    assert words in str(caught.value)


def parallel(shape, axes, order, units):
    """Return how many work-items the first launch of a sum has on a CPU with so many units."""
    x, spec = TensorType(shape), Reduce("sum", axes)
    out = spec.infer([x])[0]
    operands = [Operand(t, TensorLayout.make(t.shape, order)) for t in (x, out)]
    problem = Problem((operands[0],), (operands[1],), Target(compute_units=units))
    return int(np.prod(spec.variants(problem)[0].launches[0].global_size))


@pytest.mark.parametrize(
    "shape,axes",
    [((1, 16, 112, 112), (2, 3)), ((1, 2048, 7, 7), (2, 3)), ((1, 4, 512, 512), (1, 2, 3))],
)
@pytest.mark.parametrize("units", [2, 8])
def test_all_compute_units_get_work(shape, axes, units):
    assert parallel(shape, axes, (0, 2, 3, 1), units) >= 2 * units


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows,length", list(itertools.product((1, 2, 15, 16, 33), repeat=2)))
def test_every_small_shape(device, rows, length):
    for middle, fn in itertools.product((1, 3, 17), ("sum", "max", "log_sum_exp")):
        x = normal((rows, middle, length))
        for axes in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
            check_op(device, Reduce(fn, axes), [x])
            check_op(device, Reduce(fn, axes, False), [x], orders={"i0": (2, 0, 1)})


@pytest.mark.parametrize("fn", ["mean", "max", "min", "prod", "log_sum_exp"])
def test_members_of_groups_fold_by_subgroups(device, monkeypatch, fn):
    x = normal((4, 501)) * np.float32(0.01) + 1
    x[1, 77], x[2, 500] = np.nan, np.inf
    check_subgroups(device, monkeypatch, Reduce(fn, (1,)), [x])


def test_integers_fold_by_subgroups(device, monkeypatch):
    x = rng().integers(-1000, 1000, (3, 700)).astype(np.int32)
    for fn in ("sum", "max"):
        check_subgroups(device, monkeypatch, Reduce(fn, (1,)), [x])
