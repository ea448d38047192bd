#!/usr/bin/env python3
"""Run ONNX's backend tests on a device and say what passed, per operator.

    python tools/onnx_suite.py [--device NAME | --numpy] [--match REGEX] [--write] [--failures]

--numpy runs the imported graphs by their numpy references, without a device. --write rewrites
tests/onnx_suite/expected.txt with what passed. The exit status is 1 when a result is not as listed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "onnx_suite")]

import suite

VERDICTS = ("passed", "refused", "failed")
BATCH = 100
HEAD = """\
# Backend tests of ONNX (onnx {version}) that pass on clnn, with the operator that each is about.
# Written by tools/onnx_suite.py. A test that passes and is not listed here, or that is listed and
# does not pass, is an error.
"""


def main() -> int:
    args = _arguments()
    cases = [c for c in suite.all_cases().values() if re.search(args.match, c.name)]
    outcomes = run(cases, None if args.numpy else args.device)
    print(table(cases, outcomes))
    if args.failures:
        print(*failures(outcomes), sep="\n")
    if args.write:
        write(outcomes, args.match)
    return verdict(outcomes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=os.environ.get("CLNN_DEVICE", "cpu"))
    parser.add_argument(
        "--numpy", action="store_true", help="no device: numpy references of the ops"
    )
    parser.add_argument("--match", default="", help="only tests whose names match this expression")
    parser.add_argument(
        "--write", action="store_true", help="rewrite expected.txt with what passed"
    )
    parser.add_argument(
        "--failures", action="store_true", help="print why tests failed or were refused"
    )
    return parser.parse_args()


def run(cases: Sequence[suite.Case], device: str | None) -> list[suite.Outcome]:
    """Run all cases, their kernels built many at a time."""
    if device is None:
        return [suite.judge(case, suite.on_numpy) for case in cases]
    os.environ["CLNN_DEVICE"] = device
    outcomes = []
    for start in range(0, len(cases), BATCH):
        batch = cases[start : start + BATCH]
        suite.build_ahead(batch, device)
        outcomes += [suite.judge(case, suite.on_backend) for case in batch]
        print(f"\r{len(outcomes)} of {len(cases)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return outcomes


def table(cases: Sequence[suite.Case], outcomes: Sequence[suite.Outcome]) -> str:
    """Return one row per operator: how many tests ran, passed, were refused, failed; the reason."""
    rows = suite.exclusions()
    counts: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(VERDICTS, 0))
    reasons: dict[str, set[str]] = defaultdict(set)
    for case, outcome in zip(cases, outcomes, strict=True):
        counts[case.op][outcome.verdict] += 1
        if outcome.verdict == "refused":
            reasons[case.op].add(suite.exclusion(case.name, rows) or "NOT LISTED")
    lines = [f"{'operator':<32} {'run':>5} {'passed':>6} {'refused':>7} {'failed':>6}  why refused"]
    for op, found in sorted(counts.items()):
        numbers = (sum(found.values()), *(found[v] for v in VERDICTS))
        lines.append(_row(op, numbers, "; ".join(sorted(reasons[op]))))
    total = [sum(found[v] for found in counts.values()) for v in VERDICTS]
    return "\n".join([*lines, _row("all", (sum(total), *total), "")])


def _row(name: str, numbers: Sequence[int], why: str) -> str:
    run_, passed, refused, failed = numbers
    return f"{name[:32]:<32} {run_:>5} {passed:>6} {refused:>7} {failed:>6}  {why}".rstrip()


def failures(outcomes: Sequence[suite.Outcome]) -> list[str]:
    return [f"{o.verdict} {o.name}: {o.why}" for o in outcomes if o.verdict != "passed"]


def write(outcomes: Sequence[suite.Outcome], match: str) -> None:
    """Rewrite expected.txt; tests that did not run keep their place in it."""
    import onnx

    ran, cases = {o.name for o in outcomes}, suite.all_cases()
    passed = {n: op for n, op in suite.expected_passes().items() if match and n not in ran}
    passed |= {o.name: cases[o.name].op for o in outcomes if o.verdict == "passed"}
    text = HEAD.format(version=onnx.__version__)
    text += "".join(f"{name} {op}\n" for name, op in sorted(passed.items()))
    (suite.FOLDER / "expected.txt").write_text(text, encoding="utf-8")
    print(f"{len(passed)} names written to tests/onnx_suite/expected.txt")


def verdict(outcomes: Sequence[suite.Outcome]) -> int:
    """Print what is not as listed; return 1 where there is something."""
    wrong = suite.unexpected(outcomes)
    if wrong:
        print(f"{len(wrong)} tests are not as listed:", *wrong, sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
