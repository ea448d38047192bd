"""Cases of the universal set's functions for bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from case_quantised import BYTES, SIGNED, WRITTEN, in_c, inputs, integers
from harness import check_universal, normal, rng
from simulator import DEVICE
from table import NHWC, put

from clnn.arith.quantised import Quantisation, QuantisedAverage, Sums
from clnn.arith.quantised_maps import ByteTable, Dequantise, Quantise, QuantisedSum
from clnn.arith.real_taps import RealTaps
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.gather import Gather
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Transpose
from clnn.ops.pool.spec import Pool
from clnn.ops.quantised.softmax import byte_softmax
from clnn.ops.quantised.steps import WrittenSteps
from clnn.ops.resize.sampling import Sampling
from clnn.ops.resize.spec import Resize
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec
from clnn.types import BOOL, I8, U8

IMAGE = {"i0": NHWC, "o0": NHWC}
SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
OPEN = Window((3, 3), (2, 1), (1, 1), (1, 1), (1, 1))
F = np.float32


def case(name: str, spec: OpSpec, given: Sequence[np.ndarray | None], **how: Any) -> None:
    """Add a case of one op on the set."""
    run = partial(check_universal, DEVICE, spec, given, rows=False, **how)
    put(f"universal_bytes_{name}", run, targets=("cpu",))


def x86(specs: Sequence[tuple[OpSpec, Sequence[np.ndarray | None]]]) -> None:
    """Check convolutions with x86's instructions, in C."""
    with in_c(16):
        for spec, given in specs:
            check_universal(DEVICE, spec, given, rows=False, consts=(1, 2), orders=IMAGE)


_BY_X86: list[tuple[OpSpec, Sequence[np.ndarray | None]]] = []
for _name, _arith, _x, _ic, _oc, _group in (
    ("conv", BYTES, "u1", 8, 18, 1),
    ("conv_signed", SIGNED, "i1", 5, 9, 1),
    ("conv_written", WRITTEN, "i1", 6, 34, 1),
    ("conv_groups", WRITTEN, "i1", 6, 8, 2),
    ("sums", Sums(77), "u1", 3, 9, 1),
    ("filters", BYTES, "u1", 19, 19, 19),
    ("few_filters", WRITTEN, "i1", 3, 3, 3),
):
    _given, _spec = inputs(_x, _ic, _oc, _group), Conv2d(SAME, _group, (), _arith)
    case(_name, _spec, _given, consts=(1, 2), orders=IMAGE)
    if _group < _ic:
        _BY_X86.append((_spec, _given))
_WIDE = inputs("u1", 8, 9, 1)
_WIDE[1] = rng(8).integers(-255, 255, _WIDE[1].shape, np.int16)
_NINE = Conv2d(SAME, 1, (), replace(BYTES, nine_bits=True))
case("nine_bits", _NINE, _WIDE, consts=(1, 2))
put("universal_bytes_x86", partial(x86, [*_BY_X86, (_NINE, _WIDE)]), targets=("cpu",))
for _name, _step in (
    ("sum", PostOp("byte_sum", (0.6, 0.8, -41.5, 0, 255), 3)),
    ("written", PostOp("written_sum", (11, 0.02, 133, 0.03, 120, 0.04, 5, 250), 3)),
    ("table", PostOp("byte_table", operand=3)),
):
    for _group in (1, 21):
        _shape = (256,) if _name == "table" else (1, 21, 3, 5)
        case(
            f"{_name}_behind_{_group}",
            Conv2d(SAME, _group, (_step,), BYTES),
            [*inputs("u1", 21, 21, _group), integers(_shape, "u1", 7)],
            consts=(1, 2, 3) if _name == "table" else (1, 2),
            orders=IMAGE,
        )
