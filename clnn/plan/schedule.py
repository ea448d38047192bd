"""Graph -> Plan: layouts, one variant per node, launch list and memory. No device needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from clnn.budget import counted_tables, host_memory
from clnn.errors import PlanError
from clnn.graph.ir import Graph, Node
from clnn.layout import TensorLayout
from clnn.ops.launch import EMPTY, Const, In, Launch, Out, Scratch, Variant
from clnn.ops.problem import Operand, Problem
from clnn.ops.spec import ViewSpec
from clnn.plan.batch_split import split_batch
from clnn.plan.border import fill_launch
from clnn.plan.layouts import Hints, place
from clnn.plan.memory import Block, dirty_borders, plan_memory
from clnn.plan.plan import (
    ConstArg,
    MemoryPlan,
    Placed,
    Plan,
    PlannedArg,
    PlannedLaunch,
    Port,
    ScheduledNode,
    ScratchArg,
    Storage,
    TensorArg,
)
from clnn.plan.pooled import pool_at_once
from clnn.plan.ports import add_ports
from clnn.records import changed, dataclass
from clnn.target import Target

MAX_ELEMENTS = 2**31 - 1
ALIGNED = 16  # elements that kernels may read at once from an address that is a multiple of them
# What the arena may take, so that fewer borders are filled again: times the lower bound, and bytes beyond the
# smallest that is found. A fill is a launch of its own, which on GPUs takes as long as a small layer.
ROOM, ROOM_ON_GPUS = (1.08, 0), (1.25, 2**25)
Chooser = Callable[[Node, Problem, Sequence[Variant]], Variant]
Repeat = Callable[[Node, Problem], Variant | None]


@dataclass(frozen=True)
class Instead:
    """Kernels that stand outside of what ops offer: of a node, and of a border's fill; None for none."""

    variant: Callable[[Node, Problem], Variant | None]
    fill: Callable[[Launch], Launch | None]


class DoesNotFitError(Exception):
    """A choice cannot be repeated at the extents of a plan."""


@dataclass(frozen=True)
class LaidOut:
    """A graph with its tensors placed, and the problems of its nodes."""

    graph: Graph
    placed: dict[str, Placed]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    storages: dict[str, Storage]
    problems: tuple[Problem, ...]


def lay_out(graph: Graph, target: Target, hints: Hints | None = None) -> LaidOut:
    """Return a graph with its tensors placed. Raises PlanError, ShapeError."""
    cache_way = target.cache_way if target.is_cpu else 0
    placed = place(graph, hints, cache_way, lambda kind: bool(target.tensor_kind(kind)))
    graph, placed, inputs, outputs = add_ports(graph, placed)
    storages = _storages(graph, placed)
    problems = tuple(make_problem(node, graph, placed, target) for node in graph.nodes)
    return LaidOut(graph, placed, inputs, outputs, storages, problems)


LayOut = Callable[[Graph, Target], LaidOut]


