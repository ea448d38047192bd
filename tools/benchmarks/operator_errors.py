#!/usr/bin/env python3
"""Errors of operators that sum, in units in the last place (ulp) of what they sum, as a table.

    python tools/benchmarks/operator_errors.py [--device D]... [--rounds N] [--markdown F]

Each error is counted in ulp of the element's own terms: of the sum of their magnitudes where an operator
adds and subtracts, for what cancels there is lost to any order of additions; of the result itself where
nothing cancels. The reference is double precision. Numbers are normal ones in even rounds, and of any
magnitude from 2^-20 to 2^20 in odd ones, where the operator takes such. Functions of single elements have
a table of their own, tools/benchmarks/function_errors.py. Exit status: 0, 1 where an operator exceeds its
bound, 3 without a device.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

import numpy as np
import onnx
from about import About, machine, now, shown
from onnx import helper, numpy_helper

import clnn
from clnn.errors import ClnnError
from clnn.importers.onnx.importer import import_onnx
from clnn.runtime.device.device import discover, select
from clnn.types import Array
from clnn.verification.reference import reference_values

TINY = float(np.finfo(np.float32).tiny)
Scale = Callable[[Array, Array], Array]  # of the first input, and the result


@dataclass(frozen=True)
class Case:
    """An operator, its inputs' shapes (constants from the second on), and its largest error in ulp.

    terms: how many numbers an element is a sum of; so many ulp bound any order of additions. bound: the
    one that a test holds. scale: of what an ulp is taken; None: of the sum of the terms' magnitudes, as
    the operator gives for the magnitudes of its inputs. wide: whether it is measured with numbers of
    any magnitude, too.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    terms: int
    bound: float
    attrs: Mapping[str, Any] = field(default_factory=dict)
    scale: Scale | None = None
    wide: bool = True
    more: tuple[Array | None, ...] = ()
    options: clnn.Options = field(default_factory=lambda: clnn.Options(winograd=False))


def _result(x: Array, y: Array) -> Array:
    return np.abs(y)


def _one(x: Array, y: Array) -> Array:
    return np.ones_like(y)


def _largest(x: Array, y: Array) -> Array:
    return np.full_like(y, np.abs(x).max())


def _largest_result(x: Array, y: Array) -> Array:
    """Of a transform of tiles: what is small there is lost beside what is large."""
    return np.full_like(y, np.abs(y).max())


def _shifted(x: Array, y: Array) -> Array:
    """Of the logarithm of a sum: of what its largest term was moved by, too."""
    return np.abs(y) + np.abs(x).max(-1, keepdims=True)


def _centred(*axes: int) -> Scale:
    """Of a normalisation with weights below 4: both numbers that it subtracts, over the deviation."""

    def scale(x: Array, y: Array) -> Array:
        both = np.abs(x) + np.abs(x.mean(axes, keepdims=True))
        return np.asarray(4 * both / x.std(axes, keepdims=True) + 4)

    return scale


