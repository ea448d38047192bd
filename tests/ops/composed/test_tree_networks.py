"""Ensembles of trees as networks: the device's, or the host's where tables do not hold them, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from learned import MODES, assert_alike, by_onnxruntime, ensemble, model_of

import clnn
from clnn.importers.onnx.stages.deciding import why_on_host
from clnn.ops.composed import trees
from clnn.runtime.stages.session import StagedSession

POSTS = ("NONE", "LOGISTIC", "SOFTMAX")
LABELS = {2: [5, 7], 3: [9, 4, 6]}
COUNTS = (1, 5, 40, 12)


def open_model(op, attrs, features, n_outputs=1):
    made = model_of(op, [np.zeros((1, features), np.float32)], attrs, n_outputs)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    return made


def rows(count, features, seed, dtype=np.float32):
    """Halves, so that they hit splits, with NaN."""
    rng = np.random.default_rng(seed)
    x = (rng.integers(-3, 4, (count, features)) / 2).astype(dtype)
    if dtype == np.float32 and seed % 2:
        x[rng.integers(count), rng.integers(features)] = np.nan
    return x


def is_on_device(proto):
    return not any(why_on_host(node) for node in proto.graph.node)


def check(device, proto, features):
    with clnn.compile_model(proto, device) as session:
        assert isinstance(session, StagedSession) is not is_on_device(proto)
        for count in COUNTS:
            x = rows(count, features, count)
            assert_alike(session.run(None, {"i0": x}), by_onnxruntime(proto, [x]))


@pytest.mark.parametrize("seed", range(8))
def test_regressors(device, seed):
    rng = np.random.default_rng(seed)
    features, targets = int(rng.integers(1, 5)), 1 + seed % 3
    attrs = ensemble(rng, "target", range(targets), features, MODES[seed % 6 :][:1])
    attrs["n_targets"] = targets
    attrs["aggregate_function"] = ("SUM", "AVERAGE")[seed % 2]
    attrs["post_transform"] = POSTS[seed % 3]
    if seed % 4 < 2:
        attrs["base_values"] = rng.standard_normal(targets).tolist()
    check(device, open_model("TreeEnsembleRegressor", attrs, features), features)


@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("columns", [(0,), (1,), (0, 1), (0, 1, 2)])
def test_classifiers(device, post, columns):
    labels = 2 if max(columns) < 2 else 3
    for seed in range(3):
        rng = np.random.default_rng(seed)
        attrs = ensemble(rng, "class", columns, 3, MODES[:1], positive=seed == 1)
        attrs["post_transform"], attrs["classlabels_int64s"] = post, LABELS[labels]
        if seed != 1:
            attrs["base_values"] = rng.standard_normal(1 if labels == 2 else 3).tolist()
        check(device, open_model("TreeEnsembleClassifier", attrs, 3, 2), 3)


def test_what_tables_hold():
    """The forms that scikit-learn, LightGBM and XGBoost are exported in; others are the host's."""
    rng = np.random.default_rng(2)
    trees = ensemble(rng, "class", (0,), 3, MODES[:1])
    one = {**trees, "classlabels_int64s": [0, 1], "post_transform": "LOGISTIC"}
    assert is_on_device(open_model("TreeEnsembleClassifier", one, 3, 2))
    for change in (
        {"post_transform": "PROBIT"},
        {"classlabels_int64s": [1]},
        {"base_values": [0.5, 0.25]},
        {
            "nodes_modes": [
                m if m == "LEAF" else MODES[k % 2] for k, m in enumerate(trees["nodes_modes"])
            ]
        },
    ):
        assert not is_on_device(open_model("TreeEnsembleClassifier", {**one, **change}, 3, 2))


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_features_of_other_types(device, dtype):
    """Whole numbers are made float32; doubles are the host's."""
    attrs = ensemble(np.random.default_rng(3), "target", (0,), 3, MODES[:1])
    attrs["n_targets"] = 1
    proto = model_of("TreeEnsembleRegressor", [np.zeros((7, 3), dtype)], attrs)
    x = rows(7, 3, 1, dtype)
    with clnn.compile_model(proto, device) as session:
        assert isinstance(session, StagedSession) is (dtype == np.float64)
        got = session.run(None, {"i0": x})
    if dtype == np.float64:
        assert_alike(got, by_onnxruntime(proto, [x]))
    else:
        whole = model_of("TreeEnsembleRegressor", [x.astype(np.float32)], attrs)
        assert_alike(got, by_onnxruntime(whole, [x.astype(np.float32)]))


def test_labels_of_text(device):
    """Trees are walked on the device, labels looked up behind it."""
    attrs = ensemble(np.random.default_rng(5), "class", (0, 1, 2), 3, MODES[:1])
    attrs["classlabels_strings"], attrs["base_values"] = ["a", "ü", "c"], [0.5, 0.25, 0.0]
    proto = open_model("TreeEnsembleClassifier", attrs, 3, 2)
    with clnn.compile_model(proto, device) as session:
        assert len(session.stages) == 1
        for count in COUNTS:
            x = rows(count, 3, count)
            assert_alike(session.run(None, {"i0": x}), by_onnxruntime(proto, [x]))


def test_trees_are_read_once(any_device, monkeypatch):
    """For all shapes, and for who asks whether there is a kernel."""
    read, reads = trees._read, []

    def noted(op_type, attrs):
        reads.append(op_type)
        return read(op_type, attrs)

    monkeypatch.setattr(trees, "_read", noted)
    monkeypatch.setattr(trees, "_reads", {})
    attrs = ensemble(np.random.default_rng(77), "target", (0,), 4, MODES[:1])
    proto = open_model("TreeEnsembleRegressor", attrs | {"n_targets": 1}, 4)
    with clnn.compile_model(proto, any_device, clnn.Options(specialise="background")) as session:
        for count in (1, 6, 40):
            x = rows(count, 4, 2 * count)
            assert_alike(session.run(None, {"i0": x}), by_onnxruntime(proto, [x]))
    assert len(reads) == 1


def test_what_is_said_of_two_ensembles_differs():
    one = {"ids": [1, 2], "values": [1.0, 2.0], "names": ["a"]}
    others = [
        {"ids": [1, 3]},
        {"ids": [1.0, 2.0]},
        {"values": [1.0]},
        {"names": ["b"]},
        {"more": 1},
    ]
    said = [trees._said(one | other) for other in ({}, *others)]
    assert len({*said}) == len(said) and said[0] == trees._said(dict(one))
