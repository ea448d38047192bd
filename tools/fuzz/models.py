#!/usr/bin/env python3
"""Hostile ONNX models: each must be refused with an error of clnn's, or run right.

    python tools/fuzz/models.py [--count N | --long] [--seed S] [--fresh N] [--keep FOLDER] [--state FILE]
    python tools/fuzz/models.py --replay FILE

Model S + k is made from that number alone: a sound model (tools/fuzz/model_seeds.py) with fields or bytes
changed (tools/fuzz/mutations.py). It is imported from a file, its passes run, and it is planned, in a child
process with limits of time and memory; what small models compute, by clnn's numpy references, is compared
with onnxruntime's results where that takes the model, too. A finding is: an exception that is no ClnnError,
a crash, a hang, memory over the limit, data from outside the model's folder, other results.
Exit status: 0, 1 where there is a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "fuzz")]
os.environ.setdefault("CLNN_MAX_BYTES", str(64 * 2**20))

import numpy as np
import onnx
from children import Limits, Progress, calls_of, end_with_children, rows
from drawing import evaluate_all, moderate
from model_seeds import seeds
from mutations import Mutator

from clnn.errors import ClnnError, OpenShapeError, UnsupportedOpError
from clnn.graph.ir import Graph
from clnn.graph.passes import optimise
from clnn.importers.onnx.importer import import_onnx
from clnn.importers.onnx.stages.build import read_program
from clnn.plan.schedule import make_plan
from clnn.target import Target
from clnn.verification.reference import reference_values

COUNT, LONG = 2_000, 100_000
SECONDS = 10  # of the processor, for one model
GROWTH = 2**30  # bytes that one model may take
SMALL = 20_000  # elements of all values, up to which results are compared
LIMITS = Limits(batch=2_000, seconds=600.0, memory=4 * 2**30)
MOVED = 2e-5  # of inputs, to see which results hang on rounding
SECRET = bytes.fromhex("5eC7e75eC7e75eC7e75eC7e7")


class LateError(Exception):
    """A model took more than SECONDS."""


def surroundings(folder: Path) -> Path:
    """Make a folder for models with what their data may and must not come from; return it."""
    inside = folder / "model"
    (inside / "sub" / "deep").mkdir(parents=True)
    (folder / "secret.bin").write_bytes(SECRET * 400)
    (inside / "link.bin").symlink_to(folder / "secret.bin")
    (inside / "links").symlink_to(folder)
    os.link(folder / "secret.bin", inside / "hard.bin")
    os.mkfifo(inside / "pipe")
    for place in ("w.bin", "sub/w.bin"):
        (inside / place).write_bytes(np.arange(1024, dtype=np.float32).tobytes())
    return inside


def attempt(data: bytes, folder: Path) -> tuple[str, str]:
    """Return what became of a model ("refused", "accepted", "staged"), and what is wrong with that."""
    path = folder / "net.onnx"
    path.write_bytes(data)
    try:
        graph = import_onnx(path)
        _inside(graph)
        optimised = optimise(graph)
        make_plan(optimised, Target())
    except ClnnError as err:
        if not 10 < len(str(err)) < 20_000:
            return "refused", f"a message of {len(str(err))} characters: {str(err)[:100]}"
        if not isinstance(err, (UnsupportedOpError, OpenShapeError)):
            return "refused", ""
        with contextlib.suppress(ClnnError):
            read_program(path)
            return "staged", ""
        return "refused", ""
    if sum(t.size for t in graph.types.values()) > SMALL or not all(map(moderate, _floats(graph))):
        return "accepted", ""
    return "compared", _compared(data, graph, optimised)


def _floats(graph: Graph) -> list[np.ndarray]:
    return [array for array in graph.consts.values() if array.dtype.kind == "f"]


def _inside(graph: Graph) -> None:
    """Raise where a constant holds what lies outside of the model's folder."""
    for name, array in graph.consts.items():
        if SECRET in array.tobytes():
            raise RuntimeError(f"constant {name} holds data from outside of the model's folder")


def _compared(data: bytes, graph: Graph, optimised: Graph) -> str:
    """Return how clnn's references and onnxruntime differ on a model that both take."""
    chance = np.random.default_rng(len(data))
    feeds = {
        n: _feed(graph.types[n].shape, graph.types[n].dtype.numpy, chance) for n in graph.inputs
    }
    moved = {n: a * a.dtype.type(1 + MOVED) if a.dtype.kind == "f" else a for n, a in feeds.items()}
    try:
        model = onnx.load_model_from_string(data)
        if _apart_from_onnx(model):
            return ""
        names = {v.name for v in model.graph.input}
        fed = [{n: row[n] for n in row if n in names} for row in (feeds, moved)]
        with calls_of("onnxruntime"):
            want, other = evaluate_all(model, fed)
    except LateError:
        return ""
    except Exception:  # whatever onnxruntime does not take
        return ""
    for one in (graph, optimised):
        with np.errstate(all="ignore"):
            made = reference_values(one, feeds)
        for public, name in one.outputs.items():
            got = made[name].astype(
                one.types[name].dtype.numpy
            )  # references are in double precision
            if public in want and (told := _apart(got, want[public], other[public])):
                return f"output {public!r}: {told}"
    return ""


