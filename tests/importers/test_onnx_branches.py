"""Branches that values of inputs decide, dimensions without a name, and refusals behind refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import INT64

import clnn
from clnn import compile as compiling
from clnn.errors import DTypeError, ShapeError, UnsupportedOpError
from clnn.importers.onnx.importer import import_onnx
from clnn.importers.onnx.stages.branches import deciding_values
from clnn.runtime.run import kept_shapes
from clnn.runtime.stages.valued import ValuedSession

FLOAT = TensorProto.FLOAT


def value(name, dims, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, dims)


def made(nodes, inputs, outputs=("y",)):
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=n) for n in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branch(nodes, out):
    return helper.make_graph(nodes, f"b_{out}", [], [onnx.ValueInfoProto(name=out)])


def rate_model(x=("n", 4)):
    """If rate is 16000: x + x, or, where x has 3 rows or more, -x; else x * x."""
    small = branch([helper.make_node("Add", ["x", "x"], ["twice"])], "twice")
    large = branch([helper.make_node("Neg", ["x"], ["less"])], "less")
    inner = [
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("Constant", [], ["three"], value_int=3),
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Gather", ["dims", "zero"], ["rows"]),
        helper.make_node("Less", ["rows", "three"], ["few"]),
        helper.make_node("If", ["few"], ["one"], then_branch=small, else_branch=large),
        helper.make_node("Relu", ["one"], ["made"]),
    ]
    other = branch([helper.make_node("Mul", ["x", "x"], ["made"])], "made")
    nodes = [
        helper.make_node("Constant", [], ["wanted"], value_int=16000),
        helper.make_node("Equal", ["rate", "wanted"], ["is_wanted"]),
        helper.make_node(
            "If", ["is_wanted"], ["y"], then_branch=branch(inner, "made"), else_branch=other
        ),
    ]
    return made(nodes, [value("x", x), value("rate", (), INT64)])


def expected(x, rate):
    if rate != 16000:
        return x * x
    return np.maximum(x + x if len(x) < 3 else -x, 0)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_values_decide_an_if(rate):
    graph = import_onnx(rate_model((2, 4)), values={"rate": np.array(rate)})
    assert list(graph.inputs) == ["x"]
    assert len(graph.nodes) == (2 if rate == 16000 else 1)


def test_a_second_start_finds_the_session_of_each_value(any_device, tmp_path, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_shapes, "BEHIND_S", 0.0)
    read: list[object] = []
    whole = compiling.valued_model
    monkeypatch.setattr(compiling, "valued_model", lambda *a: read.append(a) or whole(*a))
    model = tmp_path / "net.onnx"
    onnx.save(rate_model(), model)
    for start in range(2):
        with clnn.compile_model(model, any_device) as session:
            assert isinstance(session, ValuedSession) and session.deciding == ("rate",)
            for rows, rate in ((2, 16000), (2, 8000), (5, 16000)):
                x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
                (got,) = session.run(["y"], {"x": x, "rate": np.array(rate)})
                np.testing.assert_array_equal(got, expected(x, rate))
            assert len(read) == 1 and (not start or session.build_counts[1] == 0)
            session._kept._jobs.wait()
    with clnn.compile_model(model, any_device) as session:
        x = np.ones((3, 4), np.float32)
        np.testing.assert_array_equal(session({"x": x, "rate": np.array(1)})["y"], x)
    assert len(read) == 2


def test_a_session_for_each_value(any_device):
    with clnn.compile_model(rate_model(), any_device) as session:
        assert isinstance(session, ValuedSession)
        assert session.deciding == ("rate",)
        for rows, rate in ((2, 16000), (2, 8000), (5, 16000), (2, 16000), (1, 1)):
            x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
            (got,) = session.run(["y"], {"x": x, "rate": np.array(rate)})
            np.testing.assert_array_equal(got, expected(x, rate))
        assert len(session.sessions) == 4
        with pytest.raises(DTypeError):
            session({"x": x, "rate": np.array(1, np.int32)})
        with pytest.raises(ShapeError):
            session({"x": x[:, :3], "rate": np.array(1)})
        with pytest.raises(ShapeError):
            session({"x": x, "rate": np.array([1])})
    with pytest.raises(clnn.ClnnError):
        session({"x": x, "rate": np.array(1)})


def test_large_inputs_real_numbers_and_plain_branches_decide_nothing():
    def names(model):
        return deciding_values(model.graph)

    assert names(rate_model()) == ("rate",)
    for dims, kind in (((100,), INT64), ((), FLOAT), ((None,), INT64)):
        model = rate_model()
        model.graph.input[1].CopyFrom(value("rate", dims, kind))
        assert names(model) == ()
    model = rate_model()
    taken = next(a for a in model.graph.node[2].attribute if a.name == "then_branch")
    del taken.g.node[5]
    assert names(model) == ()


@pytest.mark.parametrize("name", ["?", "", "-1", None])
def test_dimensions_without_a_name_may_differ(any_device, name):
    dim = [2, 3]
    proto = made([helper.make_node("Relu", ["x"], ["y"])], [value("x", dim)])
    for axis in proto.graph.input[0].type.tensor_type.shape.dim:
        if name is None:
            axis.dim_value = -1
        else:
            axis.dim_param = name
    with clnn.compile_model(proto, any_device) as session:
        assert session.inputs[0].shape == ("x.0", "x.1")
        for shape in ((2, 3), (3, 2), (4, 4)):
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            np.testing.assert_array_equal(session({"x": x})["y"], np.maximum(x, 0))


@pytest.mark.parametrize("dims", [(7, 9), (7,), ("q", 9), (0, 0), (-1, 3)])
def test_wrong_shapes_of_values_do_not_stop_a_model(any_device, dims):
    proto = made(
        [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])],
        [value("x", (2, 3))],
    )
    proto.graph.value_info.append(value("t", dims))
    proto.graph.output[0].CopyFrom(value("y", dims))
    x = np.float32([[1, -2, 3], [4, 5, -6]])
    with clnn.compile_model(proto, any_device) as session:
        np.testing.assert_array_equal(session({"x": x})["y"], -np.maximum(x, 0))


def test_nodes_behind_a_refused_one_are_listed_too():
    nodes = [
        helper.make_node("ImageDecoder", ["x"], ["t"], "first"),
        helper.make_node("Relu", ["t"], ["u"], "fine"),
        helper.make_node("Foo", ["u"], ["v"], "second", domain="com.example"),
        helper.make_node("RandomNormalLike", ["v"], ["y"], "third"),
    ]
    model = made(nodes, [value("x", (2,))])
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedOpError) as caught:
        import_onnx(model)
    assert [p.node for p in caught.value.problems] == ["first", "second", "third"]
    assert "RandomNormalLike (opset 17) of (?)" in str(caught.value)
