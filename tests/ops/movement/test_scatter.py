from __future__ import annotations

import numpy as np
import onnx
import pytest
from harness import check_op, normal, rng
from reference_engines import onnxruntime_result
from together import evaluate, imported

import clnn
from clnn.errors import DTypeError, ShapeError
from clnn.ops.movement.scatter import REDUCTIONS, ScatterElements, ScatterND
from clnn.ops.onnx_registry import Emit
from clnn.types import BOOL, F32, I64, TensorType

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}


def indices(extent, shape, seed=0):
    """Indices from both ends of an axis, many of them twice."""
    return rng(seed).integers(-extent, extent, shape)


def check(device, spec, arrays, **how):
    """Check every variant: to the bit, sums and products of float to their rounding."""
    exact = spec.reduction not in ("add", "mul") or arrays[0].dtype.kind != "f"
    check_op(device, spec, arrays, **how, **({"tolerance": 0} if exact else {}))


def by_loops(data, places, updates, reduction):
    """The definition of ONNX, with onnxruntime's choice between NaN and another number."""
    out = data.copy()
    for place, update in zip(places, updates, strict=True):
        if reduction == "none":
            out[place] = update
        elif reduction in ("add", "mul"):
            out[place] = out[place] + update if reduction == "add" else out[place] * update
        else:
            keep = out[place] > update if reduction == "max" else out[place] < update
            out[place] = np.where(keep, out[place], update)
    return out


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_elements_along_every_axis(device, axis, reduction):
    data, i = normal((3, 18, 5, 6)), indices((3, 18, 5, 6)[axis], (2, 9, 4, 5))
    spec = ScatterElements(axis, reduction)
    check(device, spec, [data, i, normal(i.shape, 1)])
    check(device, spec, [data, i, normal(i.shape, 1)], orders=NHWC, border=1)


@pytest.mark.parametrize("depth", [0, 1, 2, 4])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_slices_by_tuples(device, depth, reduction):
    data = normal((4, 5, 3, 19))
    i = np.stack([indices(d, (2, 6), d) for d in data.shape[:depth]], -1) if depth else None
    i = np.zeros((2, 6, 0), np.int64) if i is None else i
    updates = normal((2, 6, *data.shape[depth:]), 1)
    check(device, ScatterND(reduction), [data, i, updates])
    check(device, ScatterND(reduction), [data, i, updates], consts=(1,), border=1)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_order_and_nan_are_onnxruntimes(device, reduction):
    data = np.float32([np.nan, 1, 2, 3, 0, 5])
    i, updates = np.array([0, 1, 2, 2, -2, 2]), np.float32([5, np.nan, 7, -1, 4, 0.5])
    want = by_loops(data, i, updates, reduction)
    for op_type, places in (("ScatterElements", i), ("ScatterND", i[:, None])):
        attrs, inputs = {"reduction": reduction}, [data, places, updates]
        np.testing.assert_array_equal(onnxruntime_result(op_type, inputs, attrs, 18)[0], want)
        assert np.array_equal(evaluate(imported(op_type, inputs, attrs), inputs), want, True)
    for spec, places in ((ScatterElements(0, reduction), i), (ScatterND(reduction), i[:, None])):
        (got,) = spec.reference(data, places, updates)
        np.testing.assert_array_equal(got, want)
        check(device, spec, [data, places, updates])