def _ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def _floats(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


_IMAGE, _ROWS = (2, 32, 15, 17), (3, 7, 1000)
_FILTERS = ((1, 64, 28, 28), (64, 64, 3, 3), (64,))
_PAD = {"pads": [1, 1, 1, 1]}
_WINOGRAD = clnn.Options(winograd=True)
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CASES: dict[str, Case] = {
    "Conv 1x1": Case("Conv", (_IMAGE, (24, 32, 1, 1), (24,)), 33, 32),
    "Conv 3x3": Case("Conv", (_IMAGE, (24, 32, 3, 3), (24,)), 289, 32, _PAD),
    "Conv 3x3, Winograd": Case("Conv", _FILTERS, 577, 64, _PAD, None, False, options=_WINOGRAD),
    "Conv 3x3, Winograd, numbers of any size": Case(
        "Conv", _FILTERS, 577, 256, _PAD, _largest_result, options=_WINOGRAD
    ),
    "Conv 5x5, stride 2": Case("Conv", (_IMAGE, (24, 32, 5, 5)), 800, 32, {"strides": [2, 2]}),
    "Conv 3x3, grouped": Case("Conv", (_IMAGE, (32, 8, 3, 3)), 72, 32, {**_PAD, "group": 4}),
    "Conv 3x3, depthwise": Case("Conv", (_IMAGE, (32, 1, 3, 3)), 9, 9, {**_PAD, "group": 32}),
    "ConvTranspose 3x3": Case(
        "ConvTranspose", (_IMAGE, (32, 24, 3, 3)), 288, 32, {"strides": [2, 2]}
    ),
    "MatMul": Case("MatMul", ((64, 1024), (1024, 48)), 1024, 32),
    "Gemm": Case("Gemm", ((64, 300), (48, 300), (48,)), 301, 32, {"transB": 1}),
    "ReduceSum of rows": Case("ReduceSum", (_ROWS,), 1000, 8, more=(_ints(2),)),
    "ReduceSum across": Case("ReduceSum", (_ROWS,), 21, 8, more=(_ints(0, 1),)),
    "ReduceMean": Case("ReduceMean", (_ROWS,), 1000, 8, more=(_ints(2),)),
    "ReduceL1": Case("ReduceL1", (_ROWS,), 1000, 8, more=(_ints(2),)),
    "ReduceL2": Case("ReduceL2", (_ROWS,), 1000, 8, scale=_result, more=(_ints(2),)),
    "ReduceSumSquare": Case("ReduceSumSquare", (_ROWS,), 1000, 8, more=(_ints(2),)),
    "ReduceLogSumExp": Case("ReduceLogSumExp", (_ROWS,), 1000, 8, {}, _shifted, False, (_ints(2),)),
    "CumSum": Case("CumSum", (_ROWS,), 1000, 32, more=(_ints(2)[0],)),
    "Softmax": Case("Softmax", (_ROWS,), 1000, 16, {}, _result, False),
    "LogSoftmax": Case("LogSoftmax", (_ROWS,), 1000, 8, {}, _shifted, False),
    "LayerNormalization": Case(
        "LayerNormalization", (_ROWS, (1000,), (1000,)), 1000, 4, {}, _centred(2), False
    ),
    "RMSNormalization": Case("RMSNormalization", (_ROWS, (1000,)), 1000, 8, {}, _result),
    "InstanceNormalization": Case(
        "InstanceNormalization", (_IMAGE, (32,), (32,)), 255, 4, {}, _centred(2, 3), False
    ),
    "BatchNormalization": Case(
        "BatchNormalization", (_IMAGE, (32,), (32,), (32,)), 2, 4, more=(np.ones(32, np.float32),)
    ),
    "LpNormalization": Case("LpNormalization", (_ROWS,), 1000, 8, {}, _result),
    "LRN": Case("LRN", (_IMAGE,), 5, 8, {"size": 5, "alpha": 0.5}, _result),
    "MaxPool": Case("MaxPool", (_IMAGE,), 9, 0, {"kernel_shape": [3, 3]}),
    "AveragePool": Case("AveragePool", (_IMAGE,), 9, 8, {"kernel_shape": [3, 3], **_PAD}),
    "GlobalAveragePool": Case("GlobalAveragePool", (_IMAGE,), 255, 8),
    "LpPool": Case("LpPool", (_IMAGE,), 9, 8, {"kernel_shape": [3, 3]}, _result),
    "Resize, linear": Case(
        "Resize", (_IMAGE,), 4, 8, {"mode": "linear"}, more=(None, _floats(1, 1, 1.6, 2.3))
    ),
    "Resize, cubic": Case(
        "Resize", (_IMAGE,), 16, 8, {"mode": "cubic"}, _largest, more=(None, _floats(1, 1, 2, 2))
    ),
    **{
        op: Case(
            op,
            ((12, 3, 20), (1, 24 * gates, 20), (1, 24 * gates, 24)),
            45,
            16,
            {"hidden_size": 24},
            _one,
            False,
        )
        for op, gates in _GATES.items()
    },
    "Attention": Case(
        "Attention", ((2, 4, 19, 32), (2, 4, 40, 32), (2, 4, 40, 32)), 40, 8, {}, _largest, False
    ),
}


def numbers(shape: Sequence[int], wide: bool, chance: np.random.Generator) -> Array:
    """Return normal numbers; with `wide` each times a power of two."""
    powers = 2.0 ** chance.integers(-20, 21, tuple(shape)) if wide else 1.0
    return np.asarray(chance.standard_normal(tuple(shape)) * powers, np.float32)


def network(names: Sequence[str], chance: np.random.Generator) -> onnx.ModelProto:
    """Return a model of one node for each case, which has its first input to itself."""
    nodes, inputs, outputs, consts = [], [], [], []
    for number, name in enumerate(names):
        case, reads = CASES[name], [f"x{number}"]
        fixed = [numbers(s, False, chance) / max(1, s[-1]) ** 0.5 for s in case.shapes[1:]]
        if case.scale is not None:
            fixed = [np.clip(a, -4, 4) for a in fixed]
        for array in [*(a.astype(np.float32) for a in fixed), *case.more]:
            reads.append("" if array is None else f"c{len(consts)}")
            consts += [] if array is None else [numpy_helper.from_array(array, reads[-1])]
        nodes.append(helper.make_node(case.op, reads, [name], **case.attrs))
        inputs.append(helper.make_tensor_value_info(reads[0], 1, case.shapes[0]))
        outputs.append(helper.make_tensor_value_info(name, 1, None))
    graph = helper.make_graph(nodes, "operators", inputs, outputs, consts)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def errors(got: Array, want: Array, scale: Array) -> Array:
    """Return each error in ulp of `scale`, which is that of the least normal number at least."""
    size = np.maximum(np.abs(scale), TINY).astype(np.float32)
    found = np.abs(got.astype(np.float64) - want) / np.spacing(size)
    return np.where(np.isnan(found), np.inf, found)


def _feeds(names: Sequence[str], odd: bool, chance: np.random.Generator) -> dict[str, Array]:
    return {
        f"x{number}": numbers(CASES[name].shapes[0], odd and CASES[name].wide, chance)
        for number, name in enumerate(names)
    }


def measure(device: str, names: Sequence[str], rounds: int) -> dict[str, float]:
    """Return case -> its largest error on a device, in ulp, of so many rounds of numbers."""
    worst = dict.fromkeys(names, 0.0)
    for options in dict.fromkeys(CASES[name].options for name in names):
        some = [name for name in names if CASES[name].options == options]
        chance = np.random.default_rng(3)
        model = network(some, chance)
        graph = import_onnx(model)
        consts = {n: np.abs(a) if a.dtype.kind == "f" else a for n, a in graph.consts.items()}
        magnitudes = replace(graph, consts=consts)
        with clnn.compile_model(model, device, options) as session:
            for number in range(rounds):
                feeds = _feeds(some, bool(number % 2), chance)
                got, want = session(feeds), reference_values(graph, feeds)
                size = reference_values(magnitudes, {n: np.abs(a) for n, a in feeds.items()})
                for k, name in enumerate(some):
                    own, x = CASES[name].scale, feeds[f"x{k}"].astype(np.float64)
                    y = graph.outputs[name]
                    scale = size[y] if own is None else own(x, want[y])
                    found = errors(got[name], want[y], np.broadcast_to(scale, want[y].shape))
                    worst[name] = max(worst[name], float(found.max()))
    return worst


def over(found: Mapping[str, float]) -> list[str]:
    """Return the operators whose error is beyond their bound, as text."""
    return [
        f"{name}: {error:.3g} ulp, bound {CASES[name].bound:g}"
        for name, error in found.items()
        if not error <= CASES[name].bound
    ]


def table(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the lines of a Markdown table: a row for each operator, a column for each device."""
    head = ["operator", "terms", "ulp of", "bound", *found]
    lines = [
        f"| {' | '.join(head)} |",
        f"| --- | ---: | --- | {'---: | ' * (1 + len(found))}".rstrip(),
    ]
    of: dict[Scale | None, str] = {
        None: "the terms",
        _result: "the result",
        _one: "1",
        _largest: "the largest input",
    }
    of[_largest_result] = "the largest result"
    of[_shifted] = "result and largest input"
    for name in next(iter(found.values())):
        case = CASES[name]
        cells = [name, str(case.terms), of.get(case.scale, "both sides of x - mean")]
        cells += [f"{case.bound:g}", *(f"{errors[name]:.2f}" for errors in found.values())]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    args = _arguments()
    devices = args.device or sorted({i.platform for i in discover() if i.usable})
    found, about = {}, []
    try:
        for device in devices:
            info = select(device)
            about += About(info.title, info.driver_version).lines()
            found[info.platform] = measure(device, list(CASES), args.rounds)
    except ClnnError as err:
        print(err, file=sys.stderr)
        return 3
    if not found:
        print("no usable OpenCL device", file=sys.stderr)
        return 3
    command = shown(["python", str(Path(__file__).resolve()), *sys.argv[1:]])
    about += About(date=now(), commands=(command,), machine=machine()).lines()
    text = "\n".join([*about, "", *table(found)])
    print(text)
    if args.markdown:
        args.markdown.write_text(text + "\n", "utf-8")
    wrong = [f"{device}: {text}" for device, errors in found.items() for text in over(errors)]
    print("\n".join(wrong), file=sys.stderr)
    return int(bool(wrong))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", action="append", help="may be given more than once")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--markdown", type=Path, help="file for the table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
