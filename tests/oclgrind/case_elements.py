"""Cases of ops that work element by element, or only move elements."""

from __future__ import annotations

import itertools

import numpy as np
from harness import normal, rng
from table import NHWC, add, steps_of

from clnn.ops.elementwise.bitcast import BitCast
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import RULES, Logic
from clnn.ops.movement.gather import Gather, GatherElements, GatherND
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.part import Part
from clnn.ops.movement.scatter import ScatterElements, ScatterND
from clnn.ops.movement.views import Concat, Copy, Expand, Reshape, Slice, Transpose
from clnn.ops.shared.functions import PostOp
from clnn.types import I32, dtype_of

CPU = ("cpu",)  # the short form takes functions on one target: their text depends on vectors only
CHAINS = {
    "activations": (
        ("leaky_relu", 0.1),
        ("elu", 0.5),
        ("celu", 0.7),
        ("selu", 1.6, 1.05),
        "hard_swish",
    ),
    "sigmoids": ("sigmoid", ("hard_sigmoid", 0.2, 0.5), "softplus", "softsign", "mish"),
    "gelus": ("gelu", "gelu_tanh", "tanh", "erf"),
    "exponentials": ("exp", "log", "relu", "abs", "sqrt", "reciprocal"),
    "roundings": (
        ("mul", 3.7),
        "floor",
        ("add", 0.3),
        "ceil",
        ("sub", 0.4),
        "round",
        "sign",
        "neg",
    ),
    "waves": (
        "sin",
        "cos",
        ("thresholded_relu", 0.1),
        ("clip", 0.2, 0.9),
        ("at_least", 0.3),
        ("at_most", 0.8),
    ),
    "tangents": ("tan",),
    "numbers": (
        ("div", 1.5),
        ("pow", 2.0),
        ("min", 3.0),
        ("max", -2.0),
        ("prelu", 0.25),
        ("replace", np.inf),
    ),
}
for _name, _chain in CHAINS.items():
    add(f"steps_{_name}", Eltwise(steps_of(_chain)), [normal((2, 5))], tolerance=1e-4, quick=CPU)

add("steps_gelu_wide", Eltwise(steps_of(("gelu",))), [normal((2, 40))], tolerance=1e-4, targets=CPU)

SMALL = rng().integers(-9, 9, (3, 5)).astype(np.int32)
POSITIVE = rng(1).integers(1, 5, (3, 5)).astype(np.int32)
INTEGERS = tuple(PostOp(fn, operand=1) for fn in ("add", "mul", "sub", "min", "max", "div"))
add(
    "steps_int32",
    Eltwise((*INTEGERS, *steps_of(["abs", "neg", "sign", "relu"]))),
    [SMALL, POSITIVE],
)
add(
    "steps_int64_pow",
    Eltwise((PostOp("pow", operand=1),)),
    [rng().integers(-4, 5, (7,)), rng(1).integers(0, 4, (7,))],
    modes=("unoptimised",),
)  # Oclgrind lacks an intrinsic of the other
add(
    "eltwise_broadcast",
    Eltwise((PostOp("add", operand=1), PostOp("mul", operand=2, swapped=True))),
    [normal((2, 3, 4, 5)), normal((3, 1, 1), 1), normal((5,), 2)],
)
add(
    "eltwise_border",
    Eltwise((PostOp("sub", operand=1),)),
    [normal((1, 4, 3, 5)), normal((1, 4, 3, 5), 1)],
    border=2,
)
add(
    "eltwise_double",
    Eltwise((PostOp("add", operand=1),)),
    [normal((3, 3)).astype(np.float64), normal((3,)).astype(np.float64)],
)
add("eltwise_prime", Eltwise((PostOp("add", operand=1),)), [normal((3, 7)), normal((3, 1), 1)])

# Moves

add(
    "copy_orders", Copy(), [normal((2, 3, 4, 5))], orders={"i0": NHWC, "o0": (3, 1, 0, 2)}, border=1
)
add("copy_to_channels", Copy(), [normal((1, 9, 2, 17))], orders={"i0": (0, 1, 2, 3), "o0": NHWC})
add("copy_from_channels", Copy(), [normal((1, 17, 3, 9))], orders={"i0": NHWC, "o0": (0, 1, 2, 3)})
for _dtype in (np.uint8, np.int64, bool, np.float64, np.float16):
    add(
        f"copy_{np.dtype(_dtype).name}",
        Copy(),
        [rng().integers(0, 2, (3, 7)).astype(_dtype)],
        orders={"o0": (1, 0)},
        long=_dtype is not np.uint8,
    )
add("transpose", Transpose((2, 0, 1)), [normal((3, 4, 5))], orders={"o0": (0, 1, 2)})
add("reshape_flat", Reshape((4, 9)), [normal((6, 6))], orders={"i0": (1, 0), "o0": (1, 0)})
add("part", Part(1, 2), [normal((4, 3, 5, 16))], border=1, orders={"o0": (0, 2, 3, 1)})
add("slice_backwards", Slice((0, 4), (3, 3), (1, -2)), [normal((3, 5))], orders={"o0": (1, 0)})
add("expand", Expand((3, 4, 5)), [normal((4, 1))])
add("concat", Concat(1), [normal((2, 3, 4)), normal((2, 5, 4), 1)], orders={"o0": (1, 2, 0)})
add("pad_constant", Pad((0, 1, 2, -1), (0, -1, 0, 3), "constant", 1.5), [normal((1, 3, 4, 5))])
for _mode in ("reflect", "edge", "wrap"):
    add(f"pad_{_mode}", Pad((1, 2), (2, 1), _mode), [normal((3, 4))])
