"""Convolutions and products that an op computes on tensor cores, with emulated instructions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import check_op, compare, normal, rng, single_node

from clnn.arith.quantised import Requantised, Sums, Written
from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes.store import store_as
from clnn.ops.conv import mma as conv_mma
from clnn.ops.conv.spec import Conv2d
from clnn.ops.gemm import mma as _gemm_mma
from clnn.ops.gemm.spec import Gemm
from clnn.ops.launch import Variant
from clnn.ops.movement.views import Slice
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.tensor_core_tiles import MOST_SLICED, mma_tiles
from clnn.ops.shared.tensor_cores import MmaTile
from clnn.ops.shared.window import Window
from clnn.ops.shared.workgroup_tiles import GemmShape
from clnn.options import Options
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.target import Target
from clnn.types import I8, STORAGE, U8, TensorType

pytestmark = pytest.mark.dealt  # kernels that are slow to build

BK = {"f16": 32, "bf16": 32, "tf32": 16, "s8": 64, "u8": 64}
NHWC = (0, 2, 3, 1)
RELU, ADD = (PostOp("relu"),), (PostOp("add", operand=3), PostOp("relu"))
ALIKE = {"f16": "half", "bf16": "bf16", "tf32": "float"}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Let every device have tensor cores, and one small tile be the only one."""
    monkeypatch.setenv("CLNN_TENSOR_CORES", "emulated")

    def small(kind, sums, target):
        return [(0.0, MmaTile(32, 32, BK[kind], 32, 16, 2, 2))]

    monkeypatch.setattr(conv_mma, "mma_tiles", small)
    monkeypatch.setattr(_gemm_mma, "mma_tiles", small)


def window(k: int, s: int = 1, p: int | None = None) -> Window:
    pad = (k - 1) // 2 if p is None else p
    return Window((k, k), (s, s), (1, 1), (pad, pad), (pad, pad))


CONVS = {
    "same": ("f16", Conv2d(window(3), post_ops=RELU), (1, 16, 7, 9), (20, 16, 3, 3), ()),
    "residual": (
        "f16",
        Conv2d(window(3), post_ops=ADD),
        (2, 8, 6, 5),
        (34, 8, 3, 3),
        (2, 34, 6, 5),
    ),
    "odd": ("f16", Conv2d(window(3), post_ops=ADD), (2, 13, 6, 5), (35, 13, 3, 3), (2, 35, 6, 5)),
    "colours": ("f16", Conv2d(window(5, 2)), (1, 3, 15, 14), (16, 3, 5, 5), ()),
    "point": (
        "bf16",
        Conv2d(window(1), post_ops=ADD),
        (2, 24, 5, 7),
        (40, 24, 1, 1),
        (1, 40, 1, 1),
    ),
    "point_strided": ("bf16", Conv2d(window(1, 2)), (2, 19, 5, 7), (6, 19, 1, 1), ()),
    "odd_bf16": (
        "bf16",
        Conv2d(Window((2, 3), (2, 1), (1, 2), (1, 2), (0, 2)), post_ops=ADD),
        (1, 21, 9, 8),
        (18, 21, 2, 3),
        (18, 1, 1),
    ),
    "tf32": ("tf32", Conv2d(window(3), post_ops=ADD), (1, 8, 6, 7), (20, 8, 3, 3), (1, 20, 6, 7)),
    "odd_tf32": ("tf32", Conv2d(window(3, 2), post_ops=RELU), (2, 7, 9, 8), (33, 7, 3, 3), ()),
}


@pytest.mark.parametrize("name", CONVS)
def test_convolutions(device, name):
    dtype, spec, shape, weights, operand = CONVS[name]
    w = normal(weights, 1) / 4
    inputs = [normal(shape), w, normal(weights[:1], 2), *([normal(operand, 3)] if operand else [])]
    orders = {"i3": NHWC} if len(operand) == 4 else {}
    names = check_op(device, spec, inputs, consts=(1, 2), dtype=dtype, only="_mma_", orders=orders)
    assert [n.split("_k")[0] for n in names] == [f"conv2d_mma_{dtype}_nk_{ALIKE[dtype]}"]


BYTE_SUM = PostOp("byte_sum", (0.61, 0.83, -41.5, 0, 255), 3)
LINE_STEP = PostOp("byte_line", (0.4375, -12.5, 33, 0, 255))
# spec, input, weights, input's type, what follows
BYTES = {
    "same": (window(3), (1, 16, 7, 9), 20, np.uint8, ()),
    "signed": (window(3), (2, 24, 5, 4), 35, np.int8, ()),
    "odd": (window(3, 2), (2, 21, 9, 8), 18, np.uint8, (BYTE_SUM,)),
    "swapped": (window(1), (2, 40, 6, 5), 35, np.uint8, (replace(BYTE_SUM, swapped=True),)),
    "line_step": (window(5, 2), (1, 6, 9, 8), 33, np.int8, (LINE_STEP,)),
    "wide": (Window((2, 3), (2, 1), (1, 2), (1, 2), (0, 2)), (1, 20, 9, 8), 18, np.uint8, ()),
    "line": (Window((3,), (1,), (2,), (2,), (2,)), (2, 24, 11), 17, np.uint8, ()),
}


