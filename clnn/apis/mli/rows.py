"""Softmax and L2 normalisation of MLI."""

from __future__ import annotations

from clnn.apis.mli import checks
from clnn.apis.mli.checks import ELEMENTS, SHAPE, need
from clnn.apis.mli.config import MliAxisCfg
from clnn.apis.mli.elementwise import give_quant
from clnn.apis.mli.engine import compute, named
from clnn.apis.mli.modes import modes
from clnn.apis.mli.tensor import MliTensor
from clnn.arith.mli_rows import (
    L2Finish,
    L2Rule,
    L2Scale,
    L2Square,
    SoftmaxFinish,
    SoftmaxPower,
    SoftmaxRule,
    SoftmaxScale,
)
from clnn.graph.builder import GraphBuilder
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.rows.reduce import Reduce


def row_axes(axis: int, rank: int) -> tuple[int, ...]:
    """Return the axes that a row lies on."""
    return tuple(range(rank)) if axis < 0 else (axis,)


def _checked(fmt: str, in_: MliTensor, cfg: MliAxisCfg, out: MliTensor) -> None:
    checks.config(cfg, MliAxisCfg)
    for tensor, name in ((in_, "in"), (out, "out")):
        checks.typed(tensor, name, ELEMENTS[fmt])
        checks.per_tensor(tensor, name)
    need(in_.rank > 0, SHAPE, "in is a scalar: it needs an axis.")
    checks.same_shape(in_, out, "in")
    checks.same_place_or_apart(in_, out, "in")
    checks.axis(cfg.axis, in_.rank)


def _softmax(fmt: str, in_: MliTensor, cfg: MliAxisCfg, out: MliTensor) -> None:
    """Turn rows into probabilities."""
    _checked(fmt, in_, cfg, out)
    rule, axes = SoftmaxRule(in_.quant(), modes().up), row_axes(cfg.axis, in_.rank)

    def ops(build: GraphBuilder, x: str) -> str:
        power = build.add(FixedMap(SoftmaxPower(rule)), x, build.add(Reduce("max", axes), x))
        scale = build.add(FixedMap(SoftmaxScale(rule)), build.add(Reduce("sum", axes), power))
        return build.add(FixedMap(SoftmaxFinish(rule)), power, scale)

    out.view()[...] = compute(("softmax", rule, axes), ops, in_.view())
    give_quant(out, rule.out)


def _l2_normalize(
    fmt: str, in_: MliTensor, epsilon: MliTensor, cfg: MliAxisCfg, out: MliTensor
) -> None:
    """Divide rows by the root of their sum of squares.

    epsilon is not read: only that it is one element of the format, whatever its value, scale and
    zero point say.
    """
    _checked(fmt, in_, cfg, out)
    checks.typed_but_scale(epsilon, "epsilon", ELEMENTS[fmt])
    need(epsilon.count == 1, SHAPE, f"epsilon is {epsilon.shape}: it must be one element.")
    rule, axes = L2Rule(in_.quant(), modes().up), row_axes(cfg.axis, in_.rank)

    def ops(build: GraphBuilder, x: str) -> str:
        total = build.add(Reduce("sum", axes), build.add(FixedMap(L2Square(rule)), x))
        scale = build.add(FixedMap(L2Scale(rule)), total)
        return build.add(FixedMap(L2Finish(rule)), x, scale)

    out.view()[...] = compute(("l2", rule, axes), ops, in_.view())
    give_quant(out, rule.out)


mli_krn_softmax_fx16, mli_krn_softmax_sa8 = (
    named(_softmax, f"mli_krn_softmax_{f}", f) for f in ("fx16", "sa8")
)
mli_krn_l2_normalize_fx16, mli_krn_l2_normalize_sa8 = (
    named(_l2_normalize, f"mli_krn_l2_normalize_{f}", f) for f in ("fx16", "sa8")
)
