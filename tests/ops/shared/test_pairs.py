"""Products of bfloat16 in pairs: by vdpbf16ps where the processor has it, and taken apart where not."""

from __future__ import annotations

import numpy as np
import pytest
from exact import flushed, fma
from harness import check_op, normal, of_cpus
from targets import having, without

from clnn.ops.conv.problem import ConvProblem
from clnn.ops.conv.spec import Conv2d
from clnn.ops.gemm.spec import Gemm
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.runtime.device.device import open_context, select
from clnn.runtime.device.probe_bench import ProbeBench
from clnn.runtime.drivers.loader import load
from clnn.types import STORED_BF16, narrow, widen

pytestmark = pytest.mark.dealt  # kernels that are slow to build

WAYS = {"bf16x2": ("_bf16x2",), "apart": ("_plainbf16x2", "_spreadbf16x2")}  # in names of kernels
NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1), "i3": (0, 2, 3, 1)}


def window(k: int, s: int = 1, d: int = 1) -> Window:
    pad = (k - 1) // 2 * d
    return Window((k, k), (s, s), (d, d), (pad, pad), (pad, pad))


ADD = (PostOp("add", operand=3), PostOp("relu"))
CASES = {
    "point": (
        Conv2d(window(1), post_ops=ADD),
        [(2, 20, 7, 9), (40, 20, 1, 1), (40,), (2, 40, 7, 9)],
        (1, 2),
    ),
    "point_wide": (Conv2d(window(1)), [(1, 64, 8, 8), (70, 64, 1, 1), (70,)], (1, 2)),
    "point_strided": (Conv2d(window(1, 2)), [(1, 34, 9, 11), (48, 34, 1, 1), (48,)], (1, 2)),
    "square": (Conv2d(window(3)), [(1, 18, 9, 8), (20, 18, 3, 3), (20,)], (1, 2)),
    "dilated": (Conv2d(window(3, 1, 2)), [(1, 6, 9, 8), (33, 6, 3, 3)], (1,)),
    "strided": (Conv2d(window(5, 2)), [(2, 4, 13, 10), (17, 4, 5, 5), (17,)], (1, 2)),
    "groups": (Conv2d(window(3), group=2), [(1, 12, 6, 7), (10, 6, 3, 3)], (1,)),
    "two_channels": (Conv2d(window(3)), [(1, 2, 6, 7), (16, 2, 3, 3)], (1,)),
    "rows": (Gemm(), [(9, 34), (34, 50)], (1,)),
    "wide_rows": (Gemm(), [(21, 48), (48, 50)], (1,)),
    "wide_batch": (Gemm(), [(2, 3, 15, 32), (2, 3, 32, 40)], ()),
    "wide_far": (Gemm(), [(15, 288), (288, 40)], (1,)),
    "odd_far": (Gemm(), [(15, 289), (289, 40)], ()),
    "odd_terms": (Gemm(), [(15, 33), (33, 70)], (1,)),
    "one_row": (Gemm(trans_b=True), [(1, 65), (40, 65), (40,)], (1, 2)),
    "left": (Gemm(), [(12, 20), (20, 31)], (0,)),
    "turned": (Gemm(trans_b=True), [(40, 70), (50, 70)], ()),
    "turned_odd": (Gemm(trans_b=True), [(3, 19, 71), (3, 50, 71)], ()),
    "given": (Gemm(), [(2, 17, 35), (2, 35, 18)], ()),
    "given_even": (Gemm(), [(2, 3, 17, 36), (2, 3, 36, 64)], ()),
    "any_pitches": (Gemm(trans_a=True), [(36, 17), (36, 21)], ()),
    "two_terms": (Gemm(), [(2, 6, 2), (2, 2, 33)], ()),
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch, device):
    """What kernels' names have, with a device whose code has it."""
    if request.param == "bf16x2":
        if not select(device).caps.x86_bf16:
            pytest.skip("vdpbf16ps does not run here")
        having(monkeypatch, "fast_bf16")
    else:
        without(monkeypatch, "fast_bf16")
    return WAYS[request.param]


@pytest.mark.parametrize("name", CASES)
def test_pairs_equal_the_reference(device, way, name):
    """Sums of exact products: no further off than float32's own."""
    spec, shapes, consts = CASES[name]
    arrays = [
        normal(shape, k) / (4 if k == 1 and len(shape) > 2 else 1) for k, shape in enumerate(shapes)
    ]
    orders = NHWC if len(shapes[0]) == 4 and isinstance(spec, Conv2d) else None
    ran = check_op(device, spec, arrays, consts=consts, dtype="bf16", orders=orders)
    if not of_cpus(device):
        return
    taken = [n for n in ran if any(one in n for one in way)]
    assert bool(taken) == (name != "any_pitches"), ran
    if "_spreadbf16x2" in way:
        wide = any("_spreadbf16x2" in n for n in taken)
        assert wide == name.startswith(("point_wide", "wide")), ran


