"""`clnn bench`: how fast a model starts and runs, in which parts of the time, against what peak."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from clnn.cli import _common
from clnn.errors import SettingError

if TYPE_CHECKING:
    from clnn.cli._measure import Measured

HINTS = ("latency", "throughput")
STARTS = 5  # processes that --start measures


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "bench",
        help="measure start, latency and throughput of a model",
        description="Measures how long a model takes to load, plan, build and run, on random input"
        " unless --input gives some.",
    )
    _common.add_model(parser)
    _common.add_inputs(parser)
    parser.add_argument("--warmup", type=int, default=10, metavar="N", help="runs not measured")
    parser.add_argument("--time", type=float, default=5.0, metavar="S", help="seconds to measure")
    parser.add_argument("--runs", type=int, default=0, metavar="N", help="runs, not --time")
    parser.add_argument(
        "--hint",
        choices=HINTS,
        default="latency",
        help="latency: one caller; throughput: --streams callers at once",
    )
    parser.add_argument("--streams", type=int, default=2, metavar="N", help="callers at once")
    parser.add_argument(
        "--against",
        choices=("onnxruntime",),
        help="take turns with another engine on the same input",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="threads of the other engine (0: its own choice)",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure the device's peaks first (kept in the cache)",
    )
    parser.add_argument(
        "--start",
        action="store_true",
        help="start the model in processes of their own, --runs of them (5), and print where the time"
        " to the first answer goes",
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print; return the exit status."""
    from clnn.cli._measure import MeasurePlan, measure

    _common.settle(args)
    _check(args)
    if args.start:
        return _starts(args)
    streams = args.streams if args.hint == "throughput" else 1
    plan = MeasurePlan(
        args.warmup, args.time, args.runs, streams, args.against or "", args.threads, args.measure
    )
    measured = measure(
        plan,
        args.model,
        args.device,
        _common.options_of(args),
        _common.shapes_of(args),
        lambda inputs: _common.feeds_of(args, inputs),
    )
    _common.write_result(args, measured, text(measured))
    return 0


def _starts(args: argparse.Namespace) -> int:
    """Measure starts and print; return the exit status."""
    from clnn.cli._start import measure_starts, text

    options, shapes = _common.options_of(args), _common.shapes_of(args)
    start = measure_starts(args.model, args.device, options, shapes, args.runs or STARTS)
    _common.write_result(args, start, text(start))
    return 0


def _check(args: argparse.Namespace) -> None:
    for name, least in (("warmup", 0), ("runs", 0), ("streams", 1), ("threads", 0)):
        if getattr(args, name) < least:
            raise SettingError(f"--{name} is {getattr(args, name)}. It must be at least {least}.")
    if not (math.isfinite(args.time) and args.time > 0):
        raise SettingError(f"--time is {args.time}. It must be a number of seconds above 0.")
    if args.against and args.hint == "throughput":
        raise SettingError(
            f"--against {args.against} takes turns, one caller at a time. Use --hint latency."
        )


def text(m: Measured) -> str:
    """Return a measurement as text."""
    cached, built = m.programs
    lines = [
        f"device   {m.device}",
        f"model    {m.model}  {m.dtype}  {m.shapes}",
        f"load {_ms(m.load)} ms   plan {_ms(m.plan)} ms   build {_ms(m.build)} ms"
        f" ({cached}/{cached + built} from cache)   first inference {_ms(m.first)} ms"
        f"   arena {m.arena_bytes / 1e6:.1f} MB",
        f"latency  {_latency(m.latency)}   (host+device, copies included)",
        f"         device-only {m.middle} {_ms(m.kernels)} ms   H2D {_ms(m.upload)}   D2H"
        f" {_ms(m.download)}   launch gap {_ms(m.gap)}",
        f"throughput {m.throughput:.4g} inf/s{_streams(m)}   {_rate(m.flops_per_s, 'FLOP/s')}"
        f"{_share(m.share_of_flops, 'peak')}   {_rate(m.bytes_per_s, 'B/s')}"
        f"{_share(m.share_of_bandwidth, 'bandwidth')}",
    ]
    if m.other is not None:
        lines += [
            f"{m.other.title}, {m.other.threads or 'its own number of'} threads:"
            f" {_latency(m.other.latency)}",
            f"ratio    {m.other.ratio:.3f} (clnn / {m.other.engine}, medians of"
            f" {m.other.rounds} interleaved rounds; below 1 clnn is faster)",
        ]
    return "\n".join(lines)


def _latency(values: dict[str, Any]) -> str:
    parts = [f"{name} {_ms(values[name])}" for name in ("median", "p90", "p99", "min", "max")]
    return f"n={values['n']}  {'  '.join(parts)} ms"


def _streams(m: Measured) -> str:
    return f" with {m.streams} callers" if m.streams > 1 else ""


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.3f}"


def _rate(value: float, unit: str) -> str:
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def _share(share: float | None, what: str) -> str:
    return "" if share is None else f" ({share * 100:.0f} % of measured {what})"
