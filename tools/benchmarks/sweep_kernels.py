#!/usr/bin/env python3
"""Time single layers as networks run them, as shares of what the device reaches at most.

    python tools/benchmarks/sweep_kernels.py [--device D] [--dtypes f32,f16,...] [--tune off|cached|quick]
                                  [--budget S] [--ahead N] [--small] [--only TEXT] [--json F] [--resume]
                                  [--markdown F] [--plot F]

Measured first: copies of device memory, float32 multiply-adds, and products on tensor cores whose
operands stay in registers. Then matrix products and convolutions of ResNet-50, VGG-16 and
MobileNetV2, each a network of one layer whose kernels are chosen as in any network; results are
compared with sums in double precision at some places. --resume goes on from the file of --json,
past a layer in which the process ended. Exit status: 0, 1 where a layer fails, 3 without a device.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

from about import About, machine, now, plot_refusal, shown
from engines import DTYPES
from sweeps.ahead import built_ahead, workers_for
from sweeps.cases import Case, cases
from sweeps.measure import Ceilings, Row, available, ceilings, measure
from sweeps.report import ceiling_lines, line, markdown_table, plot

from clnn.errors import ClnnError
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.doctor.selection import select_device

LAST = ("bf16",)  # as quick as f16
ENDED = "the process ended in this layer"


def main() -> int:
    args = _arguments()
    end = perf_counter() + args.budget
    try:
        info = select_device(args.device)
    except ClnnError as err:
        print(err, file=sys.stderr)
        return 3
    command = shown(["python", str(Path(__file__).resolve()), *sys.argv[1:]])
    about = About(info.title, info.driver_version, now(), (command,), machine())
    sweep = Sweep(about, args.json)
    sweep.dtypes, sweep.lacks = available(args.dtypes)
    for dtype, why in sweep.lacks.items():
        print(f"{dtype} left out: {why}", flush=True)
    if args.resume:
        sweep.resume()
    if not sweep.most.rates:
        sweep.most = ceilings(info, lambda text: print(text, flush=True))
    sweep.run(info, args, end)
    _write(sweep, args)
    return 1 if any(row.fault for row in sweep.rows) else 0


class Sweep:
    """The rows so far; kept in a file after each. cut: what the budget left no time for."""

    def __init__(self, about: About, path: Path | None) -> None:
        self.about, self.path = about, path
        self.dtypes: list[str] = []
        self.lacks: dict[str, str] = {}
        self.most = Ceilings()
        self.rows: list[Row] = []
        self.cut: list[str] = []

    def resume(self) -> None:
        """Take over what the file holds."""
        if self.path is None or not self.path.exists():
            return
        data = json.loads(self.path.read_text("utf-8"))
        self.rows = [Row(**row) for row in data["rows"]]
        self.most = Ceilings(**data["ceilings"])
        if data["current"]:
            self.rows.append(Row(*data["current"], fault=ENDED))

    def run(self, info: DeviceInfo, args: argparse.Namespace, end: float) -> None:
        done = {(row.label, row.dtype) for row in self.rows}
        jobs = [(c, d) for c, d in _jobs(args, self.dtypes) if (c.label, d) not in done]
        workers = workers_for(info.type == "gpu") if args.ahead is None else args.ahead
        with built_ahead(jobs, info.index, args.tune, workers) as wait:
            for case, dtype in jobs:
                if perf_counter() > end:
                    self.cut.append(f"{case.label} {dtype}")
                    continue
                self.save([case.label, dtype])
                wait(case, dtype, end - perf_counter())
                self.rows.append(measure(case, dtype, info, self.most, args.tune))
                print(line(self.rows[-1]), flush=True)
                self.save()
        self.save()

    def save(self, current: list[str] | None = None) -> None:
        """Write the file; `current`: label and kind of numbers of the layer that is begun."""
        if self.path is None:
            return
        data: dict[str, Any] = {
            "about": self.about.data(),
            "ceilings": asdict(self.most),
            "lacks": self.lacks,
            "current": current,
            "cut": self.cut,
            "rows": [asdict(row) for row in self.rows],
        }
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        os.replace(part, self.path)


def _jobs(args: argparse.Namespace, dtypes: list[str]) -> Iterator[tuple[Case, str]]:
    """Yield layers with each kind of numbers; those of LAST come when all others are done."""
    for last in (False, True):
        for case in cases(args.small, args.batches):
            if args.only in case.label:
                yield from ((case, dtype) for dtype in dtypes if (dtype in LAST) == last)


def _write(sweep: Sweep, args: argparse.Namespace) -> None:
    if args.markdown is not None:
        text = ["# Layers", "", *sweep.about.lines(), "", *ceiling_lines(sweep.most), ""]
        text += markdown_table(sweep.rows)
        if sweep.cut:
            text += ["", f"No time was left for {len(sweep.cut)} more."]
        args.markdown.write_text("\n".join(text) + "\n", encoding="utf-8")
    if sweep.cut:
        print(f"no time was left for {len(sweep.cut)} more")
    if args.plot is not None:
        if refused := plot_refusal():
            print(refused, file=sys.stderr)
        else:
            plot(sweep.rows, args.plot, sweep.about)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default=os.environ.get("CLNN_DEVICE"))
    parser.add_argument(
        "--dtypes", type=_dtypes, default=tuple(DTYPES), metavar="LIST", help=",".join(DTYPES)
    )
    parser.add_argument("--tune", choices=("off", "cached", "quick"), default="cached")
    parser.add_argument(
        "--batches", type=_batches, default=(1, 32), metavar="N,N", help="of the convolutions"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        metavar="S",
        help="seconds after which no layer is begun",
    )
    parser.add_argument(
        "--ahead",
        type=int,
        metavar="N",
        help="processes that build the next layers' kernels (default: of GPUs half the cores, 8 at most)",
    )
    parser.add_argument("--small", action="store_true", help="a few tiny layers")
    parser.add_argument("--only", default="", metavar="TEXT", help="part of the labels")
    parser.add_argument("--json", type=Path, metavar="F", help="write all figures to a file")
    parser.add_argument("--resume", action="store_true", help="go on from the file of --json")
    parser.add_argument("--markdown", type=Path, metavar="F", help="write a Markdown table")
    parser.add_argument("--plot", type=Path, metavar="F", help="draw the shares into a .png file")
    return parser.parse_args()


def _dtypes(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in DTYPES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(DTYPES)}")
    return names


def _batches(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
