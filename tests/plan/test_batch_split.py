"""Runs of large layers for a part of the batch at a time: equal to the bit, without copies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from harness import normal
from small_graphs import Builder

import clnn
from clnn.api import prepare
from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes import optimise
from clnn.ops.conv.separable import Separable
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.part import Part
from clnn.ops.movement.views import Concat, Reshape, Slice, Transpose, slice_of
from clnn.ops.pool.spec import Pool
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.cumsum import CumSum
from clnn.ops.rows.lrn import Lrn
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec
from clnn.plan import batch_split
from clnn.plan.batch_split import (
    LARGE_BYTES,
    MOST_PARTS,
    PART_BYTES,
    LayerRun,
    runs_of,
    split_batch,
)
from clnn.plan.schedule import make_plan
from clnn.target import Target
from clnn.types import I32, TensorType

HALVES = Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0))
THREE = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
INSIDE = Window((3, 3), (1, 1), (1, 1), (0, 0), (0, 0))
SHAPE = (6, 4, 5, 6)
# Spec and shapes of its inputs, for six images.
OPS: list[tuple[OpSpec, list[tuple[int, ...] | None]]] = [
    (Conv2d(THREE), [SHAPE, (6, 4, 3, 3), (6,)]),
    (Conv2d(THREE, 1, (PostOp("add", operand=3),)), [SHAPE, (6, 4, 3, 3), None, (6, 6, 5, 6)]),
    (Conv2d(THREE, 1, (PostOp("mul", operand=3),)), [SHAPE, (6, 4, 3, 3), None, (1, 6, 1, 1)]),
    (
        Separable(THREE, (), (PostOp("add", operand=5),)),
        [SHAPE, (4, 1, 3, 3), (4,), (6, 4, 1, 1), (6,), (6, 6, 5, 6)],
    ),
    (ConvTranspose((2, 2), (2, 2), (1, 1), (0, 0), (10, 12)), [SHAPE, (4, 6, 2, 2), (6,)]),
    (Pool(HALVES, "max"), [SHAPE]),
    (Pool(HALVES, "average", post_ops=(PostOp("mul", operand=1),)), [SHAPE, (6, 4, 2, 3)]),
    (
        Eltwise((PostOp("add", operand=1), PostOp("mul", operand=2))),
        [SHAPE, (4, 1, 1), (6, 1, 5, 6)],
    ),
    (Eltwise((PostOp("add", operand=1),)), [(1, 4, 1, 1), SHAPE]),
    (Reduce("mean", (2, 3)), [SHAPE]),
    (Reduce("max", (1,), False, post_ops=(PostOp("add", operand=1),)), [SHAPE, (6, 5, 6)]),
    (Resize((6, 4, 10, 12), (1.0, 1.0, 2.0, 2.0)), [SHAPE]),
    (Cast(I32), [SHAPE]),
    (Concat(1), [SHAPE, (6, 2, 5, 6)]),
    (Transpose((0, 2, 3, 1)), [SHAPE]),
    (slice_of(SHAPE, 1, 1, 2), [SHAPE]),
    (Slice((0, 3, 0, 0), (6, 4, 5, 6), (1, -1, 1, 1)), [SHAPE]),
]
MIXED: list[tuple[OpSpec, list[tuple[int, ...] | None]]] = [
    (Concat(0), [SHAPE, SHAPE]),
    (Pool(HALVES, "max", indices="row"), [SHAPE]),
    (Reduce("mean", (0, 2)), [SHAPE]),
    (Transpose((1, 0, 2, 3)), [SHAPE]),
    (slice_of(SHAPE, 0, 1, 2), [SHAPE]),
    (Slice((5, 0, 0, 0), SHAPE, (-1, 1, 1, 1)), [SHAPE]),
    (Resize((12, 4, 5, 6), (2.0, 1.0, 1.0, 1.0)), [SHAPE]),
    (Reshape((24, 5, 6)), [SHAPE]),
    (CumSum(0), [SHAPE]),
]


def types(shapes: list[tuple[int, ...] | None]) -> list[TensorType | None]:
    return [None if s is None else TensorType(s) for s in shapes]


@pytest.mark.parametrize("case", range(len(OPS)))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_parts_of_the_batch_are_parts_of_the_result(case, count):
    spec, shapes = OPS[case]
    inputs = [None if s is None else normal(s, k) for k, s in enumerate(shapes)]
    made = spec.split_batch(types(shapes), count)
    assert made is not None
    part, places = made
    whole = spec.reference(*inputs)[0]
    for start in range(0, 6, count):
        taken = [x[start : start + count] if k in places else x for k, x in enumerate(inputs)]
        kinds = [None if x is None else TensorType(x.shape) for x in taken]
        got = part.reference(*taken)[0]
        assert part.infer(kinds)[0].shape == got.shape
        assert np.array_equal(got, whole[start : start + count])


@pytest.mark.parametrize("spec, shapes", MIXED, ids=[s.kind for s, _ in MIXED])
def test_ops_across_images_have_no_parts(spec, shapes):
    assert spec.split_batch(types(shapes), 1) is None


def network(batch: int = 4, side: int = 12) -> Graph:
    """A residual block, a gate, joined branches, up and down again; a linear layer at its end."""
    b = Builder(x=(batch, 3, side, side))
    stem = b.post_ops("relu", b.conv("x", 8))
    block = b.conv(b.post_ops("relu", b.conv(stem, 8, group=8)), 8, 1)
    added = b.post_ops("add", block, stem)
    gate = b.post_ops("sigmoid", b.conv(b.add(Reduce("mean", (2, 3)), added), 8, 1))
    gated = b.post_ops("mul", added, gate)
    small = b.add(Pool(HALVES, "max"), gated)
    up = ConvTranspose((2, 2), (2, 2), (1, 1), (0, 0), (side, side))
    wide = b.add(up, small, b.const(8, 8, 2, 2), b.const(8))
    near = b.add(Resize((batch, 8, side, side), (1.0, 1.0, 2.0, 2.0)), small)
    both = b.add(Concat(1), wide, near, gated)
    half = b.add(slice_of((batch, 24, side, side), 1, 4, 9), both)
    last = b.conv(b.post_ops("relu", b.conv(half, 10)), 5, 3, stride=2)
    return b.graph(b.add(Lrn(3), last), b.add(Reduce("mean", (2, 3)), both))


@pytest.fixture
def little(monkeypatch):
    """As if caches held a few kilobytes."""
    monkeypatch.setattr(batch_split, "LARGE_BYTES", 8000)
    monkeypatch.setattr(batch_split, "PART_BYTES", 1)


def parts(graph: Graph) -> Counter[str]:
    return Counter(node.layer for node in graph.nodes if node.whole)


def test_a_run_is_repeated_and_nothing_is_copied(little):
    graph = optimise(network())
    made = check(split_batch(graph, Target()))
    assert len(parts(made)) > 5 and set(parts(made).values()) == {4}
    plan, plain = make_plan(graph, Target()), make_plan(graph, Target("cpu"), separate=True)
    assert plan.copied_bytes == plain.copied_bytes == 0
    assert plan.memory.total < plain.memory.total * 0.7
    assert split_batch(graph, Target("gpu")) is graph
    assert not any(s.node.whole for s in plain.scheduled)
    assert not any(s.node.whole for s in make_plan(graph, Target(), guard=64).scheduled)


@pytest.mark.parametrize(
    "channels, window, kinds",
    [(3, THREE, ["part"] * 4), (3, INSIDE, ["slice"] * 4), (8, THREE, ["part"] * 4)],
)
def test_an_input_is_brought_into_place_part_by_part(little, channels, window, kinds):
    """In planes where the first layer takes them, without a copy where it needs no border."""
    b = Builder(x=(4, channels, 12, 12))
    first = b.add(Conv2d(window), "x", b.const(16, channels, *window.kernel), b.const(16))
    graph = b.graph(b.conv(b.conv(first, 8), 8))
    plan = make_plan(graph, Target())
    read = [step for step in plan.scheduled if step.node.inputs[0] == "x"]
    assert [step.node.spec.kind for step in read] == kinds and plan.copied_bytes == 0
    assert not any(step.node.name == "io:x" for step in plan.scheduled)
    orders = {step.problem.outputs[0].layout.order for step in read}
    assert orders == {(0, 1, 2, 3) if channels == 3 else (0, 2, 3, 1)}


def test_an_input_that_others_read_is_brought_into_place_whole(little):
    b = Builder(x=(4, 3, 12, 12))
    last = b.conv(b.conv("x", 8), 8)
    graph = b.graph(last, b.add(Reduce("mean", (0, 2)), "x"))
    made = split_batch(graph, Target())
    assert parts(made) and not any(isinstance(node.spec, Part) for node in made.nodes)


def test_a_network_of_too_many_parts_stays_whole(monkeypatch):
    """Five layers for each of four images, and three for each of two pairs, are 26 nodes."""
    graph, split = network(), network(side=4)
    runs = [LayerRun(3, 8, 4, 1), LayerRun(9, 12, 4, 2)]
    monkeypatch.setattr(batch_split, "runs_of", lambda graph, units: runs)
    monkeypatch.setattr(batch_split, "_repeated", lambda graph, runs: split)
    monkeypatch.setattr(batch_split, "MOST_NODES", 26)
    assert split_batch(graph, Target()) is split
    monkeypatch.setattr(batch_split, "MOST_NODES", 25)
    assert split_batch(graph, Target()) is graph


def test_parts_share_kernels_and_constants(little, monkeypatch):
    monkeypatch.setattr(batch_split, "LARGE_BYTES", 12000)
    plan = make_plan(optimise(network(side=16)), Target())
    of: dict[str, set[object]] = {}
    for step in plan.scheduled:
        if step.node.whole:
            of.setdefault(step.node.layer, set()).add(id(step.variant))
    of.pop("x:part")  # copies, each from another place
    assert of and all(len(variants) == 1 for variants in of.values())


@pytest.mark.dealt
@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
def test_equal_to_the_bit(device, little, monkeypatch, dtype):
    graph, options, feeds = network(), clnn.Options(dtype=dtype), {"x": normal((4, 3, 12, 12), 5)}
    monkeypatch.setattr(batch_split, "LARGE_BYTES", 8000 // {"f32": 1, "f16": 2, "int8": 4}[dtype])
    ranges = clnn.calibrate(graph, [feeds], device, options) if dtype == "int8" else None
    with clnn.compile_model(graph, device, options, None, ranges) as session:
        assert any(step.node.whole for step in session.plan.scheduled)
        got = [session(feeds) for _ in range(2)]
    monkeypatch.setattr(batch_split, "LARGE_BYTES", 1 << 40)
    with clnn.compile_model(graph, device, options, None, ranges) as session:
        assert not any(step.node.whole for step in session.plan.scheduled)
        want = session(feeds)
    for name, values in want.items():
        assert all(np.array_equal(one[name], values) for one in got)


def test_a_profile_has_one_row_for_a_layer(device, little):
    with clnn.compile_model(network(), device) as session:
        with session.profile() as profile:
            session({"x": normal((4, 3, 12, 12))})
        layers = {step.node.layer for step in session.plan.scheduled}
        rows = profile.rows()
    assert len({row.node for row in rows}) == len(rows) and {row.node for row in rows} <= layers
    assert not any("@" in row.node for row in rows)
    graph = optimise(network())
    flops = {n.name: n.spec.flops(graph.input_types(n), graph.output_types(n)) for n in graph.nodes}
    for row in rows:
        if row.node in flops:
            assert row.gflops * row.seconds * 1e9 == pytest.approx(flops[row.node])


def conv(b: Builder, x: str, oc: int) -> str:
    return b.post_ops("relu", b.conv(x, oc))


def chain(batch: int, channels: tuple[int, ...], side: int = 64) -> Graph:
    b = Builder(x=(batch, channels[0], side, side))
    value = "x"
    for oc in channels[1:]:
        value = conv(b, value, oc)
    return optimise(b.graph(value))


def test_only_layers_beyond_the_caches_are_taken():
    image = 2 * 32 * 64 * 64 * 4
    few = LARGE_BYTES // image
    assert runs_of(chain(few, (32, 32, 32)), 1) == []
    assert runs_of(chain(2 * few, (32, 32, 32)), 1) == [
        LayerRun(0, 2, 2 * few, PART_BYTES // image)
    ]
    assert runs_of(chain(2 * few, (32, 32, 32)), 2) == []
    assert runs_of(chain(2 * few, (32, 32)), 1) == []


def test_large_weights_end_a_run():
    found = runs_of(chain(64, (64, 64, 64, 64, 256, 256, 256), 16), 1)
    assert [(run.begin, run.end) for run in found] == [(0, 4)]


def test_layers_of_smaller_maps_have_larger_parts():
    """Unless what they read lies within another value, or they are too few."""

    def shrinking(layers: int) -> Graph:
        b = Builder(x=(32, 32, 64, 64))
        value = conv(b, conv(b, "x", 32), 32)
        value = b.post_ops("relu", b.conv(value, 32, stride=2))
        for _ in range(layers):
            value = conv(b, value, 32)
        return optimise(b.graph(value))

    image = 2 * 32 * 64 * 64 * 4
    few, many = PART_BYTES // image, 4 * PART_BYTES // image
    assert runs_of(shrinking(3), 1) == [LayerRun(0, 3, 32, few), LayerRun(3, 6, 32, many)]
    assert runs_of(shrinking(1), 1) == [LayerRun(0, 4, 32, few)]


def test_images_of_a_part_divide_the_batch_into_few_parts():
    assert runs_of(chain(97, (32, 32, 32), 32), 1) == []  # 1 or 97
    for batch in (6, 7, 12, 48, 64):
        for run in runs_of(chain(batch, (32, 32, 32)), 1):
            assert batch % run.images == 0 and batch // run.images <= MOST_PARTS


def test_values_that_lie_within_others_end_a_run(little):
    b = Builder(x=(4, 8, 12, 12))
    first = conv(b, "x", 8)
    second = conv(b, first, 8)
    grown = b.add(Concat(1), first, conv(b, second, 8))
    flat = b.add(Reshape((4, 16 * 144)), grown)
    graph = optimise(b.graph(flat, second))
    plan, plain = make_plan(graph, Target()), make_plan(graph, Target(), separate=True)
    assert plan.copied_bytes == plain.copied_bytes


def test_constants_of_a_whole_batch_end_a_run(little):
    b = Builder(x=(4, 8, 12, 12))
    before = conv(b, conv(b, "x", 8), 8)
    graph = b.graph(conv(b, conv(b, b.post_ops("add", before, b.const(4, 8, 12, 12)), 8), 8))
    assert [(run.begin, run.end) for run in runs_of(graph, Target().compute_units)] == [
        (0, 4),
        (5, 9),
    ]


def test_names_that_are_taken_already(little):
    graph = optimise(network())
    name = graph.nodes[1].outputs[0]
    x = graph.inputs[0]
    extra = Node(f"{graph.nodes[1].name}@0", Eltwise((PostOp("neg"),)), (x,), (f"{name}@0",))
    types = {**graph.types, f"{name}@0": graph.types[x]}
    outputs = {**graph.outputs, "extra": f"{name}@0"}
    graph = check(replace(graph, nodes=(extra, *graph.nodes), types=types, outputs=outputs))
    made = check(split_batch(graph, Target()))
    names = [node.name for node in made.nodes]
    assert len(set(names)) == len(names)


def test_a_prepared_network_of_a_single_image_stays_as_it_is(little):
    graph = prepare(network(1), clnn.Options())
    assert split_batch(graph, Target()) is graph


def test_numbers_and_long_lists_among_the_layers(little):
    b = Builder(x=(4, 8, 12, 12), y=(), z=(1 << 22,))
    value = conv(b, conv(b, "x", 8), 8)
    one = b.add(Eltwise((PostOp("exp"),)), "y")
    long = b.post_ops("exp", "z")
    value = conv(b, b.post_ops("mul", conv(b, value, 8), one), 8)
    graph = optimise(b.graph(value, one, long))
    made = check(split_batch(graph, Target()))
    assert set(parts(made).values()) == {4}


@pytest.mark.dealt
def test_an_input_that_is_an_output_of_the_same_name(device):
    """The copies in and out have one name, and are two problems."""
    b = Builder(x=(1, 8, 6, 6))
    graph = b.graph(b.conv("x", 8))
    graph = replace(graph, outputs={**graph.outputs, "x": "x"})
    x = normal((1, 8, 6, 6))
    with clnn.compile_model(graph, device) as session:
        copies = [s.problem for s in session.plan.scheduled if s.node.name == "io:x"]
        assert len(copies) == 2
        assert np.array_equal(session({"x": x})["x"], x)
