"""`clnn verify`: compare a model's outputs, and its layers, with another engine."""

from __future__ import annotations

import argparse

from clnn.cli import _calibration, _common

EXIT_DIFFERENT = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "verify",
        help="compare a model's results with another engine's",
        description="Runs a model on a device and compares it with ONNX Runtime, with numpy in"
        " double precision, or with the golden values that an .espdl file brings along. Exit status:"
        " 0 all within tolerance, 1 not.",
    )
    _common.add_model(parser)
    _common.add_inputs(parser)
    parser.add_argument(
        "--against",
        choices=("auto", "onnxruntime", "reference", "golden"),
        default="auto",
        help="auto: the golden values of an .espdl file, else onnxruntime",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="X",
        help="error allowed, relative to an output's largest magnitude (default: by --dtype)",
    )
    parser.add_argument(
        "--calibrate",
        metavar="N|FILE",
        help="for int8: N random samples, an .npz of samples, or a .json of ranges",
    )
    parser.add_argument(
        "--per-layer", action="store_true", help="compare every node of the unfused network too"
    )
    parser.add_argument(
        "--bisect",
        action="store_true",
        help="search the first wrong node of the network as it is compiled",
    )


def run(args: argparse.Namespace) -> int:
    """Compare and print; return the exit status."""
    from clnn.api import verify

    _common.settle(args)
    shapes = _common.shapes_of(args)
    names = _input_names(args)
    options = _common.options_of(args)
    report = verify(
        args.model,
        args.against,
        args.device,
        args.per_layer,
        shapes,
        bisect=args.bisect,
        feeds=_common.given_inputs(args.input, names),
        seed=args.seed,
        tolerance=args.tolerance,
        options=options,
        calibration=_calibration.given(args.calibrate, names),
    )
    _common.write_result(args, report.to_dict(), report.text())
    return 0 if report else EXIT_DIFFERENT


def _input_names(args: argparse.Namespace) -> list[str]:
    if not (args.input or args.calibrate):
        return []
    from clnn.importers.onnx.info import read_info

    return [value.name for value in read_info(args.model).inputs]
