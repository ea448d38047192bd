from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
from harness import check_op, compare, normal, single_node
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from targets import GPU

import clnn
from clnn.codegen.render import render
from clnn.errors import DTypeError, ShapeError, UnsupportedOpError
from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes.store import store_as
from clnn.layout import TensorLayout, lay_out, view_of
from clnn.ops.gemm.families import FAMILIES
from clnn.ops.gemm.spec import Gemm
from clnn.ops.gemm.tiled import split_k
from clnn.ops.movement.views import Slice
from clnn.ops.problem import Operand, Problem
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.matrices import (
    Tile,
    Views,
    folded,
    gemm_tiles,
    pack_panels,
    panels_for,
    product,
)
from clnn.options import Options
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.target import Target
from clnn.types import F16, F32, I64, STORAGE, U8, TensorType

pytestmark = pytest.mark.dealt  # kernels that are slow to build


def ints(shape, dtype, seed=0):
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


SHAPES = [(1, 40, 1000), (17, 33, 70), (3, 1, 5), (29, 7, 16), (2, 3, 1)]


@pytest.mark.parametrize("m,k,n", SHAPES)
def test_constant_matrix(device, m, k, n):
    inputs = [normal((m, k)), normal((k, n), 1), normal((n,), 2)]
    ran = check_op(device, Gemm(), inputs, consts=(1, 2))
    assert any("packed" in name for name in ran) and "reference" in ran[-1]


@pytest.mark.parametrize(
    "trans_a,trans_b,consts",
    [(True, True, ()), (True, False, ()), (False, True, (1,)), (True, False, (1,))],
)
def test_transposed_inputs(device, trans_a, trans_b, consts):
    m, k, n = 15, 35, 21
    a = normal((k, m) if trans_a else (m, k))
    b = normal((n, k) if trans_b else (k, n), 1)
    check_op(device, Gemm(0.5, 2.0, trans_a, trans_b), [a, b, normal((m, n), 2)], consts=consts)


@pytest.mark.parametrize("addend", [(), (1,), (21,), (6, 1), (6, 21)], ids=str)
def test_addend_broadcasts(device, addend):
    inputs = [normal((6, 9)), normal((9, 21), 1), normal(addend, 2)]
    check_op(device, Gemm(beta=-1.5), inputs, only="reference" if addend == (6, 1) else "direct")


def test_factors_of_zero(device):
    inputs = [normal((6, 9)), normal((9, 21), 1), np.full((21,), np.nan, np.float32)]
    check_op(device, Gemm(alpha=0.0, beta=0.0), inputs)


BATCHES = [
    ((3, 14, 20), (3, 20, 33), "direct"),
    ((2, 1, 14, 20), (3, 20, 33), "scratch"),
    ((2, 3, 14, 20), (20, 33), "direct"),
    ((14, 20), (2, 3, 20, 33), "reference"),
    ((5, 1, 20), (1, 20, 33), "scratch"),
    ((20,), (2, 20, 33), "direct"),
    ((2, 3, 14, 40), (40,), "dot"),
    ((2, 3, 14, 40), (3, 40, 1), "scratch"),
    ((40,), (40,), "dot"),
    ((1, 2, 1, 5, 1, 4), (3, 1, 2, 1, 4, 2), "reference"),
]


@pytest.mark.parametrize("a,b,only", BATCHES, ids=str)
def test_batches_broadcast(device, a, b, only):
    check_op(device, Gemm(), [normal(a), normal(b, 1), None], only=only)


@pytest.mark.parametrize("a,b", [case[:2] for case in BATCHES[:5:2]], ids=str)
def test_batches_of_constants(device, a, b):
    check_op(device, Gemm(), [normal(a), normal(b, 1), None], consts=(1,), only="packed")


