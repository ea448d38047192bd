"""Functions of one value join what is in front of the views of it, where nothing else wants what lies between."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_graphs import Builder

from clnn.graph.evaluate import evaluate
from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes import optimise
from clnn.graph.passes.fuse_attention import fuse_attention
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Expand, Reshape, Slice, Transpose
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import MOST_STEPS, PostOp
from clnn.ops.shared.window import Window
from clnn.types import F32, I32, U8, TensorType

VIEWS = {
    "tokens": (Reshape((2, 4, 30)), Transpose((0, 2, 1))),
    "pixels": (Transpose((0, 2, 3, 1)),),
    "flat": (Reshape((2, 120)),),
    "heads": (Reshape((2, 2, 2, 30)), Transpose((2, 0, 3, 1)), Reshape((2, 60, 2))),
}
FUNCTIONS = {
    "gelu": (PostOp("gelu"),),
    "swish": (PostOp("swish", (1.0,)),),
    "relu": (PostOp("relu"),),
    "clip": (PostOp("clip", (-0.5, 0.25)),),
    "line": (PostOp("mul", (1.5,)), PostOp("add", (0.5,)), PostOp("tanh")),
    "rest": (PostOp("sub", (1.0,), swapped=True), PostOp("abs")),
}
PRODUCERS = ("conv", "product", "softmax", "pool")


def graph_of(producer: str, views, post_ops, *constants) -> Graph:
    """Return the function of constants, behind views of 2 x 4 x 5 x 6 values that a producer makes."""
    b = Builder(x=(2, 4, 5, 6))
    made = {
        "conv": lambda: b.conv("x", 4),
        "product": lambda: b.add(Gemm(), "x", b.const(6, 6), None),
        "softmax": lambda: b.add(Softmax((3,)), "x"),
        "pool": lambda: b.add(Pool(Window((2, 2), (1, 1), (1, 1), (1, 1), (0, 0)), "max"), "x"),
    }[producer]()
    for view in views:
        made = b.add(view, made)
    fixed = [b.fixed(np.asarray(c, np.float32)) for c in constants]
    return b.graph(b.add(Eltwise(post_ops), made, *fixed))


def kinds(graph: Graph) -> list[str]:
    return [node.spec.kind for node in graph.nodes]


def require_equal(graph: Graph, made: Graph) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        name: (rng.standard_normal(graph.types[name].shape) * 3).astype(
            graph.types[name].dtype.numpy
        )
        for name in graph.inputs
    }
    want, got = evaluate(graph, feeds), evaluate(made, feeds)
    assert want.keys() == got.keys()
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_allclose(got[name], array, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("views", VIEWS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_function_joins_what_is_in_front_of_the_views(producer, views, function):
    graph = graph_of(producer, VIEWS[views], FUNCTIONS[function])
    made = optimise(graph)
    assert "eltwise" not in kinds(made)
    assert made.nodes[0].spec.post_ops == FUNCTIONS[function]
    require_equal(graph, made)


AXES = {
    "tokens": (VIEWS["tokens"], (4,), (4, 1, 1)),
    "tokens of one axis more": (VIEWS["tokens"], (1, 1, 4), (4, 1, 1)),
    "pixels, columns": (VIEWS["pixels"], (6, 1), (6,)),
    "pixels, images": (VIEWS["pixels"], (2, 1, 1, 1), (2, 1, 1, 1)),
    "one in front": ((Reshape((1, 8, 5, 6)),), (5, 1), (5, 1)),
    "one number": (VIEWS["heads"], (1, 1), ()),
}


@pytest.mark.parametrize("case", AXES)
def test_constants_along_one_axis_follow_it(case):
    views, shape, before = AXES[case]
    constants = np.random.default_rng(1).standard_normal((2, *shape))
    post_ops = (PostOp("mul", operand=1), PostOp("add", operand=2))
    graph = graph_of("product", views, post_ops, *constants)
    made = optimise(graph)
    assert "eltwise" not in kinds(made)
    assert [made.types[name].shape for name in made.nodes[0].inputs[3:]] == [before] * 2
    require_equal(graph, made)


@pytest.mark.parametrize(
    ("views", "shape"),
    [
        ((Reshape((8, 30)),), (8, 1)),  # images and channels in one axis
        ((Reshape((2, 2, 2, 30)),), (2, 1)),  # channels in two
        (VIEWS["tokens"], (30, 4)),
        (VIEWS["tokens"], (30, 1)),  # rows and columns in one
    ],
)
def test_constants_that_are_along_no_axis_in_front_stay(views, shape):
    constant = np.random.default_rng(1).standard_normal(shape)
    graph = graph_of("product", views, (PostOp("mul", operand=1),), constant)
    made = optimise(graph)
    assert kinds(made)[-1] == "eltwise"
    require_equal(graph, made)


def test_a_constant_that_stretches_the_value_stays():
    graph = graph_of("conv", (Reshape((240, 1)),), (PostOp("add", operand=1),), np.arange(3))
    made = optimise(graph)
    assert kinds(made)[-1] == "eltwise"
    require_equal(graph, made)


def test_a_constant_that_stands_first():
    """A number over the value, as input 0 of the node."""
    graph = graph_of("conv", VIEWS["tokens"], (PostOp("relu"),))
    (*_, last) = graph.nodes
    number = {"c": np.asarray([2.0], np.float32)}
    spec = Eltwise((PostOp("sub", operand=1), PostOp("tanh")))
    nodes = (*graph.nodes[:-1], replace(last, spec=spec, inputs=("c", last.inputs[0])))
    graph = check(
        graph.with_nodes(
            nodes,
            types={**graph.types, "c": TensorType((1,))},
            consts={**graph.consts, **number},
        )
    )
    made = optimise(graph)
    assert "eltwise" not in kinds(made)
    require_equal(graph, made)


def test_functions_one_behind_the_other_with_views_between():
    """A normalisation of rows and a function behind the views back: the sum behind them joins, too."""
    b = Builder(x=(1, 15, 8), z=(1, 15, 8))
    rows = b.add(Reshape((15, 8)), b.add(Gemm(), "x", b.const(8, 8), None))
    steps = (PostOp("mul", operand=1), PostOp("add", operand=2))
    normal = b.add(Eltwise(steps), rows, b.const(1, 8), b.const(1, 8))
    back = b.add(Reshape((1, 15, 8)), normal)
    graph = b.graph(b.add(Eltwise((PostOp("add", operand=1),)), b.post_ops("gelu", back), "z"))
    made = optimise(graph)
    assert kinds(made) == ["gemm"]
    assert [s.fn for s in made.nodes[0].spec.post_ops] == ["mul", "add", "gelu", "add"]
    require_equal(graph, made)


def test_normalisations_behind_views_fold_into_a_convolution():
    steps = (PostOp("mul", operand=1), PostOp("add", operand=2))
    constants = np.random.default_rng(1).standard_normal((2, 4))
    graph = graph_of("conv", VIEWS["pixels"], steps, *constants)
    made = optimise(graph)
    assert kinds(made) == ["conv2d", "transpose"]
    assert made.nodes[0].spec.post_ops == ()
    require_equal(graph, made)


@pytest.mark.parametrize("where", ["source", "between", "in front of the function"])
@pytest.mark.parametrize("how", ["read", "output"])
def test_what_others_want_stays(where, how):
    b = Builder(x=(2, 4, 5, 6))
    names = [b.conv("x", 4)]
    for view in VIEWS["tokens"]:
        names.append(b.add(view, names[-1]))
    places = {"source": 0, "between": 1, "in front of the function": 2}
    wanted = names[places[where]]
    also = b.add(Softmax((2,)), wanted) if how == "read" else wanted
    graph = b.graph(b.post_ops("gelu", names[-1]), also)
    made = optimise(graph)
    steps = [s.fn for n in made.nodes for s in getattr(n.spec, "post_ops", ())]
    assert steps == ["gelu"]  # once
    assert [n.spec.post_ops for n in made.nodes if n.spec.kind == "conv2d"] == [()]
    require_equal(graph, made)


@pytest.mark.parametrize("behind", [(), (Reshape((2, 4, 30)),)], ids=["alone", "reshaped"])
def test_a_slice_of_all_is_none(behind):
    """As exporters write the ends of a convolution without pads; a constant of each channel goes along."""
    views = (Slice((0, 0, 0, 0), (2, 4, 5, 6), (1, 1, 1, 1)), *behind)
    steps = (PostOp("add", operand=1), PostOp("gelu"))
    channels = np.random.default_rng(1).standard_normal((4, *(1,) * (1 if behind else 2)))
    graph = graph_of("conv", views, steps, channels)
    made = optimise(graph)
    assert kinds(made) == ["conv2d", *(view.kind for view in behind)]
    require_equal(graph, made)


def test_a_slice_of_all_backwards_stays():
    graph = graph_of("conv", (Slice((1, 0, 0, 0), (2, 4, 5, 6), (-1, 1, 1, 1)),), (PostOp("abs"),))
    assert kinds(optimise(graph)) == ["conv2d", "slice", "eltwise"]
    require_equal(graph, optimise(graph))


@pytest.mark.parametrize(
    "view",
    [Slice((0, 0, 0, 0), (2, 4, 5, 3), (1, 1, 1, 2)), Expand((3, 2, 4, 5, 6))],
    ids=["slice", "expand"],
)
def test_views_of_other_elements_are_not_passed(view):
    graph = graph_of("conv", (view,), FUNCTIONS["gelu"])
    made = optimise(graph)
    assert kinds(made)[-1] == "eltwise"
    require_equal(graph, made)


def test_a_function_of_an_input_stays_behind_its_view():
    b = Builder(x=(2, 12))
    graph = b.graph(b.post_ops("gelu", b.add(Reshape((6, 4)), "x")))
    assert kinds(optimise(graph)) == ["reshape", "eltwise"]


def test_a_function_of_two_computed_values_stays():
    b = Builder(x=(2, 4, 5, 6), z=(2, 30, 4))
    tokens = b.conv("x", 4)
    for view in VIEWS["tokens"]:
        tokens = b.add(view, tokens)
    graph = b.graph(b.add(Eltwise((PostOp("mul", operand=1),)), tokens, "z"))
    made = optimise(graph)
    assert kinds(made)[-1] == "eltwise"
    require_equal(graph, made)


def test_more_steps_than_a_kernel_takes_stay():
    steps = (PostOp("tanh"),) * MOST_STEPS
    b = Builder(x=(2, 12))
    first = b.add(Eltwise((PostOp("relu"),)), "x")
    graph = b.graph(b.add(Eltwise(steps), b.add(Reshape((6, 4)), first)))
    assert kinds(optimise(graph)) == ["eltwise", "reshape", "eltwise"]


def test_attention_takes_no_function_behind_its_views():
    b = Builder(q=(1, 2, 5, 8), k=(1, 2, 8, 7), v=(1, 2, 7, 8))
    mixed = b.add(Gemm(), b.add(Softmax((3,)), b.add(Gemm(), "q", "k", None)), "v", None)
    rows = b.add(Reshape((1, 5, 16)), b.add(Transpose((0, 2, 1, 3)), mixed))
    graph = b.graph(b.post_ops("hard_swish", rows))
    made = fuse_attention(optimise(graph, fixed=True, single=True))
    assert kinds(made) == ["attention", "reshape", "eltwise"]
    require_equal(graph, made)


@pytest.mark.parametrize("dtype", [F32, I32, U8], ids=lambda d: d.name)
def test_types(dtype):
    types = {n: TensorType((2, 6), dtype) for n in ("x", "a")}
    types |= {n: TensorType((3, 4), dtype) for n in ("v", "y")} | {"c": TensorType((1,), dtype)}
    nodes = (
        Node("a", Eltwise((PostOp("relu"),)), ("x",), ("a",)),
        Node("v", Reshape((3, 4)), ("a",), ("v",)),
        Node("y", Eltwise((PostOp("add", operand=1),)), ("v", "c"), ("y",)),
    )
    consts = {"c": np.asarray([7], dtype.numpy)}
    graph = check(Graph(nodes, types, consts, ("x",), {"y": "y"}))
    made = optimise(graph)
    assert kinds(made) == ["eltwise", "reshape"]
    x = np.arange(12, dtype=dtype.numpy).reshape(2, 6)
    np.testing.assert_array_equal(
        evaluate(made, {"x": x})["y"], x.reshape(3, 4) + dtype.numpy.type(7)
    )


def residual(producer: str, *, first: bool = True, turns: int = 1, fn: str = "add") -> Graph:
    """Return a sum behind transposes of a product's or convolution's result; first: which operand that is."""
    b = Builder(x=(2, 4, 5, 6), z=(2, 5, 6, 4) if turns == 1 else (2, 6, 4, 5))
    made = b.conv("x", 4) if producer == "conv" else b.add(Gemm(), "x", b.const(6, 6), None)
    for _ in range(turns):
        made = b.add(Transpose((0, 2, 3, 1)), made)
    pair = (made, "z") if first else ("z", made)
    spec = Eltwise((PostOp("mul", operand=2), PostOp(fn, operand=1), PostOp("relu")))
    return b.graph(b.add(spec, *pair, b.const(*b.types[made].shape[-1:])))


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("producer", ["conv", "product"])
def test_residual_sums_are_seen_in_front_of_transposes(producer, turns):
    graph = residual(producer, turns=turns)
    made = optimise(graph, fixed=True)
    assert "eltwise" not in kinds(made)
    assert kinds(optimise(graph))[-1] == "eltwise"  # networks of other shapes
    require_equal(graph, made)


@pytest.mark.parametrize("fn", ["add", "sub"])
def test_the_residual_may_stand_first(fn):
    b = Builder(x=(2, 4, 5, 6), z=(2, 5, 6, 4))
    turned = b.add(Transpose((0, 2, 3, 1)), b.conv("x", 4))
    graph = b.graph(b.add(Eltwise((PostOp(fn, operand=1),)), "z", turned))
    made = optimise(graph, fixed=True)
    assert "eltwise" not in kinds(made)
    require_equal(graph, made)


def test_the_sum_of_two_turned_products_joins_the_later_one():
    b = Builder(x=(2, 4, 5, 6))
    one = b.add(Transpose((0, 2, 3, 1)), b.conv("x", 4))
    other = b.add(Transpose((0, 2, 3, 1)), b.conv("x", 4))
    graph = b.graph(b.post_ops("add", one, other))
    made = optimise(graph, fixed=True)
    assert "eltwise" not in kinds(made)
    require_equal(graph, made)


def test_a_residual_that_is_made_later_stays_behind():
    b = Builder(x=(2, 4, 5, 6), z=(2, 5, 6, 4))
    turned = b.add(Transpose((0, 2, 3, 1)), b.conv("x", 4))
    later = b.add(Softmax((3,)), "z")
    graph = b.graph(b.post_ops("add", turned, later), later)
    made = optimise(graph, fixed=True)
    assert "eltwise" in kinds(made)
    require_equal(graph, made)


@pytest.mark.parametrize(
    ("views", "shape"),
    [
        ((Reshape((2, 4, 30)), Transpose((0, 2, 1))), (2, 30, 4)),  # not transposes alone
        ((Transpose((0, 2, 3, 1)),), (5, 6, 4)),  # broadcast
        ((Transpose((0, 2, 3, 1)),), (2, 1, 1, 4)),
    ],
)
def test_other_residuals_stay_behind(views, shape):
    b = Builder(x=(2, 4, 5, 6), z=shape)
    made = b.conv("x", 4)
    for view in views:
        made = b.add(view, made)
    graph = b.graph(b.post_ops("add", made, "z"))
    after = optimise(graph, fixed=True)
    assert kinds(after)[-1] == "eltwise"
    require_equal(graph, after)
