#!/usr/bin/env python3
"""Which families of ops are right on a device: a small network of each, compared with numpy.

    python tools/benchmarks/gpu/families.py [--device D] [--only NAME,...] [--dtypes f32,...]
                                            [--budget S] [--json F] [--resume]

Sizes are such that kernels of work-groups are chosen on GPUs. Outputs are compared with numpy's in
double precision. All families in float32 come first, then those that multiply with other numbers.
The file of --json is written around every network; --resume goes on from it, past one in which the process
ended. Exit status: 0, 1 where a family is wrong or fails, 3 without a device.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

import numpy as np
import onnx.parser
from engines import DTYPES
from onnx import ModelProto, numpy_helper

from clnn.compile import compile_fixed, load_graph
from clnn.errors import ClnnError
from clnn.options import Options
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.doctor.selection import select_device
from clnn.verification.compare import difference
from clnn.verification.feeds import inputs_of, random_feeds
from clnn.verification.reference import reference_values
from clnn.verification.verify import TOLERANCES

ENDED = "the process ended in this network"
# Of a network all inputs but x are constants.
NETWORKS = {
    "products": """(float[256,256] x, float[256,128] w, float[128] c) => (float[256,128] y) {
        s = Gemm(x, w, c)
        y = Relu(s) }""",
    "convolution": """(float[1,64,28,28] x, float[64,64,3,3] w, float[64] c) => (float[1,64,28,28] y) {
        s = Conv<pads=[1,1,1,1]>(x, w, c)
        y = Relu(s) }""",
    "rows": """(float[64,300] x, float[300] w) => (float[64,300] y, float[64,1] z) {
        s = LayerNormalization(x, w)
        y = Softmax(s)
        z = ReduceMax<axes=[1]>(s) }""",
    "strided convolution": """(float[1,3,56,56] x, float[32,3,7,7] w) => (float[1,32,28,28] y) {
        y = Conv<pads=[3,3,3,3], strides=[2,2]>(x, w) }""",
    "separable convolution": """(float[1,64,28,28] x, float[64,1,3,3] w, float[128,64,1,1] v)
        => (float[1,128,28,28] y) {
        s = Conv<pads=[1,1,1,1], group=64>(x, w)
        r = Relu(s)
        y = Conv(r, v) }""",
    "few rows": """(float[1,512] x, float[512,256] w) => (float[1,256] y) {
        y = MatMul(x, w) }""",
    "elementwise": """(float[4,1000] x, float[1000] w) => (float[4,1000] y) {
        a = Sigmoid(x)
        e = Erf(x)
        s = Add(e, w)
        t = Tanh(s)
        y = Mul(a, t) }""",
    "pooling": """(float[1,32,28,28] x) => (float[1,32,14,14] y, float[1,32,1,1] z) {
        y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)
        z = GlobalAveragePool(x) }""",
    "attention": """(float[2,64,32] x) => (float[2,64,32] y) {
        t = Transpose<perm=[0,2,1]>(x)
        p = MatMul(x, t)
        w = Softmax(p)
        y = MatMul(w, x) }""",
    "movement": """(float[1,8,20,12] x) => (float[1,16,12,20] y, float[1,8,3,12] z) {
        t = Transpose<perm=[0,1,3,2]>(x)
        y = Concat<axis=1>(t, t)
        i = Constant<value_ints=[7,0,19]>()
        z = Gather<axis=2>(x, i) }""",
    "transposed convolution": """(float[1,16,14,14] x, float[16,8,4,4] w) => (float[1,8,28,28] y) {
        y = ConvTranspose<pads=[1,1,1,1], strides=[2,2]>(x, w) }""",
    "resizing": """(float[1,16,14,14] x) => (float[1,16,28,28] y) {
        s = Constant<value_floats=[1.0,1.0,2.0,2.0]>()
        y = Resize<mode="linear">(x, , s) }""",
    "recurrent": """(float[8,2,32] x, float[1,128,32] w, float[1,128,32] r) => (float[8,1,2,32] y) {
        y = LSTM<hidden_size=32>(x, w, r) }""",
    "choices": """(float[1,20,16,16] x) => (int64[1,1,16,16] y) {
        y = ArgMax<axis=1>(x) }""",
}
MULTIPLY = ("products", "convolution")  # with other numbers, too
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\nfamily '


@dataclass
class Row:
    """One family with one kind of numbers. fault: why there is no error, or ''.

    error: the largest, relative to the output's largest value; allowed: at most. seconds: to compile
    and to run once.
    """

    family: str
    dtype: str
    passed: bool = False
    error: float = 0.0
    allowed: float = 0.0
    seconds: float = 0.0
    variants: list[str] = field(default_factory=list)
    fault: str = ""


def main() -> int:
    args = _arguments()
    end = perf_counter() + args.budget
    warnings.simplefilter("ignore")
    try:
        info = select_device(args.device)
    except ClnnError as err:
        print(err, file=sys.stderr)
        return 3
    rows = resumed(args.json) if args.resume else []
    done = {(row.family, row.dtype) for row in rows}
    cut = []
    for name, dtype in jobs(args.only, args.dtypes):
        if (name, dtype) in done:
            continue
        if perf_counter() > end:
            cut.append(f"{name} {dtype}")
            continue
        save(args.json, rows, cut, [name, dtype])
        rows.append(check(name, dtype, info))
        print(line(rows[-1]), flush=True)
    save(args.json, rows, cut, None)
    if cut:
        print(f"no time was left for {len(cut)} more")
    return 0 if all(row.passed for row in rows) else 1


def jobs(names: Sequence[str], dtypes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (family, numbers): all in float32 first."""
    if "f32" in dtypes:
        yield from ((name, "f32") for name in names)
    for dtype in (d for d in dtypes if d != "f32"):
        yield from ((name, dtype) for name in names if name in MULTIPLY)


