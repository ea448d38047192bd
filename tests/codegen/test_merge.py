"""Launches as calls of one kernel: what fits, and what becomes of its text."""

from __future__ import annotations

import re

import numpy as np
import pytest
from launch import run_source
from small_graphs import GRAPHS

from clnn.codegen.merge import CLOCK, GROUPS, KERNEL, LINE, Call, fits, merge
from clnn.codegen.render import render
from clnn.graph.passes import optimise
from clnn.plan.schedule import make_plan
from clnn.target import Target

PLAIN = """float twice(float x)
{
    return x * 2;
}
__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void doubled(__global float *dst, const int at)
{
    __local float held[100];
    __local float *more = held + 3;
    dst[at + get_global_id(0) + get_global_id(2)] = twice(dst[0]) + more[0];
}
"""


def test_a_kernel_becomes_a_function_with_names_of_its_own():
    made = merge([Call(PLAIN, (4, 1, 2), ("arena", "7"))] * 2, 2, ["__global char *arena"])
    assert made.source.count("__kernel") == 1
    assert made.source.count("float twice_0(float x)") == 1 and "twice_0(dst[0])" in made.source
    assert "dst[at + id0 + id2]" in made.source
    assert "__global float *held = (__global float *)(scratch + 0);" in made.source
    assert "__global float *more" in made.source and "__local" not in made.source
    assert made.source.count("call_0(scratch, item % 4, item / 4 % 1, item / 4, arena, 7)") == 2
    assert (made.scratch, made.groups) == (448, 2 * GROUPS)
    assert made.counters == (2 * (2 + 1) + 1) * LINE + 1  # shares and what is done, began, ended


def test_functions_of_equal_names_do_not_meet():
    other = PLAIN.replace("x * 2", "x * 3")
    source = merge([Call(PLAIN, (1,), ()), Call(other, (1,), (), "skip")], 1, ["int skip"]).source
    assert re.findall(r"float (twice_\d)", source) == ["twice_0", "twice_1"]
    assert "if (!(skip))" in source


def test_a_timed_kernel_notes_every_share():
    calls = [Call(PLAIN, (4,), ()), Call(PLAIN, (9,), ())]
    plain, timed = merge(calls, 2, []), merge(calls, 2, [], timed=True)
    assert plain.stamps == 0 and "stamp" not in plain.source
    assert timed.stamps == 2 * len(calls) * timed.groups
    assert timed.source.count(CLOCK) == 2 * len(calls)
    assert f"stamps + 2 * ({timed.groups} + get_group_id(0))" in timed.source


@pytest.mark.parametrize(
    "text",
    [
        "barrier(CLK_LOCAL_MEM_FENCE);",
        "get_local_id(0);",
        "get_group_id(1);",
        "get_global_size(0);",
        "__local float16 sums[8];",
        "__local float4 a[2];",
    ],
)
def test_items_that_know_of_each_other_stay_alone(text):
    source = PLAIN.replace("    dst[", f"    {text}\n    dst[")
    assert fits(PLAIN, (1, 1), (8, 9)) and not fits(source, (1, 1), (8, 9))


def test_other_work_sizes_stay_alone():
    assert not fits(PLAIN, (8,), (64,))
    assert not fits(PLAIN, (1, 1), (1 << 16, 1 << 15))
    assert not fits(
        PLAIN.replace("__attribute__((reqd_work_group_size(1, 1, 1)))\n", ""), (1,), (1,)
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_for_cpus_fit(name):
    for planned in make_plan(optimise(GRAPHS[name]()), Target()).launches:
        launch = planned.launch
        source = render(launch.template, launch.params)
        assert fits(source, launch.local_size, launch.global_size) or "barrier" in source


COUNT = """__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void count(__global int *dst, const int first)
{
    volatile __global int *at = dst + first + get_global_id(0) + 5 * get_global_id(1);
    atomic_inc(at);
}
"""


@pytest.mark.parametrize("units", [1, 2, 3, 40])
def test_every_item_of_every_call_runs_once(device, units):
    shapes = [(1,), (2,), (3,), (5, 3), (5, 7), (64,), (1000,)]
    starts = np.cumsum([0, *map(np.prod, shapes)])
    calls = [Call(COUNT, s, ("dst", str(at))) for s, at in zip(shapes, starts[:-1], strict=True)]
    made = merge(calls, units, ["__global int *dst"])
    counts, counters = np.zeros(starts[-1], np.int32), np.zeros(made.counters, np.int32)
    scratch = np.zeros(made.scratch * made.groups, np.uint8)
    for _ in range(2):
        args = [counters, scratch, counts]
        counters, _, counts = run_source(device, KERNEL, made.source, args, (made.groups,), (1,))
        assert not counters.any()
    assert (counts == 2).all()
