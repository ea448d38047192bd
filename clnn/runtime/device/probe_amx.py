"""The probe's step for registers of tiles (x86's AMX)."""

from __future__ import annotations

import numpy as np

from clnn.runtime.device.probe_bench import ProbeBench, RefusedError, expect
from clnn.runtime.device.processor import NOT_GIVEN, has_tiles, may_use_tiles
from clnn.runtime.drivers.in_turn import INTEL


def step_x86_amx(bench: ProbeBench) -> int:
    """Tiles of 16 rows of 64 bytes: products of bytes, signed or not, and of pairs of bfloat16; small integers."""
    if not bench.device.type & bench.cl.device_type.CPU:
        raise RefusedError("not a CPU")
    if bench.device.platform.name.strip() == INTEL:
        raise RefusedError(
            "Intel's runtime ends the process at AMX's instructions in inline assembly"
        )
    if not has_tiles():
        raise RefusedError("the CPU has no AMX")
    if not may_use_tiles():
        raise RefusedError(NOT_GIVEN)
    random = np.random.default_rng(11)
    left, right = random.integers(0, 256, (2, 16, 64)).astype(np.uint8)
    acc = random.integers(-(2**20), 2**20, (16, 16)).astype(np.int32)
    signed = right.view(np.int8).astype(np.int32).reshape(16, 16, 4)
    for name, taken in (("tile_bytes", left), ("tile_signed", left.view(np.int8))):
        words = taken.astype(np.int32).reshape(16, 16, 4)
        want = acc + np.einsum("rkp,kcp->rc", words, signed)
        args = (left.view(np.int32), right.view(np.int32), acc)
        expect(bench.run(bench.kernel("x86_amx", name), 1, None, args, acc), want)
    a, b = random.integers(-99, 100, (2, 16, 16, 2)).astype(np.float32)
    pairs = [(x.view(np.uint32) >> 16).astype(np.uint16).view(np.int32) for x in (a, b)]
    sums = acc.astype(np.float32)
    got = bench.run(bench.kernel("x86_amx", "tile_pairs"), 1, None, (*pairs, sums), sums)
    expect(got, sums + np.einsum("rkp,kcp->rc", a, b))
    return 1
