#!/usr/bin/env python3
"""Run the kernels under Oclgrind and tell what it finds; exit status 1 when there is anything.

The same checks as tests/oclgrind, with figures, for one case or all of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "oclgrind"))

import gate


def check(mode: str, folder: Path, jobs: Sequence[dict[str, str]], long: bool) -> int:
    """Run one mode, print its figures and complaints, return how many there are."""
    began = time.monotonic()
    result = gate.run(mode, folder, jobs, long=long)
    rows = result.report.get("rows", [])
    found = gate.complaints(result) + ([] if jobs else gate.incomplete(result))
    for text in found:
        print(f"{text}\n")
    slowest = max(rows, key=lambda row: float(row["seconds"]), default={})
    print(
        f"{mode}: {len(rows)} cases, {result.report.get('kernels', 0)} kernels,"
        f" {len(result.report.get('rendered', []))} templates, {len(found)} complaints,"
        f" {time.monotonic() - began:.0f} s, the longest {slowest.get('case')}"
        f" ({slowest.get('seconds')} s)"
    )
    return len(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="more shapes")
    parser.add_argument("--mode", choices=list(gate.MODES), action="append", help="default: both")
    parser.add_argument("--target", choices=("cpu", "gpu"), action="append", help="default: both")
    parser.add_argument("--log", type=Path, metavar="FOLDER", help="keep logs and reports there")
    parser.add_argument("case", nargs="*", help="names of cases; default: all")
    asked = parser.parse_args()
    if gate.missing():
        print(gate.missing(), file=sys.stderr)
        return 2
    targets = asked.target or ["cpu", "gpu"]
    jobs = [{"case": case, "target": target} for case in asked.case for target in targets]
    with tempfile.TemporaryDirectory(prefix="clnn-oclgrind-") as temporary:
        folder = asked.log or Path(temporary)
        results = [check(mode, folder, jobs, asked.long) for mode in asked.mode or gate.MODES]
        return int(any(results))


if __name__ == "__main__":
    sys.exit(main())
