from __future__ import annotations

from typing import Any

import numpy as np

from engines import Arrays, EngineError, Loaded, Setup

PROFILED = 10
SAMPLES = 2


def open_model(setup: Setup) -> Loaded:
    import clnn
    from clnn.errors import SettingError
    from clnn.options import Options
    from clnn.runtime.doctor.selection import select_device
    from clnn.runtime.measure.peak import known_peaks, measure_peaks

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
        times = profile.summary()
        peaks = known_peaks(info) or measure_peaks(info)
        return {
            "flops": profile.flops,
            "bytes": profile.nbytes,
            "peak_flops": peaks.flops,
            "peak_bandwidth": peaks.bandwidth,
            "kernels_s": times.kernels,
            "gap_s": times.gap,
            "device_s": times.kernels + times.gap,
            "arena_bytes": session.placement.arena_bytes,
        }

    of = "" if setup.dtype == "f32" else f" {setup.dtype}"
    facts = {"device": info.title, "driver": info.driver_version}
    title = f"clnn {clnn.__version__}{of} on {info.platform}"
    return Loaded(title, call, facts, finish, session.close)


def _samples(setup: Setup) -> list[dict[str, np.ndarray]]:
    """Return random inputs, as those that are measured, to calibrate with."""
    rng = np.random.default_rng(1000)
    return [
        {n: rng.standard_normal(s).astype(np.float32) for n, s in setup.shapes.items()}
        for _ in range(SAMPLES)
    ]