def any_bytes(shape, kind, seed):
    """Return random integers over all of a type."""
    ends = np.iinfo(kind)
    return rng(seed).integers(ends.min, ends.max, shape, kind, endpoint=True)


def factors_of(oc: int, products: int) -> tuple[float, ...]:
    """Return factors by which results fill a byte, many of them ties."""
    ratios = rng(5).choice([0.5, 0.25, 0.0123, 0.0071], oc) / products**0.5 / 4
    return tuple(map(float, ratios))


@pytest.mark.parametrize("arithmetic", [Requantised, Written])
@pytest.mark.parametrize("name", BYTES)
def test_products_of_bytes_are_exact(device, name, arithmetic):
    """Zero points anywhere, unsigned and signed pixels, a residual sum behind: equal to the bit."""
    at, shape, oc, kind, steps = BYTES[name]
    signed = kind == np.int8
    ends = np.iinfo(kind)
    fields = factors_of(oc, 9 * shape[1]), I8 if signed else U8, 3, int(ends.min), int(ends.max)
    more = () if arithmetic is Requantised else (tuple(normal((oc,), 4).tolist()), 0.5)
    arith = arithmetic(-43 if signed else 77, False, 255, False, *fields, *more)
    inputs = [any_bytes(shape, kind, 1), any_bytes((oc, shape[1], *at.kernel), np.int8, 2)]
    inputs.append(rng(3).integers(-(2**12), 2**12, oc, np.int32))
    consts: tuple[int, ...] = (1, 2)
    if arithmetic is Written:
        inputs[2], consts = None, (1,)
    if any(s.operand for s in steps):
        inputs.append(any_bytes((shape[0], oc, *at.output(shape[2:])), kind, 8))
    spec = Conv2d(at, 1, steps, arith)
    names = check_op(device, spec, inputs, consts=consts, only="_mma_", orders={"i3": NHWC})
    kinds = "s8_nk_char" if signed else "u8_nk_uchar"
    assert [n.split("_k")[0] for n in names] == [f"conv2d_mma_{kinds}"]


def test_sums_of_bytes_that_no_float_holds(device):
    """All bytes at their ends: sums of 1300 products need more than 24 bits, and come as they are."""
    x = np.full((1, 1300, 2, 3), 255, np.uint8)
    w = np.full((17, 1300, 1, 1), 127, np.int8)
    w[1::2] = -128
    bias = np.full(17, 2**28, np.int32)
    spec = Conv2d(window(1), 1, (), Sums(0))
    assert check_op(device, spec, [x, w, bias], consts=(1, 2), only="_mma_")


def test_weights_of_nine_bits_and_groups_run_elsewhere(device):
    x = any_bytes((1, 8, 5, 5), np.uint8, 1)
    for weights, group in (((20, 8, 3, 3), 1), ((20, 4, 3, 3), 2)):
        kind = np.int16 if group == 1 else np.int8
        w = rng(2).integers(-100, 100, weights, kind)
        graph = single_node(Conv2d(window(3), group, (), Sums(3)), [x, w], (1,))
        plan = make_plan(graph, Target("gpu", 4, 4, tensor="ptx"))
        assert not any("_mma_" in s.variant.name for s in plan.scheduled)


def test_convolutions_along_one_axis_and_without_a_bias(device):
    line = Window((3,), (1,), (2,), (2,), (2,))
    check_op(
        device,
        Conv2d(line),
        [normal((2, 12, 17)), normal((9, 12, 3), 1)],
        consts=(1,),
        dtype="f16",
        only="_mma_",
    )
    check_op(
        device,
        Conv2d(window(3)),
        [normal((1, 8, 5, 5)), normal((8, 8, 3, 3), 1)],
        consts=(1,),
        dtype="f16",
        only="_mma_",
        border=2,
        orders={"o0": (0, 1, 2, 3)},
    )


