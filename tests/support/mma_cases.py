"""Products of gemm/mma.cl.mako with their data, their results in numpy, and the error they may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fragments import STORED, decode, encode
from launch import run

from clnn.codegen import render as room
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.shared.loops import Loops
from clnn.ops.shared.tensor_cores import MmaProduct, MmaTile, mma_grid, mma_params

TEMPLATE = "gemm/mma.cl.mako"
OUT = {"float": np.float32, "half": np.uint16, "bf16": np.uint16, "int": np.int32}
GUARD = 8  # elements in front of a and b, 16 bytes at least, and around dst
POISON = 0xFF
BIAS = (PostOp("add", operand=2),)


@dataclass(frozen=True)
class Case:
    """One product: sizes, tile, and how operands and results lie."""

    kind: str
    m: int
    n: int
    k: int
    tile: MmaTile
    b_rows: str = "k"
    dst_type: str = "float"
    rounded: bool = False
    batch: int = 1
    post_ops: tuple[PostOp, ...] = ()
    bias: str = ""  # pitches of operand 2 of the post-ops: "", "row", "all" or "spread"
    dst_pitch: int = 0  # elements from row to row beyond n; -1: columns lie apart
    scale: float = 1.0
    more: int = 0  # elements between rows of a and b beyond what 16 bytes ask for
    seed: int = field(default=0, compare=False)

    @property
    def per(self) -> int:
        """Elements in 16 bytes."""
        return 16 // np.dtype(STORED[self.kind]).itemsize

    def product(self) -> MmaProduct:
        """Return the problem as the op-level code states it."""
        pitch, step = self.dst_pitches
        extra = {
            "": {},
            "row": {2: (0, (0, 1))},
            "all": {2: (0, (self.n, 1))},
            "spread": {2: (0, (1, 0))},
        }
        a, b = self.rows(self.k), self.rows(self.n if self.b_rows == "k" else self.k)
        of_b = (self.k if self.b_rows == "k" else self.n) * b
        out = self.m * pitch if self.dst_pitch >= 0 else self.m
        pitches = [(self.m * a,), (0 if self.batch % 2 else of_b,), (out,)] + [(0,)] * bool(
            self.bias
        )
        return MmaProduct(
            self.kind,
            self.m,
            self.n,
            self.k,
            a,
            b,
            (pitch, step),
            self.dst_type,
            self.b_rows,
            self.rounded,
            Loops((self.batch,), tuple(pitches)),
            extra[self.bias],
            {2: self.scale} if self.scale != 1 else {},
            self.post_ops,
        )

    @property
    def dst_pitches(self) -> tuple[int, int]:
        """Elements from row to row and from column to column of dst."""
        if self.dst_pitch < 0:
            return 1, self.m * self.batch
        return self.n + self.dst_pitch, 1

    def rows(self, length: int) -> int:
        """Return the pitch of rows of `length` elements."""
        return -(-length // self.per) * self.per + self.more


def data(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a (batch, m, k), b (batch or 1, k, n) and operand 2, as the numbers that they are for."""
    rng = np.random.default_rng(case.seed)
    wide = 60 if case.kind == "s8" else 1
    a = rng.standard_normal((case.batch, case.m, case.k)) * wide
    b = rng.standard_normal((1 if case.batch % 2 else case.batch, case.k, case.n)) * wide
    shape = {"": (0,), "row": (1, case.n), "all": (case.m, case.n), "spread": (case.m, 1)}[
        case.bias
    ]
    return a.astype(np.float32), b.astype(np.float32), rng.standard_normal(shape).astype(np.float32)


def in_memory(case: Case, rows: np.ndarray, pitch: int) -> np.ndarray:
    """Return (matrices, rows, length) with poison between the rows and in front."""
    bits = rows if case.rounded else encode(case.kind, rows)
    if case.kind == "tf32":
        bits = bits.view(np.float32)
    lead = max(GUARD, case.per)
    out = np.full((lead + rows[..., 0].size * pitch) * bits.itemsize, POISON, np.uint8).view(
        bits.dtype
    )
    out[lead:].reshape(*rows.shape[:-1], pitch)[..., : rows.shape[-1]] = bits
    end = out.size - (pitch - rows.shape[-1])
    return np.ascontiguousarray(out[:end])


def reference(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the results in double precision, and how far each may be from them.

    Sums of k products in float32, in any order: k * 2^-24 of the sum of their sizes.
    """
    a, b, other = data(case)
    a, b = (decode(case.kind, encode(case.kind, x)) for x in (a, b))
    want, sizes = np.matmul(a, b), np.matmul(abs(a), abs(b))
    if case.dst_type == "int":
        return want, np.zeros_like(want)
    error = sizes * (case.k + 2) * 2.0**-24
    want = apply_post_ops(want.astype(np.float64), case.post_ops, [None, None, other * case.scale])
    error = error + 2.0**-22 * abs(want) + 2.0**-22
    fine = {"float": 0.0, "half": 2.0**-11, "bf16": 2.0**-8}[case.dst_type]
    return want, error + fine * abs(want)


def check(device: str, case: Case, template: str = TEMPLATE) -> None:
    """Run a case with the emulated body and compare it; what is not a result must stay as it was."""
    product, tile = case.product(), case.tile
    a, b, other = data(case)
    columns = b if case.b_rows == "k" else np.ascontiguousarray(b.swapaxes(1, 2))
    pitch, step = product.dst
    size = 1 + (case.batch * case.m - 1) * pitch + (case.n - 1) * step
    dst = np.full((size + 2 * GUARD) * OUT[case.dst_type]().itemsize, POISON, np.uint8)
    lead = max(GUARD, case.per)
    args: list[Any] = [
        in_memory(case, a, product.a),
        lead,
        in_memory(case, columns, product.b),
        lead,
    ]
    args += [np.concatenate([np.zeros(3, np.float32), other.reshape(-1)]), 3] if case.bias else []
    args += [dst.view(OUT[case.dst_type]), GUARD]
    params = mma_params(product, tile, "emulated")
    room.render(template, params | {"body": "ptx"})
    got = run(device, template, params, args, mma_grid(case.m, case.n, case.batch, tile))[-1]
    index = np.arange(case.batch * case.m)[:, None] * pitch + np.arange(case.n) * step + GUARD
    found = got[index].reshape(case.batch, case.m, case.n)
    outside = np.delete(got.copy(), index.reshape(-1))
    assert (outside.view(np.uint8) == POISON).all(), f"{case}: wrote beside the results"
    compare(case, found)


def compare(case: Case, found: np.ndarray) -> None:
    """Assert that results are within their error."""
    want, error = reference(case)
    values = {"half": "f16", "bf16": "bf16"}.get(case.dst_type)
    numbers = decode(values, found) if values else found.astype(np.float64)
    wrong = ~(abs(numbers - want) <= error)
    assert not wrong.any(), (
        f"{case}: {wrong.sum()} of {wrong.size} wrong, first at {np.argwhere(wrong)[0]}:"
        f" {numbers[wrong][0]}, must be {want[wrong][0]}"
    )
