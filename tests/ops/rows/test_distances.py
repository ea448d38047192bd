from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from harness import check_op, normal
from onnx import helper
from onnx_models import model, tensor, value

import clnn
from clnn.errors import DTypeError, ShapeError
from clnn.ops.rows.distances import Distances
from clnn.types import F32, I32, TensorType


@pytest.mark.parametrize("rows", [1, 8, 13])
@pytest.mark.parametrize("columns", [1, 5, 16, 37, 530])
def test_extents(device, rows, columns):
    check_op(device, Distances(), [normal((rows, 7)), normal((7, columns), 1)])


@pytest.mark.parametrize("orders", [{"i1": (1, 0)}, {"o0": (1, 0)}, {"i0": (1, 0)}])
def test_orders_of_memory(device, orders):
    check_op(device, Distances(), [normal((9, 4)), normal((4, 20), 1)], orders=orders)


def test_one_coordinate_and_none(device):
    check_op(device, Distances(), [normal((9, 1)), normal((1, 20), 1)], consts=(1,))
    check_op(device, Distances(), [normal((9, 0)), normal((0, 20), 1)])


def test_rows_far_from_zero(device):
    rows = normal((12, 30)) + 1000
    check_op(device, Distances(), [rows, np.ascontiguousarray(rows.T)], tolerance=1e-6)


def test_what_does_not_fit():
    a, b = TensorType((3, 4), F32), TensorType((5, 6), F32)
    with pytest.raises(ShapeError, match="as long"):
        Distances().infer([a, b])
    with pytest.raises(DTypeError, match="int32"):
        Distances().infer([a, TensorType((4, 6), I32)])


def scan(width, axes_input=False, flipped=False, name="next_out"):
    """scikit-learn's distances, as its exporter writes them."""
    state, row = value("next_in", (None, width)), value("next", (width,))
    given = ["next", "next_in"] if flipped else ["next_in", "next"]
    attrs = {} if axes_input else {"axes": [1]}
    nodes = [
        helper.make_node("Identity", ["next_in"], ["next_out"]),
        helper.make_node("Sub", given, ["difference"]),
        helper.make_node(
            "ReduceSumSquare",
            ["difference", "axes"] if axes_input else ["difference"],
            ["sums"],
            keepdims=0,
            **attrs,
        ),
        helper.make_node("Identity", ["sums"], ["scan_out"]),
    ]
    axes = [tensor("axes", np.array([1]))] if axes_input else []
    outs = [value(name, (None, width)), value("scan_out", (None,))]
    body = helper.make_graph(nodes, "body", [state, row], outs, axes)
    return helper.make_node("Scan", ["x", "rows"], ["last", "all"], body=body, num_scan_inputs=1)


def network(width, **more):
    rows = tensor("rows", normal((40, 6), 1))
    axes = more.get("axes_input", False)
    made = model(
        [scan(width, **more)], [value("x", ("n", 6))], initializers=[rows], opset=18 if axes else 13
    )
    del made.graph.output[:]
    made.graph.output.extend([value("last", ("n", 6)), value("all", (40, "n"))])
    return made


@pytest.mark.parametrize(
    "more", [{}, {"axes_input": True}, {"flipped": True}], ids=["plain", "axes", "flipped"]
)
def test_a_scan_over_rows_is_one_kernel(device, more):
    proto = network(6, **more)
    engine = onnxruntime.InferenceSession(proto.SerializeToString())
    with clnn.compile_model(proto, device) as session:
        assert not hasattr(session, "stages")
        for count in (1, 7, 33):
            x = normal((count, 6), count)
            x[0] = normal((40, 6), 1)[3]
            outputs = session.run(None, {"x": x})
            assert outputs[1][3, 0] == 0
            for got, want in zip(outputs, engine.run(None, {"x": x}), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, strict=True)


def test_other_scans_stay_loops():
    from clnn.importers.onnx.distances import with_distances

    proto = network(6)
    assert {n.op_type for n in with_distances(proto).graph.node} >= {"CDist"}
    for change in ("keepdims", "axes", "op", "rank", "state", "type"):
        other = type(proto)()
        other.CopyFrom(proto)
        body = next(a.g for a in other.graph.node[0].attribute if a.name == "body")
        if change in ("keepdims", "axes"):
            (attribute,) = [a for a in body.node[2].attribute if a.name == change]
            attribute.CopyFrom(helper.make_attribute(change, 1 if change == "keepdims" else [0]))
        elif change == "op":
            body.node[1].op_type = "Add"
        elif change == "rank":
            body.input[1].CopyFrom(value("next", None))
        elif change == "state":
            body.node[0].op_type = "Neg"
        else:
            body.input[0].type.tensor_type.elem_type = 11
        assert with_distances(other) is other, change
