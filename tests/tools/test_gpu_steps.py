"""The parts of a report on a GPU: steps with budgets, drivers, packages, outcomes of tests, pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from common import ROOT

sys.path.insert(0, str(ROOT / "tools" / "benchmarks"))

from about import About
from gpu import drivers, pack, packages, plan
from gpu import steps as module
from gpu.outcomes import pytest_collection_modifyitems
from gpu.page import page
from gpu.steps import DONE, FAILED, LATE, SKIPPED, Runner, Step
from gpu.summary import summary


def python(code):
    return lambda seconds: [sys.executable, "-c", code]


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 0.2)
    said = []
    made = Runner(600, tmp_path, os.environ, lambda words: " ".join(words[:1]), say=said.append)
    made.said = said
    return made


def test_a_step_is_done_or_has_failed_and_its_last_lines_are_kept(runner):
    good = runner.run(Step("good", "Good", python("print('one'); print('two')"), 60))
    assert (good.status, good.code, good.tail[-1]) == (DONE, 0, "two")
    bad = runner.run(Step("bad", "Bad", python("print('why'); raise SystemExit(4)"), 60))
    assert (bad.status, bad.code, bad.tail[-1]) == (FAILED, 4, "why")
    allowed = runner.run(Step("ok", "Ok", python("raise SystemExit(1)"), 60, allowed=(0, 1)))
    assert allowed.status == DONE
    absent = runner.run(Step("no", "No", lambda s: ["/no/such/program"], 60))
    assert absent.status == FAILED and "/no/such/program" in absent.tail[0]
    assert any("Bad: failed" in text for text in runner.said)


def test_a_step_that_hangs_is_ended_with_what_it_started(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LEAST_S", 0.0)
    child = tmp_path / "child"
    code = (
        f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c',"
        f" 'import time; time.sleep(600)']); open({str(child)!r}, 'w').write(str(p.pid));"
        " time.sleep(600)"
    )
    monkeypatch.setattr(module, "GRACE_S", 3.0)
    late = runner.run(Step("late", "Late", python(code), 0.1))
    assert (late.status, late.code) == (LATE, None)
    if child.exists():
        assert is_gone(Path(f"/proc/{child.read_text()}/stat"))


def is_gone(state, tries=600):
    """A process that is killed ends a little later, as the machine has time for it."""
    for _ in range(tries):
        try:
            if state.read_text().split()[2] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_a_step_that_crashes_goes_on_where_it_can(runner):
    code = "import os, sys; 'again' in sys.argv or os.abort(); print('went on')"
    step = Step("crash", "Crash", python(code), 60, again=("again",))
    found = runner.run(step)
    assert (found.status, found.tail[-1]) == (DONE, "went on") and len(found.commands) == 2
    assert runner.run(Step("c2", "C", python("import os; os.abort()"), 60)).code == -6


def test_a_step_that_crashes_each_time_is_given_up(runner, monkeypatch):
    monkeypatch.setattr(module, "MOST_AGAIN", 2)
    step = Step("crash", "Crash", python("import os; os.abort()"), 60, again=("again",))
    found = runner.run(step)
    assert (found.status, found.code, len(found.commands)) == (FAILED, -6, 3)


def test_time_left_over_goes_to_the_next_step(runner):
    given = []

    def command(seconds):
        given.append(seconds)
        return [sys.executable, "-c", ""]

    runner.run(Step("skip", "Skip", command, 30, skip="nothing to do"))
    runner.run(Step("next", "Next", command, 20))
    assert given == [50] and runner.saved <= 50
    runner.end = 0.0
    late = runner.run(Step("last", "Last", command, 20))
    assert (late.status, late.note, len(given)) == (SKIPPED, "no time was left", 1)


def test_a_driver_is_found_beside_its_companions_and_registered(tmp_path, monkeypatch):
    folder = tmp_path / "driver"
    folder.mkdir()
    library = folder / "libnvidia-opencl.so.1"
    library.write_bytes(b"")
    (folder / "libcuda.so.1").write_bytes(b"")
    monkeypatch.setattr(drivers.icd, "ldconfig_libraries", dict)
    monkeypatch.setattr(
        drivers.icd, "find_library", lambda n: folder / n if n == "libcuda.so.1" else None
    )
    assert drivers.nvidia_libraries({}, ()) == [library]
    monkeypatch.setattr(drivers.icd, "find_library", lambda n: None)
    assert drivers.nvidia_libraries({}, ()) == []
    assert drivers.nvidia_libraries({}, (str(tmp_path),)) == [library]
    assert drivers.nvidia_libraries({"LD_LIBRARY_PATH": str(folder)}, ()) == [library]

    system = tmp_path / "system"
    system.mkdir()
    (system / "pocl.icd").write_text("libpocl.so.2\n")
    monkeypatch.setattr(drivers.icd, "SYSTEM_VENDORS", system)
    vendors = drivers.register([library], tmp_path / "vendors")
    drivers.register([library], vendors)  # again, over itself
    texts = {p.name: p.read_text().strip() for p in vendors.iterdir()}
    assert texts == {"pocl.icd": "libpocl.so.2", "report-nvidia.icd": str(library)}


GPU = {
    "index": 0,
    "name": "H100",
    "platform": "NVIDIA CUDA",
    "type": "gpu",
    "driver": "1",
    "vendor": "NVIDIA",
    "why_not": "",
}


def test_drivers_are_looked_for_only_where_no_gpu_is_listed(tmp_path, monkeypatch):
    library = tmp_path / "libnvidia-opencl.so.1"
    monkeypatch.setattr(drivers, "nvidia_libraries", lambda env: [library])
    monkeypatch.setattr(
        drivers, "devices_under", lambda env, f: [GPU] if "OCL_ICD_VENDORS" in env else []
    )
    assert drivers.find({"OCL_ICD_VENDORS": "/mine"}, tmp_path).env == {}
    found = drivers.find({}, tmp_path)
    assert found.usable == [GPU] and found.env == {"OCL_ICD_VENDORS": str(tmp_path / "vendors")}
    assert str(library) in found.notes[0]
    cpu = {**GPU, "type": "cpu"}
    for without, usable in (([cpu], [cpu]), ([], [])):
        monkeypatch.setattr(
            drivers,
            "devices_under",
            lambda env, f, w=without: [] if "OCL_ICD_VENDORS" in env else w,
        )
        found = drivers.find({}, tmp_path)
        assert found.usable == usable and bool(found.env) == (not usable)
        assert ("left out" in found.notes[0]) == bool(usable)
    monkeypatch.setattr(drivers, "devices_under", lambda env, f: [])
    assert "is set" in drivers.find({"OCL_ICD_VENDORS": "/mine"}, tmp_path).notes[0]
    monkeypatch.setattr(drivers, "nvidia_libraries", lambda env: [])
    monkeypatch.setattr(drivers.os.path, "exists", lambda p: str(p).startswith("/dev/nvidia"))
    assert "was not found" in drivers.find({}, tmp_path).notes[0]
    why = drivers.find({"NVIDIA_DRIVER_CAPABILITIES": "utility"}, tmp_path).notes[0]
    assert "compute,utility" in why


def test_a_package_that_no_wheel_holds_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "REQUIRED", {"no_such_module_here": "no-such-package-here"})
    assert packages.missing(packages.REQUIRED) == ["no-such-package-here"]
    assert "pip download -d wheels no-such-package-here" in packages.advice(
        ["no-such-package-here"]
    )
    monkeypatch.setattr(packages, "environment", lambda folder: Path(sys.executable))
    with pytest.raises(RuntimeError, match="no-such-package-here cannot be installed"):
        packages.bring(tmp_path, tmp_path / "venv")


def test_pip_comes_from_its_wheel_where_the_python_has_none(tmp_path):
    """A wheel is a zip file that Python runs as it is."""
    wheel = tmp_path / "pip-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pip/__main__.py", "import sys; print('pip', *sys.argv[1:])")
    without = tmp_path / "python"
    without.write_text(f'#!/bin/sh\n[ "$1" != -m ] && exec {sys.executable} "$@"\nexit 1\n')
    without.chmod(0o755)
    command = packages.installer(without, tmp_path)
    done = subprocess.run([*command, "install", "x"], capture_output=True, text=True)
    assert done.stdout == "pip install x\n"
    wheel.unlink()
    assert packages.installer(without, tmp_path) == [str(without), "-m", "pip"]


def outcomes(tmp_path, *options):
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\n"
        "def test_c(): pytest.skip('no')\n@pytest.fixture\ndef bad(): raise ValueError('x')\n"
        "def test_d(bad): pass\n"
    )
    (tmp_path / "test_broken.py").write_text("import no_such_module_here\n")
    path = tmp_path / "found.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "gpu.outcomes",
        f"--outcomes={path}",
        "--continue-on-collection-errors",
        "-p",
        "no:cacheprovider",
        *options,
        str(tmp_path),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tools" / "benchmarks")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    return done, json.loads(path.read_text())


def test_outcomes_are_written_and_the_run_ends_in_time(tmp_path):
    done, found = outcomes(tmp_path)
    assert done.returncode == 1
    assert [found[k] for k in ("passed", "failed", "skipped", "errors", "collected")] == [
        1,
        1,
        1,
        2,
        4,
    ]
    names = [name.rpartition("::")[2] for name, _ in found["failures"]]
    assert names == ["test_broken.py", "test_b", "test_d"] and found["ended"] == ""
    assert "1 == 2" in found["failures"][1][1] and "ValueError" in found["failures"][2][1]
    _, found = outcomes(tmp_path, "--outcome-seconds=0")
    assert found["ended"] == "the time was up" and found["failed"] == 0


def test_tests_from_everywhere_come_first():
    items = list(range(200))
    pytest_collection_modifyitems(items)
    assert items[:5] == [0, 61, 122, 183, 1] and sorted(items) == list(range(200))


def job(tmp_path, **changes):
    given = {
        "device": "0",
        "tests": "NVIDIA CUDA",
        "gpu": True,
        "small": False,
        "total": 540.0,
        "out": tmp_path,
        "stem": "h100",
        "work": tmp_path / "work",
    }
    return plan.Job(**{**given, **changes})


def test_the_plan_spends_all_of_the_time_and_no_more(tmp_path):
    made = plan.steps(job(tmp_path))
    assert sum(step.budget for step in made) == pytest.approx(540)
    assert [s.name for s in made] == [
        "facts",
        "families",
        "sweep",
        "details",
        "networks",
        "doctor",
        "tests",
        "models",
        "tune_resnet50_f16",
        "tune_mobilenet_v2_f16",
        "engines",
        "compiled",
    ]
    last = [str(word) for word in made[-2].command(100.0)]
    assert "torch:cuda+f16+channels_last+graphs" in last[last.index("--engines") + 1]
    assert last[last.index("--batch") + 1] == "64,1,8" and last[last.index("--budget") + 1] == "87"
    alone = plan.steps(job(tmp_path, names=("engines",)))
    assert [(s.name, s.budget) for s in alone] == [("engines", 540)]
    assert made[-1].skip == "" and plan.steps(job(tmp_path, gpu=False))[-1].skip
    compiled = " ".join(map(str, made[-1].command(100.0)))
    assert "torch:cuda+f16+channels_last+compile" in compiled and "compiled.json" in compiled


def test_stages_of_rising_cost():
    """Each ends by its time; together they are all steps in order."""
    ends = [stage.minutes for stage in plan.STAGES]
    assert ends == [0.5, 2, 5, 10] and len(set(plan.NAMES)) == len(plan.NAMES)
    names, seconds = plan.chosen((1,))
    assert names == ("facts", "families") and 25 < seconds < 30
    parts = [plan.chosen((k,)) for k in range(1, 5)]
    assert sum((n for n, _ in parts), ()) == plan.NAMES == plan.chosen(range(1, 5))[0]
    assert sum(s for _, s in parts) == pytest.approx(0.94 * 600)
    assert plan.chosen(range(1, 5))[1] == pytest.approx(0.94 * 600)
    assert plan.within(0.5) == plan.chosen((1,)) and plan.within(3)[0] == plan.chosen((1, 2))[0]
    assert plan.within(20)[0] == plan.NAMES and plan.within(20)[1] > 1000
    with pytest.raises(ValueError, match="too few"):
        plan.within(0.2)
    numbers = [plan.stage_of(n) for n in (*plan.NAMES, "models", "tune_resnet50_f16")]
    assert numbers == [1, 1, 2, 2, 3, 3, 4, 4, 4, 4, 4, 4]
    for k, stage in enumerate(plan.STAGES, 1):  # what a stage's steps share is what it may take
        assert sum(plan.SHARES[n] for n in stage.steps) <= 60 * (ends[k - 1] - [0, *ends][k - 1])


def test_a_step_under_way_is_seen(runner, monkeypatch):
    monkeypatch.setattr(module, "SEEN_S", 0.0)
    seen = []
    runner.seen = lambda outcome: seen.append((outcome.name, outcome.status))
    runner.run(Step("slow", "Slow", python("import time; time.sleep(1)"), 60))
    assert seen and set(seen) == {("slow", "under way")}


def test_engines_of_the_plan_can_be_named(tmp_path):
    from engines import refusal

    for engine in (*plan.ON_GPU, *plan.ON_CPU, *plan.COMPILED):
        assert not refusal(engine)


@pytest.fixture
def report():
    steps = [
        {
            "name": "sweep",
            "title": "layers",
            "status": "failed",
            "seconds": 3.0,
            "budget": 9.0,
            "code": 1,
            "commands": ["python x.py"],
            "tail": ["it broke"],
            "note": "",
        },
        {
            "name": "tests",
            "title": "tests",
            "status": "skipped",
            "seconds": 0.0,
            "budget": 0.0,
            "code": None,
            "commands": [],
            "tail": [],
            "note": "no time was left",
        },
    ]
    return {
        "notes": ["matplotlib is not installed"],
        "steps": steps,
        "data": {},
        "doctor": [],
        "pictures": [],
    }


def test_a_page_holds_what_there_is(report):
    text = page(About("H100", "550", "today", ("tools/gpu_report.sh",)), report)
    assert "| 2 | layers | failed (status 1) | 3 | 9 |" in text and "it broke" in text
    assert "| 4 | tests | skipped: no time was left | 0 | 0 |" in text
    assert "- Driver: 550" in text and "matplotlib is not installed" in text
    assert "## Tests" not in text
    counts = {
        "passed": 9,
        "failed": 1,
        "skipped": 2,
        "errors": 0,
        "collected": 20,
        "failures": [["test_x", "assert 1"]],
        "ended": "the time was up",
    }
    report["data"] = {"tests": counts, "facts": {"timer": {"step_ns": 1000.0}}}
    text = page(About("H100"), report)
    assert (
        "9 passed, 1 failed, 0 errors, 2 skipped, of 20 collected (12 ran; the time was up)" in text
    )
    assert "- `test_x`: assert 1" in text and "  - step_ns: 1e+03" in text


def test_a_summary_says_what_each_stage_found():
    right = {"family": "rows", "dtype": "f32", "passed": True}
    layer = {"kind": "gemm", "dtype": "f32", "of_bound": 0.5, "fault": ""}
    data = {
        "sweep": {
            "ceilings": {"bandwidth": 3e12, "rates": {"f32": 5e13, "f16": 8e14}},
            "rows": [layer, {**layer, "of_bound": 0.7}, {**layer, "of_bound": None, "fault": "no"}],
        },
        "families": {"rows": [right, {**right, "family": "pooling", "passed": False}]},
        "facts": {"capabilities": {"fp16": "yes", "fp64": "no"}, "launches": {"alone_us": 9.0}},
    }
    assert summary(data) == [
        "## Summary",
        "",
        "- the probe passed; 1 of 2 capabilities",
        "- a launch takes 9.0 us waited for",
        "- 1 of 2 families are right in f32; not pooling",
        "- at most: copies 3e+03 GB/s, f32 50 TFLOP/s, f16 800 TFLOP/s",
        "- gemm, f32: 60 % of the bound (median of 2; 50 to 70 %)",
        "- 1 layers failed",
        "",
    ]
    failed = {"capabilities": {"error": "x"}, "launches": {"error": "x"}}
    assert summary({"facts": failed}) == summary({}) == []


def test_the_archive_for_another_machine(tmp_path, monkeypatch):
    """The checkout and the wheels, in a folder; nothing is left where it would be too large."""
    real, asked = pack._said, []

    def said(command):
        if command[0] == "git":
            return real(command)
        asked.extend(command)
        (Path(command[command.index("--dest") + 1]) / "numpy-1.whl").write_bytes(b"wheel")
        return ""

    monkeypatch.setattr(pack, "_said", said)
    target = tmp_path / "report.tar.gz"
    assert pack.pack(target) == target.stat().st_size < pack.MOST_BYTES
    with tarfile.open(target) as archive:
        names = set(archive.getnames())
    inside = {
        f"{pack.FOLDER}/{n}" for n in ("tools/gpu_report.sh", "clnn/api.py", "wheels/numpy-1.whl")
    }
    assert names >= inside and {"pyopencl", "pytest", "pip"} <= set(asked) and "torch" not in asked
    assert "--python-version" not in asked
    pack.pack(target, python="3.12")
    assert asked[asked.index("--python-version") + 1] == "3.12"
    with pytest.raises(RuntimeError, match="more than 1000"):
        pack.pack(tmp_path / "large.tar.gz", most=1000)
    assert [path.name for path in tmp_path.iterdir()] == ["report.tar.gz"]
