"""Operators on text, and text as numbers, as onnxruntime has them."""

from __future__ import annotations

import numpy as np
import pytest
from learned import assert_alike, by_onnxruntime, model_of, on_host
from onnx import TensorProto, helper

from clnn.errors import ModelError
from clnn.ops.host.expressions import HAS_RE2
from clnn.ops.host.registry import HostNode, compute


def texts(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


WORDS = texts("Ab", "ab", "CD", "Straße", "éÉ", "İ", "ŉ")
LINES = texts("a b  c", "", " a,b ", "x\ty z", ",,a")
needs_re2 = pytest.mark.skipif(not HAS_RE2, reason="google-re2 is not installed (extra: text)")
UTF8 = {"locale": "C.UTF-8"}
GRAMS = {
    "min_gram_length": 1,
    "max_gram_length": 2,
    "ngram_counts": [0, 2],
    "ngram_indexes": [1, 0, 2, 3],
}

# Runs of any length, as far apart as can be, which no text has.
FAR = {
    "mode": "TF",
    "min_gram_length": 1,
    "max_gram_length": 2**60,
    "max_skip_count": 2**60,
    "ngram_counts": [0],
    "ngram_indexes": [0],
    "pool_strings": ["ab"],
}
# (operator, inputs, attributes, number of outputs)
CASES = [
    ("StringConcat", [WORDS, texts("-")], {}, 1),
    ("StringConcat", [WORDS.reshape(7, 1), texts("x", "ÿ")], {}, 1),
    *(
        ("StringSplit", [LINES], {"delimiter": d, **most}, 2)
        for d in ("", ",", "a,", "  ")
        for most in ({}, {"maxsplit": 0}, {"maxsplit": 2})
    ),
    ("StringSplit", [LINES[:0]], {}, 2),
    ("StringSplit", [LINES[:4].reshape(2, 2)], {}, 2),
    *(
        (
            "StringNormalizer",
            [x],
            {"case_change_action": action, "is_case_sensitive": exact, "stopwords": stops, **UTF8},
            1,
        )
        for x in (WORDS, WORDS[None], WORDS[:1])
        for action in ("NONE", "LOWER", "UPPER")
        for exact in (0, 1)
        for stops in (["ab", "CD"], ["Ab"])
    ),
    *(
        (
            "TfIdfVectorizer",
            [x],
            {"mode": mode, "max_skip_count": skip, "pool_int64s": [2, 3, 5, 4, 3, 5], **GRAMS, **w},
            1,
        )
        for x in (np.array([2, 3, 5, 4, 3, 3]), np.array([[2, 3, 5], [5, 4, 9]], np.int32))
        for mode in ("TF", "IDF", "TFIDF")
        for skip in (0, 2)
        for w in ({}, {"weights": [2.0, 0.5, 3.0, 1.5]})
    ),
    (
        "TfIdfVectorizer",
        [texts("a", "b", "c")],
        {
            "mode": "TF",
            "max_skip_count": 0,
            "pool_strings": ["a", "c", "a", "b", "b", "c"],
            **GRAMS,
        },
        1,
    ),
]


@pytest.mark.parametrize(
    "op,inputs,attrs,outputs", CASES, ids=[f"{k}-{c[0]}" for k, c in enumerate(CASES)]
)
def test_as_onnxruntime_has_it(op, inputs, attrs, outputs):
    model = model_of(op, inputs, attrs, outputs, domain="", opset=20)
    try:
        want = by_onnxruntime(model, inputs)
    except Exception as err:
        if "locale" not in str(err):
            raise
        pytest.skip("this machine has no locale C.UTF-8, which onnxruntime asks for")
    assert_alike(on_host(model, inputs), want)


EXPRESSIONS = ("[a-z]+", "\\w", "a*", "(?i)[A-Z]+", "a|ab", ".", "é|Straße")


@needs_re2
@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("x", [WORDS, LINES, LINES[:4].reshape(2, 2), LINES[1:2], LINES[:0]])
def test_expressions_as_onnxruntime_has_them(expression, x):
    model = model_of("RegexFullMatch", [x], {"pattern": expression}, domain="", opset=20)
    assert_alike(on_host(model, [x]), by_onnxruntime(model, [x]))
    for mark in (0, 1):
        for least in (1,) if expression == "." else (1, 2):
            common = {"mark": mark, "mincharnum": least, "pad_value": "#"}
            for way in ({"tokenexp": expression}, {"separators": [expression, ","]}):
                made = model_of("Tokenizer", [x], common | way, domain="com.microsoft", opset=1)
                assert_alike(on_host(made, [x]), by_onnxruntime(made, [x]))


@needs_re2
def test_characters_are_tokens():
    for x in (WORDS, LINES):
        attrs = {"separators": [""], "mark": 1, "mincharnum": 1, "pad_value": ""}
        model = model_of("Tokenizer", [x], attrs, domain="com.microsoft", opset=1)
        assert_alike(on_host(model, [x]), by_onnxruntime(model, [x]))


@needs_re2
@pytest.mark.parametrize(
    "op,attrs,words",
    [
        ("RegexFullMatch", {"pattern": "[a"}, "no expression of RE2"),
        ("com.microsoft::Tokenizer", {"mark": 0}, "both separators and tokenexp, or neither"),
        ("com.microsoft::Tokenizer", {"tokenexp": "(a"}, "no expression of RE2"),
        ("com.microsoft::Tokenizer", {"tokenexp": "a", "mincharnum": 0}, "at least 0 characters"),
        (
            "com.microsoft::Tokenizer",
            {"tokenexp": ".", "mincharnum": 2},
            "characters are not tokens",
        ),
    ],
)
def test_expressions_that_make_no_sense_are_one_clear_error(op, attrs, words):
    with pytest.raises(ModelError, match=words):
        compute(HostNode(op, 20, attrs, 1, "n"), [WORDS])


def test_counts_of_runs_end_with_the_words():
    (got,) = compute(HostNode("TfIdfVectorizer", 20, FAR), [WORDS])
    np.testing.assert_array_equal(got, [1])
    (none,) = compute(HostNode("TfIdfVectorizer", 20, FAR), [WORDS[:0]])
    np.testing.assert_array_equal(none, [0])


@needs_re2
def test_no_expression_takes_long():
    """One of which a search with retries takes 2^40 steps."""
    node = HostNode("RegexFullMatch", 20, {"pattern": "(a+)+b"})
    (got,) = compute(node, [texts("a" * 40)])
    assert not got[0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "bool"])
