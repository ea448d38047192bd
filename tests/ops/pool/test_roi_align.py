from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, rng
from reference_engines import onnxruntime_result
from together import evaluate, imported

from clnn.errors import DTypeError, ShapeError
from clnn.ops.pool.roi_align import RoiAlign
from clnn.types import F32, I64, TensorType

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}


def regions(count, height, width, seed=0):
    """Regions that lie partly outside of the image, some of no size."""
    low = rng(seed).uniform(-2, (width, height), (count, 2))
    high = low + rng(seed + 1).uniform(0, (width, height), (count, 2))
    high[0] = low[0]
    return np.concatenate([low, high], 1).astype(np.float32)


def case(channels=6, count=7):
    x = normal((3, channels, 9, 11))
    return [x, regions(count, 9, 11), rng(4).integers(0, 3, count)]


@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize("half_pixel", [True, False])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions(device, mode, half_pixel, samples):
    spec = RoiAlign((3, 2), mode, samples, 0.75, half_pixel)
    check_op(device, spec, case(), tolerance=1e-5)


@pytest.mark.parametrize("channels", [1, 5, 16, 24])
@pytest.mark.parametrize("orders", [NHWC, {"i0": (0, 2, 3, 1)}, {"o0": (3, 2, 1, 0)}, None])
def test_memory_orders_and_vectors(device, channels, orders):
    check_op(device, RoiAlign((2, 2)), case(channels), orders=orders, border=1, tolerance=1e-5)


def test_no_region(device):
    check_op(
        device,
        RoiAlign((2, 2)),
        [*case(4, 1)[:1], np.zeros((0, 4), np.float32), np.zeros(0, np.int64)],
    )


@pytest.mark.parametrize("samples", [0, 3])
@pytest.mark.parametrize("where", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_as_onnxruntime_has_it(mode, where, samples):
    attrs = {
        "mode": mode,
        "output_height": 4,
        "output_width": 3,
        "sampling_ratio": samples,
        "spatial_scale": 0.5,
        "coordinate_transformation_mode": where,
    }
    inputs = case()
    (want,) = onnxruntime_result("RoiAlign", inputs, attrs, 16, out_types=(1,))
    got = evaluate(imported("RoiAlign", inputs, attrs, 16), inputs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_wrong_inputs_are_refused():
    x, r, n = TensorType((1, 2, 4, 4)), TensorType((3, 4)), TensorType((3,), I64)
    with pytest.raises(ShapeError, match=r"\(3, 4\)"):
        RoiAlign((1, 1)).infer([x, r, TensorType((2,), I64)])
    with pytest.raises(DTypeError, match="integers"):
        RoiAlign((1, 1)).infer([x, r, TensorType((3,), F32)])
    with pytest.raises(DTypeError, match="int64"):
        RoiAlign((1, 1)).infer([x, TensorType((3, 4), I64), n])
