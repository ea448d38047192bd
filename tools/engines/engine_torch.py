"""PyTorch eager kernels in a frozen, traced module; the model is converted by onnx2torch."""

from __future__ import annotations

import numpy as np

from engines import Arrays, EngineError, Loaded, Setup


def open_model(setup: Setup) -> Loaded:
    import torch
    from onnx2torch import convert

    torch.set_num_threads(setup.threads)
    examples = [torch.zeros(shape) for shape in setup.shapes.values()]
    try:
        with torch.inference_mode():
            traced = torch.jit.trace(convert(str(setup.model)).eval(), examples)
            module = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
    except NotImplementedError as err:
        raise EngineError(f"onnx2torch does not convert the model: {err}") from err

    def call(feeds: Arrays) -> list[np.ndarray]:
        with torch.inference_mode():
            found = module(*(torch.from_numpy(feeds[name]) for name in setup.shapes))
        tensors = found if isinstance(found, (list, tuple)) else [found]
        return [t.numpy() for t in tensors]

    return Loaded(f"torch {torch.__version__}", call)
