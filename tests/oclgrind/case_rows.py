"""Cases of ops over whole rows: reductions, softmax, normalisation, places of extremes."""

from __future__ import annotations

import itertools

import numpy as np
from harness import normal, rng
from table import NHWC, add

from clnn.ops.rows.arg import ArgExtreme, Hardmax
from clnn.ops.rows.cumsum import CumSum
from clnn.ops.rows.distances import Distances
from clnn.ops.rows.lrn import Lrn
from clnn.ops.rows.norm import Normalise
from clnn.ops.rows.reduce import FOLDS, Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.rows.suppress import Suppress
from clnn.ops.rows.topk import TopK
from clnn.ops.shared.functions import PostOp

SCALED = (PostOp("mul", operand=1),)
GEOMETRIES = {  # shape, axes, memory order: how vectors and work-items lie on rows
    "along": ((2, 3, 19), (2,), None),
    "along_short": ((7, 9), (1,), None),
    "across": ((5, 21), (0,), None),
    "image": ((2, 9, 3, 5), (2, 3), NHWC),
    "channels": ((1, 9, 3, 5), (1,), NHWC),
    "scattered": ((4, 5, 6), (1,), (2, 0, 1)),
    "both_ends": ((3, 4, 5), (0, 2), None),
    "all": ((3, 7), (0, 1), None),
}

for _name, (_shape, _axes, _order) in GEOMETRIES.items():
    _how = {"orders": {"i0": _order}} if _order else {}
    add(f"reduce_{_name}", Reduce("sum", _axes), [normal(_shape)], **_how)
    add(f"softmax_{_name}", Softmax(_axes), [normal(_shape)], **_how)
    add(f"normalise_{_name}", Normalise(_axes), [normal(_shape)], tolerance=1e-4, **_how)
    if len(_axes) == 1:
        add(f"argmax_{_name}", ArgExtreme(True, _axes[0]), [normal(_shape)], **_how)

for _fn in FOLDS:
    add(
        f"reduce_{_fn}",
        Reduce(_fn, (1,), power=3.0),
        [np.abs(normal((3, 10))) + 0.5],
        tolerance=1e-4,
        quick=("cpu",),
    )
    add(
        f"reduce_{_fn}_across",
        Reduce(_fn, (0,), False, power=2.5),
        [np.abs(normal((5, 9))) + 0.5],
        tolerance=1e-4,
        long=True,
    )
add("reduce_lp_odd", Reduce("lp", (1,), power=2.5), [normal((3, 10))])
add(
    "reduce_steps",
    Reduce("l2", (1,), post_ops=(*SCALED, PostOp("relu"))),
    [normal((4, 21)), normal((4, 1), 1)],
)
add(
    "reduce_across_steps",
    Reduce("sum", (0,), post_ops=SCALED),
    [normal((5, 21)), normal((1, 21), 1)],
)
add("reduce_log_sum_exp_lanes", Reduce("log_sum_exp", (0,)), [normal((3, 19))])
add(
    "reduce_int32",
    Reduce("l1", (1,)),
    [rng().integers(-9, 9, (3, 10)).astype(np.int32)],
    modes=("unoptimised",),
)  # llvm.abs is not there in the other
add(
    "reduce_int32_squares",
    Reduce("sum_square", (1,)),
    [rng().integers(-9, 9, (3, 10)).astype(np.int32)],
)
add("reduce_uint8", Reduce("min", (0,)), [rng().integers(0, 200, (5, 9)).astype(np.uint8)])
add(
    "reduce_max_nan",
    Reduce("max", (1,)),
    [np.where(normal((4, 9)) > 1, np.nan, normal((4, 9), 1)).astype(np.float32)],
)
add("reduce_parts", Reduce("sum", (0,)), [normal((200, 37))], targets=("gpu",))
add(
    "reduce_parts_steps",
    Reduce("mean", (0,), post_ops=SCALED),
    [normal((200, 37)), normal((1, 37), 1)],
    targets=("gpu",),
)
add("reduce_long_row", Reduce("sum", (1,)), [normal((1, 4500))], only="along", targets=("cpu",))
add("reduce_many_rows", Reduce("sum", (1,)), [normal((40, 3))], targets=("cpu",))

add("softmax_log", Softmax((1,), True), [normal((3, 19))])
add("softmax_log_lanes", Softmax((0,), True), [normal((5, 19))])
add("softmax_steps", Softmax((1,), post_ops=SCALED), [normal((3, 19)), normal((3, 19), 1)])
add("softmax_double", Softmax((1,)), [normal((3, 9)).astype(np.float64)])
add(
    "softmax_infinite",
    Softmax((1,)),
    [np.array([[0.0, -np.inf, 1.0], [np.inf, 0.0, 1.0], [np.nan, 0.0, 1.0]], np.float32)],
)

AFFINE = (PostOp("mul", operand=1), PostOp("add", operand=2))
add(
    "normalise_affine",
    Normalise((1,), post_ops=AFFINE),
    [normal((4, 21)), normal((21,), 1), normal((21,), 2)],
    tolerance=1e-4,
)
add("normalise_groups", Normalise((2, 3), groups=3), [normal((2, 6, 3, 4))], tolerance=1e-4)
add("normalise_parts", Normalise((0,)), [normal((200, 37))], tolerance=1e-4, targets=("gpu",))
add(
    "normalise_parts_along",
    Normalise((1,)),
    [normal((1, 16400))],
    tolerance=1e-4,
    only="along",
    targets=("gpu",),
)
add(
    "normalise_parts_power",
    Normalise((0,), centre=False),
    [normal((200, 37))],
    tolerance=1e-4,
    targets=("gpu",),
)
add("normalise_power", Normalise((2,), centre=False), [normal((2, 3, 17))], tolerance=1e-4)
add(
    "normalise_groups_steps",
    Normalise((2, 3), groups=2, post_ops=AFFINE),
    [normal((1, 8, 3, 3)), normal((8, 1, 1), 1), normal((8, 1, 1), 2)],
    tolerance=1e-4,
    orders={"i0": NHWC},
)

