"""Which inputs of which operators decide shapes, and which operators only the run can shape."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import onnx

from clnn.importers.onnx.nodes import has_form
from clnn.ops.composed.learned import LINEAR, in_plans
from clnn.ops.composed.trees import has_tables
from clnn.ops.host.registry import host_ops
from clnn.ops.onnx_registry import onnx_importers

# Inputs whose values a plan must know: shapes, sizes, axes, counts. Names are those of host_key.
DECIDING: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "STFT": (1, 3),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **{
        f"Reduce{what}": (1,)
        for what in (
            *("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum"),
            "SumSquare",
        )
    },
    "com.microsoft::ExpandDims": (1,),
    "com.microsoft::GroupQueryAttention": (6,),
    "com.microsoft::Pad": (1,),
    "com.microsoft::Trilu": (1,),
}
MOST_WALKED = 256  # nodes of which is kept whether a kernel walks their trees
_walked: dict[bytes, bool] = {}
CONTROL = ("If", "Loop", "Scan", "SequenceMap")
_BY_DATA = "its output's shape depends on data"
_SEQUENCE = "sequences are lists of tensors"
LEARNED = "ai.onnx.ml"
_OF_LEARNED = "trees, labels and maps are walked on the host"
_TEXT = "text is kept on the host"
# Operators that no plan has, or whose result only the run can shape, and why.
HOST_ONLY = {
    **dict.fromkeys(("NonZero", "NonMaxSuppression", "Unique", "Compress"), _BY_DATA),
    **dict.fromkeys(
        ("Range", "BlackmanWindow", "HammingWindow", "HannWindow"), "its length depends on values"
    ),
    "MelWeightMatrix": "its shape depends on values",
    **dict.fromkeys(
        (
            *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
            "RandomUniformLike",
        ),
        "random numbers are drawn on the host",
    ),
    "ConstantOfShape": "its shape depends on values",
    **dict.fromkeys(
        (
            "ConcatFromSequence",
            "Optional",
            "OptionalGetElement",
            "OptionalHasElement",
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
            "SplitToSequence",
        ),
        _SEQUENCE,
    ),
    **dict.fromkeys(("StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"), _TEXT),
}
SHAPE_OPS = ("Shape", "Size")


def is_standard(node: onnx.NodeProto) -> bool:
    """Whether a node's operator is one of ONNX's own domain."""
    return node.domain in ("", "ai.onnx")


def host_key(node: onnx.NodeProto) -> str:
    """Return the name of a node's operator among those of the host."""
    return node.op_type if is_standard(node) else f"{node.domain}::{node.op_type}"


def why_on_host(node: onnx.NodeProto) -> str:
    """Return why no plan has the operator, or why only the run can shape its result; else ""."""
    if node.domain == LEARNED:
        return "" if _has_kernels(node) else _OF_LEARNED
    return HOST_ONLY.get(node.op_type, "") if is_standard(node) else ""


def _has_kernels(node: onnx.NodeProto) -> bool:
    """Whether kernels compute a node of a fitted model. Kept, for of trees it reads all."""
    if host_key(node) not in onnx_importers():
        return False
    key = sha256(node.SerializeToString()).digest()
    if key not in _walked:
        if len(_walked) >= MOST_WALKED:
            _walked.clear()
        of_tensors = any(a.type == onnx.AttributeProto.TENSOR for a in node.attribute)  # doubles
        attrs = {} if of_tensors else {a.name: _plain(a) for a in node.attribute}
        what = in_plans if node.op_type in LINEAR else has_tables
        _walked[key] = not of_tensors and what(node.op_type, attrs)
    return _walked[key]


def _plain(attribute: onnx.AttributeProto) -> Any:
    """Return numbers or text, or a list of them."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [text.decode("utf-8", "replace") for text in value]
    return value


def has_host_form(node: onnx.NodeProto, opset: int) -> bool:
    """Whether the host computes the operator."""
    return host_key(node) in host_ops() and (not is_standard(node) or has_form(node.op_type, opset))


def has_device_form(node: onnx.NodeProto, opset: int) -> bool:
    """Whether the importer may know the operator; forms of it are told apart at the import."""
    if not is_standard(node):
        return f"{node.domain}::{node.op_type}" in onnx_importers()
    if not has_form(node.op_type, opset):
        return False
    if node.op_type in onnx_importers() or node.op_type in ("Constant", "If"):
        return True
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    return bool(schema.has_function or schema.has_context_dependent_function)


def deciding_inputs(node: onnx.NodeProto) -> list[str]:
    """Return the names of the inputs whose values a plan must know."""
    places = DECIDING.get(host_key(node), ())
    return [node.input[k] for k in places if k < len(node.input) and node.input[k]]
