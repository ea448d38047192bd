"""A plan of a shape is the same whatever is kept from the shapes before it."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from onnx import helper
from open_images import Net, resizing, segmentation, separable

import clnn
from clnn.ops import problem
from clnn.runtime.run import recipes

NEVER = clnn.Options(specialise="never")


def recogniser():
    """Lines of text: quantised convolutions, a mean over rows, a recurrent layer, products."""
    net = Net()
    x = net.conv(net.conv("x", 3, 16, stride=2), 16, 16)
    q, scale, zero = (f"q{k}" for k in range(3))
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], [q, scale, zero], name="q"))
    bytes_ = np.random.default_rng(3).integers(0, 255, (24, 16, 3, 3)).astype(np.uint8)
    y = net.add("ConvInteger", q, net.const(bytes_), zero, net.const(np.uint8(128)), pads=[1] * 4)
    y = net.add("Mul", net.add("Cast", y, to=1), net.add("Mul", scale, net.scales(0.01)))
    y = net.add("Transpose", net.add("ReduceMean", y, axes=[2], keepdims=0), perm=[2, 0, 1])
    y = net.add("LSTM", y, net.weight(1, 32, 24), net.weight(1, 32, 8), hidden_size=8)
    two = net.add("Gather", net.add("Shape", y), net.const(np.int64([0, 2])), axis=0)
    y = net.add("Reshape", y, net.add("Concat", two, net.const(np.int64([-1])), axis=0))
    return net.model(net.add("Softmax", net.add("MatMul", y, net.weight(8, 20)), axis=2))


def forget(session):
    """Forget all that imports, plans and kernels keep for shapes that come later."""
    problem._known.clear()
    recipes._known.clear()
    session._compile_at._graphs.forget()
    if family := session._compile_at._family:
        family.forget()
    loaded = session._compile_at._loaded
    for kept in (loaded.calls, loaded.arrays, loaded.checked) if loaded else ():
        kept.clear()
    for name, module in sorted(sys.modules.items()):
        if name.startswith(
            ("clnn.codegen", "clnn.ops", "clnn.plan", "clnn.graph", "clnn.runtime.run")
        ):
            for value in vars(module).values():
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()


def whole(value):
    """All that a plan consists of, as plain values; what makes a constant by its class."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *((f.name, whole(getattr(value, f.name))) for f in fields(value))
    if isinstance(value, Mapping):
        return tuple((key, whole(value[key])) for key in value)
    if isinstance(value, (tuple, list, frozenset)):
        return type(value), *map(whole, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value if isinstance(value, (str, type, float, bool, type(None))) else type(value)


def whole_session(session):
    fused = session._fused
    launches = [] if fused is None else [*fused.first, *fused.run]
    return (
        whole(session.plan),
        whole(launches),
        sorted(map(repr, session._constants._places.values())),
    )


def sized(rng, channels, count):
    sides = [8, 12, 20, 36, 60, 92, 95, 101, 128]
    return [
        (rng.randrange(1, 4), channels, rng.choice(sides), rng.choice(sides)) for _ in range(count)
    ]


@pytest.mark.parametrize("net", [segmentation, resizing, separable, recogniser])
def test_a_plan_is_the_same_from_nothing(device, net, pytestconfig):
    """The same shapes in the same order: once with all that is kept, once with nothing of it."""
    model, rng = net(), random.Random(7)
    channels = 16 if net is separable else 3
    long = pytestconfig.getoption("--long")
    shapes = [(1, channels, 64, 48), *sized(rng, channels, 40 if long else 6)]
    plans = []
    for fresh in (False, True):
        with clnn.compile_model(model, device, NEVER) as session:
            ones = []
            for shape in shapes:
                if fresh:
                    forget(session)
                try:
                    ones.append(whole_session(session.at({"x": shape})))
                except clnn.ClnnError as err:
                    ones.append(str(err))
            plans.append(ones)
    for shape, kept, new in zip(shapes, *plans, strict=True):
        assert kept == new, shape
    assert sum(not isinstance(one, str) for one in plans[0]) > len(shapes) / 2
