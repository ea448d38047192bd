#!/usr/bin/env python3
"""Report on clnn on one GPU in ten minutes at most: checks, tests, tuner, speed beside PyTorch.

    tools/gpu_report.sh [--device D] [--wheels DIR] [--out DIR] [--seconds S] [--small]
                        [--minutes M | --stage N,N | --steps NAME,NAME]
    tools/gpu_report.sh --pack FILE.tar.gz [--python VERSION]

Stages of rising cost, each useful by itself: 1, half a minute: does the probe pass, what do launches
cost, which families of ops are right; 2, to two minutes: bandwidth, rates, matrix products and
convolutions as shares of them; 3, to five minutes: two networks beside PyTorch where that is installed;
4, to ten minutes: tests, the tuner, more networks. --minutes takes the stages that end by then, --stage
some of them, a later run on the same day the others.

Needs no network. --pack writes an archive of below 60 MB with the checkout and the packages' wheels;
unpacked on a machine with the same version of Python, or with that of --python, its
tools/gpu_report.sh uses these. Finds the OpenCL driver, or registers one that is installed but not
registered. Every step has its own share of the time, and one that fails costs its own results only.
Writes OUT/<device>_<date>.json, .md and pictures, during every step too: a run that is cut keeps what
it has. On a CPU (or with --small) sizes are tiny: that checks the report, not the device. Exit status:
0 all is well, 1 a step or a test failed, 2 a package is missing, 3 no usable device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

BEGUN = monotonic()
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

from gpu import pack, packages, plan
from gpu.steps import DONE, FAILED, LATE, Outcome, Runner, Step

RESERVE_S = 10.0  # at the end, for what is left to write; of short runs a tenth
BROUGHT = "REPORT_PACKAGES_BROUGHT"
EXIT_FAILED, EXIT_PACKAGES, EXIT_NO_DEVICE = 1, 2, 3
STAGE_NUMBERS = range(1, len(plan.STAGES) + 1)


def main() -> int:
    args = _arguments()
    try:
        if args.pack is not None:
            print(f"{args.pack}: {pack.pack(args.pack.resolve(), python=args.python) / 1e6:.1f} MB")
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
    reserve = min(RESERVE_S, args.seconds / 10)
    job = plan.Job(
        str(device["index"]),
        tests,
        device["type"] == "gpu",
        small,
        args.seconds - (monotonic() - BEGUN) - reserve,
        args.out,
        "",
        work,
        args.steps,
    )
    report = Report(device, small, job.out, notes, work)
    job = plan.Job(**{**vars(job), "stem": report.stem})
    runner = Runner(
        args.seconds, work, env, report.shown, BEGUN, reserve, seen=lambda o: report.add(o, work)
    )
    runner.tell(f"{device['name']} on {device['platform']}{', small sizes' if small else ''}")
    interrupted = perform(plan.steps(job), runner, report)
    report.close(runner)
    return EXIT_FAILED if interrupted else report.status()


def perform(steps: Sequence[Step], runner: Runner, report: Report) -> bool:
    """Run the steps; return whether it was told to end before they were done."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for step, after in zip(steps, [*steps[1:], None], strict=True):
            report.add(runner.run(step), report.work)
            stage = plan.stage_of(step.name)
            if after is None or plan.stage_of(after.name) != stage:
                title = plan.STAGES[stage - 1].title
                runner.tell(f"stage {stage} ({title}) is written: {report.out / report.stem}.md")
    except KeyboardInterrupt:
        runner.tell("interrupted; what there is, is written")
        return True
    return False


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
            commands = [*before.get("about", {}).get("commands", []), *self.about.commands]
            self.about = replace(self.about, commands=tuple(dict.fromkeys(commands)))

    def add(self, outcome: Outcome, work: Path) -> None:
        """Take a step's outcome, or what is known of it so far, and the data that it left."""
        self.outcomes = [o for o in self.outcomes if o.name != outcome.name] + [outcome]
        steps = [s for s in self.report["steps"] if s["name"] != outcome.name]
        self.report["steps"] = [*steps, outcome.data()]
        left = work / f"{outcome.name}.json"
        if left.exists():
            with contextlib.suppress(ValueError):  # it is just being written
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
    parser.add_argument(
        "--python", default="", metavar="VERSION", help="of --pack: the other machine's, as 3.12"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks", metavar="DIR")
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="of the whole run (default: as long as its stages take)",
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, as on a CPU")
    which = parser.add_mutually_exclusive_group()
    ends = ", ".join(f"{stage.minutes:g}" for stage in plan.STAGES)
    which.add_argument(
        "--minutes", type=_minutes, metavar="M", help=f"the stages that end by then ({ends})"
    )
    which.add_argument(
        "--stage", type=_stages, metavar="LIST", help=",".join(map(str, STAGE_NUMBERS))
    )
    which.add_argument("--steps", type=_steps, metavar="LIST", help=",".join(plan.NAMES))
    args = parser.parse_args()
    names, seconds = args.minutes or plan.chosen(args.stage or STAGE_NUMBERS)
    args.steps = args.steps or names
    args.seconds = seconds if args.seconds is None else args.seconds
    return args


def _minutes(text: str) -> tuple[tuple[str, ...], float]:
    try:
        return plan.within(float(text))
    except ValueError as err:
        raise argparse.ArgumentTypeError(str(err)) from err


def _stages(text: str) -> tuple[int, ...]:
    unknown = [n for n in text.split(",") if n not in map(str, STAGE_NUMBERS)]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)} is none of {', '.join(map(str, STAGE_NUMBERS))}"
        )
    return tuple(int(n) for n in text.split(","))


def _steps(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in plan.NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(plan.NAMES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