GEMMS = {
    "packed": ("f16", Gemm(), (37, 40), (40, 50), None, (1,)),
    "packed_odd_k": ("f16", Gemm(trans_b=True), (1, 40), (35, 40), (35,), (1, 2)),
    "scaled": ("f16", Gemm(0.5, 2.0, trans_b=True), (20, 64), (33, 64), (33,), (1, 2)),
    "moving": ("bf16", Gemm(), (3, 17, 40), (3, 40, 24), None, ()),
    "moving_rows": ("f16", Gemm(trans_b=True), (2, 17, 40), (2, 35, 40), (2, 17, 35), ()),
    "shared": ("f16", Gemm(), (2, 3, 14, 24), (24, 33), (14, 1), (1,)),
    "broadcast": ("bf16", Gemm(), (2, 1, 9, 16), (3, 16, 40), None, ()),
    "turned": ("f16", Gemm(trans_a=True, trans_b=True), (40, 24), (19, 40), (24, 19), ()),
    "turned_packed": ("f16", Gemm(trans_a=True), (40, 24), (40, 35), (35,), (1,)),
    "left": ("bf16", Gemm(), (21, 37), (37, 40), (21, 1), (0,)),
    "tf32": (
        "tf32",
        Gemm(post_ops=(PostOp("add", operand=3), PostOp("relu"))),
        (18, 36),
        (36, 27),
        (27,),
        (1,),
    ),
    "tf32_moving": ("tf32", Gemm(), (2, 18, 36), (2, 36, 28), None, ()),
}


@pytest.mark.parametrize("name", GEMMS)
def test_products(device, name):
    dtype, spec, a, b, c, consts = GEMMS[name]
    inputs = [normal(a), normal(b, 1), None if c is None else normal(c, 2)]
    if spec.post_ops:
        inputs.append(normal((18, 27), 3))
    names = check_op(device, spec, inputs, consts=consts, dtype=dtype, only="_mma_")
    assert len(names) == 1 and names[0].startswith(f"gemm_mma_{dtype}_")


def offered(spec, shapes, consts, dtype="f16", tensor="emulated", units=4) -> list[str]:
    """Return the names of what a problem is offered; no device is needed."""
    seen: list[Variant] = []
    graph = store_as(single_node(spec, [normal(s) for s in shapes], consts), STORAGE[dtype])

    def note(node, problem, variants):
        if node.name == "node":
            seen.extend([*variants, *node.spec.candidates(problem)])
        return variants[0]

    make_plan(graph, Target("gpu", 4, units, tensor=tensor, tf32=dtype == "tf32"), note)
    return [v.name for v in seen]


IMAGE = [(1, 16, 8, 8), (16, 16, 3, 3)]


def test_what_tensor_cores_do_not_take_runs_elsewhere():
    """Groups, float32 that nobody allowed to round, rows that begin in between, other devices."""
    assert any("_mma_" in n for n in offered(Conv2d(window(3)), IMAGE, (1,)))
    refused = {
        "groups": offered(Conv2d(window(3), 2), [IMAGE[0], (16, 8, 3, 3)], (1,)),
        "depthwise": offered(Conv2d(window(3), 16), [IMAGE[0], (16, 1, 3, 3)], (1,)),
        "float32": offered(Conv2d(window(3)), IMAGE, (1,), "f32"),
        "no tensor cores": offered(Conv2d(window(3)), IMAGE, (1,), "f16", ""),
        "tf32 without": offered(Conv2d(window(3)), IMAGE, (1,), "tf32", ""),
        "weights that move": offered(Conv2d(window(3)), IMAGE, ()),
        "two channels": offered(Conv2d(window(3)), [(1, 2, 8, 8), (16, 2, 3, 3)], (1,)),
        "rows of 33": offered(Gemm(), [(9, 33), (33, 16)], (1,)),
        "columns of 33": offered(Gemm(), [(33, 16), (16, 33)], ()),
        "products of float32": offered(Gemm(), [(16, 16), (16, 16)], (1,), "f32"),
        "short sums": offered(Gemm(), [(16, 1), (1, 16)], (1,)),
    }
    assert {k for k, names in refused.items() if any("_mma_" in n for n in names)} == set()


def test_large_layers_are_ranked_onto_tensor_cores(monkeypatch):
    """A convolution and a product as in networks: first by estimate; a single row is not."""
    monkeypatch.undo()
    conv = [(1, 64, 56, 56), (64, 64, 3, 3)]
    for dtype in ALIKE:
        names = offered(Conv2d(window(3)), conv, (1,), dtype, "ptx")
        assert names[0].startswith(f"conv2d_mma_{dtype}_"), names[0]
        names = offered(Gemm(), [(512, 512), (512, 512)], (1,), dtype, "ptx")
        assert names[0].startswith(f"gemm_mma_{dtype}_"), names[0]
        mma = [n for n in names if "_mma_" in n]
        assert 8 <= len(set(mma)) <= 12 and len(mma) == len(set(mma)) + 1
    assert "_mma_" not in offered(Gemm(), [(1, 512), (512, 512)], (1,), "f16", "ptx", 100)[0]


