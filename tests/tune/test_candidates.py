"""Candidates of every family are right: built, run and compared as the tuner does it."""

from __future__ import annotations

import pytest
from small_graphs import Builder

from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat
from clnn.ops.pool.spec import Pool
from clnn.ops.shared.window import Window
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import select
from clnn.runtime.device.target import target_of
from clnn.tune.bench import Bench, Limits


def direct(b):
    return b.conv("x", 35, 3, 2)


def winograd(b):
    return b.conv("x", 48)


def member(b):
    """A convolution whose output lies inside that of a concatenation, before a border."""
    return b.conv(b.add(Concat(1), b.conv("x", 16, 1), b.conv("x", 24, 1)), 8)


def depthwise(b):
    return b.conv("x", 16, 3, 1, group=16)


def pool(b):
    return b.add(Pool(Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)), "max"), "x")


def packed(b):
    return b.add(Gemm(), "rows", b.const(40, 70))


def moving(b):
    return b.add(Gemm(), "rows", "columns")


def turned(b):
    return b.add(Gemm(trans_b=True), "rows", "rows")


MAKERS = {
    f.__name__: f for f in (direct, winograd, member, depthwise, pool, packed, moving, turned)
}


@pytest.mark.parametrize(
    "few",
    [
        True,
        pytest.param(False, marks=pytest.mark.exhaustive, id="all"),
    ],
)
@pytest.mark.parametrize("name", MAKERS)
def test_candidates_are_right(device, name, few):
    b = Builder(x=(1, 16, 13, 12), rows=(21, 40), columns=(40, 70))
    info = select(device)
    plan = make_plan(b.graph(MAKERS[name](b)), target_of(info))
    step = next(s for s in plan.scheduled if not s.node.name.startswith("io:"))
    found = step.node.spec.candidates(step.problem)
    names = [v.name for v in found]
    assert len(found) > 3 and len(set(names)) == len(names) and step.variant.name in names
    families = {v.launches[0].template: v for v in found}  # the last, least likely of each
    wanted = list(families.values())[:3] if few else found
    with Bench(info, Limits(jobs=2)) as bench:
        bench.load(step.node.spec, step.problem)
        faults = bench.build(wanted)
        for variant in wanted:
            faults[variant.name] = faults[variant.name] or bench.trial(variant, 0).fault
    assert not any(faults.values()), faults
