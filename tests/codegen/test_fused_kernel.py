"""Launches as calls of one kernel: what fits, and what becomes of its text."""

from __future__ import annotations

import re

import numpy as np
import pytest
from launch import run_source
from small_graphs import GRAPHS

from clnn.codegen.fused_kernel import APART, CLOCK, GROUPS, LINE, FusedCall, Numbers, can_fuse, fuse
from clnn.codegen.kernels import KERNEL
from clnn.codegen.render import render
from clnn.errors import TemplateError
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
    made = fuse([FusedCall(PLAIN, (4, 1, 2), ("arena", "7"))] * 2, 2, {"arena": "__global char *"})
    assert made.source.count("__kernel") == 1
    assert made.source.count("float twice_0(float x)") == 1 and "twice_0(dst[0])" in made.source
    assert "dst[at + id0 + id2]" in made.source
    assert "__global float *held = (__global float *)(scratch + 0);" in made.source
    assert "__global float *more" in made.source and "__local" not in made.source
    assert made.source.count("int id0 = item % 4, id1 = item / 4 % 1, id2 = item / 4;") == 2
    assert made.source.count("call_0(scratch, id0, id1, id2, arena, 7)") == 2
    assert (made.scratch, made.groups) == (448, 2 * GROUPS)
    assert made.counters == (2 * (2 + 1) + 1) * LINE + 1  # shares and what is done, began, ended


@pytest.mark.parametrize("helpers", [0, 2])
def test_a_kernel_has_its_calls_in_a_function_of_its_own(helpers):
    """PoCL compiles three functions for each kernel."""
    made = fuse(
        [FusedCall(PLAIN, (4,), ("7",))] * 2, 2, {"arena": "__global char *"}, helpers=helpers
    )
    before, _, kernel = made.source.partition("__kernel void ")
    assert before.count("call_0(scratch, id0") == 2 and "get_group_id" not in before
    _, inside = kernel.split("{")
    given = ", ".join(["get_group_id(0)", "get_num_groups(0)", *made.params])
    assert inside.split() == f"{KERNEL}_calls({given}); }}".split()
    assert f"__attribute__((noinline)) void {KERNEL}_calls(const int work_group, " in before


def test_the_last_group_is_known_by_how_many_there_are():
    """So that one group alone, in the thread that calls, leaves the counters as they were."""
    one, two = (
        fuse([FusedCall(PLAIN, (4,), ("7",))] * 2, 2, {}, helpers=helpers) for helpers in (0, 1)
    )
    assert all("== work_groups - 1)" in made.source for made in (one, two))
    assert one.groups_on(False) == one.groups > 1 and one.groups_on(True) == 1
    assert fuse([FusedCall(PLAIN, (4,), ("7",))] * 2, 2, {}, numbers=Numbers()).groups_on(True) > 1


