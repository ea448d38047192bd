"""Ensembles of trees, linear models and support vectors give what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import pytest
from learned import MODES, assert_alike, by_onnxruntime, ensemble, model_of, on_host
from onnx import TensorProto, helper

from clnn.errors import ModelError

POSTS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")


def rows(rng, features, dtypes=("float32", "float64", "int64", "int32")):
    """Halves, so that they hit splits, with a NaN at times."""
    dtype = str(rng.choice(dtypes))
    x = rng.integers(-3, 4, (int(rng.choice([1, 3, 40])), features)) / 2
    if "float" in dtype and rng.random() < 0.4:
        x.reshape(-1)[rng.integers(x.size)] = np.nan
    return (x if "float" in dtype else x * 2).astype(dtype)


def compare(model, inputs, post):
    got, want = on_host(model, inputs), by_onnxruntime(model, inputs)
    if post == "PROBIT":  # onnxruntime leaves the second column of a single sum as memory has it
        got, want = ([a[:, :1] if a.ndim == 2 else a for a in some] for some in (got, want))
    assert_alike(got, want)


@pytest.mark.parametrize("seed", range(60))
def test_regressors(seed):
    rng = np.random.default_rng(seed)
    features, targets = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    modes = MODES if rng.random() < 0.5 else MODES[:1]
    attrs = ensemble(rng, "target", range(targets), features, modes)
    attrs["n_targets"] = targets
    attrs["aggregate_function"] = ("SUM", "AVERAGE", "MIN", "MAX")[seed % 4]
    attrs["post_transform"] = POSTS[seed // 4 % 5]
    if rng.random() < 0.5:
        attrs["base_values"] = rng.standard_normal(targets).tolist()
    x = rows(rng, features, ("float32", "float64"))
    compare(model_of("TreeEnsembleRegressor", [x], attrs), [x], attrs["post_transform"])


@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("columns", [(0,), (1,), (0, 1), (0, 1, 2), (1, 2)])
@pytest.mark.parametrize("base", [0, 1, 2])
def test_classifiers(post, columns, base):
    labels = 2 if max(columns) < 2 else 3
    if base == 1 and labels == 3:
        base = 3
    for seed in range(4):
        rng = np.random.default_rng(seed)
        attrs = ensemble(rng, "class", columns, 3, MODES, positive=seed % 2 == 0)
        attrs["post_transform"] = post
        if seed < 2:
            attrs["classlabels_int64s"] = [5, 7, 3][:labels]
        else:
            attrs["classlabels_strings"] = ["a", "b", "ç"][:labels]
        if base:
            attrs["base_values"] = rng.standard_normal(labels if base > 1 else 1).tolist()
        x = rows(rng, 3)
        compare(model_of("TreeEnsembleClassifier", [x], attrs, 2), [x], post)


def test_a_classifier_of_one_label():
    rng = np.random.default_rng(1)
    attrs = ensemble(rng, "class", (0,), 2)
    attrs["classlabels_int64s"] = [9]
    x = rows(rng, 2)
    compare(model_of("TreeEnsembleClassifier", [x], attrs, 2), [x], "NONE")


def test_many_leaves_of_many_classes_need_no_table(monkeypatch):
    monkeypatch.setattr("clnn.ops.host.ml.ensembles._LARGEST_TABLE", 1)
    for post in ("NONE", "SOFTMAX"):
        rng = np.random.default_rng(3)
        attrs = ensemble(rng, "class", (0, 1, 2), 3)
        attrs.update(classlabels_int64s=[1, 2, 3], post_transform=post)
        x = rows(rng, 3)
        compare(model_of("TreeEnsembleClassifier", [x], attrs, 2), [x], post)


def version_five(rng, dtype):
    """Return the attributes of a random TreeEnsemble: branches and leaves in lists of their own."""
    branches, leaves, members, roots = [], [], [], []

    def leaf():
        leaves.append((float(rng.standard_normal()), int(rng.integers(2))))
        return len(leaves) - 1

    def grow(depth):
        mode = int(rng.integers(7))
        row = {"mode": mode, "feature": int(rng.integers(2)), "split": float(rng.integers(-2, 3))}
        place = len(branches)
        branches.append(row)
        row["members"] = rng.permutation(5)[: int(rng.integers(1, 4))] - 2.0 if mode == 6 else []
        for way in ("true", "false"):
            inner = depth and rng.random() < 0.7
            row[way] = (grow(depth - 1), 0) if inner else (leaf(), 1)
        return place

    for _ in range(int(rng.integers(1, 4))):
        roots.append(grow(int(rng.integers(0, 4))))
    for row in branches:
        members += [*row["members"], float("nan")] if row["mode"] == 6 else []
    real = TensorProto.FLOAT if dtype == "float32" else TensorProto.DOUBLE

    def tensor(name, values, kind=real):
        return helper.make_tensor(name, kind, [len(values)], values)

    attrs = {
        "nodes_modes": tensor("m", [b["mode"] for b in branches], TensorProto.UINT8),
        "nodes_featureids": [b["feature"] for b in branches],
        "nodes_splits": tensor("s", [b["split"] for b in branches]),
        "leaf_weights": tensor("w", [w for w, _ in leaves]),
        "leaf_targetids": [t for _, t in leaves],
        "tree_roots": roots,
        "n_targets": 2,
    }
    for way in ("true", "false"):
        attrs[f"nodes_{way}nodeids"] = [b[way][0] for b in branches]
        attrs[f"nodes_{way}leafs"] = [b[way][1] for b in branches]
    if members:
        attrs["membership_values"] = tensor("v", members)
    return attrs


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how", range(4))
def test_ensembles_with_members(dtype, how):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        attrs = version_five(rng, dtype)
        attrs.update(aggregate_function=how, post_transform=3 if seed % 2 else 0)
        if seed > 3:
            attrs["nodes_missing_value_tracks_true"] = [1] * len(attrs["nodes_featureids"])
        x = rows(rng, 2, (dtype,)) * 2  # onnxruntime takes 0.5 for a member of {0}
        compare(model_of("TreeEnsemble", [x], attrs, opset=5), [x], "")


@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_linear_models(post, classes):
    for dtype in ("float32", "float64", "int64", "int32"):
        rng = np.random.default_rng(classes)
        x = (rng.standard_normal((5, 3)) * 3).astype(dtype)
        attrs = {
            "coefficients": rng.standard_normal(classes * 3).tolist(),
            "intercepts": rng.standard_normal(classes).tolist(),
            "post_transform": post,
        }
        if (classes, post) == (1, "PROBIT"):
            continue  # onnxruntime reads what it has written already
        labels = {"classlabels_ints": [4, 2, 9][: max(2, classes)]}
        compare(model_of("LinearClassifier", [x], {**attrs, **labels}, 2, opset=1), [x], post)
        texts = {"classlabels_strings": ["a", "b", "c"][: max(2, classes)]}
        compare(model_of("LinearClassifier", [x], {**attrs, **texts}, 2, opset=1), [x], post)
        if dtype == "float32":
            regressor = {**attrs, "targets": classes}
            compare(model_of("LinearRegressor", [x], regressor, opset=1), [x], post)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_support_vector_classifiers(kernel, post, classes):
    for way in ("votes", "probabilities", "linear"):
        rng = np.random.default_rng(classes)
        x = rng.standard_normal((6, 3)).astype(np.float32)
        pairs, counts = classes * (classes - 1) // 2, rng.integers(1, 4, classes).tolist()
        vectors = sum(counts)
        attrs = {
            "kernel_type": kernel,
            "kernel_params": [0.5, 0.25, 2.0],
            "post_transform": post,
            "classlabels_ints": [4, 2, 9, 0][:classes],
            "coefficients": rng.standard_normal((classes - 1) * vectors).tolist(),
            "rho": rng.standard_normal(pairs).tolist(),
        }
        if way == "linear":
            attrs.update(coefficients=rng.standard_normal(classes * 3).tolist(), rho=[0.3])
        else:
            attrs["vectors_per_class"] = counts
            attrs["support_vectors"] = rng.standard_normal(vectors * 3).tolist()
        if way == "probabilities":
            attrs["prob_a"] = (-np.abs(rng.standard_normal(pairs))).tolist()
            attrs["prob_b"] = rng.standard_normal(pairs).tolist()
        compare(model_of("SVMClassifier", [x], attrs, 2, opset=1), [x], post)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("vectors,one", [(5, 0), (5, 1), (0, 0), (0, 1)])
def test_support_vector_regressors(kernel, vectors, one):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((6, 3)).astype(np.float32)
    attrs = {
        "kernel_type": kernel,
        "kernel_params": [0.5, 0.25, 3.0],
        "n_supports": vectors,
        "one_class": one,
        "coefficients": rng.standard_normal(vectors or 3).tolist(),
        "rho": [0.2],
    }
    if vectors:
        attrs["support_vectors"] = rng.standard_normal(vectors * 3).tolist()
    compare(model_of("SVMRegressor", [x], attrs, opset=1), [x], "NONE")


def stump(**changes):
    attrs = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
        "n_targets": 1,
    }
    return {**attrs, **changes}


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"nodes_truenodeids": [0, 0, 0]}, "has a cycle"),
        ({"nodes_truenodeids": [9, 0, 0]}, "leads to a node that is not there"),
        ({"nodes_falsenodeids": [-1, 0, 0]}, "leads to a node that is not there"),
        ({"nodes_featureids": [2, 0, 0]}, "feature 2 of 2"),
        ({"nodes_featureids": [-1, 0, 0]}, "feature below 0"),
        ({"nodes_modes": ["BRANCH", "LEAF", "LEAF"]}, "BRANCH.* are unknown"),
        ({"nodes_modes": ["BRANCH_LEQ"]}, "1 modes for 3 nodes"),
        ({"nodes_values": [0.5]}, "nodes_values has 1 entries for 3"),
        ({"nodes_nodeids": [0, 1, 1]}, "two nodes of a tree have one id"),
        ({"target_nodeids": [1, 7]}, "a weight belongs to a node that is not there"),
        ({"target_ids": [0, 4]}, "columns 0 to 4 of 1"),
        ({"base_values": [1.0, 2.0]}, "2 base values for 1 columns"),
        ({"post_transform": "SQUARE"}, "no post transform 'SQUARE'"),
        ({"aggregate_function": "MEDIAN"}, "no aggregate function 'MEDIAN'"),
    ],
)
def test_trees_that_make_no_sense_are_one_clear_error(changes, words):
    x = np.zeros((2, 2), np.float32)
    model = model_of("TreeEnsembleRegressor", [x], stump(**changes))
    with pytest.raises(ModelError, match=f"node 'n' .*{words}"):
        on_host(model, [x])


def test_features_are_one_or_two_axes():
    x = np.zeros((2, 2, 2), np.float32)
    with pytest.raises(ModelError, match=r"\(n, features\), not of 3 axes"):
        on_host(model_of("TreeEnsembleRegressor", [x], stump()), [x])
    (got,) = on_host(model_of("TreeEnsembleRegressor", [x], stump()), [x[0, 0]])
    np.testing.assert_array_equal(got, [[1.0]])
