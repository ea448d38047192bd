#!/usr/bin/env python3
"""Mutation testing: small faults planted one by one in passes, planner and epilogue templates.

    python tools/mutation.py [--count N] [--seed S] [--only PART] [--list] [--seconds T] [--unchecked]

Each mutant is a copy of the checkout with one operator, number or condition changed; the tests that cover
its file run on it, and one that fails kills it. Prints each survivor with its place, then killed of all.
Exit status: 0, 1 where mutants survive, 2 where the tests fail without any.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
COUNT, SECONDS = 300, 240
GOLDEN = "tests/golden/test_golden.py::test_kernel_sources_are_as_kept"
POST_OPS = "tests/ops/shared/test_binary_post_ops.py"
PLAN = (
    "tests/plan/test_plan.py",
    "tests/plan/test_batch_split.py",
    "tests/plan/test_open_extents.py",
)
ELEMENTS = ("tests/ops/elementwise/test_eltwise.py", POST_OPS)
# File or folder -> the tests that cover it, those that cost least first.
COVERED = {
    "clnn/graph/passes": (GOLDEN, "tests/graph", POST_OPS),
    "clnn/graph/passes/_quantised.py": ("tests/graph/test_fuse_quantised.py", GOLDEN),
    "clnn/graph/passes/fuse_quantised.py": ("tests/graph/test_fuse_quantised.py", GOLDEN),
    "clnn/graph/passes/quantise.py": ("tests/graph/test_quantise_pass.py", GOLDEN),
    "clnn/graph/passes/fuse_separable.py": ("tests/graph/test_fuse_separable.py", GOLDEN),
    "clnn/graph/passes/fuse_functions.py": ("tests/graph/test_fuse_functions.py", GOLDEN),
    "clnn/graph/passes/functions_before_joins.py": ("tests/graph/test_functions_before_joins.py",),
    "clnn/graph/passes/functions_before_views.py": ("tests/graph/test_functions_before_views.py",),
    "clnn/graph/passes/split_windows.py": ("tests/graph/test_split_windows.py",),
    "clnn/graph/passes/fuse_shuffle.py": ("tests/graph/test_fuse_shuffle.py", GOLDEN),
    "clnn/graph/passes/fuse_branches.py": ("tests/graph/test_fuse_branches.py", GOLDEN),
    "clnn/graph/passes/fuse_groups.py": ("tests/graph/test_fuse_groups.py", GOLDEN),
    "clnn/graph/passes/fuse_norm.py": (GOLDEN, "tests/ops/elementwise/test_batchnorm.py"),
    "clnn/graph/passes/fuse_pad.py": (GOLDEN, "tests/ops/movement/test_pad.py"),
    "clnn/graph/passes/fuse_post_ops.py": (GOLDEN, POST_OPS, "tests/codegen/test_fused_kernel.py"),
    "clnn/graph/passes/store.py": ("tests/graph/test_storage_pass.py", GOLDEN),
    "clnn/graph/passes/_stored.py": ("tests/graph/test_storage_pass.py", GOLDEN),
    "clnn/plan/placement.py": ("tests/plan/test_memory.py",),
    "clnn/plan/memory.py": ("tests/plan/test_memory.py", "tests/plan/test_dirty_borders.py"),
    "clnn/plan/slots.py": ("tests/plan/test_dirty_borders.py", *PLAN),
    "clnn/plan/batch_split.py": ("tests/plan/test_batch_split.py",),
    "clnn/plan": (GOLDEN, *PLAN, "tests/plan/test_memory.py"),
    "kernels_cl/_common/epilogue.cl.mako": ELEMENTS,
    "kernels_cl/_common/rows.cl.mako": ("tests/ops/rows", "tests/runtime/test_any_rows.py"),
}
COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
SWAPPED = {
    **COMPARED,
    "+": "-",
    "-": "+",
    "*": "+",
    "//": "*",
    "and": "or",
    "or": "and",
    "not in": "in",
    "min(": "max(",
    "max(": "min(",
    "True": "False",
    "False": "True",
    "all(": "any(",
    "any(": "all(",
    "continue": "break",
    "is not": "is",
}
TOKEN = re.compile(
    r"(?<![\w<>=!+*/-])(?:<=|>=|==|!=|<|>|\+|-|//|\*|and|or|not in|is not|True|False|continue)(?= )"
    r"|\b(?:min|max|all|any)\(|(?<![\w.])[0-9](?![\w.])"
)


@dataclass(frozen=True)
class Mutant:
    """`new` in the place of `old`, at a character of a file."""

    file: str
    at: int
    old: str
    new: str

    def plant(self, root: Path) -> None:
        """Change the file below `root`."""
        path = root / self.file
        text = path.read_text("utf-8")
        assert text.startswith(self.old, self.at), self
        path.write_text(text[: self.at] + self.new + text[self.at + len(self.old) :], "utf-8")
        _forget(path)

    def restore(self, root: Path) -> None:
        """Have the file below `root` as it was."""
        shutil.copy(ROOT / self.file, root / self.file)
        _forget(root / self.file)

    @property
    def place(self) -> str:
        """What people need to find it."""
        text = (ROOT / self.file).read_text("utf-8")
        number = text.count("\n", 0, self.at)
        return f"{self.file}:{number + 1}: {self.old} -> {self.new}   {text.splitlines()[number].strip()}"


def _forget(path: Path) -> None:
    """Remove what Python compiled of a file, which it may take for that of the changed one."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def covering(file: str) -> Sequence[str]:
    """Return the tests that cover a file."""
    return COVERED[max((place for place in COVERED if file.startswith(place)), key=len)]


