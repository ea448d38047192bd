"""Functions of one value join what makes the members of a concatenation, where nothing else wants these."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder

import clnn
from clnn.graph.evaluate import evaluate
from clnn.graph.passes import optimise
from clnn.graph.passes.functions_before_joins import functions_before_joins
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat
from clnn.ops.shared.functions import PostOp

NORM = (PostOp("mul", operand=1), PostOp("add", operand=2))
SHAPES = {"channels": (9, 1, 1), "columns": (6,), "numbers": (1, 1), "two axes": (9, 1, 6)}


def members(builder, *channels):
    return [builder.conv("x", count, k) for k, count in zip((1, 3, 1), channels, strict=False)]


def equal(graph, made):
    x = np.random.default_rng(3).standard_normal((2, 4, 5, 6)).astype(np.float32)
    for want, got in zip(*(evaluate(g, {"x": x}).values() for g in (graph, made)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def kinds(graph):
    return [node.spec.kind for node in graph.nodes]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_normalisation_and_what_follows_join_the_convolutions(shape):
    b = Builder(x=(2, 4, 5, 6))
    joined = b.add(Concat(1), *members(b, 4, 3, 2))
    normal = b.add(Eltwise(NORM), joined, b.const(*SHAPES[shape]), b.const(*SHAPES[shape]))
    graph = b.graph(b.add(Eltwise((PostOp("swish", (1.0,)),)), normal))
    made = optimise(graph)
    assert kinds(made) == ["conv2d"] * 3 + ["concat"]
    equal(graph, made)


def test_a_network_gives_what_its_references_give(device):
    b = Builder(x=(2, 4, 5, 6))
    normal = b.add(
        Eltwise(NORM), b.add(Concat(1), *members(b, 4, 3)), b.const(7, 1, 1), b.const(7, 1, 1)
    )
    graph = b.graph(b.conv(b.post_ops("relu", normal), 5))
    x = np.random.default_rng(3).standard_normal((2, 4, 5, 6)).astype(np.float32)
    (want,) = evaluate(graph, {"x": x}).values()
    with clnn.compile_model(graph, device) as session:
        np.testing.assert_allclose(session({"x": x})["out0"], want, rtol=1e-5, atol=1e-5)


def left_alone(case):
    b = Builder(x=(2, 4, 5, 6))
    parts = members(b, 4, 3)
    if case == "a member is an input":
        parts[1] = "x"
    if case == "a product of computed values":
        parts[1] = b.add(Gemm(trans_b=True), b.post_ops("relu", "x"), b.post_ops("exp", "x"), None)
        parts[1] = b.add(Gemm(), parts[1], "x", None)
    joined = b.add(
        Concat(1, mixed=case == "members take turns"),
        *(parts[:1] * 2 if "twice" in case else parts),
    )
    operand = b.conv("x", 7) if case == "a computed operand" else b.const(1, 1)
    last = b.add(Eltwise((PostOp("mul", operand=1), PostOp("relu"))), joined, operand)
    outputs = {"a member is an output": [parts[0]], "the joined value is an output": [joined]}
    if case == "a member has another reader":
        outputs = {case: [b.post_ops("tanh", parts[0])]}
    return b.graph(last, *outputs.get(case, []))


@pytest.mark.parametrize(
    "case",
    [
        "a member is an input",
        "a product of computed values",
        "a computed operand",
        "a member twice",
        "a member is an output",
        "the joined value is an output",
        "a member has another reader",
    ],
)
def test_what_others_want_or_what_takes_no_function_stays(case):
    graph = left_alone(case)
    made = functions_before_joins(graph)
    assert kinds(made) == kinds(graph)
