"""Starts the runner under `oclgrind` and judges what came out; used by the tests and by tools."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parent.parent / "kernels_cl"
MODES = {
    "optimised": ("--data-races", "--uniform-writes", "--check-api"),
    "unoptimised": (
        "--uninitialized", "--data-races", "--uniform-writes", "--build-options", "-cl-opt-disable",
    ),
}  # fmt: skip
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
    *,
    targets: Sequence[str] = ("cpu", "gpu"),
    only: Sequence[str] = (),
    long: bool = False,
    kernels: Path | None = None,
    timeout: float = 3600.0,
) -> Result:
    """Run cases under Oclgrind in `mode`, one of MODES; files go to `folder`.

    only: names of cases (all when empty). kernels: templates to use instead of the checkout's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, report = folder / f"{mode}.log", folder / f"{mode}.json"
    for old in (log, report):
        old.unlink(missing_ok=True)
    command = ["oclgrind", *MODES[mode], "--num-threads", "1", "--log", str(log)]
    command += [sys.executable, str(HERE / "runner.py"), "--report", str(report)]
    command += ["--targets", ",".join(targets), "--only", ",".join(only)]
    command += ["--long"] if long else []
    command += ["--no-fill"] if mode == "unoptimised" else []
    done = subprocess.run(command, env=_environment(kernels), stdin=subprocess.DEVNULL, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    return Result(
        mode, done.returncode, done.stdout, log.read_text("utf-8", "replace") if log.exists() else "",
        json.loads(report.read_text("utf-8")) if report.exists() else {},
    )  # fmt: skip


def _environment(kernels: Path | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CLNN_", "OCLGRIND_", "COV_"))}
    env |= {"CLNN_CACHE": "off", "CLNN_BUILD_JOBS": "1"}
    return env | ({"CLNN_KERNEL_PATH": str(kernels)} if kernels else {})


def findings(log: str) -> list[str]:
    """Return the messages of an Oclgrind log, less the harmless one."""
    messages = re.split(r"\n(?=\S)", log.strip())  # all lines of a message but its first are indented
    lines = ["\n".join(line.strip() for line in m.splitlines() if line.strip()) for m in messages]
    return [text for text in lines if text and text != HARMLESS]


def complaints(result: Result) -> list[str]:
    """Return everything that is wrong with a run; empty when the gate is passed."""
    found = []
    rows = result.report.get("rows", [])
    raw = result.log.encode()
    for row in rows:
        where = f"{row['case']} on {row['target']}, {result.mode}"
        if row["error"]:
            found.append(f"{where}: {row['error'].strip()}")
        for text in findings(raw[slice(*row["log"])].decode("utf-8", "replace"))[:3]:
            found.append(f"{where}: {text}")
    if not rows:
        found.append(f"{result.mode}: no case ran. Printed at the end: {result.printed[-2000:]}")
    inside = sum(len(findings(raw[slice(*row["log"])].decode("utf-8", "replace"))) for row in rows)
    if len(findings(result.log)) > inside:
        found.append(f"{result.mode}: outside of the cases: {findings(result.log)[-1]}")
    if "OCLGRIND FATAL" in result.printed or "Unsupported instruction" in result.printed:
        found.append(f"{result.mode}: Oclgrind gave up: {result.printed[-2000:]}")
    if result.status and not found:
        found.append(f"{result.mode}: exit status {result.status}: {result.printed[-2000:]}")
    return found


def incomplete(results: Sequence[Result], kernels: Path = KERNELS) -> list[str]:
    """Return a complaint for each template of `kernels`, and each kind of op, that no run rendered."""
    rendered = {name for r in results for name in r.report.get("rendered", [])}
    found = []
    for path in sorted(kernels.glob("*.cl.mako")):
        if path.name not in rendered:
            found.append(f"template {path.name}: no case in tests/oclgrind/cases.py renders it")
    return found
