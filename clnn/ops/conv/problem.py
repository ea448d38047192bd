"""A convolution as its kernels are made from it; they know it, and nothing of the op."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from clnn.arith._base import FLOAT, Arithmetic
from clnn.codegen.filters import image
from clnn.errors import PlanError
from clnn.layout import TensorLayout
from clnn.ops.problem import Problem
from clnn.ops.shared.byte_scales import stored_types
from clnn.ops.shared.epilogue import heavy, operand_images
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.records import dataclass
from clnn.types import Array

WEIGHTS, BIAS = 1, 2  # inputs
FEW_CHANNELS = 4  # of the input, up to which their order in memory does not matter
NEAR_WEIGHTS = 256 * 1024  # bytes that stay close to a core while pixels move over them
MOST_NEAR_WEIGHTS = 640 * 1024  # the same where there are more bytes of pixels than of weights


def innermost(layout: TensorLayout) -> bool:
    """Whether the channels of a pixel are neighbours."""
    return layout.pitches[1] == 1 or layout.shape[1] == 1


def long_finish(problem: ConvProblem) -> bool:
    """Whether a tile's results take so much code that it should stand once, in a loop over pixels.

    Post-ops may, and so do channels with those of a few other tensors between them.
    """
    pitch = problem.dst.pitches[1]
    return heavy(problem.post_ops) or (type(pitch) is int and 2 <= pitch <= FEW_CHANNELS)


def takes_any_order(channels: int, group: int, arith: Arithmetic) -> bool:
    """Whether there are so few input channels that a tile's reads are the same wherever they lie."""
    return group == 1 and channels <= FEW_CHANNELS and arith is FLOAT


@dataclass(frozen=True)
class ConvProblem(Problem):
    """A convolution: operands with layouts, the target, the window, and what is done with sums.

    Tensors are seen as images (n, c, h, w), with h = 1 where there is one spatial axis. Kernels read
    extents from the properties here, and ask what follows from them, never the operands themselves.
    """

    window: Window
    group: int = 1
    post_ops: tuple[PostOp, ...] = ()
    arith: Arithmetic = FLOAT

    weights_input: ClassVar[int] = WEIGHTS
    bias_input: ClassVar[int] = BIAS
    pool = ""  # how each 2 x 2 results are pooled, see clnn.ops.conv.pooled

    @cached_property
    def src(self) -> TensorLayout:
        """Layout of the input."""
        return image(self.input(0).layout)

    @cached_property
    def dst(self) -> TensorLayout:
        """Layout of the output."""
        return image(self.outputs[0].layout)

    @cached_property
    def operands(self) -> dict[int, tuple[int, TensorLayout]]:
        """Operands of post_ops: input -> (number among them, layout broadcast to dst)."""
        return operand_images(self, self.post_ops)

    @property
    def batch(self) -> int:
        """Images."""
        return self.dst.shape[0]

    @property
    def ic(self) -> int:
        """Input channels of a group."""
        return self.src.shape[1] // self.group

    @property
    def oc(self) -> int:
        """Output channels of a group."""
        return self.dst.shape[1] // self.group

    @property
    def height(self) -> int:
        """Rows of an output image."""
        return self.dst.shape[2]

    @property
    def width(self) -> int:
        """Columns of an output image."""
        return self.dst.shape[3]

    @property
    def taps(self) -> int:
        """Elements of the window."""
        return int(np.prod(self.window.kernel))

    @property
    def reach(self) -> tuple[int, int]:
        """Last row and column of src, border included, counted from its first real one."""
        rows, columns = (self.src.shape[a] + self.src.after[a] - 1 for a in (2, 3))
        return rows, columns

    @property
    def weights(self) -> Array:
        """The weights, where they are constant (fits_fast)."""
        weights = self.input(self.weights_input).const
        assert weights is not None, "weights are computed by another node"
        return weights

    @property
    def bias(self) -> Array | None:
        """The bias, None where there is none or another node computes it."""
        return self.input(self.bias_input).const if self.has(self.bias_input) else None

    def is_constant(self, *inputs: int) -> bool:
        """Whether these inputs, as far as they are given, are constants."""
        return all(self.input(k).const is not None for k in inputs if self.has(k))

    @cached_property
    def refined(self) -> Arithmetic:
        """The arithmetic with what is known of the constants.

        Raises PlanError where it needs constants and there are none.
        """
        if self.is_constant(self.weights_input, self.bias_input):
            return self.arith.refine(self.weights, self.bias)
        if self.arith.plain_bias:
            return self.arith
        raise PlanError(
            f"convolution in {self.arith.name}: weights and bias are computed by other nodes, and "
            "this arithmetic needs them when it is compiled. Give them as constants."
        )

    @cached_property
    def table(self) -> Array | None:
        """The arithmetic's constants per output channel."""
        return self.refined.table(self.weights, self.bias)

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return 0 if self.table is None else len(self.table)

    @cached_property
    def geometry(self) -> dict[str, tuple[int, int]]:
        """The window's kernel, strides, dilations and pads as (y, x)."""
        return self.window.pairs()

    @cached_property
    def storage(self) -> tuple[str, dict[str, Any]]:
        """The result's type, and parameters that say how it and operands are stored."""
        return stored_types(self, self.post_ops)

    @cached_property
    def params(self) -> dict[str, Any]:
        """Template parameters that most kernels of the problem have. Raises PlanError."""
        x, weights = self.input(0), self.input(self.weights_input)
        table = "float" if self.arith.acc == "float" else "int"
        result, stored = self.storage
        return {
            "src": self.src,
            "dst": self.dst,
            **self.geometry,
            "post_ops": self.post_ops,
            "operands": self.operands,
            "arith": self.refined,
            "types": (x.ctype, weights.ctype, table, result),
            **stored,
        }

    @property
    def lanes(self) -> int:
        """How many accumulators fill a vector register."""
        return self.target.vector // 2 if self.arith.acc == "long" else self.target.vector

    @property
    def weights_stay(self) -> bool:
        """Whether all weights stay close to a core while pixels move over them, not the reverse."""
        pixels, weights = self.input(0).type.nbytes, self.input(self.weights_input).type.nbytes
        return weights <= NEAR_WEIGHTS or weights <= min(MOST_NEAR_WEIGHTS, pixels)

    @cached_property
    def has_border(self) -> bool:
        """Whether the input has the border that windows reach."""
        x = self.input(0)
        return x.border.covers(self.window.border(x.type.shape, float(self.arith.fill)))

    @property
    def fits_fast(self) -> bool:
        """Whether weights are constant, and input channels innermost or few: else the reference.

        Weights must be finite, as fast kernels multiply them with the zeros of borders.
        """
        if not self.is_constant(self.weights_input, self.bias_input):
            return False
        if not np.isfinite(self.input(self.weights_input).largest):
            return False
        if self.bias is not None and self.bias.ndim > 1:
            return False
        few = takes_any_order(self.src.shape[1], self.group, self.arith)
        return innermost(self.src) or (few and self.has_border)

    @property
    def fits_depthwise(self) -> bool:
        """Whether there is one filter per channel, and the kernel for that takes the input's layout.

        Operands of steps may have any layout: each element is read once.
        """
        ordered = self.arith.channelwise or self.arith.tapwise
        alone = self.group > 1 and self.ic == self.oc == 1 and not ordered
        return alone and innermost(self.src) and self.has_border

    def label(self, kind: str, extra: str) -> str:
        """Return the name of a kernel."""
        k, s = ("x".join(map(str, v)) for v in (self.window.kernel, self.window.strides))
        return f"{kind}_{self.arith.name}_nhwc_k{k}_s{s}_{extra}"
