from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, rng
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_engines import onnxruntime_result
from together import evaluate, imported

from clnn.errors import ShapeError
from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes import optimise
from clnn.ops.conv.spec import Conv2d
from clnn.ops.movement.pad import MODES, Pad
from clnn.ops.onnx_registry import Unsupported
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.types import TensorType

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}
MIXED = {"i0": (0, 2, 3, 1), "o0": (0, 1, 2, 3)}


LAYOUTS = [("constant", {}), ("wrap", {}), ("reflect", MIXED), *((m, NHWC) for m in MODES)]


@pytest.mark.parametrize("mode,orders", LAYOUTS)
def test_image_borders(device, mode, orders):
    spec = Pad((0, 0, 1, 3), (0, 0, 2, 0), mode, 0.5)
    ran = check_op(device, spec, [normal((2, 19, 5, 6))], orders=orders, tolerance=0)
    assert len(ran) == 2


@pytest.mark.parametrize("mode", MODES)
def test_channel_pads(device, mode):
    check_op(
        device,
        Pad((0, 2, 0, 0), (0, 5, 0, 0), mode),
        [normal((2, 17, 3, 4))],
        orders=NHWC,
        tolerance=0,
    )


@pytest.mark.parametrize("mode", MODES)
def test_every_axis_at_once_beside_a_border(device, mode):
    check_op(
        device,
        Pad((1, 2, 3, 1), (1, 0, 2, 4), mode),
        [normal((3, 4, 5, 6))],
        orders=NHWC,
        border=2,
        tolerance=0,
    )


@pytest.mark.parametrize("mode", MODES)
def test_negative_pads_crop_first(device, mode):
    """What the modes repeat is what is left: taken-away elements do not come back."""
    spec = Pad((0, 0, -2, 2), (0, -1, 3, -1), mode)
    check_op(device, spec, [normal((1, 3, 6, 5))], orders=NHWC, tolerance=0)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float16", "float64", "int16", "bool"])
def test_element_types(device, dtype):
    x = rng().integers(0, 2, (2, 3, 5)).astype(dtype)
    check_op(device, Pad((0, 1, 2), (0, 0, 3), "constant", 1), [x], tolerance=0)


@pytest.mark.parametrize("value", [np.nan, -np.inf, -0.0, 1e-40, 3.4e38])
def test_values_of_the_padding(device, value):
    """The border holds the value bit by bit, apart from the many forms of NaN."""
    spec = Pad((2,), (1,), "constant", value)
    x = normal((5,))
    types = {"x": TensorType((5,)), "y": TensorType((8,))}
    graph = check(Graph((Node("pad", spec, ("x",), ("y",)),), types, {}, ("x",), {"y": "y"}))
    with Session(graph, select(device), Options()) as session:
        got = session({"x": x})["y"]
    want = np.concatenate([np.full(2, value, np.float32), x, np.full(1, value, np.float32)])
    real = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~real)
    np.testing.assert_array_equal(got[real].view(np.uint32), want[real].view(np.uint32))


@pytest.mark.parametrize(
    "shape,before,after",
    [
        ((), (), ()),
        ((1,), (0,), (1,)),
        ((0, 3), (1, 0), (1, 0)),
        ((4,), (-2,), (-2,)),
        ((1, 1), (0, 0), (0, 0)),
        ((0,), (0,), (1,)),
        ((3, 1), (0, 3), (0, 0)),
    ],
)
def test_small_shapes(device, shape, before, after):
    check_op(device, Pad(before, after, "constant", 2.0), [normal(shape)], tolerance=0)


