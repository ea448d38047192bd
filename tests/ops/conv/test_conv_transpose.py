from __future__ import annotations

import itertools
import re

import numpy as np
import onnx
import pytest
from harness import check_op, compare, normal
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from small_graphs import Builder
from targets import generate_for

import clnn
from clnn.api import load_graph
from clnn.errors import DTypeError, ShapeError
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.conv.transpose_phases import first_taps
from clnn.ops.movement.views import Reshape
from clnn.ops.shared.functions import PostOp
from clnn.target import Target
from clnn.types import F32, I32, TensorType

pytestmark = pytest.mark.dealt  # kernels that are slow to build


@pytest.fixture(autouse=True)
def vectors(monkeypatch):
    """Of which three output channels are few, whatever the processor has."""
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")


def case(
    n,
    ic,
    oc,
    spatial,
    kernel,
    strides=None,
    dilations=None,
    before=None,
    after=None,
    extra=None,
    group=1,
    post_ops=(),
    bias=True,
):
    """Return a spec whose output has its natural extents, and inputs for it."""
    rank = len(kernel)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    before, after, extra = before or (0,) * rank, after or (0,) * rank, extra or (0,) * rank
    extents = tuple(
        (i - 1) * s + d * (k - 1) + 1 - low - high + e
        for i, s, d, k, low, high, e in zip(
            spatial, strides, dilations, kernel, before, after, extra, strict=True
        )
    )
    spec = ConvTranspose(kernel, strides, dilations, before, extents, group, post_ops)
    x, w = normal((n, ic, *spatial)), normal((ic, oc // group, *kernel), 1)
    return spec, [x, w, normal((oc,), 2) if bias else None]


GEOMETRIES = {
    "k2s2": {"kernel": (2, 2), "strides": (2, 2)},
    "k4s2p1": {"kernel": (4, 4), "strides": (2, 2), "before": (1, 1), "after": (1, 1)},
    "k3s2p1e1": {
        "kernel": (3, 3),
        "strides": (2, 2),
        "before": (1, 1),
        "after": (1, 1),
        "extra": (1, 1),
    },
    "odd": {
        "kernel": (3, 5),
        "strides": (3, 2),
        "dilations": (2, 3),
        "before": (1, 0),
        "after": (0, 4),
    },
    "gaps": {"kernel": (1, 2), "strides": (3, 4), "extra": (2, 0)},
    "plain": {"kernel": (3, 3), "before": (2, 1), "after": (0, 1)},
}


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_geometries(device, geometry):
    group = 2 if geometry in ("odd", "gaps") else 1
    spec, inputs = case(2, 4, 20, (5, 9), group=group, **GEOMETRIES[geometry])
    ran = check_op(device, spec, inputs, consts=(1, 2))
    assert "spread" in ran[0] and "bordered" in ran[0] and "reference" in ran[-1]


@pytest.mark.parametrize("channels", [1, 8, 13, 33])
def test_channel_tails(device, channels):
    spec, inputs = case(1, 5, channels, (4, 6), **GEOMETRIES["k2s2"])
    check_op(device, spec, inputs, consts=(1, 2), only="spread")


@pytest.mark.parametrize("channels,geometry", [(2, "odd"), (16, "k2s2"), (21, "k4s2p1")])
def test_depthwise(device, channels, geometry):
    geometry = GEOMETRIES[geometry]
    spec, inputs = case(2, channels, channels, (5, 9), group=channels, **geometry)
    check_op(device, spec, inputs, consts=(1, 2), border=2, only="depthwise")


@pytest.mark.parametrize("ic,oc,group", [(16, 1, 1), (35, 3, 1), (22, 4, 2)])
def test_few_output_channels(device, ic, oc, group):
    spec, inputs = case(2, ic, oc, (5, 11), group=group, **GEOMETRIES["k3s2p1e1"])
    check_op(device, spec, inputs, consts=(1, 2), only="dot")


@pytest.mark.parametrize("channels", [(6, 20, 1), (12, 3, 1), (19, 19, 19)])
def test_output_larger_than_taps_reach(device, channels):
    """Far outputs are the bias alone; no border is asked for, so taps are checked."""
    ic, oc, group = channels
    spec, inputs = case(1, ic, oc, (4, 5), (3, 3), (2, 2), extra=(7, 1), group=group)
    assert not spec.padding_needs([TensorType((1, ic, 4, 5), F32)])
    assert check_op(device, spec, inputs, consts=(1, 2), only="checked")


def test_weights_and_bias_as_inputs(device):
    spec, inputs = case(2, 6, 10, (4, 5), group=2, **GEOMETRIES["odd"])
    assert check_op(device, spec, inputs) == ["conv_transpose_f32_k3x5_s3x2_reference"]


@pytest.mark.parametrize("channels", [(6, 20, 1), (12, 3, 1), (18, 18, 18)])
def test_one_spatial_axis(device, channels):
    ic, oc, group = channels
    spec, inputs = case(2, ic, oc, (11,), (5,), (3,), (2,), (1,), (2,), (1,), group=group)
    only = "reference" if oc == 20 else "bordered"
    check_op(device, spec, inputs, consts=(1, 2), border=1, only=only)


ROW_MAJOR, ODD_ORDER = {"i0": (0, 1, 2, 3)}, {"o0": (1, 0, 3, 2)}


@pytest.mark.parametrize("order,oc", [(ROW_MAJOR, 20), (ODD_ORDER, 3), (ROW_MAJOR | ODD_ORDER, 3)])
def test_other_memory_orders(device, order, oc):
    spec, inputs = case(2, 12, oc, (4, 5), **GEOMETRIES["k3s2p1e1"])
    ran = check_op(device, spec, inputs, consts=(1, 2), orders=order)
    assert ("dot" in ran[0]) == (order == ODD_ORDER)


@pytest.mark.parametrize("spatial", [(1, 1), (1, 13)])
def test_small_maps_without_bias(device, spatial):
    spec, inputs = case(1, 5, 18, spatial, bias=False, **GEOMETRIES["k4s2p1"])
    check_op(device, spec, inputs, consts=(1,), only="spread")


STEPS = {
    "relu": (PostOp("relu"),),
    "residual": (PostOp("add", operand=3), PostOp("relu")),
    "heavy": (PostOp("sigmoid"), PostOp("mul", operand=3, swapped=True)),
}


FUSED = [("relu", ()), ("heavy", (1, 19, 1, 1)), ("residual", (2, 19, 8, 12)), ("residual", ())]


STORED = {
    "spread": ((6, 20, 1), "k3s2p1e1", {}),
    "planes": ((6, 20, 1), "k3s2p1e1", {"orders": ROW_MAJOR}),
    "dot": ((22, 4, 2), "k3s2p1e1", {}),
    "depthwise": ((21, 21, 21), "k4s2p1", {}),
    "checked": ((6, 20, 1), "gaps", {"only": "checked"}),
    "reference": ((6, 10, 2), "odd", {"consts": (), "only": "reference"}),
}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("case_of", STORED.values(), ids=STORED)
def test_storage_in_16_bits(device, dtype, case_of):
    (ic, oc, group), geometry, more = case_of
    steps = (PostOp("relu"), PostOp("add", operand=3))
    geometry = GEOMETRIES[geometry] | ({"extra": (7, 1)} if geometry == "gaps" else {})
    spec, inputs = case(2, ic, oc, (4, 5), group=group, post_ops=steps, **geometry)
    inputs.append(normal((2, oc, *spec.extents), 3))
    given = {"consts": (1, 2), "only": "bordered", **more}
    assert check_op(device, spec, inputs, dtype=dtype, **given)


@pytest.mark.parametrize("post_ops,shape", FUSED, ids=str)
def test_fused_steps(device, post_ops, shape):
    spec, inputs = case(2, 4, 19, (4, 6), post_ops=STEPS[post_ops], **GEOMETRIES["k4s2p1"])
    operand = [] if post_ops == "relu" else [normal(shape, 7)]
    check_op(device, spec, inputs + operand, consts=(1, 2), only="spread")


@pytest.mark.parametrize(
    "only,channels", [("depthwise", (18, 18, 18)), ("dot", (9, 3, 1)), ("reference", (3, 4, 1))]
)
def test_fused_steps_of_other_modes(device, only, channels):
    ic, oc, group = channels
    spec, inputs = case(
        1, ic, oc, (4, 6), group=group, post_ops=STEPS["heavy"], **GEOMETRIES["odd"]
    )
    operand = normal((1, oc, *spec.extents), 7)
    check_op(device, spec, [*inputs, operand], consts=(1, 2), only=only)


@pytest.mark.parametrize("channels", [(4, 20, 1), (17, 2, 1), (5, 5, 5)])
def test_nan_and_infinity_stay_where_taps_reach(device, channels):
    ic, oc, group = channels
    spec, inputs = case(
        1, ic, oc, (4, 6), group=group, post_ops=(PostOp("relu"),), **GEOMETRIES["k4s2p1"]
    )
    inputs[0][0, 1, 2, 2] = np.nan
    inputs[0][0, 0, 0, 5] = np.inf
    check_op(device, spec, inputs, consts=(1, 2), only="bordered")


@pytest.mark.parametrize("channels", [(6, 20, 1), (12, 1, 1), (19, 19, 19)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_code_for_gpus(device, monkeypatch, channels, dtype):
    target = Target("gpu", vector=4, compute_units=4)
    generate_for(monkeypatch, target)
    ic, oc, group = channels
    spec, inputs = case(2, ic, oc, (5, 9), group=group, **GEOMETRIES["k3s2p1e1"])
    check_op(device, spec, inputs, consts=(1, 2), dtype=dtype)


@pytest.mark.parametrize("shape", [(0, 4, 3, 3), (2, 4, 0, 3)])
def test_empty_inputs(device, shape):
    spec = ConvTranspose((2, 2), (2, 2), (1, 1), (0, 0), (4, 6))
    check_op(device, spec, [normal(shape), normal((4, 5, 2, 2), 1), normal((5,), 2)], consts=(1, 2))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_every_small_shape(device, kernel, stride, dilation):
    reach = dilation * (kernel - 1) + 1
    for pad, extra, size in itertools.product((0, 1, 2), range(max(stride, dilation)), (1, 2, 7)):
        if (size - 1) * stride + reach + extra <= 2 * pad:
            continue
        for ic, oc, group in ((3, 18, 1), (9, 2, 1), (6, 6, 6)):
            spec, inputs = case(
                1,
                ic,
                oc,
                (size, 4),
                (kernel, 3),
                (stride, 2),
                (dilation, 1),
                (pad, 1),
                (pad, 0),
                (extra, 0),
                group,
            )
            check_op(device, spec, inputs, consts=(1, 2))


SMALL = st.integers(1, 4)


@settings(deadline=None, max_examples=300)
@given(SMALL, SMALL, SMALL, st.integers(1, 6), st.integers(0, 3), st.integers(0, 3))
def test_phases_hold_every_tap_inside_the_border(kernel, stride, dilation, size, pad, extra):
    """Phases list each (tap, input pixel) pair of the reference once, within the border asked."""
    extent = (size - 1) * stride + dilation * (kernel - 1) + 1 - pad + extra
    assume(extent > 0)
    spec = ConvTranspose((kernel,), (stride,), (dilation,), (pad,), (extent,))
    border, pairs = spec.padding_needs([TensorType((1, 1, size), F32)]).get(0), []
    for out in range(extent):
        q, phase = divmod(out, stride)
        first = first_taps(spec.window, 0)[phase]
        taps = range(first, kernel, stride // np.gcd(stride, dilation))
        places = [phase + pad - k * dilation for k in taps]
        assert all(place % stride == 0 for place in places)
        shifts = [place // stride for place in places]
        if border is not None:
            reached = [q + shift for shift in shifts]
            assert all(-border.before[2] <= i < size + border.after[2] for i in reached)
        pairs += [(out, k, q + e) for k, e in zip(taps, shifts, strict=True) if 0 <= q + e < size]
    scattered = [
        (i * stride + k * dilation - pad, k, i) for i in range(size) for k in range(kernel)
    ]
    assert sorted(pairs) == sorted(p for p in scattered if 0 <= p[0] < extent)


def onnx_model(x, w, out, opset=22, bias=None, **attrs):
    value = helper.make_tensor_value_info
    names = ["x", "w"] + (["b"] if bias else [])
    fixed = {"w": normal(w, 1)} | ({"b": normal(bias, 2)} if bias else {})
    graph = helper.make_graph(
        [helper.make_node("ConvTranspose", names, ["y"], **attrs)],
        "g",
        [value("x", TensorProto.FLOAT, x)],
        [value("y", TensorProto.FLOAT, out)],
        [onnx.numpy_helper.from_array(a, n) for n, a in fixed.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


ATTRIBUTES = [
    ((6, 8), {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
    ((8, 10), {"strides": [2, 2], "output_padding": [1, 1], "kernel_shape": [3, 3]}),
    ((8, 10), {"strides": [2, 2], "output_shape": [8, 10]}),
    ((5, 7), {"strides": [2, 2], "output_shape": [5, 7], "auto_pad": "SAME_UPPER"}),
    ((5, 7), {"strides": [2, 2], "output_shape": [5, 7], "auto_pad": "SAME_LOWER"}),
    ((6, 8), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((6, 8), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((11, 12), {"strides": [4, 3], "auto_pad": "SAME_UPPER"}),
    ((11, 12), {"strides": [4, 3], "auto_pad": "SAME_LOWER"}),
    ((7, 9), {"strides": [2, 2], "auto_pad": "VALID"}),
    ((7, 10), {"dilations": [2, 3]}),
    ((5, 6), {"group": 2}),
]


@pytest.mark.parametrize("out,attrs", ATTRIBUTES, ids=[str(a) for _, a in ATTRIBUTES])
def test_onnx_attributes_as_onnxruntime(out, attrs):
    ort = pytest.importorskip("onnxruntime")
    channels = 6 * attrs.get("group", 1)
    model = onnx_model((2, 4, 3, 4), (4, 6, 3, 3), (2, channels, *out), 11, (channels,), **attrs)
    x = normal((2, 4, 3, 4))
    graph = load_graph(model)
    got = graph.nodes[0].spec.reference(x, *graph.consts.values())[0]
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    compare(got, reference.run(None, {"x": x})[0], 1e-5, "reference")


def test_onnx_model(device):
    attrs = {"strides": [2, 3], "pads": [0, 1, 1, 0], "output_padding": [1, 0], "group": 2}
    model = onnx_model((2, 4, 3, 4), (4, 6, 3, 3), (2, 12, 7, 11), 11, (12,), **attrs)
    graph, x = load_graph(model), normal((2, 4, 3, 4))
    with clnn.compile_model(model, device) as session:
        got = session({"x": x})["y"]
    compare(got, graph.nodes[0].spec.reference(x, *graph.consts.values())[0], 1e-5, device)


@pytest.mark.parametrize(
    "attrs,words",
    [
        ({"strides": [2]}, "strides [2] must be 2 numbers"),
        ({"pads": [4, 4, 4, 4]}, "pads [4, 4, 4, 4] of an output of [5, 6] leave (-3, -2)"),
        ({"output_shape": [5]}, "output_shape [5] must be 2 numbers"),
        ({"kernel_shape": [2, 2]}, "do not have kernel (2, 2)"),
    ],
)
def test_onnx_refusals_name_the_values(attrs, words):
    with pytest.raises(ShapeError, match=re.escape(words)):
        clnn.compile_model(onnx_model((1, 4, 3, 4), (4, 6, 3, 3), (1, 6, 5, 6), **attrs))


@pytest.mark.parametrize(
    "x,w,bias,group,words",
    [
        ((1, 3, 8, 8), (4, 2, 3, 3), None, 1, "input has 3"),
        ((1, 4, 8, 8), (4, 3, 3, 3), (5,), 1, "must be (3,)"),
        ((1, 3, 8, 8), (3, 2, 3, 3), None, 2, "in 2 groups"),
        ((1, 3, 8), (3, 4, 3, 3), None, 1, "ranks must match"),
        ((1, 3, 8, 8), (3, 4, 2, 3), None, 1, "do not have kernel (3, 3)"),
    ],
)
def test_bad_shapes_name_the_values(x, w, bias, group, words):
    types = [TensorType(x), TensorType(w), None if bias is None else TensorType(bias)]
    spec = ConvTranspose((3, 3), (1, 1), (1, 1), (0, 0), (10, 10), group)
    with pytest.raises(ShapeError, match=re.escape(words)):
        spec.infer(types)


def test_other_types_are_refused():
    spec = ConvTranspose((3,), (1,), (1,), (0,), (10,))
    with pytest.raises(DTypeError, match="int32"):
        spec.infer([TensorType((1, 3, 8), I32), TensorType((3, 4, 3), I32)])


@pytest.mark.parametrize("changes", [{"strides": (0, 1)}, {"before": (-1, 0)}, {"group": 0}])
def test_bad_attributes_are_refused(changes):
    fields = {
        "kernel": (3, 3),
        "strides": (1, 1),
        "dilations": (1, 1),
        "before": (0, 0),
        "extents": (9, 9),
    }
    with pytest.raises(ShapeError, match="must"):
        ConvTranspose(**{**fields, **changes})


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("count", [2, 5, 10])
def test_taps_outside_of_images_in_planes(device, count, group):
    """Channels lie apart in a view of rows: what stands for a tap outside is not read with their pitch.

    Behind the first layer's constants lie those of the second, which are far from 0.
    """
    b = Builder(x=(2, count * group * 6))
    image = b.add(Reshape((2, count * group, 3, 2)), "x")
    spec = ConvTranspose((2, 5), (2, 1), (1, 2), (0, 3), (6, 4), group)
    weights = [1e3 * normal((count * group, 1, 2, 5), seed) for seed in range(2)]
    outs = [b.add(spec, image, b.fixed(w)) for w in weights]
    x = normal((2, count * group * 6), 2)
    for merge in (True, False):
        with clnn.compile_model(b.graph(*outs), device, clnn.Options(merge=merge)) as session:
            for _ in range(2):
                got = session({"x": x})
                for k, w in enumerate(weights):
                    (want,) = spec.reference(x.reshape(2, -1, 3, 2), w)
                    compare(got[f"out{k}"], want, 1e-5, f"layer {k}")