@pytest.mark.parametrize(
    "a,b", [((3, 70, 40), (40,)), ((70, 40), (40, 1)), ((40, 1), (1, 40))], ids=str
)
def test_the_other_input_is_constant(device, a, b):
    check_op(device, Gemm(), [normal(a), normal(b, 1), None], consts=(0,))


@pytest.mark.parametrize("m,k,n", [(1, 100, 37), (3, 32, 5), (9, 67, 6), (2, 47, 1)])
def test_dot_products(device, m, k, n):
    inputs = [normal((m, k)), normal((n, k), 1), normal((m, n), 2)]
    spec = Gemm(2.0, -1.0, trans_b=True, post_ops=(PostOp("relu"),))
    assert check_op(device, spec, inputs, only="dot")


@pytest.mark.parametrize(
    "k,n,turned", [(35, 33, False), (50, 15, False), (16, 32, True), (35, 33, True), (7, 50, True)]
)
def test_packing_on_the_device(device, k, n, turned):
    b = normal((2, n, k) if turned else (2, k, n), 1)
    inputs = [normal((2, 19, k)), b, None]
    check_op(device, Gemm(trans_b=turned), inputs, only="scratch")


@pytest.mark.parametrize(
    "order,consts", [({"i0": (1, 0)}, (1,)), ({"o0": (1, 0)}, ()), ({"i3": (1, 0)}, (1,))]
)
def test_column_major_memory(device, order, consts):
    inputs = [normal((18, 23)), normal((23, 37), 1), None, normal((18, 37), 2)]
    check_op(
        device, Gemm(post_ops=(PostOp("add", operand=3),)), inputs, consts=consts, orders=order
    )


def test_views_with_gaps_and_negative_pitches(device):
    """Every input is a reversed or thinned view of a larger tensor."""
    cuts = [
        Slice((17, 1), (9, 11), (-2, 2)),
        Slice((1, 30), (11, 15), (2, -2)),
        Slice((0, 3), (9, 15), (1, 1)),
    ]
    arrays = [normal((20, 24)), normal((25, 40), 1), normal((9, 20), 2)]
    types = {f"x{i}": TensorType(a.shape) for i, a in enumerate(arrays)}
    types |= {f"v{i}": TensorType(c.extents) for i, c in enumerate(cuts)} | {
        "y": TensorType((9, 15))
    }
    nodes = [Node(f"cut{i}", c, (f"x{i}",), (f"v{i}",)) for i, c in enumerate(cuts)]
    nodes.append(Node("node", Gemm(), ("v0", "v1", "v2"), ("y",)))
    graph = check(Graph(tuple(nodes), types, {}, ("x0", "x1", "x2"), {"y": "y"}))
    parts = [c.reference(a.astype(np.float64))[0] for c, a in zip(cuts, arrays, strict=True)]
    with Session(graph, select(device), Options(fuse=False)) as session:
        got = session({f"x{i}": a for i, a in enumerate(arrays)})["y"]
    compare(got, parts[0] @ parts[1] + parts[2], 1e-5, device)


STEPS = {
    "relu": (PostOp("relu"),),
    "residual": (PostOp("add", operand=3), PostOp("relu")),
    "swapped": (PostOp("sub", operand=3, swapped=True),),
    "heavy": (PostOp("gelu"), PostOp("mul", operand=3)),
}


FUSED = [
    ("relu", ()),
    ("swapped", (17, 1)),
    ("heavy", (2, 17, 35)),
    ("residual", (2, 17, 35)),
    ("residual", (35,)),
    ("residual", ()),
]


@pytest.mark.parametrize("post_ops,shape", FUSED, ids=str)
def test_fused_steps(device, post_ops, shape):
    inputs = [normal((2, 17, 8)), normal((8, 35), 1), normal((35,), 2)]
    operand = [] if post_ops == "relu" else [normal(shape, 7)]
    check_op(device, Gemm(post_ops=STEPS[post_ops]), inputs + operand, consts=(1, 2), only="packed")


