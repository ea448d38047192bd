"""Cases of the universal set's functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from harness import check_universal, normal
from simulator import DEVICE
from table import NHWC, put

from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Transpose
from clnn.ops.pool.spec import Pool
from clnn.ops.shared.functions import FUNCTIONS, PostOp
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec

IMAGE = {"i0": NHWC, "o0": NHWC}
OPEN = Window((3, 3), (2, 1), (1, 1), (1, 1), (1, 1))
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
case("product", Gemm(trans_b=True), [normal((7, 21)), normal((18, 21), 1)], consts=(1,))
case("max", Pool(OPEN, "max"), [normal((1, 18, 5, 6))], orders=IMAGE)
case("mean", Pool(OPEN, "average", True), [normal((1, 5, 5, 6))], orders=IMAGE)
case("copy", Transpose((0, 3, 1, 2)), [normal((1, 4, 3, 18))])
for _fn in ("relu", "swish", "gelu", "add", "max", "pow"):
    _binary = FUNCTIONS[_fn].binary
    _step = PostOp(_fn, (1.0,) if _fn == "swish" else (), 1 if _binary else None)
    _inputs = [np.abs(normal((2, 3, 21))), normal((3, 1), 1)]
    case(f"chain_{_fn}", Eltwise((_step,)), _inputs[: 1 + _binary])
