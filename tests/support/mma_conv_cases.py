"""Convolutions of conv/mma.cl.mako with their data, their results in numpy, and their errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from fragments import STORED, decode, encode
from launch import run
from mma_cases import OUT, POISON

from clnn.codegen import render as room
from clnn.layout import TensorLayout, channels_last, view_of
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.shared.tensor_cores import MmaConv, MmaTile, mma_conv_params, mma_grid
from clnn.ops.shared.window import Window

TEMPLATE = "conv/mma.cl.mako"


@dataclass(frozen=True)
class ConvCase:
    """One convolution: images (n, ic, h, w), oc, window, tile; bias: operand 2, one per channel."""

    kind: str
    shape: tuple[int, int, int, int]
    oc: int
    window: Window
    tile: MmaTile
    b_rows: str = "k"
    dst_type: str = "float"
    rounded: bool = False
    bias: bool = False
    dst_border: int = 0

    def make(self) -> MmaConv:
        """Return the problem as the op-level code states it."""
        at, (n, ic, h, w) = self.window, self.shape
        first = [0, 0, *at.before]
        after = [0, 0, *at.needed_after((h, w))]
        src = TensorLayout.make(self.shape, channels_last(4), first, after)
        edge = (0, 0, self.dst_border, self.dst_border)
        out = (n, self.oc, *at.output((h, w)))
        dst = TensorLayout.make(out, channels_last(4), edge, edge)
        row = TensorLayout.make((1, self.oc, 1, 1)).broadcast(out)
        per = 16 // np.dtype(STORED[self.kind]).itemsize
        length = self.oc if self.b_rows == "k" else at.kernel[0] * at.kernel[1] * ic
        post_ops = (PostOp("add", operand=2), PostOp("relu")) if self.bias else ()
        return MmaConv(
            self.kind,
            src,
            dst,
            ic,
            self.oc,
            -(-length // per) * per,
            at,
            self.dst_type,
            self.b_rows,
            self.rounded,
            {2: (0, row)} if self.bias else {},
            post_ops,
        )


def reference(
    case: ConvCase, x: np.ndarray, w: np.ndarray, conv: MmaConv, bias: np.ndarray
) -> tuple:
    """Return the results (n, oc, h, w) in double precision, and how far each may be from them."""
    at, sizes = case.window, conv.dst.shape
    wide = np.pad(x, [(0, 0), (0, 0), *zip(at.before, at.needed_after(x.shape[2:]), strict=True)])
    want, sums = np.zeros(sizes), np.zeros(sizes)
    for y in range(at.kernel[0]):
        for z in range(at.kernel[1]):
            top, left = y * at.dilations[0], z * at.dilations[1]
            part = wide[:, :, top :: at.strides[0], left :: at.strides[1]][
                ..., : sizes[2], : sizes[3]
            ]
            want += np.einsum("nchw,ck->nkhw", part, w[y, z])
            sums += np.einsum("nchw,ck->nkhw", abs(part), abs(w[y, z]))
    if case.dst_type == "int":
        return want, np.zeros(sizes)
    error = sums * (w[..., 0].size + 2) * 2.0**-24 + 2.0**-22
    want = apply_post_ops(
        want, conv.post_ops, [None, None, bias.reshape(1, -1, 1, 1).astype(np.float64)]
    )
    return want, error + abs(want) * (2.0**-11 if case.dst_type == "half" else 2.0**-22)


def check(device: str, case: ConvCase) -> None:
    """Run a case with the emulated body and compare it; the border of dst must stay as it was."""
    conv, rng = case.make(), np.random.default_rng(0)
    wide = 60 if case.kind == "s8" else 1
    (kh, kw), ic = case.window.kernel, case.shape[1]
    x = (rng.standard_normal(case.shape) * wide).astype(np.float32)
    w = (rng.standard_normal((kh, kw, ic, case.oc)) * wide).astype(np.float32)
    bias = rng.standard_normal(case.oc).astype(np.float32)
    stored = np.float32 if case.kind == "tf32" else STORED[case.kind]
    given = [v if case.rounded else encode(case.kind, v).view(stored) for v in (x, w)]
    src = np.zeros(conv.src.size, stored)
    view_of(src, conv.src)[...] = given[0]
    matrix = given[1].reshape(-1, case.oc)
    matrix = matrix if case.b_rows == "k" else matrix.T
    weights = np.full((matrix.shape[0], conv.b * matrix.itemsize), POISON, np.uint8).view(stored)
    weights[:, : matrix.shape[1]] = matrix
    dst = np.full(conv.dst.size * OUT[case.dst_type]().itemsize, POISON, np.uint8).view(
        OUT[case.dst_type]
    )
    args = [
        src,
        conv.src.offset,
        weights.reshape(-1),
        0,
        *([bias, 0] if case.bias else []),
        dst,
        conv.dst.offset,
    ]
    params = mma_conv_params(conv, case.tile, "emulated")
    room.render(TEMPLATE, params | {"body": "ptx"})
    n, oc, h, w_ = conv.dst.shape
    got = run(device, TEMPLATE, params, args, mma_grid(n * h * w_, oc, 1, case.tile))[-1]
    found = view_of(got, conv.dst).copy()
    view_of(got, conv.dst)[...] = dst[0]
    assert (got.view(np.uint8) == POISON).all(), f"{case}: wrote beside the results"
    numbers = decode("f16", found) if case.dst_type == "half" else found.astype(np.float64)
    inputs = (decode(case.kind, encode(case.kind, v)) for v in (x, w))
    want, error = reference(case, *inputs, conv, bias)
    wrong = ~(abs(numbers - want) <= error)
    assert not wrong.any(), (
        f"{case}: {wrong.sum()} of {wrong.size} wrong, first {np.argwhere(wrong)[0]}"
    )