def _apart_from_onnx(model: onnx.ModelProto) -> bool:
    """Tell whether a model has what onnxruntime does otherwise than ONNX: places of a scalar."""
    scalars = {t.name for t in model.graph.initializer if not t.dims}
    return any(n.op_type == "NonZero" and scalars & set(n.input) for n in model.graph.node)


def _feed(shape: tuple[int, ...], dtype: np.dtype[Any], chance: np.random.Generator) -> Any:
    if dtype.kind == "f":
        return np.asarray(chance.integers(-16, 17, shape) / 8, dtype)
    return chance.integers(0, 2 if dtype.kind == "b" else 5, shape).astype(dtype)


def _apart(got: Any, want: Any, other: Any) -> str:
    if (
        got.dtype.kind != "f"
        and np.shape(got) == np.shape(want)
        and np.abs(got - 1.0 * want).max(initial=0) <= 1
    ):
        return ""  # on which side of a step a number is
    if (
        not isinstance(want, np.ndarray)
        or want.shape != other.shape
        or want.dtype.kind not in "fiub"
    ):
        return ""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} for {want.dtype}{want.shape}"
    a, b, c = (x.astype(np.float64) for x in (got, want, other))
    allowed = 1e-3 * max(1.0, float(np.abs(b).max(initial=0)))
    if not np.abs(c - b).max(initial=0) <= allowed / 4 or not np.abs(b).max(initial=0) < 1e6:
        return ""
    worst = float(np.abs(a - b).max(initial=0))
    return "" if worst <= allowed else f"differs by {worst} of {np.abs(b).max(initial=0)}"


def worker(first: int, count: int, folder: Path) -> None:
    """Try models and say of each what became of it, a line of JSON each."""
    signal.signal(signal.SIGPROF, _late)
    with tempfile.TemporaryDirectory() as around:
        inside = surroundings(Path(around))
        os.chdir(inside)
        models = seeds()
        for seed in range(first, first + count):
            print(json.dumps({"seed": seed}), flush=True)
            began, peak = sum(os.times()[:2]), _peak()
            data = Mutator(seed).mutated(models)
            wrong, fate = "", ""
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                fate, wrong = attempt(data, inside)
            except Exception as err:  # that is the finding
                where = traceback.extract_tb(err.__traceback__)[-1]
                wrong = f"{type(err).__name__}: {str(err)[:200]} ({Path(where.filename).name}:{where.lineno})"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            if _peak() - peak > GROWTH:
                wrong = wrong or f"it took {(_peak() - peak) >> 20} MiB"
            if wrong:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{seed}.onnx").write_bytes(data)
            cpu = round(sum(os.times()[:2]) - began, 4)
            print(json.dumps({"seed": seed, "wrong": wrong, "ops": [fate], "cpu": cpu}), flush=True)


def _late(*_: object) -> None:
    raise LateError(f"more than {SECONDS} s of the processor")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(first: int, count: int, folder: Path, limits: Limits = LIMITS) -> Iterator[dict[str, Any]]:
    """Yield a row for each model, tried in children."""

    def command(first: int, count: int, _group: int) -> list[str]:
        return [sys.executable, __file__, "--worker", str(first), str(count), "--keep", str(folder)]

    return rows(first, count, command, limits)


def main() -> int:
    args = _arguments()
    args.keep = args.keep.absolute()
    if args.worker:
        worker(*args.worker, args.keep)
        return 0
    end_with_children()
    if args.replay:
        with tempfile.TemporaryDirectory() as around:
            print(*attempt(args.replay.read_bytes(), surroundings(Path(around))))
        return 0
    spans = [(args.seed, LONG if args.long else args.count, args.state)]
    if args.fresh:
        spans.append((int(time.time()) * 1000 % 2**40, args.fresh, None))
    return int(sum([_span(*span, args.keep) for span in spans]) > 0)


def _span(seed: int, count: int, state: Path | None, folder: Path) -> int:
    """Try models from a seed on; return how many findings there are."""
    so_far, fates = (
        Progress.of(state, seed),
        dict.fromkeys(("refused", "staged", "accepted", "compared"), 0),
    )
    first = so_far.first + so_far.done
    print(f"models {first} to {so_far.first + count - 1}", flush=True)
    for row in run(first, count - so_far.done, folder):
        so_far.take(row)
        for fate in row.get("ops", []):
            fates[fate] = fates.get(fate, 0) + 1
        if row["wrong"]:
            print(
                f"{row['seed']}: {row['wrong']}\n  python tools/fuzz/models.py --replay"
                f" {folder / str(row['seed'])}.onnx",
                flush=True,
            )
    so_far.save()
    found = len(so_far.wrong or {})
    told = ", ".join(f"{n} {fate}" for fate, n in fates.items() if n and fate)
    print(
        f"{so_far.done} models: {told}; {found} findings, {1e3 * so_far.cpu / max(so_far.done, 1):.1f} ms of CPU each"
    )
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--long", action="store_true", help=f"{LONG} models")
    parser.add_argument("--seed", "--from", type=int, default=1, help="the first model")
    parser.add_argument("--state", type=Path, help="file of what was done; goes on from it")
    parser.add_argument("--fresh", type=int, default=0, help="models from a new seed besides")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--replay", type=Path, help="file of a finding")
    parser.add_argument("--worker", nargs=2, type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
