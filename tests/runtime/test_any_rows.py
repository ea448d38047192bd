"""Networks of any shape: extents below a vector's width, single ones that broadcast, those that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from harness import normal
from onnx import TensorProto
from onnx import helper as make
from onnx_models import model, run, tensor, value

import clnn
from clnn.compile import load_graph


def agrees(proto, device, shapes, **options):
    """Compare one session's results for shapes in turn with numpy's, in double precision."""
    with clnn.compile_model(proto, device, clnn.Options(**options)) as session:
        for number, shape in enumerate(shapes):
            x = normal(shape, number).astype(np.float32)
            (got,) = session({"x": x}).values()
            (want,) = run(load_graph(proto, {"x": shape}), x=x).values()
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=str(shape))


@pytest.mark.parametrize("merge", [True, False])
def test_lrn_of_images_of_any_size(any_device, merge):
    """Vectors lie across places of the image, of which there may be fewer than a vector has lanes."""
    nodes = [
        make.make_node("Mul", ["x", "x"], ["t"]),
        make.make_node("LRN", ["t"], ["y"], size=3, alpha=0.5),
    ]
    proto = model(nodes, [value("x", ("n", 5, "h", "w"))])
    shapes = [(2, 5, 9, 11), (1, 5, 1, 2), (1, 5, 4, 4), (3, 5, 1, 1), (1, 5, 3, 7), (1, 5, 16, 33)]
    agrees(proto, any_device, shapes, merge=merge)


def test_lrn_of_any_number_of_channels_beside_each_other(any_device):
    nodes = [
        make.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        make.make_node("LRN", ["t"], ["y"], size=5, alpha=0.5),
    ]
    proto = model(nodes, [value("x", ("n", "h", 3, "c"))])
    agrees(proto, any_device, [(1, 2, 3, 40), (2, 1, 3, 3), (1, 2, 3, 1), (1, 2, 3, 17)])


def test_a_softmax_whose_rows_fill_whole_vectors_at_one_shape_only(any_device):
    """Squeeze makes a network of its own of each rank, so that no extent is known to be open."""
    nodes = [
        make.make_node("Mul", ["x", "scale"], ["t"]),
        make.make_node("Softmax", ["t"], ["s"], axis=-1),
        make.make_node("Squeeze", ["s"], ["y"]),
    ]
    scale = tensor("scale", np.float32(0.25))
    proto = model(nodes, [value("x", ("n", 16, 5))], initializers=[scale])
    agrees(proto, any_device, [(1, 16, 5), (2, 16, 5), (3, 16, 5), (1, 16, 5)])
    proto = model(nodes, [value("x", ("n", "m", 5))], initializers=[scale])
    agrees(proto, any_device, [(1, 16, 5), (1, 17, 5), (2, 13, 5), (1, 3, 5), (7, 1, 5), (1, 1, 5)])


def test_normalisation_over_an_open_extent_that_the_scale_fixes(any_device):
    nodes = [make.make_node("LayerNormalization", ["x", "w", "b"], ["y"], axis=1)]
    scale = [tensor(n, normal((9, 6), k).astype(np.float32)) for k, n in enumerate("wb")]
    proto = model(nodes, [value("x", (5, 9, "d"))], initializers=scale)
    agrees(proto, any_device, [(5, 9, 6), (5, 9, 6)])
    with clnn.compile_model(proto, any_device) as session:
        for extent in (7, 1, 12, 6):
            x = normal((5, 9, extent)).astype(np.float32)
            if extent == 6:
                assert session({"x": x})["y"].shape == x.shape
            else:
                with pytest.raises(clnn.ClnnError, match=r"input 1 is \(9, 6\), which does not br"):
                    session({"x": x})


@pytest.mark.parametrize("extents", [(2, 12, 3, 1), (3, 1, 10, 1, 0), (5, 1)])
def test_comparisons_along_an_open_extent_that_comes_to_one(any_device, extents):
    """Its template takes no pitch that is read at run time, and a vector no row that is known to be shorter."""
    nodes = [
        make.make_node("Einsum", ["x", "w"], ["t"], equation="abcd,dyb->abc"),
        make.make_node("Greater", ["t", "least"], ["more"]),
        make.make_node("Not", ["more"], ["less"]),
        make.make_node("Where", ["less", "t", "one"], ["y"]),
    ]
    numbers = [tensor("least", np.float32(0.125)), tensor("one", np.float32(-1))]
    inputs = [value("x", (1, 4, "d", "d")), value("w", ("d", 1, 4))]
    proto = model(nodes, inputs, initializers=numbers)
    with clnn.compile_model(proto, any_device) as session:
        for d in extents:
            x, w = (np.round(4 * normal(s, d)) for s in ((1, 4, d, d), (d, 1, 4)))
            t = np.einsum("abcd,dyb->abc", x, w)
            (got,) = session({n: a.astype(np.float32) for n, a in (("x", x), ("w", w))}).values()
            np.testing.assert_array_equal(got, np.where(t > 0.125, -1, t), str(d))


@pytest.mark.parametrize("extents", [(2, 12, 3, 1), (4, 1, 7), (6, 1)])
def test_turned_sequences_along_an_open_extent_that_comes_to_one(any_device, extents):
    nodes = [
        make.make_node("Shrink", ["x"], ["t"]),
        make.make_node("ReverseSequence", ["t", "n"], ["y"], batch_axis=0, time_axis=1),
    ]
    proto = model(nodes, [value("x", (1, "d", 8, 6)), value("n", (1,), TensorProto.INT64)])
    with clnn.compile_model(proto, any_device) as session:
        for d in extents:
            x, n = normal((1, d, 8, 6), d).astype(np.float32), np.array([max(1, d - 1)])
            (got,) = session({"x": x, "n": n}).values()
            t = np.where(x < -0.5, x, np.where(x > 0.5, x, 0))
            t[:, : n[0]] = t[:, : n[0]][:, ::-1].copy()
            np.testing.assert_array_equal(got, t, str(d))


@pytest.mark.parametrize("op", ["Add", "Max", "Mean"])
@pytest.mark.parametrize("first", [1, 6])
@pytest.mark.parametrize("inner", [True, False])
def test_open_extents_that_broadcast_where_they_are_one(any_device, op, first, inner):
    """So the result has the same shape at both extents; of an inner axis, vectors lie along it."""
    shape, fixed = ((5, "d"), (5, 6)) if inner else (("d", 5), (6, 5))
    nodes = [
        make.make_node(op, ["x", "c", "r"], ["s"])
        if op == "Mean"
        else make.make_node(op, ["x", "c"], ["s"]),
        make.make_node("LogSoftmax", ["s"], ["t"], axis=0),
        make.make_node("Mul", ["t", "x"], ["y"]),
    ]
    stored = [tensor(n, normal(fixed, k).astype(np.float32)) for k, n in enumerate("cr")]
    proto = model(nodes, [value("x", shape)], initializers=stored)
    for merge in (True, False):
        extents = [first, 7 - first, first, 6, 1]
        shapes = [(5, n) if inner else (n, 5) for n in extents]
        agrees(proto, any_device, shapes, merge=merge)


def test_vectors_of_other_widths_at_other_shapes(any_device):
    """Squeeze makes networks of their own, whose kernels may have other vectors under the same name."""
    nodes = [
        make.make_node("Squeeze", ["x"], ["s"]),
        make.make_node("Sigmoid", ["s"], ["t"]),
        make.make_node("Mul", ["s", "t"], ["u"]),
        make.make_node("Clip", ["u", "low"], ["y"]),
    ]
    low = tensor("low", np.float32(-0.25))
    proto = model(nodes, [value("x", ("n", 1, "d", 6))], initializers=[low])
    shapes = [(1, 1, 1, 6), (2, 1, 2, 6), (1, 1, 8, 6), (3, 1, 1, 6), (1, 1, 5, 6), (1, 1, 1, 6)]
    for merge in (True, False):
        agrees(proto, any_device, shapes, merge=merge)
