from __future__ import annotations

import numpy as np

from engines import Arrays, Loaded, Setup


def open_model(setup: Setup) -> Loaded:
    import openvino as ov

    core = ov.Core()
    model = core.read_model(setup.model)
    model.reshape({name: list(shape) for name, shape in setup.shapes.items()})
    config = {
        "INFERENCE_NUM_THREADS": setup.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": setup.dtype,
    }
    request = core.compile_model(model, "CPU", config).create_infer_request()

    def call(feeds: Arrays) -> list[np.ndarray]:
        found = request.infer(dict(feeds), share_inputs=True)
        return [np.array(found[k]) for k in range(len(setup.outputs))]

    of = "" if setup.dtype == "f32" else f" {setup.dtype}"
    return Loaded(f"openvino {ov.__version__.split('-')[0]}{of}", call)
