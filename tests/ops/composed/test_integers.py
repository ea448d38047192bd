"""Shifts of signed integers, and remainders of real numbers with the sign of the divisor."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from reference_engines import one_node
from together import evaluate, imported

import clnn


def shifted(x, places, direction):
    """Return each shift by Python's integers, cut to the bits of the type."""
    bits, kind = 8 * x.itemsize, x.dtype
    found = []
    for a, n in zip(x.reshape(-1).tolist(), places.reshape(-1).tolist(), strict=True):
        if not 0 <= n < bits:
            found.append(-1 if direction == "RIGHT" and a < 0 else 0)
            continue
        whole = a >> n if direction == "RIGHT" else (a << n) % 2**bits
        found.append(whole - 2**bits if whole >= 2 ** (bits - 1) else whole)
    return np.array(found, kind).reshape(x.shape)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_of_signed_integers(device, direction, dtype):
    limits = np.iinfo(dtype)
    x = rng().integers(limits.min, limits.max, (3, 40), dtype, endpoint=True)
    x[0, :2] = limits.min, limits.max
    places = rng(1).integers(-3, 8 * x.itemsize + 3, x.shape).astype(dtype)
    attrs = {"direction": direction}
    want = shifted(x, places, direction)
    got = evaluate(imported("BitShift", [x, places], attrs, 28), [x, places])
    np.testing.assert_array_equal(got, want)
    with clnn.compile_model(one_node("BitShift", [x, places], attrs, 28), device) as session:
        (got,) = session({"i0": x, "i1": places}).values()
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_remainders_with_the_sign_of_the_divisor(device, dtype):
    special = np.array([0, -0.0, 1.5, -1.5, 4, -4, np.inf, -np.inf, np.nan], dtype)
    a, b = (x.reshape(-1) for x in np.meshgrid(special, special))
    a = np.concatenate([a, (9 * rng().standard_normal(200)).astype(dtype)])
    b = np.concatenate([b, (4 * rng(1).standard_normal(200)).astype(dtype)])
    with np.errstate(all="ignore"):
        want = np.mod(a, b)
    with clnn.compile_model(one_node("Mod", [a, b], {}, 28), device) as session:
        (got,) = session({"i0": a, "i1": b}).values()
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, rtol=1e-2 if dtype == "float16" else 1e-5, atol=1e-6)
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()
