#!/usr/bin/env python3
"""Errors of elementwise functions over all of float32, in units in the last place (ulp), as a table.

    python tools/benchmarks/function_errors.py [--device D]... [--samples N | --all] [--only f,g]
                                               [--markdown F]

Every function runs in the kernels that networks use, once by vectors and once by single elements, on
numbers of which neighbours differ as much as they can: what one element does to others shows. The
reference is double precision. --all: every float32 number; else --samples of them besides those near
the limits of functions. Exit status: 0, 1 where a function exceeds its bound, 3 without a device.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

import numpy as np
from about import About, machine, now, shown

from clnn.errors import ClnnError
from clnn.graph.ir import Graph, Node, check
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import FUNCTIONS, RATIONALS, PostOp
from clnn.options import Options
from clnn.runtime.device.device import discover, select
from clnn.runtime.run.session import Session
from clnn.types import TensorType

CHUNK = 2**18  # numbers at once: whole vectors; one less of them are single elements
SPREAD = (
    2654435769  # odd: multiples of it, modulo 2**32, are every number once, neighbours far apart
)
TINY = np.finfo(np.float32).tiny
LEAST = 1e-35
Exact = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A function: its parameters, its reference in double precision, and its largest error in ulp.

    cancels: share of |x| that does not count as an error, where a sum of the definition cancels.
    least: results below this may be zero, where the definition divides by what is infinite there.
    """

    exact: Exact
    bound: float
    params: tuple[float, ...] = ()
    cancels: float = 0.0
    least: float = 0.0


def _erf(function: Callable[[float], float]) -> Exact:
    return np.vectorize(function, otypes=[np.float64])


_erfc = _erf(math.erfc)
CASES: dict[str, Case] = {
    "sin": Case(np.sin, 2),
    "cos": Case(np.cos, 2),
    "tan": Case(np.tan, 4),
    "asin": Case(np.arcsin, 4),
    "acos": Case(np.arccos, 4),
    "atan": Case(np.arctan, 5),
    "sinh": Case(np.sinh, 4),
    "cosh": Case(np.cosh, 4),
    "tanh": Case(np.tanh, 6),
    "asinh": Case(np.arcsinh, 4),
    "acosh": Case(np.arccosh, 4),
    "atanh": Case(np.arctanh, 5),
    "exp": Case(np.exp, 3),
    "log": Case(np.log, 3),
    "sqrt": Case(np.sqrt, 3),
    "reciprocal": Case(lambda x: 1 / x, 2.5),
    "square": Case(np.square, 0.5),
    "erf": Case(_erf(math.erf), 16),
    "floor": Case(np.floor, 0),
    "ceil": Case(np.ceil, 0),
    "round": Case(np.rint, 0),
    "abs": Case(np.abs, 0),
    "neg": Case(np.negative, 0),
    "sign": Case(np.sign, 0),
    "relu": Case(lambda x: np.where(x < 0, 0, x), 0),
    "leaky_relu": Case(lambda x, a: np.where(x < 0, a * x, x), 0.5, (0.1,)),
    "elu": Case(lambda x, a: np.where(x < 0, a * np.expm1(x), x), 5, (0.7,)),
    "celu": Case(lambda x, a: np.where(x < 0, a * np.expm1(x / a), x), 5, (1.3,)),
    "selu": Case(lambda x, a, g: g * np.where(x < 0, a * np.expm1(x), x), 5, (1.67, 1.05)),
    "thresholded_relu": Case(lambda x, a: np.where(x > a, x, 0), 0, (0.5,)),
    "shrink": Case(
        lambda x, t, b: np.where(x < -t, x + b, np.where(x > t, x - b, 0)), 0.5, (0.5, 0.25)
    ),
    "clip": Case(lambda x, a, b: np.clip(x, a, b), 0, (-0.75, 1.25)),
    "at_least": Case(np.maximum, 0, (-0.3,)),
    "at_most": Case(np.minimum, 0, (0.6,)),
    "softsign": Case(lambda x: x / (1 + np.abs(x)), 4),
    "softplus": Case(lambda x: np.logaddexp(x, 0), 4),
    "sigmoid": Case(lambda x: 1 / (1 + np.exp(-x)), 6, least=LEAST),
    "swish": Case(lambda x, a: x / (1 + np.exp(-a * x)), 8, (1.0,), least=LEAST),
    "hard_sigmoid": Case(lambda x, a, b: np.clip(a * x + b, 0, 1), 2, (0.2, 0.5), 2**-25),
    "hard_swish": Case(lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 4, (), 2**-25),
    "gelu": Case(lambda x: 0.5 * x * _erfc(-x * math.sqrt(0.5)), 8, (), 2**-23),
    "gelu_tanh": Case(
        lambda x: x / (1 + np.exp(-math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))),
        8,
        (),
        2**-23,
        LEAST,
    ),
    "rational_sigmoid": Case(RATIONALS["sigmoid"], 8, (), 2**-23, LEAST),
    "rational_swish": Case(lambda x: x * RATIONALS["sigmoid"](x), 8, (), 2**-23, LEAST),
    "rational_tanh": Case(RATIONALS["tanh"], 8, least=LEAST),
    "mish": Case(lambda x: x * np.tanh(np.logaddexp(x, 0)), 8, least=LEAST),
    "add": Case(np.add, 0.5),
    "sub": Case(np.subtract, 0.5),
    "mul": Case(np.multiply, 0.5),
    "div": Case(np.divide, 2.5),
    "pow": Case(np.power, 16),
    "min": Case(np.minimum, 0),
    "max": Case(np.maximum, 0),
    "prelu": Case(lambda x, y: np.where(x < 0, x * y, x), 0.5),
    "replace": Case(lambda x, y: np.where(y < np.inf, y, x), 0),
}


