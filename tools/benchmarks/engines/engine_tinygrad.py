"""tinygrad with its OpenCL backend, its kernels recorded once and replayed."""

from __future__ import annotations

import os

import numpy as np

from engines import Arrays, Loaded, Setup

KIND = "CL"


def open_model(setup: Setup) -> Loaded:
    os.environ["CACHEDB"] = str(setup.work / "cache.db")
    os.environ["DEV"] = KIND
    import tinygrad
    from tinygrad import Tensor, TinyJit
    from tinygrad.nn.onnx import OnnxRunner

    run = OnnxRunner(setup.model)

    @TinyJit
    def replay(**inputs: Tensor) -> list[Tensor]:
        found = run(dict(inputs))
        return [found[name].realize() for name in setup.outputs]

    def call(feeds: Arrays) -> list[np.ndarray]:
        placed = {n: Tensor(feeds[n], device=KIND).realize() for n in setup.shapes}
        return [t.numpy() for t in replay(**placed)]

    version = getattr(tinygrad, "__version__", "")
    return Loaded(f"tinygrad {version}".strip() + f" ({KIND})", call)
