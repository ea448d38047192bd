"""`clnn doctor`: what is wrong with OpenCL on this machine, and the exact fix."""

from __future__ import annotations

import argparse
import json

from clnn.runtime.doctor import doctor


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "doctor",
        help="check OpenCL on this machine and say how to mend it",
        description="Checks everything from Python to a kernel that runs. Exit status: 0 all is"
        " well, 1 something failed, 3 no usable device.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, fit for a bug report")


def run(args: argparse.Namespace) -> int:
    """Print the report, each check as it is done; return the exit status."""
    if args.json:
        report = doctor.doctor_report()
        print(json.dumps(doctor.report_data(report), indent=2))
        return doctor.exit_code(report)
    report = doctor.doctor_report(
        on_check=lambda check: print(doctor.render_check(check), flush=True)
    )
    print(doctor.conclusion(report))
    return doctor.exit_code(report)
