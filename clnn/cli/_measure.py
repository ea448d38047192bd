"""Measuring a model: start, latency, device time, throughput, and another engine in turns."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.compile import compile_fixed, compile_staged, load_graph, settled
from clnn.errors import UnsupportedOpError
from clnn.options import Options
from clnn.records import dataclass
from clnn.runtime.doctor.selection import select_device
from clnn.runtime.measure.peak import Peaks, known_peaks, measure_peaks
from clnn.runtime.run.compiled import is_compiled
from clnn.runtime.stages.profile import StagedProfile
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.runtime.device.device import DeviceInfo
    from clnn.runtime.run.session import Session
    from clnn.runtime.stages.session import StagedSession

PROFILED_RUNS = 20
LEAST_RUNS = 3
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class MeasurePlan:
    """What to measure. warmup: runs before; seconds: to measure; runs: number of runs instead
    (0: by time); streams: callers at once; against: another engine or "", with its threads;
    peaks: measure the device's peaks first."""

    warmup: int = 10
    seconds: float = 5.0
    runs: int = 0
    streams: int = 1
    against: str = ""
    threads: int = 0
    peaks: bool = False


@dataclass(frozen=True)
class Other:
    """Another engine's latency, and the ratio of medians (clnn's over its)."""

    engine: str
    title: str
    threads: int
    rounds: int
    latency: dict[str, Any]
    ratio: float


@dataclass(frozen=True)
class Measured:
    """A measurement; all times in seconds.

    latency: n, median, p90, p99, min, max of a call with numpy arrays. kernels, upload, download,
    gap: device times of one caller, `middle`: medians, means of a model in stages. shares: of measured
    peaks, None where unmeasured.
    """

    device: str
    model: str
    dtype: str
    shapes: str
    load: float
    plan: float
    build: float
    programs: tuple[int, int]
    first: float
    arena_bytes: int
    latency: dict[str, Any]
    kernels: float
    upload: float
    download: float
    gap: float
    middle: str
    streams: int
    throughput: float
    flops: float
    nbytes: float
    flops_per_s: float
    bytes_per_s: float
    share_of_flops: float | None
    share_of_bandwidth: float | None
    other: Other | None


def measure(
    plan: MeasurePlan,
    model: str | os.PathLike[str],
    device: str | int | None,
    options: Options,
    shapes: Mapping[str, Sequence[int] | int],
    make_feeds: Callable[[Sequence[Any]], Feeds],
) -> Measured:
    """Measure `model`; `make_feeds` returns the input data for the session's inputs.

    Raises as compile_fixed does, MissingPackageError where the other engine is not installed.
    """
    info = select_device(device)  # whose errors come first, and whose probe counts in nothing
    if plan.streams > 1:
        options = replace(options, states=max(options.states, plan.streams))
    load, session = _loaded(model, device, options, shapes)
    with session:
        peaks = measure_peaks(info) if plan.peaks else known_peaks(info)
        feeds = make_feeds(session.inputs)
        first = _timed(session, feeds)
        other = None
        if plan.against:
            latency, other = _in_turns(plan, session, feeds, model)
            rate = 1 / latency["median"]
        elif plan.streams > 1:
            latency, rate = _streamed(plan, session, feeds)
        else:
            latency, rate = _alone(plan, session, feeds)
        return _report(
            session, info, model, options, load, first, latency, rate, plan, feeds, peaks, other
        )


def _loaded(
    model: str | os.PathLike[str],
    device: str | int | None,
    options: Options,
    shapes: Mapping[str, Sequence[int] | int],
) -> tuple[float, Session | StagedSession]:
    """Return the seconds that reading a model takes, and its session; of stages where values decide shapes."""
    begin = perf_counter()
    if is_compiled(model):
        return perf_counter() - begin, compile_fixed(model, device, options, shapes)
    source, plain = settled(model, device, options, shapes)
    try:
        graph = load_graph(source, shapes)
    except UnsupportedOpError:
        staged = compile_staged(model, device, options, shapes)
        if staged is None:
            raise
        made = sum(staged.placement.seconds.values())  # plans of stages whose shapes are known
        return perf_counter() - begin - made, staged
    load = perf_counter() - begin
    return load, compile_fixed(graph, device, plain)


def _timed(call: Callable[[Feeds], Any], feeds: Feeds) -> float:
    begin = perf_counter()
    call(feeds)
    return perf_counter() - begin


def _statistics(times: Sequence[float]) -> dict[str, Any]:
    sorted_times = np.sort(np.asarray(times))
    p50, p90, p99 = np.percentile(sorted_times, (50, 90, 99))
    return {
        "n": len(times),
        "median": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "min": float(sorted_times[0]),
        "max": float(sorted_times[-1]),
    }


