"""`clnn compile`: writes a model compiled for a device to a file that needs nothing else to run."""

from __future__ import annotations

import argparse
import os

from clnn.cli import _common
from clnn.errors import SettingError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "compile",
        help="write a model compiled for a device to a file",
        description="Compiles a model and writes its plan, packed constants and kernels to one file, which"
        " clnn.load and the other commands take in place of the model. All dimensions must be known.",
    )
    _common.add_model(parser, "--option")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="file to write (the model's name with .clnn)"
    )


def run(args: argparse.Namespace) -> int:
    """Compile and write; return the exit status."""
    from clnn.runtime.run.compiled import refuse_compiled

    _common.settle(args)
    refuse_compiled(args.model)
    target = args.output or f"{os.path.splitext(args.model)[0]}.clnn"
    if os.path.abspath(target) == os.path.abspath(args.model):
        raise SettingError(f"{target} is the model itself. Name another file: -o FILE")
    with _common.compile_from(args) as session:
        session.save(target)
        device, (cached, built) = session.device.title, session.build_counts
    nbytes = os.path.getsize(target)
    report = {"file": target, "bytes": nbytes, "device": device, "programs": cached + built}
    text = f"{target}: {nbytes / 1e6:.1f} MB, {cached + built} programs for {device}"
    _common.write_result(args, report, text)
    return 0
