"""Kernels of values in 16 and 8 bits, and of tensor cores, are measured as the others: built, run, compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_graphs import Builder
from test_candidates import MAKERS

from clnn.graph.passes import optimise
from clnn.graph.passes.quantise import observed, quantise
from clnn.graph.passes.store import store_as
from clnn.ops.launch import Const
from clnn.options import Options
from clnn.plan.plan import Plan
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import DeviceInfo, select
from clnn.runtime.device.target import allowed, target_of
from clnn.target import Target
from clnn.tune.bench import Bench, Limits
from clnn.tune.signature import signature
from clnn.tune.task import tasks_of
from clnn.types import STORAGE, narrow, widen

pytestmark = pytest.mark.dealt  # kernels that are slow to build


def plan_of(info: DeviceInfo, name: str, dtype: str) -> Plan:
    """Plan a small graph of one op, stored as `dtype` says."""
    b = Builder(x=(1, 16, 13, 12), rows=(21, 40), columns=(40, 70))
    graph = b.graph(MAKERS[name](b))
    if dtype == "int8":
        graph = optimise(quantise(graph, dict.fromkeys(observed(graph), (-3.0, 3.5))))
    else:
        graph = store_as(graph, STORAGE[dtype])
    return make_plan(graph, allowed(target_of(info), Options(dtype=dtype)))


CASES = [
    ("direct", "f16", ""),
    ("packed", "bf16", ""),
    ("depthwise", "bf16", ""),
    ("pool", "f16", ""),
    ("direct", "int8", ""),
    ("depthwise", "int8", ""),
    ("direct", "int8", "_mma_"),
    ("member", "f16", "_mma_"),
    ("turned", "bf16", "_mma_"),
    ("packed", "tf32", "_mma_"),
]


@pytest.mark.parametrize("name,dtype,only", CASES)
def test_candidates_are_right(device, name, dtype, only, monkeypatch):
    monkeypatch.setenv("CLNN_TENSOR_CORES", "emulated" if only else "off")
    info = select(device)
    task = next(
        t
        for t in tasks_of(plan_of(info, name, dtype))
        if t.step.node.spec.kind in ("conv2d", "gemm", "pool")
    )
    found = task.step.node.spec.candidates(task.step.problem)
    families = {v.launches[0].template: v for v in reversed(found) if only in v.name}
    assert families and bool(only) == any("_mma_" in v.name for v in found)
    with Bench(info, Limits(jobs=1)) as bench:
        bench.load(task.step.node.spec, task.step.problem)
        chosen = list(families.values())[:2]
        faults = bench.build(chosen)
        for variant in chosen:
            faults[variant.name] = faults[variant.name] or bench.trial(variant, 0).fault
    assert not any(faults.values()), faults


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_wrong_values_are_found(device, dtype):
    """Weights a sixteenth too large are more than what 16 bits round."""
    info = select(device)
    task = next(
        t for t in tasks_of(plan_of(info, "packed", dtype)) if t.step.node.spec.kind == "gemm"
    )
    (launch,) = task.step.variant.launches
    const = next(a for a in launch.args if isinstance(a, Const))
    kind = STORAGE[dtype]
    spoilt = Const(lambda: narrow(widen(const.make(), kind) * np.float32(17 / 16), kind))
    args = tuple(spoilt if a is const else a for a in launch.args)
    wrong = replace(task.step.variant, launches=(replace(launch, args=args),))
    with Bench(info, Limits(jobs=1)) as bench:
        bench.load(task.step.node.spec, task.step.problem)
        assert not bench.build([wrong])[wrong.name]
        assert "wrong values" in bench.trial(wrong, 0).fault


def test_wrong_bytes_are_found(device):
    """A weight that is one step away, where every rounding is stated."""
    info = select(device)
    plan = plan_of(info, "direct", "int8")
    task = next(t for t in tasks_of(plan) if t.step.node.spec.kind == "conv2d")
    right = task.step.variant
    (launch,) = right.launches
    weights = next(a for a in launch.args if isinstance(a, Const))

    def one_more():
        made = weights.make().copy()
        made.flat[7] += 1
        return made

    args = tuple(Const(one_more) if a is weights else a for a in launch.args)
    wrong = replace(right, name="wrong", launches=(replace(launch, args=args),))
    with Bench(info, Limits(jobs=1)) as bench:
        bench.load(task.step.node.spec, task.step.problem)
        assert not any(bench.build([right, wrong]).values())
        assert not bench.trial(right, 0).fault
        assert "wrong values" in bench.trial(wrong, 0).fault


def test_scales_make_no_difference_to_a_key():
    """Layers of one shape share a result whatever their scales; those in bytes and others do not."""
    keys = []
    for scale in (0.0, 3.0, 0.7):
        b = Builder(x=(1, 16, 13, 12))
        graph = b.graph(b.conv("x", 16))
        if scale:
            ends = dict.fromkeys(observed(graph), (-scale, scale))
            graph = optimise(quantise(graph, ends))
        step = next(s for s in make_plan(graph, Target()).scheduled if s.node.spec.kind == "conv2d")
        keys.append(signature(step.node.spec, step.problem))
    assert keys[1] == keys[2] and keys[0].bucket != keys[1].bucket


def test_results_of_tensor_cores_are_kept_apart():
    """Key and bucket of a problem tell which products it may use; those of float32 stay as they are."""
    found = {}
    for dtype in ("f32", "tf32", "f16"):
        for tensor in ("", "ptx"):
            b = Builder(x=(1, 16, 13, 12))
            graph = store_as(b.graph(b.conv("x", 16)), STORAGE[dtype])
            target = Target("gpu", 4, 4, tensor=tensor, tf32=dtype == "tf32")
            step = next(
                s for s in make_plan(graph, target).scheduled if s.node.spec.kind == "conv2d"
            )
            found[dtype, tensor] = signature(step.node.spec, step.problem)
    keys = {k: v.key for k, v in found.items()}
    assert keys["f32", ""] == keys["f32", "ptx"] == keys["tf32", ""]
    assert len(set(keys.values())) == 4
    assert found["f16", "ptx"].bucket == found["f16", ""].bucket + " ptx f16"
