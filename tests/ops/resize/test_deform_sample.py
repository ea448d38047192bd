from __future__ import annotations

from math import prod

import numpy as np
import pytest
from harness import check_op, normal, rng

from clnn.errors import DTypeError, ShapeError
from clnn.ops.resize.deform_sample import DeformSample
from clnn.ops.shared.window import Window
from clnn.types import F64, TensorType

NHWC = (0, 2, 3, 1)
PLAIN = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
ODD = Window((2, 3), (2, 1), (1, 2), (0, 2), (1, 1))
WINDOWS = {
    "line": (Window((3,), (2,), (2,), (1,), (2,)), (9,)),
    "plain": (PLAIN, (5, 6)),
    "odd": (ODD, (7, 5)),
    "volume": (Window((2, 1, 3), (1, 2, 1), (2, 1, 1), (1, 0, 1), (1, 1, 0)), (4, 3, 5)),
}


def case(window, spatial, channels=8, offset_groups=1, masked=True, reach=3.0, seed=0):
    """Offsets of which a part leads far outside."""
    outs, places = window.output(spatial), offset_groups * prod(window.kernel)
    moves = rng(seed + 1).uniform(-reach, reach, (2, places * len(spatial), *outs))
    mask = normal((2, places, *outs), seed + 2) if masked else None
    return [normal((2, channels, *spatial), seed), moves.astype(np.float32), mask]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("group, offset_groups", [(1, 1), (2, 1), (1, 4), (4, 2)])
@pytest.mark.parametrize("geometry", WINDOWS)
def test_windows_and_groups(device, geometry, group, offset_groups, masked):
    window, spatial = WINDOWS[geometry]
    inputs = case(window, spatial, 8, offset_groups, masked)
    check_op(device, DeformSample(window, group, offset_groups), inputs, tolerance=1e-4)


@pytest.mark.parametrize(
    "channels, group, offset_groups", [(1, 1, 1), (5, 1, 1), (16, 2, 1), (24, 1, 3)]
)
@pytest.mark.parametrize(
    "orders",
    [{"i0": NHWC, "o0": NHWC}, {"i0": NHWC, "i1": NHWC, "i2": NHWC}, {"i1": (3, 0, 2, 1)}, None],
)
def test_memory_orders_and_vectors(device, channels, group, offset_groups, orders):
    spec = DeformSample(ODD, group, offset_groups)
    inputs = case(ODD, (6, 5), channels, offset_groups)
    check_op(device, spec, inputs, orders=orders, border=1, tolerance=1e-4)


def test_places_on_elements_and_at_the_edge(device):
    x, moves, mask = case(PLAIN, (4, 5))
    whole = np.round(moves * 2) / 2
    check_op(device, DeformSample(PLAIN), [x, whole, mask], tolerance=1e-4)
    check_op(device, DeformSample(PLAIN), [x, np.zeros_like(moves), mask], tolerance=1e-5)


def test_places_that_are_none_read_nothing_outside(device):
    x, moves, mask = case(PLAIN, (4, 5))
    moves.flat[::7] = 1e30
    moves.flat[3::11] = -3e38
    check_op(device, DeformSample(PLAIN), [x, moves, mask], tolerance=1e-4)


def test_wrong_inputs_are_refused():
    x, moves = TensorType((2, 6, 5, 5)), TensorType((2, 18, 5, 5))
    spec = DeformSample(PLAIN)
    assert spec.infer([x, moves]) == (TensorType((2, 54, 5, 5)),)
    with pytest.raises(ShapeError, match=r"offsets \(2, 18, 5, 5\) must be \(2, 36, 5, 5\)"):
        DeformSample(PLAIN, 1, 2).infer([x, moves])
    with pytest.raises(ShapeError, match=r"mask \(2, 18, 5, 5\) must be \(2, 9, 5, 5\)"):
        spec.infer([x, moves, moves])
    with pytest.raises(ShapeError, match="group 4 does not divide 6 channels"):
        DeformSample(PLAIN, 4).infer([x, moves])
    with pytest.raises(ShapeError, match="one to three extents"):
        spec.infer([TensorType((2, 6, 5)), moves])
    with pytest.raises(DTypeError, match="offsets of float64"):
        spec.infer([x, TensorType((2, 18, 5, 5), F64)])
