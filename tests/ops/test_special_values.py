"""NaN, infinities, signed zeros and subnormal numbers in every operator that takes floats.

Where onnxruntime and ONNX's reference evaluator agree about an element, clnn gives the same, but for
what DIFFERS lists with its reason; docs/numerics.md says so. Where they do not agree, NaN propagates.
"""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import clnn

NAN, INF = np.nan, np.inf
X = np.array(
    [
        [NAN, 1, -2, 3, 0, -0.0, INF, -INF],
        [1, NAN, 2, NAN, -1e-40, 1e-40, 30, -30],
        [1, 2, 3, 4, 5, 6, 7, 8],
        [NAN] * 8,
        [INF, -INF, 1, 2, INF, 3, -INF, 0],
        [-INF] * 8,
    ],
    np.float32,
)
IMAGE = np.concatenate([X, X[::-1]]).reshape(1, 2, 6, 8)
VALUES = {
    "x": X,
    "z": np.random.default_rng(1).permutation(X.reshape(-1)).reshape(X.shape),
    "r": np.array([NAN, 0, 1, -1, INF, -INF, 0.5, 2], np.float32),
    "i": IMAGE,
    "b": np.random.default_rng(2).integers(0, 2, X.shape).astype(bool),
    "t": np.array([[0, 0, 0], [1e-40, -1e-41, 0], [1e-30, 2e-30, 0], [1e25, 0, 0]], np.float32),
    "xt": np.ascontiguousarray(X.T),
}
CONSTS = {
    "low": np.float32(-1),
    "high": np.float32(2),
    "nan": np.float32(NAN),
    "rows": np.array([0]),
    "columns": np.array([1]),
    "two": np.array([1, 2], np.float32),
    "eight": np.ones(8, np.float32),
    "k": np.array([3]),
    "axis": np.array(1),
}
UNARY = [
    "Relu",
    "Abs",
    "Neg",
    "Sign",
    "Floor",
    "Ceil",
    "Round",
    "Exp",
    "Log",
    "Sqrt",
    "Reciprocal",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Softplus",
    "Softsign",
    "Elu",
    "Selu",
    "LeakyRelu",
    "HardSigmoid",
    "HardSwish",
    "ThresholdedRelu",
    "Celu",
    "Mish",
    "Gelu",
    "Shrink",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Asinh",
    "Acosh",
    "Atanh",
    "IsNaN",
    "IsInf",
    "Identity",
    "GlobalAveragePool",
]
BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Max",
    "Min",
    "PRelu",
    "Equal",
    "Greater",
    "Less",
    "GreaterOrEqual",
    "LessOrEqual",
]
FOLDS = [
    "ReduceMax",
    "ReduceMin",
    "ReduceSum",
    "ReduceMean",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
]

Case = tuple[str, str, tuple[str, ...], dict[str, object], int]
CASES: list[Case] = [(op, op, ("i" if "Pool" in op else "x",), {}, 1) for op in UNARY]
CASES += [(f"{op}_{y}", op, ("x", y), {}, 1) for op in BINARY for y in "zr"]
CASES += [
    (f"{op}_{a}", op, ("x", a), {"keepdims": 0}, 1) for op in FOLDS for a in ("rows", "columns")
]
for axis in (0, 1):
    for op in ("ArgMax", "ArgMin"):
        for last in (0, 1):
            attrs = {"axis": axis, "keepdims": 0, "select_last_index": last}
            CASES.append((f"{op}_{axis}{last}", op, ("x",), attrs, 1))
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        CASES.append((f"{op}_{axis}", op, ("x",), {"axis": axis}, 1))
    for largest in (0, 1):
        attrs = {"axis": axis, "largest": largest}
        CASES.append((f"TopK_{axis}{largest}", "TopK", ("x", "k"), attrs, 2))
    for p in (1, 2):
        for x in "xt":
            attrs = {"axis": axis, "p": p}
            CASES.append((f"LpNormalization_{axis}{p}{x}", "LpNormalization", (x,), attrs, 1))
for op in ("MaxPool", "AveragePool", "LpPool"):
    CASES.append((op, op, ("i",), {"kernel_shape": [2, 2]}, 1))
    attrs = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    CASES.append((f"{op}_pads", op, ("i",), attrs, 1))