def test_long_functions_stay_apart():
    long = PLAIN.replace("    dst[", "    dst[0] += 1;\n" * (APART // 15) + "    dst[")
    made = fuse([FusedCall(source, (1,), ("7",)) for source in (PLAIN, long)], 1, {}).source
    assert re.findall(r"(.*)void call_(\d)\(", made) == [
        ("", "0"),
        ("__attribute__((noinline)) ", "1"),
    ]


def test_functions_of_equal_names_do_not_meet():
    other = PLAIN.replace("x * 2", "x * 3")
    calls = [FusedCall(PLAIN, (1,), ()), FusedCall(other, (1,), (), "skip")]
    source = fuse(calls, 1, {"skip": "int "}).source
    assert re.findall(r"float (twice_\d)", source) == ["twice_0", "twice_1"]
    assert "if (!(skip))" in source


def test_a_timed_kernel_notes_every_share():
    calls = [FusedCall(PLAIN, (4,), ()), FusedCall(PLAIN, (9,), ())]
    plain, timed = fuse(calls, 2, {}), fuse(calls, 2, {}, timed=True)
    assert plain.stamps == 0 and "stamp" not in plain.source
    assert timed.stamps == 2 * len(calls) * timed.groups
    assert timed.source.count(CLOCK) == 2 * len(calls)
    assert f"stamps + 2 * ({timed.groups} + work_group)" in timed.source


@pytest.mark.parametrize(
    "text",
    [
        "barrier(CLK_LOCAL_MEM_FENCE);",
        "get_local_id(0);",
        "get_group_id(1);",
        "get_global_size(0);",
        "__local float16 sums[8];",
        "__local float4 a[2];",
        "\n#pragma OPENCL FP_CONTRACT OFF\n",
        "\n#pragma OPENCL FP_CONTRACT ON\n",
    ],
)
def test_items_that_know_of_each_other_stay_alone(text):
    source = PLAIN.replace("    dst[", f"    {text}\n    dst[")
    assert can_fuse(PLAIN, (1, 1), (8, 9)) and not can_fuse(source, (1, 1), (8, 9))


ROUNDED = """float early(float x)
{
    return x * x + 1;
}
#define LATE(x) ((x) * (x) - 1)
#pragma OPENCL FP_CONTRACT OFF
float late(
    float x)
{
    return x * x - 1;
}
#pragma OPENCL FP_CONTRACT OFF
__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void rounded(__global const float *src, __global float *dst)
{
    if (get_global_id(0) >= 0) {
        dst[get_global_id(0)] = late(src[get_global_id(0)]) + LATE(src[0]);
    }
}
"""


def test_products_that_are_rounded_stay_so_in_their_own_source_alone():
    args = "src", "dst"
    assert can_fuse(ROUNDED, (1,), (4,))
    off = "{\n    #pragma OPENCL FP_CONTRACT OFF\n"
    made = fuse([FusedCall(s, (4,), args) for s in (PLAIN, ROUNDED, PLAIN)], 1, {}).source
    assert made.count("#pragma") == 2
    assert f"float x)\n{off}" in made and f"__global float *dst)\n{off}    if (" in made
    assert "early_1(float x)\n{\n    return" in made and "twice_0(float x)\n{\n    return" in made


def test_what_is_rounded_within_a_body_stays_so():
    inner = PLAIN.replace("    return", "    #pragma OPENCL FP_CONTRACT OFF\n    return")
    assert can_fuse(inner, (1,), (1,))
    for source in (
        inner,
        ROUNDED.replace("    return x * x + 1", "    #pragma OPENCL FP_CONTRACT OFF\n    return x"),
    ):
        made = fuse([FusedCall(source, (1,), ())], 1, {}).source
        assert re.search(
            r"float \w+_0\(float x\)\n{\n    #pragma OPENCL FP_CONTRACT OFF\n    return", made
        )


def test_rounded_products_come_out_as_alone(device):
    """x * x - 1 near 1, whose rounding shows in the difference."""
    x = (1 + np.arange(1, 65) * 2.0**-20).astype(np.float32)
    made = fuse(
        [FusedCall(ROUNDED, (64,), ("src", "dst"))],
        2,
        {"src": "__global const float *", "dst": "__global float *"},
    )
    counters = np.zeros(made.counters, np.int32)
    scratch, dst = np.zeros(made.scratch * made.groups, np.uint8), np.zeros(64, np.float32)
    args = [counters, scratch, x, dst]
    *_, got = run_source(device, KERNEL, made.source, args, (made.groups,), (1,))
    one = np.float32(1)
    np.testing.assert_array_equal(got, (x * x - one) + (x[0] * x[0] - one))
    *_, alone = run_source(device, "rounded", ROUNDED, [x, dst], (64,), (1,))
    np.testing.assert_array_equal(got, alone)


def test_other_work_sizes_stay_alone():
    assert not can_fuse(PLAIN, (8,), (64,))
    assert not can_fuse(PLAIN, (1, 1), (1 << 16, 1 << 15))
    assert not can_fuse(
        PLAIN.replace("__attribute__((reqd_work_group_size(1, 1, 1)))\n", ""), (1,), (1,)
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("float twice(", "typedef float real;\nfloat twice(", "'typedef float real;' is no def"),
        ("float twice(", "int table[2] = {1, 2};\nfloat twice(", "table.* is no definition"),
        ("more[0];\n}\n", "more[0];\n}\nvoid behind() {}\n", "does not end with its body"),
        ("more[0];\n", "more[0];\nskip:\n", "does not end with its body"),
        ("at)\n{", "at) {", "does not end with its body"),
        ("return x * 2", "return x * get_global_id(0)", "uses 'get_global_id'"),
        ("get_global_id(2)", "get_global_id(held[0])", "uses 'get_global_id'"),
        ("*more", "*scratch", "uses 'scratch'"),
        ("float x", "float id1", "uses 'id1'"),
    ],
)
def test_a_text_that_does_not_follow_the_grammar_is_refused(old, new, why):
    source = PLAIN.replace(old, new)
    assert source != PLAIN and can_fuse(source, (1,), (1,))
    with pytest.raises(TemplateError, match=f"__kernel void doubled cannot be fused: .*{why}"):
        fuse([FusedCall(source, (1,), ())], 1, {})


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_for_cpus_fit(name):
    for planned in make_plan(optimise(GRAPHS[name]()), Target()).launches:
        launch = planned.launch
        source = render(launch.template, launch.params)
        assert can_fuse(source, launch.local_size, launch.global_size) or "barrier" in source


COUNT = """__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void count(__global int *dst, const int first)
{
    volatile __global int *at = dst + first + get_global_id(0) + 5 * get_global_id(1);
    atomic_inc(at);
}
"""


def test_the_last_pieces_of_a_share_are_smaller():
    made = fuse([FusedCall(COUNT, (64,), ("dst", "0"))], 2, {"dst": "__global int *"})
    assert "max(piece - 5, 0), at = (piece - small) * 5 + small * 2;" in made.source
    assert "min(at + (piece < 5 ? 5 : 2), left)" in made.source


@pytest.mark.parametrize("units", [1, 2, 3, 40])
def test_every_item_of_every_call_runs_once(device, units):
    shapes = [(1,), (2,), (3,), (5, 3), (5, 7), (64,), (1000,), (4001,)]
    starts = np.cumsum([0, *map(np.prod, shapes)])
    calls = [
        FusedCall(COUNT, s, ("dst", str(at))) for s, at in zip(shapes, starts[:-1], strict=True)
    ]
    made = fuse(calls, units, {"dst": "__global int *"})
    counts, counters = np.zeros(starts[-1], np.int32), np.zeros(made.counters, np.int32)
    scratch = np.zeros(made.scratch * made.groups, np.uint8)
    for _ in range(2):
        args = [counters, scratch, counts]
        counters, _, counts = run_source(device, KERNEL, made.source, args, (made.groups,), (1,))
        assert not counters.any()
    assert (counts == 2).all()
