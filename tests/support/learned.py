"""Nodes of domain ai.onnx.ml run by onnxruntime and on the host; random trees for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from reference_engines import exact_session

from clnn.importers.onnx.limits import Budget
from clnn.importers.onnx.scope import attribute_value
from clnn.importers.onnx.tensors import TensorReader
from clnn.ops.host.registry import HostNode, compute

LEARNED = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def model_of(
    op: str,
    inputs: Sequence[Any],
    attrs: Mapping[str, Any],
    n_outputs: int = 1,
    domain: str = LEARNED,
    opset: int = 3,
) -> onnx.ModelProto:
    """Return a model of one node; opset: of the domain."""
    node = helper.make_node(
        op,
        [f"i{k}" for k in range(len(inputs))],
        [f"o{k}" for k in range(n_outputs)],
        domain=domain,
        **attrs,
    )
    fed = [
        helper.make_tensor_value_info(f"i{k}", _element(a), list(a.shape))
        for k, a in enumerate(inputs)
    ]
    made = [onnx.ValueInfoProto(name=f"o{k}") for k in range(n_outputs)]
    sets = [helper.make_opsetid("", 20 if domain else opset)]
    sets += [helper.make_opsetid(domain, opset)] if domain else []
    graph = helper.make_graph([node], "one", fed, made)
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def _element(array: np.ndarray) -> int:
    if array.dtype == object:
        return onnx.TensorProto.STRING
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def by_onnxruntime(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    """Return onnxruntime's outputs."""
    session = exact_session(model.SerializeToString())
    return session.run(None, {f"i{k}": a for k, a in enumerate(inputs)})


def on_host(model: onnx.ModelProto, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return what the host computes for the model's only node."""
    (node,) = model.graph.node
    reader = TensorReader(None, Budget())
    attrs = {a.name: attribute_value(a, reader) for a in node.attribute}
    name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return compute(HostNode(name, 20, attrs, len(node.output), "n"), list(inputs))


def assert_alike(got: Sequence[Any], want: Sequence[Any], tolerance: float = 1e-5) -> None:
    """Check types, shapes and values; numbers of reals within a tolerance."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if b.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, b)


def ensemble(
    rng: np.random.Generator,
    what: str,
    columns: Sequence[int],
    features: int,
    modes: Sequence[str] = MODES,
    positive: bool = False,
) -> dict[str, list[Any]]:
    """Return the attributes of random trees whose leaves weigh some of `columns`, at least one each."""
    nodes: dict[str, list[Any]] = {}
    leaves: dict[str, list[Any]] = {}
    for tree in range(int(rng.choice([1, 3, 20]))):
        _tree(rng, tree, features, modes, nodes)
        ids = [
            k
            for t, k, mode in zip(nodes["treeids"], nodes["nodeids"], nodes["modes"], strict=True)
            if t == tree and mode == "LEAF"
        ]
        for leaf in ids:
            chosen = rng.permutation(columns)[: int(rng.integers(1, len(columns) + 1))]
            for column in chosen.tolist():
                weight = float(np.float32(rng.standard_normal()))
                row = (tree, leaf, int(column), abs(weight) if positive else weight)
                _append(leaves, ("treeids", "nodeids", "ids", "weights"), row)
    found = {f"nodes_{name}": values for name, values in nodes.items()}
    found.update({f"{what}_{name}": values for name, values in leaves.items()})
    return found


FIELDS = (
    *("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids"),
    "missing_value_tracks_true",
)


def _tree(
    rng: np.random.Generator,
    tree: int,
    features: int,
    modes: Sequence[str],
    nodes: dict[str, list[Any]],
) -> None:
    todo, count = [(0, int(rng.integers(0, 5)))], 1
    while todo:
        number, depth = todo.pop(0)
        if depth and rng.random() < 0.8:
            split = float(rng.integers(-2, 3)) / 2
            row = (int(rng.integers(features)), split, str(rng.choice(modes)), count, count + 1)
            _append(nodes, FIELDS, (tree, number, *row, int(rng.random() < 0.3)))
            todo += [(count, depth - 1), (count + 1, depth - 1)]
            count += 2
        else:
            _append(nodes, FIELDS, (tree, number, 0, 0.0, "LEAF", 0, 0, 0))


def _append(table: dict[str, list[Any]], names: Sequence[str], row: Sequence[Any]) -> None:
    for name, value in zip(names, row, strict=True):
        table.setdefault(name, []).append(value)
