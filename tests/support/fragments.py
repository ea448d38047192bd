"""Numbers and fragments of warp instructions by the formulas of the PTX ISA, in numpy.

Formulas: PTX ISA, "Matrix fragments for mma.m16n8k16 / k8 / k32", "ldmatrix", "shfl.sync". A
fragment is an array (32 lanes, registers) of 32-bit words; a lane's group is lane >> 2 and its
place in it lane % 4.
"""

from __future__ import annotations

import numpy as np

LANES = np.arange(32)
GROUP, PLACE = LANES >> 2, LANES % 4
DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "u8": 32}
STORED = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32, "s8": np.int8, "u8": np.uint8}
SUM = {"f16": np.float32, "bf16": np.float32, "tf32": np.float32, "s8": np.int32, "u8": np.int32}


def encode(kind: str, values: np.ndarray) -> np.ndarray:
    """Return float32 values rounded to `kind`, as its bits (s8, u8: the values, clipped)."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    if kind == "s8":
        return np.clip(values, -128, 127).astype(np.int8)
    if kind == "u8":
        return np.clip(values, 0, 255).astype(np.uint8)
    bits = values.astype(np.float32).view(np.uint32)
    if kind == "tf32":
        return (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> 16).astype(
        np.uint16
    )


def decode(kind: str, bits: np.ndarray) -> np.ndarray:
    """Return the numbers that `bits` are, as float64 (s8, u8: int64)."""
    if kind == "f16":
        return bits.view(np.float16).astype(np.float64)
    if kind in ("s8", "u8"):
        return bits.astype(np.int64)
    if kind == "bf16":
        bits = bits.astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32).astype(np.float64)


def a_places(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of element i of each lane of a, both (32, elements)."""
    group, place = GROUP[:, None], PLACE[:, None]
    if kind in ("f16", "bf16"):
        i = np.arange(8)[None]
        low = (i < 2) | ((i >= 4) & (i < 6))
        return np.where(low, group, group + 8), place * 2 + (i & 1) + np.where(i >= 4, 8, 0)
    if kind == "tf32":
        i = np.arange(4)[None]
        return np.where((i == 0) | (i == 2), group, group + 8), np.where(i < 2, place, place + 4)
    i = np.arange(16)[None]
    low = (i < 4) | ((i >= 8) & (i < 12))
    return np.where(low, group, group + 8), place * 4 + (i & 3) + np.where(i >= 8, 16, 0)


def b_places(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of element i of each lane of b, both (32, elements)."""
    group, place = GROUP[:, None], PLACE[:, None]
    if kind in ("f16", "bf16"):
        i = np.arange(4)[None]
        return place * 2 + (i & 1) + np.where(i >= 2, 8, 0), group + 0 * i
    if kind == "tf32":
        i = np.arange(2)[None]
        return np.where(i == 0, place, place + 4), group + 0 * i
    i = np.arange(8)[None]
    return place * 4 + (i & 3) + np.where(i >= 4, 16, 0), group + 0 * i


def c_places() -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of element i of each lane of c, both (32, 4)."""
    i = np.arange(4)[None]
    group, place = GROUP[:, None], PLACE[:, None]
    return np.where(i < 2, group, group + 8), place * 2 + (i & 1)


def words(elements: np.ndarray) -> np.ndarray:
    """Return (32, elements) as registers (32, words)."""
    return np.ascontiguousarray(elements).view(np.uint32)


def ldmatrix(memory: np.ndarray, at: np.ndarray, trans: bool) -> np.ndarray:
    """Return the four registers (32, 4) of ldmatrix.x4 from uint16 `memory`, rows at bytes `at`."""
    rows = np.stack([memory[a // 2 : a // 2 + 8] for a in at]).reshape(4, 8, 8)
    if trans:
        rows = rows.transpose(0, 2, 1)
    return words(rows.reshape(4, 32, 2).transpose(1, 0, 2).reshape(32, 8))


def shuffled(value: np.ndarray, mode: str, by: int) -> np.ndarray:
    """Return what shfl.sync.MODE gives each of 32 lanes."""
    by &= 31
    source = {"idx": 0 * LANES + by, "up": LANES - by, "down": LANES + by, "bfly": LANES ^ by}[mode]
    return value[np.where((source < 0) | (source > 31), LANES, source)]
