"""Tiles of registers: how they take channels, and the arithmetic of the instruction for bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
from exact import flushed, fma

from clnn.ops.shared import amx
from clnn.runtime.device.device import open_context, select
from clnn.runtime.device.probe_bench import ProbeBench
from clnn.runtime.drivers.loader import load
from clnn.target import Target
from clnn.types import I8, STORED_BF16, U8, narrow, widen


@pytest.mark.parametrize(
    ("nbytes", "wanted"),
    [
        (4, 4),
        (64, 64),
        (68, 4),
        (72, 36),
        (96, 48),
        (128, 64),
        (144, 48),
        (200, 40),
        (6, 0),
        (0, 0),
    ],
)
def test_rows_are_taken_in_equal_parts(nbytes, wanted):
    assert amx.depth(nbytes) == wanted


def test_products_that_there_are():
    assert amx.products(STORED_BF16, STORED_BF16) == "bf16"
    assert [amx.products(x, I8) for x in (I8, U8, STORED_BF16)] == ["s8", "u8", ""]
    assert amx.products(I8, U8) == amx.products(I8, STORED_BF16) == ""


def test_work_items_have_enough_to_do():
    target = Target(compute_units=2)
    assert amx.run_of(1000, 10_000.0, target) == 1
    assert amx.run_of(1000, 500.0, target) == 5
    assert amx.run_of(32, 500.0, target) == 2  # eight for each unit


def test_devices_that_have_none():
    assert amx.how(Target(vector=16)) == ""
    assert amx.how(Target(vector=8, features=frozenset({"x86_amx"}))) == ""
    assert amx.how(Target(kind="gpu", features=frozenset({"x86_amx"}))) == ""
    assert amx.how(Target(vector=16, features=frozenset({"x86_amx"}))) == "x86"


def test_arithmetic_of_the_instruction(any_device):
    """Two sums of fused multiply-adds, added to each other, then to what was there; below 2^-126 all is 0."""
    info = select(any_device)
    if not info.caps.x86_amx:
        pytest.skip("the device has no registers of tiles")
    bench, chance = (
        ProbeBench(load(), open_context(info)[1], [info.cl_std]),
        np.random.default_rng(1),
    )
    for low, high, start in ((-3, 4, 0), (-20, 20, 0), (-70, -55, -125), (-130, -120, 0)):
        drawn = chance.standard_normal((2, 512)) * 2.0 ** chance.integers(low, high, (2, 512))
        halves = narrow(drawn.astype(np.float32), STORED_BF16)
        acc = (chance.standard_normal((16, 16)) * 2.0**start).astype(np.float32)
        args = (*halves.view(np.int32), acc)
        got = bench.run(bench.kernel("x86_amx", "tile_pairs"), 1, None, args, acc)
        x, w = (flushed(widen(h, STORED_BF16)).reshape(16, 16, 2) for h in halves)
        want = np.zeros((16, 16), np.float32)
        for row, column in np.ndindex(16, 16):
            sums = [0.0, 0.0]
            for k, odd in np.ndindex(16, 2):
                sums[odd] = fma(x[row, k, odd], w[k, column, odd], sums[odd])
            want[row, column] = fma(1.0, fma(1.0, sums[0], sums[1]), flushed(acc[row, column]))
        np.testing.assert_array_equal(got, want)
        # The bound that docs/precision.md states, of k = 32 products in one part.
        exact = np.einsum("rkp,ckp->rc", x.astype(float), w.swapaxes(0, 1).astype(float))
        exact = exact + flushed(acc)
        size = np.einsum(
            "rkp,ckp->rc", np.abs(x, dtype=float), np.abs(w.swapaxes(0, 1), dtype=float)
        )
        bound = 18 * 2.0**-24 * (size + np.abs(acc)) + 2 * 32 * 2.0**-126
        assert (np.abs(got - exact) <= bound).all()
