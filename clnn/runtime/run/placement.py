"""Where and how a session runs, as it tells its callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clnn.plan.describe import describe
from clnn.plan.plan import Plan
from clnn.records import dataclass


@dataclass(frozen=True)
class Placement:
    """Where and how a session runs: device, one row per node, arena bytes and their lower bound.

    products: the arithmetic of products where kernels can choose: "float32", or "tf32 on tensor cores".
    """

    device: str
    nodes: tuple[dict[str, Any], ...]
    launches: int
    arena_bytes: int
    arena_lower_bound: int
    copied_bytes: int
    seconds: Mapping[str, float]
    products: str = "float32"

    def __str__(self) -> str:
        rows = [
            f"{r['node']:<28} {r['op']:<12} {r['variant']:<32} {r['output']}" for r in self.nodes
        ]
        head = (
            f"{self.device}\n{len(self.nodes)} nodes, {self.launches} launches, "
            f"arena {self.arena_bytes} bytes, products in {self.products}"
        )
        return "\n".join([head, *rows])


def placement_of(plan: Plan, device: str, seconds: Mapping[str, float], products: str) -> Placement:
    """Return where and how a plan runs."""
    return Placement(
        device,
        tuple(describe(plan)),
        len(plan.launches),
        plan.memory.total,
        plan.memory.lower_bound,
        plan.copied_bytes,
        dict(seconds),
        products,
    )