def test_streamed_pairs(device, way, monkeypatch):
    """Weights of a block come a chunk at a time; large tiles ask for a line in every second step."""
    monkeypatch.setattr(ConvProblem, "weights_stay", False)
    shapes = [(1, 64, 8, 12), (70, 64, 1, 1), (70,)]
    arrays = [normal(shape, k) / (4 if k == 1 else 1) for k, shape in enumerate(shapes)]
    ran = check_op(device, Conv2d(window(1)), arrays, consts=(1, 2), dtype="bf16", orders=NHWC)
    streamed = [name for name in ran if "bf16x2_c" in name]
    assert streamed or not of_cpus(device), ran


def test_channels_that_are_no_pairs_are_multiplied_one_by_one(device, way):
    ran = check_op(
        device,
        Conv2d(window(3)),
        [normal((1, 5, 6, 7)), normal((8, 5, 3, 3), 1)],
        consts=(1,),
        dtype="bf16",
    )
    assert not any("bf16x2" in name for name in ran)


def test_infinities_and_nan_stay_where_they_are(device, way):
    """The odd last element of a row is multiplied alone: what follows in memory is not read."""
    a, b = normal((4, 33)), normal((33, 20), 1)
    a[1, 0], a[2, 5] = np.inf, np.nan
    check_op(device, Gemm(), [a, b], consts=(1,), dtype="bf16")


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("stride", [1, 2])
def test_winograd_reads_and_writes_16_bits(device, stride, dtype):
    """Transforms and products are float32's; residuals lie in 16 bits, too."""
    shapes = [(1, 32, 13, 11), (48, 32, 3, 3), (48,), (1, 48, -(-13 // stride), -(-11 // stride))]
    arrays = [normal(shape, k) / (8 if k == 1 else 1) for k, shape in enumerate(shapes)]
    spec = Conv2d(window(3, stride), post_ops=ADD)
    ran = check_op(device, spec, arrays, consts=(1, 2), dtype=dtype, orders=NHWC, only="winograd")
    assert ran


def test_tiles_transformed_before_are_read_from_16_bits(any_device):
    arrays = [normal((1, 16, 6, 9)), normal((32, 16, 3, 3), 1)]
    only = "f4_t4x16_p1_shared_s2"
    check_op(
        any_device, Conv2d(window(3)), arrays, consts=(1,), dtype="bf16", only=only, every=True
    )


def test_streamed_weights_in_pairs(device, way):
    arrays = [normal((1, 512, 7, 7)), normal((600, 512, 1, 1), 1) / 16, normal((600,), 2)]
    ran = check_op(device, Conv2d(window(1)), arrays, consts=(1, 2), dtype="bf16", only="_c")
    assert any(f"{way[0]}_c" in name for name in ran), ran


def test_arithmetic_of_the_instruction(any_device):
    """Two fused multiply-adds, the odd element's first, each rounded to nearest; what is below 2^-126 counts as 0."""
    info = select(any_device)
    if not info.caps.x86_bf16:
        pytest.skip("vdpbf16ps does not run here")
    bench = ProbeBench(load(), open_context(info)[1], [info.cl_std])
    chance, n = np.random.default_rng(1), 16 * 40
    for low, high, start in ((-3, 4, 0), (-20, 20, 0), (-70, -55, -125), (-130, -120, 0)):
        drawn = chance.standard_normal((2, 2 * n)) * 2.0 ** chance.integers(low, high, (2, 2 * n))
        halves = narrow(drawn.astype(np.float32), STORED_BF16)
        acc = (chance.standard_normal(n) * 2.0**start).astype(np.float32)
        got = bench.run(
            bench.kernel("x86_bf16", "pairs"), n // 16, None, (*halves.view(np.int32), acc), acc
        )
        x, w = (flushed(widen(h, STORED_BF16)).reshape(n, 2) for h in halves)
        want = [
            fma(a[0], b[0], fma(a[1], b[1], c)) for a, b, c in zip(x, w, flushed(acc), strict=True)
        ]
        np.testing.assert_array_equal(got, np.array(want, np.float32))