@pytest.mark.parametrize("only", ["direct", "scratch", "reference"])
def test_fused_steps_of_other_kernels(device, only):
    inputs = [normal((2, 17, 8)), normal((2, 8, 35), 1), normal((35,), 2), normal((2, 17, 35), 3)]
    check_op(device, Gemm(post_ops=STEPS["heavy"]), inputs, only=only)


@pytest.mark.parametrize("rows", [1, 60])
def test_the_next_panel_is_read_ahead(device, rows):
    """Where the weights do not stay in a core's own cache, and tiles of rows share in it."""
    inputs = [normal((rows, 700)), normal((700, 300), 1), None]
    ran = check_op(device, Gemm(), inputs, consts=(1,), only="packed")
    assert rows == 1 or ran[0].endswith("_rows")
    target = Target("cpu", features=frozenset({"prefetch"}), vector=16)
    plan = make_plan(single_node(Gemm(), inputs, consts=(1,)), target)
    (launch,) = (found.launch for step in plan.scheduled for found in step.launches)
    assert ("beyond += " in render(launch.template, launch.params)) == (rows > 1)


@pytest.mark.parametrize(
    ("features", "rows", "dtype", "ahead"),
    [
        ({"prefetch"}, 1, "f32", 16),
        ({"prefetch", "x86_amx"}, 1, "f32", 6),
        ({"prefetch", "x86_amx"}, 1, "f16", 16),
        ({"prefetch", "x86_amx"}, 13, "f32", 16),
        ({"x86_amx"}, 1, "f32", 0),
    ],
)
def test_how_far_a_panel_is_read_ahead(features, rows, dtype, ahead):
    """In rows of 64 columns; one row of a by float32 on processors with AMX stays below 4 KiB."""
    inputs = [normal((rows, 700)), normal((700, 640), 1), None]
    target = Target("cpu", features=frozenset(features), vector=16)
    graph = store_as(single_node(Gemm(), inputs, consts=(1,)), STORAGE[dtype])
    plan = make_plan(graph, target)
    launches = [found.launch for step in plan.scheduled for found in step.launches]
    (launch,) = (one for one in launches if "ahead" in one.params)
    assert launch.params["ahead"] == ahead and (rows > 1 or launch.params["row"] == 64)


@pytest.mark.parametrize("rows", [1, 7, 29])
def test_matrices_that_share_a_constant_walk_its_panels_together(device, rows):
    """Rows of an image with a border, whose rows are no longer one matrix."""
    a, b, c = normal((2, 3, rows, 300)), normal((300, 600), 1) / 9, normal((2, 3, rows, 600), 2)
    spec = Gemm(post_ops=(PostOp("add", operand=3),))
    ran = check_op(device, spec, [a, b, None, c], consts=(1,), border=1, only="packed")
    assert ran[0].endswith("_rows")


def test_a_constant_of_each_matrix_is_walked_alone(device):
    a, b = normal((3, 7, 300)), normal((3, 300, 600), 1) / 9
    check_op(device, Gemm(), [a, b, None], consts=(1,), border=1, only="packed")


def test_nan_and_infinity_reach_the_output(device):
    inputs = [normal((5, 40)), normal((40, 21), 1), None]
    inputs[0][1, 3] = np.nan
    inputs[1][:, 4] = np.inf
    inputs[1][2, 7] = np.nan
    check_op(device, Gemm(post_ops=(PostOp("relu"),)), inputs, consts=(1,))
    check_op(device, Gemm(trans_b=True), [inputs[0], np.ascontiguousarray(inputs[1].T), None])


@pytest.mark.parametrize("dtype", [np.int32, np.uint64])
def test_integers_wrap_around(device, dtype):
    inputs = [ints((2, 5, 9), dtype), ints((9, 7), dtype, 1), ints((7,), dtype, 2)]
    with np.errstate(all="ignore"):
        check_op(device, Gemm(alpha=2.0, beta=3.0), inputs)


