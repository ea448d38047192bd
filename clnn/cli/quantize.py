"""`clnn quantize`: write a float32 model as a quantised one, from samples of its input."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clnn.cli import _calibration, _common
from clnn.errors import SettingError
from clnn.graph.histograms import METHODS

if TYPE_CHECKING:
    from clnn.bridges.qdq.report import QdqReport
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
    parser.add_argument(
        "--equalise",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let channels of products in a row share their sizes first (default: where the outputs keep"
        " more over the samples; with --target: where weights have 8 bits and one scale for a layer)",
    )
    parser.add_argument(
        "--no-bias-correction",
        action="store_true",
        help="leave in what rounding of weights adds on the average",
    )
    parser.add_argument(
        "--report",
        metavar="R",
        help="file for a report of what each layer loses, .html, .md or .json (with --target .html or .md,"
        " and printed by default); -: print it",
    )
    _add_file(parser)
    _add_target(parser)


def _add_file(parser: argparse.ArgumentParser) -> None:
    """Add the options of the file that is written without --target."""
    group = parser.add_argument_group("for a quantised file")
    group.add_argument("--out", metavar="Q.onnx", help="file to write; needed without --target")
    group.add_argument("--per-tensor", action="store_true", help="one scale for all of a weight")
    group.add_argument(
        "--exclude",
        metavar="NODE",
        nargs="+",
        action="extend",
        default=[],
        help="nodes that stay float32, by name",
    )
    group.add_argument(
        "--exclude-worst",
        metavar="N",
        type=int,
        default=0,
        help="so many nodes more stay float32: those whose quantisation costs the outputs most",
    )
    group.add_argument(
        "--least-sqnr",
        metavar="DB",
        type=float,
        help="as many nodes stay float32 as it takes for this signal to noise of the outputs over the samples",
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    """Add the options that belong to --target."""
    group = parser.add_argument_group("for embedded systems")
    group.add_argument(
        "--target",
        metavar="T",
        help="simulate what an embedded system computes instead: openvx-q78, mli-sa8, mli-fx16,"
        " mli-fx16-fx8, tidl-8, tidl-16, espdl-int8, espdl-int16",
    )
    group.add_argument(
        "--per-channel",
        action="store_true",
        help="a scale for each output channel of the weights, where the target has such",
    )
    group.add_argument(
        "--export", metavar="DIR", help="folder for the network in the target's own form"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and write; return the exit status."""
    _common.settle(args)
    return _simulate(args) if args.target else _write(args)


def _write(args: argparse.Namespace) -> int:
    """Write a quantised file; return the exit status."""
    from clnn.bridges.qdq.quantize import quantize_onnx
    from clnn.cli._progress import Counting

    if not args.out or args.export or args.per_channel:
        raise SettingError(
            "give --out for a quantised model, or --target with --export and --per-channel."
        )
    if args.report not in (None, _common.STDOUT):
        _suffix(args.report, (".html", ".md", ".json"))
    feeds = _read(args)
    with Counting() as tell:
        made = quantize_onnx(
            args.model,
            feeds,
            args.device,
            _common.options_of(args),
            _common.shapes_of(args),
            method=args.method,
            per_channel=not args.per_tensor,
            equalise=args.equalise,
            correct_bias=not args.no_bias_correction,
            exclude=args.exclude,
            exclude_worst=args.exclude_worst,
            least_sqnr=args.least_sqnr,
            report=args.report is not None,
            on_progress=tell,
        )
    made.save(args.out)
    told = f"{len(made.ranges)} values quantised by {made.samples} samples ({args.method}) in {args.out}"
    data: dict[str, Any] = {"ranges": made.ranges, "samples": made.samples}
    if made.report is not None:
        data["report"] = made.report.data()
        told = "\n".join([*_reported(args.report, made.report), told])
    _common.write_result(args, data, told)
    return 0


def _reported(place: str | None, report: QdqReport) -> list[str]:
    """Write a report to its file; returns what is printed."""
    if place in (None, _common.STDOUT):
        return [report.markdown()]
    path = Path(place or "")
    if path.suffix == ".json":
        text = json.dumps(_common.plain(report.data()), indent=1, allow_nan=False) + "\n"
    else:
        text = report.html() if path.suffix == ".html" else report.markdown()
    path.write_text(text, "utf-8")
    return [*report.summary, f"report of {len(report.nodes)} nodes in {path}"]


def _suffix(name: str, allowed: tuple[str, ...]) -> None:
    if Path(name).suffix not in allowed:
        listed = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        raise SettingError(f"--report {name}: the name must end with {listed}.")


def _simulate(args: argparse.Namespace) -> int:
    """Simulate a target over the samples and report; return the exit status."""
    from clnn.bridges.quantize import quantize

    excludes = args.exclude or args.exclude_worst or args.least_sqnr is not None
    if args.out or args.per_tensor or excludes:
        raise SettingError(
            "--out, --per-tensor, --exclude, --exclude-worst and --least-sqnr are of no use with --target."
            " Use --export."
        )
    report = Path(args.report) if args.report not in (None, _common.STDOUT) else None
    if report is not None:
        _suffix(args.report, (".html", ".md"))
    feeds = _read(args)
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


def _read(args: argparse.Namespace) -> list[dict[str, Array]]:
    """Return the samples that --samples names. Raises SettingError."""
    from clnn.importers.onnx.info import read_info

    return _feeds(Path(args.samples), [value.name for value in read_info(args.model).inputs])


def _feeds(place: Path, names: list[str]) -> list[dict[str, Array]]:
    """Return the samples of a folder, a file each, or of one file. Raises SettingError."""
    if not place.is_dir():
        return _calibration.read_samples(str(place), names)
    files = sorted(p for p in place.iterdir() if p.suffix in SUFFIXES)
    if not files:
        raise SettingError(f"{place} has no {' or '.join(SUFFIXES)} files. Put a sample in each.")
    loaded = [_common.load_arrays(path) for path in files]
    return [a if isinstance(a, dict) else dict.fromkeys(names, a) for a in loaded]
