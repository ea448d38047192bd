"""Float32 values stored in 16 bits: every op that takes them, against the reference on rounded inputs."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_memory, check_op, normal, rounded, single_node
from small_graphs import Builder

from clnn.graph.passes.store import store_as
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.storage import Convert
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.gather import Gather, GatherElements, GatherND
from clnn.ops.movement.views import Concat, Reshape, Slice, Transpose
from clnn.ops.pool.spec import Pool
from clnn.ops.resize.sampling import Sampling
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.types import STORAGE, STORED_BF16, STORED_F16, narrow, widen

pytestmark = pytest.mark.dealt  # kernels that are slow to build

DTYPES = ("f16", "bf16")
NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}


def window(k: int, s: int = 1, p: int | None = None) -> Window:
    pad = (k - 1) // 2 if p is None else p
    return Window((k, k), (s, s), (1, 1), (pad, pad), (pad, pad))


def resize(*sampling: str) -> Resize:
    """Resizing of an image of 5 x 7."""
    shape = (1, 21, 10, 14) if "floor" in sampling else (2, 19, 11, 4)
    return Resize(shape, (1.0, 1.0, shape[2] / 5, shape[3] / 7), Sampling(*sampling))


RELU = (PostOp("relu"),)
ADD = (PostOp("add", operand=3), PostOp("relu"))
CASES = {
    "conv1x1": (Conv2d(window(1), post_ops=RELU), [(2, 24, 7, 9), (40, 24, 1, 1), (40,)], (1, 2)),
    "conv3x3": (Conv2d(window(3)), [(1, 16, 9, 8), (20, 16, 3, 3), (20,)], (1, 2)),
    "conv_first": (Conv2d(window(3, 2)), [(1, 3, 15, 14), (16, 3, 3, 3), (16,)], (1, 2)),
    "conv_add": (
        Conv2d(window(3), post_ops=ADD),
        [(1, 8, 6, 7), (16, 8, 3, 3), (16,), (1, 16, 6, 7)],
        (1, 2),
    ),
    "conv_groups": (Conv2d(window(3), group=2), [(1, 8, 6, 7), (10, 4, 3, 3)], (1,)),
    "conv_given": (Conv2d(window(3)), [(1, 8, 6, 7), (10, 8, 3, 3), (10,)], ()),
    "depthwise": (
        Conv2d(window(3), group=21, post_ops=RELU),
        [(1, 21, 8, 9), (21, 1, 3, 3), (21,)],
        (1, 2),
    ),
    "depthwise_s2": (Conv2d(window(5, 2), group=32), [(2, 32, 9, 9), (32, 1, 5, 5)], (1,)),
    "eltwise": (
        Eltwise((PostOp("mul", operand=1), PostOp("sigmoid"))),
        [(2, 5, 7, 3), (1, 5, 1, 1)],
        (1,),
    ),
    "eltwise_flat": (Eltwise((PostOp("add", operand=1),)), [(3, 64), (3, 64)], ()),
    "max_pool": (Pool(window(3, 2), "max"), [(1, 19, 9, 11)], ()),
    "average_pool": (Pool(window(3, 1), "average", post_ops=RELU), [(2, 16, 6, 7)], ()),
    "max_indices": (Pool(window(2, 2, 0), "max", indices="row"), [(1, 5, 6, 8)], ()),
    "global": (Reduce("mean", (2, 3), True), [(2, 37, 7, 7)], ()),
    "long_sum": (Reduce("sum", (1,)), [(2, 40000)], ()),
    "rows_max": (Reduce("max", (1,), False), [(33, 19)], ()),
    "log_sum_exp": (Reduce("log_sum_exp", (1,)), [(5, 100)], ()),
    "softmax": (Softmax((1,)), [(7, 100)], ()),
    "log_softmax": (Softmax((1,), log=True), [(3, 10, 4)], ()),
    "gemm_const": (Gemm(), [(9, 33), (33, 50)], (1,)),
    "gemm_bias": (Gemm(trans_b=True), [(1, 64), (40, 64), (40,)], (1, 2)),
    "gemm_given": (Gemm(), [(2, 17, 35), (2, 35, 18)], ()),
    "gemm_turned": (Gemm(trans_b=True), [(40, 70), (50, 70)], ()),
    "gemm_left_const": (Gemm(), [(12, 20), (20, 31)], (0,)),
    "repeat": (resize("nearest", "asymmetric", "floor"), [(1, 21, 5, 7)], ()),
    "linear": (resize("linear"), [(2, 19, 5, 7)], ()),
    "convert": (Convert(), [(3, 50)], ()),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_every_variant_takes_storage_in_16_bits(device, name, dtype):
    spec, shapes, consts = CASES[name]
    arrays = [
        normal(shape, k) / (4 if k == 1 and len(shape) > 2 else 1) for k, shape in enumerate(shapes)
    ]
    check_op(device, spec, arrays, consts=consts, dtype=dtype)


def test_wide_vectors_of_halves_begin_anywhere(device):
    """Rows of 200 bytes, and a last vector that overlaps the one before it."""
    check_op(device, Softmax((1,)), [normal((7, 100))], dtype="f16")


@pytest.mark.parametrize("name", ["conv3x3", "depthwise", "eltwise", "max_pool", "global"])
def test_layouts_and_borders_of_the_caller(device, name):
    spec, shapes, consts = CASES[name]
    arrays = [normal(shape, k) for k, shape in enumerate(shapes)]
    for orders in (None, NHWC, {"o0": (0, 1, 2, 3)}):
        check_op(device, spec, arrays, consts=consts, dtype="bf16", border=2, orders=orders)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_move_the_bits_as_they_are(device, dtype):
    """abs -> view -> abs, each view copied where it cannot be one: equal to the bit."""
    views = {
        "transpose": ((Transpose((2, 0, 1)), Reshape((4, 15))), (3, 5, 4)),
        "flat": ((Transpose((1, 0)), Reshape((7, 10))), (7, 10)),
        "slice": ((Slice((0, 3), (4, 2), (1, -1)),), (4, 6)),
    }
    for name, (specs, shape) in views.items():
        graph = Builder(x=shape)
        at = graph.add(Eltwise((PostOp("abs"),)), "x")
        for spec in specs:
            at = graph.add(spec, at)
        joined = graph.add(Concat(0), at, graph.const(*graph.types[at].shape))
        made = graph.graph(graph.add(Eltwise((PostOp("abs"),)), joined))
        x = rounded(normal(shape), dtype)
        made = store_as(made, STORAGE[dtype])
        with Session(made, select(device), Options(guard=128, arena="separate")) as session:
            got = session({"x": x})["out0"]
            check_memory(session, name)
        want = np.abs(x)
        for spec in specs:
            want = spec.reference(want)[0]
        const = rounded(next(iter(made.consts.values())), dtype)
        np.testing.assert_array_equal(got, np.concatenate([want, np.abs(const)]), err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("consts", [(0,), (1,)])
def test_lookups(device, consts, dtype):
    rows = np.array([[4, 0], [2, 5]])
    for spec in (Gather(0), GatherND(0)):
        check_op(
            device,
            spec,
            [normal((6, 7)), rows[:, :1] if spec.kind != "gather" else rows],
            consts=consts,
            tolerance=0,
            dtype=dtype,
        )
    check_op(
        device, GatherElements(1), [normal((2, 7)), rows], consts=consts, tolerance=0, dtype=dtype
    )


def every_half() -> np.ndarray:
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_conversion_rounds_as_numpy_does(device, dtype):
    """Ties, subnormal numbers, the largest numbers, infinities, on the way in and out."""
    stored = STORAGE[dtype]
    bits = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32)
    ties = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    half = every_half()
    half = np.abs(half[np.isfinite(half)])
    between = (half[:-1] + half[1:]) / 2
    edges = np.array([65519, 65520, 3.4e38, 1e-45, -0.0, np.inf, -np.inf], np.float32)
    x = np.concatenate([bits.view(np.float32), ties.view(np.float32), half, between, edges])
    x = x[~np.isnan(x)]
    got = through(device, x, dtype)
    want = widen(narrow(x, stored), stored)
    normal_ = (np.abs(want) >= 2**-126) | (want == 0)  # a device may flush what is below
    np.testing.assert_array_equal(got[normal_], want[normal_])


def through(device: str, x: np.ndarray, dtype: str) -> np.ndarray:
    """Return x after storage in `dtype` on a device."""
    graph = store_as(single_node(Eltwise((PostOp("relu"), PostOp("neg"))), [x]), STORAGE[dtype])
    assert [n.spec.kind for n in graph.nodes] == ["convert", "eltwise", "convert"]
    graph = store_as(single_node(Eltwise(), [x]), STORAGE[dtype])
    with Session(graph, select(device), Options()) as session:
        return session({"i0": x})["o0"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_stays_nan(device, dtype):
    x = np.array([np.nan, 1.0, -np.nan], np.float32)
    payload = np.array([0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    got = through(device, np.concatenate([x, payload]), dtype)
    assert np.isnan(got).tolist() == [True, False, True, True, True]


def test_narrow_and_widen_are_exact_where_there_is_nothing_to_round():
    half = every_half()
    np.testing.assert_array_equal(widen(narrow(half, STORED_F16), STORED_F16), half)
    upper = (np.arange(2**16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    kept = widen(narrow(upper, STORED_BF16), STORED_BF16)
    np.testing.assert_array_equal(kept, upper)


def test_narrow_rounds_to_the_nearest_and_ties_to_even():
    """bf16 against the definition: of both neighbours the nearer one, of equal ones the even one."""
    bits = np.random.default_rng(1).integers(0, 0x7F7F0000, 20000, dtype=np.uint32)
    bits[::3] = bits[::3] & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    x = bits.view(np.float32).astype(np.float64)
    low = bits >> np.uint32(16)
    below, above = (
        (b << np.uint32(16)).view(np.float32).astype(np.float64) for b in (low, low + np.uint32(1))
    )
    up = (above - x < x - below) | ((above - x == x - below) & (low % 2 == 1))
    want = np.where(up, low + 1, low).astype(np.uint16)
    np.testing.assert_array_equal(narrow(bits.view(np.float32), STORED_BF16), want)
    assert narrow(np.float32(2.0), STORED_BF16).shape == ()
