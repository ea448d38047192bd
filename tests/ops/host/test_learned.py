"""Features, labels and maps of domain ai.onnx.ml, as onnxruntime has them."""

from __future__ import annotations

import numpy as np
import pytest
from learned import LEARNED, assert_alike, by_onnxruntime, model_of, on_host
from onnx import TensorProto, helper

from clnn.errors import ModelError
from clnn.ops.host.registry import HostNode, compute

F32 = np.array([[-1.5, 0, 2, 2.5], [0, 0, 0, 0], [3, -3, 1, 0.5]], np.float32)
I64 = np.array([[-1, 0, 2, 2], [0, 0, 0, 0], [3, -3, 1, 5]])
TEXT = np.array([["a", "é", "c"], ["b", "", "a"]], object)
NAN = np.array([[np.nan, 1, 2, np.nan]], np.float32)
NUMBERS = (F32, F32.astype(np.float64), I64, I64.astype(np.int32))


def tensor(name, kind, values):
    return helper.make_tensor(name, kind, [len(values)], values)


def mappings(kind):
    keys = tensor("k", TensorProto.STRING, ["a", "b", "a"])
    values = tensor("v", kind, [1, 2, 3])
    return {"keys_tensor": keys, "values_tensor": values, "default_tensor": tensor("d", kind, [7])}


