"""Which tiles Winograd's convolution takes, by the estimate alone."""

from __future__ import annotations

import pytest

from clnn.ops.conv.streaming import NEAR_SUMS
from clnn.ops.conv.tiles import Extents, conv_tiles
from clnn.ops.conv.winograd_cpu import plan, plans
from clnn.ops.conv.winograd_streamed import plans as streamed_plans
from clnn.target import Target

CPU = Target("cpu", 16, 2, 256, 2**20)
HALF = Target("cpu", 16, 2, 256, 2**20, features=frozenset({"half_rate"}))


@pytest.mark.parametrize(("batch", "size"), [(1, 28), (1, 14), (8, 28), (8, 14)])
def test_tiles_of_many_channels_are_two_vectors_wide(batch, size):
    """512 channels: tiles of one vector took 1.13 to 1.29 times as long where the counts were equal."""
    made = plan((batch, 512, size, size), 512, CPU, 16)
    assert made is not None and made.nv >= 2


@pytest.mark.parametrize("local", [2**20, 2**18])
@pytest.mark.parametrize(("channels", "out"), [(512, 512), (256, 512)])
def test_few_tiles_of_many_weights_are_transformed_before(local, channels, out):
    """512 to 512 channels at 28x28: 4.4 ms became 2.7, where weights came from memory four times."""
    target = Target("cpu", 16, 2, 256, local)
    made = plan((1, out, 28, 28), channels, target, 16)
    assert made is not None and (made.m, made.shared) == (4, True)
    assert made.mr * made.sets >= 49  # all tiles: each weight is read once


@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (256, 14)])
def test_where_weights_stay_near_tiles_are_transformed_in_place(channels, size):
    """128 channels at 28x28: transformed before, 1.1 to 1.2 times as long."""
    made = plan((1, channels, size, size), channels, CPU, 16)
    assert made is not None and not made.shared


def test_tiles_that_take_much_memory_are_not_transformed_before():
    every = plans((8, 64, 112, 112), 512, CPU, 16)
    assert every and not any(p.shared for p in every)


def test_few_channels_have_one_vector():
    made = plan((1, 16, 56, 56), 64, CPU, 16)
    assert made is not None and made.nv == 1


def test_of_equal_plans_the_one_of_fewest_sets_comes_first():
    every = [p for p in plans((1, 64, 224, 224), 64, CPU, 16) if p.m == 4]
    best = plan((1, 64, 224, 224), 64, CPU, 16)
    assert best is not None and (best.cycles, best.sets) == min((p.cycles, p.sets) for p in every)
    assert any(p.cycles == best.cycles and p.sets > best.sets for p in every)


@pytest.mark.parametrize(
    ("out", "size", "channels", "m"),
    [(128, 28, 128, 2), (256, 14, 256, 2), (64, 40, 32, 4), (128, 28, 64, 4), (96, 28, 48, 4)],
)
def test_extents_of_tiles_with_a_stride_of_2(out, size, channels, m):
    """Measured beside the direct kernel: 1.20, 1.17 and 1.19 times as fast; other extents 0.95 to 1.10.

    64 to 128 and 48 to 96 channels: F(4, 3) took 0.88 and 0.81 of the time of F(2, 3).
    """
    made = plan((1, out, size, size), channels, CPU, 16, 2)
    assert made is not None and (made.m, made.stride, made.shared) == (m, 2, False)


def test_small_maps_of_many_channels_on_a_processor_with_avx2():
    """512 channels at 7x7: twice as fast as the direct kernel, at the same rate of the last cache."""
    target = Target("cpu", 8, 2, 256, 2**18)
    made = plan((1, 512, 7, 7), 512, target, 8)
    direct = conv_tiles(Extents(7, 7, 512, 8, registers=target.registers))[0][0] * 9 * 512 / 2
    assert made is not None and (made.m, made.shared) == (2, True)
    assert made.cost < NEAR_SUMS * direct


@pytest.mark.parametrize(("channels", "size", "m"), [(512, 7, 2), (256, 14, 4), (192, 14, 4)])
def test_where_products_take_long_weights_are_transformed_ahead(channels, size, m):
    """512 channels at 7x7 on a core of one product a cycle: 0.75 ms, weights transformed as they come, became 0.66."""
    shape = (1, channels, size, size)
    made, streamed = plan(shape, channels, HALF, 16), streamed_plans(shape, channels, HALF)[0]
    assert made is not None and (made.m, made.shared) == (m, False) and made.cost < streamed.cost
    other, streamed = plan(shape, channels, CPU, 16), streamed_plans(shape, channels, CPU)[0]
    assert other is None or other.cost > streamed.cost


def test_where_products_take_long_larger_tiles_pay():
    """512 channels at 14x14: F(4, 3) took 0.78 of F(2, 3)'s time on such a core, whose weights are 0.45 as many."""
    made, other = (plan((1, 512, 14, 14), 512, target, 16) for target in (HALF, CPU))
    assert made is not None and other is not None and (made.m, other.m) == (4, 2)
