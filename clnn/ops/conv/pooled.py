"""A convolution and the pooling of 2 x 2 behind it as one node: what is between need not be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clnn.errors import ShapeError
from clnn.layout import TensorLayout, channels_last
from clnn.ops.conv import winograd_cpu
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.conv.separable_cpu import CACHE_RATE
from clnn.ops.conv.spec import Conv2d
from clnn.ops.launch import Arg, In, Launch, Out, Scratch, Variant, by_cost
from clnn.ops.pool.spec import Pool
from clnn.ops.problem import Border, Operand, Problem
from clnn.ops.shared.cycles import bytes_a_cycle
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import Array, TensorType

SIDE = 2  # of a window that is pooled in registers


def is_pooled(pool: Pool) -> bool:
    """Whether a pooling takes the maximum, or the average, of each 2 x 2 apart, and does no more."""
    win = pool.window
    sides = {*win.kernel, *win.strides}
    plain = sides == {SIDE} and len(win.kernel) == SIDE and set(win.dilations) == {1}
    plain = plain and not any((*win.before, *win.after)) and not win.ceil
    apart = pool.indices or pool.post_ops or pool.rule or pool.order
    return plain and not apart and pool.mode in ("max", "average")


@dataclass(frozen=True)
class PooledProblem(ConvProblem):
    """A convolution of which each 2 x 2 results are pooled: the output is half as high and wide.

    A last row or column that no window holds is not computed.
    """

    pool: str = ""

    @property
    def height(self) -> int:
        """Rows of results that are pooled."""
        return SIDE * self.dst.shape[2]

    @property
    def width(self) -> int:
        """Columns of results that are pooled."""
        return SIDE * self.dst.shape[3]

    def label(self, kind: str, extra: str) -> str:
        """Return the name of a kernel."""
        return f"{super().label(kind, extra)}_{self.pool}{SIDE}x{SIDE}"


@dataclass(frozen=True)
class PooledConv(OpSpec):
    """Inputs of `conv`, a convolution of images whose steps have no operands; output that of `pool` behind it."""

    conv: Conv2d
    pool: Pool

    kind = "pooled_conv"
    layout_rule = "image"
    supports_narrow_storage = True

    def between(self, inputs: Sequence[TensorType | None]) -> TensorType:
        """Return the type of what is pooled. Raises ShapeError where shapes do not fit."""
        return self.conv.infer(inputs)[0]

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError where shapes do not fit."""
        made = self.between(inputs)
        if min(made.shape[2:]) < SIDE:
            raise ShapeError(f"results of {made.shape} hold no window of {SIDE} x {SIDE}.")
        return self.pool.infer([made])

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return one after the other, in the arrays' own precision."""
        return self.pool.reference(*self.conv.reference(*inputs))

    def padding_needs(self, inputs: Sequence[TensorType | None]) -> dict[int, Border]:
        """Return the border of the convolution."""
        return self.conv.padding_needs(inputs)

    def needs_border(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return what the convolution says."""
        return self.conv.needs_border(inputs)

    def needs_neighbours(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return what the convolution says."""
        return self.conv.needs_neighbours(inputs)

    def accepts_nchw(self, inputs: Sequence[TensorType | None]) -> bool:
        """Return what the convolution says."""
        return self.conv.accepts_nchw(inputs)

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Operations of both."""
        between = [self.between(inputs)]
        return self.conv.flops(inputs, between) + self.pool.flops(between, outputs)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one kernel where there is one, two kernels, and two that take any layouts."""
        one = winograd_cpu.variants(self._problem(problem))
        two, last = self._pairs(problem)
        return [*by_cost([*list(one)[:1], two]), last]

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return tiles of one kernel, and two kernels."""
        return by_cost([*winograd_cpu.variants(self._problem(problem)), *self._pairs(problem)])

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return a single kernel of the same tile, or the pair of the same name."""
        return super().repeat(self._problem(problem), variant)

    def costs(self, problem: Problem, variants: Sequence[Variant]) -> list[float | None]:
        """Return what single kernels of the same tiles would cost."""
        return super().costs(self._problem(problem), variants)

    def _problem(self, problem: Problem) -> PooledProblem:
        """Return a node as single kernels see it."""
        conv, node = self.conv, (problem.inputs, problem.outputs, problem.target)
        return PooledProblem(
            *node, conv.window, conv.group, conv.post_ops, conv.arith, pool=self.pool.mode
        )

    def _pairs(self, problem: Problem) -> list[Variant]:
        """Return two kernels one after the other: the best of both, and what takes any layout."""
        x = problem.input(0)
        made = self.between([None if o is None else o.type for o in problem.inputs])
        layout = TensorLayout.make(made.shape, channels_last(made.rank))
        between = Operand(made, layout, stored=x.stored)
        first = self.conv.variants(Problem(problem.inputs, (between,), problem.target))
        second = self.pool.variants(Problem((between,), problem.outputs, problem.target))
        rate = bytes_a_cycle(CACHE_RATE, problem.target) * problem.target.compute_units
        return [
            _pair(a, b, between, rate) for a, b in ((first[0], second[0]), (first[-1], second[-1]))
        ]


def _pair(first: Variant, second: Variant, between: Operand, rate: float) -> Variant:
    """Return the launches of both, the first's output being the second's input.

    rate: bytes of it that are written or read in a cycle.
    """
    itemsize = between.memory.itemsize
    scratch = Scratch("between", between.layout.size * itemsize, itemsize)
    launches = (*_with(first, Out, scratch), *_with(second, In, scratch))
    cost = first.cost + second.cost + 2 * between.type.size * itemsize / rate
    return Variant(f"{first.name}+{second.name}", launches, cost, first.error + second.error)


def _with(variant: Variant, kind: type[Arg], scratch: Scratch) -> list[Launch]:
    """Return launches with scratch memory for arguments of a kind."""

    def change(arg: Arg) -> Arg:
        return scratch if isinstance(arg, kind) else arg

    return [replace(one, args=tuple(map(change, one.args))) for one in variant.launches]
