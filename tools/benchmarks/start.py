#!/usr/bin/env python3
"""Time from the start of a process to a model's first answer, by each way to start, in turns.

    python tools/benchmarks/start.py MODEL... [--ways cold,ready,gears,set,warm,file,floor,onnxruntime]
        [--rounds N] [--device D] [--speed S] [--json FILE]

cold: nothing is in the cache but what is known of the device. set: besides that, the universal set, on
which the model runs (`clnn prepare`, Options(specialise="never")). gears: the same with
Options(specialise="background"), which would change to other kernels later; ready: until it has, which is to
be compared with cold. warm: the cache is as an earlier start left it. file: from the .clnn file of the model.
floor: the least that numpy and pyopencl take without clnn to load that file's programs, map it as a buffer
and copy an input of that size. onnxruntime: the same model in it, where it is installed. Each start is a
process of its own, and imports count, of modules that were compiled before. Medians of wall-clock seconds until
the first answer (ready: all kernels) and until the process's end, and of CPU seconds, children of the process
included; `clnn bench --start` says where they go. --speed: seconds in which runs on the universal set and on
the model's own kernels are timed in turns, in one process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("onnxruntime", "floor", "file", "warm", "set", "gears", "ready", "cold")
TOLD = """
import time
print(time.time())
"""
CLNN = (
    """
import sys, numpy as np, clnn
session = {make}
session({{port.name: np.zeros(port.shape, port.dtype) for port in session.inputs}})
"""
    + TOLD
)
PROGRAMS = {
    "onnxruntime": """
import sys, numpy as np, onnxruntime as ort
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8}
session.run(None, {port.name: np.zeros(port.shape, kinds[port.type]) for port in session.get_inputs()})
"""
    + TOLD,
    "file": CLNN.format(make="clnn.load(sys.argv[1], sys.argv[2])"),
    "warm": CLNN.format(make="clnn.compile_model(sys.argv[1], sys.argv[2])"),
    "floor": """
import os, sys, tempfile, numpy as np
folder = tempfile.TemporaryDirectory()
os.environ["POCL_CACHE_DIR"] = folder.name  # as in clnn, which has the binaries elsewhere
import pyopencl as cl
platform, size, *binaries = sys.argv[2].split(",")
(device,) = (d for p in cl.get_platforms() for d in p.get_devices() if p.name + d.name == platform)
context = cl.Context([device])
for path in binaries:
    program = cl.Program(context, [device], [open(path, "rb").read()])
    program.build(cache_dir=False).all_kernels()
whole, flags = np.memmap(sys.argv[1], np.uint8, "c"), cl.mem_flags
constants = cl.Buffer(context, flags.READ_ONLY | flags.USE_HOST_PTR, hostbuf=whole)
queue, given = cl.CommandQueue(context), np.zeros(int(size), np.uint8)
cl.enqueue_copy(queue, cl.Buffer(context, flags.READ_WRITE, given.nbytes), given)
queue.finish()
"""
    + TOLD,
    "binaries": """
import sys
from clnn.runtime.device.device import select
from clnn.runtime.run.saved import read_network
path, device, folder, told = sys.argv[1:]
network, info = read_network(path), select(device)
paths = [f"{folder}/binary{k}" for k in range(len(network.binaries))]
for name, binary in zip(paths, network.binaries.values()):
    open(name, "wb").write(binary)
size = sum(port.type.nbytes for port in network.plan.inputs)
open(told, "w").write(",".join([info.platform + info.name, str(size), *paths]))
""",
    "save": "import sys, clnn\nclnn.compile_model(sys.argv[1], sys.argv[2]).save(sys.argv[3])",
    "probe": "import sys\nfrom clnn.runtime.device.device import select\nselect(sys.argv[1])",
}
PROGRAMS["cold"] = PROGRAMS["warm"]
PROGRAMS["prepare"] = (
    "import sys\nfrom clnn.cli.main import main\nmain(['prepare', '-d', sys.argv[1]])"
)
PROGRAMS["set"] = CLNN.format(
    make="clnn.compile_model(sys.argv[1], sys.argv[2], clnn.Options(specialise='never'))"
)
PROGRAMS["gears"] = PROGRAMS["set"].replace("never", "background")
PROGRAMS["ready"] = PROGRAMS["gears"].replace(TOLD, "assert session.ready()" + TOLD)
# In turns: seconds of a run of a session's own kernels, and on the set.
PROGRAMS["speed"] = """
import json, sys, time, numpy as np, clnn
sessions = [clnn.compile_model(sys.argv[1], sys.argv[2], clnn.Options(specialise=s)) for s in ("", "never")]
feeds = {port.name: np.zeros(port.shape, port.dtype) for port in sessions[0].inputs}
times, end = [[], []], time.monotonic() + float(sys.argv[3])
for session in sessions: session(feeds)
while time.monotonic() < end:
    for session, found in zip(sessions, times):
        began = time.perf_counter()
        session(feeds)
        found.append(time.perf_counter() - began)
