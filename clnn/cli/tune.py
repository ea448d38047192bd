"""`clnn tune`: measure which kernels are fastest for a model on a device, and keep the results."""

from __future__ import annotations

import argparse
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clnn.cli import _common
from clnn.cli._progress import progress
from clnn.errors import SettingError

EXIT_INTERRUPTED = 130
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "tune",
        help="measure which kernels are fastest for a model",
        description="Builds, checks and times kernels of every layer in child processes, the largest"
        " share of the time first, and keeps the results for later sessions. Ctrl-C ends it early;"
        " what was measured is kept, and --resume goes on from there.",
    )
    _common.add_model(parser)
    parser.add_argument(
        "--budget",
        type=seconds,
        default=0.0,
        metavar="TIME",
        help="time for all, building the network included: 60s, 5m (default: 30s with --quick,"
        " 250s with --full)",
    )
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--quick", action="store_true", help="try few kernels for each layer")
    level.add_argument("--full", action="store_true", help="try many kernels (default)")
    parser.add_argument("--resume", action="store_true", help="measure only what has no result yet")
    parser.add_argument("--retry", action="store_true", help="try again what failed before")
    parser.add_argument(
        "--export-defaults",
        metavar="FILE",
        type=Path,
        help="write this device's results as a file of shipped defaults; with MODEL: tune it first",
    )


def seconds(text: str) -> float:
    """Parse 90, 90s, 5m or 1h as seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no time. Write 90s, 5m or 1h.")
    return float(found.group(1)) * _UNITS[found.group(2)]


def run(args: argparse.Namespace) -> int:
    """Tune, print the report; return the exit status."""
    if args.export_defaults and args.model is None:
        return _export(args)
    from clnn.api import tune_model

    _common.settle(args)
    options = _common.options_of(args)
    with progress() as show, _one_interrupt():
        report = tune_model(
            args.model,
            args.device,
            options,
            _common.shapes_of(args),
            level="quick" if args.quick else "full",
            budget=args.budget,
            resume=args.resume,
            retry=args.retry,
            progress=show,
        )
    data: dict[str, Any] = {"model": args.model, **_common.plain(report)}
    _common.write_result(args, data, f"device   {report.device}\n{report.text()}")
    if args.export_defaults and report.finished:
        return _export(args)
    return 0 if report.finished else EXIT_INTERRUPTED


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """Let the first Ctrl-C end the measuring; the report and the clean-up are not interrupted."""

    def first(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _export(args: argparse.Namespace) -> int:
    from clnn.runtime.doctor.selection import select_device
    from clnn.tune.defaults import export_lines
    from clnn.tune.store import TuningStore

    info = select_device(args.device)
    results = TuningStore(info).results()
    if not results:
        raise SettingError(
            f"nothing is stored for {info.title} with its present driver. Run `clnn tune MODEL` first."
        )
    text = export_lines(info, results)
    args.export_defaults.write_text(text, encoding="utf-8")
    better = len(text.splitlines()) - 1
    _common.tell(
        f"{args.export_defaults}: {better} of {len(results)} problems, those with a kernel that was "
        "faster in the network than the estimate's"
    )
    return 0
