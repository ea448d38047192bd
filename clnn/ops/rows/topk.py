"""The k largest or smallest elements along an axis, in order, with their indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import In, Launch, Out, Scratch, Variant, grid
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.shared.element_types import require
from clnn.ops.shared.loops import collapse, without
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import BOOL, I64, Array, TensorType, normalise_axis

MOST_RANKED = 8192  # elements that are each compared with all others
GROUP = 256  # members
BLOCK, LEAST_SLOTS = 64, 192  # elements that are looked at together, and put aside at least
MOST_NEAR = 1024  # slots in registers


@dataclass(frozen=True)
class TopK(OpSpec):
    """Outputs: values and int64 indices, best first; of equal values the lower index comes first.

    NaN counts as larger than any number.
    """

    count: int
    axis: int
    largest: bool = True

    kind = "topk"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return both output types. Raises ShapeError or DTypeError where the input does not fit."""
        x = required(inputs)
        if not 0 <= self.axis < x.rank:
            raise ShapeError(f"top {self.count} along axis {self.axis} of {x.shape}.")
        if not 0 <= self.count <= x.shape[self.axis]:
            raise ShapeError(
                f"top {self.count} along axis {self.axis} of {x.shape}: there are only "
                f"{x.shape[self.axis]} elements."
            )
        if x.dtype == BOOL:
            raise DTypeError("the largest elements of bool are not defined.")
        shape = tuple(self.count if a == self.axis else d for a, d in enumerate(x.shape))
        return TensorType(shape, x.dtype), TensorType(shape, I64)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the first elements of a stable sort."""
        x = required(inputs)
        _, ranks = np.unique(x, return_inverse=True)  # numpy sorts NaN behind all numbers
        ranks = ranks.reshape(x.shape)
        order = np.argsort(-ranks if self.largest else ranks, axis=self.axis, kind="stable")
        indices = np.take(order, np.arange(self.count), self.axis).astype(np.int64)
        return np.take_along_axis(x, indices, self.axis), indices

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel with a line per work-group, and one with a line per work-item."""
        layouts = [problem.input(0).layout, *(o.layout for o in problem.outputs)]
        ctype = problem.outputs[0].type.dtype.cl
        require(problem.target, "topk", ctype)
        loops = collapse([without(layout, [self.axis]) for layout in layouts])
        params = {
            "name": f"topk_{ctype}_{'largest' if self.largest else 'smallest'}_{self.count}",
            "ctype": ctype,
            "extents": loops.extents,
            "pitches": loops.pitches,
            "length": layouts[0].shape[self.axis],
            "count": self.count,
            "steps": tuple(layout.pitches[self.axis] for layout in layouts),
            "largest": self.largest,
        }
        one = _by_item(problem, params)
        by_group = not problem.target.is_cpu and self.count <= MOST_RANKED
        return [_by_group(problem, params), one] if by_group else [one]


def _by_item(problem: Problem, params: Mapping[str, Any]) -> Variant:
    """Return the variant in which a work-item walks a line."""
    count, lines = params["count"], prod(params["extents"])
    slots = _slots(count)
    apart = slots > MOST_NEAR
    global_size, local = grid(problem.target, lines)
    scratch = _scratch(params["ctype"], lines * slots) if apart else ()
    more = {"slots": slots, "apart": apart, "wg": local}
    args = (In(0), Out(0), Out(1), *scratch)
    launch = Launch("rows/topk.cl.mako", {**params, **more}, args, global_size, local)
    return Variant(str(params["name"]), (launch,))


def _by_group(problem: Problem, params: Mapping[str, Any]) -> Variant:
    """Return the variant in which a work-group walks a line."""
    lines, name = prod(params["extents"]), f"{params['name']}_group"
    group = 1 << (min(GROUP, problem.target.max_work_group).bit_length() - 1)
    scratch = _scratch(params["ctype"], lines * params["count"])
    args = (In(0), Out(0), Out(1), *scratch)
    params = {**params, "name": name, "wg": (group,)}
    launch = Launch("rows/topk_group.cl.mako", params, args, (lines * group,), (group,))
    return Variant(name, (launch,))


def _slots(count: int) -> int:
    """Return how many elements of a line are put aside: not to be cut too often, for short ones too."""
    return -(-max(2 * count, LEAST_SLOTS) // 16) * 16 + BLOCK


def _scratch(ctype: str, elements: int) -> tuple[Scratch, Scratch]:
    wide = 8 if ctype in ("long", "ulong", "double") else 4
    return Scratch("keys", wide * elements, wide), Scratch("places", 4 * elements)


@onnx_op("TopK")
def _topk(node: OnnxNode) -> list[Source]:
    axis = normalise_axis(int(node.attr("axis", -1)), node.type(0).rank)
    count = node.attr("k") if node.opset < 10 else node.const(1, "k").item()
    emit = Emit(TopK(int(count), axis, bool(node.attr("largest", 1))), [0])
    return [emit.out(0), emit.out(1)]
