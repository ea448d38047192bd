"""`clnn calibrate`: measure the ranges of a model's values, for dtype int8."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from clnn.cli import _calibration, _common
from clnn.graph.histograms import METHODS


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "calibrate",
        help="measure the ranges that dtype int8 needs",
        description="Runs the float32 network over samples and writes the least and the largest of its"
        " values to a file, for -o dtype=int8 -o calibration=FILE of the other commands.",
    )
    _common.add_model(parser)
    parser.add_argument(
        "--samples",
        metavar="FILE.npz",
        required=True,
        help="arrays by input name, with samples along their first axis",
    )
    parser.add_argument("--method", choices=METHODS, default="minmax", help="default: minmax")
    parser.add_argument("--out", metavar="FILE.json", required=True, help="file to write")


def run(args: argparse.Namespace) -> int:
    """Measure and write; return the exit status."""
    from clnn.api import calibrate
    from clnn.importers.onnx.info import read_info

    _common.settle(args)
    names = [value.name for value in read_info(args.model).inputs]
    samples = _calibration.read_samples(args.samples, names)
    ranges = calibrate(
        args.model,
        samples,
        args.device,
        _common.options_of(args),
        _common.shapes_of(args),
        method=args.method,
    )
    Path(args.out).write_text(json.dumps(ranges, indent=1) + "\n", encoding="utf-8")
    told = f"{len(ranges)} ranges from {len(samples)} samples in {args.out}"
    _common.write_result(args, {"ranges": ranges, "samples": len(samples)}, told)
    return 0
