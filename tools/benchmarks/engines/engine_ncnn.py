"""ncnn, its model converted by pnnx; batch 1 only, for ncnn's tensors have no batch axis."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from engines import Arrays, EngineError, Loaded, Setup


def open_model(setup: Setup) -> Loaded:
    import ncnn

    if any(shape[0] != 1 for shape in setup.shapes.values()):
        raise EngineError("ncnn has no batch axis: batch 1 only")
    param = setup.work / "net.ncnn.param"
    if not param.exists():
        _convert(setup)
    net = ncnn.Net()
    net.opt.num_threads = setup.threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = False
    if net.load_param(str(param)) or net.load_model(str(setup.work / "net.ncnn.bin")):
        raise EngineError("ncnn does not load what pnnx wrote")
    ins, outs = list(net.input_names()), list(net.output_names())

    def call(feeds: Arrays) -> list[np.ndarray]:
        extractor = net.create_extractor()
        for blob, name in zip(ins, setup.shapes, strict=True):
            extractor.input(blob, ncnn.Mat(feeds[name][0]))
        found = []
        for blob in outs:
            status, mat = extractor.extract(blob)
            if status:
                raise EngineError(f"ncnn fails with status {status}")
            found.append(np.array(mat)[None])
        return found

    return Loaded(f"ncnn {ncnn.__version__}", call)


def _convert(setup: Setup) -> None:
    model = setup.work / "net.onnx"
    shutil.copyfile(setup.model, model)
    shapes = ",".join(f"[{','.join(map(str, s))}]" for s in setup.shapes.values())
    beside = str(Path(sys.executable).parent)
    tool = shutil.which("pnnx") or shutil.which("pnnx", path=beside)
    if tool is None:
        raise ImportError(f"the command pnnx is neither on PATH nor in {beside}")
    done = subprocess.run(
        [tool, str(model), f"inputshape={shapes}", "fp16=0"],
        cwd=setup.work,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not (setup.work / "net.ncnn.param").exists():
        raise EngineError(f"pnnx does not convert the model: {done.stderr.strip()[-200:]}")
    unknown = re.findall(r"(?m)^(pnnx\.\S+|aten::\S+)", (setup.work / "net.ncnn.param").read_text())
    if unknown:
        raise EngineError(f"ncnn lacks {', '.join(sorted(set(unknown)))}")
