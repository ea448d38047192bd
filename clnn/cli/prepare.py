"""`clnn prepare`: builds the universal set of kernels, so that models start on it without a build."""

from __future__ import annotations

import argparse

from clnn.cli import _common


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "prepare",
        help="build the universal set of kernels for a CPU",
        description="Builds the universal set of kernels for a CPU device and keeps it in the cache."
        ' Models then start on it with Options(specialise="never"), and build only what it cannot compute.',
    )
    parser.add_argument("-d", "--device", metavar="D", help="device (see clnn devices)")
    parser.add_argument("--json", metavar="FILE", help="write the result to FILE as JSON")


def run(args: argparse.Namespace) -> int:
    """Build what is missing and tell; return the exit status."""
    from clnn.runtime.doctor.selection import select_device
    from clnn.runtime.run.universal import build_set

    info = select_device(args.device)
    cached, built = build_set(info)
    report = {"device": info.title, "programs": cached + built, "built": built}
    text = f"universal set for {info.title}: {'built' if built else 'it was there'}"
    _common.write_result(args, report, text)
    return 0
