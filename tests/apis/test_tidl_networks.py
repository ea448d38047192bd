"""Compiled models on TIDL's padded buffers: in place, by copy, converted; SSD post-processing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clnn
from clnn import tidl
from clnn.errors import DTypeError, InputNameError, ModelError, ShapeError
from clnn.graph.builder import GraphBuilder
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.types import F32, TensorType

RNG = np.random.default_rng(5)
W = RNG.normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32)


def small_net():
    """Return a 3x3 convolution of 8 channels, padded by 1, with a ReLU."""
    build = GraphBuilder()
    x = build.input("x", TensorType((1, 8, 6, 7), F32))
    window = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    y = build.add(Conv2d(window), x, build.const(W))
    return build.graph({"y": build.add(Eltwise((PostOp("relu"),)), y)}, "net")


X = RNG.normal(0, 1, (1, 8, 6, 7)).astype(np.float32)


@pytest.fixture(scope="module")
def want():
    with clnn.compile_model(small_net()) as session:
        return session({"x": X})["y"]


def descriptor(**fields):
    made = tidl.sTIDL_IOBufDesc_t()
    made.add(tidl.IOTensor.make("in", "x", (1, 8, 6, 7), **fields))
    made.add(tidl.IOTensor.make("out", "y", (1, 8, 6, 7), **fields))
    return made


def test_own_buffers_are_used_in_place(device, want, tmp_path):
    tidl.describe(small_net()).write(tmp_path / "io_1.bin")
    read = tidl.sTIDL_IOBufDesc_t.read(tmp_path / "io_1.bin")
    with tidl.Network(small_net(), read, device) as network:
        (x,), (y,) = network.allocate()
        assert all(report.in_place for report in network.bind([x], [y])), network.copies
        for scale in (1, 2):  # buffers stay bound
            x.view(X.shape)[...] = X * scale
            network.run()
            np.testing.assert_allclose(y.view(X.shape), want * scale, rtol=1e-5, atol=1e-5)
        nodes = {step.node.name for step in network.session.plan.scheduled if step.launches}
        assert not any(n.startswith("tidl:") for n in nodes)


@pytest.mark.parametrize("order", tidl.TensorOrder)
def test_any_order_and_pads(device, want, order):
    made = descriptor(order=order, pads=(3, 2, 1, 2), pad_channels=1)
    with tidl.Network(small_net(), made, device) as network:
        (x,), (y,) = network.allocate()
        reports = network.bind([x], [y])
        x.write(X)
        network.run()
        np.testing.assert_allclose(y.read(X.shape), want, rtol=1e-5, atol=1e-5)
        y.view()[...] = 0
        assert not y.flat.any(), "the padded region is zero"
        if order == tidl.TensorOrder.TIDL_LT_NCHW:
            assert all("another order" in str(report) for report in reports)
        else:
            assert all(report.in_place for report in reports)


def test_conditions_of_the_document_are_told(device, want):
    made = descriptor(order=1, pads=(1, 1, 1, 1))
    with tidl.Network(small_net(), made, device) as network:
        (good,), (out,) = network.allocate()
        other = replace(good.tensor, pads=(2, 1, 2, 1), channel_pitch=100, buffer_size=0)
        for buffer, word in (
            (
                tidl.sTIDLRT_Tensor_t(good.tensor, np.zeros(good.bufferSize + 9, np.uint8)[8:-1]),
                "alloc",
            ),
            (
                tidl.sTIDLRT_Tensor_t(good.tensor, tidl.TIDLRT_allocSharedMem(good.bufferSize + 4)),
                "bufferSize is",
            ),
            (tidl.sTIDLRT_Tensor_t.allocate(other), "PadL 2 for 1"),
        ):
            report, kept = network.bind([buffer], [out])
            assert not report.in_place and word in str(report) and kept.in_place
            buffer.write(X)
            network.run()
            np.testing.assert_allclose(out.read(X.shape), want, rtol=1e-5, atol=1e-5)
        with pytest.raises(ShapeError, match="must be"):
            wrong = tidl.IOTensor.make("in", "x", (1, 8, 7, 6))
            network.bind([tidl.sTIDLRT_Tensor_t.allocate(wrong)], [out])
        with pytest.raises(ShapeError, match="2 buffers"):
            network.bind([good, good], [out])


@pytest.mark.parametrize(
    "kind", [tidl.ElementType.TIDL_SignedChar, tidl.ElementType.TIDL_UnsignedShort]
)
def test_elements_are_converted_on_the_device(device, want, kind):
    zero = 7 if kind == tidl.ElementType.TIDL_SignedChar else 3000
    scale = 30.0 if kind == tidl.ElementType.TIDL_SignedChar else 2000.0
    made = descriptor(element_type=kind, scale=scale, zero_point=zero)
    with tidl.Network(small_net(), made, device) as network:
        (x,), (y,) = network.allocate()
        reports = network.bind([x], [y])
        assert all("converted" in str(report) for report in reports)
        x.write(X)
        network.run()
        with clnn.compile_model(small_net(), device) as session:
            exact = session({"x": x.read(X.shape)})["y"]
        steps = np.abs(y.view(X.shape).astype(int) - tidl.quantise(exact, y.tensor).astype(int))
        assert steps.max() <= 1 and (steps == 0).mean() > 0.99


def test_networks_and_descriptors_that_do_not_fit(device):
    with pytest.raises(InputNameError, match="once"):
        made = descriptor()
        made.inDataName[0], made.inDataName[1], made.numInputBuf = "x", "z", 2
        for name in (
            "NumBatches",
            "DIM1",
            "DIM2",
            "NumChannels",
            "Height",
            "Width",
            "ChannelPitch",
        ):
            getattr(made, f"in{name}")[1] = 1
        tidl.Network(small_net(), made, device)
    with pytest.raises(ShapeError, match="all extents"):
        made = descriptor()
        made.inWidth[0] = 3
        tidl.Network(small_net(), made, device)
    with pytest.raises(DTypeError, match="only float32"):
        build = GraphBuilder()
        x = build.input("x", TensorType((1, 8, 6, 7), clnn.types.I32))
        graph = build.graph({"y": build.add(Eltwise((PostOp("neg"),)), x)})
        tidl.Network(graph, descriptor(), device)
    with (
        tidl.Network(small_net(), None, device) as network,
        pytest.raises(InputNameError, match="bind"),
    ):
        network.run()


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(tidl.ElementType)),
    scale=st.floats(2**-20, 2**20, width=32),
    zero=st.integers(-200, 200),
    value=st.floats(allow_nan=True, allow_infinity=True, width=32),
)
def test_quantised_numbers_saturate(kind, scale, zero, value):
    tensor = tidl.IOTensor.make(
        "in", "x", (1,), element_type=kind, scale=scale, zero_point=zero, buffer_size=8
    )
    (got,) = tidl.quantise(np.array([value], np.float32), tensor)
    if tensor.dtype.kind == "f":
        return
    limits = np.iinfo(tensor.dtype)
    if np.isnan(value):
        assert int(got) == min(max(zero, limits.min), limits.max)
    elif np.isinf(value):
        assert int(got) == (limits.max if value > 0 else limits.min)
    else:
        exact = round(float(value) * scale) + zero
        exact = min(max(exact, int(limits.min)), int(limits.max))
        assert abs(int(got) - exact) <= abs(exact) * 2**-50


def test_a_scale_of_no_use_is_refused():
    for scale in (0.0, -1.0, np.nan, np.inf):
        tensor = tidl.IOTensor.make("in", "x", (2,), element_type=1, scale=scale)
        with pytest.raises(ModelError, match="scale"):
            tidl.quantise(np.zeros(2, np.float32), tensor)


PRIORS = np.array(
    [[0.25, 0.25, 0.3, 0.3], [0.27, 0.25, 0.3, 0.3], [0.7, 0.7, 0.2, 0.4], [0.1, 0.8, 0.1, 0.1]],
    np.float32,
)


def reference_ssd(loc, conf, params):
    """Return (label, score, corners) by a plain loop in double precision."""
    power = np.exp(conf[0].astype(np.float64))
    scores = power / power.sum(1, keepdims=True)
    v = np.array(params.variances)
    centre = PRIORS[:, :2] + v[:2] * loc[0, :, :2] * PRIORS[:, 2:]
    size = PRIORS[:, 2:] * np.exp(v[2:] * loc[0, :, 2:])
    boxes, found = np.concatenate([centre - size / 2, centre + size / 2], 1), []
    for label in range(scores.shape[1]):
        if label == params.background:
            continue
        kept = []
        for k in np.argsort(-scores[:, label], kind="stable")[: params.top_k]:
            if scores[k, label] > params.confidence_threshold and not any(
                overlap(boxes[k], boxes[j]) > params.nms_threshold for j in kept
            ):
                kept.append(k)
        found += [(label, scores[k, label], boxes[k]) for k in kept]
    return sorted(found, key=lambda f: -f[1])[: params.keep_top_k]


def overlap(a, b):
    side = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    both = side.prod()
    return both / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - both)


def test_detections_are_written_and_parsed_back(device):
    params = tidl.SsdParams(top_k=4, keep_top_k=5, confidence_threshold=0.2)
    ssd = tidl.SsdPostProcess(PRIORS, 3, params, device)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        loc = rng.normal(0, 1, (1, 4, 4)).astype(np.float32)
        conf = rng.normal(0, 2, (1, 4, 3)).astype(np.float32)
        buffer = tidl.sTIDLRT_Tensor_t.allocate(ssd.output)
        ssd.write(loc, conf, buffer)
        header, objects = tidl.parse_objects(buffer.memory)
        wanted = reference_ssd(loc, conf, params)
        assert int(header.numDetObjects) == len(objects) == len(wanted) > 0
        for k, (each, (label, score, corners)) in enumerate(zip(objects, wanted, strict=True)):
            assert (each.ObjId, each.label) == (k, label) and abs(each.score - score) < 1e-5
            got = each.xmin, each.ymin, each.xmax, each.ymax
            np.testing.assert_allclose(got, corners, rtol=1e-5, atol=1e-6)
