"""The probe's steps for instructions of NVIDIA's that clnn reaches by inline PTX."""

from __future__ import annotations

from typing import Any

import numpy as np

from clnn.runtime.device.probe_bench import ProbeBench, RefusedError, expect
from clnn.runtime.device.probe_dots import check_dots

VENDOR = "NVIDIA"


def step_ptx_dp4a(bench: ProbeBench) -> int:
    """NVIDIA's dp4a through inline PTX, three signednesses."""
    _need_ptx(bench)
    return check_dots(bench, "ptx_dp4a")


def _need_ptx(bench: ProbeBench) -> None:
    if VENDOR not in bench.device.vendor.upper():
        raise RefusedError("not an NVIDIA device")


def step_ptx_mma(bench: ProbeBench) -> int:
    """NVIDIA's mma.sync of five kinds of numbers; exact, for the operands are small integers."""
    _need_ptx(bench)
    for kind in ("f16", "bf16", "tf32", "s8", "u8"):
        a, b, c, want = mma_fragments(kind)
        kernel = bench.kernel("ptx_mma", f"mma_{kind}")
        expect(bench.run(kernel, 32, 32, (a, b, c), c), want)
    return 1


def mma_fragments(kind: str) -> tuple[np.ndarray[Any, Any], ...]:
    """Return fragments (a, b, c, a * b + c) of a product 16x8, words or sums by lane and register."""
    depth = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "u8": 32}[kind]
    rng = np.random.default_rng(depth)
    low, high = (0, 256) if kind == "u8" else (-99, 100)
    a, b = rng.integers(low, high, (16, depth)), rng.integers(-99, 100, (depth, 8))
    c = rng.integers(-999, 1000, (16, 8))
    lane, register = np.arange(32)[:, None], np.arange(4)
    of_a = _words(kind, a)[lane // 4 + 8 * (register % 2), lane % 4 + 4 * (register // 2)]
    of_b = _words("s8" if kind == "u8" else kind, b.T)[lane // 4, lane % 4 + 4 * register[:2]]
    place = (lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2)
    sums = np.int32 if kind in ("s8", "u8") else np.float32
    return of_a, of_b, c[place].astype(sums), (c + a @ b)[place].astype(sums)


def _words(kind: str, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return rows of numbers of `kind`, packed into words."""
    dtype = {"f16": np.float16, "s8": np.int8, "u8": np.uint8}.get(kind, np.float32)
    packed = np.ascontiguousarray(rows, dtype)
    if kind == "bf16":
        packed = (packed.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return packed.view(np.uint32)


def step_ptx_ldmatrix(bench: ProbeBench) -> int:
    """NVIDIA's ldmatrix of four matrices with scattered rows, as they are and transposed."""
    _need_ptx(bench)
    src = np.arange(256, dtype=np.uint16)
    order = np.arange(32) * 11 % 32
    matrices = src.reshape(32, 8)[order].reshape(4, 8, 8)
    both = np.stack([matrices, matrices.transpose(0, 2, 1)])
    want = np.ascontiguousarray(both).view(np.uint32).reshape(8, 32).T
    out = np.zeros((32, 8), np.uint32)
    args = (src.view(np.uint32), (16 * order).astype(np.uint32), out)
    expect(bench.run(bench.kernel("ptx_ldmatrix", "matrices"), 32, 32, args, out), want)
    return 1


def step_ptx_cp_async(bench: ProbeBench) -> int:
    """NVIDIA's cp.async of 0 to 16 bytes, the rest of 16 filled with zeros, in two groups."""
    _need_ptx(bench)
    src = (np.arange(1024) % 251 + 1).astype(np.uint8).reshape(64, 16)
    sizes = (np.arange(64) % 17).astype(np.uint32)
    filled = np.where(np.arange(16) < sizes[:, None], src, 0).astype(np.uint8)
    want = np.concatenate([filled[31::-1], filled[:31:-1]])
    out = np.zeros_like(src)
    expect(bench.run(bench.kernel("ptx_cp_async", "pieces"), 32, 32, (src, sizes, out), out), want)
    return 1
