"""What programs around clnn do: many models in one process, children that compile for themselves.

python embedding_child.py models FOLDER     memory of ten models, as JSON
python embedding_child.py spawn MODEL       sums that children of "spawn" compute, as JSON
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path

import numpy as np

UNITS, MODELS = 1024, 10  # 4 MiB of weights each


def resident() -> int:
    """Bytes of this process that are in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def models(folder: str) -> object:
    """Memory behind the first model and behind the last, and what each model gave."""
    import clnn

    x = np.ones((1, UNITS), np.float32)
    sessions, sums, held = [], [], []
    for k in range(MODELS):
        session = clnn.compile_model(str(Path(folder) / f"{k}.onnx"), "cpu")
        sums.append(float(session({"x": x})["y"].sum()))
        sessions.append(session)
        held.append(resident())
    again = [float(s({"x": x})["y"].sum()) for s in sessions]
    return {"held": held, "sums": sums, "again": again}


def total(path: str) -> float:
    """The sum of what a model makes of ones, in whichever process this runs."""
    import clnn

    with clnn.compile_model(path, "cpu") as session:
        return float(session({"x": np.ones((1, UNITS), np.float32)})["y"].sum())


def spawn(path: str) -> object:
    """Sums of a parent that uses the device, and of two children at a time, which it does not give it."""
    own = total(path)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return {"own": own, "children": pool.map(total, [path] * 3)}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])))
