"""Starts the runner under `oclgrind` and judges what came out; used by the tests and by tools."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parent.parent / "kernels_cl"
MODES = {
    "optimised": ("--data-races", "--check-api"),
    "unoptimised": (
        "--uninitialized",
        "--data-races",
        "--uniform-writes",
        "--build-options",
        "-cl-opt-disable",
    ),
}
LACKING = re.compile(r"__asm__|_subgroups\(")
MOST = "100000"  # messages after which Oclgrind is silent
# What Oclgrind logs when pyopencl or clnn asks a device for a property that it does not know.
HARMLESS = (
    "Oclgrind - OpenCL runtime error detected\nFunction: clGetDeviceInfo\n"
    "Error:    CL_INVALID_VALUE\nFor argument 'param_name'"
)


@dataclass
class Result:
    """Outcome of one run under Oclgrind: exit status, all that was printed, its log, the report."""

    mode: str
    status: int
    printed: str
    log: str
    report: dict[str, Any] = field(default_factory=dict)


def missing() -> str:
    """Return why the gate cannot run here, '' when it can."""
    if shutil.which("oclgrind") is None:
        return "oclgrind is not installed (Debian: apt-get install oclgrind)"
    return ""


def run(
    mode: str,
    folder: Path,
    jobs: Sequence[Mapping[str, str]] = (),
    *,
    long: bool = False,
    timeout: float = 4 * 3600.0,
) -> Result:
    """Run `jobs` (all cases when empty) under Oclgrind in `mode`, one of MODES.

    A job names its case and target, and perhaps a folder of templates to use instead of the
    checkout's: "case", "target", "kernels". long: the long form. Files go to `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, report = folder / f"{mode}.log", folder / f"{mode}.json"
    for old in (log, report):
        old.unlink(missing_ok=True)
    command = ["oclgrind", *MODES[mode], "--num-threads", "1", "--max-errors", MOST]
    command += ["--log", str(log)]
    command += [sys.executable, str(HERE / "runner.py"), "--report", str(report), "--mode", mode]
    command += ["--jobs", json.dumps([dict(job) for job in jobs])]
    command += ["--long"] if long else []
    done = subprocess.run(
        command,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Result(
        mode,
        done.returncode,
        done.stdout,
        log.read_text("utf-8", "replace") if log.exists() else "",
        json.loads(report.read_text("utf-8")) if report.exists() else {},
    )


def _environment() -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CLNN_", "OCLGRIND_"))}
    # Oclgrind runs one kernel at a time, so nothing may compute beside a case; and it has to build
    # in the thread that runs kernels.
    alone = {"CLNN_BUILD_JOBS": "1", "CLNN_BUILD_TIMEOUT": "0", "CLNN_SPECIALISE": "never"}
    return env | {"CLNN_CACHE": "off"} | alone


def findings(log: str) -> list[str]:
    """Return the messages of an Oclgrind log, less the harmless one."""
    messages = re.split(
        r"\n(?=\S)", log.strip()
    )  # all lines of a message but its first are indented
    lines = ["\n".join(line.strip() for line in m.splitlines() if line.strip()) for m in messages]
    return [text for text in lines if text and text != HARMLESS]


def complaints(result: Result, most: int = 3) -> list[str]:
    """Return everything that is wrong with a run, at most so many messages of Oclgrind per job.

    Empty when the gate is passed.
    """
    found, inside = [], 0
    for row in result.report.get("rows", []):
        messages = of_row(result, row)
        inside += len(messages)
        where = f"{row['case']} on {row['target']}, {result.mode}"
        texts = [row["error"].strip()] if row["error"] else []
        found += [f"{where}: {text}" for text in [*texts, *messages[:most]]]
    end = (
        f"{result.mode}, exit status {result.status}, printed at the end: {result.printed[-2000:]}"
    )
    if not result.report.get("rows"):
        found.append(f"no case ran. {end}")
    everything = findings(result.log)
    if len(everything) > inside:
        found.append(f"{result.mode}, outside of the cases: {everything[-1]}")
    if "OCLGRIND FATAL" in result.printed or "Unsupported instruction" in result.printed:
        found.append(f"Oclgrind gave up. {end}")
    return found or ([f"the run failed. {end}"] if result.status else [])


def of_row(result: Result, row: Mapping[str, Any]) -> list[str]:
    """Return what Oclgrind said while a job of the report ran."""
    return findings(result.log.encode()[slice(*row["log"])].decode("utf-8", "replace"))


def incomplete(result: Result, kernels: Path = KERNELS) -> list[str]:
    """Return a complaint for each template of `kernels` that the run did not render in full.

    Lines of inline assembly are left out: Oclgrind has none, and they have a body in C beside them.
    So are subgroups, which it lacks: beside them is a tree in local memory.
    """
    if not result.report:
        return []
    rendered, unused = result.report["rendered"], result.report["unused"]
    found = []
    for path in sorted(kernels.glob("**/*.cl.mako")):
        name = path.relative_to(kernels).as_posix()
        if name.startswith("_probe/") or name == "_common/subgroups.cl.mako":
            continue
        if name not in rendered and not name.startswith("_"):
            found.append(f"{name}: no case renders it. Add one in tests/oclgrind.")
        elif lines := "\n  ".join(u for u in unused.get(name, ()) if not LACKING.search(u)):
            found.append(
                f"{name}: no case renders these lines. Add one in tests/oclgrind.\n  {lines}"
            )
    return found
