"""MNN on the CPU in float32, its model converted by MNN's own converter."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from engines import Arrays, EngineError, Loaded, Setup


def open_model(setup: Setup) -> Loaded:
    import MNN
    from MNN import expr, nn

    path = setup.work / "net.mnn"
    if not path.exists():
        _convert(setup, path)
    config = {"backend": "CPU", "precision": "high", "numThread": setup.threads}
    runtime = nn.create_runtime_manager((config,))
    names = list(setup.shapes)
    net = nn.load_module_from_file(str(path), names, list(setup.outputs), runtime_manager=runtime)
    dims = {name: list(shape) for name, shape in setup.shapes.items()}

    def call(feeds: Arrays) -> list[np.ndarray]:
        placed = [
            expr.convert(expr.const(feeds[n], dims[n], expr.NCHW), expr.NC4HW4)
            if len(dims[n]) == 4
            else expr.const(feeds[n], dims[n], expr.NCHW)
            for n in names
        ]
        return [np.array(v.read()) for v in (_plain(o) for o in net.forward(placed))]

    def _plain(value: object) -> object:
        return expr.convert(value, expr.NCHW)

    return Loaded(f"MNN {MNN.version()}", call)


def _convert(setup: Setup, path: object) -> None:
    # MNN's own command line would install packages into the environment, and report its use.
    code = "import MNN, sys, _tools; _tools.mnnconvert(sys.argv)"
    command = [
        sys.executable,
        "-c",
        code,
        "-f",
        "ONNX",
        "--modelFile",
        str(setup.model),
        "--MNNModel",
        str(path),
        "--bizCode",
        "clnn",
    ]
    done = subprocess.run(command, cwd=setup.work, capture_output=True, text=True, check=False)
    if done.returncode:
        text = (done.stderr or done.stdout).strip()[-200:]
        raise EngineError(f"mnnconvert does not convert the model: {text}")
