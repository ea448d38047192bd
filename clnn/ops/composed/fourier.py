"""DFT and STFT as products with constant matrices of cosines and sines.

A transform of N = N1 N2 places is done in two steps where that multiplies much less: with n = N2 n1 + n2
and k = k1 + N1 k2,

    X[k] = sum over n2 of exp(-2 pi i n2 k2 / N2) * (sum over n1 of exp(-2 pi i n k1 / N) * x[n])

whose inner sums are products with a matrix of its own for each n2. Real and imaginary parts are the last
axis of all values, and are multiplied as matrices of 2 by 2. All matrices are computed in float64 and
rounded once.
"""

from __future__ import annotations

from math import isqrt, prod

import numpy as np

from clnn.budget import take_table
from clnn.errors import ShapeError
from clnn.ops.composed.einsum import matrix_product
from clnn.ops.composed.values import Value
from clnn.ops.movement.gather import Gather
from clnn.ops.onnx_registry import OnnxNode, Source, onnx_op
from clnn.records import dataclass
from clnn.types import Array, normalise_axis

LONG = 512  # places from which on two steps are considered
FEWER = 4  # how many times fewer multiplications they must have


@dataclass(frozen=True)
class Transform:
    """A transform along one axis of `count` values of `parts` (1: real, 2: complex) to `bins`.

    length: its period N; values beyond `count` are 0. real_result: of a spectrum whose other half is
    conjugate, the real part alone. window: factors of the values, or None.
    """

    count: int
    parts: int
    length: int
    bins: int
    inverse: bool = False
    real_result: bool = False
    window: Array | None = None

    @property
    def results(self) -> int:
        """Parts of each result."""
        return 1 if self.real_result else 2

    def factor(self) -> int:
        """Return N1 of two steps, 1 for one."""
        whole = self.count == self.length and not self.real_result
        if not whole or self.length < LONG:
            return 1
        n1 = next(d for d in range(isqrt(self.length), 0, -1) if self.length % d == 0)
        once = self.parts * self.bins
        return n1 if n1 > 1 and FEWER * (self.parts * n1 + 2 * self.length // n1) < once else 1

    def apply(self, x: Value) -> Value:
        """Return (..., bins, results) of values (..., count, parts)."""
        n1 = self.factor()
        take_table(8 * self._numbers(n1), f"a Fourier transform of length {self.length}")
        return self._at_once(x) if n1 == 1 else self._in_steps(x, n1)

    def _numbers(self, n1: int) -> int:
        if n1 == 1:
            return self.count * self.parts * self.bins * self.results
        return 2 * self.length * self.parts * n1 + 4 * (self.length // n1) ** 2

    def _at_once(self, x: Value) -> Value:
        outer, k, n = x.shape[:-2], np.arange(self.bins), np.arange(self.count)
        table = self._blocks(n[:, None] * k % self.length, self.length, self.parts)
        if self.window is not None:
            table *= self.window.astype(np.float64)[:, None, None, None]
        if self.inverse:
            table /= self.length
        if self.real_result:  # the other half of the spectrum gives the same real part
            once = (n == 0) | (2 * n == self.length)
            table = table[..., :1] * np.where(once, 1, 2)[:, None, None, None]
        matrix = table.reshape(self.count * self.parts, self.bins * self.results)
        flat = x.reshape((prod(outer), self.count * self.parts))
        product = matrix_product(flat, Value.const(matrix.astype(x.type.dtype.numpy)))
        return product.reshape((*outer, self.bins, self.results))

    def _in_steps(self, x: Value, n1: int) -> Value:
        n2, dtype = self.length // n1, x.type.dtype.numpy
        outer = x.shape[:-2]
        size = prod(outer)
        n = n2 * np.arange(n1) + np.arange(n2)[:, None]  # (n2, n1)
        first = self._blocks(n[..., None] * np.arange(n1) % self.length, self.length, self.parts)
        if self.window is not None:
            first *= self.window.astype(np.float64)[n][..., None, None, None]
        first = first.reshape(n2, n1 * self.parts, 2 * n1)
        second = self._blocks(np.arange(n2)[:, None] * np.arange(n2) % n2, n2, 2)
        second = (second / self.length if self.inverse else second).reshape(2 * n2, 2 * n2)
        parts = x.reshape((size, n1, n2, self.parts)).transpose((2, 0, 1, 3))
        inner = matrix_product(
            parts.reshape((n2, size, n1 * self.parts)), Value.const(first.astype(dtype))
        )
        turned = inner.reshape((n2, size, n1, 2)).transpose((1, 2, 0, 3))
        both = matrix_product(turned.reshape((size, n1, 2 * n2)), Value.const(second.astype(dtype)))
        ordered = both.reshape((size, n1, n2, 2)).transpose((0, 2, 1, 3))
        whole = ordered.reshape((*outer, self.length, 2))
        return whole if self.bins == self.length else whole.part(len(outer), 0, self.bins)

    def _blocks(self, turns: Array, period: int, parts: int) -> Array:
        """Return (n, parts, k, 2) of turns (n, k) / period; axes in front stay in front."""
        angles = turns * (2 * np.pi / period)
        cosine, sine = np.cos(angles), np.sin(angles) * (1 if self.inverse else -1)
        sine[(2 * turns) % period == 0] = 0
        real = np.stack([cosine, sine], -1)
        if parts == 1:
            return np.asarray(real[..., None, :, :])
        return np.stack([real, np.stack([-sine, cosine], -1)], -3)


@onnx_op("DFT")
def _dft(node: OnnxNode) -> Source:
    x = Value.of(node, 0)
    rank, parts = x.type.rank, x.shape[-1] if x.type.rank else 0
    if rank < 2 or parts not in (1, 2):
        raise ShapeError(f"DFT of {x.shape}: the last axis must be of 1 or 2 parts.")
    if node.opset < 20:
        axis = int(node.attr("axis", 1))
    else:
        axis = int(node.const(2, "axis").item()) if node.has(2) else -2
    axis = normalise_axis(axis, rank)
    if axis == rank - 1:
        raise ShapeError(f"DFT of {x.shape} along axis {axis}: that has the parts of numbers.")
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    if onesided and parts != 1 + inverse:
        raise ShapeError(f"DFT of {x.shape}: one side needs {1 + inverse} parts, not {parts}.")
    known = node.has(1) and node.const(1, "dft_length").item()
    length = int(known or (2 * (x.shape[axis] - 1) if onesided and inverse else x.shape[axis]))
    if length < 1:
        raise ShapeError(f"DFT of {x.shape}: its length is {length}, must be at least 1.")
    half = length // 2 + 1
    real_result = onesided and inverse
    count = min(x.shape[axis], half if real_result else length)
    bins = half if onesided and not inverse else length
    used = x if count == x.shape[axis] else x.part(axis, 0, count)
    perm = [a for a in range(rank - 1) if a != axis]
    moved = used.transpose([*perm, axis, rank - 1])
    result = Transform(count, parts, length, bins, inverse, real_result).apply(moved)
    return result.transpose([int(a) for a in np.argsort([*perm, axis, rank - 1])]).source


@onnx_op("STFT")
def _stft(node: OnnxNode) -> Source:
    x = Value.of(node, 0)
    if x.type.rank == 2:
        x = x.reshape((*x.shape, 1))
    if x.type.rank != 3 or x.shape[-1] not in (1, 2):
        raise ShapeError(f"STFT of {x.shape}: must be (batch, length, 1 or 2).")
    signal, parts = x.shape[1:]
    step, length = int(node.const(1, "frame_step").item()), signal
    if node.has(2):
        length = node.type(2).size
    if node.has(3):
        length = int(node.const(3, "frame_length").item())
    if node.has(2) and node.type(2).shape != (length,):
        raise ShapeError(f"STFT: the window is {node.type(2).shape}, must be ({length},).")
    if step < 1 or not 1 <= length <= signal:
        raise ShapeError(f"STFT of {x.shape}: frames of {length} every {step} places do not fit.")
    onesided = bool(node.attr("onesided", 1))
    if onesided and parts == 2:
        raise ShapeError(f"STFT of {x.shape}: one side needs real numbers.")
    frames = (signal - length) // step + 1
    take_table(4 * frames * length, f"STFT of {x.shape}")
    places = np.arange(0, frames * step, step)[:, None] + np.arange(length)
    framed = x.apply(Gather(1), Value.const(places.astype(np.int32)))
    window = node.consts.get(2) if node.has(2) else None
    if window is None and node.has(2):
        framed = framed.binary("mul", Value(2, node.type(2)).reshape((length, 1)))
    bins = length // 2 + 1 if onesided else length
    return Transform(length, parts, length, bins, window=window).apply(framed).source
