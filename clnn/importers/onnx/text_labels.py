"""Classifiers whose labels are text, as such that tell a label's place, and a look-up behind them.

So the device computes them; text is kept on the host.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper

from clnn.importers.onnx.other_nodes import with_other_nodes

LEARNED = "ai.onnx.ml"
# Of classifiers: which attribute has labels that are numbers.
CLASSIFIERS = {
    "TreeEnsembleClassifier": "classlabels_int64s",
    "LinearClassifier": "classlabels_ints",
}


def with_places(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which no such classifier has labels of text; the model where none has."""
    return with_other_nodes(model, lambda n: _nodes(n) if _texts(n) else None)


def _texts(node: onnx.NodeProto) -> list[bytes]:
    """Return the labels of a classifier, where they are two texts or more and something reads them."""
    if node.domain != LEARNED or node.op_type not in CLASSIFIERS or not node.output[:1]:
        return []
    numbers = any(a.name == CLASSIFIERS[node.op_type] and a.ints for a in node.attribute)
    found = [list(a.strings) for a in node.attribute if a.name == "classlabels_strings"]
    return found[0] if found and len(found[0]) > 1 and node.output[0] and not numbers else []


def _nodes(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    texts, label = _texts(node), node.output[0]
    numbers = list(range(len(texts)))
    places = onnx.NodeProto()
    places.CopyFrom(node)
    del places.attribute[:]
    places.attribute.extend(a for a in node.attribute if a.name != "classlabels_strings")
    places.attribute.append(helper.make_attribute(CLASSIFIERS[node.op_type], numbers))
    places.output[0] = f"{label}/place"
    yield places
    yield helper.make_node(
        "LabelEncoder",
        [f"{label}/place"],
        [label],
        f"{label}/text",
        domain=LEARNED,
        keys_int64s=numbers,
        values_strings=texts,
    )
