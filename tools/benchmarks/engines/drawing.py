"""What the inputs of a model take: element types and ranges, read from its file; random arrays of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

# Operators whose result has the elements of their first input, in another type or shape.
PASSING = {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand", "Transpose"}
Draw = tuple[str, int]  # numpy's name of the element type, and one more than the largest integer


def draws(model: Path) -> dict[str, Draw]:
    """Return how each input is drawn: integers that pick rows of a constant below their number.

    Other integers, and booleans, are all 1, as masks of tokens and lengths may be.
    """
    import onnx  # here alone, for the processes of engines draw without it

    graph = onnx.load(model, load_external_data=False).graph
    given = {tensor.name for tensor in graph.initializer}
    found: dict[str, Draw] = {}
    for value in graph.input:
        if value.name not in given:
            element = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            found[value.name] = np.dtype(element).name, _rows(graph, value.name)
    return found


def refusal(given: Mapping[str, Draw]) -> str:
    """Return which input is neither of floats nor of integers, or ''."""
    for name, (element, _) in given.items():
        if np.dtype(element).kind not in "fiub":
            return f"input {name} is {element}; inputs are floats, integers or booleans"
    return ""


def arrays(
    shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Draw], seed: int
) -> dict[str, np.ndarray]:
    """Return random arrays, the same for the same arguments; inputs without a draw are float32."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes.items():
        element, below = given.get(name, ("float32", 0))
        if np.dtype(element).kind == "f":
            made[name] = rng.standard_normal(shape).astype(element)
        elif below:
            made[name] = rng.integers(0, below, shape).astype(element)
        else:
            made[name] = np.ones(shape, element)
    return made


def _rows(graph: GraphProto, name: str) -> int:
    """Return the least number of rows of a constant that this value picks from, 0 if it picks none."""
    rows = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    names, found = {name}, []
    for node in graph.node:
        if node.op_type in PASSING and node.input[0] in names:
            names.update(node.output)
        picks = node.op_type == "Gather" and node.input[1] in names
        if picks and rows.get(node.input[0]):
            found.append(rows[node.input[0]][_axis(node)])
    return min(found, default=0)


def _axis(node: NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "axis"), 0)
