"""Concatenated slices of one volume along depth become its windows, a view where it lies so."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder

from clnn.graph.evaluate import evaluate
from clnn.graph.ir import Graph
from clnn.graph.passes import optimise
from clnn.layout import TensorLayout
from clnn.ops.conv.depth_windows import DepthWindows
from clnn.ops.conv.volumes import JoinDepth, SplitDepth
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Concat, Slice
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session


def windows(
    b: Builder, volume: str, kernel: int, stride: int, pads: tuple[int, int], **more
) -> str:
    """Add what a convolution of volumes reads of one: slices of its padded depths side by side."""
    n, channels, depth, *inner = b.types[volume].shape
    zeros = (0,) * len(inner)
    if any(pads):
        padding = (0, 0, pads[0], *zeros), (0, 0, pads[1], *zeros)
        volume = b.add(Pad(*padding, value=more.get("value", 0.0)), volume)
    apart = more.get("dilation", 1)
    count = (depth + sum(pads) - apart * (kernel - 1) - 1) // stride + 1
    steps = (1, 1, stride, *(1,) * len(inner))
    reads = [
        b.add(Slice((0, 0, k * apart, *zeros), (n, channels, count, *inner), steps), volume)
        for k in range(kernel)
    ]
    return b.add(JoinDepth(), b.add(Concat(1, mixed=more.get("mixed", False)), *reads))


def network(shape, kernel, stride, pads, size=3, **more) -> Graph:
    """Return images made by a convolution, as a volume, and a convolution of its windows of depth."""
    depth = shape[2]
    b = Builder(x=(shape[0] * depth, 3, *shape[3:]))
    volume = b.add(SplitDepth(depth), b.conv("x", shape[1]))
    return b.graph(b.conv(windows(b, volume, kernel, stride, pads, **more), 5, size))


def kinds(graph: Graph) -> list[str]:
    return [node.spec.kind for node in graph.nodes]


def feeds_of(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {n: rng.standard_normal(graph.types[n].shape, np.float32) for n in graph.inputs}


CASES = {
    "all": ((1, 4, 4, 5, 6), 3, 1, (1, 1)),
    "vectors": ((1, 16, 3, 6, 5), 3, 1, (1, 1)),
    "strides": ((1, 4, 6, 5, 6), 3, 2, (1, 1)),
    "one side": ((1, 4, 4, 5, 6), 2, 1, (0, 1)),
    "no pads": ((1, 4, 5, 5, 6), 3, 2, (0, 0)),
    "wide": ((1, 4, 2, 5, 6), 5, 1, (2, 2)),
}
COPIES = CASES | {"one depth": ((1, 4, 1, 5, 6), 3, 1, (1, 1))}


@pytest.mark.parametrize("case", CASES)
def test_windows_are_a_view(case, device):
    graph = network(*CASES[case])
    made = optimise(graph, fixed=True)
    assert kinds(made) == ["conv2d", "split_depth", "depth_windows", "conv2d"]
    feeds = feeds_of(graph)
    want = evaluate(graph, feeds)
    for name, got in evaluate(made, feeds).items():
        np.testing.assert_array_equal(got, want[name])
    with Session(made, select(device), Options()) as session:
        steps = [s for s in session.plan.scheduled if s.node.spec.kind == "depth_windows"]
        assert [step.variant.launches for step in steps] == [()]
        for name, got in session(feeds).items():
            np.testing.assert_allclose(got, want[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", COPIES)
def test_windows_as_copies(case, device):
    """Of the network's input: each tap is copied, and zeros beyond."""
    shape, kernel, stride, pads = COPIES[case]
    b = Builder(x=shape)
    made = windows(b, "x", kernel, stride, pads)
    graph = optimise(b.graph(b.post_ops("relu", made)), fixed=True)
    assert kinds(graph) == ["depth_windows", "eltwise"]
    feeds = feeds_of(graph)
    (want,) = evaluate(b.graph(b.post_ops("relu", made)), feeds).values()
    with Session(graph, select(device), Options()) as session:
        np.testing.assert_array_equal(next(iter(session(feeds).values())), want)


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ((2, 4, 4, 5, 6), {}),
        ((1, 4, 6, 5, 6), {"dilation": 2}),
        ((1, 4, 4, 5, 6), {"mixed": True}),
    ],
    ids=["batch", "dilation", "mixed"],
)
def test_others_stay_slices(shape, more):
    graph = network(shape, 3, 1, (1, 1), **more)
    made = optimise(graph, fixed=True)
    assert "depth_windows" not in kinds(made)


def test_pads_of_another_value_stay_pads():
    made = optimise(network((1, 4, 4, 5, 6), 3, 1, (1, 1), value=1.0), fixed=True)
    assert "pad" in kinds(made)


def test_slices_of_two_volumes_stay():
    b = Builder(x=(1, 4, 4, 5, 6), z=(1, 4, 4, 5, 6))
    reads = [
        b.add(Slice((0, 0, k, 0, 0), (1, 4, 3, 5, 6), (1,) * 5), name)
        for k, name in enumerate(("x", "z"))
    ]
    graph = b.graph(b.add(JoinDepth(), b.add(Concat(1), *reads)))
    assert "depth_windows" not in kinds(optimise(graph, fixed=True))


def test_open_extents_keep_slices():
    assert "depth_windows" not in kinds(optimise(network((1, 4, 4, 5, 6), 3, 1, (1, 1))))


def test_a_border_of_another_value_is_not_taken():
    spec = DepthWindows(3, 1, 1, 4)
    layout = TensorLayout.make((1, 4, 4, 5, 6), (0, 3, 4, 2, 1), (0, 0, 1, 0, 0), (0, 0, 1, 0, 0))
    assert spec.forward(layout) is not None
    assert spec.takes(layout, 0.0)
    assert not spec.takes(layout, 1.0)
    assert not spec.takes(layout.unpadded(), 0.0)
