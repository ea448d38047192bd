from __future__ import annotations

import numpy as np
import onnx
import pytest
from harness import check_op, normal, rng
from reference_engines import onnxruntime_result
from together import evaluate, imported

import clnn
from clnn.errors import DTypeError, ShapeError
from clnn.ops.resize.grid_sample import MODES, PADDINGS, GridSample
from clnn.types import F32, F64, TensorType

NHWC = (0, 2, 3, 1)


def case(spatial, outs, channels=6, reach=2.5, seed=0):
    """Positions of which a part lies far outside."""
    x = normal((2, channels, *spatial), seed)
    at = rng(seed + 1).uniform(-reach, reach, (2, *outs, len(spatial)))
    return [x, at.astype(np.float32)]


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spatial, outs", [((7,), (9,)), ((5, 8), (4, 3)), ((3, 5, 4), (2, 3, 5))])
def test_modes(device, spatial, outs, mode, padding, corners):
    check_op(device, GridSample(mode, padding, corners), case(spatial, outs), tolerance=1e-4)


@pytest.mark.parametrize("channels", [1, 5, 16, 24])
@pytest.mark.parametrize(
    "orders", [{"i0": NHWC, "o0": NHWC}, {"i0": NHWC}, {"i1": (3, 0, 2, 1)}, None]
)
def test_memory_orders_and_vectors(device, channels, orders):
    spec = GridSample("linear", "border")
    check_op(device, spec, case((5, 6), (3, 4), channels), orders=orders, border=1, tolerance=1e-4)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    "mode, spatial",
    [
        ("nearest", (5, 8)),
        ("linear", (5, 8)),
        ("cubic", (5, 8)),
        ("nearest", (3, 5, 4)),
        ("linear", (3, 5, 4)),
    ],
)
def test_as_onnxruntime_has_it(mode, spatial, padding, corners):
    """Also at positions on elements, between two of them, at the ends, and on axes of one element."""
    inputs = case(spatial, (6,) * len(spatial))
    steps = rng(3).integers(-9, 10, inputs[1].shape)
    fine = (steps / 4).astype(np.float32)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    for x, at in (
        inputs,
        (inputs[0], fine),
        (inputs[0][:, :, :1] if not corners else inputs[0], fine),
    ):
        (want,) = onnxruntime_result("GridSample", [x, at], attrs, 20, out_types=(1,))
        got = evaluate(imported("GridSample", [x, at], attrs, 20), [x, at])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
def test_an_axis_of_one_element_and_positions_that_are_none(device, mode, padding):
    x = normal((1, 3, 1, 4))
    at = np.array(
        [[[[0.3, 0.5], [-3, 2], [0, 1e30], [0, -1e30], [0, 3e38], [0.25, -0.0]]]], np.float32
    )
    check_op(device, GridSample(mode, padding, True), [x, at[..., :2, :]], tolerance=1e-4)
    for where in (at, np.full_like(at, np.nan), np.full_like(at, np.inf)):
        run(device, GridSample(mode, padding), x, where)
        run(device, GridSample(mode, padding, True), x, where)


def run(device, spec, x, at):
    """Nothing is read outside of x, whatever positions say."""
    from harness import single_node

    with clnn.compile_model(single_node(spec, [x, at]), device) as session:
        assert session({"i0": x, "i1": at})["o0"].shape == (1, 3, 1, 6)


def test_any_shape(device):
    """One session, with other extents of images and positions."""
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node(
        "GridSample", ["x", "g"], ["y"], mode="linear", padding_mode="reflection"
    )
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [info("x", 1, ["n", 8, "h", "w"]), info("g", 1, ["n", "p", "q", 2])],
        [info("y", 1, None)],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10
    )
    attrs = {"mode": "linear", "padding_mode": "reflection"}
    with clnn.compile_model(model, device) as session:
        for k, (n, h, w, p, q) in enumerate(
            [(1, 5, 6, 3, 4), (2, 9, 4, 7, 1), (3, 2, 2, 5, 5), (1, 1, 7, 1, 1)]
        ):
            x = normal((n, 8, h, w), k)
            g = rng(k).uniform(-2, 2, (n, p, q, 2)).astype(np.float32)
            (want,) = onnxruntime_result("GridSample", [x, g], attrs, 20, out_types=(1,))
            np.testing.assert_allclose(session({"x": x, "g": g})["y"], want, rtol=1e-4, atol=1e-4)
            if not k:
                built = session.build_counts[1]
        assert session.build_counts[1] == built


def test_wrong_inputs_are_refused():
    x = TensorType((2, 3, 4, 5))
    with pytest.raises(ShapeError, match=r"\(2, 6, 6, 3\)"):
        GridSample().infer([x, TensorType((2, 6, 6, 3))])
    with pytest.raises(ShapeError, match=r"\(1, 6, 6, 2\)"):
        GridSample().infer([x, TensorType((1, 6, 6, 2))])
    with pytest.raises(ShapeError, match="without elements"):
        GridSample().infer([TensorType((2, 3, 0, 5)), TensorType((2, 6, 6, 2))])
    with pytest.raises(DTypeError, match="float64"):
        GridSample().infer([x, TensorType((2, 6, 6, 2), F64)])
    assert GridSample().infer([x, TensorType((2, 6, 7, 2), F32)]) == (TensorType((2, 3, 6, 7)),)
