from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from liveness import NETS, Net
from memory_cases import dirty_by_pairs, proven_plan, some_blocks

from clnn.plan.memory import Block, dirty_borders, plan_memory
from clnn.plan.plan import MemoryPlan


@given(some_blocks(12), st.lists(st.sampled_from([0, 0, 30, 60, 64, 300, 310]), min_size=12))
@example([Block("a", 50, 0, 0, 1, "g"), Block("b", 20, 0, 0, 1, "g")], [0] * 12)
@example([Block("a", 50, 0, 0, 1, "g"), Block("b", 20, 0, 0, 1, None)], [0, 30] * 6)
@settings(max_examples=250, deadline=None)
def test_dirty_borders_are_those_of_the_definition(blocks, offsets):
    """For any offsets, also such as no planner would choose."""
    at = dict(zip([b.key for b in blocks], offsets, strict=False))
    plan = MemoryPlan(at, 10**6, 0)
    assert dirty_borders(blocks, plan) == dirty_by_pairs(blocks, plan)


def test_uniform_networks_keep_all_borders_at_no_cost():
    """Super-resolution and denoising nets: one geometry throughout, a long skip, residuals."""
    net = Net()
    head = at = net.add(64, 32)
    for _ in range(16):
        at = net.add(64, 32, net.add(64, 32, at), at)
    blocks = net.keep(net.add(64, 32, at, head)).blocks()
    plan = proven_plan(blocks, 64)
    assert plan.total == plan.lower_bound
    assert dirty_borders(blocks, plan) == set()
    assert len(set(plan.offsets.values())) == plan.total // blocks[0].size


def test_borders_never_cost_memory_unless_asked():
    for make in NETS.values():
        blocks = make().blocks()
        plain = plan_memory([replace(b, geometry=None) for b in blocks], base_align=64)
        assert plan_memory(blocks, base_align=64).total == plain.total


def test_a_free_corner_is_given_to_a_border():
    """A small padded tensor fits beside all that the peak holds: it shares with nobody."""
    blocks = [
        Block("big", 1000, 0, 1),
        Block("mid", 600, 1, 2),
        Block("small", 100, 2, 9, geometry="g"),
        Block("late", 900, 3, 9),
        Block("later", 700, 3, 9),
    ]
    plan = proven_plan(blocks)
    assert plan.total == 1700
    assert dirty_borders(blocks, plan) == set()
    assert dirty_borders(blocks, MemoryPlan({**plan.offsets, "small": 0}, 1700, 1700)) == {"small"}


def test_spare_memory_separates_geometries():
    blocks = [
        Block("a", 100, 0, 1, geometry="g"),
        Block("b", 100, 1, 2, geometry="h"),
        Block("c", 50, 2, 3, geometry="k"),
    ]
    assert len(dirty_borders(blocks, proven_plan(blocks))) == 2
    assert len(dirty_borders(blocks, proven_plan(blocks, spare=49))) == 2
    plan = proven_plan(blocks, spare=50)
    assert plan.total == 250
    assert dirty_borders(blocks, plan) == set()


@pytest.mark.parametrize("name", ["resnet50", "densenet121", "unet", "inception", "hrnet"])
def test_spare_memory_buys_clean_borders(name):
    blocks = NETS[name]().blocks()
    smallest = proven_plan(blocks, 64)
    counts = []
    for percent in (0, 25, 100, 1000):
        spare = smallest.lower_bound * percent // 100
        plan = proven_plan(blocks, 64, spare=spare)
        assert plan.total <= smallest.total + spare
        counts.append(len(dirty_borders(blocks, plan)))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[1]
    assert counts[-1] == 0