def _repeat(plan: MeasurePlan, call: Callable[[Feeds], Any], feeds: Feeds) -> list[float]:
    """Return the times of as many calls as the plan asks for."""
    times: list[float] = []
    end = perf_counter() + plan.seconds
    while len(times) < plan.runs or (
        not plan.runs and (perf_counter() < end or len(times) < LEAST_RUNS)
    ):
        times.append(_timed(call, feeds))
    return times


def _alone(
    plan: MeasurePlan, session: Session | StagedSession, feeds: Feeds
) -> tuple[dict[str, Any], float]:
    for _ in range(plan.warmup):
        session(feeds)
    times = _repeat(plan, session, feeds)
    return _statistics(times), len(times) / sum(times)


def _streamed(
    plan: MeasurePlan, session: Session | StagedSession, feeds: Feeds
) -> tuple[dict[str, Any], float]:
    """Run several callers at once; return latency statistics and inferences per second."""
    ready = threading.Barrier(plan.streams + 1)
    times: list[list[float]] = [[] for _ in range(plan.streams)]
    faults: list[BaseException] = []

    def caller(mine: list[float]) -> None:
        try:
            for _ in range(plan.warmup):
                session(feeds)
            ready.wait()
            mine += _repeat(plan, session, feeds)
        except BaseException as err:
            faults.append(err)
            ready.abort()

    threads = [threading.Thread(target=caller, args=(mine,)) for mine in times]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        ready.wait()
    begin = perf_counter()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    every = [t for mine in times for t in mine]
    return _statistics(every), len(every) / (perf_counter() - begin)


def _in_turns(
    plan: MeasurePlan, session: Session | StagedSession, feeds: Feeds, model: str | os.PathLike[str]
) -> tuple[dict[str, Any], Other]:
    """Measure clnn and the other engine in turns, so that both meet the same machine."""
    from clnn.verification.onnxruntime import OnnxRuntime

    engine = OnnxRuntime(model, plan.threads)
    for _ in range(max(plan.warmup, 1)):
        session(feeds)
        engine(feeds)
    pairs = _repeat_pairs(plan, session, engine, feeds)
    mine, its = (_statistics(times) for times in zip(*pairs, strict=True))
    ratio = mine["median"] / its["median"]
    return mine, Other(plan.against, engine.title, plan.threads, len(pairs), its, ratio)


def _repeat_pairs(
    plan: MeasurePlan,
    session: Session | StagedSession,
    engine: Callable[[Feeds], Any],
    feeds: Feeds,
) -> list[tuple[float, float]]:
    """Return (clnn's time, the other's) of each round; who begins alternates."""
    pairs: list[tuple[float, float]] = []
    end = perf_counter() + plan.seconds
    while len(pairs) < plan.runs or (
        not plan.runs and (perf_counter() < end or len(pairs) < LEAST_RUNS)
    ):
        if len(pairs) % 2:
            its = _timed(engine, feeds)
            pairs.append((_timed(session, feeds), its))
        else:
            pairs.append((_timed(session, feeds), _timed(engine, feeds)))
    return pairs


def _report(
    session: Session | StagedSession,
    info: DeviceInfo,
    model: str | os.PathLike[str],
    options: Options,
    load: float,
    first: float,
    latency: dict[str, Any],
    rate: float,
    plan: MeasurePlan,
    feeds: Feeds,
    peaks: Peaks | None,
    other: Other | None,
) -> Measured:
    with session.profile() as profile:
        for _ in range(min(PROFILED_RUNS, plan.runs or PROFILED_RUNS)):
            session(feeds)
    times, placement = profile.summary(), session.placement
    spent = placement.seconds
    flops, nbytes = profile.flops * rate, profile.nbytes * rate
    return Measured(
        device=f"{info.index}  {info.name} (driver {info.driver_version}, {info.platform})",
        model=os.fspath(model),
        dtype=options.dtype,
        shapes=" ".join(
            f"{i.name}:{'x'.join(map(str, np.shape(feeds[i.name])))}" for i in session.inputs
        ),
        load=load,
        plan=spent.get("plan", 0.0),
        build=spent.get("build", 0.0) + spent.get("pack", 0.0),
        programs=session.build_counts,
        first=first,
        arena_bytes=placement.arena_bytes,
        latency=latency,
        kernels=times.kernels,
        upload=times.upload,
        download=times.download,
        gap=times.gap,
        middle="mean" if isinstance(profile, StagedProfile) else "median",
        streams=plan.streams,
        throughput=rate,
        flops=profile.flops,
        nbytes=profile.nbytes,
        flops_per_s=flops,
        bytes_per_s=nbytes,
        share_of_flops=flops / peaks.flops if peaks else None,
        share_of_bandwidth=nbytes / peaks.bandwidth if peaks else None,
        other=other,
    )