CASES += [
    ("Clip", "Clip", ("x", "low", "high"), {}, 1),
    ("Clip_low", "Clip", ("x", "low"), {}, 1),
    ("Clip_high", "Clip", ("x", "", "high"), {}, 1),
    ("Clip_nan", "Clip", ("x", "nan", "high"), {}, 1),
    ("Clip_crossed", "Clip", ("x", "high", "low"), {}, 1),
    ("ThresholdedRelu_low", "ThresholdedRelu", ("x",), {"alpha": -1.0}, 1),
    ("Gelu_tanh", "Gelu", ("x",), {"approximate": "tanh"}, 1),
    ("Mod", "Mod", ("x", "z"), {"fmod": 1}, 1),
    ("Where", "Where", ("b", "x", "z"), {}, 1),
    ("Sum", "Sum", ("x", "z", "r"), {}, 1),
    ("Mean", "Mean", ("x", "z", "r"), {}, 1),
    ("Max3", "Max", ("x", "z", "r"), {}, 1),
    ("Min3", "Min", ("x", "z", "r"), {}, 1),
    ("CumSum", "CumSum", ("x", "axis"), {}, 1),
    ("GlobalMaxPool", "GlobalMaxPool", ("i",), {}, 1),
    ("LRN", "LRN", ("i",), {"size": 3}, 1),
    ("InstanceNormalization", "InstanceNormalization", ("i", "two", "two"), {}, 1),
    ("LayerNormalization", "LayerNormalization", ("x", "eight"), {}, 1),
    ("BatchNormalization", "BatchNormalization", ("i", "two", "two", "two", "two"), {}, 1),
    ("MatMul", "MatMul", ("x", "xt"), {}, 1),
]
# Of these the peers agree by chance: docs/numerics.md has the reasons.
DIFFERS = {"MaxPool": "NaN propagates", "MaxPool_pads": "NaN propagates"}


def model_of(cases: list[Case]) -> onnx.ModelProto:
    nodes = [
        helper.make_node(op, list(ins), [f"{name}.{k}" for k in range(count)], **attrs)
        for name, op, ins, attrs, count in cases
    ]
    used = {i for _, _, ins, _, _ in cases for i in ins}
    fed = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in VALUES.items()
        if n in used
    ]
    fixed = [numpy_helper.from_array(v, n) for n, v in CONSTS.items() if n in used]
    outs = [onnx.ValueInfoProto(name=o) for node in nodes for o in node.output]
    graph = helper.make_graph(nodes, "special", fed, outs, fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


@cache
def peers(number: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return what onnxruntime and the reference evaluator make of a case, output by output."""
    import onnxruntime

    model = model_of([CASES[number]])
    feeds = {i.name: VALUES[i.name] for i in model.graph.input}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        reference = ReferenceEvaluator(model).run(None, feeds)
    return list(zip(session.run(None, feeds), map(np.asarray, reference), strict=True))


def same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two results agree: NaN with NaN, infinities with themselves, numbers within rounding."""
    if a.dtype.kind != "f":
        return a == b
    with np.errstate(all="ignore"):
        close = np.abs(a - b) <= 1e-5 * np.abs(b) + 1e-6 * (np.abs(b) > 1e-6) + 1e-37
        close &= np.isfinite(a) & np.isfinite(b)
        return (np.isnan(a) & np.isnan(b)) | (a == b) | close


@pytest.fixture(scope="module", params=[False, True], ids=["apart", "fused"])
def results(request, any_device):
    model = model_of(CASES)
    options = clnn.Options(fuse=request.param)
    with clnn.compile_model(model, any_device, options) as session:
        return session(VALUES)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case[0] for case in CASES])
def test_clnn_agrees_with_what_peers_agree_about(results, number):
    name, *_, count = CASES[number]
    wrong = []
    for k in range(count):
        got, (theirs, reference) = results[f"{name}.{k}"], peers(number)[k]
        assert got.shape == theirs.shape == reference.shape
        agreed = same(theirs, reference)
        bad = agreed & ~same(got, theirs)
        if CASES[number][1] == "BatchNormalization":  # scale and shift are one each: see the page
            bad &= np.abs(got - theirs) > 1e-6
        wrong += [(tuple(at), got[tuple(at)], theirs[tuple(at)]) for at in np.argwhere(bad)]
    assert bool(wrong) == (name in DIFFERS), wrong[:5]


@pytest.mark.parametrize("name", ["MaxPool", "MaxPool_pads", "GlobalMaxPool"])
def test_nan_propagates_through_pooling(results, name):
    """A window with a NaN gives NaN; onnxruntime's and the reference's answers hang on its place."""
    (case,) = (c for c in CASES if c[0] == name)
    attrs = case[3] or {"kernel_shape": [6, 8]}
    kernel, pads = attrs["kernel_shape"], attrs.get("pads", [0])[0]
    padded = np.pad(IMAGE, ((0, 0), (0, 0), (pads, pads), (pads, pads)), constant_values=-INF)
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, (2, 3))
    step = attrs.get("strides", [1])[0]
    want = windows[:, :, ::step, ::step].max((-1, -2))
    np.testing.assert_array_equal(results[f"{name}.0"], want)
