"""clnn/ops/conv/packing.py: weights as kernels read them, element by element, whatever their order in memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from clnn.ops.conv.packing import pack_filters, pack_weights

LIMB = 4  # channels of a vector whose weights are split
ORDERS = {
    "c": np.ascontiguousarray,
    "fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
}


def filled(weights, group, width):
    """Weights (group, block, lane, ic, tap), with zeros where there is no output channel."""
    oc, ic = weights.shape[:2]
    per, taps = oc // group, weights[0, 0].size
    blocks = -(-per // width)
    full = np.zeros((group, blocks, width, ic, taps), np.int64)
    for g, channel in itertools.product(range(group), range(per)):
        row = weights[g * per + channel].reshape(ic, taps)
        full[g, channel // width, channel % width] = row
    return full


def parts_of(four, split_as):
    """The two parts of four weights of one output channel, each as it lies in memory."""
    if split_as == "pairs":
        return [np.array(four[k::2], np.int16).tobytes() for k in (0, 1)]
    if split_as == "halves":
        return [np.array(part, np.int8).tobytes() for part in (four >> 1, four - (four >> 1))]
    return [np.array(part, np.int16).tobytes() for part in (four & 255, four >> 8)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("split_as", ["limbs", "halves", "pairs"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 2), (2,)], ids=str)
@pytest.mark.parametrize(
    ("oc", "ic", "group", "width"), [(8, 8, 1, 8), (18, 4, 2, 8), (5, 8, 1, 4)]
)
def test_weights_in_two_parts(oc, ic, group, width, kernel, split_as, order):
    factor = 2 if split_as == "limbs" else 4
    weights = np.random.default_rng(oc + ic).integers(-255, 255, (oc, ic, *kernel)).astype(np.int16)
    full = filled(weights, group, width)
    packed = pack_weights(ORDERS[order](weights), group, width, factor, False, LIMB, split_as)
    want = b""
    for g, block, tap in itertools.product(*map(range, (*full.shape[:2], full.shape[4]))):
        for step, vector in itertools.product(range(ic // factor), range(width // LIMB)):
            channels = range(step * factor, (step + 1) * factor)
            lanes = range(vector * LIMB, (vector + 1) * LIMB)
            fours = [parts_of(full[g, block, lane, channels, tap], split_as) for lane in lanes]
            want += b"".join(first for first, _ in fours) + b"".join(second for _, second in fours)
    assert np.ascontiguousarray(packed).tobytes() == want


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("factor", [1, 2, 4])
@pytest.mark.parametrize(
    ("oc", "ic", "group", "width"), [(8, 8, 1, 8), (18, 4, 2, 8), (5, 8, 1, 4)]
)
def test_whole_weights(oc, ic, group, width, factor, order):
    weights = np.random.default_rng(oc).integers(-127, 128, (oc, ic, 3, 2)).astype(np.int8)
    full = filled(weights, group, width)
    packed = pack_weights(ORDERS[order](weights), group, width, factor)
    apart = full.reshape(*full.shape[:3], ic // factor, factor, -1)
    want = apart.transpose(0, 1, 5, 3, 2, 4).reshape(packed.shape)
    assert np.array_equal(packed, want)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("channels", "ic", "width", "starts"),
    [(8, 1, 4, [0, 4]), (5, 1, 4, [0, 1]), (4, 2, 4, [0]), (11, 1, 4, [0, 4, 7])],
)
def test_filters_of_a_vector_of_channels_are_neighbours(channels, ic, width, starts, order):
    weights = np.arange(channels * ic * 6, dtype=np.float32).reshape(channels, ic, 3, 2)
    packed = pack_filters(ORDERS[order](weights), width)
    assert packed.shape == (len(starts), 6, ic, width) and packed.flags.c_contiguous
    for block, tap, i, lane in itertools.product(*map(range, packed.shape)):
        want = weights[starts[block] + lane, i].reshape(-1)[tap]
        assert packed[block, tap, i, lane] == want
