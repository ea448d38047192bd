"""Scans that measure how far each row of a matrix is from all rows of another, as one node.

scikit-learn's neighbours and kernels are exported so: a turn for each row, which costs launches of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper, numpy_helper

from clnn.importers.onnx.limits import default_domain
from clnn.importers.onnx.order import is_ordered
from clnn.importers.onnx.other_nodes import with_other_nodes

MICROSOFT = "com.microsoft"
OLDEST = 9  # operator set of Scan without a batch


def with_distances(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which such Scans are CDist nodes; the model where there are none."""
    opset = {default_domain(o.domain): o.version for o in model.opset_import}.get("ai.onnx", 0)
    if opset < OLDEST:
        return model
    changed = with_other_nodes(model, lambda n: _nodes(n) if _is_distance(n) else None)
    if changed is model:
        return model
    if all(o.domain != MICROSOFT for o in changed.opset_import):
        changed.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return changed


def _nodes(scan: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    state, rows = scan.input
    last, distances = scan.output
    if last:
        yield helper.make_node("Identity", [state], [last], f"{distances}/state")
    turned = f"{distances}/turned"
    yield helper.make_node(
        "CDist", [state, rows], [turned], turned, domain=MICROSOFT, metric="sqeuclidean"
    )
    yield helper.make_node("Transpose", [turned], [distances], f"{distances}/rows", perm=[1, 0])


def _is_distance(node: onnx.NodeProto) -> bool:
    """Whether a Scan carries a matrix as it is, and makes of each row its distances from the matrix's rows."""
    if node.op_type != "Scan" or default_domain(node.domain) != "ai.onnx":
        return False
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    body = attrs.pop("body", None)
    if body is None or attrs.pop("num_scan_inputs", 0) != 1 or any(any(v) for v in attrs.values()):
        return False
    fits = len(node.input) == len(node.output) == len(body.input) == len(body.output) == 2
    fits = fits and bool(node.output[1]) and not body.sparse_initializer and is_ordered(body)
    return fits and _is_sum(body)


def _is_sum(body: onnx.GraphProto) -> bool:
    makers = {name: inner for inner in body.node for name in inner.output}

    def source(name: str) -> str:
        while name in makers and makers[name].op_type == "Identity" and not makers[name].domain:
            name = makers[name].input[0]
        return name

    matrix, row = (value.name for value in body.input)
    total = makers.get(source(body.output[1].name))
    if source(body.output[0].name) != matrix or not _has_ranks(body) or total is None:
        return False
    difference = makers.get(source(total.input[0]))
    if total.op_type != "ReduceSumSquare" or difference is None or difference.op_type != "Sub":
        return False
    given = [source(name) for name in difference.input]
    domains = {default_domain(n.domain) for n in (total, difference)}
    return (
        domains == {"ai.onnx"}
        and sorted(given) == sorted([matrix, row])
        and _along_rows(total, body)
    )


def _has_ranks(body: onnx.GraphProto) -> bool:
    """Whether the body takes a matrix and a row of float32, as far as it says."""
    kinds = [value.type.tensor_type for value in body.input]
    ranks = [len(kind.shape.dim) if kind.HasField("shape") else -1 for kind in kinds]
    return ranks == [2, 1] and all(kind.elem_type == TensorProto.FLOAT for kind in kinds)


def _along_rows(total: onnx.NodeProto, body: onnx.GraphProto) -> bool:
    """Whether a sum is over the second axis, which goes."""
    attrs = {a.name: helper.get_attribute_value(a) for a in total.attribute}
    axes = attrs.get("axes")
    if len(total.input) > 1 and total.input[1]:
        stored = [t for t in body.initializer if t.name == total.input[1]]
        axes = numpy_helper.to_array(stored[0]).reshape(-1).tolist() if stored else None
    return axes in ([1], [-1]) and attrs.get("keepdims", 1) == 0
