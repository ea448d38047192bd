"""Softmax and L2 normalisation of MLI."""

from __future__ import annotations

from clnn.apis.mli import checks
from clnn.apis.mli.checks import FX8, FX16, SA8, SHAPE, need
from clnn.apis.mli.config import MliAxisCfg
from clnn.apis.mli.elementwise import _give_quant
from clnn.apis.mli.engine import Builder, named, run
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
from clnn.graph.ir import Graph
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.rows.reduce import Reduce

FORMATS = {"fx8": FX8, "fx16": FX16, "sa8": SA8}


def row_axes(axis: int, rank: int) -> tuple[int, ...]:
    """Return the axes that a row lies on."""
    return tuple(range(rank)) if axis < 0 else (axis,)


def _checked(fmt: str, given: MliTensor, cfg: MliAxisCfg, out: MliTensor) -> None:
    checks.config(cfg, MliAxisCfg)
    for tensor, name in ((given, "in"), (out, "out")):
        checks.typed(tensor, name, FORMATS[fmt])
        checks.per_tensor(tensor, name)
    need(given.rank > 0, SHAPE, "in is a scalar: it needs an axis.")
    checks.same_shape(given, out, "in")
    checks.same_place_or_apart(given, out, "in")
    checks.axis(cfg.axis, given.rank)


def _softmax(fmt: str, given: MliTensor, cfg: MliAxisCfg, out: MliTensor) -> None:
    """Turn rows into probabilities."""
    _checked(fmt, given, cfg, out)
    rule, axes = SoftmaxRule(given.quant(), modes().up), row_axes(cfg.axis, given.rank)

    def make() -> Graph:
        build = Builder()
        x = build.input("x", given.shape, given.dtype)
        power = build.add(FixedMap(SoftmaxPower(rule)), x, build.add(Reduce("max", axes), x))
        scale = build.add(FixedMap(SoftmaxScale(rule)), build.add(Reduce("sum", axes), power))
        return build.graph({"y": build.add(FixedMap(SoftmaxFinish(rule)), power, scale)})

    out.view()[...] = run(("softmax", rule, axes, given.shape), make, {"x": given.view()})["y"]
    _give_quant(out, rule.out)


def _l2_normalize(
    fmt: str, given: MliTensor, epsilon: MliTensor, cfg: MliAxisCfg, out: MliTensor
) -> None:
    """Divide rows by the root of their sum of squares. epsilon is not used in the computation."""
    _checked(fmt, given, cfg, out)
    checks.typed(epsilon, "epsilon", FORMATS[fmt])
    need(epsilon.count == 1, SHAPE, f"epsilon is {epsilon.shape}: it must be one element.")
    rule, axes = L2Rule(given.quant(), modes().up), row_axes(cfg.axis, given.rank)

    def make() -> Graph:
        build = Builder()
        x = build.input("x", given.shape, given.dtype)
        total = build.add(Reduce("sum", axes), build.add(FixedMap(L2Square(rule)), x))
        scale = build.add(FixedMap(L2Scale(rule)), total)
        return build.graph({"y": build.add(FixedMap(L2Finish(rule)), x, scale)})

    out.view()[...] = run(("l2", rule, axes, given.shape), make, {"x": given.view()})["y"]
    _give_quant(out, rule.out)


mli_krn_softmax_fx16, mli_krn_softmax_sa8 = (
    named(_softmax, f"mli_krn_softmax_{f}", f) for f in ("fx16", "sa8")
)
mli_krn_l2_normalize_fx16, mli_krn_l2_normalize_sa8 = (
    named(_l2_normalize, f"mli_krn_l2_normalize_{f}", f) for f in ("fx16", "sa8")
)
