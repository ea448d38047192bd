"""DeformConv as onnxruntime has it, in one and several groups, and with extents that are known in the run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from harness import normal, rng
from reference_engines import onnxruntime_result
from together import evaluate, imported

import clnn
from clnn.errors import ShapeError

GEOMETRIES = {
    "plain": ({}, (3, 3)),
    "padded": ({"pads": [1, 1, 1, 1]}, (3, 3)),
    "odd": ({"pads": [0, 2, 1, 1], "strides": [2, 1], "dilations": [1, 2]}, (2, 3)),
    "point": ({}, (1, 1)),
}


def inputs_of(attrs, kernel, group=1, offset_group=1, bias=True, masked=True, size=(7, 8), count=2):
    """x, weights, offsets, bias and mask."""
    rank = len(kernel)
    pads, strides = attrs.get("pads", [0] * 2 * rank), attrs.get("strides", [1] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    outs = [
        (size[a] + pads[a] + pads[a + rank] - dilations[a] * (kernel[a] - 1) - 1) // strides[a] + 1
        for a in range(rank)
    ]
    places = offset_group * int(np.prod(kernel))
    moves = rng(5).uniform(-2, 2, (count, places * rank, *outs)).astype(np.float32)
    return [
        normal((count, 8, *size), 1),
        normal((6 * group, 8 // group, *kernel), 2),
        moves,
        normal((6 * group,), 3) if bias else None,
        normal((count, places, *outs), 4) if masked else None,
    ]


@pytest.mark.parametrize("consts", [(), (1, 3)])
@pytest.mark.parametrize(
    "bias, masked", [(True, True), (True, False), (False, True), (False, False)]
)
@pytest.mark.parametrize("group, offset_group", [(1, 1), (2, 1), (1, 2), (4, 8)])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_as_onnxruntime_has_it(geometry, group, offset_group, bias, masked, consts):
    attrs, kernel = GEOMETRIES[geometry]
    inputs = inputs_of(attrs, kernel, group, offset_group, bias, masked)
    attrs = {**attrs, "group": group, "offset_group": offset_group, "kernel_shape": kernel}
    given = inputs if masked else inputs[:4] if bias else inputs[:3]
    (want,) = onnxruntime_result("DeformConv", given, attrs, 22, out_types=(1,))
    consts = tuple(k for k in consts if k < len(given) and given[k] is not None)
    got = evaluate(imported("DeformConv", given, attrs, 22, consts), given)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel, size", [((3,), (9,)), ((2, 1, 3), (4, 3, 5))])
def test_lines_and_volumes(kernel, size):
    """onnxruntime has images alone; zeros as offsets give the plain convolution."""
    inputs = inputs_of({}, kernel, size=size, masked=False)
    inputs[2][:] = 0
    (want,) = onnxruntime_result("Conv", [inputs[0], inputs[1], inputs[3]])
    got = evaluate(imported("DeformConv", inputs[:4], {}, 22), inputs[:4])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_line_is_an_image_of_one_row():
    x, w, moves, bias, mask = inputs_of({}, (3,), size=(9,))
    got = evaluate(
        imported("DeformConv", [x, w, moves, bias, mask], {}, 22), [x, w, moves, bias, mask]
    )
    pairs = np.stack([np.zeros_like(moves), moves], 2).reshape(2, 6, 1, -1)
    image = [x[:, :, None], w[:, :, None], pairs, bias, mask[:, :, None]]
    (want,) = onnxruntime_result("DeformConv", image, {}, 22, out_types=(1,))
    np.testing.assert_allclose(got, want[:, :, 0], rtol=1e-4, atol=1e-4)


def test_slices_of_a_volume_are_images():
    """A window of one slice, moved by whole slices, is the window in another image."""
    x, w, moves, bias, mask = inputs_of({}, (1, 2, 3), size=(4, 5, 6))
    moves = moves.reshape(2, 6, 3, *moves.shape[2:])
    moves[:, :, 0] = 1
    inputs = [x, w, moves.reshape(2, 18, *moves.shape[3:]), bias, mask]
    got = evaluate(imported("DeformConv", inputs, {}, 22), inputs)
    assert np.allclose(got[:, :, 3], bias[:, None, None]), "behind the last slice there is nothing"
    for depth in range(3):
        flat = moves[:, :, 1:, depth].reshape(2, 12, *moves.shape[4:])
        image = [x[:, :, depth + 1], w[:, :, 0], flat, bias, mask[:, :, depth]]
        (want,) = onnxruntime_result("DeformConv", image, {}, 22, out_types=(1,))
        np.testing.assert_allclose(got[:, :, depth], want, rtol=1e-4, atol=1e-4)


def network():
    """Offsets and masks that a convolution makes of the image, as such networks have them."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    same = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    nodes = [
        node("Conv", ["x", "wo"], ["o"], **same),
        node("Conv", ["x", "wm"], ["l"], **same),
        node("Sigmoid", ["l"], ["m"]),
        node("DeformConv", ["x", "w", "o", "b", "m"], ["d"], **same),
        node("Relu", ["d"], ["y"]),
    ]
    arrays = {
        "wo": normal((18, 8, 3, 3), 1) / 4,
        "wm": normal((9, 8, 3, 3), 2) / 4,
        "w": normal((16, 8, 3, 3), 3) / 8,
        "b": normal((16,), 4),
    }
    weights = [onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()]
    shape = ["n", 8, "h", "w_"]
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, shape)], [info("y", 1, None)], weights)
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10
    )


def test_any_shape(device):
    """One session of a network, with images of other sizes and counts."""
    import onnxruntime

    model = network()
    other = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    with clnn.compile_model(model, device) as session:
        built = None
        for k, (n, h, w) in enumerate([(1, 9, 8), (2, 17, 24), (3, 5, 31)]):
            x = normal((n, 8, h, w), k)
            (want,) = other.run(None, {"x": x})
            np.testing.assert_allclose(session({"x": x})["y"], want, rtol=1e-3, atol=1e-3)
            assert built in (None, session.build_counts[1])
            built = session.build_counts[1]


def test_wrong_weights_are_refused():
    inputs = inputs_of({}, (3, 3))
    with pytest.raises(ShapeError, match=r"kernel_shape \[2, 2\] and weights"):
        imported("DeformConv", inputs, {"kernel_shape": [2, 2]}, 22)
    with pytest.raises(ShapeError, match="as many axes"):
        imported("DeformConv", [inputs[0], inputs[1][..., 0], *inputs[2:]], {}, 22)
