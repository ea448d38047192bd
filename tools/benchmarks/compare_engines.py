#!/usr/bin/env python3
"""Compare clnn with other inference engines on the same models, in one run, in turns.

    python tools/benchmarks/compare_engines.py MODEL... [--engines LIST] [--device D] [--batch N,N...]
                                    [--threads N] [--time S] [--shared | --warm] [--budget S] [--limit S]
                                    [--json F] [--markdown F] [--plot F]

MODEL is an .onnx file, a folder of them (such as make_zoo.py writes; means are told by its kinds of networks), or the
name of a network of tools/benchmarks/make_bench_models.py; `all` is all of them. Integer inputs that pick rows of a
table are random rows of it, others are 1.
An engine is NAME or NAME:OPTION+OPTION..., such as clnn:f16 or torch:cuda+f16+channels_last+graphs;
one that is not installed, or that refuses a model, is left out and said so. Every engine runs in a
process of its own on the same cores, is started cold (empty caches) and warm, and takes turns with
the others round by round; with --shared, variants of an engine share a process, and nothing is
started cold; with --warm, nothing is started cold, and clnn finds kernels in the cache that
CLNN_CACHE_DIR names. Outputs are compared with onnxruntime's, or another engine's where that is left
out.
The ratio of a model is the best peer's latency over clnn's, of the medians of their turns in a round,
and the median over the rounds; above 1, clnn is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

import make_bench_models
import onnx
from about import machine, now, plot_refusal, shown
from engines import NAMES, OPTIONS, refusal
from engines.drawing import draws
from engines.drawing import refusal as refusal_of
from engines.process import Hosts
from engines.report import about_of, markdown, plot, table
from engines.rounds import QUICK, Options, Pace, Result, compare


def main() -> int:
    args = _arguments()
    options = Options(
        tuple(args.engines),
        args.threads,
        args.device,
        args.time,
        args.seed,
        QUICK if args.shared else Pace(),
        perf_counter() + args.budget,
        not args.warm,
    )
    report = Report(args)
    with (
        tempfile.TemporaryDirectory(prefix="compare-engines-") as work,
        Hosts(args.limit, options.deadline) if args.shared else nullcontext() as hosts,
        suppress(KeyboardInterrupt),
    ):
        report.cut = [f"{name} b{batch}" for name in _names(args.models) for batch in args.batch]
        for name in _names(args.models):
            for batch in args.batch:
                if perf_counter() < options.deadline:
                    report.add(_measure(name, batch, options, Path(work), hosts))
                    report.cut.remove(f"{name} b{batch}")
    report.close()
    if report.wrong_use:
        return 2
    return 0 if report.results and all(r.agrees for r in report.results) else 1


def _measure(
    name: str, batch: int, options: Options, work: Path, hosts: Hosts | None
) -> Result | str:
    """Compare the engines on one model; return the result, or what is wrong with the model."""
    path = _model(name, batch, work)
    try:
        folder = work / f"{path.stem}-{batch}"
        result = compare(path, _shapes(path, batch), options, folder, hosts)
        result.batch = batch
        return result
    except ValueError as err:
        return f"{name}: {err}"
    finally:
        if path.parent == work:
            path.unlink(missing_ok=True)


class Report:
    """Results as they come, printed and written after each. cut: what the budget left no time for."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.date = args, now()
        self.command = shown(["python", str(Path(__file__).resolve()), *sys.argv[1:]])
        self.results: list[Result] = []
        self.cut: list[str] = []
        self.wrong_use = False

    def add(self, found: Result | str) -> None:
        if isinstance(found, str):
            self.wrong_use = True
            print(found, file=sys.stderr)
            return
        self.results.append(found)
        print(table([found]), flush=True)
        self.write()

    def write(self) -> None:
        about = about_of(self.results, self.date, self.command, machine())
        if self.args.json is not None:
            data: Mapping[str, object] = {
                "about": about.data(),
                "cut": self.cut,
                "results": [asdict(r) for r in self.results],
            }
            self.args.json.write_text(json.dumps(data, indent=1, default=str) + "\n", "utf-8")
        if self.args.markdown is not None:
            text = markdown(self.results, about)
            text += f"\nNo time was left for: {', '.join(self.cut)}.\n" if self.cut else ""
            self.args.markdown.write_text(text, "utf-8")

    def close(self) -> None:
        if len(self.results) > 1:
            print(table(self.results, summary=True))
        if self.cut:
            print(f"no time was left for: {', '.join(self.cut)}")
        self.write()
        if self.args.plot and any(r.measured for r in self.results):
            if refused := plot_refusal():
                print(refused, file=sys.stderr)
            else:
                about = about_of(self.results, self.date, self.command, machine())
                plot(self.results, self.args.plot, about)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help=".onnx file, folder, name, or `all`"
    )
    has = "; ".join(f"{name}:{'+'.join(given)}" for name, given in OPTIONS.items())
    parser.add_argument(
        "--engines",
        type=_engines,
        default=NAMES,
        metavar="LIST",
        help=f"{','.join(NAMES)}; options: {has}",
    )
    parser.add_argument("--device", default=os.environ.get("CLNN_DEVICE"), help="clnn's device")
    parser.add_argument("--batch", type=_numbers, default=(1,), metavar="N,N...")
    parser.add_argument("--threads", type=int, default=2, help="threads, and cores, of each engine")
    parser.add_argument("--time", type=float, default=20.0, help="seconds of turns per model")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--shared",
        action="store_true",
        help="one process for all variants of an engine, no cold starts",
    )
    ways.add_argument(
        "--warm",
        action="store_true",
        help="no cold starts, and clnn's cache is that of the environment",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        metavar="S",
        help="seconds after which nothing more is begun",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds that an engine may take to answer, with --shared",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random input")
    parser.add_argument("--json", type=Path, metavar="F", help="write all figures to a file")
    parser.add_argument("--markdown", type=Path, metavar="F", help="write a Markdown table")
    parser.add_argument("--plot", type=Path, metavar="F", help="draw the ratios into a .png file")
    return parser.parse_args()


def _engines(text: str) -> tuple[str, ...]:
    given = [name.strip() for name in text.split(",") if name.strip()]
    names = tuple(dict.fromkeys(["clnn", *given]))
    wrong = [said for name in names if (said := refusal(name))]
    if wrong:
        raise argparse.ArgumentTypeError("; ".join(wrong))
    return names


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        numbers = (0,)
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of batches. Write 1,8,64.")
    return numbers


def _names(given: Sequence[str]) -> list[str]:
    names: list[str] = []
    for name in given:
        if Path(name).is_dir():
            names += sorted(map(str, Path(name).glob("*.onnx")))
        else:
            names += make_bench_models.MODELS if name == "all" else [name]
    return names


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
    if wrong := refusal_of(draws(path)):
        raise ValueError(wrong)
    graph = onnx.load(path, load_external_data=False).graph
    given = {t.name for t in graph.initializer}
    shapes: dict[str, tuple[int, ...]] = {}
    for value in graph.input:
        if value.name in given:
            continue
        kind = value.type.tensor_type
        dims = [d.dim_value for d in kind.shape.dim]
        if batch > 1 and dims and dims[0] not in (0, batch):
            raise ValueError(f"input {value.name} has batch {dims[0]}, not {batch}")
        shapes[value.name] = tuple(d or (batch if k == 0 else 1) for k, d in enumerate(dims))
    return shapes


if __name__ == "__main__":
    sys.exit(main())
