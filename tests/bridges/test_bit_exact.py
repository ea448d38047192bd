"""Simulations of targets: every layer is, element by element, what the target's own calls give."""

from __future__ import annotations

import numpy as np
import pytest
import replays

import clnn
from clnn import mli
from clnn.bridges.quantize import TARGETS
from clnn.errors import InputNameError, SettingError
from clnn.graph.builder import GraphBuilder
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.types import F32, TensorType

RNG = np.random.default_rng(11)
ROOMY = Window((3, 3), (2, 2), (1, 1), (0, 0), (1, 1))
SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))


BYTES = ("mli-sa8", "tidl-8", "openvx-q78", "mli-fx16-fx8", "espdl-int8")


def weights(*shape):
    return RNG.normal(0, 1.5 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)


def small_net():
    """Return a network with every kind of layer that targets have."""
    build = GraphBuilder()

    def filtered(value, window, group, *shape):
        bias = build.const(RNG.normal(0, 0.3, shape[0]).astype(np.float32))
        return build.add(Conv2d(window, group), value, build.const(weights(*shape)), bias)

    def step(value, fn, *params):
        return build.add(Eltwise((PostOp(fn, params),)), value)

    x = build.input("x", TensorType((1, 3, 12, 12), F32))
    stem = step(filtered(x, ROOMY, 1, 8, 3, 3, 3), "clip", 0.0, 6.0)
    deep = step(filtered(stem, SAME, 8, 8, 1, 3, 3), "relu")
    wide = filtered(deep, POINT, 1, 8, 8, 1, 1)
    both = step(build.add(Eltwise((PostOp("add", operand=1),)), stem, wide), "relu")
    pooled = build.add(Pool(Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0)), "max"), both)
    mean = build.add(Reduce("mean", (2, 3), True), pooled)
    flat = build.reshape(mean, (1, 8))
    last = build.add(Gemm(trans_b=True), flat, build.const(weights(5, 8)), build.const(weights(5)))
    return build.graph({"y": build.add(Softmax((1,)), last)}, "small")


NET = small_net()
SAMPLES = [{"x": RNG.normal(0, 1, (1, 3, 12, 12)).astype(np.float32)} for _ in range(4)]
LARGE = {"x": RNG.normal(0, 6, (1, 3, 12, 12)).astype(np.float32)}  # beyond all ranges


BY_CHANNEL = ("tidl-8 by channel", "espdl-int8 by channel")


def simulated(target, device):
    name, _, by_channel = target.partition(" ")
    return clnn.quantize(NET, SAMPLES, name, device, per_channel=bool(by_channel))


@pytest.mark.parametrize("target", [*TARGETS, *BY_CHANNEL])
def test_every_layer_is_what_the_target_computes(device, target):
    with simulated(target, device) as network:
        checked = set()
        for feed, values in zip(
            (SAMPLES[0], LARGE), network.values([SAMPLES[0], LARGE]), strict=True
        ):
            for layer in network.layers:
                if not layer.integers:
                    continue
                inputs, want = [values[n] for n in layer.inputs], values[layer.integers]
                for got in replay(target, layer, inputs, want):
                    np.testing.assert_array_equal(got.reshape(want.shape), want, err_msg=layer.name)
                    checked.add(layer.op)
            assert network(feed)["y"].shape == (1, 5)
        ops = {"conv", "depthwise", "fully_connected"}
        whole = {*ops, "add", "relu", "max_pool", "average_pool", "softmax"}
        floats = {"softmax"} if target.startswith("espdl") else set()
        assert checked == (ops if target.startswith("tidl") else whole - floats)


def replay(target, layer, inputs, want):
    """Yield the layer's integers by other ways."""
    if target.startswith("mli"):
        yield replays.by_mli(layer, inputs)
    elif target == "openvx-q78":
        yield replays.by_openvx(layer, inputs, want)
    elif target.startswith("espdl"):
        yield replays.by_esp(layer, inputs, "by channel" in target)
    elif "weights" in layer.data:
        yield replays.by_shift(layer, inputs[0])
        if target == "tidl-16":
            with mli.using(round_mode="up"):
                yield replays.by_mli(layer, inputs)


@pytest.mark.parametrize("target", TARGETS)
def test_reports(device, target):
    with simulated(target, device) as network:
        report = network.report(SAMPLES)
        rows = {row.name: row for row in report.layers}
        assert len(rows) == len(network.layers) and report.samples == len(SAMPLES)
        least = 10 if target in BYTES else 45
        assert all(row.snr > least for row in rows.values() if row.grid != "float32"), rows
        floats = target.startswith(("tidl", "espdl"))
        assert report.floats == ([network.layers[-1].name] if floats else [])
        assert 0 <= report.outputs["y"][1] <= 1 and report.outputs["y"][0] > least
        beyond = network.report([LARGE])
        if target != "openvx-q78":
            assert max(row.saturated for row in beyond.layers) > 0
        text, page = report.markdown(), report.html()
        assert all(name in text and name in page for name in rows)


def test_noise_and_worst_channel_are_those_of_plain_numpy(device):
    with simulated("mli-sa8", device) as network:
        (values,) = network.values(SAMPLES[:1])
        layer = network.layers[0]
        from clnn.bridges.simulate import watched

        with clnn.compile_model(watched(network.floats, [layer.value]), device) as session:
            real = session(SAMPLES[0])[layer.value].astype(np.float64)
        noise = (layer.grid.real(values[layer.integers]) - real) ** 2
        row = network.report(SAMPLES[:1]).layers[0]
        total = 10 * np.log10((real**2).sum() / noise.sum())
        each = 10 * np.log10((real**2).sum((0, 2, 3)) / noise.sum((0, 2, 3)))
        assert abs(row.snr - total) < 1e-6 and row.worst_channel == each.argmin()
        assert abs(row.worst_snr - each.min()) < 1e-6


def test_what_cannot_be_quantised():
    with pytest.raises(SettingError, match="not one of openvx-q78"):
        clnn.quantize(NET, SAMPLES, "mli-sa9")
    with pytest.raises(SettingError, match="method"):
        clnn.quantize(NET, SAMPLES, "mli-sa8", method="mean")
    for wrong in ([], SAMPLES[0]):
        with pytest.raises(SettingError, match="calibration"):
            clnn.quantize(NET, wrong, "mli-sa8")
    with pytest.raises(InputNameError, match="a sample has inputs z"):
        clnn.quantize(NET, [{"z": SAMPLES[0]["x"]}], "mli-sa8")


def test_layers_that_no_target_has_are_floats(device):
    build = GraphBuilder()
    x = build.input("x", TensorType((1, 4, 4, 4), F32))
    made = build.add(Conv2d(POINT), x, build.const(weights(4, 4, 1, 1)))
    grown = build.add(Eltwise((PostOp("exp"),)), made)
    last = build.add(Conv2d(POINT), grown, build.const(weights(4, 4, 1, 1)))
    feed = {"x": RNG.normal(0, 1, (1, 4, 4, 4)).astype(np.float32)}
    graph = build.graph({"y": last})
    with clnn.quantize(graph, [feed], "mli-fx16", device) as network:
        assert [bool(layer.integers) for layer in network.layers] == [True, False, True]
        assert network.report([feed]).outputs["y"][0] > 50
