"""Puts other kernels in the places of those that lack registers, or that a device does not run to their end.

Only a build tells whether a kernel's values fit the registers (clnn.runtime.build.registers). Where
they do not, the next kernel of the node is planned in its place; the program cache remembers both.
Whether loops have more rounds than the device does is read from the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clnn.codegen.kernels import text_of
from clnn.codegen.rounds import most_rounds
from clnn.errors import DeviceError
from clnn.graph.ir import Node
from clnn.logs import log
from clnn.ops.launch import Variant
from clnn.ops.problem import Problem
from clnn.plan.plan import Plan, ScheduledNode
from clnn.plan.schedule import Chooser
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
    asked = registers.VERBOSE in device.options
    if not asked and not registers.are_told(device.info.platform, device.info.type):
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


def replace_endless_kernels(
    plan: Plan, again: Callable[[Chooser], Plan], choose: Chooser, device: Device
) -> Plan:
    """Return a plan whose loops have no more rounds than the device does (Target.max_rounds).

    Raises DeviceError for a node without such kernels.
    """
    if not (most := plan.target.max_rounds):
        return plan
    avoided: set[tuple[str, str]] = set()
    while too_long := {(s.node.name, s.variant.name) for s in plan.scheduled if _is_long(s, most)}:
        if again_chosen := too_long & avoided:
            node, name = min(again_chosen)
            raise DeviceError(
                f"{device.info.title} ends the loops of a work-item after {most} rounds, without an error,"
                f" and every kernel for node {node} may have more ({name}). Use another device."
            )
        avoided |= too_long
        plan = again(_avoiding(choose, avoided))
    if any(most_rounds(text_of(fill.launch).source) > most for fill in plan.first_fills):
        raise DeviceError(
            f"{device.info.title} ends the loops of a work-item after {most} rounds, without an error,"
            " and filling the borders of tensors may take more. Use another device."
        )
    return plan


def _is_long(step: ScheduledNode, most: int) -> bool:
    """Whether a kernel of a step, or of what fills its borders, may do more than `most` rounds."""
    launches = (*step.launches, *step.fills)
    return any(most_rounds(text_of(planned.launch).source) > most for planned in launches)


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
