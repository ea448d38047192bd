"""A plan in words: what runs where, for listings."""

from __future__ import annotations

from typing import Any

from clnn.ops.problem import Operand
from clnn.plan.plan import Plan


def shown(operand: Operand) -> str:
    """Return an operand's type as text, with the type it is stored in where that is another."""
    return repr(operand.type) + (f" as {operand.stored.name}" if operand.stored else "")


def describe(plan: Plan) -> list[dict[str, Any]]:
    """Return one row per step: node, op, origin, variant, launches, shapes."""
    return [
        {
            "node": s.node.name,
            "op": s.node.spec.kind,
            "origin": s.node.origin,
            "variant": s.variant.name,
            "why": s.variant.why,
            "launches": len(s.launches),
            "output": shown(s.problem.outputs[0]),
        }
        for s in plan.scheduled
    ]
