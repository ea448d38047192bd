"""Small cases of every kernel variant, for Oclgrind: one or two work-groups each.

Import simulator.install() first: the device that `check_op` runs on is set up there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from harness import check_op, normal, rng
from simulator import DEVICE

from clnn.ops._base import OpSpec
from clnn.ops._functions import Step
from clnn.ops._taps import Sampling
from clnn.ops._window import Window
from clnn.ops.conv2d import Conv2d
from clnn.ops.eltwise import Eltwise
from clnn.ops.gemm import Gemm
from clnn.ops.pad import Pad
from clnn.ops.reduce import Reduce
from clnn.ops.resize import Resize
from clnn.ops.views import Concat, Copy, Reshape, Slice, Transpose

BOTH = ("cpu", "gpu")


@dataclass(frozen=True)
class Case:
    """A named check; targets: what it is planned for; long: whether it is of the long form."""

    name: str
    run: Callable[[], Any]
    targets: tuple[str, ...] = BOTH
    long: bool = False


CASES: list[Case] = []
ran_kinds: set[str] = set()


def choose(names: Sequence[str], long: bool) -> list[Case]:
    """Return the cases of `names`, or all of the form that is asked for. Raises KeyError."""
    known = {case.name: case for case in CASES}
    assert len(known) == len(CASES), "two cases have one name"
    if names:
        return [known[name] for name in names]
    return [case for case in CASES if long or not case.long]


def add(
    name: str,
    spec: OpSpec,
    inputs: Sequence[np.ndarray | None],
    *,
    targets: tuple[str, ...] = BOTH,
    long: bool = False,
    **how: Any,
) -> None:
    """Add a case that runs every variant of `spec` on `inputs`; how: more arguments of check_op."""

    def run() -> None:
        ran_kinds.add(type(spec).__name__)
        check_op(DEVICE, spec, list(inputs), **how)

    CASES.append(Case(name, run, targets, long))


# Convolution


def window(
    kernel: Sequence[int], strides: Sequence[int] = (1, 1), dilations: Sequence[int] = (1, 1),
    before: Sequence[int] = (0, 0), after: Sequence[int] = (0, 0),
) -> Window:  # fmt: skip
    """Return a window; all arguments are per axis."""
    return Window(*(tuple(v) for v in (kernel, strides, dilations, before, after)))


SAME3 = window((3, 3), before=(1, 1), after=(1, 1))


def convolve(
    name: str, shape: Sequence[int], oc: int, win: Window, *, group: int = 1, bias: bool = True,
    steps: tuple[Step, ...] = (), extra: Sequence[int] = (), dynamic: bool = False, **how: Any,
) -> None:  # fmt: skip
    """Add a convolution; extra: shape of the operand of `steps`; dynamic: weights are no constant."""
    inputs: list[np.ndarray | None] = [normal(shape), normal((oc, shape[1] // group, *win.kernel), 1)]
    inputs.append(normal((oc,), 2) if bias else None)
    inputs += [normal(extra, 3)] if extra else []
    consts = () if dynamic else (1, 2)
    add(name, Conv2d(win, group, steps), inputs, consts=consts, **how)


RESIDUAL = (Step("add", operand=3), Step("relu"))
convolve("conv_border", (2, 5, 5, 7), 9, SAME3, border=1)
convolve("conv_row", (1, 3, 2, 6), 8, window((1, 1)), steps=RESIDUAL, extra=(1, 8, 2, 6))
convolve("conv_checked", (1, 5, 4, 5), 7, SAME3, orders={"i0": (0, 2, 3, 1)}, bias=False)
convolve("conv_blocks", (1, 3, 2, 3), 35, window((1, 1)), steps=RESIDUAL, extra=(1, 35, 1, 1))
convolve("conv_staged", (1, 3, 3, 5), 19, window((1, 1)), steps=(Step("sigmoid"), Step("mul", operand=3)), extra=(1, 19, 3, 5))  # fmt: skip
convolve("conv_staged_row", (1, 3, 2, 4), 4, window((1, 1)), steps=(Step("exp"),))
convolve("conv_groups", (1, 6, 6, 7), 8, window((3, 2), (2, 1), (1, 2), (1, 0), (0, 2)), group=2)
convolve("conv_lines", (1, 4, 9), 6, Window((3,), (2,), (1,), (1,), (1,)), border=1)
convolve("conv_dynamic", (1, 3, 4, 5), 4, SAME3, dynamic=True)
convolve("conv_any_order", (1, 3, 4, 5), 4, SAME3, dynamic=True, bias=False, orders={"i0": (3, 1, 0, 2), "o0": (0, 1, 2, 3)})  # fmt: skip
convolve("conv_heavy_weights", (1, 256, 1, 1), 257, window((1, 1)), only="direct", targets=("cpu",))
convolve("depthwise_registers", (2, 16, 5, 7), 16, SAME3, group=16, only="depthwise")
convolve("depthwise_memory", (1, 3, 6, 7), 3, window((5, 3), (1, 2), (1, 1), (2, 1), (2, 1)), group=3, bias=False, border=2, only="depthwise")  # fmt: skip
convolve("depthwise_steps", (1, 8, 4, 9), 8, SAME3, group=8, steps=RESIDUAL, extra=(1, 8, 4, 9), only="depthwise")  # fmt: skip
convolve("depthwise_dilated", (1, 4, 7, 7), 4, window((3, 3), (2, 2), (2, 2), (2, 2), (2, 2)), group=4, only="depthwise", long=True)  # fmt: skip

for _kernel, _stride, _pad, _oc in itertools.product((1, 2, 3), (1, 2), (0, 1), (1, 9, 17)):
    convolve(f"conv_sweep_k{_kernel}_s{_stride}_p{_pad}_oc{_oc}", (1, 3, 5, 6), _oc,
             window((_kernel,) * 2, (_stride,) * 2, (1, 1), (_pad,) * 2, (_pad,) * 2), long=True)  # fmt: skip

# Elementwise steps, copies, borders

FLOAT_CHAINS = {
    "activations": ("relu", ("leaky_relu", 0.1), ("elu", 0.5), ("celu", 0.7), ("selu", 1.6, 1.05), "hard_swish"),
    "sigmoids": ("sigmoid", ("hard_sigmoid", 0.2, 0.5), "softplus", "softsign", "mish"),
    "gelus": ("gelu", "gelu_tanh", "tanh", "erf"),
    "exponentials": ("exp", "log", "abs", "sqrt", "reciprocal"),
    "roundings": (("mul", 3.7), "floor", ("add", 0.3), "ceil", ("sub", 0.4), "round", "sign", "neg"),
    "waves": ("sin", "cos", ("thresholded_relu", 0.1), ("clip", 0.2, 0.9), ("at_least", 0.3), ("at_most", 0.8)),
    "numbers": (("div", 1.5), ("pow", 2.0), ("min", 3.0), ("max", -2.0), ("prelu", 0.25)),
}  # fmt: skip


def steps_of(chain: Iterable[Any]) -> tuple[Step, ...]:
    """Return steps from names, or tuples of a name and parameters."""
    parts = [(part,) if isinstance(part, str) else part for part in chain]
    return tuple(Step(part[0], tuple(part[1:])) for part in parts)


for _name, _chain in FLOAT_CHAINS.items():
    add(f"steps_{_name}", Eltwise(steps_of(_chain)), [normal((2, 5))], tolerance=1e-4)

INTEGERS = tuple(Step(fn, operand=1) for fn in ("add", "mul", "sub", "min", "max", "div"))
add("steps_int32", Eltwise((*INTEGERS, *steps_of(["abs", "neg", "sign", "relu"]))),
    [rng().integers(-9, 9, (3, 5)).astype(np.int32), rng(1).integers(1, 5, (3, 5)).astype(np.int32)])  # fmt: skip
add("steps_int64_pow", Eltwise((Step("pow", operand=1),)),
    [rng().integers(-4, 5, (7,)), rng(1).integers(0, 4, (7,))])  # fmt: skip
add("eltwise_broadcast", Eltwise((Step("add", operand=1), Step("mul", operand=2, swapped=True))),
    [normal((2, 3, 4, 5)), normal((3, 1, 1), 1), normal((5,), 2)])  # fmt: skip
add("eltwise_border", Eltwise((Step("sub", operand=1),)), [normal((1, 4, 3, 5)), normal((1, 4, 3, 5), 1)], border=2)  # fmt: skip
add("eltwise_double", Eltwise((Step("add", operand=1),)), [normal((3, 3)).astype(np.float64), normal((3,)).astype(np.float64)])  # fmt: skip
add("copy_orders", Copy(), [normal((2, 3, 4, 5))], orders={"i0": (0, 2, 3, 1), "o0": (3, 1, 0, 2)}, border=1)
for _dtype in (np.uint8, np.int64, bool, np.float64, np.float16):
    add(f"copy_{np.dtype(_dtype).name}", Copy(), [rng().integers(0, 2, (3, 7)).astype(_dtype)],
        orders={"o0": (1, 0)}, long=_dtype is not np.uint8)  # fmt: skip
add("transpose", Transpose((2, 0, 1)), [normal((3, 4, 5))], orders={"o0": (0, 1, 2)})
add("reshape_flat", Reshape((4, 9)), [normal((6, 6))], orders={"i0": (1, 0), "o0": (1, 0)})
add("slice_backwards", Slice((0, 4), (3, 3), (1, -2)), [normal((3, 5))], orders={"o0": (1, 0)})
add("concat", Concat(1), [normal((2, 3, 4)), normal((2, 5, 4), 1)], orders={"o0": (1, 2, 0)})
add("pad_constant", Pad((0, 1, 2, -1), (0, -1, 0, 3), "constant", 1.5), [normal((1, 3, 4, 5))])
for _mode in ("reflect", "edge", "wrap"):
    add(f"pad_{_mode}", Pad((1, 2), (2, 1), _mode), [normal((3, 4))], border=0)
add("pad_int", Pad((1,), (2,), "constant", 7), [np.arange(5)])

# Matrix products


def multiply(
    name: str, a: Sequence[int], b: Sequence[int], *, spec: Gemm | None = None, c: Sequence[int] = (),
    fixed: bool = False, **how: Any,
) -> None:  # fmt: skip
    """Add a matrix product; c: shape of the addend; fixed: b is a constant."""
    inputs: list[np.ndarray | None] = [normal(a), normal(b, 1), normal(c, 2) if c else None]
    add(name, spec or Gemm(), inputs, consts=(1,) if fixed else (), **how)


multiply("gemm_fixed", (5, 9), (9, 21), fixed=True, c=(21,))
multiply("gemm_moving", (5, 9), (9, 20))
multiply("gemm_row", (1, 40), (40, 37), c=(1, 37), spec=Gemm(0.5, 2.0))
multiply("gemm_dot", (3, 35), (6, 35), spec=Gemm(trans_b=True), c=(3, 1))
multiply("gemm_turned", (9, 5), (9, 18), spec=Gemm(trans_a=True, steps=(Step("tanh"),)))
multiply("gemm_columns", (4, 6), (20, 6), spec=Gemm(trans_b=True), orders={"o0": (1, 0)}, fixed=True)
multiply("gemm_batch", (2, 3, 4, 6), (3, 6, 5))
multiply("gemm_vector", (7, 6), (6,))
multiply("gemm_parts", (2, 160), (160, 9), targets=("gpu",))
multiply("gemm_parts_steps", (3, 130), (130, 40), spec=Gemm(steps=(Step("relu"),)), fixed=True, targets=("gpu",))  # fmt: skip
add("gemm_int", Gemm(), [np.arange(12, dtype=np.int32).reshape(3, 4), np.arange(8, dtype=np.int32).reshape(4, 2), None])  # fmt: skip
for _m, _k, _n in itertools.product((1, 3, 8), (1, 7, 33), (1, 4, 17)):
    multiply(f"gemm_sweep_{_m}x{_k}x{_n}", (_m, _k), (_k, _n), long=True)
    multiply(f"gemm_sweep_fixed_{_m}x{_k}x{_n}", (_m, _k), (_k, _n), fixed=True, long=True)

# Reductions

IMAGE = (0, 2, 3, 1)
add("reduce_rows", Reduce("mean", (2,)), [normal((2, 3, 19))])
add("reduce_channels_last", Reduce("mean", (2, 3)), [normal((2, 9, 3, 5))], orders={"i0": IMAGE})
add("reduce_channels", Reduce("max", (1,), False), [normal((1, 9, 3, 5))], orders={"i0": IMAGE})
add("reduce_steps", Reduce("l2", (1,), steps=(Step("mul", operand=1), Step("relu"))), [normal((4, 21)), normal((4, 1), 1)])  # fmt: skip
add("reduce_across_steps", Reduce("sum", (0,), steps=(Step("mul", operand=1),)), [normal((5, 21)), normal((1, 21), 1)])  # fmt: skip
add("reduce_log_sum_exp", Reduce("log_sum_exp", (1,)), [normal((3, 19))])
add("reduce_log_sum_exp_across", Reduce("log_sum_exp", (0,)), [normal((3, 19))])
add("reduce_lp", Reduce("lp", (1,), power=3.0), [normal((3, 10))])
add("reduce_lp_odd", Reduce("lp", (1,), power=2.5), [normal((3, 10))])
add("reduce_log_sum", Reduce("log_sum", (1,)), [np.abs(normal((3, 10))) + 1])
add("reduce_int", Reduce("l1", (1,)), [rng().integers(-9, 9, (3, 10)).astype(np.int32)])
add("reduce_uint8", Reduce("min", (0,)), [rng().integers(0, 200, (5, 9)).astype(np.uint8)])
add("reduce_prod", Reduce("prod", (1,)), [normal((2, 9))])
add("reduce_parts", Reduce("sum", (0,)), [normal((200, 9))], targets=("gpu",))
add("reduce_long_rows", Reduce("sum", (1,)), [normal((1, 4500))], only="along", targets=("cpu",))

# Sampling

LINEAR = Sampling("linear")
add("resize_linear", Resize((1, 3, 5, 9), (1, 1, 1.67, 1.8), LINEAR), [normal((1, 3, 3, 5))])
add("resize_nearest", Resize((1, 2, 4, 8), (1, 1, 1.4, 1.6)), [normal((1, 2, 3, 5))])
add("resize_cubic", Resize((1, 2, 4, 8), (1, 1, 1.34, 1.6), Sampling("cubic")), [normal((1, 2, 3, 5))])
add("resize_bytes", Resize((1, 3, 5, 9), (1, 1, 1.67, 1.8), LINEAR), [rng().integers(0, 255, (1, 3, 3, 5)).astype(np.uint8)])  # fmt: skip
add("resize_repeat", Resize((1, 5, 6, 10), (1, 1, 2, 2)), [normal((1, 5, 3, 5))])
