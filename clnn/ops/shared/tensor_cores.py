"""Matrix products on tensor cores: tiles, and the launches of gemm/mma.cl.mako and its kin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from clnn.arith.quantised import Sums
from clnn.codegen.filters import cell
from clnn.layout import TensorLayout
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.loops import Loops
from clnn.ops.shared.matrices import Pitches
from clnn.ops.shared.window import Window
from clnn.records import dataclass

BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1}
OF_BYTES = ("s8", "u8")  # kinds whose sums are integers: of a, with int8
# What results are stored as where they lie as operands do.
DST_TYPES = {"f16": "half", "bf16": "bf16", "tf32": "float"}


@dataclass(frozen=True)
class MmaTile:
    """Tunables of a product on tensor cores.

    bm, bn: results of a work-group. bk: elements of k in a chunk of a and of b. wm, wn: results of a
    warp. stages: chunks in local memory. raster: row tiles that follow one another. slices: of the terms of a
    chunk, each for warps of its own, whose sums are added at the end.
    """

    bm: int = 128
    bn: int = 128
    bk: int = 32
    wm: int = 64
    wn: int = 64
    stages: int = 2
    raster: int = 8
    slices: int = 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Results of a work-group and of a warp."""
        return self.bm, self.bn, self.wm, self.wn

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return 32 * (self.bm // self.wm) * (self.bn // self.wn) * self.slices

    @property
    def sums_bytes(self) -> int:
        """Bytes of the sums of all slices but one, which take the place of the chunks at the end."""
        return (self.slices - 1) * self.bm * self.bn * 4

    def local_bytes(self, kind: str, body: str = "ptx") -> int:
        """Return the bytes of local memory that tiles of `kind` take, and what a body needs besides."""
        tiles = max(self.stages * (self.bm + self.bn) * self.bk * BYTES[kind], self.sums_bytes)
        if body == "ptx":
            return tiles
        exchange = self.threads * 4 * (self.wm // 16 * 4 + self.wn // 8 * 2)
        return tiles + exchange + 2 * tiles // 4

    def __str__(self) -> str:
        sliced = f"_k{self.slices}" if self.slices > 1 else ""
        return f"{self.bm}x{self.bn}x{self.bk}_w{self.wm}x{self.wn}_s{self.stages}{sliced}"


@dataclass(frozen=True)
class MmaProduct:
    """dst (m, n) = a (m, k) times b (k, n) of numbers of `kind`, with sums of 32 bits.

    The fields are the parameters of gemm/mma.cl.mako, which says what they mean.
    """

    kind: str
    m: int
    n: int
    k: int
    a: int
    b: int
    dst: Pitches
    dst_type: str = "float"
    b_rows: str = "k"
    rounded: bool = False
    batch: Loops = field(default_factory=lambda: Loops((1,), ((0,), (0,), (0,))))
    extras: Mapping[int, tuple[int, Pitches]] = field(default_factory=dict)
    scales: Mapping[int, float] = field(default_factory=dict)
    post_ops: Sequence[PostOp] = ()
    extra_type: str = "float"
    moves: tuple[bool, bool] = (True, True)


def mma_params(product: MmaProduct, tile: MmaTile, body: str = "ptx") -> dict[str, Any]:
    """Return the parameters of gemm/mma.cl.mako; body "emulated" is plain OpenCL C."""
    order = {"k": "kn", "n": "nk"}[product.b_rows]
    return {
        **vars(product),
        **vars(tile),
        "name": f"gemm_mma_{product.kind}_{order}_{product.dst_type}_t{tile}",
        "body": body,
        "wg": (tile.threads, 1, 1),
    }


def mma_grid(m: int, n: int, matrices: int, tile: MmaTile) -> tuple[int, int]:
    """Return the global size for `matrices` products of m x n results."""
    return (-(-m // tile.bm) * -(-n // tile.bn) * tile.threads, matrices)


@dataclass(frozen=True)
class MmaConv:
    """A convolution of images with channels innermost, as conv/mma.cl.mako takes it.

    src, dst: (n, c, h, w). ic, oc: channels; b, b_rows: how weights lie, see the template. operands:
    node input -> (number, layout broadcast to dst), of `post_ops`. extra_types: of operands in memory,
    float32 where none are given; scales: pairs of parameters of functions of bytes among `post_ops`. arith: of
    sums of bytes that begin with, and are scaled by, constants of each channel. bias: input of a post-op
    that is one float per channel, -1 for none; it and weights without b_moves are given without an
    offset.
    """

    kind: str
    src: TensorLayout
    dst: TensorLayout
    ic: int
    oc: int
    b: int
    window: Window
    dst_type: str = "float"
    b_rows: str = "k"
    rounded: bool = False
    operands: Mapping[int, tuple[int, TensorLayout]] = field(default_factory=dict)
    post_ops: Sequence[PostOp] = ()
    extra_types: Sequence[str] = ()
    scales: int = 0
    arith: Sums | None = None
    bias: int = -1
    b_moves: bool = True


def mma_conv_params(conv: MmaConv, tile: MmaTile, body: str = "ptx") -> dict[str, Any]:
    """Return the parameters of conv/mma.cl.mako; its grid is mma_grid of pixels and oc."""
    order, at = {"k": "kn", "n": "nk"}[conv.b_rows], conv.window
    (kh, kw), (sy, sx) = at.kernel, at.strides
    params = {
        **vars(conv),
        **vars(tile),
        "name": f"conv2d_mma_{conv.kind}_{order}_{cell(conv.dst_type)}_k{kh}x{kw}_s{sy}x{sx}_t{tile}",
        "body": body,
        "kernel": at.kernel,
        "strides": at.strides,
        "dilations": at.dilations,
        "pads": at.before,
        "extra_types": conv.extra_types or ["float"] * len(conv.operands),
        "wg": (tile.threads, 1, 1),
    }
    del params["window"]
    return params
