"""Measures layers of a sweep as networks run them, and what the device reaches at most."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from engines import DTYPES

from clnn.api import compile_model
from clnn.errors import ClnnError
from clnn.options import Options
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.measure.peak import known_peaks, measure_peaks
from clnn.runtime.measure.peak_mma import KINDS, product_rate
from clnn.runtime.run.profile import Row as Layer
from sweeps.cases import Case, sampled

LEAST_RUNS, MOST_RUNS = 5, 30
SECONDS = 0.4  # of runs of one layer
F32 = "f32"


@dataclass
class Ceilings:
    """What the device reaches at most, per second. bandwidth: bytes read and written by a copy.

    rates: operations by kind, "f32" of multiply-adds, others of tensor cores. missing: kind -> why.
    """

    bandwidth: float = 0.0
    launch: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def ceilings(info: DeviceInfo, tell: Callable[[str], None] = lambda text: None) -> Ceilings:
    """Measure what the device reaches at most; what fails is told in `missing`."""
    found = Ceilings()
    try:
        peaks = known_peaks(info) or measure_peaks(info)
        found.bandwidth, found.launch = peaks.bandwidth, peaks.launch
        found.rates[F32] = peaks.flops
        tell(f"copy {peaks.bandwidth / 1e9:.0f} GB/s, f32 {peaks.flops / 1e9:.0f} GFLOP/s")
    except ClnnError as err:
        found.missing[F32] = str(err)
    if not info.caps.ptx_mma:
        found.missing["tensor cores"] = info.caps.ptx_mma.reason
        tell(f"tensor cores: {info.caps.ptx_mma.reason}")
        return found
    for kind in KINDS:
        try:
            found.rates[kind] = product_rate(info, kind)
            tell(f"tensor cores, {kind}: {found.rates[kind] / 1e12:.1f} TFLOP/s")
        except ClnnError as err:
            found.missing[kind] = str(err)
            tell(f"tensor cores, {kind}: {err}")
    return found


@dataclass
class Row:
    """One layer with one kind of numbers. fault: why there are no figures.

    ceiling: the kind of Ceilings.rates that the kernel is held to. of_rate, of_bandwidth: shares of
    the ceilings. of_bound: share of what the stricter one of both allows.
    """

    label: str
    dtype: str
    kind: str = ""
    origin: str = ""
    variant: str = ""
    kernel: str = ""
    why: str = ""
    seconds: float = 0.0
    gflops: float = 0.0
    gbytes: float = 0.0
    ceiling: str = ""
    of_rate: float | None = None
    of_bandwidth: float | None = None
    of_bound: float | None = None
    error: float = 0.0
    fault: str = ""


def available(dtypes: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return those of `dtypes` that clnn has, and why the others are left out."""
    have: list[str] = []
    lacks: dict[str, str] = {}
    for dtype in dtypes:
        try:
            Options(dtype=dtype)
            have.append(dtype)
        except ClnnError as err:
            lacks[dtype] = str(err)
    return have, lacks


def measure(case: Case, dtype: str, info: DeviceInfo, most: Ceilings, tune: str) -> Row:
    """Run one layer; a failure is the row's `fault`."""
    row = Row(case.label, dtype, case.kind, getattr(case, "origin", ""))
    feed = np.random.default_rng(2).standard_normal(case.shape, np.float32)
    try:
        _run(case, feed, row, info, most, tune)
    except (ClnnError, MemoryError) as err:
        row.fault = " ".join(f"{type(err).__name__}: {err}".split())[:300]
    except Exception as err:  # a driver's own error: the other layers go on
        row.fault = " ".join(f"{type(err).__name__}: {err}".split())[:300]
    return row


def _run(case: Case, feed: Any, row: Row, info: DeviceInfo, most: Ceilings, tune: str) -> None:
    given: dict[str, Any] = {}
    if row.dtype == "int8":
        given["calibration"] = [{"x": feed}]
    options = Options(dtype=row.dtype, tune=tune)
    with compile_model(case.model(), info.index, options, **given) as session:
        found = next(iter(session({"x": feed}).values()))
        row.error = error_of(case, feed, found)
        if not row.error <= DTYPES[row.dtype]:
            row.fault = f"wrong values: error {row.error:.3g}, allowed {DTYPES[row.dtype]:.3g}"
            return
        with session.profile(None, True) as profile:
            begin = perf_counter()
            for number in range(MOST_RUNS):
                if number >= LEAST_RUNS and perf_counter() - begin > SECONDS:
                    break
                session({"x": feed})
        reasons = {node["node"]: str(node.get("why", "")) for node in session.placement.nodes}
        layers = profile.rows()
    layer = max(layers, key=lambda r: r.gflops * r.seconds)
    row.why = reasons.get(layer.node, "")
    fill(row, layer, most)


def error_of(case: Case, feed: Any, found: Any) -> float:
    """Return the largest error at sampled places, relative to the largest value there."""
    places = sampled(case)
    want = case.expected(feed, places)
    got = np.asarray(found, np.float64).ravel()[places]
    error = float(np.abs(got - want).max() / max(float(np.abs(want).max()), 1e-30))
    return error if np.isfinite(error) else float("inf")


def ceiling_of(names: str, dtype: str) -> str:
    """Return the ceiling that a layer is held to: its tensor cores', or float32's.

    names: of its variant and its kernels, of which the slowest may only add up parts.
    """
    found = re.search(r"_mma_(f16|bf16|tf32|s8|u8)_", names)
    if found:
        return "s8" if found[1] == "u8" else found[1]  # one rate for bytes of either sign
    return "" if dtype == "int8" else F32


def fill(row: Row, layer: Layer, most: Ceilings) -> None:
    """Fill in times, rates and shares from the profile of a layer."""
    row.variant, row.kernel, row.seconds = layer.variant, layer.kernel, layer.seconds
    row.gflops, row.gbytes = layer.gflops, layer.gbytes
    row.ceiling = ceiling_of(f"{layer.variant} {layer.kernel}", row.dtype)
    rate = most.rates.get(row.ceiling, 0.0)
    if not layer.seconds:
        row.fault = "the device gave no time for the kernel"
        return
    if rate:
        row.of_rate = layer.gflops * 1e9 / rate
    if most.bandwidth:
        row.of_bandwidth = layer.gbytes * 1e9 / most.bandwidth
    if rate and most.bandwidth:
        row.of_bound = max(row.of_rate or 0.0, row.of_bandwidth or 0.0)
