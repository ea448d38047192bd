"""A way to resize, found by its name at other extents, is the one that its list has."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from clnn.graph.builder import GraphBuilder
from clnn.ops.resize.kernels import WAYS
from clnn.ops.resize.sampling import TAPS, AxisMap, Sampling, all_taps, axis_taps
from clnn.ops.resize.spec import Resize
from clnn.plan.schedule import lay_out
from clnn.records import changed
from clnn.target import Target
from clnn.types import F32, U8, TensorType

CPU = Target("cpu", 8, 2, 256, 2**19)
KINDS = {
    "repeat": Sampling("nearest", "asymmetric", "floor"),
    "nearest": Sampling("nearest"),
    "linear": Sampling("linear"),
    "cubic": Sampling("cubic"),
    "antialias": Sampling("linear", antialias=True),
    "in turn": Sampling("linear", in_turn=True),
}
SIZES = ((6, 9), (12, 18), (7, 4))


def problem(how, size, channels, dtype):
    """Return the op that resizes an image of 6x9 to `size`, and its problem."""
    net = GraphBuilder()
    x = net.input("x", TensorType((1, channels, 6, 9), dtype))
    scales = (1.0, 1.0, size[0] / 6, size[1] / 9)
    spec = Resize((1, channels, *size), scales, how, (), ())
    laid = lay_out(net.graph({"y": net.add(spec, x)}), CPU)
    return next(p for p in laid.problems if p.outputs[0].type.shape[2:] == size), spec


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [F32, U8], ids=lambda dtype: dtype.name)
def test_each_way_is_found_by_its_name(kind, dtype):
    seen = set()
    for size, channels in itertools.product(SIZES, (1, 24)):
        there, spec = problem(KINDS[kind], size, channels, dtype)
        for variant in spec.variants(there):
            again = spec.repeat(there, variant)
            assert again is not None and again.name == variant.name
            assert [(a.template, a.params) for a in again.launches] == [
                (a.template, a.params) for a in variant.launches
            ]
            seen.add(variant.name.split("_")[1])
        for name in ("resize_any_9tap_float_v1", "resize_unknown", "copy"):
            assert spec.repeat(there, changed(variant, name=name)) is None
    assert seen <= set(WAYS) and "any" in seen


@pytest.mark.parametrize("size", [3, 6, 9, 12])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("mode", TAPS)
def test_as_many_taps_as_at_any_extent_make_the_same_sums(mode, coordinates, size):
    how = Sampling(mode, coordinates)
    taps = axis_taps(AxisMap(6, size, size / 6), how)
    more = all_taps(taps, how)
    assert more.count == TAPS[mode]
    values = np.array([1.5, -np.inf, 3.0, np.inf, 0.0, 7.25])
    if taps.copies:  # nothing is made of what is not finite
        np.testing.assert_array_equal(sums(more, values), sums(taps, values))
    finite = np.where(np.isfinite(values), values, 2.0)
    np.testing.assert_array_equal(sums(more, finite), sums(taps, finite))


def sums(taps, values):
    return (values[taps.index] * taps.weight).sum(1)
