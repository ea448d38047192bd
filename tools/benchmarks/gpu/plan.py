"""The steps of a report for one device, their commands and their shares of the time."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.steps import Step

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ROOT / "tools" / "benchmarks"


@dataclass(frozen=True)
class Stage:
    """Steps that are useful by themselves. minutes: from the beginning of all, by which it ends."""

    minutes: float
    title: str
    steps: tuple[str, ...]


# Of rising cost: what decides whether and how the device is used comes first.
STAGES = (
    Stage(0.5, "the probe, launches, families of ops", ("facts", "families")),
    Stage(2, "bandwidth, rates, layers as shares of them", ("sweep", "details")),
    Stage(5, "two networks beside PyTorch, drivers", ("networks", "doctor")),
    Stage(10, "tests, the tuner, more networks", ("tests", "tune", "engines", "compiled")),
)
NAMES = tuple(name for stage in STAGES for name in stage.steps)
# Shares of the time; what a step leaves over goes to the next.
SHARES = {
    "facts": 8,
    "families": 20,
    "sweep": 75,
    "details": 10,
    "networks": 140,
    "doctor": 30,
    "tests": 110,
    "tune": 60,
    "engines": 85,
    "compiled": 25,
}
KEPT = 0.94  # of the time, for the run itself; the rest is for what is before and behind it

# The networks that say most come first; a budget cuts from the end.
NETWORKS = (
    "resnet50",
    "mobilenet_v2",
    "vgg16",
    "resnet18",
    "efficientnet_b0",
    "unet",
    "mobilenet_v1",
    "densenet121",
    "squeezenet1_1",
    "detector",
    "shufflenet_v2",
)
FIRST = NETWORKS[:2]
# What is tuned, at batch 1, with which kind of numbers.
TUNED = (("resnet50", "f16"), ("mobilenet_v2", "f16"))
BATCHES = "64,1,8"
# clnn with each kind of numbers, and PyTorch as it is quickest first.
ON_GPU = (
    "torch:cuda",
    "clnn:f16",
    "torch:cuda+f16+channels_last+graphs",
    "clnn:tf32",
    "torch:cuda+tf32+channels_last+graphs",
    "torch:cuda+graphs",
    "clnn:int8",
    "clnn:bf16",
    "torch:cuda+bf16+channels_last+graphs",
    "torch:cuda+f16+channels_last",
    "torch:cuda+tf32",
    "torch:cuda+channels_last",
    "torch:int8",
)
# What torch.compile makes takes so long to make that it gets a step of its own, at the end.
COMPILED = (
    "torch:cuda+f16+channels_last+graphs",
    "clnn:f16",
    "torch:cuda+f16+channels_last+compile",
    "torch:cuda+tf32+channels_last+compile",
)
ON_CPU = ("onnxruntime", "torch", "clnn:f16", "torch:channels_last", "torch:bf16")
TESTS = (
    "tests/ops",
    "tests/codegen",
    "tests/runtime",
    "tests/graph",
    "tests/arith",
    "tests/verification",
    "tests/apis",
    "tests/tune",
    "tests/cli",
)
SMALL_TESTS = ("tests/codegen/test_warp.py::test_shuffles",)
SMALL_FAMILIES = "products,rows,movement"
SMALL_TUNE_S = 10.0
WORKERS = 8
TEST_LIMIT_S = 90


@dataclass(frozen=True)
class Job:
    """What a report is made of. out: where its files go; stem: how their names begin.

    work: a folder for what is thrown away. device: as clnn is told; tests: as pytest is told.
    """

    device: str
    tests: str
    gpu: bool
    small: bool
    total: float
    out: Path
    stem: str
    work: Path
    names: tuple[str, ...] = NAMES

    def file(self, name: str) -> Path:
        """Return the path of a file of the report."""
        return self.out / f"{self.stem}_{name}"

    def data(self, name: str) -> Path:
        """Return the path of what a step leaves for the report."""
        return self.work / f"{name}.json"


def stage_of(name: str) -> int:
    """Return the number of the stage that a step belongs to."""
    known = {n: k for k, stage in enumerate(STAGES, 1) for n in stage.steps}
    return known.get(name) or known["tune"]  # whose steps are named for what they tune


def chosen(stages: Sequence[int]) -> tuple[tuple[str, ...], float]:
    """Return the steps of stages, by their numbers from 1 on, and the seconds that they are given."""
    ends = [0.0, *(stage.minutes for stage in STAGES)]
    minutes = sum(ends[k] - ends[k - 1] for k in set(stages))
    return tuple(n for n in NAMES if stage_of(n) in stages), KEPT * 60 * minutes


def within(minutes: float) -> tuple[tuple[str, ...], float]:
    """Return the steps of all stages that end within so many minutes, and the seconds of the run.

    Raises ValueError where not even the first does.
    """
    stages = [k for k, stage in enumerate(STAGES, 1) if stage.minutes <= minutes]
    if not stages:
        raise ValueError(f"{minutes:g} minutes are too few: the first stage takes half a minute")
    return chosen(stages)[0], KEPT * 60 * minutes


def steps(job: Job) -> list[Step]:
    """Return the steps in order. The time of those that are left out goes to the others."""
    shares = {name: SHARES[name] for name in NAMES if name in job.names}
    unit = job.total / sum(shares.values())
    makers = {
        "facts": _facts,
        "families": _families,
        "sweep": _sweep,
        "details": _details,
        "networks": _networks,
        "doctor": _doctor,
        "tests": _tests,
        "tune": _tune,
        "engines": _engines,
        "compiled": _compiled,
    }
    return [step for name, share in shares.items() for step in makers[name](job, share * unit)]


def _tool(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(TOOLS / name), *map(str, arguments)]


def _clnn(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "clnn.cli.main", *map(str, arguments)]


def _doctor(job: Job, budget: float) -> list[Step]:
    # A driver of another device may be broken (1); that no device is usable is told before.
    return [Step("doctor", "clnn doctor", lambda s: _clnn("doctor"), budget, allowed=(0, 1))]


def _facts(job: Job, budget: float) -> list[Step]:
    return [_asked(job, "facts", "the device, the probe, launches", "quick", budget)]


def _details(job: Job, budget: float) -> list[Step]:
    return [_asked(job, "details", "compiler, grids, local memory", "slow", budget)]


def _asked(job: Job, name: str, title: str, part: str, budget: float) -> Step:
    options = ["--device", job.device, "--part", part, "--json", job.data(name)]
    return Step(name, title, lambda s: _tool("gpu/facts.py", *options), budget)


def _families(job: Job, budget: float) -> list[Step]:
    few = ["--only", SMALL_FAMILIES, "--dtypes", "f32,f16"] if job.small else []

    def command(seconds: float) -> Sequence[str]:
        options = ["--device", job.device, "--budget", f"{0.9 * seconds:.0f}"]
        return _tool("gpu/families.py", *options, "--json", job.data("families"), *few)

    title = "a network of each family of ops"
    return [Step("families", title, command, budget, again=("--resume",))]


def _sweep(job: Job, budget: float) -> list[Step]:
    small = ["--small", "--dtypes", "f32,f16"] if job.small else []
    return [
        Step(
            "sweep",
            "ceilings, and layers as shares of them",
            lambda s: _tool(
                "sweep_kernels.py",
                "--device",
                job.device,
                "--budget",
                f"{s:.0f}",
                "--json",
                job.data("sweep"),
                "--plot",
                job.file("layers.png"),
                *small,
            ),
            budget,
            again=("--resume",),
        )
    ]


def _tests(job: Job, budget: float) -> list[Step]:
    skip = "" if _have("pytest") else "pytest is not installed"
    return [Step("tests", "tests on the device", lambda s: test_command(job, s), budget, skip=skip)]


def test_command(job: Job, seconds: float) -> list[str]:
    """Return the command line of the tests, which end by themselves after `seconds`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "gpu.outcomes",
        "--device",
        job.tests,
        "--continue-on-collection-errors",
        "--tb=line",
        "-o",
        "console_output_style=count",
    ]
    if _have("pytest_timeout"):
        command.append(f"--timeout={TEST_LIMIT_S}")
    workers = min(os.cpu_count() or 1, WORKERS)
    if _have("xdist") and workers > 2 and not job.small:
        command += ["-n", str(workers)]
    chosen = SMALL_TESTS if job.small else TESTS
    limits = [f"--outcomes={job.data('tests')}", f"--outcome-seconds={seconds:.0f}"]
    return [*command, *limits, *(str(ROOT / name) for name in chosen)]