case("max", Pool(OPEN, "max"), [integers((1, 18, 5, 6), "i1")], orders=IMAGE)
_RULE = QuantisedAverage(I8, (7, 9), (0.3, 0.21))
case("mean", Pool(OPEN, "average", True, rule=_RULE), [integers((1, 5, 5, 6), "i1")], orders=IMAGE)
_Q, _STEP, _ZERO = (
    integers((2, 3, 21), "i1"),
    np.abs(normal((3, 1), 1)) + F(0.1),
    integers((3, 1), "i1"),
)
case("quantise", FixedMap(Quantise(I8)), [normal((2, 3, 21)) * F(9), _STEP, _ZERO])
case("quantise_late", FixedMap(Quantise(I8, True)), [normal((2, 3, 21)), F([[0.5]]), _ZERO])
case("dequantise", FixedMap(Dequantise()), [_Q, _STEP, _ZERO])
case("sum", FixedMap(QuantisedSum(I8, (0.6, 0.8), -41.5)), [_Q, _ZERO])
case("table", FixedMap(ByteTable(I8, U8, tuple(map(float, range(256))))), [_Q])
_OPS = PostOp("mul", operand=1), PostOp("add", operand=2), PostOp("relu")
case("written", FixedMap(WrittenSteps((I8, U8), (1, 9), (0.3, 0.2), _OPS)), [_Q, _STEP, _STEP])
case("cast", Cast(U8), [np.abs(normal((3, 21))) * F(99)])
case("less", Logic("less"), [normal((3, 21)), normal((21,), 1)])
case("where", Logic("where"), [_Q[0] > 0, _Q[0], _Q[1]])
case(
    "wrap",
    Eltwise((PostOp("mul", operand=1),)),
    [_Q.astype(np.int32) << 20, _ZERO.astype(np.int32)],
)
case("copy", Transpose((0, 3, 1, 2)), [integers((1, 4, 3, 18), "u1")])
case(
    "pad",
    Pad((0, 2, 1, 0), (0, 3, 0, 2), "constant", -7.0),
    [integers((1, 17, 4, 5), "i1")],
    orders=IMAGE,
)
case("pad_planes", Pad((0, 0, 1, 2), (0, 0, 2, 1), "reflect"), [integers((1, 3, 4, 7), "i1")])
_SOFTMAX = byte_softmax(Quantisation(I8, (0.3,), (5,)), Quantisation(I8, (1 / 256,), (-128,)))
case("softmax", _SOFTMAX, [integers((3, 21), "i1")])


class Unbordered(Conv2d):
    """A convolution whose input gets no border."""

    def padding_needs(self, inputs: Sequence[Any]) -> dict[int, Any]:
        """Return none."""
        return {}


case(
    "unbordered",
    Unbordered(SAME, 1, (), SIGNED),
    inputs("i1", 5, 9, 1),
    consts=(1, 2),
    orders=IMAGE,
)
_SHORTS = inputs("u1", 3, 9, 1)
_SHORTS[0] = integers(_SHORTS[0].shape, "i2")
case("shorts", Conv2d(SAME, 1, (), Sums(most=32768)), _SHORTS, consts=(1, 2))
case("narrow", Cast(U8), [_Q.astype(np.int32) * 999])
case("and", Logic("and"), [_Q[0] > 0, _Q[1] > 0])
case("not", Logic("not"), [_Q[0] > 0])
case("is_nan", Logic("is_nan"), [normal((3, 21))])
case("cast_bool", Cast(BOOL), [_Q.astype(np.int64)])
case("gather", Gather(1), [_Q, np.array([[0, 2, -1]])])
case("gather_last", Gather(2), [_Q, np.array([20, -21], np.int32)])
_INTS = [integers((2, 3, 5, 7), "i4"), integers((1, 3, 7, 18), "i4", 1)]
case("product", Gemm(), _INTS)
for _name, _ic, _size, _quads in (
    ("taps", 6, (3, 5), False),
    ("taps_many", 130, (2, 2), False),
    ("taps_pixel", 7, (1, 1), True),
):
    _real = RealTaps(77, 0.013, U8, 9, 0.4, 9, 250, _quads, offsets=(0.5,))
    _made = (2 * _size[0] - 1, _size[1] + 1)
    _spec = ConvTranspose((3, 2), (2, 1), (1, 1), (1, 0), _made, 1, (), _real)
    _w = rng(1).normal(0, 0.1, (_ic, 5, 3, 2)).astype(F)
    case(_name, _spec, [integers((1, _ic, *_size), "u1"), _w, None], consts=(1,))
for _name, _bits, _orders in (("sample", 0, IMAGE), ("sample_whole", 10, {})):
    _spec = Resize((1, 17, 7, 9), (1.0, 1.0, 1.4, 1.5), Sampling("linear", bits=_bits))
    case(_name, _spec, [integers((1, 17, 5, 6), "i1")], orders=_orders)
