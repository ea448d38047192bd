"""Operators as they were before opset 7."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper as make
from onnx_models import model, run, tensor, value

from clnn.errors import UnsupportedOpError
from clnn.importers.onnx.importer import import_onnx

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def old(nodes, inputs, opset=6, **options):
    return import_onnx(model(nodes, inputs, opset=opset, **options))


@pytest.mark.parametrize(
    ("attrs", "shape"),
    [
        ({"broadcast": 1, "axis": 1}, (3,)),
        ({"broadcast": 1, "axis": 1}, (3, 4)),
        ({"broadcast": 1, "axis": -3}, (3,)),
        ({"broadcast": 1}, (5,)),
        ({"broadcast": 1}, (4, 5)),
        ({"broadcast": 1, "axis": 0}, (2,)),
        ({}, (2, 3, 4, 5)),
        ({"broadcast": 1}, ()),
    ],
)
@pytest.mark.parametrize("constant", [True, False])
def test_broadcasting_of_opset_6(attrs, shape, constant):
    x = np.random.default_rng(0).random((2, 3, 4, 5), np.float32)
    b = np.random.default_rng(1).random(shape, np.float32)
    axis = attrs.get("axis", 4 - b.ndim) % 4 if b.ndim else 0
    want = x - b.reshape((1,) * axis + b.shape + (1,) * (4 - axis - b.ndim))
    node = make.make_node("Sub", ["x", "b"], ["y"], **attrs)
    inputs = [value("x", x.shape)] + ([] if constant else [value("b", shape)])
    graph = old([node], inputs, initializers=[tensor("b", b)] if constant else [])
    feeds = {"x": x} if constant else {"x": x, "b": b}
    np.testing.assert_allclose(run(graph, **feeds)["y"], want, rtol=1e-6)


def test_prelu_of_opset_6_has_a_slope_per_channel():
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    slope = np.array([0.1, 0.2, 0.3], np.float32)
    graph = old(
        [make.make_node("PRelu", ["x", "s"], ["y"])],
        [value("x", x.shape)],
        initializers=[tensor("s", slope)],
    )
    want = np.where(x < 0, slope[:, None, None] * x, x)
    np.testing.assert_allclose(run(graph, x=x)["y"], want, rtol=1e-6)


def test_ops_that_did_not_change_run_from_any_opset():
    np.testing.assert_array_equal(
        run(old([make.make_node("Neg", ["x"], ["y"])], [value("x", (3, 4))], opset=6), x=X)["y"], -X
    )


@pytest.mark.parametrize(
    ("node", "opset", "words"),
    [
        (make.make_node("Dropout", ["x"], ["y"]), 6, "training mode"),
        (make.make_node("Add", ["x", "b"], ["y"]), 6, "differ without `broadcast`"),
        (make.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=1), 6, "axis 1 does not place"),
        (make.make_node("Relu", ["x"], ["y"]), 1, "another form before opset 7"),
    ],
)
def test_old_forms_that_do_not_run_say_so(node, opset, words):
    with pytest.raises(UnsupportedOpError, match=words):
        old(
            [node],
            [value("x", (3, 4))],
            opset,
            initializers=[tensor("b", np.ones((1, 4), np.float32))],
        )
