"""CumSum, TopK, Trilu and OneHot."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, rng
from reference_engines import onnxruntime_result
from together import evaluate, imported

from clnn.errors import DTypeError, ShapeError
from clnn.graph.ir import Graph, Node, check
from clnn.ops.onnx_registry import Unsupported
from clnn.ops.rows.cumsum import CumSum
from clnn.ops.rows.topk import TopK
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.types import BOOL, TensorType

pytestmark = pytest.mark.dealt  # kernels that are slow to build


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("exclusive,reverse", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumulative_sums(device, axis, exclusive, reverse):
    spec = CumSum(axis, bool(exclusive), bool(reverse))
    check_op(device, spec, [normal((4, 5, 19))], orders={"i0": (0, 2, 1)}, border=1)


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("exclusive,reverse", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumulative_products(device, axis, exclusive, reverse):
    spec = CumSum(axis, bool(exclusive), bool(reverse), product=True)
    check_op(device, spec, [normal((4, 5, 19))], orders={"i0": (0, 2, 1)}, border=1)
    check_op(device, spec, [rng().integers(-9, 9, (3, 2, 4)).astype(np.int32)])


def test_cumulative_products_by_work_groups(as_gpu, any_device):
    x = 1 + normal((3, 1500)) / 64
    assert check_op(any_device, CumSum(1, product=True), [x], border=1)[0].endswith("group")
    check_op(
        any_device, CumSum(1, True, True, True), [rng().integers(-2, 3, (2, 1027))], tolerance=0
    )


def test_cumulative_products_are_numpys():
    inputs = [normal((3, 4)), np.array(-1)]
    got = evaluate(imported("CumProd", inputs, {"reverse": 1}, 26, consts=(1,)), inputs)
    np.testing.assert_allclose(got, np.cumprod(inputs[0][:, ::-1], 1)[:, ::-1], rtol=1e-6)


@pytest.mark.parametrize(
    "dtype,shape", [("int64", (3, 20)), ("int32", (0, 4)), ("uint8", (7,)), ("int32", (5, 1))]
)
def test_cumulative_sums_of_integers_wrap(device, dtype, shape):
    x = rng().integers(0, 100, shape).astype(dtype)
    check_op(device, CumSum(0), [x])
    check_op(device, CumSum(len(shape) - 1, exclusive=True), [x])


@pytest.mark.parametrize("exclusive,reverse", [(False, True), (True, False)])
def test_cumulative_sums_by_work_groups(as_gpu, any_device, exclusive, reverse):
    spec = CumSum(1, exclusive, reverse)
    ran = check_op(any_device, spec, [normal((3, 1500))], border=1)
    assert ran[0].endswith("group")
    check_op(any_device, spec, [rng().integers(-9, 9, (2, 1027, 2))], tolerance=0)


@pytest.mark.parametrize(
    "attrs", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}]
)
def test_cumulative_sums_agree_with_onnxruntime(attrs):
    inputs = [normal((3, 4)).astype(np.float64), np.array(-2, np.int64)]
    want = onnxruntime_result("CumSum", inputs, attrs, 14)[0]
    got = evaluate(imported("CumSum", inputs, attrs, 14, consts=(1,)), inputs)
    np.testing.assert_allclose(got, want)


def test_cumulative_sums_that_do_not_fit_are_named():
    with pytest.raises(ShapeError, match=r"axis 2 of \(3, 4\)"):
        CumSum(2).infer([TensorType((3, 4))])
    with pytest.raises(DTypeError, match="bool"):
        CumSum(0).infer([TensorType((3,), BOOL)])
    with pytest.raises(Unsupported, match="axis"):
        imported("CumSum", [normal((3,)), np.array(0)], {}, 14)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    "shape,axis,count",
    [
        ((3, 40), 1, 5),
        ((17, 3, 2), 0, 17),
        ((2, 9, 4), 1, 1),
        ((6,), 0, 3),
        ((2, 3), 1, 0),
    ],
)
def test_top_elements(device, shape, axis, count, largest):
    """Few different values, so that ties decide; NaN, infinities and zeros of both signs among them."""
    x = rng().integers(-3, 4, shape).astype(np.float32)
    x.reshape(-1)[[0, 1, 2, -1]] = [np.nan, -0.0, np.inf, np.nan]
    check_op(device, TopK(count, axis, largest), [x], tolerance=0)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int8", "int32", "float64"])
def test_top_elements_of_other_types(device, dtype):
    x = rng().integers(0, 9, (2, 30)).astype(dtype)
    x[0, 7] = 100 if dtype == "uint8" else -100
    check_op(device, TopK(4, 1), [x], tolerance=0, orders={"i0": (1, 0)})
    check_op(device, TopK(29, 1, False), [x], tolerance=0)


LINES = {
    "random": lambda n: normal((2, n)),
    "rising": lambda n: np.sort(normal((2, n))),
    "ties": lambda n: rng().integers(0, 3, (2, n)).astype(np.float32),
    "nan": lambda n: np.full((2, n), np.nan, np.float32),
}


@pytest.mark.parametrize("count", [1, 2, 16, 17])
@pytest.mark.parametrize("length", [17, 31, 32, 33, 80])
def test_top_elements_of_many_short_lines(device, length, count):
    """Kept in order, or one in each lane of a vector whose last block begins among elements that were seen."""
    ties = rng().integers(0, 4, (40, length))
    rows = np.concatenate([normal((40, length)), ties, np.sort(normal((20, length)))])
    rows[::7, length // 2] = np.nan
    for dtype in ("float32", "int32", "int8"):
        x = np.nan_to_num(rows * 9).astype(dtype) if dtype != "float32" else rows.astype(dtype)
        for largest in (True, False):
            check_op(device, TopK(count, 1, largest), [x], tolerance=0)


@pytest.mark.parametrize("count", [1, 8, 40, 700])
@pytest.mark.parametrize("kind", LINES)
def test_top_elements_of_long_lines(device, kind, count):
    x = LINES[kind](3000)
    check_op(device, TopK(count, 1), [x], tolerance=0)
    check_op(device, TopK(count, 1, False), [x], tolerance=0)


@pytest.mark.parametrize("kind", LINES)
def test_top_elements_by_work_groups(as_gpu, any_device, kind):
    for count in (1, 40, 700):
        check_op(any_device, TopK(count, 1, count != 40), [LINES[kind](1500)], tolerance=0)
    numbers = rng().integers(-9, 9, (3, 50))
    ran = check_op(any_device, TopK(9, 1), [numbers], tolerance=0)
    assert [name.endswith("group") for name in ran] == [True, False]


@pytest.mark.parametrize(
    "attrs,opset",
    [
        ({"k": 3, "axis": 0}, 9),
        ({}, 10),
        ({"largest": 0}, 11),
        ({"largest": 1, "sorted": 1, "axis": 0}, 11),
    ],
)
def test_top_elements_agree_with_onnxruntime(attrs, opset):
    x = rng(3).integers(-4, 5, (5, 6)).astype(np.float32)
    inputs = [x] if opset < 10 else [x, np.array([3], np.int64)]
    want = onnxruntime_result("TopK", inputs, attrs, opset, n_outputs=2)
    values, numbers = imported("TopK", inputs, attrs, opset, consts=(1,), n_outputs=2)
    np.testing.assert_array_equal(evaluate(values, inputs), want[0])
    np.testing.assert_array_equal(evaluate(numbers, inputs), want[1])


def test_more_elements_than_there_are():
    with pytest.raises(ShapeError, match=r"top 5 .* only 4"):
        TopK(5, 1).infer([TensorType((3, 4))])


@pytest.mark.parametrize(
    "attrs,k",
    [({}, None), ({"upper": 0}, None), ({}, 2), ({"upper": 0}, -1), ({}, -9), ({"upper": 0}, 9)],
)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_triangles_agree_with_onnxruntime(attrs, k, dtype):
    inputs = [normal((2, 4, 5)).astype(dtype), None if k is None else np.array(k, np.int64)]
    want = onnxruntime_result("Trilu", inputs[: 1 + (k is not None)], attrs, 14)[0]
    got = evaluate(imported("Trilu", inputs, attrs, 14, consts=(1,)), inputs)
    np.testing.assert_array_equal(got, want)


ONE_HOT = [
    (np.array([[0, 2], [-1, 7]], np.int64), {}),
    (np.array([1, 0, -3], np.int64), {"axis": 0}),
    (np.array([[0, 2], [1, 1]], np.int64), {"axis": 1}),
    (np.array([0, 2, 3], np.float32), {"axis": -2}),
]


@pytest.mark.parametrize("indices,attrs", ONE_HOT)
def test_one_hot_agrees_with_onnxruntime(device, indices, attrs):
    inputs = [indices, np.array(3, indices.dtype), np.array([0.25, 4.0], np.float32)]
    want = onnxruntime_result("OneHot", inputs, attrs, 11)[0]
    made = imported("OneHot", inputs, attrs, 11, consts=(1,))
    np.testing.assert_array_equal(evaluate(made, inputs), want)
    np.testing.assert_array_equal(on_device(device, made, inputs), want)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_one_hot_of_more_than_its_indices_can_count(device, dtype):
    """Of a depth of 300 the numbers from 256 on are no uint8; they are not 0, 1, 2 again."""
    inputs = [np.array([0, 2, 127], dtype), np.array(300, np.int64), np.array([0, 1], np.float32)]
    made = imported("OneHot", inputs, {}, 11, consts=(1,))
    want = (np.arange(300) == inputs[0][:, None]).astype(np.float32)
    np.testing.assert_array_equal(evaluate(made, inputs), want)
    np.testing.assert_array_equal(on_device(device, made, inputs), want)


def on_device(device, source, inputs):
    """The value of an imported source, all of its nodes run on a device."""
    types = {f"i{k}": TensorType(a.shape, _dtype(a)) for k, a in enumerate(inputs)}
    nodes, consts = [], {}

    def place(item):
        if isinstance(item, int):
            return f"i{item}"
        name = f"v{len(types)}"
        if isinstance(item, np.ndarray):
            consts[name], types[name] = item, TensorType(item.shape, _dtype(item))
            return name
        feeds = tuple(place(each) for each in item.inputs)
        name = f"v{len(types)}"
        types[name] = item.spec.infer([types[n] for n in feeds])[0]
        nodes.append(Node(name, item.spec, feeds, (name,)))
        return name

    out = place(source)
    fed = tuple(f"i{k}" for k in range(len(inputs)))
    graph = check(Graph(tuple(nodes), types, consts, fed, {"y": out}))
    with Session(graph, select(device), Options(fuse=False)) as session:
        return session({f"i{k}": a for k, a in enumerate(inputs)})["y"]


def _dtype(array):
    from clnn.types import dtype_of

    return dtype_of(array.dtype)
