from __future__ import annotations

import numpy as np

from clnn.verification.onnxruntime import OnnxRuntime
from engines import Arrays, Loaded, Setup


def open_model(setup: Setup) -> Loaded:
    import onnxruntime  # noqa: F401  raises ImportError, which OnnxRuntime would reword

    engine = OnnxRuntime(setup.model, setup.threads)

    def call(feeds: Arrays) -> list[np.ndarray]:
        found = engine(feeds)
        return [found[name] for name in setup.outputs]

    return Loaded(engine.title, call)
