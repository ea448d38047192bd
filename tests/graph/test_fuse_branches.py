"""Branches that are linear in one value, added before they see it."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder

import clnn
from clnn.compile import prepare
from clnn.graph.passes import optimise
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window

CHANNELS = 12


class Branches(Builder):
    """A graph of branches behind a relu of its input."""

    def __init__(self, channels=CHANNELS):
        super().__init__(x=(2, channels, 9, 11))
        self.channels = channels
        self.source = self.post_ops("relu", "x")

    def branch(self, k, group=1, stride=1, dilation=1, oc=None, before=None, after=None, bias=True):
        """Add a convolution of the source that keeps its extents, but for strides."""
        oc = oc or self.channels
        side = (k - 1) * dilation // 2
        pads = ((side if before is None else before,) * 2, (side if after is None else after,) * 2)
        window = Window((k, k), (stride, stride), (dilation, dilation), *pads)
        weights = self.const(oc, self.channels // group, k, k)
        return self.add(
            Conv2d(window, group), self.source, weights, self.const(oc) if bias else None
        )

    def norm(self, x=None):
        """Add a batch normalisation."""
        shape = (1, self.channels, 1, 1)
        steps = (PostOp("mul", operand=1), PostOp("add", operand=2))
        return self.add(Eltwise(steps), x or self.source, self.const(*shape), self.const(*shape))

    def times(self, x):
        """Add a scale of each channel."""
        return self.add(Eltwise((PostOp("mul", operand=1),)), x, self.const(self.channels, 1, 1))

    def turned(self, left, right):
        """Add right - left, as a step of left."""
        return self.add(Eltwise((PostOp("sub", operand=1, swapped=True),)), left, right)


def agreed(b, device, *outputs):
    """Return the convolutions of the optimised graph, after its results were compared with numpy's."""
    graph = b.graph(*outputs)
    x = np.random.default_rng(0).standard_normal(b.types["x"].shape).astype(np.float32)
    values = {"x": x.astype(np.float64)} | {k: c.astype(np.float64) for k, c in b.consts.items()}
    for node in b.nodes:
        made = node.spec.reference(*(None if n is None else values[n] for n in node.inputs))
        values[node.outputs[0]] = made[0]
    with clnn.compile_model(graph, device) as session:
        got = session({"x": x})
    for public, name in graph.outputs.items():
        np.testing.assert_allclose(got[public], values[name], rtol=1e-4, atol=1e-4)
    nodes = optimise(graph, False, True, True).nodes
    return [(n.spec, graph.types[n.inputs[0]].shape) for n in nodes if isinstance(n.spec, Conv2d)]


def geometry(spec):
    win = spec.window
    return spec.group, win.kernel, win.strides, win.dilations, win.before, win.after


@pytest.mark.parametrize("group", [1, 3, CHANNELS])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_of_several_extents_become_one(device, group, stride):
    b = Branches()
    parts = [b.branch(k, group, stride) for k in (5, 3, 1)]
    total = b.post_ops("sub", b.post_ops("add", parts[2], parts[0]), parts[1])
    ((spec, _),) = agreed(b, device, b.post_ops("relu", total))
    sides = ((stride, stride), (1, 1), (2, 2), (2, 2))
    assert geometry(spec) == (group, (5, 5), *sides)


@pytest.mark.parametrize("turned", [False, True])
def test_normalisations_scales_and_the_value_itself_join(device, turned):
    b = Branches()
    mixed = b.post_ops("add", b.branch(1, CHANNELS), b.norm())
    mixed = b.post_ops("add", mixed, b.branch(3, CHANNELS, bias=False))
    mixed = b.turned(b.norm(), mixed) if turned else b.post_ops("sub", mixed, b.norm())
    out = b.post_ops("add", b.source, b.times(mixed))
    ((spec, _),) = agreed(b, device, out)
    assert spec.group == CHANNELS and spec.window.kernel == (3, 3) and not spec.post_ops


def test_filters_of_one_channel_join_dense_ones(device):
    b = Branches()
    total = b.post_ops("add", b.branch(3, 2), b.post_ops("add", b.branch(3, 4), b.norm()))
    ((spec, _),) = agreed(b, device, total)
    assert spec.group == 2