@dataclass
class Worst:
    """The largest error met so far, and the argument of it."""

    error: float = 0.0
    at: float = 0.0

    def meet(self, errors: np.ndarray, x: np.ndarray, where: np.ndarray) -> None:
        """Take in errors of arguments x, of those that count."""
        place = int(np.argmax(np.where(where, errors, -1)))
        if where[place] and errors[place] > self.error:
            self.error, self.at = float(errors[place]), float(x[place])


@dataclass
class Row:
    """What a function does on a device: by vectors, by single elements, and with subnormal numbers."""

    vectors: Worst = field(default_factory=Worst)
    elements: Worst = field(default_factory=Worst)
    subnormal: Worst = field(default_factory=Worst)

    def worst(self) -> float:
        """The largest error where argument and result are normal."""
        return max(self.vectors.error, self.elements.error)


def errors(got: np.ndarray, want: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """Return each error in ulp of `want`, which is in double precision; infinite for a wrong NaN.

    Beyond the largest number stands 2**128; below the least normal one an ulp is that of it. slack:
    what does not count.
    """
    with np.errstate(all="ignore"):
        most = np.float64(2.0**128)
        have, right = (np.clip(a.astype(np.float64), -most, most) for a in (got, want))
        size = np.clip(np.abs(right), TINY, most / 2).astype(np.float32)
        found = np.maximum(np.abs(have - right) - slack, 0) / np.spacing(size)
    both = np.isnan(got) & np.isnan(want)
    return np.where(both, 0, np.where(np.isnan(found), np.inf, found))


def special() -> np.ndarray:
    """Return numbers near which functions change: limits of the type, of ranges, and of periods."""
    powers = 2.0 ** np.arange(-149, 128)
    turns = np.pi / 4 * np.concatenate([np.arange(1, 4000), 2.0 ** np.arange(12, 120)])
    ends = np.array([0, 0.5, 1, 88.72284, 103.97, 87.33655, 16, 9.01, 131072, 2**24, 3.4028235e38])
    some = np.concatenate([powers, turns, ends]).astype(np.float32)
    with np.errstate(over="ignore"):
        near = np.concatenate(
            [some, np.nextafter(some, np.inf), np.nextafter(some, -np.float32(np.inf))]
        )
    return np.concatenate([near, -near, np.array([np.inf, -np.inf, np.nan], np.float32)])


def samples(count: int) -> Iterator[np.ndarray]:
    """Yield chunks of special numbers, moderate ones, and `count` of any bits; all for 2**32."""
    rng = np.random.default_rng(7)
    chunk = np.concatenate([special(), (rng.standard_normal(CHUNK) * 4).astype(np.float32)])[:CHUNK]
    yield rng.permutation(chunk)
    for first in range(0, count, CHUNK):
        places = np.arange(first, first + CHUNK, dtype=np.uint64)
        yield (places * SPREAD % 2**32).astype(np.uint32).view(np.float32)


def seconds(x: np.ndarray) -> np.ndarray:
    """Return second operands for first ones: of any bits, and moderate ones."""
    moderate = (np.random.default_rng(8).standard_normal(x.size) * 3).astype(np.float32)
    return np.where(np.arange(x.size) % 3 == 0, x[::-1], moderate)


def network(names: Sequence[str], count: int) -> Graph:
    """Return the graph of all functions of x, and of x and y, of `count` elements."""
    types = {name: TensorType((count,)) for name in ("x", "y", *names)}
    nodes = []
    for name in names:
        binary = FUNCTIONS[name].binary
        step = PostOp(name, CASES[name].params, 1 if binary else None)
        nodes.append(Node(name, Eltwise((step,)), ("x", "y") if binary else ("x",), (name,)))
    return check(Graph(tuple(nodes), types, {}, ("x", "y"), {name: name for name in names}))


def measure(
    device: str, names: Sequence[str], count: int, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Row]:
    """Return name -> its errors on a device, over special numbers and `count` of any bits."""
    rows = {name: Row() for name in names}
    info, options = select(device), Options(fuse=False)
    with (
        Session(network(names, CHUNK), info, options) as vectors,
        Session(network(names, CHUNK - 1), info, options) as elements,
    ):
        for number, x in enumerate(samples(count)):
            y = seconds(x)
            whole = vectors({"x": x, "y": y})
            single = elements({"x": x[:-1], "y": y[:-1]})
            for name, row in rows.items():
                _compare(name, row, x, y, whole[name], single[name])
            if number % 64 == 0:
                tell(f"{number * CHUNK} numbers")
    return rows


def _compare(
    name: str, row: Row, x: np.ndarray, y: np.ndarray, whole: np.ndarray, single: np.ndarray
) -> None:
    """Take the errors of a chunk into a row."""
    case = CASES[name]
    with np.errstate(all="ignore"):
        wide, second = x.astype(np.float64), y.astype(np.float64)
        others = [second] if FUNCTIONS[name].binary else np.float32(case.params).tolist()
        want = np.asarray(case.exact(wide, *others))
        slack = case.cancels * np.where(np.isfinite(wide), np.abs(wide), 0) + case.least
        small = (np.abs(wide) < TINY) & (wide != 0) | (np.abs(want) < TINY) & (want != 0)
        if FUNCTIONS[name].binary:
            small |= (np.abs(y) < TINY) & (y != 0)
    of_vectors = errors(whole, want, slack)
    row.vectors.meet(of_vectors, x, ~small)
    row.subnormal.meet(of_vectors, x, small)
    row.elements.meet(errors(single, want[:-1], slack[:-1]), x[:-1], ~small[:-1])


def over(rows: Mapping[str, Row]) -> list[str]:
    """Return the functions whose error is beyond their bound, as text."""
    return [
        f"{name}: {row.worst():.3g} ulp at {max((row.vectors, row.elements), key=lambda w: w.error).at:.9g}, "
        f"bound {CASES[name].bound}"
        for name, row in rows.items()
        if not row.worst() <= CASES[name].bound
    ]


def table(found: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Return the lines of a Markdown table: a row for each function, columns for each device."""
    head, rule = ["function", "bound"], ["---", "---:"]
    for device in found:
        head += [f"{device}: vectors", "elements", "largest at", "subnormal"]
        rule += ["---:"] * 4
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(rule)} |"]
    names = next(iter(found.values()))
    for name in names:
        cells = [name + "*" * bool(CASES[name].cancels), f"{CASES[name].bound:g}"]
        for rows in found.values():
            row = rows[name]
            worst = max((row.vectors, row.elements), key=lambda w: w.error)
            cells += [f"{row.vectors.error:.2f}", f"{row.elements.error:.2f}"]
            cells += [f"{worst.at:.6g}" if worst.error else "", f"{row.subnormal.error:.3g}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    args = _arguments()
    names = args.only.split(",") if args.only else list(CASES)
    devices = args.device or sorted({i.platform for i in discover() if i.usable})
    count = 2**32 if args.all else args.samples
    found, about = {}, []
    try:
        for device in devices:
            info = select(device)
            about += About(info.title, info.driver_version).lines()
            found[info.platform] = measure(device, names, count, _tell)
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
    wrong = [f"{device}: {text}" for device, rows in found.items() for text in over(rows)]
    print("\n".join(wrong), file=sys.stderr)
    return int(bool(wrong))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", action="append", help="may be given more than once")
    parser.add_argument("--samples", type=int, default=2**24)
    parser.add_argument("--all", action="store_true", help="every float32 number")
    parser.add_argument("--only", default="", help="names of functions, with commas between")
    parser.add_argument("--markdown", type=Path, help="file for the table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