def first_variant(node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
    """Return the variant that the op itself ranks first."""
    return variants[0]


@host_memory("the plan of the network")
@counted_tables()
def make_plan(
    graph: Graph,
    target: Target,
    choose: Chooser = first_variant,
    *,
    separate: bool = False,
    guard: int = 0,
    align: int = 64,
    hints: Hints | None = None,
    repeat: Repeat | None = None,
    otherwise: Callable[[], tuple[Chooser, Repeat]] | None = None,
    doubtful: Collection[str] = (),
    instead: Instead | None = None,
    lay: LayOut | None = None,
) -> Plan:
    """Return the plan of `graph` for `target`.

    choose: picks among a node's variants. separate: no memory is shared between storages. guard:
    bytes kept free around every storage. align: alignment of storages in bytes. hints: borders and
    memory orders that a caller wants. repeat: asked before `choose`, for the choices of another plan
    of the same network; the launches of such plans are then alike, whatever the extents: batches are
    not split, and every border has a launch, an idle one where it keeps its values. otherwise: asked
    for what takes the place of `choose` and `repeat` where the latter raises DoesNotFitError, and again
    where that raises it, too.
    doubtful: names of nodes for which that is likely; they are asked first. instead: kernels that come
    before all others; batches are not split then. lay: does what lay_out does, where there are no hints.
    Raises PlanError, ShapeError, or HostMemoryError where it wants more tables than clnn.budget allows.
    """
    if not (separate or guard or hints or repeat or instead):  # which speak of values as they are
        graph = pool_at_once(split_batch(graph, target), target)
    laid = lay(graph, target) if lay and not hints else lay_out(graph, target, hints)
    graph, placed, storages = laid.graph, laid.placed, laid.storages
    try:
        first = repeat if instead is None else instead.variant
        scheduled = _steps(laid, choose, first, doubtful)
    except DoesNotFitError:
        if otherwise is None:
            raise
        scheduled = _steps_of_first_fit(laid, otherwise)
    blocks = _blocks(storages, scheduled, separate, guard, align)
    memory = _memory(blocks, align, target)
    dirty = dirty_borders(blocks, memory) & _borders_read(scheduled, placed)
    scheduled, first_fills = _add_fills(
        scheduled, storages, dirty, target, repeat is not None, instead
    )
    sizes = {b.key: b.size for b in blocks}
    return Plan(
        graph,
        target,
        tuple(scheduled),
        placed,
        storages,
        memory,
        first_fills,
        laid.inputs,
        laid.outputs,
        guard,
        separate,
        sizes,
    )


def _memory(blocks: Sequence[Block], align: int, target: Target) -> MemoryPlan:
    room, spare = ROOM if target.is_cpu else ROOM_ON_GPUS
    return plan_memory(blocks, base_align=align, room=room, spare=spare)


def _storages(graph: Graph, placed: Mapping[str, Placed]) -> dict[str, Storage]:
    """Return storage key -> storage with the first and last step that touches any of its views."""
    spans: dict[str, list[int]] = {}

    def touch(name: str, step: int) -> None:
        span = spans.setdefault(placed[name].storage, [step, step])
        span[0], span[1] = min(span[0], step), max(span[1], step)

    for name in graph.inputs:
        touch(name, 0)
    for step, node in enumerate(graph.nodes):
        for value in (*node.inputs, *node.outputs):
            if value is not None and value not in graph.consts:
                touch(value, step)
    last = len(graph.nodes)
    for value in set(graph.outputs.values()):
        if value not in graph.consts:
            touch(value, last)
    for node in graph.nodes:
        if node.name.startswith("io:") and node.outputs[0].startswith("out:"):
            touch(node.outputs[0], last)
    return {key: _storage(key, graph, placed, span) for key, span in spans.items()}


def _storage(key: str, graph: Graph, placed: Mapping[str, Placed], span: Sequence[int]) -> Storage:
    root = placed[key]
    if root.layout.size > MAX_ELEMENTS:
        raise PlanError(
            f"value {key!r} of shape {root.layout.shape} takes {root.layout.size} elements with its "
            f"border: more than kernels can index ({MAX_ELEMENTS}). Use a smaller batch or image."
        )
    return Storage(key, graph.memory(key), root.layout, root.fill, span[0], span[1])


def _steps(
    laid: LaidOut, choose: Chooser, repeat: Repeat | None, doubtful: Collection[str] = ()
) -> list[ScheduledNode]:
    """Return the steps of all nodes. Raises DoesNotFitError where `repeat` does."""
    alike: dict[object, Variant] = {}
    rows = [*zip(laid.graph.nodes, laid.problems, strict=True)]
    for node, problem in rows if doubtful else ():
        if node.name in doubtful:
            _step(node, problem, laid.placed, choose, alike, repeat)
    return [_step(*row, laid.placed, choose, alike, repeat) for row in rows]


def _steps_of_first_fit(
    laid: LaidOut, otherwise: Callable[[], tuple[Chooser, Repeat]]
) -> list[ScheduledNode]:
    """Return the steps of all nodes, by the first choices of `otherwise` that fit."""
    while True:
        with suppress(DoesNotFitError):
            return _steps(laid, *otherwise())


def _step(
    node: Node,
    problem: Problem,
    placed: Mapping[str, Placed],
    choose: Chooser,
    alike: dict[object, Variant],
    repeat: Repeat | None,
) -> ScheduledNode:
    """Return the step of a node; nodes for parts of one layer share a variant and its constants."""
    key = _key(node, problem) if node.whole else None
    variant = alike.get(key) or (repeat and repeat(node, problem))
    if variant is None:
        variants = node.spec.variants(problem) if problem.outputs[0].type.size else [EMPTY]
        variant = choose(node, problem, variants)
    if key is not None:
        alike[key] = variant
    launches = tuple(_resolve(node, launch, placed) for launch in variant.launches)
    return ScheduledNode(node, problem, variant, launches)


def _key(node: Node, problem: Problem) -> object:
    """Return what tells one layer's problem from others', wherever in their storages operands lie."""

    def moved(operand: Operand | None) -> Operand | None:
        if operand is None:
            return None
        layout = changed(operand.layout, offset=operand.layout.offset % ALIGNED)
        return changed(operand, layout=layout)

    operands = (*problem.inputs, *problem.outputs)
    return node.layer, node.spec, tuple(map(moved, operands))


def make_problem(node: Node, graph: Graph, placed: Mapping[str, Placed], target: Target) -> Problem:
    """Return the problem of a node: its operands placed."""

    def operand(name: str | None) -> Operand | None:
        if name is None:
            return None
        where = placed[name]
        return Operand(
            graph.types[name],
            where.layout,
            where.fill,
            const=graph.consts.get(name),
            stored=graph.stored.get(name),
        )

    inputs = [operand(n) for n in node.inputs]
    outputs = [operand(n) for n in node.outputs]
    if isinstance(node.spec, ViewSpec):
        views = node.spec.inside(graph.input_types(node))
        inputs = [_mark(node, i, o, views[i], placed) for i, o in enumerate(inputs)]
    return Problem(tuple(inputs), tuple(o for o in outputs if o is not None), target)


def _mark(
    node: Node,
    index: int,
    operand: Operand | None,
    view: ViewSpec | None,
    placed: Mapping[str, Placed],
) -> Operand | None:
    """Mark an input of a view op that already lies where the output wants it."""
    name, out = node.inputs[index], placed[node.outputs[0]]
    assert isinstance(node.spec, ViewSpec)
    if operand is None or name is None or placed[name].storage != out.storage:
        return operand
    source = placed[name].layout
    seen = node.spec.forward(source) if index == 0 else None
    if seen is not None and _same_place(seen, out.layout):
        return changed(operand, aliased=True)
    inside = None if view is None else view.forward(out.layout)
    if inside is not None and _same_place(inside, source):
        return changed(operand, aliased=True)
    return operand


def _same_place(a: TensorLayout, b: TensorLayout) -> bool:
    return a.offset == b.offset and a.shape == b.shape and a.pitches_match(b.pitches)


def _resolve(node: Node, launch: Launch, placed: Mapping[str, Placed]) -> PlannedLaunch:
    args: list[PlannedArg] = []
    for arg in launch.args:
        if isinstance(arg, Const):
            args.append(ConstArg(arg.make))
        elif isinstance(arg, Scratch):
            args.append(ScratchArg(f"{node.name}#{arg.name}", arg.itemsize))
        else:
            name = node.inputs[arg.index] if isinstance(arg, In) else node.outputs[arg.index]
            assert name is not None and isinstance(arg, (In, Out))
            where = placed[name]
            args.append(TensorArg(where.storage, where.layout.offset + arg.shift))
    return PlannedLaunch(launch, tuple(args))


def _blocks(
    storages: Mapping[str, Storage],
    scheduled: Sequence[ScheduledNode],
    separate: bool,
    guard: int,
    align: int,
) -> list[Block]:
    """Return what needs memory: storages and scratch, with the steps they live."""
    end = len(scheduled)
    found: dict[str, Block] = {}
    for s in storages.values():
        first, last = (0, end) if separate else (s.first, s.last)
        found[s.key] = Block(s.key, int(s.nbytes) + 2 * guard, first, last, align, s.geometry)
    for at, step in enumerate(scheduled):
        first, last = (0, end) if separate else (at, at)
        for launch in step.variant.launches:
            for arg in launch.args:
                if isinstance(arg, Scratch):
                    key = f"{step.node.name}#{arg.name}"
                    nbytes = int(arg.nbytes) + 2 * guard
                    found[key] = Block(key, nbytes, first, last, align, None)
    return list(found.values())


def _borders_read(scheduled: Sequence[ScheduledNode], placed: Mapping[str, Placed]) -> set[str]:
    """Return the keys of storages whose borders some kernel may read.

    What is the border of a storage may be part of a view of it, such as an image with its pads.
    """
    read: set[str] = set()
    for step in scheduled:
        for at, name in enumerate(step.node.inputs if step.launches else ()):
            if name is not None and name in placed:
                storage = placed[name].storage
                if at not in step.variant.unread or name != storage:
                    read.add(storage)
    return read


def _add_fills(
    scheduled: list[ScheduledNode],
    storages: Mapping[str, Storage],
    dirty: set[str],
    target: Target,
    every: bool,
    instead: Instead | None = None,
) -> tuple[list[ScheduledNode], tuple[PlannedLaunch, ...]]:
    """Put border fills before the first step of dirty storages; the others are filled once.

    every: both places get a launch, an idle one where the other does it.
    """
    once: list[PlannedLaunch] = []
    before: dict[int, list[PlannedLaunch]] = {}
    for s in storages.values():
        if not s.layout.has_padding or s.fill is None:
            continue
        launch = fill_launch(s.layout, s.dtype, s.fill, target)
        launch = (instead and instead.fill(launch)) or launch
        planned = PlannedLaunch(launch, (TensorArg(s.key, 0),))
        again = s.key in dirty
        if every or not again:
            once.append(changed(planned, idle=again))
        if every or again:
            before.setdefault(s.first, []).append(changed(planned, idle=not again))
    filled = [changed(step, fills=tuple(before.get(at, ()))) for at, step in enumerate(scheduled)]
    return filled, tuple(once)