def _tune(job: Job, budget: float) -> list[Step]:
    if job.small:
        digits = (ROOT / "tools" / "examples" / "models" / "digits.onnx", "--shape", "batch:1")
        return [_tune_one(job, "digits", digits, budget)]
    command = _tool("make_bench_models.py", job.work / "models", *FIRST)
    write = Step("models", "networks to tune", lambda s: command, 0.1 * budget)
    share = 0.9 * budget / len(TUNED)
    return [
        write,
        *(
            _tune_one(
                job,
                f"{name}_{dtype}",
                (job.work / "models" / f"{name}.onnx", "--dtype", dtype),
                share,
            )
            for name, dtype in TUNED
        ),
    ]


def _tune_one(job: Job, name: str, model: Sequence[object], budget: float) -> Step:
    def command(seconds: float) -> Sequence[str]:
        # Planning and the contest of whole networks come on top of what the tuner is given.
        allowed = min(seconds, SMALL_TUNE_S) if job.small else seconds
        return _clnn(
            "tune",
            *model,
            "--device",
            job.device,
            "--quick",
            "--budget",
            f"{max(1.0, 0.6 * allowed):.0f}s",
            "--json",
            job.data(f"tune_{name}"),
        )

    return Step(f"tune_{name}", f"tuner, {name}", command, budget)