def test_several_outputs_of_a_channel_join(device):
    b = Branches()
    parts = [b.branch(k, CHANNELS, 2, oc=2 * CHANNELS) for k in (5, 3)]
    ((spec, _),) = agreed(b, device, b.post_ops("add", *parts))
    assert spec.group == CHANNELS and spec.window.kernel == (5, 5)


@pytest.mark.parametrize(
    "windows,joined",
    [
        ([((3,), (1,), (1,)), ((1,), (0,), (0,))], ((3,), (1,), (1,), (1,))),
        ([((2,), (2,), (0,)), ((2,), (0,), (2,))], ((3,), (2,), (2,), (2,))),
        ([((2,), (4,), (0,)), ((3,), (2,), (4,))], ((4,), (2,), (4,), (4,))),
    ],
    ids=["around", "beside", "apart"],
)
def test_lines_join(device, windows, joined):
    b = Builder(x=(2, 5, 20))
    source, parts, step = b.post_ops("relu", "x"), [], joined[1]
    for kernel, before, after in windows:
        window = Window(kernel, (1,), step, before, after)
        parts.append(b.add(Conv2d(window), source, b.const(5, 5, *kernel), b.const(5)))
    ((spec, _),) = agreed(b, device, b.post_ops("add", *parts))
    win = spec.window
    assert (win.kernel, win.dilations, win.before, win.after) == joined


STAY = {
    "ends": lambda b: (b.branch(3, stride=2), b.branch(1, stride=2, before=0, after=1)),
    "taps between": lambda b: (b.branch(3, dilation=2), b.branch(2, dilation=2, before=1, after=1)),
    "dilations": lambda b: (b.branch(3, dilation=2), b.branch(3)),
    "more products": lambda b: (b.branch(3, CHANNELS), b.branch(1)),
    "groups": lambda b: (b.branch(1, 4), b.branch(1, 6)),
    "two convolutions": lambda b: (b.conv(b.branch(1), CHANNELS, 3), b.branch(1)),
}


@pytest.mark.parametrize("name", STAY)
def test_other_branches_stay(device, name):
    b = Branches()
    left, right = STAY[name](b)
    if b.types[left].shape != b.types[right].shape:
        pytest.fail(f"{b.types[left].shape} and {b.types[right].shape} cannot be added")
    assert len(agreed(b, device, b.post_ops("add", left, right))) > 1


def test_what_is_read_elsewhere_is_computed_once(device):
    b = Branches()
    left, right = b.branch(3), b.branch(1)
    total = b.post_ops("add", left, right)
    assert len(agreed(b, device, total, b.post_ops("relu", left))) == 2


def test_weights_that_single_precision_does_not_hold_stay():
    b = Branches()
    left, right = b.branch(3), b.branch(1)
    for name in (n.inputs[1] for n in b.nodes if isinstance(n.spec, Conv2d)):
        b.consts[name] = np.full_like(b.consts[name], 3e38)
    made = optimise(b.graph(b.post_ops("add", left, right)), False, True, True)
    assert sum(isinstance(n.spec, Conv2d) for n in made.nodes) == 2


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "tf32"])
def test_only_weights_that_stay_float32_are_added(dtype):
    b = Branches()
    graph = b.graph(b.post_ops("add", b.source, b.branch(3)))
    made = prepare(graph, clnn.Options(dtype=dtype))
    (spec,) = (n.spec for n in made.nodes if isinstance(n.spec, Conv2d))
    assert [step.fn for step in spec.post_ops] == ([] if dtype == "f32" else ["add"])


def test_scales_one_behind_the_other_are_added(device):
    b = Branches()
    total = b.post_ops("add", b.times(b.norm(b.norm())), b.branch(3))
    convs = agreed(b, device, total)
    assert [spec.window.kernel for spec, _ in convs] == [(3, 3)]
    assert not any(
        len(n.inputs) == 2 and isinstance(n.spec, Eltwise)
        for n in optimise(b.graph(total), False, True, True).nodes
    )
