"""Runs cases on Oclgrind's simulator; started under `oclgrind` by gate.py.

Writes a JSON report: for each case its error, if any, and where in Oclgrind's log its part begins
and ends; which templates were rendered and which of their lines never were. The short form leaves
out kernels that bring no line of a template which has not been run: on this target in mode
"unoptimised", in which no access is optimised away, and on any target in mode "optimised", which
adds what the optimiser makes of each line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(p) for p in (HERE, HERE.parent / "support", HERE.parent.parent)]


def main() -> int:
    """Run what the arguments ask for; exit status 1 when a case failed."""
    asked = _arguments()
    import simulator

    tracked = asked.mode == "unoptimised"  # whether Oclgrind tells what is uninitialised
    machine = simulator.install(fill=not tracked)
    machine.sparing = not asked.long and asked.jobs == "[]"
    import harness

    harness.GUARD = 0  # buffers end where tensors end
    harness.TOGETHER = False  # so that kernels which are nothing new are left out
    harness.run_variant = _if_new(harness.run_variant)
    import cases

    targets = simulator.TRACKED if tracked else simulator.TARGETS
    rows = []
    for job in json.loads(asked.jobs) or cases.jobs(asked.long, asked.mode):
        machine.target = targets[job["target"]]
        machine.place = job["target"] if tracked else ""
        os.environ["CLNN_KERNEL_PATH"] = job.get("kernels", "")
        print(f"{job['case']} on {job['target']}", flush=True)  # the last one, should it crash
        rows.append({**job, **_run(cases.CASES[job["case"]])})
    report = {
        "rows": rows,
        "rendered": sorted(machine.rendered),
        "kernels": len(machine.sources),
        "unused": simulator.unused_lines(machine),
    }
    Path(asked.report).write_text(json.dumps(report, indent=1), "utf-8")
    return int(any(row["error"] for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", required=True)
    parser.add_argument(
        "--jobs", default="[]", help="JSON: case, target and perhaps kernels of each"
    )
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--mode", required=True)
    return parser.parse_args()


def _if_new(run: Callable[..., None]) -> Callable[..., None]:
    """Let an op go on to its next variant where one is nothing new."""
    from simulator import NothingNew

    def tried(*arguments: Any) -> None:
        with suppress(NothingNew):
            run(*arguments)

    return tried


def _run(case: Any) -> dict[str, Any]:
    from simulator import NothingNew

    begin, clock, error = _log_size(), time.perf_counter(), ""
    try:
        with suppress(NothingNew):
            case.run()
    except Exception:
        error = traceback.format_exc(limit=-4)
    return {
        "error": error,
        "log": [begin, _log_size()],
        "seconds": round(time.perf_counter() - clock, 2),
    }


def _log_size() -> int:
    path = os.environ.get("OCLGRIND_LOG", "")
    return os.path.getsize(path) if path and os.path.exists(path) else 0


if __name__ == "__main__":
    sys.exit(main())
