"""Which tiles Winograd's convolution takes, by the estimate alone."""

from __future__ import annotations

import pytest

from clnn.ops._base import Target
from clnn.ops._winograd import plan, plans

CPU = Target("cpu", 16, 2, 256, 2**20)


@pytest.mark.parametrize(("batch", "size"), [(1, 28), (1, 14), (8, 28), (8, 14)])
def test_tiles_of_many_channels_are_two_vectors_wide(batch, size):
    """512 channels: tiles of one vector took 1.13 to 1.29 times as long where the counts were equal."""
    made = plan((batch, 512, size, size), 512, CPU, 16)
    assert made is not None and made.nv >= 2


def test_of_f4_one_vector_is_as_good():
    """256 to 512 channels: F(4,3) in 25 tiles of one vector took 1.6 ms, F(2,3) of two 2.2."""
    made = plan((1, 512, 28, 28), 256, CPU, 16)
    assert made is not None and (made.m, made.nv) == (4, 1)


def test_few_channels_have_one_vector():
    made = plan((1, 16, 56, 56), 64, CPU, 16)
    assert made is not None and made.nv == 1


def test_of_equal_plans_the_one_of_fewest_sets_comes_first():
    every = plans((1, 512, 28, 28), 512, CPU, 16)
    ranks = [(p.cycles, p.sets) for p in every if (p.m, p.nv) == (2, 2)]
    best = plan((1, 512, 28, 28), 512, CPU, 16)
    assert best is not None and (best.cycles, best.sets) == min(ranks)
    assert any(c == best.cycles and s > best.sets for c, s in ranks)
