"""Copies between images, heads and tokens: in whose memory order they lie, and which are spared."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from small_graphs import Builder

import clnn
from clnn.graph.passes import optimise
from clnn.layout import TensorLayout
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Reshape, Transpose, slice_of
from clnn.ops.rows.softmax import Softmax
from clnn.plan.copies import order_behind
from clnn.plan.schedule import make_plan
from clnn.target import Target


def plan(graph):
    return make_plan(optimise(graph), Target())


@pytest.mark.parametrize("reader", ["product", "softmax", "output"])
def test_tokens_of_a_bordered_image_keep_its_pixels_where_products_read_them(reader):
    b = Builder(x=(1, 4, 6, 6))
    image = b.conv("x", 16, 1)
    tokens = b.add(Reshape((1, 2, 8, 36)), image)
    turned = b.add(Transpose((0, 1, 3, 2)), tokens)
    read = {
        "product": lambda: b.add(Gemm(), turned, tokens),
        "softmax": lambda: b.add(Softmax((3,)), tokens),
        "output": lambda: turned,
    }[reader]()
    made = plan(b.graph(b.conv(image, 4), read))
    assert made.placed[image].layout.before == (0, 0, 1, 1)
    pitches = made.placed[tokens].layout.pitches
    assert pitches[1:] == ((8, 1, 16) if reader == "product" else (288, 36, 1))


def test_a_copy_that_a_reader_would_copy_again_stays_as_it_is():
    b = Builder(x=(1, 4, 6, 6))
    image = b.conv("x", 16, 1)
    planes = b.add(Reshape((16, 36)), image)
    rows = b.add(Reshape((4, 72)), b.add(slice_of((16, 36), 0, 4, 8), planes))
    made = plan(b.graph(b.conv(image, 4), b.add(Gemm(), rows, b.const(72, 8))))
    assert made.placed[planes].layout.pitches == (36, 1)


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ((1, 16, 5, 6), (1, 2, 8, 30), (0, 3, 1, 2)),
        ((1, 16, 5, 6), (1, 16, 30), (0, 2, 1)),
        ((2, 16, 5, 6), (2, 1, 480), None),
        ((1, 1, 5, 6), (1, 30, 1), None),
    ],
)
def test_the_order_of_a_copy_is_that_of_what_it_copies(old, new, expected):
    image = TensorLayout.make(old, (0, 2, 3, 1), (0, 0, 1, 1), (0, 0, 1, 1))
    assert order_behind(image, new) == expected


def heads(b, made):
    """Return rows of four heads, (1, 4, 9, 8), as tokens (1, 9, 32)."""
    return b.add(Reshape((1, 9, 32)), b.add(Transpose((0, 2, 1, 3)), made))


@pytest.mark.parametrize("twice", [False, True])
def test_heads_of_a_product_are_written_where_tokens_join_them(twice):
    """But where something else reads them, too."""
    b = Builder(q=(1, 4, 9, 8), k=(1, 4, 8, 8))
    made = b.add(Gemm(), "q", "k")
    tokens = heads(b, made)
    out = b.add(Gemm(), tokens, b.const(32, 16))
    found = plan(b.graph(out, *([b.add(Softmax((3,)), made)] if twice else [])))
    assert found.placed[made].layout.pitches[1:] == ((72, 8, 1) if twice else (8, 32, 1))
    assert (found.placed[made].storage == found.placed[tokens].storage) != twice


def test_heads_are_no_part_of_an_image_with_a_border():
    b = Builder(q=(1, 4, 36, 8), k=(1, 4, 8, 8))
    made = b.add(Gemm(), "q", "k")
    image = b.add(Reshape((1, 32, 6, 6)), b.add(Transpose((0, 1, 3, 2)), made))
    found = plan(b.graph(b.conv(image, 32, group=32)))
    assert found.placed[made].storage != found.placed[image].storage


def test_softmax_has_the_order_of_heads_where_products_read_it():
    b = Builder(x=(1, 20, 8))
    rows = b.add(Reshape((1, 20, 2, 16)), b.add(Gemm(), "x", b.const(8, 32)))
    made = b.add(Softmax((2,)), b.add(Transpose((0, 2, 1, 3)), rows))
    found = plan(b.graph(b.add(Gemm(trans_a=True), made, made)))
    assert found.placed[made].layout.pitches[1:] == (320, 16, 1)
    turned = Builder(x=(1, 20, 8))
    rows = turned.add(Reshape((1, 20, 2, 16)), turned.add(Gemm(), "x", turned.const(8, 32)))
    made = turned.add(Softmax((3,)), turned.add(Transpose((0, 2, 3, 1)), rows))
    found = plan(turned.graph(turned.add(Gemm(trans_b=True), made, made)))
    assert found.placed[made].layout.pitches[1:] == (16, 1, 32)


def linear_attention() -> onnx.ModelProto:
    """As EfficientViT has it: an image that a filter and heads read, relu(q) (relu(k)' v), an image again."""
    rng = np.random.default_rng(0)
    consts = {
        "w": rng.standard_normal((48, 6, 1, 1), np.float32),
        "f": rng.standard_normal((48, 1, 3, 3), np.float32),
        "p": rng.standard_normal((5, 32, 1, 1), np.float32),
        "heads": np.array([1, 4, 24, 35]),
        "image": np.array([1, 32, 5, 7]),
        "parts": np.array([8, 8, 8]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Conv", ["a", "f"], ["b"], group=48, pads=[1] * 4),
        helper.make_node("Concat", ["a", "b"], ["ab"], axis=1),
        helper.make_node("Reshape", ["ab", "heads"], ["h"]),
        helper.make_node("Transpose", ["h"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("Split", ["t", "parts"], ["q", "k", "v"], axis=3),
        helper.make_node("Relu", ["q"], ["rq"]),
        helper.make_node("Softmax", ["k"], ["rk"], axis=2),
        helper.make_node("Transpose", ["rk"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["kt", "v"], ["kv"]),
        helper.make_node("MatMul", ["rq", "kv"], ["o"]),
        helper.make_node("Transpose", ["o"], ["ot"], perm=[0, 1, 3, 2]),
        helper.make_node("Reshape", ["ot", "image"], ["i"]),
        helper.make_node("Conv", ["i", "p"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear_attention",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6, 5, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 5, 7])],
        [onnx.numpy_helper.from_array(value, name) for name, value in consts.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_linear_attention_of_an_image(device):
    model = linear_attention()
    x = np.random.default_rng(1).standard_normal((1, 6, 5, 7), np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    guarded = clnn.Options(guard=64)
    with clnn.compile_model(model.SerializeToString(), device, guarded) as session:
        got = session({"x": x})["y"]
    assert np.abs(got - expected).max() < 1e-5 * np.abs(expected).max()
