"""Cases of the universal set's functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from harness import check_universal, normal
from simulator import DEVICE
from table import NHWC, put

from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Transpose
from clnn.ops.pool.spec import Pool
from clnn.ops.resize.sampling import Sampling
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.norm import Normalise
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import FUNCTIONS, PostOp
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec

IMAGE = {"i0": NHWC, "o0": NHWC}
OPEN = Window((3, 3), (2, 1), (1, 1), (1, 1), (1, 1))
STEPS = (PostOp("mul", (0.5,)), PostOp("add", operand=1))
OPS = (PostOp("add", operand=3), PostOp("relu"))


def case(name: str, spec: OpSpec, inputs: Sequence[np.ndarray | None], **how: Any) -> None:
    """Add a case of one op on the set."""

    def run() -> None:
        check_universal(DEVICE, spec, inputs, rows=False, **how)

    put(f"universal_{name}", run, targets=("cpu",))


for _name, _group, _channels, _made, _orders in (
    ("conv", 1, 5, 18, IMAGE),
    ("conv_wide", 1, 20, 16, IMAGE),
    ("conv_planes", 1, 3, 17, {}),
    ("conv_groups", 2, 6, 8, IMAGE),
    ("filters", 19, 19, 19, IMAGE),
    ("few_filters", 3, 3, 3, {}),
):
    case(
        _name,
        Conv2d(OPEN, _group, OPS),
        [
            normal((1, _channels, 5, 6)),
            normal((_made, _channels // _group, 3, 3), 1),
            normal((_made,), 2),
            normal((1, _made, 3, 6), 3),
        ],
        consts=(1, 2),
        orders=_orders,
    )
for _made in (16, 41):
    case(
        f"conv_straight_{_made}",
        Conv2d(OPEN, 1, (PostOp("clip", (-0.5, 0.5)),)),
        [normal((2, 5, 5, 6)), normal((_made, 5, 3, 3), 1), normal((_made,), 2)],
        consts=(1, 2),
        orders=IMAGE,
    )
SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
case(
    "winograd",
    Conv2d(SAME, 1, OPS),
    [
        normal((1, 32, 11, 13)),
        normal((32, 32, 3, 3), 1),
        normal((32,), 2),
        normal((1, 32, 11, 13), 3),
    ],
    consts=(1, 2),
    orders=IMAGE,
)
case("product", Gemm(trans_b=True), [normal((7, 21)), normal((18, 21), 1)], consts=(1,))
case("max", Pool(OPEN, "max"), [normal((1, 18, 5, 6))], orders=IMAGE)
case("mean", Pool(OPEN, "average", True), [normal((1, 5, 5, 6))], orders=IMAGE)
case("copy", Transpose((0, 3, 1, 2)), [normal((1, 4, 3, 18))])
for _fn in ("relu", "swish", "gelu", "add", "max", "pow"):
    _binary = FUNCTIONS[_fn].binary
    _step = PostOp(_fn, (1.0,) if _fn == "swish" else (), 1 if _binary else None)
    _inputs = [np.abs(normal((2, 3, 21))), normal((3, 1), 1)]
    case(f"chain_{_fn}", Eltwise((_step,)), _inputs[: 1 + _binary])
for _name, _axes, _image in (("lanes", (2, 3), IMAGE), ("lines", (3,), {})):
    _x = [normal((1, 19, 4, 5)), normal((19, 1, 1), 1)]
    case(f"softmax_{_name}", Softmax(_axes, False, STEPS[:1]), _x[:1], orders=_image)
    case(f"norm_{_name}", Normalise(_axes, post_ops=STEPS[1:]), _x, orders=_image)
for _fn in ("sum", "prod", "min", "l1", "l2", "log_sum_exp"):
    case(f"reduce_{_fn}", Reduce(_fn, (1, 3)), [normal((2, 3, 11, 7))])
for _name, _how, _size in (
    ("nearest", Sampling("nearest"), (8, 9)),
    ("linear", Sampling("linear"), (7, 3)),
):
    _scales = (1.0, 1.0, _size[0] / 5, _size[1] / 6)
    _spec = Resize((1, 19, *_size), _scales, _how, post_ops=STEPS[1:])
    for _order in ({}, IMAGE):
        _x = [normal((1, 19, 5, 6)), normal((19, 1, 1), 1)]
        case(f"resize_{_name}{'_planes' * (not _order)}", _spec, _x, orders=_order)
case("pad", Pad((0, 2, 1, 0), (0, 3, 0, 2), "constant", 1.5), [normal((1, 17, 4, 5))], orders=IMAGE)
case("pad_planes", Pad((0, 0, 1, 2), (0, 0, 2, 1), "reflect"), [normal((1, 3, 4, 70))])
case(
    "transpose",
    ConvTranspose((3, 3), (2, 2), (1, 1), (1, 1), (7, 9), 1, OPS),
    [normal((1, 5, 4, 5)), normal((5, 18, 3, 3), 1), normal((18,), 2), normal((1, 18, 7, 9), 3)],
    consts=(1, 2),
    orders=IMAGE,
)
case(
    "transpose_sparse",
    ConvTranspose((1, 1), (2, 3), (1, 1), (0, 0), (7, 13)),
    [normal((1, 5, 4, 5)), normal((5, 3, 1, 1), 1)],
    consts=(1,),
)


class Unbordered(Conv2d):
    """A convolution whose input gets no border."""

    def padding_needs(self, inputs: Sequence[Any]) -> dict[int, Any]:
        """Return none."""
        return {}


_WEIGHTS = [normal((9, 5, 3, 3), 1), normal((9,), 2)]
case("unbordered", Unbordered(OPEN), [normal((1, 5, 5, 6)), *_WEIGHTS], consts=(1, 2), orders=IMAGE)
for _name, _a, _b, _spec in (
    ("product_computed", (9, 17), (17, 33), Gemm()),
    ("product_turned", (5, 7), (18, 7), Gemm(trans_b=True)),
    ("product_batch", (2, 3, 5, 7), (2, 3, 7, 16), Gemm(alpha=0.5)),
    ("product_shared", (3, 2, 5, 4), (1, 2, 4, 3), Gemm()),
):
    case(_name, _spec, [normal(_a), normal(_b, 1)])
for _name, _orders in (("in_turn", IMAGE), ("in_turn_planes", {})):
    _how = Sampling("linear", in_turn=True)
    _spec = Resize((1, 17, 7, 9), (1.0, 1.0, 1.4, 1.5), _how)
    case(_name, _spec, [normal((1, 17, 5, 6))], orders=_orders)
_MANY = tuple(PostOp(fn, operand=2 + k) for k, fn in enumerate(("add", "mul", "sub")))
_MORE = [normal((3, 18), 2), normal((18,), 3), normal((3, 1), 4)]
case(
    "walked",
    Gemm(post_ops=tuple(replace(p, operand=p.operand + 1) for p in _MANY)),
    [normal((3, 7)), normal((7, 18), 1), None, *_MORE],
    consts=(1,),
)