@pytest.mark.parametrize("m,k,n", [(3, 0, 5), (0, 4, 5), (3, 4, 0)])
def test_empty_extents(device, m, k, n):
    inputs = [normal((m, k)), normal((k, n), 1), normal((n,), 2)]
    check_op(device, Gemm(), inputs)


@pytest.mark.parametrize("m,k,n", [(1, 700, 50), (9, 33, 70)])
def test_code_for_gpus(device, as_gpu, m, k, n):
    inputs = [normal((m, k)), normal((k, n), 1), normal((n,), 2)]
    ran = check_op(device, Gemm(), inputs, consts=(1, 2))
    assert ("_p" in ran[0].removeprefix("gemm_tiled_f32_packed")) == (m == 1)
    check_op(device, Gemm(), inputs, only="direct")
    check_op(device, Gemm(trans_b=True), [inputs[0], np.ascontiguousarray(inputs[1].T), None])


@pytest.mark.parametrize("m,k,n,batch", [(1, 70, 37, ()), (3, 64, 21, (2,)), (6, 19, 5, (2,))])
def test_few_rows_along_the_terms_on_gpus(device, as_gpu, m, k, n, batch):
    """Work-items of a group read neighbouring terms of a column and add their sums."""
    post_ops = (PostOp("add", operand=3), PostOp("relu"))
    inputs = [normal((*batch, m, k)), normal((n, k), 1), normal((n,), 2), normal((m, n), 3)]
    spec = Gemm(alpha=0.5, beta=2.0, trans_b=True, post_ops=post_ops)
    (name,) = check_op(device, spec, inputs, only="gemm_dot")
    assert name.endswith("_g16" if k >= 64 else "_g4")


@pytest.mark.parametrize("target", [Target(), replace(GPU, compute_units=64)], ids=["cpu", "gpu"])
@pytest.mark.parametrize("m,first", [(1, True), (256, False)])
def test_dot_products_are_ranked_among_the_others(target, m, first):
    """Where columns lie along the sums: first for a row, behind register tiles for many."""
    found = {}

    def note(node, problem, variants):
        found["all"] = node.spec.candidates(problem)
        return variants[0]

    inputs = [np.zeros((m, 1024), np.float32), np.zeros((1024, 1024), np.float32), None]
    make_plan(single_node(Gemm(trans_b=True), inputs), target, note)
    made = [v for v in found["all"] if "gemm_tiled" in v.name or "gemm_dot" in v.name]
    assert min(v.cost for v in made) > 0
    assert ("gemm_dot" in made[0].name) == first


@pytest.mark.parametrize(
    "target", [Target(), replace(GPU, tensor="ptx", tf32=True)], ids=["cpu", "gpu"]
)
@pytest.mark.parametrize("shape,consts", [((64, 256, 96), ()), ((2, 256, 96), (1,))])
def test_each_family_gives_its_best_first(target, shape, consts):
    """Variants begin with what is taken unmeasured and end with the reference; all else is offered."""
    m, k, n = shape
    inputs = [np.zeros((m, k), np.float32), np.zeros((k, n), np.float32), None]
    offered = {}

    def note(node, problem, variants):
        offered["best"], offered["all"] = variants, node.spec.candidates(problem)
        offered["families"] = [
            [v.name for v in family(node.spec.problem(problem).folded())] for family in FAMILIES
        ]
        return variants[0]

    make_plan(single_node(Gemm(), inputs, consts), target, note)
    *best, last = [v.name for v in offered["best"]]
    assert "reference" in last and sorted(best) == sorted(f[0] for f in offered["families"] if f)
    assert {v.name for v in offered["all"]} == {name for f in offered["families"] for name in f}


