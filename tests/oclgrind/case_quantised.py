"""Cases of quantised tensors: products with zero points, elementwise functions, averages, softmax."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import harness
import numpy as np
from dp4a import dp4a_in_c
from harness import check_op, normal, rng, run_variants, single_node, variant_names
from onnx import TensorProto
from onnx import helper as make
from onnx_models import model, tensor, value
from simulator import DEVICE
from table import add, put
from x86_in_c import x86_in_c

import clnn
from clnn.arith.elements import Narrow, Widen
from clnn.arith.quantised import Quantisation, Requantised, Sums, Written
from clnn.arith.quantised_maps import Dequantise, Quantise
from clnn.arith.real_fours import RealFours
from clnn.arith.real_taps import RealTaps
from clnn.codegen import render as codegen
from clnn.codegen import runtime_numbers
from clnn.compile import load_graph
from clnn.layout import TensorLayout
from clnn.ops.conv import depthwise_bytes, winograd_bytes
from clnn.ops.conv.depthwise import BandTile
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.quantised import build
from clnn.ops.quantised.softmax import byte_softmax
from clnn.ops.quantised.steps import WrittenSteps
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.plan.layouts import Hints
from clnn.runtime.run import planning
from clnn.types import BF16, F4, I4, I8, U8
from clnn.verification.reference import reference_values

SAME3 = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
F = np.float32


def integers(shape: tuple[int, ...], kind: str, seed: int = 0) -> np.ndarray:
    info = np.iinfo(kind)
    return rng(seed).integers(info.min, info.max, shape, kind, endpoint=True)


def inputs(x: str, ic: int, oc: int, group: int, bias: int = 999) -> list[np.ndarray]:
    """Return an image, weights, a bias."""
    limit = rng(2).integers(-bias, bias, oc, np.int32)
    return [integers((1, ic, 3, 5), x), integers((oc, ic // group, 3, 3), "i1", 1), limit]


BYTES = Requantised(77, False, 255, False, (0.0123,), U8, 3, 5, 250)
SIGNED = Requantised(-5, False, 255, False, tuple(rng(3).uniform(0, 0.01, 9).tolist()))
WRITTEN = Written(-5, False, 255, False, (0.0003,), I8, 3, -128, 127, (0.5,), 0.037)
for name, arith, x, ic, oc, group in (
    ("packed", BYTES, "u1", 8, 9, 1),
    ("signed", SIGNED, "i1", 8, 9, 1),
    ("one_by_one", SIGNED, "i1", 6, 9, 1),
    ("rows", BYTES, "u1", 3, 9, 1),
    ("depthwise", BYTES, "u1", 9, 9, 9),
    ("written", WRITTEN, "i1", 8, 9, 1),
    ("sums", Sums(77), "u1", 8, 9, 1),
):
    add(
        f"quantised_{name}",
        Conv2d(SAME3, group, (), arith),
        inputs(x, ic, oc, group),
        consts=(1, 2),
    )
for name, step in (
    ("fused", PostOp("byte_sum", (0.6, 0.8, -41.5, 0, 255), 3)),
    ("shifted", PostOp("shifted_byte_sum", (0.6, 0.8, -41.5, 0, 255), 3)),
    ("written", PostOp("written_sum", (11, 0.02, 133, 0.03, 120, 0.04, 5, 250), 3)),
    ("line", PostOp("byte_line", (0.4375, -12.5, 33, 0, 255))),
):
    add(
        f"quantised_sum_behind_{name}",
        Conv2d(SAME3, 1, (step,), BYTES),
        [*inputs("u1", 8, 33, 1), *[integers((1, 33, 3, 5), "u1", 7)] * (step.operand == 3)],
        consts=(1, 2),
    )
for group in (1, 33):
    add(
        f"quantised_table_behind_{group}",
        Conv2d(SAME3, group, (PostOp("byte_table", operand=3),), BYTES),
        [*inputs("u1", 33, 33, group), integers((256,), "u1", 7)],
        consts=(1, 2, 3),
    )
WIDE = inputs("u1", 8, 9, 1)
WIDE[1] = rng(8).integers(-255, 255, WIDE[1].shape, np.int16)
add(
    "quantised_halves",
    Conv2d(SAME3, 1, (), replace(BYTES, nine_bits=True)),
    WIDE,
    consts=(1, 2),
    only="halves4",
)
LARGE = inputs("u1", 6, 9, 1, 2**30)
add("quantised_integers", Conv2d(SAME3, 1, (), BYTES), LARGE, consts=(1, 2))


def transposed(name: str, ic: int, size: tuple[int, int], quads: bool) -> None:
    """Add a transposed convolution of real weights."""
    arith = RealTaps(77, 0.013, U8, 9, 0.4, 9, 250, quads, offsets=(0.5,))
    spec = ConvTranspose(
        (3, 2), (2, 1), (1, 1), (1, 0), (2 * size[0] - 1, size[1] + 1), 1, (), arith
    )
    x, w = integers((1, ic, *size), "u1"), rng(1).normal(0, 0.1, (ic, 5, 3, 2)).astype(F)
    add(name, spec, [x, w, None], consts=(1,))


transposed("quantised_transposed", 6, (3, 5), False)
transposed("quantised_transposed_many", 130, (2, 2), False)
transposed("quantised_transposed_pixel", 7, (1, 1), True)


def single_filters(name: str, window: Window, channels: int, kind: str) -> None:
    """Add a convolution of one real filter per channel."""
    low = int(np.iinfo(kind).min)
    arith = RealFours(
        low + 77,
        0.013,
        U8 if kind == "u1" else I8,
        low + 9,
        0.4,
        low + 9,
        low + 250,
        offsets=(0.5,),
    )
    weights = rng(1).normal(0, 0.1, (channels, 1, *window.kernel)).astype(F)
    given = [integers((1, channels, 4, 7), kind), weights, None]
    add(name, Conv2d(window, channels, (), arith), given, consts=(1,))


single_filters("quantised_single_filters", SAME3, 19, "i1")
single_filters(
    "quantised_single_filters_strided", Window((5, 3), (2, 2), (1, 1), (2, 1), (2, 1)), 16, "u1"
)


def few_beyond_bytes(any_: bool, channels: int) -> np.ndarray:
    """Return weights that are bytes times a quarter, two of them more than a byte if `any_`."""
    whole = integers((8, channels, 3, 2), "i1", 1).astype(F)
    if any_:
        whole[0, 0, 0, 0], whole[7, channels - 1, 2, 1] = 140, -200
    return whole * F(0.25)


for kind, strides, channels in (
    ("u1", (2, 2), 19),
    ("i1", (2, 1), 19),
    ("i1", (2, 2), 32),
    ("u1", (2, 2), 70),
):
    low = int(np.iinfo(kind).min)
    arith = RealTaps(
        low + 77,
        0.0125,
        U8 if kind == "u1" else I8,
        low + 9,
        0.05,
        low + 9,
        low + 250,
        False,
        (0.25,),
        offsets=(0.5,),
    )
    around = (5, 5 * strides[1])
    add(
        f"quantised_transposed_bytes_{kind}_{channels}",
        ConvTranspose((3, 2), strides, (1, 1), (1, 0), around, 1, (), arith),
        [integers((1, 8, 3, 5), kind), few_beyond_bytes(strides[1] == 1, channels), None],
        consts=(1,),
        only="_bytes_",
        every=True,
        targets=("cpu",),
    )

A, B = integers((2, 6, 3, 5), "i1"), integers((2, 6, 3, 5), "i1", 1)
X, Y = Quantisation(I8, (0.3,), (5,)), Quantisation(I8, (0.21,), (-3,))
REAL = rng(4).normal(0, 30, (3, 5, 8)).astype(F)
ALONG, ZERO = rng(5).uniform(0.1, 1, (5, 1)).astype(F), integers((5, 1), "i1", 6)
add("quantise", FixedMap(Quantise(I8)), [REAL, ALONG, ZERO])
add("quantise_late", FixedMap(Quantise(I8, True)), [REAL, ALONG, ZERO])
add("quantise_whole", FixedMap(Quantise(I8, whole=True)), [REAL.astype(np.int32), ALONG, ZERO])
add("dequantise", FixedMap(Dequantise()), [integers((3, 5, 8), "i1"), ALONG, ZERO])
add("dequantise_no_zero", FixedMap(Dequantise()), [integers((3, 5, 8), "i4"), ALONG])
for channels in (1, 2, 3, 4):
    add(
        f"quantised_planes_{channels}",
        FixedMap(Quantise(U8)),
        [normal((2, channels, 5, 19)), np.array(0.05, F), np.array(9, np.uint8)],
        consts=(1, 2),
        orders={"i0": (0, 1, 2, 3), "o0": (0, 2, 3, 1)},
    )


def planes_apart() -> None:
    """Quantise planes into pixels that lie further apart than their bytes."""
    inputs = [normal((2, 3, 5, 19)), np.array(0.05, F), np.array(9, np.uint8)]
    spec, order = FixedMap(Quantise(U8)), (0, 2, 3, 1)
    graph, want = single_node(spec, inputs, (1, 2)), spec.reference(*inputs)
    apart = TensorLayout.make((2, 3, 5, 19), order, align={1: 5})
    hints = Hints({}, {"i0": (0, 1, 2, 3)}, {"o0": apart})
    names = variant_names(graph, DEVICE, hints)
    run_variants(graph, DEVICE, dict.fromkeys(names, 0.0), hints, inputs, want)


def by_dp4a() -> None:
    """Check the kernel with NVIDIA's instruction, a function of what it does in its place."""
    plain, render = planning.target_of, codegen.render

    def target(info: Any) -> Any:
        found = plain(info)
        return replace(found, features=found.features | {"ptx_dp4a"})

    def made_in_c(template: str, params: Any) -> str:
        return dp4a_in_c(render(template, params))[0]

    with (
        mock.patch.object(codegen, "render", made_in_c),
        mock.patch.object(planning, "target_of", target),
    ):
        spec = Conv2d(SAME3, 1, (), BYTES)
        check_op(DEVICE, spec, inputs("u1", 8, 9, 1), consts=(1, 2), only="_dp4a4_")


