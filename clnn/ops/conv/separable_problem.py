"""A depthwise separable convolution as its kernels are made from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import ClassVar

import numpy as np

from clnn.ops.conv.packing import pack_filters
from clnn.ops.conv.problem import ConvProblem, innermost
from clnn.ops.launch import Arg, Const
from clnn.ops.shared.epilogue import post_op_operands
from clnn.ops.shared.functions import PostOp
from clnn.records import dataclass
from clnn.types import Array

TAPS, SHIFT, WEIGHTS, BIAS = 1, 2, 3, 4  # inputs


@dataclass(frozen=True)
class SeparableProblem(ConvProblem):
    """A 1 x 1 convolution of what one filter per channel makes of the input.

    window: of the filters. first_post_ops: behind them; their operands, gates, have one element per
    channel, of each image or of all.
    """

    first_post_ops: tuple[PostOp, ...] = ()

    weights_input: ClassVar[int] = WEIGHTS
    bias_input: ClassVar[int] = BIAS

    @property
    def shift(self) -> Array | None:
        """What is added to the filters' results, a constant, None for nothing."""
        return self.input(SHIFT).const if self.has(SHIFT) else None

    @cached_property
    def gates(self) -> dict[int, tuple[str, int, int]]:
        """Operands of first_post_ops: input -> (type, pitch of images, pitch of channels)."""
        shape, gates = self.input(0).type.shape, {}
        for k in post_op_operands(self.first_post_ops):
            layout = self.input(k).layout.unpadded().broadcast(shape)
            gates[k] = self.input(k).ctype, layout.pitches[0], layout.pitches[1]
        return gates

    @property
    def fits_fast(self) -> bool:
        """Whether all weights are constant, channels innermost and the border in memory.

        Taps must be finite, as they are multiplied with the zeros of borders.
        """
        constant = self.is_constant(TAPS, SHIFT, WEIGHTS, BIAS)
        constant = constant and bool(np.isfinite(self.input(TAPS).largest))
        return constant and innermost(self.src) and self.has_border

    def constants(
        self, pack_weights: Callable[[Array], Array], pack_bias: Callable[[Array], Array]
    ) -> list[Arg]:
        """Return taps, shift, weights and bias as arguments, the last two as functions pack them."""
        taps, shift, weights, bias = self.input(TAPS).const, self.shift, self.weights, self.bias
        assert taps is not None, "taps are computed by another node"
        args: list[Arg] = [self.input(TAPS).packed(lambda: pack_filters(taps))]
        if shift is not None:
            args.append(Const(lambda: shift))
        args.append(self.input(WEIGHTS).packed(lambda: pack_weights(weights)))
        if bias is not None:
            args.append(Const(lambda: pack_bias(bias)))
        return args
