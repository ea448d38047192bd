"""Runs cases on Oclgrind's simulator; started under `oclgrind` by gate.py.

Writes a JSON report: for each case its error, if any, and where in Oclgrind's log its part begins
and ends; which templates were rendered and which of their lines never were.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "ops"), str(HERE.parent.parent)]


def main() -> int:
    """Run what the arguments ask for; exit status 1 when a case failed."""
    asked = _arguments()
    import simulator

    machine = simulator.install(fill=not asked.no_fill)
    import cases
    import harness

    harness.GUARD = 0  # buffers end where tensors end
    chosen = cases.choose(asked.only.split(",") if asked.only else [], asked.long)
    rows = []
    for name in asked.targets.split(","):
        machine.target = simulator.TARGETS[name]
        rows += [_run(case, name) for case in chosen if name in case.targets]
    report = {
        "rows": rows, "rendered": sorted(machine.rendered), "kinds": sorted(cases.ran_kinds),
        "unused": simulator.unused_lines(machine),
    }  # fmt: skip
    Path(asked.report).write_text(json.dumps(report, indent=1), "utf-8")
    return int(any(row["error"] for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", required=True)
    parser.add_argument("--targets", default="cpu,gpu")
    parser.add_argument("--only", default="", help="names of cases, separated by commas")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--no-fill", action="store_true")
    return parser.parse_args()


def _run(case: Any, target: str) -> dict[str, Any]:
    begin, clock, error = _log_size(), time.perf_counter(), ""
    try:
        case.run()
    except Exception:
        error = traceback.format_exc(limit=-4)
    return {
        "case": case.name, "target": target, "error": error, "log": [begin, _log_size()],
        "seconds": round(time.perf_counter() - clock, 2),
    }  # fmt: skip


def _log_size() -> int:
    path = os.environ.get("OCLGRIND_LOG", "")
    return os.path.getsize(path) if path and os.path.exists(path) else 0


if __name__ == "__main__":
    sys.exit(main())
