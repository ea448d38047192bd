"""`clnn quantize`: write a float32 model as a quantised one, from samples of its input."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clnn.cli import _calibration, _common
from clnn.errors import SettingError
from clnn.graph.histograms import METHODS, RangeObserver

if TYPE_CHECKING:
    from clnn.types import Array

SUFFIXES = (".npz", ".npy")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "quantize",
        help="write a float32 model as a quantised one",
        description="Runs a float32 ONNX model over samples, and writes it with uint8 activations and"
        " int8 weights in QDQ form, which any engine that knows QuantizeLinear runs. With --target, simulates"
        " what an embedded system computes, bit by bit, and reports what each layer loses.",
    )
    _common.add_model(parser)
    parser.add_argument(
        "--samples",
        metavar="DIR",
        required=True,
        help="folder of .npz or .npy files, a sample each; or one .npz with samples along the first axis",
    )
    parser.add_argument("--method", choices=METHODS, default="minmax", help="default: minmax")
    parser.add_argument("--per-tensor", action="store_true", help="one scale for all of a weight")
    parser.add_argument("--out", metavar="Q.onnx", help="file to write; needed without --target")
    parser.add_argument(
        "--target",
        metavar="T",
        help="simulate what an embedded system computes instead: openvx-q78, mli-sa8, mli-fx16,"
        " mli-fx16-fx8, tidl-8, tidl-16, espdl-int8, espdl-int16",
    )
    parser.add_argument(
        "--per-channel",
        action="store_true",
        help="with --target: a scale for each output channel of the weights, where the target has such",
    )
    parser.add_argument(
        "--equalise",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="with --target: let channels of convolutions in a row share their sizes first (default: where"
        " weights have 8 bits and one scale for a layer)",
    )
    parser.add_argument(
        "--no-bias-correction",
        action="store_true",
        help="with --target: leave in what rounding of weights adds on the average",
    )
    parser.add_argument(
        "--report",
        metavar="R",
        help="with --target: file for the report, .html or .md (default: print)",
    )
    parser.add_argument(
        "--export",
        metavar="DIR",
        help="with --target: folder for the network in the target's own form",
    )


def run(args: argparse.Namespace) -> int:
    """Measure and write; return the exit status."""
    from clnn.importers.onnx.info import read_info
    from clnn.importers.onnx.load import load_model
    from clnn.importers.onnx.qdq import QdqModel

    _common.settle(args)
    if args.target:
        return _simulate(args)
    ways = args.per_channel or args.equalise is not None or args.no_bias_correction
    if not args.out or args.report or args.export or ways:
        raise SettingError(
            "give --out for a quantised model, or --target with --report, --export, --per-channel,"
            " --equalise and --no-bias-correction."
        )
    proto, _ = load_model(args.model)
    model = QdqModel(proto, not args.per_tensor)
    if not model.wanted():
        raise SettingError(
            f"{args.model} has no operator that is quantised: no convolution or product of constant "
            "weights in float32. It is quantised already, or needs none."
        )
    feeds = _feeds(Path(args.samples), [value.name for value in read_info(args.model).inputs])
    ranges = _measured(args, model.observed().SerializeToString(), model.wanted(), feeds)
    made = model.quantised(ranges)
    Path(args.out).write_bytes(made.SerializeToString())
    told = f"{len(ranges)} values quantised by {len(feeds)} samples ({args.method}) in {args.out}"
    _common.write_result(args, {"ranges": ranges, "samples": len(feeds)}, told)
    return 0


def _simulate(args: argparse.Namespace) -> int:
    """Simulate a target over the samples and report; return the exit status."""
    from clnn.bridges.quantize import quantize
    from clnn.importers.onnx.info import read_info

    if args.out or args.per_tensor:
        raise SettingError("--out and --per-tensor are of no use with --target. Use --export.")
    report = Path(args.report) if args.report else None
    if report is not None and report.suffix not in (".html", ".md"):
        raise SettingError(f"--report {args.report}: the name must end with .html or .md.")
    feeds = _feeds(Path(args.samples), [value.name for value in read_info(args.model).inputs])
    how = args.device, _common.options_of(args), _common.shapes_of(args)
    ways = {
        "per_channel": args.per_channel,
        "equalise": args.equalise,
        "correct_bias": not args.no_bias_correction,
    }
    with quantize(args.model, feeds, args.target, *how, method=args.method, **ways) as network:
        found = network.report(feeds)
        files = network.export(args.export, Path(args.model).stem) if args.export else []
    text = found.html() if report is not None and report.suffix == ".html" else found.markdown()
    if report is not None:
        report.write_text(text, "utf-8")
        text = f"report of {len(found.layers)} layers over {len(feeds)} samples in {report}"
    told = "\n".join([text, *(f"wrote {path}" for path in files)])
    _common.write_result(args, found.data() | {"files": [str(path) for path in files]}, told)
    return 0


def _measured(
    args: argparse.Namespace,
    watched: bytes,
    names: Sequence[str],
    feeds: Sequence[Mapping[str, Array]],
) -> dict[str, tuple[float, float]]:
    """Return the range of each value over the samples."""
    from clnn.api import compile_model

    observer = RangeObserver(names, args.method)
    session = compile_model(watched, args.device, _common.options_of(args), _common.shapes_of(args))
    for feed in feeds:
        observer.see(session(feed))
    if observer.counts:
        for feed in feeds:
            observer.count(session(feed))
    return observer.ranges()


def _feeds(place: Path, names: Sequence[str]) -> list[dict[str, Array]]:
    """Return the samples of a folder, a file each, or of one file. Raises SettingError."""
    if not place.is_dir():
        return _calibration.read_samples(str(place), names)
    files = sorted(p for p in place.iterdir() if p.suffix in SUFFIXES)
    if not files:
        raise SettingError(f"{place} has no {' or '.join(SUFFIXES)} files. Put a sample in each.")
    loaded = [_common.load_arrays(path) for path in files]
    return [a if isinstance(a, dict) else dict.fromkeys(names, a) for a in loaded]