def test_groups_are_as_many_as_a_gpu_has_compute_units():
    """Sums of one row are divided until there is work for the whole device."""

    def split(target, k=2048, n=1000):
        shapes = ((1, k), (k, n), (1, n))
        a, b, dst = (Operand(TensorType(s), TensorLayout.make(s)) for s in shapes)
        return split_k(Gemm().problem(Problem((a, b), (dst,), target)), Tile(1, 1, 4))

    large = replace(GPU, compute_units=64)
    assert split(replace(GPU, compute_units=2))[0] == 32
    assert split(large) == (8, 32)
    assert split(replace(large, local_bytes=2048))[1] == 16
    assert split(large, k=40)[1] == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "m,n", [*itertools.product((1, 2, 13, 15, 28, 31), (1, 3, 4, 15, 16, 17, 33, 64, 65))]
)
def test_every_small_shape(device, m, n):
    for k, turned in itertools.product((1, 15, 16, 33), (False, True)):
        inputs = [normal((2, m, k)), normal((2, n, k) if turned else (2, k, n), 1), None]
        check_op(device, Gemm(trans_b=turned), inputs)
        check_op(device, Gemm(trans_b=turned), inputs, consts=(1,))
        check_op(device, Gemm(trans_b=turned), inputs, consts=(0,), only="reference")


EXTENTS = st.sampled_from([1, 2, 3])
LEADS = st.sampled_from(["both", "a", "b", "none"])
ORDERS = st.tuples(*[st.permutations(range(4))] * 3)


@settings(deadline=None, max_examples=200)
@given(st.tuples(EXTENTS, EXTENTS), st.tuples(EXTENTS, EXTENTS, EXTENTS), ORDERS, LEADS)
def test_pitches_walk_every_product(outer, extents, orders, batched):
    """Plain, folded and flipped geometry give numpy's matmul, whatever the memory order."""
    m, k, n = extents
    a = normal((*(outer if batched in ("both", "a") else ()), m, k))
    b = normal((*(outer if batched in ("both", "b") else ()), k, n), 1)
    want = np.matmul(a, b)
    layouts = [
        TensorLayout.make(x.shape, [axis for axis in order if axis < x.ndim])
        for x, order in zip((a, b, want), orders, strict=True)
    ]
    stores = [lay_out(x, layout) for x, layout in zip((a, b), layouts, strict=False)]
    views = Views(*layouts, {})
    for seen in (views, folded(views), folded(views).flipped()):
        result = np.full(want.size, np.nan, np.float32)
        walk(product(seen), stores[seen.inputs[0]], stores[seen.inputs[1]], result)
        np.testing.assert_allclose(view_of(result, layouts[2]), want, rtol=1e-5, atol=1e-5)


def walk(found, a, b, result):
    """Compute a product as kernels do, element by element."""
    for at in np.ndindex(found.batch.extents):
        starts = [sum(i * p for i, p in zip(at, row, strict=True)) for row in found.batch.pitches]
        for i, j in itertools.product(range(found.m), range(found.n)):
            total = sum(
                a[starts[0] + i * found.a[0] + x * found.a[1]]
                * b[starts[1] + x * found.b[0] + j * found.b[1]]
                for x in range(found.k)
            )
            result[starts[2] + i * found.dst[0] + j * found.dst[1]] = total


