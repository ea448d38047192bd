"""Puts other kernels in the places of those that lack registers.

Only a build tells whether a kernel's values fit the registers (clnn.runtime.build.registers). Where
they do not, the next kernel of the node is planned in its place; the program cache remembers both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clnn.codegen.render import text_of
from clnn.graph.ir import Node
from clnn.logs import log
from clnn.ops.launch import Variant
from clnn.ops.problem import Problem
from clnn.plan.schedule import Chooser, Plan, ScheduledNode
from clnn.runtime.build import registers
from clnn.runtime.build.program import Device
from clnn.runtime.run.fused_launch import sources_of

ROUNDS = 4  # plans that are built before a kernel that lacks registers is put up with


def replace_spilling_kernels(
    plan: Plan, again: Callable[[Chooser], Plan], choose: Chooser, device: Device
) -> Plan:
    """Return a plan whose kernels have the registers they need, as far as nodes have such a kernel.

    plan: as `choose` wants it. again: makes the plan of another Chooser. Builds kernels, on devices
    whose compiler tells of registers only. Raises BuildError.
    """
    if registers.VERBOSE not in device.options:
        return plan
    lacking: set[tuple[str, str]] = set()
    for _ in range(ROUNDS):
        device.build(sources_of(plan))
        spilling = {(s.node.name, s.variant.name) for s in plan.scheduled if _spills(s, device)}
        if spilling <= lacking:
            break
        lacking |= spilling
        plan = again(_avoiding(choose, lacking))
    for node, name in sorted(lacking & {(s.node.name, s.variant.name) for s in plan.scheduled}):
        log.warning(
            "node %s: kernel %s lacks registers; `clnn tune` looks for a faster one", node, name
        )
    return plan


def _spills(step: ScheduledNode, device: Device) -> bool:
    """Whether a kernel of a step keeps registers in memory."""
    return any(text_of(n).source in device.spills for n in step.variant.launches)


def _avoiding(choose: Chooser, lacking: set[tuple[str, str]]) -> Chooser:
    """Return what chooses as `choose`, but for these kernels of nodes: the next best one for them."""

    def other(node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
        chosen = choose(node, problem, variants)
        if (node.name, chosen.name) not in lacking:
            return chosen
        rest = [*node.spec.candidates(problem), *variants]
        return next((v for v in rest if (node.name, v.name) not in lacking), chosen)

    return other
