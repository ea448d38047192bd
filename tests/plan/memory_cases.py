"""Blocks for tests of the memory planner, and the facts that any plan is held against."""

from __future__ import annotations

from math import gcd, lcm

from hypothesis import strategies as st

from clnn.plan.memory import Block, plan_memory


def proven_plan(blocks, base_align=1, **options):
    """Plan, and prove the plan right."""
    plan = plan_memory(blocks, base_align=base_align, **options)
    assert check_plan(blocks, plan, base_align=base_align) == []
    assert plan.lower_bound == live_bound(blocks, base_align)
    return plan


def check_plan(blocks, plan, *, base_align=1):
    """Return all that is wrong with a plan, in words; nothing when it is right.

    Compares every two blocks, and shares no code with the planner.
    """
    if sorted(plan.offsets) != sorted(block.key for block in blocks):
        return [f"offsets of {sorted(plan.offsets)}, not of the {len(blocks)} blocks"]
    wrong = []
    for n, one in enumerate(blocks):
        begin = plan.offsets[one.key]
        if begin < 0 or begin + one.size > plan.total:
            wrong.append(f"{one} at {begin} is outside of 0 to {plan.total}")
        if begin % one.align or begin % base_align:
            wrong.append(f"{one} at {begin} is not aligned to it and to {base_align}")
        for other in blocks[:n]:
            away = plan.offsets[other.key]
            together = one.first <= other.last and other.first <= one.last
            if together and begin < away + other.size and away < begin + one.size:
                wrong.append(f"{one} at {begin} overlaps {other} at {away}")
    if plan.lower_bound > plan.total:
        wrong.append(f"total {plan.total} is below the lower bound {plan.lower_bound}")
    return wrong


def live_bound(blocks, base_align):
    """The largest live sum, by looking at each step."""
    unit = gcd(*(lcm(b.align, base_align) for b in blocks)) if blocks else 1
    steps = {b.first for b in blocks}
    return max(
        (sum(-(-b.size // unit) * unit for b in blocks if b.first <= s <= b.last) for s in steps),
        default=0,
    )


@st.composite
def some_blocks(draw, most=24):
    count = draw(st.integers(0, most))
    blocks = []
    for n in range(count):
        first = draw(st.integers(0, 12))
        blocks.append(
            Block(
                f"b{n}",
                draw(st.integers(0, 300)),
                first,
                first + draw(st.integers(0, 5)),
                draw(st.sampled_from([1, 2, 3, 16, 24, 64])),
                draw(st.sampled_from([None, "g", ("h", 2)])),
            )
        )
    return blocks


def dirty_by_pairs(blocks, plan):
    def shares(one, other):
        a, b = plan.offsets[one.key], plan.offsets[other.key]
        same = one.geometry == other.geometry and a == b
        return a < b + other.size and b < a + one.size and not same and one.size and other.size

    return {
        one.key
        for one in blocks
        if one.geometry is not None
        and any(one is not other and shares(one, other) for other in blocks)
    }
