from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, rng, single_node
from reference_engines import onnxruntime_result
from together import evaluate, imported

import clnn
from clnn.errors import DTypeError, ShapeError
from clnn.ops.pool.roi_max import RoiMax
from clnn.types import F32, F64, TensorType

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}


def regions(count, height, width, seed=0):
    """Regions in steps of a quarter, of which some lie partly or wholly outside, and some are of no size."""
    low = rng(seed).integers(-12, (4 * width, 4 * height), (count, 2))
    high = low + rng(seed + 1).integers(-4, (4 * width, 4 * height), (count, 2))
    high[0] = low[0]
    low[1], high[1] = (-40, -40), (-30, -20)
    images = rng(seed + 2).integers(0, 3, (count, 1))
    return np.concatenate([images, low / 4, high / 4], 1).astype(np.float32)


def case(channels=6, count=9, seed=0):
    return [normal((3, channels, 9, 11), seed), regions(count, 9, 11, seed)]


@pytest.mark.parametrize("scale", [1.0, 0.3, 2.5])
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (7, 13)])
def test_regions(device, size, scale):
    check_op(device, RoiMax(size, scale), case(), tolerance=0)


@pytest.mark.parametrize("channels", [1, 5, 16, 24])
@pytest.mark.parametrize("orders", [NHWC, {"i0": (0, 2, 3, 1)}, {"o0": (3, 2, 1, 0)}, None])
def test_memory_orders_and_vectors(device, channels, orders):
    check_op(device, RoiMax((2, 3)), case(channels), orders=orders, border=1, tolerance=0)


def test_no_region(device):
    check_op(device, RoiMax((2, 2)), [case(4)[0], np.zeros((0, 5), np.float32)])


def test_corners_far_outside_read_nothing_there(device):
    x, where = case(4)
    where[2:5, 1:] = [[-3e38, -3e38, 3e38, 3e38], [1e30, 0, 2e30, 5], [0, -1e30, 3, 1e30]]
    spec, near = RoiMax((2, 2)), np.clip(where, -1e9, 1e9)
    check_op(device, spec, [x, np.clip(where, -1e6, 1e6)], tolerance=0)
    with clnn.compile_model(single_node(spec, [x, where]), device) as session:
        want = session({"i0": x, "i1": near})["o0"]
        assert np.array_equal(session({"i0": x, "i1": where})["o0"], want)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [1.0, 0.0625, 0.7])
@pytest.mark.parametrize("size", [[1, 1], [2, 3], [6, 7], [14, 14]])
def test_as_onnxruntime_has_it(size, scale, seed):
    x, where = normal((3, 2, 19, 23), seed), regions(40, 19, 23, seed)
    where[:, 1:] /= np.float32(scale)
    attrs = {"pooled_shape": size, "spatial_scale": scale}
    (want,) = onnxruntime_result("MaxRoiPool", [x, where], attrs, out_types=(1,))
    got = evaluate(imported("MaxRoiPool", [x, where], attrs), [x, where])
    assert np.array_equal(got, want)


def test_wrong_inputs_are_refused():
    x = TensorType((3, 6, 9, 11))
    with pytest.raises(ShapeError, match=r"\(7, 4\)"):
        RoiMax((2, 2)).infer([x, TensorType((7, 4))])
    with pytest.raises(ShapeError, match="must be positive"):
        RoiMax((0, 2)).infer([x, TensorType((7, 5))])
    with pytest.raises(DTypeError, match="float64"):
        RoiMax((2, 2)).infer([x, TensorType((7, 5), F64)])
    assert RoiMax((2, 3)).infer([x, TensorType((7, 5), F32)]) == (TensorType((7, 6, 2, 3)),)