def model(name: str) -> ModelProto:
    """Return the network of a family; what is not x gets random values."""
    made = onnx.parser.parse_model(HEAD + NETWORKS[name])
    for given in [given for given in made.graph.input if given.name != "x"]:
        shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
        values = np.random.default_rng(len(given.name + name)).standard_normal(shape, np.float32)
        made.graph.initializer.append(numpy_helper.from_array(values / 8, given.name))
        made.graph.input.remove(given)
    return made


def check(name: str, dtype: str, info: DeviceInfo) -> Row:
    """Run one family; a failure is the row's `fault`."""
    row, begin = Row(name, dtype, allowed=TOLERANCES[dtype]), perf_counter()
    try:
        _run(row, info)
    except Exception as err:  # a driver's own error, too: the other families go on
        row.fault = " ".join(f"{type(err).__name__}: {err}".split())[:300]
    row.seconds = round(perf_counter() - begin, 3)
    return row


def _run(row: Row, info: DeviceInfo) -> None:
    graph = load_graph(model(row.family))
    feeds = random_feeds(inputs_of(graph))
    samples = [feeds] if row.dtype == "int8" else None
    options = Options(dtype=row.dtype)
    with compile_fixed(graph, info.index, options, calibration=samples) as session:
        got = session(feeds)
        row.variants = [node["variant"] for node in session.placement.nodes]
    values = reference_values(graph, feeds)
    found = [difference(n, got[n], values[v], row.allowed) for n, v in graph.outputs.items()]
    row.error = max(d.relative for d in found)
    row.passed = all(d.passed for d in found)
    if not row.passed:
        row.fault = f"wrong values: error {row.error:.3g}, allowed {row.allowed:.3g}"


def line(row: Row) -> str:
    """Return one row as text."""
    what = row.fault or f"right, error {row.error:.1e}"
    return f"{row.family:<24} {row.dtype:<5} {row.seconds:6.2f} s  {what}"


def save(
    path: Path | None, rows: Sequence[Row], cut: Sequence[str], current: Sequence[str] | None
) -> None:
    """Write the file in one step; current: the network that is begun."""
    if path is None:
        return
    data: dict[str, Any] = {"rows": [asdict(r) for r in rows], "cut": cut, "current": current}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def resumed(path: Path | None) -> list[Row]:
    """Return the rows of an earlier run, with a fault for the network in which it ended."""
    if path is None or not path.exists():
        return []
    data = json.loads(path.read_text("utf-8"))
    rows = [Row(**row) for row in data["rows"]]
    return rows + ([Row(*data["current"], fault=ENDED)] if data["current"] else [])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default=os.environ.get("CLNN_DEVICE"))
    parser.add_argument("--only", type=_names(NETWORKS), default=tuple(NETWORKS), metavar="LIST")
    parser.add_argument("--dtypes", type=_names(DTYPES), default=tuple(DTYPES), metavar="LIST")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="S")
    parser.add_argument("--json", type=Path, metavar="F", help="write the results to a file")
    parser.add_argument("--resume", action="store_true", help="go on from the file of --json")
    return parser.parse_args()


def _names(known: Any) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
