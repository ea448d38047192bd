"""Transposed convolutions whose windows do not overlap, by tiles of registers (x86's AMX).

Each tap makes a phase of the output, as a convolution of one pixel does whose results lie `strides` apart.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clnn.layout import TensorLayout
from clnn.ops.conv import amx
from clnn.ops.conv.packing import by_output
from clnn.ops.conv.problem import BIAS, WEIGHTS, ConvProblem
from clnn.ops.conv.transpose_phases import TransposeProblem
from clnn.ops.launch import Arg, Launch, Out, Variant
from clnn.ops.problem import Operand
from clnn.ops.shared.amx import how, products
from clnn.ops.shared.epilogue import post_op_operands
from clnn.ops.shared.window import Window
from clnn.traced import is_open
from clnn.types import TensorType

MOST_TAPS = 16  # each of which is a launch


def amx_variants(problem: TransposeProblem) -> list[Variant]:
    """Return the launches of all phases; none where tiles do not take them, or a post-op has an operand."""
    x, weights = problem.input(0), problem.input(WEIGHTS)
    kind = products(x.memory, weights.memory) if how(problem.target) else ""
    extents = (*x.type.shape, *problem.outputs[0].type.shape)
    if kind != "bf16" or problem.group != 1 or any(map(is_open, extents)):
        return []
    if problem.taps > MOST_TAPS or not _is_apart(problem):
        return []
    finite = np.isfinite(weights.largest)
    if not finite or not problem.is_constant(WEIGHTS, BIAS) or not problem.outputs[0].type.size:
        return []
    launches: list[Launch] = []
    cost, name = 0.0, ""
    for row in range(problem.geometry["kernel"][0]):
        for column in range(problem.geometry["kernel"][1]):
            phase, shift = _phase(problem, row, column)
            best = next(amx.variants(phase), None)
            if best is None:
                return []
            (launch,) = best.launches
            args = tuple(_moved(arg, shift) for arg in launch.args)
            launches.append(replace(launch, args=args))
            cost, name = cost + best.cost, best.name
    return [Variant(problem.name("amx_" + name.partition("_bf16_")[2]), tuple(launches), cost)]


def _is_apart(problem: TransposeProblem) -> bool:
    """Whether each output is made of one tap alone, and each tap of each pixel makes one."""
    window, x, out = problem.window, problem.input(0).type, problem.outputs[0].type
    whole = all(
        e == s * i for e, s, i in zip(out.shape[2:], window.strides, x.shape[2:], strict=True)
    )
    plain = set(window.dilations) == {1} and not any(window.before)
    alone = plain and whole and window.kernel == window.strides
    return alone and not post_op_operands(problem.post_ops)


def _phase(problem: TransposeProblem, row: int, column: int) -> tuple[ConvProblem, int]:
    """Return the convolution of a tap, and how far its output lies behind the first one's."""
    given, out, rank = problem.input(WEIGHTS), problem.outputs[0], len(problem.window.kernel)
    ones, zeros = (1,) * rank, (0,) * rank
    taps = (row, column)[2 - rank :]
    place: tuple[slice | int, ...] = (slice(None), slice(None), *taps)
    weights = by_output(problem.weights, 1)[place].reshape(problem.oc, problem.ic, *ones)
    kind = TensorType(weights.shape, given.type.dtype)
    lies = TensorLayout.make(weights.shape)
    filters = Operand(kind, lies, const=weights, stored=given.stored)
    strides, layout = problem.window.strides, out.layout
    shape = (*out.type.shape[:2], *problem.input(0).type.shape[2:])
    apart = tuple(p * s for p, s in zip(layout.pitches[2:], strides, strict=True))
    none = (0,) * layout.rank
    view = replace(
        layout, shape=shape, pitches=(*layout.pitches[:2], *apart), before=none, after=none
    )
    made = replace(out, type=TensorType(shape, out.type.dtype), layout=view)
    bias = problem.input(BIAS) if problem.has(BIAS) else None
    point = Window(ones, ones, ones, zeros, zeros)
    inputs = (problem.input(0), filters, bias)
    phase = ConvProblem(inputs, (made,), problem.target, point, 1, problem.post_ops, problem.arith)
    return phase, sum(t * p for t, p in zip(taps, layout.pitches[2:], strict=True))


def _moved(arg: Arg, shift: int) -> Arg:
    return replace(arg, shift=arg.shift + shift) if isinstance(arg, Out) else arg