add(
    "pad_columns",
    Pad((1, 0), (2, 0), "constant"),
    [normal((3, 4))],
    orders={"i0": (1, 0), "o0": (0, 1)},
)
add("pad_int", Pad((1,), (2,), "constant", 7), [np.arange(5)])

# Gathers: constant indices, indices that the kernel checks, indices from the end

DATA, PICKS = normal((4, 3, 5)), np.array([[3, -1], [0, 2]])
add("gather_rows", Gather(0), [DATA, PICKS], consts=(1,))
add("gather_middle", Gather(1), [DATA, np.array([2, -3, 1], np.int32)])
add("gather_inner", Gather(2), [DATA, np.array([4, 0, -2])])
add("gather_scattered", Gather(0), [DATA, PICKS], orders={"o0": (3, 2, 1, 0)})
add("gather_columns", Gather(0), [DATA, PICKS], orders={"i0": (2, 1, 0), "o0": (0, 1, 2, 3)})
add("gather_elements", GatherElements(1), [DATA, rng().integers(-3, 3, (3, 6, 5))])
add("gather_tuples", GatherND(0), [DATA, rng().integers(0, 3, (2, 3, 2))])
add("gather_tuples_batch", GatherND(1), [DATA, rng().integers(0, 3, (4, 2, 1))])
LINES, TUPLES = rng().integers(-3, 3, (4, 2, 5)), rng().integers(-3, 3, (2, 5, 2))
add("scatter_elements", ScatterElements(1, "add"), [DATA, LINES, normal(LINES.shape)])
add(
    "scatter_bool",
    ScatterElements(1, "mul"),
    [DATA > 0, LINES, normal(LINES.shape) > 0],
)
add(
    "scatter_bytes",
    ScatterElements(0, "add"),
    [rng().integers(-9, 9, (5,)).astype(np.int8), np.array([1, -1]), np.array([3, 4], np.int8)],
)
add("scatter_tuples", ScatterND(), [DATA, TUPLES, normal((2, 5, *DATA.shape[2:]))])
add(
    "scatter_tuples_max",
    ScatterND("max"),
    [DATA, TUPLES[0], normal((5, *DATA.shape[2:]))],
    consts=(1,),
)
add("gather_bytes", Gather(0), [rng().integers(0, 200, (5, 16)).astype(np.uint8), np.array([4, 1])])

# Logic and casts

MIXED = np.array([0.0, 1.5, -2.0, np.nan, np.inf, -np.inf, 3.0], np.float32)
OTHER = np.array([0.0, -1.5, -2.0, 1.0, np.inf, 4.0, np.nan], np.float32)
SAMPLES = {
    "f": (MIXED, OTHER),
    "i": (SMALL, POSITIVE),
    "b": (SMALL > 0, POSITIVE > 2),
    "u": (POSITIVE.astype(np.uint8), POSITIVE[::-1].astype(np.uint8)),
}
ONE_OPERAND = ("is_nan", "is_inf", "is_inf_positive", "is_inf_negative", "not", "complement")
for _name, _rule in RULES.items():
    _kind = "f" if "f" in _rule.kinds else "b" if "b" in _rule.kinds else _rule.kinds[0]
    if _name in ("where", "pow_real"):
        continue
    add(
        f"logic_{_name}",
        Logic(_name),
        list(SAMPLES[_kind][: 1 if _name in ONE_OPERAND else 2]),
        quick=("cpu", "gpu") if _name in ("equal", "xor") else CPU,
    )
add("bitcast", BitCast(I32), [normal((3, 9))])
add("logic_where", Logic("where"), [normal((3, 1)) > 0, normal((3, 9), 1), normal((9,), 2)])
add(
    "logic_pow_real", Logic("pow_real"), [POSITIVE, np.array([2.0, 0.5, 1.0, 3.0, 0.0], np.float32)]
)
for _name in ("equal", "where"):
    _scalars = [*[normal((1,)) > 0][: _name == "where"], normal((1,), 1), normal((1,), 2)]
    add(f"logic_{_name}_one", Logic(_name), _scalars, quick=CPU)
BIG = np.array([0.0, 1.5, 3e9, 1.2e19, -7.0], np.float32)
add("cast_to_uint64", Cast(dtype_of(np.uint64)), [BIG], quick=CPU)
add("cast_one_to_uint64", Cast(dtype_of(np.uint64)), [BIG[:1]], quick=CPU)
add("cast_one_to_int32", Cast(dtype_of(np.int32)), [BIG[1:2]], quick=CPU)
TYPES = (np.float32, np.int32, np.uint8, np.int64, bool, np.float64, np.float16, np.int8, np.uint32)
for _from, _to in itertools.permutations(TYPES, 2):
    _short = {_from, _to} in (
        {np.float32, np.uint8},
        {np.int64, np.float32},
        {np.float16, np.float32},
        {np.float32, bool},
    )
    _values = np.array([0, 1, 2, 7, 100, 3, 0], np.float32).astype(_from)
    add(
        f"cast_{np.dtype(_from).name}_{np.dtype(_to).name}",
        Cast(dtype_of(_to)),
        [_values],
        long=not _short,
        quick=("cpu", "gpu") if _to is np.float16 else CPU,
    )