put("quantised_dp4a", by_dp4a, targets=("gpu",))
put("quantised_planes_apart", planes_apart, targets=("cpu",))
add("quantised_line", build.moved(0, X, Y).spec, [A])
add("quantised_sum", build.total(X, Y, Y), [A, B])
add("quantised_product", build.product(X, Y, Y), [A, B])
add("quantised_sum_shifted", build.total(X, Y, Y, shifted=True), [A, B])
add("quantised_product_shifted", build.product(X, Y, Y, shifted=True), [A, B])
add("quantised_quotient", build.written("div", X, Y, Y, (-3, 100)), [A, B])
NORM = (PostOp("mul", operand=1), PostOp("add", operand=2), PostOp("relu"))
STEPS = WrittenSteps((I8, U8), (5, 9), (0.3, 0.21), NORM)
ALONG_CHANNELS = rng(6).normal(0, 1, (2, 6, 1, 1)).astype(F)
add("written_steps", FixedMap(STEPS), [A, *ALONG_CHANNELS], consts=(1, 2))
TABLE = build.table(integers((256,), "i1", 7), I8, I8)
add("byte_table", TABLE, [A])
add("byte_table_one", TABLE, [A[0, 0, :, :1]])
add("quantised_average", build.image_average(0, (3, 5), X, Y).spec, [A])
add("quantised_real_average", build.real_average(0, (3, 5), X, Y).spec, [A])
BYTE_SOFTMAX = byte_softmax(X, Quantisation(I8, (1 / 256,), (-128,)))
add("byte_softmax", BYTE_SOFTMAX, [A.reshape(-1, 15)])
add("byte_softmax_looked_up", BYTE_SOFTMAX, [A.reshape(5, -1)])
for kind in (BF16, I4, F4):
    small = integers((3, 37), "u2" if kind == BF16 else "u1", 4)
    small = small if kind == BF16 else small & 15
    wide = rng(5).normal(0, 3, (3, 37)).astype(F)
    wide = integers((3, 37), "i1", 6) if kind == I4 else wide
    add(f"widen_{kind.name}", FixedMap(Widen(kind)), [small.view(kind.numpy)])
    add(f"narrow_{kind.name}", FixedMap(Narrow(kind)), [wide])


