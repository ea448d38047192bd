"""Children that build, run, check and time: whatever a kernel does wrong is told, and harms nobody."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tune_ops import KERNELS, MODES, Double, double, doubled, graph, problem, start_tuner

from clnn.cache.lines import LineFile
from clnn.cache.store import Store
from clnn.options import Options
from clnn.runtime.build.program import key_of
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.tune import bench as bench_module
from clnn.tune.bench import Bench, Limits, Trial
from clnn.tune.choose import chooser
from clnn.tune.signature import signature
from clnn.tune.store import TuningStore
from clnn.tune.tuner import LEFT_OVER, TuneRequest, tune_graph

pytestmark = pytest.mark.dealt  # starts many processes

LIMITS = Limits(run_s=5.0, jobs=2)
BAD = [mode for mode in MODES if mode not in ("right", "slow")]
SAID = {
    "broken": "does not build: ",
    "wrong": "wrong values: error 0.00",
    "unwritten": "wrong values",
    "outside": "wrote outside of its output out0",
    "input": "changed its input in0",
    "tires": "wrong values",
    "crash": "crashed (SIGSEGV",
    "endless": "did not answer within",
}


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    monkeypatch.setenv("CLNN_KERNEL_PATH", str(KERNELS))


def test_every_fault_is_told_and_the_next_variant_runs(device):
    given = problem()
    with Bench(select(device), LIMITS) as bench:
        bench.load(Double(MODES), given)
        variants = {mode: double(given, mode) for mode in MODES}
        built = bench.build(list(variants.values()))
        assert [name for name, fault in built.items() if fault] == ["double_broken"]
        told = {"broken": built["double_broken"]}
        for mode in BAD[1:]:
            told[mode] = bench.trial(variants[mode], 1).fault
            again = bench.trial(variants["right"], 2)
            assert again.fault == "" and again.error == 0 and len(again.seconds) == 2
        assert {m: SAID[m] in told[m] for m in BAD} == dict.fromkeys(BAD, True), told
        assert bench.trial(variants["slow"], 3).median > bench.trial(variants["right"], 3).median


def test_kernels_that_lack_registers_are_left_out(device, monkeypatch, tmp_path):
    """Told by a build, or kept with the binary of an earlier one."""
    given, told, ask = problem(), "96 bytes of registers are kept in memory", bench_module._ask
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path))

    def answer(worker, request, seconds):
        lacks = "build" in request and "0.01f" in Path(request["build"]).read_text()
        return Trial("", spills=told) if lacks else ask(worker, request, seconds)

    monkeypatch.setattr(bench_module, "_ask", answer)
    with Bench(select(device), LIMITS) as bench:
        bench.load(Double(MODES), given)
        right, slow, wrong = (double(given, mode) for mode in ("right", "slow", "wrong"))
        Store().put(key_of(bench.info, bench.sources(slow)[0]), b"binary", {"spills": told})
        lacks = f"lacks registers: {told}"
        assert bench.build([right, slow, wrong]) == {
            "double_right": "",
            "double_slow": lacks,
            "double_wrong": lacks,
        }
        assert bench.trial(right, 1).fault == ""


def tune(device, *modes, size=100, **request):
    return tune_graph(
        graph(*modes, size=size),
        select(device),
        Options(),
        TuneRequest("full", 60.0, **request),
        limits=LIMITS,
    )


def test_wrong_and_deadly_variants_never_win_and_are_not_tried_again(device):
    info = select(device)
    report = tune(device, "slow", *BAD, "right", size=4000)
    (layer,) = report.layers
    assert (layer.state, layer.after) == ("tuned", "double_right")
    assert layer.faults.keys() == {f"double_{mode}" for mode in BAD}
    assert layer.seconds_after < layer.seconds_before
    assert report.network_after and report.finished and "double_right" in report.text()
    (layer,) = tune(device, "slow", *BAD, "right", size=4000).layers
    assert (layer.after, layer.tried, layer.faults) == ("double_right", 2, {})
    TuningStore(info).forget_failures()
    (layer,) = tune(device, "slow", "wrong", "right", size=4000, retry=True).layers
    assert layer.tried == 3 and layer.faults.keys() == {"double_wrong"}


def test_a_tuned_session_takes_the_winner_and_is_right(device):
    made, info = graph("slow", "wrong", "right"), select(device)
    tune(device, "slow", "wrong", "right")
    with chooser(info, "cached") as choose, Session(made, info, Options(), choose) as session:
        row = next(r for r in session.placement.nodes if r["node"] == "double")
        assert (row["variant"], row["why"]) == ("double_right", "tuned") and doubled(session)


def test_a_result_of_another_driver_is_run_before_it_is_used(device, monkeypatch):
    """One stored variant is wrong under the new driver (as planted), the next one is right."""
    info = select(device)
    made = graph("slow", "wrong", "right")
    tune(device, "slow", "right")
    store = TuningStore(info)
    problem_key = signature(made.nodes[0].spec, problem()).key
    record = next(r for r in store.lines.read() if r["kind"] == "result")
    tops = [{**record["tops"][0], "name": n} for n in ("double_wrong", "double_right")]
    planted = {**record, "driver": "older", "tops": tops}
    with chooser(info, "cached") as choose, Session(made, info, Options(), choose) as session:
        step = next(s for s in session.plan.scheduled if s.node.name == "double")
        planted["key"] = signature(step.node.spec, step.problem).key
        assert step.variant.why == "ranked" and problem_key
    store.lines.append([planted])
    with chooser(info, "cached") as choose, Session(made, info, Options(), choose) as session:
        step = next(s for s in session.plan.scheduled if s.node.name == "double")
        assert (step.variant.name, step.variant.why) == ("double_right", "tuned")
    assert {n for n, _ in TuningStore(info).failures(planted["key"])} == {"double_wrong"}


def replies(child):
    return [json.loads(line) for line in child.stdout]


def wait_for(what, seconds=120.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_killed_while_a_kernel_hangs(any_device, tmp_path):
    """kill -9 of the tuner: the child goes too, no line is lost, the variant is never run again."""
    info = select(any_device)
    first = start_tuner(any_device, "slow", "right", size=50)
    assert replies(first)[-1]["after"] == "double_right"
    folder = TuningStore(info).lines.path.parent

    def hangs():
        notes = [r for p in folder.glob("*.trying") for r in LineFile(p, "ro").read()]
        done = {r["done"] for r in notes if "done" in r}
        open_ = [r["name"] for r in notes if "name" in r and r["number"] not in done]
        return open_ == ["double_endless"] and len(notes) > 8

    child = start_tuner(any_device, "slow", "right", "endless", run_s=600.0)
    wait_for(hangs)
    child.kill()
    pids = [r["child"] for r in replies(child) if "child" in r]
    child.wait()
    assert len(pids) == 2
    wait_for(lambda: not any(is_running(pid) for pid in pids))
    store = TuningStore(info)
    before = store.lines.read()
    assert len(before) >= 2 and {r["kind"] for r in before} == {"result"}
    resumed = start_tuner(any_device, "slow", "right", "endless", run_s=600.0, resume=True)
    assert replies(resumed)[-1] == {"state": "tuned", "after": "double_right", "faults": {}}
    after = TuningStore(info).lines.read()
    assert after[: len(before)] == before
    kinds = [(r["kind"], r.get("name"), r.get("reason")) for r in after]
    assert ("failure", "double_endless", LEFT_OVER) in kinds
    assert not list(folder.glob("*.trying"))


def test_two_tuners_at_once_lose_nothing(any_device):
    children = [start_tuner(any_device, "slow", "right", "wrong", size=size) for size in (60, 70)]
    for child in children:
        assert replies(child)[-1]["state"] == "tuned"
    records = TuningStore(select(any_device)).lines.read()
    shapes = {tuple(r["problem"]["inputs"][0]["shape"]) for r in records if r["kind"] == "result"}
    assert shapes == {(60,), (70,)}
    assert sum(r["kind"] == "failure" for r in records) == 2


def test_a_bench_leaves_nothing_behind(any_device, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with Bench(select(any_device), LIMITS) as bench:
        bench.load(Double(MODES), problem())
        right = double(problem(), "right")
        assert bench.build([right]) == {"double_right": ""} and not bench.trial(right, 1).fault
        pids = [w.pid for w in (bench._runner, *bench._builders) if w.pid is not None]
    wait_for(lambda: not any(is_running(pid) for pid in pids), 10)
    assert pids and not [p for p in os.listdir(tmp_path) if p.startswith("clnn-tune-")]