@settings(max_examples=4, deadline=None)
@given(st.data())
def test_any_shape_and_pads(device, data):
    shape = tuple(data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=4)))
    mode = data.draw(st.sampled_from(MODES))
    pads = [data.draw(st.integers(-1, d - 2)) for d in (*shape, *shape)]
    order = data.draw(st.permutations(range(len(shape))))
    spec = Pad(tuple(pads[: len(shape)]), tuple(pads[len(shape) :]), mode, 3.0)
    check_op(device, spec, [normal(shape)], orders={"o0": tuple(order)}, tolerance=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pads", [[1, 2, 0, 1], [-1, 2, 1, -1], [1, 0, -2, 3], [0, -2, 3, 1]])
def test_reference_agrees_with_onnxruntime(mode, pads):
    inputs = [normal((4, 5)), np.array(pads, np.int64)]
    want = onnxruntime_result("Pad", inputs, {"mode": mode}, opset=19, consts=(1,))[0]
    got = evaluate(imported("Pad", inputs, {"mode": mode}, 19, consts=(1,)), inputs)
    np.testing.assert_array_equal(got, want)


def test_import_of_older_forms():
    x = normal((2, 3))
    attrs = {"pads": [0, 1, 0, 2], "value": 4.0}
    assert imported("Pad", [x], attrs, 2).spec == Pad((0, 1), (0, 2), "constant", 4.0)
    inputs = [x, np.array([1, 2], np.int64), np.array(7.0, np.float32), np.array([-1])]
    made = imported("Pad", inputs, {}, 18, consts=(1, 2, 3))
    assert made.spec == Pad((0, 1), (0, 2), "constant", 7.0)
    assert imported("Pad", [x, np.zeros(4, np.int64)], {}, 18, consts=(1,)) == 0


def test_large_integer_values_stay_exact():
    inputs = [np.zeros((2,), np.int64), np.array([1, 0]), np.array(2**62 + 1)]
    made = imported("Pad", inputs, {}, 18, consts=(1, 2))
    assert made.spec.reference(inputs[0])[0][0] == 2**62 + 1


def test_import_refuses_what_is_not_constant_or_not_a_mode():
    x = normal((2, 3))
    with pytest.raises(Unsupported, match="pads"):
        imported("Pad", [x, np.zeros(4, np.int64)], {}, 18)
    with pytest.raises(Unsupported, match="symmetric"):
        imported("Pad", [x, np.zeros(4, np.int64)], {"mode": "symmetric"}, 18, consts=(1,))


@pytest.mark.parametrize(
    "spec,shape",
    [
        (Pad((0, 3), (0, 0), "reflect"), (2, 3)),
        (Pad((0, -2), (0, -2)), (2, 3)),
        (Pad((1, 0), (0, 0), "edge"), (0, 3)),
        (Pad((1,), (0,)), (2, 3)),
        (Pad((0, 3), (0, -1), "reflect"), (2, 4)),
    ],
)
def test_pads_that_do_not_fit_are_named(spec, shape):
    with pytest.raises(ShapeError, match=rf"{spec.before[-1]}.*\({shape[0]}, {shape[1]}\)"):
        spec.infer([TensorType(shape)])


def padded_convolution(value=0.0, before=(0, 0, 1, 2)):
    pad = Pad(before, (0, 0, 0, 1), "constant", value)
    conv = Conv2d(Window((3, 3), (1, 1), (1, 1), (0, 0), (0, 0)))
    x, w = TensorType((1, 4, 6, 5)), TensorType((8, 4, 3, 3))
    padded = pad.infer([x])[0]
    types = {"x": x, "w": w, "p": padded, "y": conv.infer([padded, w])[0]}
    weights = normal(w.shape, 1)
    nodes = (Node("pad", pad, ("x",), ("p",)), Node("conv", conv, ("p", "w"), ("y",)))
    return check(Graph(nodes, types, {"w": weights}, ("x",), {"y": "y"}))


@pytest.mark.parametrize("value,fused", [(0.0, True), (1.0, False)])
def test_zero_pads_of_convolutions_are_fused(device, value, fused):
    graph = padded_convolution(value)
    better = optimise(graph)
    assert [n.spec.kind for n in better.nodes] == (["conv2d"] if fused else ["pad", "conv2d"])
    x = normal((1, 4, 6, 5))
    padded = graph.nodes[0].spec.reference(x.astype(np.float64))[0]
    want = graph.nodes[1].spec.reference(padded, graph.consts["w"].astype(np.float64))[0]
    for each in (graph, better):
        with Session(each, select(device), Options(fuse=False)) as session:
            np.testing.assert_allclose(session({"x": x})["y"], want, atol=1e-4)


@pytest.mark.parametrize("before", [(0, 1, 0, 0), (0, 0, -1, 0)], ids=["channels", "negative"])
def test_pads_that_a_convolution_cannot_do_stay(before):
    pad = Pad(before, (0, 0, 1, 1), "constant", 0.0)
    x = TensorType((1, 4, 6, 5))
    padded = pad.infer([x])[0]
    conv = Conv2d(Window((3, 3), (1, 1), (1, 1), (0, 0), (0, 0)))
    w = TensorType((8, padded.shape[1], 3, 3))
    types = {"x": x, "w": w, "p": padded, "y": conv.infer([padded, w])[0]}
    nodes = (Node("pad", pad, ("x",), ("p",)), Node("conv", conv, ("p", "w"), ("y",)))
    graph = check(Graph(nodes, types, {"w": normal(w.shape)}, ("x",), {"y": "y"}))
    assert [n.spec.kind for n in optimise(graph).nodes] == ["pad", "conv2d"]