@pytest.mark.parametrize("target", [Target(), GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("m,k,n", [(1, 5, 100), (30, 4, 33), (8, 3, 3)])
def test_packed_panels_hold_the_matrix(target, m, k, n):
    b = normal((2, k, n))
    panels = panels_for(k, n, gemm_tiles(m, n, 2, target)[0][1], target)
    packed = pack_panels(b, panels).reshape(2, panels.size)
    for batch, x, j in itertools.product(range(2), range(k), range(n)):
        at = j // panels.width * panels.panel + x * panels.row + j % panels.width
        assert packed[batch, at] == b[batch, x, j]
    assert np.count_nonzero(packed) == np.count_nonzero(b)


def test_tiles_fit_the_registers_and_the_product():
    for m, n, vector in itertools.product(
        (1, 2, 13, 28, 29, 1000), (1, 3, 17, 64, 1000), (4, 8, 16)
    ):
        tile = gemm_tiles(m, n, 1, Target(vector=vector))[0][1]
        registers = {4: 20, 8: 16, 16: 32}[vector]
        assert tile.mr <= m and (tile.mr * tile.nv + tile.nv + 1 <= registers or tile.mr == 1)


def onnx_model(op, shapes, out, opset=13, consts=(), **attrs):
    """Return a model of one node whose inputs listed in `consts` are initializers."""
    names = [f"x{i}" for i in range(len(shapes))]
    value, made = helper.make_tensor_value_info, dict(zip(names, shapes, strict=True))
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attrs)],
        "g",
        [value(n, TensorProto.FLOAT, s) for n, s in made.items() if n not in consts],
        [value("y", TensorProto.FLOAT, out)],
        [onnx.numpy_helper.from_array(normal(made[n], int(n[1:])), n) for n in consts],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("opset", [7, 13])
def test_onnx_gemm(device, opset):
    shapes = [(7, 5), (9, 7), (1, 9)] if opset < 11 else [(7, 5), (9, 7)]
    attrs = {"transA": 1, "transB": 1, "alpha": 0.25, "beta": 0.5}
    model = onnx_model("Gemm", shapes, (5, 9), opset, consts=("x1",), **attrs)
    feeds = {f"x{i}": normal(s, i) for i, s in enumerate(shapes)}
    want = 0.25 * feeds["x0"].T @ feeds.pop("x1").T + 0.5 * feeds.get("x2", np.float32(0))
    with clnn.compile_model(model, device) as session:
        compare(session(feeds)["y"], want, 1e-5, device)


def test_onnx_matmul(device):
    model = onnx_model("MatMul", [(3, 4, 5), (5,)], (3, 4))
    feeds = {"x0": normal((3, 4, 5)), "x1": normal((5,), 1)}
    with clnn.compile_model(model, device) as session:
        compare(session(feeds)["y"], feeds["x0"] @ feeds["x1"], 1e-5, device)


def test_onnx_refusals_name_the_values():
    with pytest.raises(ShapeError, match=r"\(2, 3, 4\) and \(4, 5\): both must be matrices"):
        clnn.compile_model(onnx_model("Gemm", [(2, 3, 4), (4, 5)], (2, 3, 5)))
    with pytest.raises(UnsupportedOpError, match="matrix product of types float32, int64"):
        model = onnx_model("MatMul", [(2, 3), (3, 4)], (2, 4))
        model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
        clnn.compile_model(model)


@pytest.mark.parametrize(
    "shapes,spec,words",
    [
        ([(2, 3), (4, 5)], Gemm(), "the sums have 3 and 4 terms"),
        ([(2, 3), (5, 4)], Gemm(trans_b=True), "the sums have 3 and 4 terms"),
        ([(2, 3, 4), (3, 4, 5)], Gemm(), "do not broadcast"),
        ([(2, 3), (3, 4), (3, 4)], Gemm(), "do not broadcast"),
        ([(2, 3), (3, 4), (5, 2, 4)], Gemm(), "does not broadcast to (2, 4)"),
        ([(), (3, 4)], Gemm(), "one axis or more"),
        ([(3,), (3, 4)], Gemm(trans_a=True), "one axis, transposed"),
    ],
)
def test_bad_shapes_name_the_values(shapes, spec, words):
    with pytest.raises(ShapeError, match=re.escape(words)):
        spec.infer([TensorType(s) for s in shapes])


@pytest.mark.parametrize("types", [(F32, I64), (F16, F16), (U8, U8)])
def test_bad_types_are_named(types):
    with pytest.raises(DTypeError, match=types[1].name):
        Gemm().infer([TensorType((2, 2), t) for t in types])
