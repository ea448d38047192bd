"""embARC MLI 2.0: the primitives of its fixed-point arithmetic on int64 arrays.

`bits` is the width of the container that a value is held in; every result fits it. Source: embARC
MLI 2.0 as its reference implementation for x86 computes.
"""

from __future__ import annotations

import numpy as np

from clnn.arith._base import Array

Integers = Array | int


def limits(bits: int) -> tuple[int, int]:
    """Return the least and the largest value of a signed integer of `bits` bits."""
    return -(1 << bits - 1), (1 << bits - 1) - 1


def saturate(x: Integers, bits: int) -> Array:
    """Return x clamped to `bits` bits."""
    return np.clip(np.asarray(x, np.int64), *limits(bits))


def wrap(x: Integers, bits: int) -> Array:
    """Return x as two's complement of `bits` bits."""
    x = np.asarray(x, np.int64)
    return x if bits == 64 else (x << 64 - bits) >> 64 - bits


def add(x: Integers, y: Integers, bits: int) -> Array:
    """Return x + y, saturated; both fit `bits` bits."""
    x, y = np.asarray(x, np.int64), np.asarray(y, np.int64)
    if bits < 64:
        return saturate(x + y, bits)
    with np.errstate(over="ignore"):
        total = x + y
    over = ((x ^ total) & (y ^ total)) < 0
    return np.where(over, np.where(x < 0, *limits(64)), total)


def redundant_sign_bits(x: int, bits: int = 32) -> int:
    """Return how far x can move left without changing its sign in `bits` bits (0: bits - 1)."""
    return bits - 1 - (x if x >= 0 else ~x).bit_length()


def shift_left(x: Integers, n: Integers, bits: int) -> Array:
    """Return x * 2**n, saturated; for n < 0 it rounds down."""
    x, n = np.broadcast_arrays(np.asarray(x, np.int64), np.asarray(n, np.int64))
    low, high = limits(bits)
    up = np.clip(n, 0, bits - 1)
    moved = np.where(x > high >> up, high, np.where(x < low >> up, low, x << up))
    beyond = np.where(n >= bits, np.where(x == 0, 0, np.where(x > 0, high, low)), moved)
    return np.where(n >= 0, beyond, x >> np.clip(-n, 0, bits - 1))


def round_shift(x: Integers, n: Integers, bits: int, up: bool) -> Array:
    """Return x / 2**n rounded to nearest: ties up, or to even where not `up`.

    n < 0 moves left with saturation. n beyond bits - 1 gives 0.
    """
    x, n = np.broadcast_arrays(np.asarray(x, np.int64), np.asarray(n, np.int64))
    right = np.clip(n, 1, bits - 1)
    half = np.left_shift(np.int64(1), right - 1)
    if up:
        rounded = add(x, half, bits) >> right
    else:
        floor, rest = x >> right, x & (2 * half - 1)
        more = (rest > half) | ((rest == half) & (floor & 1 == 1))
        rounded = add(floor, more.astype(np.int64), bits)
    rounded = np.where(n > bits - 1, 0, rounded)
    return np.where(n > 0, rounded, np.where(n == 0, x, shift_left(x, -n, bits)))


def cast(x: Integers, n: Integers, bits: int, to: int, up: bool) -> Array:
    """Return round_shift in `bits` bits, saturated to `to` bits."""
    return saturate(round_shift(x, n, bits, up), to)


def divide(x: int, y: int) -> int:
    """Return the quotient, rounded towards zero."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def normalise(x: int, bits: int, to: int, up: bool) -> tuple[int, int]:
    """Return (value of `to` bits, shift) with x about value * 2**shift, as exact as fits."""
    shift = bits - to - redundant_sign_bits(x, bits)
    return int(cast(x, shift, bits, to, up)), shift
