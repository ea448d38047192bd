"""Networks with text, labels and maps around what the device computes give what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import clnn
import clnn.onnxruntime
from clnn.errors import DTypeError
from clnn.runtime.stages.session import StagedSession

LEARNED = "ai.onnx.ml"
RNG = np.random.default_rng(3)
SCORES = helper.make_sequence_type_proto(
    helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    )
)


def words(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def stored(array, name):
    return numpy_helper.from_array(array, name)


def classifier(extent="n") -> bytes:
    """Words become numbers, those vectors, these scores on the device, and those labels and maps."""
    node = helper.make_node
    nodes = [
        node("LabelEncoder", ["x"], ["i"], domain=LEARNED, keys_strings=["a", "b"],
             values_int64s=[0, 1], default_int64=2),
        node("Gather", ["vectors", "i"], ["e"]),
        node("MatMul", ["e", "w"], ["s"]),
        node("Softmax", ["s"], ["p"]),
        node("ArgMax", ["p"], ["best"], axis=1, keepdims=0),
        node("Gather", ["names", "best"], ["label"]),
        node("Equal", ["label", "one"], ["is_one"]),
        node("StringConcat", ["x", "label"], ["both"]),
        node("ZipMap", ["p"], ["scores"], domain=LEARNED, classlabels_strings=["u", "v", "ß"]),
    ]  # fmt: skip
    made = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "words",
        [made("x", TensorProto.STRING, [extent])],
        [
            made("label", TensorProto.STRING, [extent]),
            made("is_one", TensorProto.BOOL, [extent]),
            made("both", TensorProto.STRING, [extent]),
            helper.make_value_info("scores", SCORES),
        ],
        [
            stored(RNG.standard_normal((3, 8)).astype(np.float32), "vectors"),
            stored(RNG.standard_normal((8, 3)).astype(np.float32) * 3, "w"),
            stored(words("u", "v", "ß"), "names"),
            stored(words("ß"), "one"),
        ],
    )
    sets = [helper.make_opsetid("", 20), helper.make_opsetid(LEARNED, 2)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9).SerializeToString()


def by_onnxruntime(data, feeds):
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [v.name for v in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def assert_equal(got, want):
    for name in ("label", "is_one", "both"):
        np.testing.assert_array_equal(got[name], want[name], strict=True)
    for a, b in zip(got["scores"], want["scores"], strict=True):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("extent", ["n", 3])
def test_words_become_scores(extent):
    data, x = classifier(extent), words("b", "é", "a")
    session = clnn.compile_model(data)
    assert isinstance(session, StagedSession)
    assert len(session.stages) == 1
    want = by_onnxruntime(data, {"x": x})
    assert_equal(session({"x": x}), want)
    for other in (["b", "é", "a"], np.array(["b", "é", "a"])):
        assert_equal(session({"x": other}), want)


def test_results_are_the_callers():
    session = clnn.compile_model(classifier())
    x = words("a")
    first = session({"x": x})
    first["label"][0], first["scores"][0]["u"] = "changed", 5.0
    again = session({"x": x})
    assert again["label"][0] != "changed"
    assert again["scores"][0]["u"] != 5.0
    assert x[0] == "a"


@pytest.mark.parametrize("x", [np.array([1, 2]), words("a", 1), np.array([b"a"])])
def test_what_is_no_text_is_one_clear_error(x):
    session = clnn.compile_model(classifier())
    with pytest.raises(DTypeError, match=r"input 'x' holds .*, model wants text"):
        session({"x": x})


def test_a_map_is_an_input():
    key = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    given = helper.make_value_info("m", helper.make_map_type_proto(TensorProto.STRING, key))
    node = helper.make_node(
        "DictVectorizer", ["m"], ["y"], domain=LEARNED, string_vocabulary=["a", "b"]
    )
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(LEARNED, 1)]
    model = helper.make_model(
        helper.make_graph([node], "map", [given], [made]), opset_imports=sets, ir_version=9
    )
    data = model.SerializeToString()
    np.testing.assert_array_equal(
        clnn.compile_model(data)({"m": {"b": 2.0}})["y"],
        np.array([[0, 2]], np.float32),
        strict=True,
    )
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    ours = clnn.onnxruntime.InferenceSession(data)
    for feed in ({"a": 1.5}, {"a": 1}):
        np.testing.assert_array_equal(
            ours.run(None, {"m": feed})[0], theirs.run(None, {"m": feed})[0], strict=True
        )
    for wrong in ({1: 2.0}, {"a": "x"}, {}, 3, [{"a": 1.0}]):
        for session in (ours, theirs):
            with pytest.raises(Exception) as caught:
                session.run(None, {"m": wrong})
            assert isinstance(caught.value, RuntimeError) or "INVALID" in str(caught.value)


def test_trees_behind_a_product():
    """What the device makes is walked through trees on the host."""
    from learned import ensemble

    attrs = ensemble(np.random.default_rng(5), "class", (0, 1, 2), 4)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["f"]),
        helper.make_node(
            "TreeEnsembleClassifier", ["f"], ["label", "p"], domain=LEARNED,
            classlabels_strings=["a", "b", "c"], post_transform="SOFTMAX", **attrs,
        ),
    ]  # fmt: skip
    made = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "trees",
        [made("x", TensorProto.FLOAT, ["n", 5])],
        [made("label", TensorProto.STRING, ["n"]), made("p", TensorProto.FLOAT, ["n", 3])],
        [stored(RNG.integers(-2, 3, (5, 4)).astype(np.float32), "w")],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(LEARNED, 3)]
    data = helper.make_model(graph, opset_imports=sets, ir_version=9).SerializeToString()
    onnx.checker.check_model(data)
    session = clnn.compile_model(data)
    for rows in (1, 7):
        x = RNG.integers(-3, 4, (rows, 5)).astype(np.float32)
        got, want = session({"x": x}), by_onnxruntime(data, {"x": x})
        np.testing.assert_array_equal(got["label"], want["label"])
        np.testing.assert_allclose(got["p"], want["p"], rtol=1e-5, atol=1e-6)
