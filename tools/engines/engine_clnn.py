from __future__ import annotations

from typing import Any

import numpy as np

from engines import Arrays, Loaded, Setup

PROFILED = 10


def open_model(setup: Setup) -> Loaded:
    import clnn
    from clnn.runtime.device import select
    from clnn.runtime.peak import known_peaks, measure_peaks

    info = select(setup.device)
    session = clnn.compile_model(setup.model, setup.device, shapes=dict(setup.shapes))

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
            "flops": profile.flops, "bytes": profile.nbytes, "peak_flops": peaks.flops,
            "peak_bandwidth": peaks.bandwidth, "kernels_s": times.kernels, "gap_s": times.gap,
            "arena_bytes": session.placement.arena_bytes,
        }  # fmt: skip

    title = f"clnn {clnn.__version__} on {info.platform}"
    return Loaded(title, call, {"device": info.title}, finish)