@contextmanager
def in_c(width: int, *without: str) -> Iterator[None]:
    """Plan for x86's instructions with vectors of a width, functions of what they do in their place."""
    target, render = planning.target_of(None), codegen.render
    features = (target.features | {"x86_vnni", "x86_vbmi", "x86_madd"}) - {*without}
    target = replace(target, vector=width, features=features)
    counts = []

    def rendered(template: str, params: Any) -> str:
        text, count = x86_in_c(render(template, params), params.get("vw", width))
        counts.append(count)
        return text

    with (
        mock.patch.object(codegen, "render", rendered),
        mock.patch.object(runtime_numbers, "render", rendered),
        mock.patch.object(planning, "target_of", lambda info: target),
    ):
        yield
    assert any(counts)


SIGNED_MANY = replace(SIGNED, factors=(0.0031,))


def by_x86(group: int, width: int) -> None:
    """Check products of bytes, or one filter per channel where there are as many groups."""
    with in_c(width):
        given = inputs("i1", CHANNELS, CHANNELS, group)
        for arith in (SIGNED_MANY, replace(BYTES, zero=-5)):
            only = "depthwise_bytes" if group > 1 else "vnni4"
            check_op(DEVICE, Conv2d(SAME3, group, (), arith), given, consts=(1, 2), only=only)


def tables_by_x86(group: int, width: int) -> None:
    """Check products of bytes whose results are looked up, or one filter per channel."""
    with in_c(width):
        given = [*inputs("i1", CHANNELS, CHANNELS, group), integers((256,), "i1", 7)]
        spec = Conv2d(SAME3, group, (PostOp("byte_table", operand=3),), SIGNED_MANY)
        only = "depthwise_bytes" if group > 1 else "vnni4"
        check_op(DEVICE, spec, given, consts=(1, 2, 3), only=only)


