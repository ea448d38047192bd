"""What is kept of a device's tuning, and what of it counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tune_fakes import described

from clnn.tune.journal import Journal, left_over
from clnn.tune.signature import Signature
from clnn.tune.store import Result, Timed, TuningStore, file_name, in_force

pytestmark = pytest.mark.usefixtures("quick_disk")
PARTS = {"op": "conv2d", "spec": {}, "inputs": [], "outputs": []}


def sig(name="k"):
    return Signature(PARTS, name, "bucket", 10)


def result(*names, level="full"):
    tops = tuple(Timed(n, 0.5 + k, "t", 0.25 if k == 0 else None) for k, n in enumerate(names))
    return Result(tops, "ranked", level, 7)


def test_a_result_comes_back_in_another_process_and_the_newest_counts(info):
    store = TuningStore(info)
    assert store.result("k") is None
    assert store.put(sig(), result("a", "b")) and store.put(sig(), result("c"))
    assert store.result("k") == result("c") == TuningStore(info).result("k")
    code = "from tune_fakes import described; from clnn.tune.store import TuningStore as T;"
    code += "print(T(described()).result('k').tops[0].name)"
    path = [str(p) for p in sys.path]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "c"


def test_only_the_three_best_are_kept(info):
    store = TuningStore(info)
    store.put(sig(), result("a", "b", "c", "d"))
    assert [t.name for t in TuningStore(info).result("k").tops] == ["a", "b", "c"]


def test_people_can_read_it(info):
    store = TuningStore(info)
    store.put(sig(), result("a"))
    (line,) = store.lines.path.read_text().splitlines()
    told = json.loads(line)
    assert told["problem"] == PARTS and told["tops"][0]["name"] == "a" and "1.0" in told["driver"]
    assert store.lines.path.name.startswith("portable-computing-language-tester-")


@pytest.mark.parametrize(
    "change",
    [
        {"driver_version": "1.1"},
        {"platform_version": "OpenCL 3.0 new"},
    ],
)
def test_another_driver_makes_a_prior_of_a_result(info, change):
    TuningStore(info).put(sig(), result("a"))
    TuningStore(info).put_failure("k", "b", "t", "hung")
    other = TuningStore(described(**change))
    assert other.result("k") is None and other.prior("k") == result("a")
    assert other.failures("k") == {} and TuningStore(info).failures("k") == {("b", "t"): "hung"}


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Tester 2"},
        {"compute_units": 4},
        {"vendor": "x"},
        {"platform": "y"},
    ],
)
def test_another_device_has_another_file(info, change):
    assert file_name(described(**change)) != file_name(info)


def test_failures_are_forgotten_on_request_only(info):
    store = TuningStore(info)
    store.put_failure("k", "a", "t", "hung")
    store.put_failure("m", "a", "t", "crashed")
    assert TuningStore(info).failures("k") == {("a", "t"): "hung"}
    assert TuningStore(info).forget_failures() == 2
    assert TuningStore(info).failures("k") == {} == TuningStore(info).failures("m")
    again = TuningStore(info)
    again.put_failure("k", "a", "t", "hung again")
    assert TuningStore(info).failures("k") == {("a", "t"): "hung again"}


def test_compaction_keeps_what_counts(info, monkeypatch):
    from clnn.tune import store as module

    monkeypatch.setattr(module, "_SPARE_LINES", 5)
    store = TuningStore(info)
    TuningStore(described(driver_version="0.9")).put(sig(), result("old"))
    store.put_failure("k", "x", "t", "hung")
    store.forget_failures()
    for n in range(10):
        store.put(sig(f"k{n % 2}"), result(f"v{n}"))
    store.put_failure("k", "y", "t", "crashed")
    before = len(store.lines.read())
    store.compact()
    after = TuningStore(info)
    assert len(after.lines.read()) < before
    assert after.result("k0") == result("v8") and after.result("k1") == result("v9")
    assert after.failures("k") == {("y", "t"): "crashed"} and after.prior("k") == result("old")
    assert in_force(after.lines.read()) == after.lines.read()


@pytest.mark.parametrize(
    "record",
    [
        {"tops": "x"},
        {"tops": []},
        {"tops": [{"name": "a"}]},
        {"level": "huge"},
        {"tried": "many"},
        {"tops": [{"name": "a", "seconds": "fast", "templates": "t"}]},
    ],
)
def test_lines_of_another_shape_are_passed_over(info, record):
    store = TuningStore(info)
    store.put(sig(), result("good"))
    (good,) = store.lines.read()
    store.lines.append([{**good, **record}, {**good, "v": 99, "tops": []}])
    assert TuningStore(info).result("k") == result("good")
    assert [r["key"] for r in TuningStore(info).results()] == ["k"]


def test_without_a_cache_nothing_is_kept_or_read(info, monkeypatch):
    TuningStore(info).put(sig(), result("a"))
    monkeypatch.setenv("CLNN_CACHE", "off")
    assert TuningStore(info).result("k") is None and not TuningStore(info).writable
    monkeypatch.setenv("CLNN_CACHE", "ro")
    assert TuningStore(info).result("k") == result("a") and not TuningStore(info).put(
        sig(), result("b")
    )


def test_notes_of_a_tuner_that_lives_are_left_alone(info):
    base = TuningStore(info).lines.path
    journal = Journal(base)
    with journal.trying("k", "a", "t"):
        assert left_over(base) == []
    journal.close()
    assert left_over(base) == [] and list(base.parent.iterdir()) == []


def test_what_killed_tuners_left_goes_when_it_is_old(info):
    """Locks without notes, and a file that was never finished; not those of a tuner that lives."""
    base = TuningStore(info).lines.path
    alive = Journal(base)
    scraps = [
        base.with_name(f"{base.stem}.1-dead.trying.alive"),
        base.with_name(f"{base.stem}.2-dead.trying.lock"),
        base.with_name(".new-3-dead"),
    ]
    for scrap in scraps:
        scrap.write_bytes(b"")
    kept = {*base.parent.iterdir()} - {*scraps}
    assert left_over(base) == [] and all(scrap.exists() for scrap in scraps)
    for path in base.parent.iterdir():
        os.utime(path, (1.0, 1.0))
    assert left_over(base) == []
    assert {*base.parent.iterdir()} == kept
    alive.close()


DYING = """
import os, sys
from pathlib import Path
from clnn.tune.journal import Journal
journal = Journal(Path(sys.argv[1]))
with journal.trying("k", "done", "t"):
    pass
with journal.trying("k", "deadly", "t"), journal.trying("k", "beside", "t"):
    os.kill(os.getpid(), 9)
"""


def test_notes_of_a_tuner_that_died_are_found_once(info):
    base = TuningStore(info).lines.path
    done = subprocess.run([sys.executable, "-c", DYING, str(base)])
    assert done.returncode == -9
    assert [(r["key"], r["name"]) for r in left_over(base)] == [("k", "deadly"), ("k", "beside")]
    assert left_over(base) == [] and list(base.parent.iterdir()) == []


def test_an_interrupt_clears_the_note(info):
    base = TuningStore(info).lines.path
    journal = Journal(base)
    with pytest.raises(KeyboardInterrupt), journal.trying("k", "a", "t"):
        raise KeyboardInterrupt
    journal._lock.release()  # as if the process had ended here
    assert left_over(base) == []