def test_numbers_as_text_and_back(dtype):
    reals = [0.1, -0.0, 1e20, 123456789, 3e-9, np.nan, np.inf, -np.inf]
    x = np.array(reals if dtype.startswith("float") else [0, 1, 1]).astype(dtype)
    model = model_of("Cast", [x], {"to": TensorProto.STRING}, domain="", opset=17)
    want = by_onnxruntime(model, [x])
    got = compute(HostNode("Cast", 17, {"to": np.dtype(object)}), [x])
    assert_alike(got, want)
    if dtype == "bool":
        return
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    back = by_onnxruntime(model_of("Cast", want, {"to": kind}, domain="", opset=17), want)
    assert_alike(compute(HostNode("Cast", 17, {"to": np.dtype(dtype)}), got), back)


@pytest.mark.parametrize(
    "op,inputs,attrs,words",
    [
        ("Cast", [texts("one")], {"to": np.dtype(np.float32)}, "could not convert"),
        ("TfIdfVectorizer", [WORDS], FAR | {"ngram_indexes": [-1]}, "go down to -1"),
        ("TfIdfVectorizer", [WORDS], FAR | {"min_gram_length": 0}, "min_gram_length is 0"),
        ("StringNormalizer", [WORDS.reshape(7, 1)], {}, "texts are of shape"),
        ("StringNormalizer", [WORDS], {"case_change_action": "TITLE"}, "no change of case"),
    ],
)
def test_text_that_makes_no_sense_is_one_clear_error(op, inputs, attrs, words):
    with pytest.raises(ModelError, match=f"node 'n' \\({op}\\).*{words}"):
        compute(HostNode(op, 20, attrs, 1, "n"), inputs)
