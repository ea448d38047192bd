"""What the layers of a plan do: operations, and bytes that they read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from math import inf

from clnn.ops.spec import ViewSpec
from clnn.plan.plan import Plan, ScheduledNode, launch_bytes
from clnn.records import dataclass

WINOGRAD = 4.0  # products of the direct sum for one of F(4x4, 3x3), its largest tiles


@dataclass(frozen=True)
class Work:
    """What a node is and does: op, variant, operations, bytes read and written, output type.

    most: times the float32 multiply-add rate that its kernels can do such operations at; infinity
    where they multiply other types.
    """

    op: str
    variant: str
    flops: int
    nbytes: int
    shape: str
    most: float = 1.0


@dataclass(frozen=True)
class StoredPlan(Plan):
    """A plan that was read from a file: without the specs of its nodes, but with what they told.

    work: of each layer. copied: Plan.copied_bytes.
    """

    work: Mapping[str, Work] = field(default_factory=dict)
    copied: int = 0

    @property
    def copied_bytes(self) -> int:
        """Bytes written by nodes that only rename elements."""
        return self.copied


def work_of(plan: Plan) -> Mapping[str, Work]:
    """Return layer -> what it is and does in one run."""
    if isinstance(plan, StoredPlan):
        return plan.work
    layers: dict[str, Work] = {}
    for step in plan.scheduled:
        work, before = _node_work(step, plan), layers.get(step.node.layer)
        if before is not None:
            work = replace(
                work, flops=work.flops + before.flops, nbytes=work.nbytes + before.nbytes
            )
        layers[step.node.layer] = work
    return layers


def _node_work(step: ScheduledNode, plan: Plan) -> Work:
    ins, outs = plan.graph.input_types(step.node), plan.graph.output_types(step.node)
    names = [name for name in (*step.node.inputs, *step.node.outputs) if name is not None]
    nbytes = sum(plan.graph.types[n].size * plan.graph.memory(n).itemsize for n in names)
    if isinstance(step.node.spec, ViewSpec):
        nbytes = 2 * launch_bytes(step)
    flops = step.node.spec.flops(ins, outs)
    return Work(step.node.spec.kind, step.variant.name, flops, nbytes, repr(outs[0]), _most(step))


def _most(step: ScheduledNode) -> float:
    """Return what Work.most says: Winograd's products are fewer than those that are counted."""
    operands = [o for o in step.problem.inputs[:2] if o is not None]
    templates = {launch.template.rpartition("/")[2] for launch in step.variant.launches}
    if "mma.cl.mako" in templates or any(o.memory.name != "float32" for o in operands):
        return inf
    return WINOGRAD if any(name.startswith("winograd") for name in templates) else 1.0
