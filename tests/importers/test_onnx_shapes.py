"""Shapes of inputs: what the file says, what `shapes` adds, and what does not fit together."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from onnx import helper as make
from onnx_models import ints, model, tensor, value

import clnn
from clnn.errors import ModelError, ShapeError, UnsupportedOpError
from clnn.importers.onnx.importer import import_onnx
from clnn.runtime.run.open_session import OpenSession


def two_inputs(left, right):
    node = make.make_node("Add", ["a", "b"], ["y"], name="add")
    return model([node], [value("a", left), value("b", right)])


def shape_of(graph, name):
    return graph.types[name].shape


IMAGE = ("batch", 3, "height", "width")


@pytest.mark.parametrize(
    "shapes",
    [
        {"a": (2, 3, 4, 5)},
        {"a": [2, 3, 4, 5], "b": (2, 3, 4, 5)},
        {"batch": 2, "height": 4, "width": 5},
        {"a": np.array([2, 3, 4, 5])},
        {"batch": np.int32(2), "height": np.int64(4), "width": 5},
        {"b": (2, 3, 4, 5), "batch": 2},
    ],
)
def test_open_dimensions_by_input_or_by_name(shapes):
    graph = import_onnx(two_inputs(IMAGE, IMAGE), shapes)
    assert shape_of(graph, "a") == shape_of(graph, "b") == (2, 3, 4, 5)


def test_shape_of_one_input_fixes_the_dimensions_of_another():
    graph = import_onnx(two_inputs(("n", 3), (1, 3)), {"a": (7, 3)})
    assert shape_of(graph, "a") == (7, 3)
    graph = import_onnx(two_inputs(("n", 3), ("n", 1)), {"b": (7, 1)})
    assert shape_of(graph, "a") == (7, 3)


def test_open_dimensions_are_listed_with_what_to_pass():
    with pytest.raises(ShapeError) as caught:
        import_onnx(two_inputs(IMAGE, (None, 3, 1, 1)))
    text = str(caught.value)
    assert (
        "'a' is (batch, 3, height, width): axis 0 (batch), axis 2 (height), axis 3 (width)" in text
    )
    assert "'b' is (?, 3, 1, 1): axis 0 (unnamed)" in text
    assert "shapes={'batch': 1, 'height': 1, 'width': 1, 'b': (...)}" in text


def test_half_given_dimensions_name_the_rest():
    with pytest.raises(ShapeError, match=r"'a' is .*: axis 2 \(height\), axis 3 \(width\)"):
        import_onnx(two_inputs(IMAGE, IMAGE), {"batch": 1})


def test_input_without_a_shape_needs_one():
    nodes = [make.make_node("Relu", ["x"], ["y"])]
    proto = model(nodes, [value("x", None)])
    with pytest.raises(ShapeError, match=r"'x' has no shape at all.*shapes=\{'x': \(\.\.\.\)\}"):
        import_onnx(proto)
    assert shape_of(import_onnx(proto, {"x": (2, 5)}), "x") == (2, 5)


def test_negative_dimension_of_the_file_is_open():
    proto = two_inputs((1, 3), (1, 3))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    with pytest.raises(ShapeError, match=r"'a' is \(\?, 3\): axis 0 \(unnamed\)"):
        import_onnx(proto)
    assert shape_of(import_onnx(proto, {"a": (4, 3)}), "a") == (4, 3)


def test_dimension_of_zero_is_an_empty_tensor_unless_given():
    proto = two_inputs((0, 3), (1, 3))
    assert shape_of(import_onnx(proto), "a") == (0, 3)
    assert shape_of(import_onnx(proto, {"a": (4, 3)}), "a") == (4, 3)


def test_scalar_input_has_no_dimensions():
    graph = import_onnx(two_inputs((), (3,)))
    assert shape_of(graph, "a") == ()


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (
            {"hight": 4},
            r"shapes\['hight'\] matches no input.*Did you mean 'height'\?.*\['a', 'b'\]",
        ),
        ({"A": (2, 3, 4, 5)}, "matches no input and no symbolic dimension"),
        ({"a": 4}, "'a' is an input: give its whole shape, such as .batch, 3, height, width."),
        ({"batch": (1, 2)}, "'batch' is a dimension: give one number"),
        (
            {"a": (2, 3, 4)},
            r"shape \(2, 3, 4\) does not fit input 'a'.* \(batch, 3, height, width\)",
        ),
        ({"a": (2, 4, 4, 5)}, r"\(2, 4, 4, 5\) does not fit input 'a'"),
        ({"a": (2, 3, 4, 5), "batch": 1}, "'batch' as 1 and, in input 'a', as 2"),
        ({"a": (2, 3, 4, 5), "b": (1, 3, 4, 5)}, "'batch' as 2 and, in input 'b', as 1"),
        ({"batch": -1}, r"shapes\['batch'\] is -1.*from 0 to 2147483647"),
        ({"batch": 2**31}, "from 0 to 2147483647"),
        ({"batch": 2.0}, "Give a shape such as"),
        ({"a": (1, 3, None, 4)}, "Give a shape such as"),
        ({"a": "1x3x4x4"}, "Give a shape such as"),
        ({"a": (1,) * 9}, "Give a shape such as"),
    ],
)
def test_wrong_shapes_say_what_is_wrong(shapes, words):
    with pytest.raises(ShapeError, match=words):
        import_onnx(two_inputs(IMAGE, IMAGE), shapes)


def test_unknown_key_is_refused_even_where_nothing_is_open():
    with pytest.raises(ShapeError, match=r"shapes\['batch'\] matches no input"):
        import_onnx(two_inputs((1, 3), (1, 3)), {"batch": 1})


def test_initializer_that_is_also_an_input_is_no_input():
    """IR version 3 lists initializers as inputs too."""
    node = make.make_node("Add", ["x", "w"], ["y"])
    proto = model(
        [node],
        [value("x", (2, 3)), value("w", ("anything", 3))],
        initializers=[tensor("w", np.ones((2, 3), np.float32))],
    )
    proto.ir_version = 3
    assert import_onnx(proto).inputs == ("x",)
    with pytest.raises(ShapeError, match=r"matches no input"):
        import_onnx(proto, {"w": (2, 3)})


def test_rank_over_the_limit_is_refused():
    assert shape_of(import_onnx(two_inputs((1,) * 8, (1,) * 8)), "a") == (1,) * 8
    with pytest.raises(ModelError, match=r"input 'a' has 9 axes\. clnn takes at most 8"):
        import_onnx(two_inputs((1,) * 9, (1,) * 9))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (TensorProto.STRING, "it is text; clnn has no such tensors"),
        (TensorProto.COMPLEX64, "it is complex64"),
        (TensorProto.FLOAT8E8M0, "it is float8_e8m0fnu"),
    ],
)
def test_element_types_without_tensors_are_named(kind, words):
    node = make.make_node("Identity", ["x"], ["y"])
    with pytest.raises(UnsupportedOpError, match=words):
        import_onnx(model([node], [value("x", (2,), kind)]))


def test_sequences_and_optionals_are_refused_by_name():
    element = make.make_tensor_type_proto(TensorProto.FLOAT, [2])
    for kind, words in (
        (make.make_sequence_type_proto(element), "sequence_type"),
        (make.make_optional_type_proto(element), "optional_type"),
    ):
        node = make.make_node("Identity", ["x"], ["y"])
        with pytest.raises(UnsupportedOpError, match=f"model::input.*it is {words}.*'x'"):
            import_onnx(model([node], [make.make_value_info("x", kind)]))


def test_shapes_of_constants_part_no_model(device):
    """Weights as exporters of TensorFlow flatten them, by arithmetic on their own shape."""
    rng = np.random.default_rng(2)
    weights = rng.normal(0, 1, (3, 2, 4)).astype(np.float32)
    node = make.make_node
    nodes = [
        node("Shape", ["w"], ["extents"]),
        node("Gather", ["extents", "tail"], ["kept"]),
        node("ReduceProd", ["kept"], ["width"], keepdims=1),
        node("Concat", ["rows", "width"], ["flat"], axis=0),
        node("Reshape", ["w", "flat"], ["w2"]),
        node("MatMul", ["x", "w2"], ["y"]),
    ]
    stored = [tensor("w", weights), ints("tail", 1, 2), ints("rows", 3)]
    proto = model(nodes, [value("x", ("n", 3))], ["y"], stored)
    with clnn.compile_model(proto, device) as session:
        assert isinstance(session, OpenSession), "one plan for each shape, no stages"
        for n in (1, 4):
            x = rng.normal(0, 1, (n, 3)).astype(np.float32)
            np.testing.assert_allclose(session({"x": x})["y"], x @ weights.reshape(3, 8), 0, 1e-5)