json.dump(times, open(sys.argv[4], "w"))
"""


def seconds(program: str, cache: Path, *arguments: object) -> tuple[float, float, float]:
    """Return the seconds until a process's first answer, until its end, and of CPU. Raises CalledProcessError.

    Where it tells no answer, that is its end.
    """
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "CLNN_CACHE_DIR": str(cache), "PYTHONPATH": paths}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["PYTHONPYCACHEPREFIX"] = str(cache.parent / "bytecode")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    command = [sys.executable, "-c", PROGRAMS[program], *map(str, arguments)]
    done = subprocess.run(
        command, check=True, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    ended, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    told = [float(line) for line in done.stdout.splitlines() if program in WAYS]
    answered = told[-1] if told else ended
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return answered - began, ended - began, cpu


def show(title: str, way: str, times: Sequence[float]) -> None:
    """Print a row."""
    print(f"{title:<20} {way:<12} {' '.join(f'{t:8.3f}' for t in times)}", flush=True)


def starts(
    model: Path, ways: list[str], rounds: int, device: str, folder: Path
) -> dict[str, list[tuple[float, float, float]]]:
    """Return the seconds of each start by its way."""
    probed, warm, stored = folder / "probed", folder / "warm", folder / f"{model.stem}.clnn"
    if not probed.exists():
        seconds("probe", probed, device)
    known = folder / "known"
    if {"set", "gears", "ready"} & {*ways} and not known.exists():
        shutil.copytree(probed, known)
        show("the set itself", "prepare", seconds("prepare", known, device))
    if {"file", "floor"} & {*ways}:
        seconds("save", warm, model, device, stored)
        seconds("binaries", warm, stored, device, folder, folder / "told")
    if "warm" in ways:
        seconds("warm", warm, model, device)
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            cache = warm
            if way in ("cold", "set", "gears", "ready"):
                cache = folder / "cold"
                shutil.rmtree(cache, ignore_errors=True)
                shutil.copytree(probed if way == "cold" else known, cache)
            what = stored if way in ("file", "floor") else model
            how = (folder / "told").read_text() if way == "floor" else device
            found[way].append(seconds(way, cache, what, how))
    return found


def share_of_speed(
    model: Path, device: str, speed: float, folder: Path
) -> tuple[float, float, float]:
    """Return medians of a run of the model's own kernels and on the set, in s, and of what pairs' ratios are."""
    told = folder / "times.json"
    seconds("speed", folder / "warm", model, device, speed, told)
    own, universal = json.loads(told.read_text())
    return (
        median(own),
        median(universal),
        median(a / b for a, b in zip(own, universal, strict=True)),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--speed", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    ways = [way for way in WAYS if way in args.ways.split(",")]
    if importlib.util.find_spec("onnxruntime") is None:
        ways = [way for way in ways if way != "onnxruntime"]
    told = {}
    print(f"{'model':<20} {'way':<12} {'answer s':>8} {'end s':>8} {'CPU s':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            found = starts(model.resolve(), ways, args.rounds, args.device, Path(folder))
            for way, rows in found.items():
                times = [median(row[k] for row in rows) for k in range(3)]
                told.setdefault(model.stem, {})[way] = dict(
                    zip(("answer", "end", "cpu"), times, strict=True)
                )
                show(model.stem, way, times)
            if args.speed:
                path = model.resolve()
                own, on_set, share = share_of_speed(path, args.device, args.speed, Path(folder))
                told[model.stem]["speed"] = {"own": own, "set": on_set, "share": share}
                print(f"{model.stem:<20} a run: own {own:.4f}, set {on_set:.4f}, share {share:.3f}")
    if args.json:
        args.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
