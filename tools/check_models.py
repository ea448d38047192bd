"""Run every model of a folder on its recorded inputs and compare with its recorded outputs.

    python tools/check_models.py DIR [--device D] [--only GLOB] [--strict] [--json]

DIR holds one folder per model: model.onnx, and expected.npz with arrays `in:NAME` and `out:NAME`.
Errors are the largest difference over the largest recorded magnitude of an output. Quantised models
are compared with onnxruntime on these inputs instead, with and without its graph optimisations: where
these two agree, elements must be equal to the bit, else no further from the optimised run than the
other one is, with the same largest element; the share of equal elements is printed. Exit status: 0,
1 when a model fails (with --strict also when one is not supported), 2 wrong use, 3 no device.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import clnn
from clnn.errors import MissingPackageError, NoDeviceError, UnsupportedOpError
from clnn.verification.compare import difference
from clnn.verification.quantised import is_quantised, shares

LIMIT, SUSPECT = 1e-3, 1e-4
MODEL, ARRAYS = "model.onnx", "expected.npz"
EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_NO_DEVICE = 0, 1, 2, 3


@dataclass
class Outcome:
    """What became of one model. state: passed, failed, unsupported or skipped.

    equal: of a quantised model, the share of elements that are those of onnxruntime.
    """

    name: str
    state: str
    error: float | None = None
    detail: str = ""
    seconds: float = 0.0
    equal: float | None = None

    @property
    def suspect(self) -> bool:
        measured = self.error is not None and self.equal is None
        return self.state == "passed" and measured and (self.error or 0) > SUSPECT

    def line(self) -> str:
        error = "-" if self.error is None else f"{self.error:.2e}"
        look = "  LOOK: over 1e-4" if self.suspect else ""
        return f"{self.name:<44} {error:>9}  {self.state}{look}  {self.detail}".rstrip()


def arrays_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs and outputs of an expected.npz by name."""
    with np.load(path, allow_pickle=False) as stored:
        parts: dict[str, dict[str, Any]] = {"in": {}, "out": {}}
        for key in stored.files:
            side, _, name = key.partition(":")
            if side not in parts or not name:
                raise ValueError(f"{path} has an array {key!r}: keys must be in:NAME or out:NAME")
            parts[side][name] = stored[key]
    return parts["in"], parts["out"]


def check(folder: Path, device: str | None) -> Outcome:
    """Run one model and compare all its recorded outputs."""
    feeds, wanted = arrays_of(folder / ARRAYS)
    if not wanted:
        return Outcome(folder.name, "skipped", None, f"{ARRAYS} holds no outputs")
    begin = perf_counter()
    shapes = {name: array.shape for name, array in feeds.items()}
    with clnn.compile_model(folder / MODEL, device, shapes=shapes) as session:
        got = session(feeds)
    seconds = perf_counter() - begin
    missing = sorted(set(wanted) - set(got))
    if missing:
        return Outcome(folder.name, "failed", None, f"outputs {missing} are missing", seconds)
    found = [difference(name, got[name], array, LIMIT) for name, array in wanted.items()]
    if is_quantised(folder / MODEL):
        return quantised(folder, feeds, got, max(d.relative for d in found), seconds)
    worst = max(found, key=lambda d: d.relative)
    detail = ""
    if not worst.passed:
        detail = f"output {worst.name} {worst.at}: got {worst.got:.6g}, must be {worst.want:.6g}"
    state = "passed" if all(d.passed for d in found) else "failed"
    return Outcome(folder.name, state, worst.relative, detail, seconds)


def quantised(
    folder: Path, feeds: dict[str, Any], got: dict[str, Any], error: float, seconds: float
) -> Outcome:
    """Return what became of a quantised model; error: against the recorded outputs."""
    try:
        rows = shares(folder / MODEL, feeds, got)
    except MissingPackageError as err:
        return Outcome(folder.name, "skipped", error, first_line(err), seconds)
    worst = min(rows.values(), key=lambda row: (row.passed, row.equal))
    state = "passed" if worst.passed else "failed"
    return Outcome(folder.name, state, error, worst.line(), seconds, worst.equal)


def outcome_of(folder: Path, device: str | None) -> Outcome:
    """Return check's outcome; an error that the model causes is an outcome too."""
    missing = [name for name in (MODEL, ARRAYS) if not (folder / name).is_file()]
    if missing:
        return Outcome(folder.name, "skipped", None, f"no {' and no '.join(missing)}")
    try:
        return check(folder, device)
    except NoDeviceError:
        raise
    except UnsupportedOpError as err:
        return Outcome(folder.name, "unsupported", None, reason(err))
    except Exception as err:  # one model's defect must not hide what the others do
        return Outcome(folder.name, "failed", None, f"{type(err).__name__}: {first_line(err)}")


def reason(error: UnsupportedOpError) -> str:
    """Return the operators that are missing, with their numbers of nodes."""
    ops = Counter(
        p.op_type if p.domain == "ai.onnx" else f"{p.domain}::{p.op_type}" for p in error.problems
    )
    return ", ".join(f"{count} {op}" for op, count in ops.items()) or first_line(error)


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare models with their recorded outputs.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--device", default=None)
    parser.add_argument("--only", default="*", metavar="GLOB", help="names of models to run")
    parser.add_argument("--strict", action="store_true", help="unsupported models are failures")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    folders = sorted(p for p in args.folder.iterdir() if p.is_dir()) if args.folder.is_dir() else []
    folders = [p for p in folders if fnmatch(p.name, args.only)]
    if not folders:
        print(f"no folder in {args.folder} matches {args.only!r}.", file=sys.stderr)
        return EXIT_USAGE
    outcomes = []
    for folder in folders:
        try:
            outcomes.append(outcome_of(folder, args.device))
        except NoDeviceError as err:
            print(f"NoDeviceError: {err}", file=sys.stderr)
            return EXIT_NO_DEVICE
        if not args.json:
            print(outcomes[-1].line(), flush=True)
    return conclude(outcomes, args.strict, args.json)


def conclude(outcomes: list[Outcome], strict: bool, as_json: bool) -> int:
    """Print the closing count (or everything as JSON); return the exit status."""
    count = Counter(outcome.state for outcome in outcomes)
    left = count["skipped"] + count["unsupported"]
    if as_json:
        print(json.dumps({"models": [asdict(o) for o in outcomes], "count": count}, indent=2))
    else:
        note = f" ({count['unsupported']} of them unsupported)" if count["unsupported"] else ""
        print(f"{count['passed']} passed, {count['failed']} failed, {left} skipped{note}")
    bad = count["failed"] + (count["unsupported"] if strict else 0)
    return EXIT_FAILED if bad else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
