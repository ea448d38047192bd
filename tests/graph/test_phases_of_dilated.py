"""Dilated convolutions on phases of their maps: the same numbers, by Winograd's products."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from small_graphs import Builder

import clnn
from clnn.compile import prepare
from clnn.errors import NoDeviceError
from clnn.graph.ir import check
from clnn.ops.conv.spec import Conv2d
from clnn.ops.movement.views import Reshape
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.runtime.doctor.selection import select_device
from clnn.verification.reference import reference_values

passing = importlib.import_module("clnn.graph.passes.phases_of_dilated")


@pytest.fixture
def eager(monkeypatch):
    """Convolutions of any size have phases."""
    for least in ("LEAST_FLOPS", "LEAST_EXTENT", "LEAST_CHANNELS"):
        monkeypatch.setattr(passing, least, 0)


def same(dy, dx):
    return Window((3, 3), (1, 1), (dy, dx), (dy, dx), (dy, dx))


def dilated(b, x, oc, window, *operands, group=1):
    """Add a convolution with a bias; operands: (function, its operand's name)."""
    weights = b.const(oc, b.types[x].shape[1] // group, *window.kernel)
    steps = tuple(PostOp(fn, operand=3 + k) for k, (fn, _) in enumerate(operands))
    return b.add(
        Conv2d(window, group, steps), x, weights, b.const(oc), *(name for _, name in operands)
    )


def network(shape, window, oc=4, *operands, group=1):
    b = Builder(x=shape)
    return b.graph(
        dilated(b, "x", oc, window, *((fn, b.const(*of)) for fn, of in operands), group=group)
    )


def windows(graph):
    return [n.spec.window for n in graph.nodes if isinstance(n.spec, Conv2d)]


def agree(graph, made, seed):
    x = np.random.default_rng(seed).standard_normal(graph.types["x"].shape)
    want, got = reference_values(graph, {"x": x}), reference_values(made, {"x": x})
    for name in graph.outputs.values():
        assert got[name].shape == graph.types[name].shape
        np.testing.assert_allclose(got[name], want[name], rtol=1e-12, atol=1e-12)


def test_random_windows_give_the_same_numbers(eager):
    rng = np.random.default_rng(0)
    for seed in range(200):
        of = tuple(int(d) for d in rng.integers(1, 5, 2))
        before, after = (tuple(int(d * rng.integers(0, 3)) for d in of) for _ in range(2))
        shape = (int(rng.integers(1, 3)), 3, *(int(2 * d + 1 + rng.integers(0, 9)) for d in of))
        graph = network(shape, Window((3, 3), (1, 1), of, before, after))
        made = check(passing.phases_of_dilated(graph))
        assert (windows(made) == windows(graph)) == (of == (1, 1))
        assert windows(made)[0].dilations == (1, 1)
        agree(graph, made, seed)


@pytest.mark.parametrize("shape", [(1, 4, 16, 16), (2, 4, 16, 16), (2, 4, 13, 18)])
@pytest.mark.parametrize("operand", ["output", "channels", "number", "images", "columns", "image"])
def test_operands_behind_a_convolution(eager, shape, operand):
    """Those of each image or column have no phases: such convolutions stay."""
    n, c, h, w = shape
    shapes = {
        "output": shape,
        "channels": (c, 1, 1),
        "number": (1,),
        "images": (n, c, 1, 1),
        "columns": (w,),
        "image": (1, c, h, w),
    }
    graph = network(shape, same(2, 3), c, ("add", shapes[operand]))
    made = check(passing.phases_of_dilated(graph))
    stays = operand == "columns" or (n > 1 and operand in ("images", "image"))
    assert (windows(made)[0].dilations == (1, 1)) != stays
    agree(graph, made, 1)


@pytest.mark.parametrize("extents", [(16, 24), (17, 24)])
def test_convolutions_behind_each_other_pass_on_phases(eager, extents):
    """Two blocks with what goes around them: where extents divide, phases are made once."""
    b = Builder(x=(1, 4, *extents))
    x = "x"
    for _ in range(2):
        first = dilated(b, x, 4, same(4, 4))
        x = dilated(b, first, 4, same(4, 4), ("add", x))
    graph = b.graph(x)
    made = check(passing.phases_of_dilated(graph))
    assert {w.dilations for w in windows(made)} == {(1, 1)}
    views = sum(isinstance(n.spec, Reshape) for n in made.nodes)
    assert views == 4 if extents == (16, 24) else views > 10
    agree(graph, made, 2)


def test_a_value_that_others_read_too_is_there_as_it_was(eager):
    b = Builder(x=(1, 4, 12, 12))
    first = dilated(b, "x", 4, same(2, 2))
    graph = b.graph(dilated(b, first, 4, same(3, 3)), b.post_ops("relu", first), first)
    made = check(passing.phases_of_dilated(graph))
    agree(graph, made, 3)


def test_readers_with_dilations_of_their_own(eager):
    """Each has its phases, also where rows and columns of zeros complete them."""
    b = Builder(x=(1, 4, 17, 19))
    graph = b.graph(*(dilated(b, "x", 4, same(*of)) for of in ((2, 2), (3, 3), (2, 3), (4, 4))))
    made = check(passing.phases_of_dilated(graph))
    assert {w.dilations for w in windows(made)} == {(1, 1)}
    agree(graph, made, 4)


@pytest.mark.parametrize(
    ("shape", "window", "oc", "group"),
    [
        ((1, 32, 28, 28), same(1, 1), 32, 1),
        ((1, 32, 28, 28), same(2, 2), 32, 32),
        ((1, 32, 28, 28), same(12, 12), 32, 1),  # few rows in a phase
        ((1, 32, 28, 28), Window((3, 3), (2, 2), (2, 2), (2, 2), (2, 2)), 32, 1),
        ((1, 32, 28, 28), Window((3, 3), (1, 1), (2, 2), (1, 1), (1, 1)), 32, 1),
        ((1, 32, 28, 28), Window((5, 5), (1, 1), (2, 2), (4, 4), (4, 4)), 32, 1),
        ((1, 3, 112, 112), same(2, 2), 32, 1),
        ((1, 16, 28, 28), same(2, 2), 16, 1),
    ],
    ids=["plain", "groups", "far", "strides", "odd pads", "5x5", "few channels", "small"],
)
def test_other_convolutions_stay(shape, window, oc, group):
    graph = network(shape, window, oc, group=group)
    assert windows(passing.phases_of_dilated(graph)) == windows(graph)


def test_options_and_devices_that_ask_for_it(device):
    graph = network((1, 32, 28, 28), same(2, 2), 32)
    of_cpu = select_device(device).type == "cpu"
    for options, fixed, phased in (
        (Options(), True, of_cpu),
        (Options(winograd=False), True, False),
        (Options(dtype="f16"), True, False),
        (Options(fuse=False), True, False),
        (Options(), False, False),
    ):
        made = prepare(graph, options, device=device, fixed=fixed)
        assert (windows(made)[0].dilations == (1, 1)) == phased, (options, fixed)


def test_plans_are_made_where_there_is_no_device(monkeypatch):
    """As for a CPU; that a device that was asked for is not there, who opens it says."""

    def none(device):
        raise NoDeviceError(f"no device {device}")

    monkeypatch.setattr("clnn.compile.select_device", none)
    made = prepare(network((1, 32, 28, 28), same(2, 2), 32), Options())
    assert windows(made)[0].dilations == (1, 1)


@pytest.mark.parametrize("extents", [(28, 28), (33, 30)])
def test_on_a_device(device, extents):
    b = Builder(x=(2, 32, *extents))
    first = dilated(b, b.post_ops("relu", "x"), 48, same(2, 2))
    second = dilated(b, first, 48, same(4, 4), ("add", first))
    graph = b.graph(b.conv(second, 8, 1))
    x = np.random.default_rng(0).standard_normal(graph.types["x"].shape).astype(np.float32)
    want = reference_values(graph, {"x": x})
    with clnn.compile_model(graph, device) as session:
        got = session({"x": x})
        steps = session.plan.scheduled
    for public, name in graph.outputs.items():
        np.testing.assert_allclose(got[public], want[name], rtol=1e-4, atol=1e-3)
    if session.device.type == "cpu":
        assert sum("winograd" in s.variant.name for s in steps) == 2