def test_tiles_fit_the_device():
    """Local memory and work-items of every tile that is offered; the body's own memory counts."""
    sums = GemmShape(4096, 4096, 4096)
    for tensor, most in (("ptx", 49152), ("emulated", 32768), ("ptx", 16384)):
        target = Target("gpu", 4, 4, 128, most, tensor=tensor)
        found = mma_tiles("f16", sums, target)
        assert found and [c for c, _ in found] == sorted(c for c, _ in found)
        assert all(t.local_bytes("f16", tensor) <= most and t.threads <= 128 for _, t in found)
    assert not mma_tiles("f16", sums, Target("gpu", 4, 4, 128, 1024, tensor="ptx"))
    small = mma_tiles("f16", GemmShape(7, 20, 64), Target("gpu", 4, 4, 256, 49152, tensor="ptx"))
    assert {(t.bm, t.bn) for _, t in small} <= {(16, 32), (16, 16), (32, 32)}


def test_a_slice_that_begins_between_pieces_is_refused(device):
    """Channels 4.. of 20: rows are 16 bytes apart, but begin in the middle."""
    types = {"x": TensorType((2, 20, 6, 6)), "w": TensorType((8, 16, 3, 3))}
    for first, fits in ((4, False), (8, True)):
        spec, cut = (
            Conv2d(window(3, p=0)),
            Slice((0, first, 0, 0), (2, 20 - first, 6, 6), (1, 1, 1, 1)),
        )
        weights = normal((8, 20 - first, 3, 3), 1)
        types |= {
            "w": TensorType(weights.shape),
            "v": TensorType((2, 20 - first, 6, 6)),
            "a": types["x"],
            "y": TensorType((2, 8, 4, 4)),
        }
        nodes = (
            Node("abs", Conv2d(window(1)), ("x", "e"), ("a",)),
            Node("cut", cut, ("a",), ("v",)),
            Node("node", spec, ("v", "w"), ("y",)),
        )
        eye = np.eye(20, dtype=np.float32).reshape(20, 20, 1, 1)
        types["e"] = TensorType(eye.shape)
        graph = check(Graph(nodes, types, {"w": weights, "e": eye}, ("x",), {"y": "y"}))
        stored, names = store_as(graph, STORAGE["f16"]), []

        def pick(node, problem, variants, names=names):
            found = [v for v in variants if "_mma_" in v.name]
            names += [v.name for v in found if node.name == "node"]
            return (found or variants)[0]

        x = normal((2, 20, 6, 6), 5).astype(np.float16).astype(np.float32)
        with Session(stored, select(device), Options(guard=128, arena="separate"), pick) as session:
            got = session({"x": x})["y"]
        halves = weights.astype(np.float16).astype(np.float64)
        want = spec.reference(x[:, first:].astype(np.float64), halves)[0]
        compare(got, want, 1e-5, f"from channel {first}", 2**-11)
        assert bool(names) == fits


def test_tf32_rounds_its_operands_and_nothing_else(device):
    """1 + 2^-12 is 1 in TF32; sums keep what a float keeps."""
    a, b = np.full((16, 16), 1 + 2.0**-12, np.float32), np.zeros((16, 16), np.float32)
    np.fill_diagonal(b, 1.0)
    c = np.full((16,), 2.0**-20, np.float32)
    graph = single_node(Gemm(), [a, b, c], (1, 2))

    def pick(node, problem, variants):
        return next((v for v in variants if "_mma_" in v.name), variants[0])

    with Session(graph, select(device), Options(dtype="tf32"), pick) as session:
        got = session({"i0": a})["o0"]
        assert session.placement.products == "tf32 on emulated tensor cores"
    np.testing.assert_array_equal(got, np.full((16, 16), 1 + 2.0**-20, np.float32))


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32", "u8"])
def test_few_results_of_many_terms_are_sliced(kind):
    """Where a group computes alone on its unit, its warps share the terms; where units are full they need not."""
    device = Target(
        "gpu", 4, 132, 1024, 48 * 1024, tensor="ptx", unit_registers=2**16, resident=2048
    )
    few = mma_tiles(kind, GemmShape(49, 512, 4608), device)
    assert few[0][1].slices > 1
    many = mma_tiles(kind, GemmShape(100352, 256, 2304), device)
    assert many[0][1].slices == 1 and many[0][1].bm * many[0][1].bn >= 128 * 128
    for cost, tile in (*few, *many):
        assert cost > 0 and tile.local_bytes(kind, "ptx") <= device.local_bytes
        assert tile.threads <= (MOST_SLICED if tile.slices > 1 else 1024)
