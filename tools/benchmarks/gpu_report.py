#!/usr/bin/env python3
"""Report on clnn on one GPU in one run of ten minutes: checks, tests, tuner, speed beside PyTorch.

    tools/gpu_report.sh [--device D] [--wheels DIR] [--out DIR] [--seconds S] [--small]
                        [--steps doctor,facts,sweep,tests,tune,engines,compiled]
    tools/gpu_report.sh --pack FILE.tar.gz

Needs no network. --pack writes an archive of below 60 MB with the checkout and the packages' wheels;
unpacked on a machine with the same Python, its tools/gpu_report.sh uses these. Finds the OpenCL driver,
or registers one that is installed but not registered. Every step has its own share of the time, and one
that fails costs its own results only. Writes OUT/<device>_<date>.json, .md and pictures; a later run of
other steps on the same day adds to them. On a CPU (or with --small) sizes are tiny: that checks the
report, not the device. Exit status: 0 all is well, 1 a step or a test failed, 2 a package is missing, 3 no
usable device.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

BEGUN = monotonic()
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

from gpu import pack, packages
from gpu.steps import DONE, FAILED, LATE, Outcome, Runner

SECONDS = 560.0  # of a run, with all there is to do before and after the steps
BROUGHT = "REPORT_PACKAGES_BROUGHT"
EXIT_FAILED, EXIT_PACKAGES, EXIT_NO_DEVICE = 1, 2, 3
STEP_NAMES = ("doctor", "facts", "sweep", "tests", "tune", "engines", "compiled")


def main() -> int:
    args = _arguments()
    try:
        if args.pack is not None:
            print(f"{args.pack}: {pack.pack(args.pack.resolve()) / 1e6:.1f} MB")
            return 0
        brought = ROOT / pack.WHEELS
        notes = _packages(args.wheels or (brought if brought.is_dir() else None))
    except RuntimeError as err:
        print(f"gpu_report: {err}", file=sys.stderr)
        return EXIT_PACKAGES
    with tempfile.TemporaryDirectory(prefix="gpu-report-") as work:
        return run(args, Path(work), notes)


def _packages(wheels: Path | None) -> list[str]:
    """See to the packages; become a Python that has them. Raises RuntimeError."""
    notes = json.loads(os.environ.get(BROUGHT, "[]"))
    if wheels is not None and BROUGHT not in os.environ:
        python, notes = packages.bring(wheels.resolve(), ROOT / ".cache" / "gpu-report-venv")
        env = {**os.environ, BROUGHT: json.dumps(notes)}
        sys.stdout.flush()
        os.execve(python, [str(python), str(Path(__file__).resolve()), *sys.argv[1:]], env)
    lacking = packages.missing(packages.REQUIRED)
    if lacking:
        raise RuntimeError(packages.advice(lacking))
    absent = packages.missing(packages.OPTIONAL)
    return notes or ([f"not installed: {', '.join(absent)}"] if absent else [])


def run(args: argparse.Namespace, work: Path, notes: list[str]) -> int:
    """Make the report; return the exit status."""
    from gpu import drivers
    from gpu.plan import Job, steps

    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [
                str(ROOT),
                str(ROOT / "tools" / "benchmarks"),
                *filter(None, [os.environ.get("PYTHONPATH")]),
            ]
        ),
    }
    print("looking for OpenCL devices", flush=True)
    found = drivers.find(env, work)
    env |= found.env
    notes = [*notes, *found.notes]
    device = choose(found.usable, args.device)
    if device is None:
        print("\n".join(notes), file=sys.stderr)
        print(
            f"no usable OpenCL device answers to {args.device or 'any name'}; the others:\n"
            f"{json.dumps(found.devices, indent=1)}\nRun: clnn doctor",
            file=sys.stderr,
        )
        return EXIT_NO_DEVICE
    small = args.small or device["type"] == "cpu"
    first = next(d for d in found.usable if d["platform"] == device["platform"])
    tests = device["platform"] if first is device else device["name"]
    job = Job(
        str(device["index"]),
        tests,
        device["type"] == "gpu",
        small,
        args.seconds - (monotonic() - BEGUN) - 10,
        args.out,
        "",
        work,
        args.steps,
    )
    report = Report(device, small, job.out, notes, work)
    job = Job(**{**vars(job), "stem": report.stem})
    runner = Runner(args.seconds, work, env, report.shown, BEGUN)
    runner.tell(f"{device['name']} on {device['platform']}{', small sizes' if small else ''}")
    for step in steps(job):
        report.add(runner.run(step), job.work)
    report.close(runner)
    return report.status()


def choose(devices: Sequence[dict[str, Any]], wanted: str | None) -> dict[str, Any] | None:
    """Return the device that is named by index or by part of a name, else a GPU, else any."""
    if wanted is None:
        return next((d for d in devices if d["type"] == "gpu"), next(iter(devices), None))
    text = wanted.lower()
    if text.isdecimal():
        return next((d for d in devices if d["index"] == int(text)), None)
    for d in devices:
        if text == d["type"] or any(text in d[key].lower() for key in ("platform", "name")):
            return d
    return None


class Report:
    """What is known so far, written after every step."""

    def __init__(
        self, device: dict[str, Any], small: bool, out: Path, notes: Sequence[str], work: Path
    ) -> None:
        from about import About, machine, now

        out.mkdir(parents=True, exist_ok=True)
        self.out, self.work = out, work
        # PoCL's name of a CPU begins with how it was built.
        name = re.sub(r"^pthread-\S+?-(?=\w+\()", "", device["name"])
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:48] or "device"
        self.stem = f"{slug}{'_small' if small else ''}_{now()[:10]}"
        command = self.shown(["tools/gpu_report.sh", *sys.argv[1:]])
        self.about = About(
            f"{device['name']} on {device['platform']}",
            device["driver"],
            now(),
            (command,),
            machine(),
        )
        self.report: dict[str, Any] = {
            "device": device,
            "small": small,
            "notes": list(notes),
            "steps": [],
            "data": {},
            "doctor": [],
            "pictures": [],
        }
        self.outcomes: list[Outcome] = []
        self._continue()

    def shown(self, command: Sequence[str]) -> str:
        """Return a command as the report shows it."""
        from about import shown

        return self.plain(shown(command, {str(self.work): "WORK", str(self.out): "OUT"}))

    def _continue(self) -> None:
        """Take over what an earlier run on this day left."""
        path = self.out / f"{self.stem}.json"
        if path.exists():
            before = json.loads(path.read_text("utf-8"))
            for key in ("steps", "data", "doctor"):
                self.report[key] = before.get(key, self.report[key])

    def add(self, outcome: Outcome, work: Path) -> None:
        """Take a step's outcome and the data that it left."""
        self.outcomes.append(outcome)
        steps = [s for s in self.report["steps"] if s["name"] != outcome.name]
        self.report["steps"] = [*steps, outcome.data()]
        left = work / f"{outcome.name}.json"
        if left.exists():
            self.report["data"][outcome.name] = json.loads(left.read_text("utf-8"))
        if outcome.name == "doctor" and outcome.commands:
            log = (work / "doctor.log").read_text("utf-8", errors="replace")
            self.report["doctor"] = log.splitlines()[1:]
        self.write()

    def plain(self, text: str) -> str:
        """Return text without the folders of this machine."""
        from about import plain

        return plain(text, {str(self.work): "WORK", str(self.out.resolve()): "OUT"})

    def write(self) -> None:
        from gpu.page import page

        pictures = sorted(path.name for path in self.out.glob(f"{self.stem}_*.png"))
        self.report["pictures"] = pictures or self._no_pictures()
        data = {"about": self.about.data(), **self.report}
        for name, text in (
            (f"{self.stem}.json", json.dumps(data, indent=1) + "\n"),
            (f"{self.stem}.md", page(self.about, self.report)),
        ):
            part = self.out / f".{name}.part"
            part.write_text(self.plain(text), encoding="utf-8")
            os.replace(part, self.out / name)

    def _no_pictures(self) -> list[str]:
        from about import plot_refusal

        refused = plot_refusal()
        return [refused] if refused else []

    def close(self, runner: Runner) -> None:
        """Tell what failed and where the report is."""
        for o in self.outcomes:
            if o.status in (FAILED, LATE):
                runner.tell(f"{o.title}: {o.status}; {(o.tail or [''])[-1]}")
        for name, text in self.report["data"].get("tests", {}).get("failures", []):
            runner.tell(f"failed: {name}: {text}")
        runner.tell(f"written: {self.out / self.stem}.md, .json")

    def status(self) -> int:
        """Return the exit status of the whole report."""
        tests = self.report["data"].get("tests", {})
        ran = any(o.name == "tests" and o.status != "skipped" for o in self.outcomes)
        wrong = [o for o in self.outcomes if o.status in (FAILED, LATE)]
        none = not any(o.status == DONE for o in self.outcomes)
        failed = ran and (tests.get("failed") or tests.get("errors"))
        return EXIT_FAILED if wrong or none or failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="index, type or part of a name (default: a GPU, else any)")
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="install missing packages from this folder, without a network",
    )
    parser.add_argument(
        "--pack", type=Path, metavar="FILE", help="write an archive for another machine, no report"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks", metavar="DIR")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="S",
        help=f"of the whole run (default {SECONDS:.0f})",
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, as on a CPU")
    parser.add_argument(
        "--steps", type=_steps, default=STEP_NAMES, metavar="LIST", help=",".join(STEP_NAMES)
    )
    return parser.parse_args()


def _steps(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in STEP_NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(STEP_NAMES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