@pytest.mark.parametrize("dtype", ["float16", "bool", "int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_types(device, dtype, reduction):
    if reduction != "none" and (dtype == "float16" or (dtype == "bool" and reduction != "add")):
        return
    data = rng().integers(0, 2 if dtype == "bool" else 100, (7, 33)).astype(dtype)
    i, updates = indices(7, (9, 1)), rng(1).integers(0, 2, (9, 33)).astype(dtype)
    updates = updates if dtype == "bool" else (updates * 99 + 1).astype(dtype)
    check(device, ScatterND(reduction), [data, i, updates])
    spec = ScatterElements(1, reduction)
    check(device, spec, [data, indices(33, (7, 20), 2), updates[:7, :20]])


@pytest.mark.parametrize("shape,count", [((1,), 1), ((5,), 0), ((300,), 900), ((1, 1), 3)])
def test_small_shapes_and_one_line(device, shape, count):
    i = indices(shape[0], (count, *(1 for _ in shape[1:])))
    updates = normal(i.shape, 1)
    check(device, ScatterElements(0, "add"), [normal(shape), i, updates])
    tuples = i.reshape(count, 1)
    check(device, ScatterND("add"), [normal(shape), tuples, normal((count, *shape[1:]))])


def test_indices_out_of_range(device):
    """Fed ones write to the nearest valid place, constant ones are refused."""
    data, i = np.zeros(4, np.float32), np.array([0, 9, -9])
    text = '<ir_version: 8, opset_import: ["" : 18]>\n'
    text += (
        "g (float[4] x, int64[3] i, float[3] u) => (float[4] y) { y = ScatterElements(x, i, u) }"
    )
    with clnn.compile_model(onnx.parser.parse_model(text), device) as session:
        got = session({"x": data, "i": i, "u": np.float32([1, 2, 3])})["y"]
    np.testing.assert_array_equal(got, np.float32([3, 0, 0, 2]))
    for op_type, places in (("ScatterElements", i), ("ScatterND", i[:, None])):
        with pytest.raises(ShapeError, match="index 9 is outside of extent"):
            imported(op_type, [data, places, normal((3,))], consts=(1,))


@pytest.mark.parametrize(
    "spec,types,match",
    [
        (ScatterElements(0), ((4,), (3, 1), (3, 1)), "ranks must be equal"),
        (ScatterElements(0), ((4, 2), (3, 3), (3, 3)), "no other axis"),
        (ScatterElements(0), ((4,), (3,), (2,)), "updates"),
        (ScatterElements(0), ((0,), (3,), (3,)), "empty axis"),
        (ScatterElements(0, "mean"), ((4,), (3,), (3,)), "reduction 'mean'"),
        (ScatterND(), ((4,), (3, 2), (3,)), "tuples"),
        (ScatterND(), ((4, 5), (3, 1), (3, 4)), r"must be \(3, 5\)"),
    ],
)
def test_what_does_not_fit_is_refused(spec, types, match):
    data, i, updates = types
    with pytest.raises(ShapeError, match=match):
        spec.infer([TensorType(data), TensorType(i, I64), TensorType(updates)])


def test_types_that_do_not_fit_are_refused():
    four, places = TensorType((4,)), TensorType((4,), I64)
    with pytest.raises(DTypeError, match="must be integers"):
        ScatterElements(0).infer([four, four, four])
    with pytest.raises(DTypeError, match="int64 to float32"):
        ScatterElements(0).infer([four, places, places])
    bools = TensorType((4,), BOOL)
    with pytest.raises(DTypeError, match="bool"):
        ScatterElements(0, "max").infer([bools, places, bools])
    assert ScatterND().infer([four, TensorType((2, 1), I64), TensorType((2,), F32)]) == (four,)


def test_any_number_of_updates(device):
    """One set of kernels serves any number of rows and updates."""
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[rows, 6] x, int64[count, 1] i, float[count, 6] u, int64[rows, 2] e)
      => (float[rows, 6] y, float[rows, 6] z) {
      y = ScatterND<reduction = "add">(x, i, u)
      v = Slice(x, zero, two, one)
      z = ScatterElements<axis = 1, reduction = "max">(y, e, v)
    }"""
    proto = onnx.parser.parse_model(text)
    for name, number in (("zero", 0), ("two", 2), ("one", 1)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([number]), name))
    slices = proto.graph.node[1]
    del slices.input[:]
    slices.input.extend(["x", "zero", "two", "one"])
    with clnn.compile_model(proto, device) as session:
        built = None
        for rows, count in ((8, 5), (20, 3), (9, 40)):
            x, u = normal((rows, 6)), normal((count, 6), 1)
            i, e = indices(rows, (count, 1)), indices(6, (rows, 2), 3)
            got = session({"x": x, "i": i, "u": u, "e": e})
            y = by_loops(x, i[:, 0], u, "add")
            np.testing.assert_allclose(got["y"], y, rtol=1e-6)
            z = y.copy()
            for k in range(2):
                lines = np.arange(rows)
                z[lines, e[:, k]] = np.maximum(z[lines, e[:, k]], x[:, k])
            np.testing.assert_allclose(got["z"], z, rtol=1e-6)
            built = built or session.build_counts
        assert session.build_counts == built


def kinds_of(source):
    """The kinds of emitted nodes that join or scatter, from the last one on."""
    if not isinstance(source, Emit):
        return []
    own = [source.spec.kind] if source.spec.kind in ("concat", "scatter_nd") else []
    return [*own, *(kind for each in source.inputs for kind in kinds_of(each))]


def tuples_of(*ranges):
    """All index tuples of a part of a tensor, in order."""
    return np.stack(np.meshgrid(*ranges, indexing="ij"), -1).astype(np.int64)


PARTS = {
    "whole": ((3, 4, 5), (range(3), range(4)), []),
    "whole, counted from the end": ((3, 4, 5), (range(-3, 0), range(4), range(5)), []),
    "a part of the last axis": ((3, 4, 5), (range(3), range(4), range(1, 3)), ["concat"]),
    "the end of an axis": ((3, 4, 5), (range(3), range(2, 4)), ["concat"]),
    "parts of two axes": ((3, 4, 5), (range(1, 2), range(4), range(1, 5)), ["concat", "concat"]),
    "one slice": ((3, 4, 5), (range(1, 2),), ["concat"]),
    "one element": ((3, 4, 5), (range(2, 3), range(1, 2), range(4, 5)), ["concat"] * 3),
    "every second": ((3, 4, 5), (range(3), range(0, 4, 2)), ["scatter_nd"]),
    "backwards": ((3, 4, 5), (range(2, -1, -1),), ["scatter_nd"]),
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_named_by_constant_tuples_in_order_are_joined(part):
    shape, ranges, kinds = PARTS[part]
    data, i = normal(shape), tuples_of(*ranges)
    updates = normal((*i.shape[:-1], *shape[len(ranges) :]), 1)
    made = imported("ScatterND", [data, i, updates], consts=(1,))
    assert kinds_of(made) == kinds
    want = data.copy()
    want[tuple(i[..., k] for k in range(len(ranges)))] = updates
    np.testing.assert_array_equal(evaluate(made, [data, i, updates]), want)


def test_tuples_out_of_order_or_added_stay():
    data, i = normal((4, 5)), np.array([[0], [2], [1], [3]])
    for tuples, updates, how in (
        (i, data, {}),
        (np.sort(i, 0), data, {"reduction": "add"}),
        (np.array([[1], [1]]), data[:2], {}),
    ):
        made = imported("ScatterND", [data, tuples, updates], how, consts=(1,))
        assert kinds_of(made) == ["scatter_nd"]