KINDS = (TensorProto.INT64, TensorProto.INT16, TensorProto.FLOAT, TensorProto.DOUBLE)
DOUBLES = {
    "keys_tensor": tensor("k", TensorProto.DOUBLE, [2.0, 0.5]),
    "values_tensor": tensor("v", TensorProto.DOUBLE, [5.0, 6.0]),
}
# (operator, inputs, attributes, version of the domain)
CASES = [
    *(("ArrayFeatureExtractor", [x, np.array([[3, 0]])], {}, 1) for x in (*NUMBERS, F32[0], TEXT[:, [0, 1, 2, 0]])),
    ("Binarizer", [F32], {"threshold": 0.75}, 1),
    ("FeatureVectorizer", [F32, F32[:, :2]], {"inputdimensions": [4, 2]}, 1),
    ("FeatureVectorizer", [I64, I64[:, :1], I64], {"inputdimensions": [4, 1, 4]}, 1),
    ("Imputer", [NAN], {"imputed_value_floats": [9.0], "replaced_value_float": float("nan")}, 1),
    ("Imputer", [F32], {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": 0.0}, 1),
    ("Imputer", [I64], {"imputed_value_int64s": [9], "replaced_value_int64": 0}, 1),
    *(("Normalizer", [x], {"norm": n}, 1) for x in (*NUMBERS, F32[0]) for n in ("MAX", "L1", "L2")),
    *(("Scaler", [x], {"offset": [1.0], "scale": [0.5]}, 1) for x in NUMBERS),
    ("Scaler", [F32], {"offset": [1.0, 0.0, -1.0, 2.0], "scale": [0.5, 1.0, 2.0, 3.0]}, 1),
    ("LabelEncoder", [TEXT], {"classes_strings": ["a", "b", "c"], "default_int64": 9}, 1),
    ("LabelEncoder", [I64], {"classes_strings": ["a", "b", "c"]}, 1),
    ("LabelEncoder", [TEXT], {"keys_strings": ["a", "c"], "values_int64s": [4, 2]}, 2),
    ("LabelEncoder", [TEXT], {"keys_strings": ["a", "a"], "values_floats": [0.5, 1.5], "default_float": 3.0}, 2),
    ("LabelEncoder", [TEXT], {"keys_strings": ["é"], "values_strings": ["ü"]}, 2),
    ("LabelEncoder", [I64], {"keys_int64s": [2, 3], "values_strings": ["x", "y"], "default_string": "?"}, 2),
    ("LabelEncoder", [F32], {"keys_floats": [2.5, 0.0], "values_int64s": [1, 2]}, 2),
    *(("LabelEncoder", [TEXT], mappings(kind), 4) for kind in KINDS),
    ("LabelEncoder", [F32.astype(np.float64)], DOUBLES, 4),
    ("CategoryMapper", [TEXT], {"cats_strings": ["a", "é"], "cats_int64s": [3, 4]}, 1),
    ("CategoryMapper", [I64], {"cats_strings": ["a", "é"], "cats_int64s": [3, 0], "default_string": "?"}, 1),
    ("OneHotEncoder", [TEXT], {"cats_strings": ["a", "b"]}, 1),
    *(("OneHotEncoder", [x], {"cats_int64s": [0, 2, -3]}, 1) for x in NUMBERS[:3]),
]  # fmt: skip


@pytest.mark.parametrize(
    "op,inputs,attrs,opset", CASES, ids=[f"{k}-{c[0]}" for k, c in enumerate(CASES)]
)
def test_as_onnxruntime_has_it(op, inputs, attrs, opset):
    model = model_of(op, inputs, attrs, opset=opset)
    assert_alike(on_host(model, inputs), by_onnxruntime(model, inputs), 1e-6)


def test_nan_is_a_key():
    attrs = {"keys_floats": [float("nan"), 1.0], "values_int64s": [5, 6]}
    (got,) = on_host(model_of("LabelEncoder", [NAN], attrs), [NAN])
    np.testing.assert_array_equal(got, [[5, 6, -1, 5]])


@pytest.mark.parametrize(
    "labels", [{"classlabels_int64s": [3, 4]}, {"classlabels_strings": ["a", "é"]}]
)
def test_scores_by_label(labels):
    x = np.array([[0.25, 0.75], [1, 0]], np.float32)
    model = model_of("ZipMap", [x], labels, opset=1)
    (got,), (want,) = on_host(model, [x]), by_onnxruntime(model, [x])
    assert got == want
    assert [[type(k) for k in row] for row in got] == [[type(k) for k in row] for row in want]


def node(op, **attrs):
    return HostNode(f"{LEARNED}::{op}", 17, attrs, 1, "n")


def test_maps_as_vectors():
    words = node("DictVectorizer", string_vocabulary=["a", "b", "c"])
    (got,) = compute(words, [{"c": 2.5, "a": 1.0, "z": 9.0}])
    assert_alike([got], [np.array([[1, 0, 2.5]], np.float32)])
    (got,) = compute(node("DictVectorizer", int64_vocabulary=[5, 7]), [{7: "x"}])
    assert_alike([got], [np.array([["", "x"]], object)])


def test_maps_as_tensors():
    dense, sparse = node("CastMap"), node("CastMap", map_form="SPARSE", max_map=4)
    (got,) = compute(dense, [{3: 0.5, 1: 2.0}])
    assert_alike([got], [np.array([[2, 0.5]], np.float32)])
    (got,) = compute(sparse, [{3: 0.5, 1: 2.0}])
    assert_alike([got], [np.array([[0, 2, 0, 0.5]], np.float32)])
    (got,) = compute(node("CastMap", cast_to="TO_INT64"), [{0: "12"}])
    assert_alike([got], [np.array([[12]])])


@pytest.mark.parametrize(
    "op,inputs,attrs,words",
    [
        ("ArrayFeatureExtractor", [F32, np.array([4])], {}, "features 4 to 4 of 4"),
        ("Imputer", [F32], {"imputed_value_floats": [1.0, 2.0]}, "2 imputed values for 4 features"),
        ("Normalizer", [F32], {"norm": "L3"}, "no norm 'L3'"),
        ("Scaler", [F32], {"scale": [1.0, 2.0]}, "2 scales for 4 features"),
        ("FeatureVectorizer", [F32], {"inputdimensions": [2, 2]}, "2 widths for 1 inputs"),
        ("LabelEncoder", [TEXT], {"keys_strings": ["a"], "default_int64": 3}, "no keys or no values"),
        ("LabelEncoder", [TEXT], {"keys_strings": ["a"], "values_int64s": [1, 2]}, "1 keys for 2 values"),
        ("CategoryMapper", [TEXT], {"cats_strings": ["a"]}, "1 texts for 0 numbers"),
        ("OneHotEncoder", [TEXT], {"cats_strings": ["a"], "zeros": 0}, "'é' is not one of its 1 categories"),
        ("ZipMap", [F32], {"classlabels_int64s": [1, 2]}, "2 labels for scores of shape"),
        ("CastMap", [{5: 1.0}], {"map_form": "SPARSE", "max_map": 2**60}, "no place in a map of"),
        ("CastMap", [{5: 1.0, -2: 1.0}], {"map_form": "SPARSE", "max_map": 3}, "keys \\[-2\\] ... have no place"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_are_one_clear_error(op, inputs, attrs, words):
    with pytest.raises(ModelError, match=f"node 'n' \\({LEARNED}::{op}\\).*{words}"):
        compute(node(op, **attrs), inputs)


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("kind", ["strings", "floats", "int64s"])
def test_many_whole_labels_are_looked_up_at_once(dtype, kind):
    keys = [7, -3, 2**62, 7, 0]
    values = {
        "strings": list("abcde"),
        "floats": [0.5, 1.5, 2.5, 3.5, 4.5],
        "int64s": [5, 4, 3, 2, 1],
    }
    attrs = {"keys_int64s": keys, f"values_{kind}": values[kind]}
    few = np.array([7, -3, 0, 1, 8, -4], dtype)
    many = np.tile(few, 10).reshape(6, 10)
    model = model_of("LabelEncoder", [many], attrs, opset=2)
    (got,) = on_host(model, [many])
    (want,) = on_host(model, [few])
    np.testing.assert_array_equal(got, np.tile(want, 10).reshape(6, 10), strict=True)
