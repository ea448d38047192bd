"""Windows whose pads hang on the extents, and post-ops that fuse at some: right at every shape of a session."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import clnn
from clnn.ops.conv import depthwise

RNG = np.random.default_rng(11)
SHAPES = [(1, 8, 8), (1, 7, 7), (2, 9, 8), (1, 13, 16), (3, 16, 11), (1, 8, 8)]
CHANNELS = 16


def network(nodes, **consts):
    """A network of x (n, 16, h, w), with a Relu in front."""
    rows = [helper.make_node("Relu", ["x"], ["r"]), *nodes]
    graph = helper.make_graph(
        rows,
        "windows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", CHANNELS, "h", "w"))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in consts.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def pooling(op, pad, **more):
    size = {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": pad, **more}
    return network([helper.make_node(op, ["r"], ["y"], **size)])


def larger(op):
    """A window that exceeds images of 7 and 8 by less than a stride."""
    counts = {"count_include_pad": 1} if op == "AveragePool" else {}
    size = {"kernel_shape": [9, 9], "strides": [4, 4], **counts}
    return network([helper.make_node(op, ["r"], ["y"], **size)])


def convolution(pad, shape, **more):
    node = helper.make_node("Conv", ["r", "w"], ["y"], auto_pad=pad, **more)
    return network([node], w=random(*shape))


def separable(pad):
    """A filter per channel and a 1x1 convolution, which become one node."""
    nodes = [
        helper.make_node("Conv", ["r", "f"], ["m"], auto_pad=pad, group=CHANNELS, strides=[2, 2]),
        helper.make_node("Relu", ["m"], ["q"]),
        helper.make_node("Conv", ["q", "w"], ["y"]),
    ]
    return network(nodes, f=random(CHANNELS, 1, 3, 3), w=random(24, CHANNELS, 1, 1))


def beside_product(group=CHANNELS):
    """A convolution to which a product of matrices is added whose channels are not innermost."""
    nodes = [
        helper.make_node("Conv", ["r", "f"], ["d"], pads=[1] * 4, group=group),
        helper.make_node("Shape", ["r"], ["s"]),
        helper.make_node("Reshape", ["r", "flat"], ["m"]),
        helper.make_node("MatMul", ["w", "m"], ["p"]),
        helper.make_node("Reshape", ["p", "s"], ["q"]),
        helper.make_node("Add", ["q", "d"], ["y"]),
    ]
    flat = np.array([0, CHANNELS, -1])
    filters = random(CHANNELS, CHANNELS // group, 3, 3)
    return network(nodes, f=filters, w=random(CHANNELS, CHANNELS), flat=flat)


def broadcast(op):
    """A sum with a mean over the image, which has the sum's shape where the image is one pixel."""
    window = {"kernel_shape": [8, 8], "strides": [8, 8]}
    nodes = [
        helper.make_node(op, ["r", *(["w"] if op == "Conv" else [])], ["p"], **window),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Sub", ["g", "p"], ["s"]),
        helper.make_node("Max", ["s", "g"], ["y"]),
    ]
    return network(nodes, **({"w": random(8, CHANNELS, 8, 8)} if op == "Conv" else {}))


NETWORKS = {
    **{
        f"{op} {pad}": pooling(op, pad)
        for op in ("MaxPool", "AveragePool", "LpPool")
        for pad in ("SAME_UPPER", "SAME_LOWER")
        if (op, pad) != ("LpPool", "SAME_LOWER")
    },
    **{f"{op} larger than some": larger(op) for op in ("MaxPool", "AveragePool", "LpPool")},
    "conv": convolution("SAME_UPPER", (24, CHANNELS, 3, 3), strides=[2, 2]),
    "conv 5x5 lower": convolution("SAME_LOWER", (24, CHANNELS, 5, 5), strides=[3, 2]),
    "depthwise": convolution("SAME_UPPER", (CHANNELS, 1, 3, 3), strides=[2, 2], group=CHANNELS),
    "depthwise 7x7": convolution("SAME_UPPER", (CHANNELS, 1, 7, 7), group=CHANNELS),
    "depthwise beside a product": beside_product(),
    "3x3 beside a product": beside_product(1),
    "separable": separable("SAME_UPPER"),
    "separable lower": separable("SAME_LOWER"),
    **{f"broadcast {op}": broadcast(op) for op in ("MaxPool", "AveragePool", "Conv")},
}


def test_rows_copied_once_are_right_at_every_shape(device, monkeypatch):
    monkeypatch.setattr(depthwise, "PAGES", 0)
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    seen, variant = [], depthwise._variant
    monkeypatch.setattr(depthwise, "_variant", lambda *at: seen.append(at[1].near) or variant(*at))
    check("depthwise 7x7", device)
    assert any(seen)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_shape_is_right(name, kind, device, monkeypatch):
    monkeypatch.setenv("CLNN_DEVICE_KIND", kind)
    check(name, device)


def check(name, device):
    peer = onnxruntime.InferenceSession(NETWORKS[name], providers=["CPUExecutionProvider"])
    options = clnn.Options(specialise="never")
    with clnn.compile_model(NETWORKS[name], device, options) as session:
        for n, height, width in SHAPES[:1] * ("broadcast" in name) + [
            (n, h + 8 * ("broadcast" in name), w) for n, h, w in SHAPES
        ]:
            x = random(n, CHANNELS, height, max(width, 8))
            (want,) = peer.run(None, {"x": x})
            got = session({"x": x})["y"]
            assert got.shape == want.shape
            assert np.abs(got - want).max() <= 1e-5 * max(1, np.abs(want).max()), x.shape