add(
    "argmin_latest",
    ArgExtreme(False, 1, False, True),
    [rng().integers(0, 3, (4, 9)).astype(np.float32)],
)
add("argmax_int64", ArgExtreme(True, 0), [rng().integers(-5, 5, (6, 5))])
add(
    "argmax_nan",
    ArgExtreme(True, 1),
    [np.array([[1, np.nan, 3, np.nan], [2, 2, 1, 0]], np.float32)],
)
add("hardmax", Hardmax((1,)), [normal((3, 19))])
add("argmax_long_row", ArgExtreme(True, 1), [normal((2, 139))], quick=("cpu",))
add("hardmax_long_row", Hardmax((1,)), [normal((2, 75))], quick=("cpu",))
add("hardmax_lanes", Hardmax((0,)), [normal((5, 19))])
add("hardmax_flat", Hardmax((1, 2)), [normal((2, 3, 5))])

add("lrn", Lrn(3), [normal((1, 7, 3, 4))])
add(
    "lrn_channels_innermost",
    Lrn(5, post_ops=SCALED),
    [normal((1, 9, 2, 3)), normal((1, 9, 2, 3), 1)],
    orders={"i0": NHWC, "i1": NHWC},
)
add("lrn_loops", Lrn(67, 1.0), [normal((1, 80, 2))], orders={"i0": (0, 2, 1), "o0": (0, 2, 1)})
for _beta in (0.5, 1.0, 0.6):
    add(f"lrn_even_{_beta}", Lrn(4, 0.5, _beta, 2.0), [normal((2, 6, 5))], quick=("cpu",))

add("cumsum", CumSum(1), [normal((3, 7))])
add("cumprod", CumSum(1, exclusive=True, product=True), [normal((3, 7))])
add("cumprod_group", CumSum(1, product=True), [normal((2, 1100))], targets=("gpu",), quick=("gpu",))
add("cumsum_columns", CumSum(0, exclusive=True), [normal((5, 19))])
add("cumsum_back", CumSum(1, reverse=True), [rng().integers(-9, 9, (2, 6, 3))])
add("cumsum_group", CumSum(1), [normal((2, 1100))], targets=("gpu",), quick=("gpu",))
add(
    "cumsum_group_exclusive",
    CumSum(1, exclusive=True),
    [normal((2, 1100))],
    targets=("gpu",),
    quick=("gpu",),
)
add("topk", TopK(3, 1), [normal((4, 9))])
add("topk_columns", TopK(2, 0, False), [rng().integers(0, 4, (6, 5)).astype(np.float32)])
add("topk_nan", TopK(4, 0), [np.array([1, np.nan, 3, np.nan, 2], np.float32)])
add("topk_first", TopK(1, 1), [normal((3, 21))], targets=("cpu",))
add("topk_in_order", TopK(3, 1), [normal((2, 70))], quick=("cpu",))
add("topk_sorted", TopK(20, 1), [normal((2, 60))], targets=("cpu",))
add("topk_blocks", TopK(40, 1), [normal((1, 500))], quick=("cpu",))
add("topk_many", TopK(490, 1), [normal((2, 1100))], targets=("cpu",))
add("topk_bytes", TopK(2, 1, False), [rng().integers(0, 9, (2, 7)).astype(np.uint8)])
add("topk_int64", TopK(5, 0), [rng().integers(-5, 5, (5,))])

for _rows, _length in itertools.product((1, 3, 17), (1, 2, 7, 33)):
    add(f"reduce_{_rows}x{_length}", Reduce("mean", (1,)), [normal((_rows, _length))], long=True)
    add(
        f"reduce_{_rows}x{_length}_across",
        Reduce("max", (0,)),
        [normal((_length, _rows))],
        long=True,
    )
    add(f"softmax_{_rows}x{_length}", Softmax((1,)), [normal((_rows, _length))], long=True)
    add(f"softmax_{_rows}x{_length}_across", Softmax((0,)), [normal((_length, _rows))], long=True)
    add(f"argmax_{_rows}x{_length}", ArgExtreme(True, 1), [normal((_rows, _length))], long=True)
    add(
        f"normalise_{_rows}x{_length}",
        Normalise((1,)),
        [normal((_rows, _length))],
        tolerance=1e-3,
        long=True,
    )

_BOXES = np.array([[[0, 0, 4, 4], [1, 0, 5, 4], [6, 6, 7, 9], [4, 4, 0, 1]]], np.float32)
_PLACES = np.array([[[0, 1, 3, 2], [3, 2, 1, 0]]], np.int64)
_SCORES = np.array([[[0.9, 0.8, 0.7, 0.1], [0.9, 0.9, np.nan, 0.2]]], np.float32)
add("suppress", Suppress(0.5, 0.15), [_BOXES, _SCORES, _PLACES], tolerance=0)

for _columns in (5, 37):
    add(f"distances_{_columns}", Distances(), [normal((11, 3)), normal((3, _columns), 1)])
