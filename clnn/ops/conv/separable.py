"""Depthwise separable convolution: one filter per channel, then a 1 x 1 convolution, as one node.

F. Chollet, Xception: Deep Learning with Depthwise Separable Convolutions, 2017 (arXiv:1610.02357).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from clnn.errors import ShapeError
from clnn.layout import TensorLayout, channels_last
from clnn.ops.conv import separable_cpu, separable_workgroup
from clnn.ops.conv.problem import NEAR_WEIGHTS
from clnn.ops.conv.separable_cpu import CACHE_RATE
from clnn.ops.conv.separable_problem import TAPS, WEIGHTS, SeparableProblem
from clnn.ops.conv.spec import Conv2d
from clnn.ops.launch import Arg, In, Launch, Out, Scratch, Variant, by_cost
from clnn.ops.problem import Border, Operand, Problem
from clnn.ops.shared.cache_sets import spread_pitch
from clnn.ops.shared.cycles import EXPOSED, bytes_a_cycle
from clnn.ops.shared.epilogue import post_op_operands
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.shared.workgroup_tiles import second_launch
from clnn.ops.spec import OpSpec, batched
from clnn.records import dataclass
from clnn.types import Array, TensorType

T = TypeVar("T")
OPERANDS = 5  # inputs before those of post-ops
PAIRS = 3  # kernels of each of two launches that are worth a measurement


def per_channel(shape: Sequence[int], of: Sequence[int]) -> bool:
    """Whether an operand of a tensor (n, c, spatial...) has one element per channel."""
    full = (1,) * (len(of) - len(shape)) + tuple(shape)
    return (
        len(full) == len(of) and full[0] in (1, of[0]) and full[1:] == (of[1], *(1,) * len(of[2:]))
    )


@dataclass(frozen=True)
class Separable(OpSpec):
    """Inputs: x (n, c, spatial...), taps (c, 1, kernel...), shift (c) or None, weights (oc, c, 1...),
    bias (oc) or None, operands. Output (n, oc, spatial...).

    Each channel is filtered with its taps, plus its shift, and first_post_ops applied; a 1 x 1
    convolution with weights and bias follows, and `post_ops` of each result. Operands of first_post_ops,
    gates, have one element per channel, of each image or of all.
    """

    window: Window
    first_post_ops: tuple[PostOp, ...] = ()
    post_ops: tuple[PostOp, ...] = ()

    kind = "separable"
    layout_rule = "image"
    fuses_post_ops = True
    supports_narrow_storage = True
    first_operand = OPERANDS

    @property
    def gates(self) -> list[int]:
        """Inputs that first_post_ops read."""
        return post_op_operands(self.first_post_ops)

    def filters(self, channels: int) -> Conv2d:
        """Return the first convolution: inputs x, taps, shift, gates."""
        place = {k: Conv2d.first_operand + at for at, k in enumerate(self.gates)}
        post_ops = tuple(
            s if s.operand is None else replace(s, operand=place[s.operand])
            for s in self.first_post_ops
        )
        return Conv2d(self.window, channels, post_ops)

    def of_filters(self, inputs: Sequence[T]) -> list[T]:
        """Return those of a node's inputs that the first convolution has."""
        return [*inputs[:WEIGHTS], *(inputs[k] for k in self.gates)]

    @property
    def point(self) -> Conv2d:
        """The second convolution: inputs from what the first makes, weights, bias, operands."""
        one, zero = (1,) * len(self.window.kernel), (0,) * len(self.window.kernel)
        moved = OPERANDS - Conv2d.first_operand
        post_ops = tuple(
            s if s.operand is None else replace(s, operand=s.operand - moved) for s in self.post_ops
        )
        return Conv2d(Window(one, one, one, zero, zero), 1, post_ops)

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError where shapes do not fit."""
        x, taps = inputs[0], inputs[TAPS]
        if x is None or taps is None or taps.shape[:2] != (x.shape[1], 1):
            raise ShapeError("a separable convolution needs an input, and one filter per channel.")
        for k in self.gates:
            gate = inputs[k] if k < len(inputs) else None
            if gate is None or not per_channel(gate.shape, x.shape):
                shape = None if gate is None else gate.shape
                raise ShapeError(
                    f"an operand between the convolutions of a separable one is {shape}: it must "
                    f"have one element for each of {x.shape[1]} channels."
                )
        between = self.filters(x.shape[1]).infer(self.of_filters(inputs))
        return self.point.infer([*between, *inputs[WEIGHTS:]])

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return one convolution after the other, in the arrays' own precision."""
        taps = inputs[TAPS]
        assert taps is not None
        between = self.filters(len(taps)).reference(*self.of_filters(inputs))
        return self.point.reference(*between, *inputs[WEIGHTS:])

    def padding_needs(self, inputs: Sequence[TensorType | None]) -> dict[int, Border]:
        """Return a border of zeros as wide as the filters reach."""
        assert inputs[0] is not None
        return {0: self.window.border(inputs[0].shape, 0.0)}

    def needs_border(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the input of the filters."""
        return (0,)

    def needs_neighbours(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the input of the filters."""
        return (0,)

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images of x and of operands that have as many."""
        return self, (0, *batched(inputs, len(self.window.kernel) + 2, self.first_operand))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per multiply-add of both convolutions."""
        taps, weights = inputs[TAPS], inputs[WEIGHTS]
        assert taps is not None and weights is not None
        pixels = outputs[0].size // weights.shape[0]
        return 2 * pixels * (taps.size + weights.size)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one kernel, two kernels, and two that take any layouts."""
        one, (two, last) = islice(self._whole(problem), 1), self._pairs(problem)
        return [*by_cost([*one, two]), last]

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return bands and tiles of one kernel, and the best of two kernels."""
        return by_cost([*self._whole(problem), *self._pairs(problem, every=True)])

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return a single kernel of the same tile, or the pair of the same name."""
        return super().repeat(self._problem(problem), variant)

    def costs(self, problem: Problem, variants: Sequence[Variant]) -> list[float | None]:
        """Return what single kernels of the same tiles would cost."""
        return super().costs(self._problem(problem), variants)

    def _problem(self, problem: Problem) -> SeparableProblem:
        """Return a node as single kernels see it."""
        node = (problem.inputs, problem.outputs, problem.target)
        return SeparableProblem(
            *node, self.window, post_ops=self.post_ops, first_post_ops=self.first_post_ops
        )

    def _whole(self, problem: Problem) -> Iterator[Variant]:
        """Yield the single kernels of the device's kind, best first."""
        conv = self._problem(problem)
        yield from separable_cpu.variants(conv)
        yield from separable_workgroup.variants(conv)

    def _pairs(self, problem: Problem, every: bool = False) -> list[Variant]:
        """Return two kernels one after the other: the best of both and what takes any layout, or several."""
        first, second = self._problems(problem)
        filters, point = self.filters(problem.input(0).type.shape[1]), self.point
        if every:
            ways = filters.candidates(first)[:PAIRS], point.candidates(second)[:PAIRS]
            pairs = [(a, b) for a in ways[0] for b in ways[1]]
        else:
            ways = filters.variants(first), point.variants(second)
            pairs = [(ways[0][0], ways[1][0]), (ways[0][-1], ways[1][-1])]
        return [self._pair(a, b, (first, second)) for a, b in pairs]

    def _problems(self, problem: Problem) -> tuple[Problem, Problem]:
        """Return both convolutions as nodes of their own, with memory between them."""
        x, taps = problem.input(0), tuple(self.of_filters(problem.inputs))
        types = [None if o is None else o.type for o in taps]
        (filtered,) = self.filters(x.type.shape[1]).infer(types)
        pitch = _pair_pitch(x, problem)
        layout = TensorLayout.make(filtered.shape, channels_last(filtered.rank), align={1: pitch})
        between = Operand(filtered, layout, stored=x.stored)
        first = Problem(taps, (between,), problem.target)
        return first, Problem((between, *problem.inputs[WEIGHTS:]), problem.outputs, problem.target)

    def _pair(self, first: Variant, second: Variant, problems: tuple[Problem, Problem]) -> Variant:
        """Return the launches of both, the first's output being the second's first input."""
        between, target = problems[0].outputs[0], problems[0].target

        def again(other: SeparableProblem) -> Variant | None:
            spec = Separable(other.window, other.first_post_ops, other.post_ops)
            ways = spec._problems(other)
            one = spec.filters(other.input(0).type.shape[1]).repeat(ways[0], first)
            two = spec.point.repeat(ways[1], second)
            return one and two and spec._pair(one, two, ways)

        itemsize = between.memory.itemsize
        scratch = Scratch("between", between.layout.size * itemsize, itemsize)
        nbytes, rate = 2 * between.type.size * itemsize, bytes_a_cycle(CACHE_RATE, target)
        moved = nbytes / (rate * target.compute_units)
        moved += _again(problems[1]) if target.is_cpu else second_launch(target)

        def before(arg: Arg) -> Arg:
            if isinstance(arg, In) and arg.index >= Conv2d.first_operand:
                return In(self.gates[arg.index - Conv2d.first_operand], arg.shift)
            return scratch if isinstance(arg, Out) else arg

        def behind(arg: Arg) -> Arg:
            if not isinstance(arg, In):
                return arg
            return In(arg.index + WEIGHTS - 1, arg.shift) if arg.index else scratch

        launches = (*_with_args(first, before), *_with_args(second, behind))
        name = f"{first.name}+{second.name}"
        cost, error = first.cost + second.cost + moved, first.error + second.error
        return Variant(name, launches, cost, error, again=again, unread=first.unread)


def _again(point: Problem) -> float:
    """Return the cycles that weights which do not stay close to a core cost for each image but the first."""
    nbytes, target = point.input(1).type.nbytes, point.target
    if nbytes <= NEAR_WEIGHTS:
        return 0.0
    each = EXPOSED * nbytes / (bytes_a_cycle(CACHE_RATE, target) * target.compute_units)
    return (point.input(0).type.shape[0] - 1) * each


def _with_args(variant: Variant, change: Callable[[Arg], Arg]) -> list[Launch]:
    return [replace(one, args=tuple(map(change, one.args))) for one in variant.launches]


def _pair_pitch(x: Operand, problem: Problem) -> int:
    """Return the distance of pixels between two kernels; tensor cores want whole pieces of 16 bytes."""
    pitch, piece = spread_pitch(x.type.shape[1]), 16 // x.memory.itemsize
    return -(-pitch // piece) * piece if problem.target.tensor_kind(x.memory) else pitch
