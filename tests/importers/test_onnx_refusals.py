"""What clnn cannot run is refused in words, all of it at once."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper as make
from onnx_models import INT64, conv, ints, model, relu, run, tensor, value

from clnn.errors import DTypeError, ModelError, ShapeError, UnsupportedOpError
from clnn.importers.onnx.importer import import_onnx

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def test_all_unsupported_nodes_are_listed_at_once():
    nodes = [
        make.make_node("Relu", ["x"], ["a"]),
        make.make_node("NonMaxSuppression", ["a3", "b3"], ["n"], name="nms"),
        make.make_node("Fancy", ["a"], ["b"], name="f1", domain="com.example"),
        make.make_node("Fancy", ["a"], ["c"], name="f2", domain="com.example"),
        make.make_node("Fancy", ["w"], ["d"], name="f3", domain="com.example"),
        make.make_node("Neg", ["b"], ["e"], name="behind"),
        make.make_node("Bogus", ["x"], ["g"], name="bogus"),
        make.make_node("Strange", ["x"], ["h"], name="strange", domain="not.imported"),
    ]
    boxes = [value("a3", (1, 4, 4)), value("b3", (1, 1, 4))]
    proto = model(
        nodes,
        [value("x", (3, 4)), *boxes],
        "yebcdgh"[1:],
        [ints("w", 1)],
        domains={"com.example": 3},
    )
    with pytest.raises(UnsupportedOpError) as caught:
        import_onnx(proto)
    text = str(caught.value)
    assert text.startswith("6 node(s) cannot run on clnn:")
    assert "2 x com.example::Fancy (opset 3) of (float32[3x4])" in text
    assert "Node 'f1', 'f2'" in text
    assert "1 x com.example::Fancy (opset 3) of (int64[1])" in text
    assert (
        "ai.onnx::NonMaxSuppression (opset 21) of (float32[1x4x4], float32[1x1x4]): the shape of"
        in text
    )
    assert (
        "ai.onnx::Bogus (opset 21) of (float32[3x4]): opset 21 of ONNX has no such operator" in text
    )
    assert "not.imported::Strange of (float32[3x4]): the model imports no operator set of" in text
    assert "docs/operators.md" in text
    assert "behind" not in text
    assert [p.node for p in caught.value.problems] == ["nms", "f1", "f2", "f3", "bogus", "strange"]


def test_very_many_unsupported_nodes_stay_readable():
    nodes = [
        make.make_node(f"Op{k % 60}", ["x"], [f"o{k}"], domain="own", name=f"n{k}")
        for k in range(600)
    ]
    with pytest.raises(UnsupportedOpError) as caught:
        import_onnx(model(nodes, [value("x", (1,))], ["o0"], domains={"own": 1}))
    assert "... and 10 more kinds" in str(caught.value)
    assert "and 7 more" in str(caught.value)
    assert len(caught.value.problems) == 600


def test_form_from_a_newer_operator_set_than_clnn_knows_is_refused(monkeypatch):
    monkeypatch.setattr("clnn.importers.onnx.nodes.NEWEST_OPSET", 5)
    monkeypatch.setattr("clnn.importers.onnx.report.NEWEST_OPSET", 5)
    from clnn.importers.onnx import nodes as onnx_nodes

    onnx_nodes._known.cache_clear()
    with pytest.raises(
        UnsupportedOpError, match=r"it changed in opset \d+; clnn knows ONNX up to opset 5"
    ):
        import_onnx(relu())
    onnx_nodes._known.cache_clear()


def test_wrong_shapes_inside_a_model_name_the_node():
    node = make.make_node("Add", ["x", "w"], ["y"], name="sum")
    proto = model(
        [node], [value("x", (3, 4))], initializers=[tensor("w", np.ones((3, 5), np.float32))]
    )
    with pytest.raises(ShapeError, match=r"node 'sum' \(Add\): shapes \(3, 4\) and \(3, 5\)"):
        import_onnx(proto)


def test_output_that_is_text_is_refused():
    node = make.make_node("Constant", [], ["y"], value_string="words")
    with pytest.raises(ModelError, match="output 'y' is text"):
        import_onnx(model([node], [value("x", (1,))]))


def test_values_of_inputs_become_constants_only_where_an_op_needs_them():
    node = [
        make.make_node("Reshape", ["x", "shape"], ["t"]),
        make.make_node("Add", ["t", "b"], ["y"]),
    ]
    inputs = [value("x", (3, 4)), value("shape", (2,), INT64), value("b", (2, 6))]
    with pytest.raises(UnsupportedOpError, match=r"shape \(input 1\) is not a constant"):
        import_onnx(model(node, inputs))
    data = {"x": X, "shape": np.array([2, 6]), "b": np.ones((2, 6), np.float32)}
    graph = import_onnx(model(node, inputs), values=data)
    for wrong, kind in ((np.array([2.0, 6.0]), DTypeError), (np.array([2, 3, 2]), ShapeError)):
        with pytest.raises(kind, match="value of input 'shape' is"):
            import_onnx(model(node, inputs), values={**data, "shape": wrong})
    assert graph.inputs == ("x", "b")
    np.testing.assert_array_equal(run(graph, x=X, b=data["b"])["y"], X.reshape(2, 6) + 1)


def test_convolution_imports_as_one_node():
    graph = import_onnx(conv(pads=[1, 1, 1, 1]))
    assert [n.spec.kind for n in graph.nodes] == ["conv2d"]
    assert graph.types[graph.outputs["y"]].shape == (1, 4, 8, 8)


SEVEN = tensor("v", np.full(1, 7, np.float32))
MORE_OUTPUTS = {
    "Constant of a tensor": make.make_node("Constant", [], ["y", "nowhere"], "k", value=SEVEN),
    "Constant of a number": make.make_node("Constant", [], ["y", "nowhere"], "k", value_float=7.0),
    "Constant, second left out": make.make_node("Constant", [], ["y", ""], "k", value=SEVEN),
    "ConstantOfShape": make.make_node("ConstantOfShape", ["s"], ["y", "nowhere"], "k", value=SEVEN),
    "Shape": make.make_node("Shape", ["x"], ["y", "nowhere"], "k"),
    "folded": make.make_node("Neg", ["s"], ["y", "nowhere"], "k"),
    "Relu": make.make_node("Relu", ["x"], ["y", "nowhere"], "k"),
    "defined by others": make.make_node("MeanVarianceNormalization", ["x"], ["y", "nowhere"], "k"),
}


@pytest.mark.parametrize("name", MORE_OUTPUTS)
def test_more_outputs_than_the_operator_makes_are_refused(name):
    node = MORE_OUTPUTS[name]
    proto = model([node], [value("x", (1, 2, 3, 4))], initializers=[ints("s", 2, 3)])
    with pytest.raises(
        ModelError, match=rf"node 'k' \({node.op_type}\): it names 2 outputs.*at most 1"
    ):
        import_onnx(proto)