def columns_left(width: int) -> None:
    """Check one filter per channel where the columns are no multiple of those of a step."""
    with in_c(width):
        given = inputs("i1", CHANNELS, CHANNELS, CHANNELS)
        given[0] = integers((1, CHANNELS, 1, 9), "i1")
        spec = Conv2d(SAME3, CHANNELS, (), SIGNED_MANY)
        check_op(DEVICE, spec, given, consts=(1, 2), only="depthwise_bytes")


def any_width(width: int) -> None:
    """Run one filter per channel for images of any size: results wider than a step, and narrower ones."""
    consts = {
        "xs": F(0.02),
        "xz": np.uint8(77),
        "w": integers((CHANNELS, 1, 3, 3), "i1", 1),
        "ws": F(0.01),
        "wz": np.int8(0),
        "ys": F(0.07),
        "yz": np.uint8(131),
    }
    nodes = [
        make.make_node(
            "QLinearConv", ["x", *consts], [name], pads=[1] * 4, strides=strides, group=CHANNELS
        )
        for name, strides in (("wide", (1, 1)), ("narrow", (1, 3)))
    ]
    x = value("x", ("batch", CHANNELS, "height", "width"), TensorProto.UINT8)
    weights = [tensor(name, array) for name, array in consts.items()]
    whole = model(nodes, [x], ("wide", "narrow"), weights).SerializeToString()
    feeds = {"x": integers((1, CHANNELS, 2, 9), "u1")}
    graph = load_graph(whole, {"x": feeds["x"].shape})
    want = reference_values(graph, feeds)
    options = Options(guard=harness.GUARD, arena="separate")
    # One step for both, as a network has it whose later images are narrower than its first.
    step = mock.patch.object(depthwise_bytes, "_tiles", lambda problem: [BandTile(width, 6, 1)])
    with in_c(width), step, clnn.compile_model(whole, DEVICE, options) as opened:
        got = opened(feeds)
        for public, name in graph.outputs.items():
            harness.compare(got[public], want[name], 0.0, public)


def winograd(sets: int, width: int, *without: str) -> None:
    """Check Winograd's products of bytes, plain ones and with what is fused behind; sets: of tiles.

    without: instructions that the processor does not have.
    """
    oc = 3 * width
    arith = replace(BYTES, factors=tuple(rng(3).uniform(0, 0.001, oc).tolist()))
    given = [integers((1, 16, 5, 9), "i1" if without else "u1"), integers((oc, 16, 3, 3), "i1", 1)]
    given.append(rng(2).integers(-999, 999, oc, np.int32))
    plan = winograd_bytes.BytesPlan(4, 2, width, 2, sets, 0.0)
    steps = PostOp("byte_sum", (0.6, 0.8, -41.5, 0, 255), 3), PostOp("byte_table", operand=3)
    others = integers((1, oc, 5, 9), "u1", 7), integers((256,), "u1", 7)
    chosen = mock.patch.object(winograd_bytes, "plans", lambda tiles, target: iter((plan,)))
    with in_c(width, *without), chosen:
        kernel = {"only": "winograd_bytes"}
        check_op(DEVICE, Conv2d(SAME3, 1, (), arith), given, consts=(1, 2), **kernel)
        for step, other in zip(steps, others, strict=True) if not without else ():
            spec = Conv2d(SAME3, 1, (step,), arith)
            check_op(DEVICE, spec, [*given, other], consts=(1, 2), **kernel)


def looked_up() -> None:
    """Check tables of bytes that permutations read, of all bytes and of what no vectors fit."""
    with in_c(16):
        for result in (I8, U8):
            spec = build.table(integers((256,), result.name[0] + "1", 7), I8, result)
            check_op(DEVICE, spec, [np.arange(-128, 128, dtype=np.int8).reshape(4, 64)])
        check_op(DEVICE, spec, [integers((2, 5, 3, 16), "i1")])


for sets in (1, 2):
    put(f"winograd_bytes_{sets}", functools.partial(winograd, sets, 8), targets=("cpu",))
put("winograd_bytes_madd", functools.partial(winograd, 1, 8, "x86_vnni"), targets=("cpu",))
put("byte_table_x86", looked_up, targets=("cpu",))
CHANNELS = 36
for group in (1, CHANNELS):
    put(f"quantised_x86_{group}", functools.partial(by_x86, group, 8), targets=("cpu",))
put("quantised_x86_table_1", functools.partial(tables_by_x86, 1, 8), targets=("cpu",))
put("quantised_x86_table_36", functools.partial(tables_by_x86, 36, 8), targets=("cpu",))
put("quantised_x86_columns_left", functools.partial(columns_left, 8), targets=("cpu",))
put("quantised_x86_any_width", functools.partial(any_width, 8), targets=("cpu",))
