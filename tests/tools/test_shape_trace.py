from __future__ import annotations

import sys
from dataclasses import replace

from common import ROOT

sys.path.insert(0, str(ROOT / "tools" / "benchmarks"))

import shape_trace
from shape_trace import Moment, between


def moment(**counts):
    nothing = Moment({}, (0.0, 0.0), {}, (0, 0), 0, (0, 0), 0, 0.0, 0.0)
    return replace(nothing, **counts)


def test_what_happened_is_told(monkeypatch):
    monkeypatch.setattr(shape_trace, "_thread", lambda: "1")
    before = moment(threads={"1": (5.0, 1.0), "2": (7.0, 0.0)}, pages={"compact_stall": 2})
    after = moment(
        threads={"1": (15.0, 4.0), "2": (27.0, 0.5), "3": (6.0, 2.0), "4": (0.1, 0.1)},
        machine=(50.0, 10.0),
        pages={"compact_stall": 5},
        faults=(80, 1),
        all_faults=500,
        switches=(3, 4),
        collections=1,
        cpu=0.01,
        clock=0.03,
    )
    told = between(before, after)
    assert told.startswith("30.0 ms, 10.0 of processor, waited 3.0 for one,")
    assert "other threads ran and waited 20.0+0.5 6.0+2.0," in told
    assert "other processes about 14, host took 10" in told
    assert "faults 80+1 of 500, switches 3+4, compactions 3, 1 collections" in told


def test_moments_count_up():
    before = Moment.now()
    assert shape_trace.loop_ms() > 0
    after = Moment.now()
    assert after.clock > before.clock and after.cpu >= before.cpu
    assert "other processes about" in between(before, after)
