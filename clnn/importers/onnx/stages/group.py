"""Device nodes of one level in groups that share no value: each is a plan of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from clnn.importers.onnx.order import reads
from clnn.importers.onnx.stages.deciding import deciding_inputs
from clnn.importers.onnx.stages.parting import Parting, Placed
from clnn.records import dataclass


@dataclass
class Group:
    """Nodes of one plan. clones: arithmetic on shapes that is folded into it. reads: what crosses
    into it, of which `fixed` must be known for the plan, and `from_host` is arithmetic on shapes
    that the host does. once: in a loop's body, whether all turns make the same."""

    level: int
    rows: list[Placed]
    clones: list[Placed] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    from_host: list[str] = field(default_factory=list)
    once: bool = False


def groups_of(parting: Parting) -> list[Group]:
    """Return the groups of all levels in order. Those without open shapes are one.

    Of a loop's body, those that run once stand before others of their level.
    """
    shape_makers = {
        n: (place, row)
        for place, row in enumerate(parting.placed)
        if row.place == "shape"
        for n in row.node.output
        if n
    }
    found = []
    device = [row for row in parting.placed if row.place == "device"]
    lasting = _lasting(parting, device)
    for level in sorted({row.level for row in device}):
        for once in (True, False):
            rows = [r for r in device if r.level == level and (r.node.name in lasting) == once]
            groups = [Group(level, part, once=once) for part in _parts(parting, rows)]
            found += [_filled(parting, group, shape_makers) for group in groups]
    return found


def _lasting(parting: Parting, rows: Sequence[Placed]) -> set[str]:
    """Return the names of nodes that run once in all turns of a loop.

    What reads constants only goes with what reads it, so that a plan makes it once.
    """
    alone = {n for n, known in parting.values.items() if known.place == "const"}
    for row in rows:
        if reads(row.node) - {""} <= alone:
            alone.update(row.node.output)
    found: set[str] = set()
    wanted: set[str] = set()
    for row in reversed(rows):
        made = {n for n in row.node.output if n}
        if made <= parting.lasting and (not made <= alone or made & wanted):
            found.add(row.node.name)
            wanted |= reads(row.node)
    return found


def _parts(parting: Parting, rows: Sequence[Placed]) -> list[list[Placed]]:
    """Return rows in parts that share no value made in them.

    Of a loop's body, those of steady extents are one: each launch costs its time in every turn.
    """
    roots = list(range(len(rows)))

    def root(k: int) -> int:
        while roots[k] != k:
            roots[k] = roots[roots[k]]
            k = roots[k]
        return k

    makers = {n: k for k, row in enumerate(rows) for n in row.node.output if n}
    static: list[int] = []
    for k, row in enumerate(rows):
        names = set(_with_leaves(parting, reads(row.node)))
        for name in names & set(makers):
            roots[root(k)] = root(makers[name])
        outputs = [n for n in row.node.output if n]
        if all(parting.values[n].type is not None or n in parting.steady for n in outputs):
            static.append(k)
    for k in static[1:]:
        roots[root(k)] = root(static[0])
    parts: dict[int, list[Placed]] = {}
    for k, row in enumerate(rows):
        parts.setdefault(root(k), []).append(row)
    return list(parts.values())


def _with_leaves(parting: Parting, names: Iterable[str]) -> Iterable[str]:
    for name in names:
        if name:
            yield name
            yield from parting.values[name].leaves


def _filled(parting: Parting, group: Group, shape_makers: dict[str, tuple[int, Placed]]) -> Group:
    """Return the group with what it reads and which arithmetic on shapes it folds."""
    made = {n for row in group.rows for n in row.node.output if n}
    decides = {n for row in group.rows for n in deciding_inputs(row.node)}
    inputs, shapes = dict[str, None](), dict[str, None]()
    for row in group.rows:
        for name in sorted(n for n in reads(row.node) if n and n not in made):
            place = parting.values[name].place
            if place != "const":
                (shapes if place == "shape" else inputs)[name] = None
    near = made | set(inputs)
    clones: dict[int, Placed] = {}
    todo = list(shapes)
    while todo:
        name = todo.pop()
        leaves = parting.values[name].leaves
        if name in inputs or not (leaves & made or leaves <= near):
            inputs[name] = None
            group.from_host.append(name)
            continue
        number, maker = shape_makers[name]
        if number in clones:
            continue
        clones[number] = maker
        behind = [n for n in maker.node.input if n and parting.values[n].place == "shape"]
        decides.update(behind)
        todo += behind
    group.clones = [clones[number] for number in sorted(clones)]
    group.reads = list(inputs)
    group.fixed = [n for n in inputs if n in decides]
    return group
