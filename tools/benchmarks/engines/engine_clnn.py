from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engines import Arrays, EngineError, Loaded, Setup
from engines.drawing import arrays

if TYPE_CHECKING:
    from clnn.runtime.measure.peak import Peaks
    from clnn.runtime.run.profile import Row

PROFILED = 10
SAMPLES = 2
SHOWN = 3  # layers that fall short


def open_model(setup: Setup) -> Loaded:
    import clnn
    from clnn.errors import SettingError
    from clnn.options import Options
    from clnn.runtime.doctor.selection import select_device
    from clnn.runtime.measure.peak import known_peaks, measure_peaks
    from clnn.runtime.stages.profile import StagedProfile

    info = select_device(setup.device)
    try:
        options = Options(dtype=setup.dtype)
    except SettingError as err:
        raise EngineError(f"this version of clnn has no {setup.dtype}: {err}") from err
    given: dict[str, Any] = {"shapes": dict(setup.shapes)}
    if setup.dtype == "int8":
        given["calibration"] = _samples(setup)
    session = clnn.compile_model(setup.model, setup.device, options, **given)

    def call(feeds: Arrays) -> list[np.ndarray]:
        found = session(feeds)
        return [found[name] for name in setup.outputs]

    def finish(feeds: Arrays) -> dict[str, Any]:
        with session.profile() as profile:
            for _ in range(PROFILED):
                session(feeds)
        if isinstance(profile, StagedProfile):  # steps on the host between stages
            return {"device_s": profile.device_s / PROFILED}
        times = profile.summary()
        peaks = known_peaks(session.device) or measure_peaks(session.device)
        return {
            "flops": profile.flops,
            "bytes": profile.nbytes,
            "peak_flops": peaks.flops,
            "peak_bandwidth": peaks.bandwidth,
            "kernels_s": times.kernels,
            "gap_s": times.gap,
            "device_s": times.kernels + times.gap,
            "arena_bytes": session.placement.arena_bytes,
            "short": _short(profile.rows(peaks), peaks),
        }

    of = "" if setup.dtype == "f32" else f" {setup.dtype}"
    facts = {"device": info.title, "driver": info.driver_version}
    title = f"clnn {clnn.__version__}{of} on {info.platform}"
    return Loaded(title, call, facts, finish, session.close)


def _short(rows: Sequence[Row], peaks: Peaks) -> list[dict[str, Any]]:
    """Return the layers that take the most time beyond what the device's rates ask for, worst first."""
    found = []
    for row in rows:
        memory = row.gbytes * 1e9 / peaks.bandwidth
        lost = row.seconds * (1 - min(1.0, max(row.of_peak, memory)))
        found.append((lost, row.node, row.seconds, row.of_peak, memory))
    found.sort(reverse=True)
    names = ("lost_s", "node", "seconds", "of_peak", "of_bandwidth")
    return [dict(zip(names, values, strict=True)) for values in found[:SHOWN]]


def _samples(setup: Setup) -> list[dict[str, np.ndarray]]:
    """Return random inputs, as those that are measured, to calibrate with."""
    return [arrays(setup.shapes, setup.draws, 1000 + k) for k in range(SAMPLES)]
