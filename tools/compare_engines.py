#!/usr/bin/env python3
"""Compare clnn with other inference engines on the same models, in one run, in turns.

    python tools/compare_engines.py MODEL... [--engines LIST] [--device D] [--batch N]
                                    [--threads N] [--time S] [--json F] [--plot F]

MODEL is an .onnx file or the name of a network of tools/make_bench_models.py; `all` is all of them.
Every engine runs in a process of its own on the same cores, is started cold (empty caches) and
warm, and takes turns with the others round by round. Outputs are compared with onnxruntime's. The
ratio of a model is the best peer's median latency over clnn's: above 1, clnn is faster.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import make_bench_models
import onnx
from engines import NAMES
from engines.report import plot, table
from engines.rounds import Options, Result, compare


def main() -> int:
    args = _arguments()
    options = Options(tuple(args.engines), args.threads, args.device, args.time, args.seed)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="compare-engines-") as work:
        for name in _names(args.models):
            path = _model(name, args.batch, Path(work))
            try:
                result = compare(path, _shapes(path, args.batch), options, Path(work) / path.stem)
            except ValueError as err:
                print(f"{name}: {err}", file=sys.stderr)
                return 2
            finally:
                if path.parent == Path(work):
                    path.unlink(missing_ok=True)
            results.append(result)
            print(table([result]), flush=True)
            _save(args.json, results)
    if len(results) > 1:
        print(table(results, summary=True))
    if args.plot:
        plot(results, args.plot)
    return 0 if all(r.agrees for r in results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help=".onnx file, name, or `all`")
    parser.add_argument(
        "--engines", type=_engines, default=NAMES, metavar="LIST", help=",".join(NAMES)
    )
    parser.add_argument("--device", default=os.environ.get("CLNN_DEVICE"), help="clnn's device")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="threads, and cores, of each engine")
    parser.add_argument("--time", type=float, default=20.0, help="seconds of turns per model")
    parser.add_argument("--seed", type=int, default=0, help="of the random input")
    parser.add_argument("--json", type=Path, metavar="F", help="write all figures to a file")
    parser.add_argument("--plot", type=Path, metavar="F", help="draw the ratios into a .png file")
    return parser.parse_args()


def _engines(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(["clnn", *text.split(",")]))
    unknown = set(names) - set(NAMES)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no engine is named {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}"
        )
    return names


def _names(given: Sequence[str]) -> list[str]:
    return [n for g in given for n in (make_bench_models.MODELS if g == "all" else [g])]


def _model(name: str, batch: int, work: Path) -> Path:
    """Return the file of a model, written to `work` if it is one of the benchmark's networks."""
    if name in make_bench_models.MODELS:
        path = work / f"{name}.onnx"
        onnx.save(make_bench_models.MODELS[name](batch), path)
        return path
    path = Path(name)
    if not path.is_file():
        names = ", ".join(make_bench_models.MODELS)
        sys.exit(f"compare_engines.py: there is no file {name}, and networks are {names}.")
    return path


def _shapes(path: Path, batch: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every input; a symbolic first dimension becomes `batch`, others 1."""
    graph = onnx.load(path, load_external_data=False).graph
    given = {t.name for t in graph.initializer}
    shapes: dict[str, tuple[int, ...]] = {}
    for value in graph.input:
        if value.name in given:
            continue
        kind = value.type.tensor_type
        if kind.elem_type != onnx.TensorProto.FLOAT:
            raise ValueError(f"input {value.name} is not float32; random input needs float32")
        dims = [d.dim_value for d in kind.shape.dim]
        if batch > 1 and dims and dims[0] not in (0, batch):
            raise ValueError(f"input {value.name} has batch {dims[0]}, not {batch}")
        shapes[value.name] = tuple(d or (batch if k == 0 else 1) for k, d in enumerate(dims))
    return shapes


def _save(path: Path | None, results: Sequence[Result]) -> None:
    if path is not None:
        data: Mapping[str, object] = {
            "machine": _machine(), "results": [asdict(r) for r in results],
        }  # fmt: skip
        path.write_text(json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8")


def _machine() -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    load = os.getloadavg()[0]
    return {"cpu": names[:1], "cores": os.cpu_count(), "load": None if math.isnan(load) else load}


if __name__ == "__main__":
    sys.exit(main())
