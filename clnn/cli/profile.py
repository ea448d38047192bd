"""`clnn profile`: the device time of every layer, as a table, CSV and a Chrome trace."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from clnn.cli import _common
from clnn.errors import SettingError

if TYPE_CHECKING:
    from clnn.runtime.measure.peak import Peaks
    from clnn.runtime.run.profile import Profile
    from clnn.runtime.stages.profile import StagedProfile


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "profile",
        help="measure every layer of a model",
        description="Measures the device time of every layer. What bounds a layer (mem, compute,"
        " launch) is shown once the device's peaks were measured (--measure). Profiling slows the"
        " host down; latency is what `clnn bench` says.",
    )
    _common.add_model(parser)
    _common.add_inputs(parser)
    parser.add_argument("--trace", metavar="FILE", help="write a Chrome trace (Perfetto) as well")
    parser.add_argument("--csv", metavar="FILE", help="write all layers as CSV as well")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="show the N slowest layers")
    parser.add_argument("--warmup", type=int, default=3, metavar="N", help="runs not measured")
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="runs measured")
    parser.add_argument(
        "--separate",
        action="store_true",
        help="measure launch by launch what runs join into few kernels",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure the device's peaks first (kept in the cache)",
    )
    parser.add_argument(
        "--in-turns",
        action="store_true",
        help="measure the multiply-add rate between the runs, for machines whose"
        " clocks change; layers are compared with its median",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; return the exit status."""
    from clnn.runtime.doctor.selection import select_device
    from clnn.runtime.measure.peak import PeakBench, known_peaks, measure_peaks
    from clnn.runtime.run.session import Session

    _common.settle(args)
    if args.runs < 1 or args.warmup < 0 or args.top < 0:
        raise SettingError(
            f"--runs is {args.runs}, --warmup {args.warmup}, --top {args.top}."
            " They must be at least 1, 0 and 0."
        )
    with _common.compile_any(args) as session:
        info = session.device if isinstance(session, Session) else select_device(args.device)
        peaks = measure_peaks(info) if args.measure else known_peaks(info)
        if args.in_turns and peaks is None:
            peaks = measure_peaks(info)
        rate, rates = PeakBench(info).flops_again() if args.in_turns else None, []
        feeds = _common.feeds_of(args, session.inputs)
        for _ in range(args.warmup):
            session(feeds)
        with session.profile(args.trace, args.separate) as profile:
            for _ in range(args.runs):
                if rate is not None:
                    rates.append(rate())
                session(feeds)
        if peaks is not None and any(rates):
            peaks = replace(peaks, flops=median(filter(None, rates)))
        if args.csv:
            Path(args.csv).write_text(profile.to_csv(peaks), encoding="utf-8")
        data = {
            "device": info.title,
            "model": args.model,
            "peaks": peaks and asdict(peaks),
            **_found(profile, peaks),
        }
        head = f"device   {info.title}\nmodel    {args.model}"
        _common.write_result(args, data, f"{head}\n{profile.table(args.top, peaks)}")
    return 0


def _found(profile: Profile | StagedProfile, peaks: Peaks | None) -> dict[str, Any]:
    """Return what a profile found as data."""
    from clnn.runtime.stages.profile import StagedProfile

    if not isinstance(profile, StagedProfile):
        return {"summary": profile.summary(), "layers": profile.rows(peaks)}
    return {
        "summary": {"runs": profile.runs, "device": profile.device_s, "host": profile.host_s},
        "stages": {
            name: [{"summary": one.summary(), "layers": one.rows(peaks)} for one in found]
            for name, found in profile.stages.items()
        },
        "steps": profile.slowest,
    }
