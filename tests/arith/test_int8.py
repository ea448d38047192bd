"""Convolutions in bytes, and other ops that read and write them: every kernel against numpy.

Sums are exact and every rounding is stated, so that results are equal to the bit; functions such as
sigmoid, and averages, may be off by one step of what is stored.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from byte_graphs import as_stored, check_graph, convolution, dp4a_in_c, in_bytes, single
from harness import check_memory, normal, rng, single_node, variant_names

from clnn.arith.int8 import EXACT, Int8
from clnn.codegen import render as codegen
from clnn.codegen.render import render
from clnn.errors import DTypeError, PlanError
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.storage import Convert
from clnn.ops.pool.spec import Pool
from clnn.ops.resize.sampling import Sampling
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.plan.layouts import Hints
from clnn.runtime.device.device import select
from clnn.runtime.device.target import target_of
from clnn.runtime.run import planning
from clnn.runtime.run.session import Session
from clnn.types import F32, I8, S8_LARGEST, narrow, stored_s8

pytestmark = pytest.mark.dealt  # kernels that are slow to build

PACKED = ("_vnni4", "_madd4", "_plain4")
RELU, ADD = (PostOp("relu"),), (PostOp("add", operand=3), PostOp("relu"))
LONG = (PostOp("mul", operand=3), PostOp("add", operand=4), PostOp("clip", (-0.5, 6.0)))


def window(k: int, s: int = 1, d: int = 1, p: int | None = None) -> Window:
    pad = (k - 1) * d // 2 if p is None else p
    return Window((k, k), (s, s), (d, d), (pad, pad), (pad, pad))


# spec, shapes (those of operands from 3 on), operands in bytes, scale of the result in bytes
CASES = {
    "packed": (Conv2d(window(3), post_ops=RELU), [(1, 8, 5, 7), (21, 8, 3, 3), (21,)], {}, 0.11),
    "residual": (
        Conv2d(window(1), post_ops=ADD),
        [(2, 12, 4, 5), (40, 12, 1, 1), (40,), (2, 40, 4, 5)],
        {3: 0.021},
        0.06,
    ),
    "float_operands": (
        Conv2d(window(3, 2), post_ops=LONG),
        [(1, 16, 9, 8), (20, 16, 3, 3), None, (1, 20, 1, 1), (1, 20, 5, 4)],
        {},
        0.05,
    ),
    "one_by_one": (Conv2d(window(3)), [(1, 6, 6, 5), (9, 6, 3, 3), (9,)], {}, 0.0),
    "groups": (
        Conv2d(window(3, 1, 2), group=2, post_ops=RELU),
        [(1, 8, 6, 7), (10, 4, 3, 3), (10,)],
        {},
        0.07,
    ),
    "depthwise": (
        Conv2d(window(3), group=21, post_ops=ADD),
        [(1, 21, 6, 9), (21, 1, 3, 3), (21,), (1, 21, 6, 9)],
        {3: 0.02},
        0.04,
    ),
    "depthwise_5x5": (Conv2d(window(5, 2), group=32), [(2, 32, 7, 7), (32, 1, 5, 5)], {}, 0.05),
    "line": (
        Conv2d(Window((3,), (1,), (1,), (1,), (1,)), post_ops=RELU),
        [(2, 8, 11), (17, 8, 3), (17,)],
        {},
        0.05,
    ),
}


def arrays_of(name):
    return [
        None if shape is None else normal(shape, k) / (3 if k == 1 else 1)
        for k, shape in enumerate(CASES[name][1])
    ]


@pytest.mark.parametrize("name", CASES)
def test_every_variant_is_exact(device, name):
    spec, _, stored, result = CASES[name]
    arrays = arrays_of(name)
    given = [k for k, a in enumerate(arrays) if k in (1, 2) and a is not None]
    graph = convolution(spec, arrays, given, stored, result)
    ran = check_graph(device, graph, arrays, hints=Hints({}, {"i3:bytes": (0, 2, 3, 1)}))
    assert any("reference" in n for n in ran) and len(ran) > 1
    assert any(n.startswith("depthwise") for n in ran) == name.startswith("depthwise")
    packed = arrays[1].shape[1] % 4 == 0
    assert any(any(way in n for way in PACKED) for n in ran) == packed


@pytest.mark.parametrize("name", ["packed", "residual"])
def test_nvidias_instruction(device, name, monkeypatch):
    """The kernels with dp4a, a function of what the instruction does in its place."""
    met, whole = [], []

    def without_ptx(template, params):
        text, count = dp4a_in_c(render(template, params))
        met.append(count)
        if count:
            whole.append("0x80808080" in text and "int v; } __attribute__((packed))" not in text)
        return text

    def target(info):
        found = target_of(info)
        return replace(found, features=found.features - {"x86_vnni", "x86_madd"} | {"ptx_dp4a"})

    monkeypatch.setattr(codegen, "render", without_ptx)
    monkeypatch.setattr(planning, "target_of", target)
    spec, _, stored, result = CASES[name]
    arrays = arrays_of(name)
    ran = check_graph(
        device, convolution(spec, arrays, (1, 2), stored, result), arrays, only="_dp4a4_"
    )
    assert ran and any(met) and all(whole)


def test_the_float32_result_is_exact_too(device):
    spec = CASES["packed"][0]
    arrays = arrays_of("packed")
    check_graph(device, convolution(spec, arrays, (1, 2), {}), arrays, only="direct")


@pytest.mark.parametrize("channels", [260, 1300])
def test_sums_beyond_what_float32_holds(device, channels):
    """All bytes at their ends: with 1300 channels the sum needs more than 24 bits."""
    x = rng(1).choice(np.array([-3.0, 3.0], np.float32), (1, channels + 2, 2, 3))
    w = rng(2).choice(np.array([-0.7, 0.7], np.float32), (17, channels + 2, 1, 1))
    w[0], x[:, :, 0, 0] = 0.7, 3.0
    graph = convolution(Conv2d(window(1)), [x, w], (1,), {})
    arith = next(n.spec.arith for n in graph.nodes if n.name == "node")
    weights = next(a for a in graph.consts.values() if a.dtype == np.int8)
    assert arith.refine(weights, None).floats == (S8_LARGEST**2 * (channels + 2) <= EXACT)
    check_graph(device, graph, [x, w])


def test_images_in_planes_and_borders_of_others(device):
    """Channels that are not neighbours, a row-major result, and no border where windows reach."""
    spec, _, _, result = CASES["groups"]
    arrays = arrays_of("groups")
    graph = convolution(spec, arrays, (1, 2), {}, result)
    name = next(n for n in graph.stored if n.startswith("i0"))
    for orders in ({name: (0, 1, 2, 3)}, {"made": (0, 1, 2, 3)}):
        check_graph(device, graph, arrays, hints=Hints({}, orders))


def test_a_function_is_within_a_step(device):
    arrays = arrays_of("packed")
    graph = convolution(
        Conv2d(window(3), post_ops=(PostOp("swish", (1.0,)),)), arrays, (1, 2), {}, 0.05
    )
    check_graph(device, graph, arrays, 0.05, only="direct")


@pytest.mark.parametrize("scale", [0.05, 3e-7, 2.0**60])
def test_conversions_round_to_even_and_saturate(device, scale):
    ties = np.arange(-260, 261) / 2
    wild = [np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30, 0.0, -0.0]
    with np.errstate(over="ignore"):
        x = (np.concatenate([ties, wild, ties + 0.4999]) * scale).astype(np.float32)[None]
    graph = in_bytes(single_node(Convert(), [x]), {}, scale)
    check_graph(device, graph, [x])
    kept = narrow(x, stored_s8(scale))[0]
    assert kept.min() == -127 and kept.max() == 127 and kept[np.isnan(x[0])] == [-127]
    assert (as_stored(x, scale)[0, 10:-10][kept[10:-10] == 0] == 0).all()


def test_elementwise_chains_of_several_scales(device):
    x, y, z = normal((2, 19, 5, 6)), normal((2, 19, 5, 6), 1), normal((1, 19, 1, 1), 2)
    spec = Eltwise((PostOp("add", operand=1), PostOp("mul", operand=2), PostOp("relu")))
    check_graph(device, single(spec, [x, y, z], (0.03, 0.011), 0.04, consts=(2,)), [x, y, z])
    check_graph(device, single(spec, [x, y, z], (0.03,), 0.0, consts=(2,)), [x, y, z])


@pytest.mark.parametrize("mode", ["max", "average"])
def test_pools_keep_the_scale(device, mode):
    x = normal((1, 19, 9, 11))
    graph = single(Pool(window(3, 2), mode), [x], (0.03,), 0.03)
    ran = check_graph(device, graph, [x], 0.0 if mode == "max" else 0.03)
    assert all("_s8_" in n for n in ran)


def test_reductions_change_the_scale(device):
    x = normal((2, 37, 7, 7))
    check_graph(device, single(Reduce("mean", (2, 3)), [x], (0.03,), 0.004), [x], 0.004)
    check_graph(device, single(Reduce("max", (2, 3)), [x], (0.03,), 0.03), [x])
    long = normal((2, 40000))
    check_graph(device, single(Reduce("sum", (1,)), [long], (0.03,), 2.0), [long], 2.0)


def test_resizing_keeps_the_scale(device):
    x = normal((1, 21, 5, 7))
    scales = (1.0, 1.0, 2.0, 2.0)
    nearest = Resize((1, 21, 10, 14), scales, Sampling("nearest", "asymmetric", "floor"))
    check_graph(device, single(nearest, [x], (0.03,), 0.03), [x])
    linear = Resize((1, 21, 10, 14), scales, Sampling("linear"))
    check_graph(device, single(linear, [x], (0.03,), 0.03), [x], 0.03)


def test_guards_and_borders_of_bytes_stay(device):
    """A chain of padded convolutions in bytes: every border is zero, and nothing is written beside."""
    arrays = arrays_of("packed")
    graph = convolution(CASES["packed"][0], arrays, (1, 2), {}, 0.1)
    options = Options(guard=128, arena="separate", fuse=False)
    with Session(graph, select(device), options) as session:
        session({"i0": arrays[0]})
        padded = [s for s in session.plan.storages.values() if s.layout.has_padding]
        assert any(s.dtype.name == "s8" for s in padded)
        check_memory(session, "bytes")


def test_equal_layers_share_a_kernel_whatever_their_scales():
    from clnn.codegen.render import render
    from clnn.plan.schedule import make_plan
    from clnn.target import Target

    arrays, sources = arrays_of("residual"), set()
    for factor in (1.0, 0.37):
        given = [arrays[0] * np.float32(factor), *arrays[1:]]
        graph = convolution(CASES["residual"][0], given, (1, 2), {3: 0.02 * factor}, 0.06 * factor)
        plan = make_plan(graph, Target(features=frozenset({"x86_vnni"})))
        step = next(s for s in plan.scheduled if s.node.name == "node")
        sources.add(render(step.launches[0].launch.template, step.launches[0].launch.params))
    assert len(sources) == 1


def test_wrong_operands_are_refused(device):
    arith = Int8(0.1, (0.1,) * 8)
    with pytest.raises(DTypeError, match="takes float32 with int8"):
        arith.output(F32, F32)
    with pytest.raises(DTypeError, match="no inverse"):
        stored_s8(0.0)
    assert arith.output(F32, I8) == F32
    graph = convolution(CASES["packed"][0], arrays_of("packed"), (1, 2), {})
    with pytest.raises(PlanError, match="of a value stored as float32"):
        variant_names(replace(graph, stored={}), device)