def files(only: str = "") -> list[str]:
    """Return the files that mutants are planted in."""
    found = {
        p
        for place in COVERED
        for p in ([ROOT / place] if "." in Path(place).name else (ROOT / place).glob("*.py"))
    }
    names = sorted(p.relative_to(ROOT).as_posix() for p in found)
    return [name for name in names if only in name]


def mutants(file: str, text: str) -> Iterator[Mutant]:
    """Yield every mutant of a file, none in comments, texts, types and imports."""
    taken = _left_out(file, text)
    for found in TOKEN.finditer(text):
        old = found[0]
        if any(begin <= found.start() < end for begin, end in taken):
            continue
        new = str(int(old) + 1) if old.isdigit() else SWAPPED.get(old)
        if new is not None:
            yield Mutant(file, found.start(), old, new)


def _left_out(file: str, text: str) -> list[tuple[int, int]]:
    spans = [
        m.span() for m in re.finditer(r"(?m)#.*$|^(?:from|import) .*$|^\s*assert .*$|-> .*:$", text)
    ]
    if file.endswith(".mako"):
        return spans + [
            m.span() for m in re.finditer(r"(?s)<%doc>.*?</%doc>|\"\"\".*?\"\"\"", text)
        ]
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line.decode()))
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text or isinstance(node, (ast.Raise, ast.JoinedStr)):
            last = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[operator]
            spans.append((starts[node.lineno - 1] + node.col_offset, last))
        elif isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            kind = node.annotation
            spans.append(
                (
                    starts[kind.lineno - 1] + kind.col_offset,
                    starts[kind.end_lineno - 1] + kind.end_col_offset,
                )
            )  # type: ignore[operator]
    return spans


def sample(count: int, seed: int, only: str = "") -> list[Mutant]:
    """Return mutants drawn from a seed."""
    every = [m for f in files(only) for m in mutants(f, (ROOT / f).read_text("utf-8"))]
    chance = random.Random(seed)
    return chance.sample(every, min(count, len(every)))


def copy_of_checkout(folder: Path) -> Path:
    """Copy what tests need; return the copy."""
    for name in ("clnn", "kernels_cl", "tests", "tools", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def preload() -> None:
    """Import what tests import of others: each mutant is tried in a fork of this process."""
    for name in (
        "pytest",
        "numpy",
        "onnx",
        "onnxruntime",
        "hypothesis",
        "mako.template",
        "pyopencl",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def passes(root: Path, tests: Sequence[str], seconds: float) -> bool:
    """Tell whether tests pass in a copy; a run that takes too long does not."""
    child = os.fork()
    if not child:
        _run(root, tests)
    ended = _wait(child, time.monotonic() + seconds)
    if ended is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print(f"(it took more than {seconds:g} s)", end=" ")
    return ended == 0


def _run(root: Path, tests: Sequence[str]) -> NoReturn:
    """Run tests in a copy, in a group of processes of their own, and end with pytest's exit status."""
    status = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        os.chdir(root)
        os.environ["PYTHONPATH"] = str(root)
        sys.path.insert(0, str(root))
        plain = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
        status = int(pytest.main([*plain, *tests]))
    finally:
        os._exit(status)


def _wait(child: int, until: float) -> int | None:
    """Return a child's exit status, None where it has not ended in time."""
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    return None


def main() -> int:
    args = _arguments()
    drawn = sample(args.count, args.seed, args.only)
    if args.list:
        print("\n".join(m.place for m in drawn))
        return 0
    preload()
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        root = copy_of_checkout(Path(folder))
        for tests in sorted({tuple(covering(m.file)) for m in drawn if not args.unchecked}):
            print(f"without a mutant: {' '.join(tests)}", flush=True)
            if not passes(root, tests, 4 * args.seconds):
                print(f"without a mutant these fail: {' '.join(tests)}")
                return 2
        for number, mutant in enumerate(drawn, 1):
            mutant.plant(root)
            survived = passes(root, covering(mutant.file), args.seconds)
            mutant.restore(root)
            survivors += [mutant] if survived else []
            print(f"{number} {'SURVIVED' if survived else 'killed'} {mutant.place}", flush=True)
    print(f"{len(drawn) - len(survivors)} of {len(drawn)} mutants killed")
    return int(bool(survivors))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of the names of files")
    parser.add_argument(
        "--unchecked", action="store_true", help="the tests are known to pass without a mutant"
    )
    parser.add_argument("--list", action="store_true", help="show mutants, run nothing")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="for the tests of one mutant"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
