"""Features and linear models of ai.onnx.ml as networks: the device's, or the host's, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from learned import LEARNED, assert_alike, by_onnxruntime, model_of
from onnx import helper

import clnn
from clnn.importers.onnx.stages.deciding import why_on_host
from clnn.runtime.stages.session import StagedSession

RNG = np.random.default_rng(5)
POSTS = ("NONE", "LOGISTIC", "SOFTMAX")
COUNTS = (1, 5, 70, 5)
FEATURES = 6


def drawn(count):
    return RNG.standard_normal(count).round(2).tolist()


def linear(rows, post, intercepts=True, **more):
    more |= {"coefficients": drawn(rows * FEATURES), "post_transform": post}
    return more | ({"intercepts": drawn(rows)} if intercepts else {})


def case(op, attrs, n_outputs=1):
    return pytest.param(op, attrs, n_outputs, id=f"{op}-{len(str(attrs))}")


CASES = [
    case("Scaler", {"offset": drawn(FEATURES), "scale": drawn(FEATURES)}),
    case("Scaler", {"offset": drawn(1), "scale": drawn(1)}),
    *(case("Normalizer", {"norm": norm}) for norm in ("MAX", "L1", "L2")),
    *(case("LinearRegressor", linear(k, post, targets=k)) for k in (1, 3) for post in POSTS),
    case("LinearRegressor", linear(2, "NONE", False, targets=2)),
    *(
        case("LinearClassifier", linear(k, post, classlabels_ints=labels), 2)
        for k, labels in ((1, [4, 9]), (2, [0, 1]), (3, [9, 4, 6]))
        for post in POSTS
    ),
]


def open_model(op, attrs, n_outputs, dtype=np.float32):
    made = model_of(op, [np.zeros((1, FEATURES), dtype)], attrs, n_outputs, opset=1)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    return made


def rows(count, dtype=np.float32):
    x = (RNG.standard_normal((count, FEATURES)) * 4).astype(dtype)
    x[count // 2] = 0
    return x


@pytest.mark.parametrize(("op", "attrs", "n_outputs"), CASES)
def test_kernels(device, op, attrs, n_outputs):
    proto = open_model(op, attrs, n_outputs)
    assert not why_on_host(proto.graph.node[0])
    with clnn.compile_model(proto, device) as session:
        assert not isinstance(session, StagedSession)
        for count in COUNTS:
            x = rows(count)
            assert_alike(session.run(None, {"i0": x}), by_onnxruntime(proto, [x]), 1e-5)


def test_classes_as_gpus_find_them(device, as_gpu):
    """Rows side by side, of which the last vector begins earlier."""
    found = [case.values for case in CASES if case.values[0] == "LinearClassifier"]
    for values in (found[0], found[len(found) // 2], found[-1]):
        test_kernels(device, *values)


@pytest.mark.parametrize("op", ["Scaler", "Normalizer", "LinearClassifier"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64])
def test_features_of_other_types(device, op, dtype):
    attrs = {"offset": drawn(FEATURES), "scale": drawn(FEATURES)} if op == "Scaler" else {}
    if op == "LinearClassifier":
        attrs = linear(3, "NONE", classlabels_ints=[7, 8, 9])
    proto = open_model(op, attrs, 1 + (op == "LinearClassifier"), dtype)
    with clnn.compile_model(proto, device) as session:
        for count in (2, 3):
            x = rows(count, dtype)
            assert_alike(session.run(None, {"i0": x}), by_onnxruntime(proto, [x]), 1e-5)


def test_labels_of_text(device):
    attrs = linear(3, "SOFTMAX", classlabels_strings=["a", "é", "c"])
    proto = open_model("LinearClassifier", attrs, 2)
    with clnn.compile_model(proto, device) as session:
        for count in (1, 9):
            x = rows(count)
            assert_alike(session.run(None, {"i0": x}), by_onnxruntime(proto, [x]), 1e-5)


def test_what_is_left_to_the_host():
    for op, attrs in (
        ("LinearRegressor", linear(3, "PROBIT", targets=3)),
        ("LinearClassifier", linear(3, "SOFTMAX_ZERO", classlabels_ints=[1, 2, 3])),
        ("LinearClassifier", linear(3, "NONE", classlabels_strings=["a", "b", "c"])),
        ("LinearClassifier", linear(3, "NONE", classlabels_ints=[1, 2])),
        ("Normalizer", {"norm": "L3"}),
    ):
        assert why_on_host(open_model(op, attrs, 1).graph.node[0])


def test_a_pipeline_is_one_plan(device):
    """A scaler, a product and a scaler, as scikit-learn's pipelines are exported."""
    nodes = [
        helper.make_node("Scaler", ["x"], ["a"], domain=LEARNED, offset=drawn(6), scale=drawn(6)),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Normalizer", ["b"], ["y"], domain=LEARNED, norm="L2"),
    ]
    made = helper.make_tensor_value_info
    weights = onnx.numpy_helper.from_array(RNG.standard_normal((6, 5)).astype(np.float32), "w")
    graph = helper.make_graph(
        nodes, "p", [made("x", 1, ["n", 6])], [made("y", 1, ["n", 5])], [weights]
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(LEARNED, 1)]
    proto = helper.make_model(graph, opset_imports=sets, ir_version=9)
    with clnn.compile_model(proto, device) as session:
        assert not isinstance(session, StagedSession)
        for count in (1, 4):
            x = rows(count)
            want = by_onnxruntime(_named(proto), [x])
            assert_alike(session.run(None, {"x": x}), want, 1e-5)


def _named(proto):
    """Return the model with its input under the name that by_onnxruntime feeds."""
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    other.graph.input[0].name = other.graph.node[0].input[0] = "i0"
    return other
