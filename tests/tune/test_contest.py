"""Contests obey the times that they are given, whatever the estimates say; no device, no clock."""

from __future__ import annotations

import pytest
from tune_fakes import Clock, FakeBench, variant

from clnn.tune.contest import ROUNDS, Effort, contest, shortlist

MANY = [variant(f"v{n}", cost=float(n)) for n in range(30)]


def hold(times, entries=MANY, seconds=1000.0, **more):
    bench = FakeBench(times)
    return bench, contest(bench, entries, bench.clock.now + seconds, bench.clock, **more)


def test_the_fastest_wins_though_its_estimate_is_bad():
    _, found = hold({"v23": 0.25, "v4": 0.5})
    assert found.finalists == ["v23", "v4", "v0"]
    assert list(found.times)[:2] == ["v23", "v4"] and found.tried == 30 and not found.faults


def test_the_last_ones_run_in_turns():
    bench, found = hold({"v1": 0.2, "v2": 0.3}, MANY[:5])
    last = bench.tried[-3 * ROUNDS :]
    assert last == ["v1", "v2", "v0"] * ROUNDS
    assert found.finalists == ["v1", "v2", "v0"]


def test_the_ranked_one_is_measured_and_stays_a_finalist():
    bench, found = hold({f"v{n}": 0.1 + n / 100 for n in range(1, 30)})
    assert bench.tried[0] == "v0" and "v0" in found.finalists and found.finalists[-1] == "v0"


def test_a_wrong_but_fast_one_loses():
    _, found = hold({"v3": None, "v5": 0.5}, MANY[:8])
    assert found.finalists[0] == "v5" and "v3" not in found.times
    assert found.faults == {"v3": "wrong values: error 1, allowed 1e-05"}


def test_one_that_turns_wrong_in_the_last_rounds_loses():
    bench = FakeBench({"v1": 0.1})
    right = bench.trial

    def trial(made, batches):
        if made.name == "v1" and bench.tried.count("v1") >= 5:
            return right(variant("wrong"), batches)
        return right(made, batches)

    bench.trial, bench.times = trial, {"v1": 0.1, "wrong": None}
    found = contest(bench, MANY[:4], 1000.0, bench.clock)
    assert found.finalists and "v1" not in found.finalists and "v1" in found.faults


def test_one_that_does_not_build_is_never_run():
    bench, found = hold({}, [MANY[0], variant("broken"), MANY[1]])
    assert "broken" not in bench.tried and found.faults == {"broken": "does not build: no"}


def test_nothing_right_gives_nothing():
    _, found = hold({v.name: None for v in MANY})
    assert found.finalists == [] and found.times == {} and len(found.faults) == 30


def test_the_time_left_bounds_how_many_are_tried():
    _, found = hold({}, seconds=10.0, effort=Effort(chunk=4, first=3))
    assert found.tried == 7  # a build takes a second; the first look may take seven
    _, found = hold({}, seconds=0.0)
    assert found.tried == 3 and "v0" in found.times


def test_close_to_what_the_device_can_do_is_good_enough():
    bench, found = hold({"v0": 1.04}, bound=1.0)
    assert found.tried == 3 and len(bench.built) == 3


def test_the_shortlist_has_the_ranked_the_earlier_the_cheapest_and_every_family():
    other = [variant(f"w{n}", cost=100.0 + n, template="rows/softmax.cl.mako") for n in range(9)]
    names = [v.name for v in shortlist(MANY[7], [*MANY, *other], ["v20", "gone"], 12)]
    assert names[:2] == ["v7", "v20"] and len(names) == len(set(names)) == 12
    assert {"v0", "v1", "v2", "w0", "w1"} <= set(names)
    assert [v.name for v in shortlist(MANY[7], MANY, [], 1)] == ["v7"]


@pytest.mark.parametrize("count", [1, 2, 3, 24])
def test_the_shortlist_is_as_long_as_it_may_be(count):
    assert len(shortlist(MANY[0], MANY, [], count)) == count


def test_a_clock_that_stands_still_ends_too():
    clock = Clock()
    bench = FakeBench({}, clock, build_s=0.0)
    assert contest(bench, MANY, 5.0, clock).tried == 30