def _networks(job: Job, budget: float) -> list[Step]:
    title = "clnn beside other engines, batch 1"
    if job.small:
        models = (ROOT / "tools" / "examples" / "models" / "digits.onnx",)
        engines = ("onnxruntime", "clnn:f16", "clnn:int8", "torch:int8")
        return [_compare(job, "networks", title, models, engines, "1", 0.2, budget)]
    engines = ON_GPU if job.gpu else ON_CPU
    return [_compare(job, "networks", title, FIRST, engines, "1", 3.0, budget)]


def _engines(job: Job, budget: float) -> list[Step]:
    skip = "sizes are small" if job.small else ""
    engines, batches = (ON_GPU, BATCHES) if job.gpu else (ON_CPU, "8,1")
    title = "clnn beside other engines, more networks and batches"
    return [_compare(job, "engines", title, NETWORKS, engines, batches, 6.0, budget, skip)]


def _compiled(job: Job, budget: float) -> list[Step]:
    skip = "for PyTorch on a GPU" if job.small or not job.gpu else ""
    return [
        _compare(
            job, "compiled", "clnn beside torch.compile", FIRST, COMPILED, "64,1", 3.0, budget, skip
        )
    ]


def _compare(
    job: Job,
    name: str,
    title: str,
    models: Sequence[object],
    engines: Sequence[str],
    batches: str,
    seconds: float,
    budget: float,
    skip: str = "",
) -> Step:
    """Return a step that runs compare_engines.py for `seconds` on each model and batch."""

    def command(allowed: float) -> Sequence[str]:
        return _tool(
            "compare_engines.py",
            *models,
            "--engines",
            ",".join(engines),
            "--shared",
            "--device",
            job.device,
            "--batch",
            batches,
            "--threads",
            os.cpu_count() or 1,
            "--time",
            seconds,
            "--budget",
            f"{0.9 * allowed - 3:.0f}",
            "--limit",
            f"{max(20.0, allowed / 2):.0f}",
            "--json",
            job.data(name),
            "--plot",
            job.file(f"{name}.png"),
        )

    return Step(name, title, command, budget, skip=skip)


def _have(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
