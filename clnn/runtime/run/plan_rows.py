"""A plan as JSON rows: what a session needs of it at run time, written, and read back with every number checked.

A row is a list in a fixed order. Floats are written as text by float.hex, for JSON has no infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

from clnn.codegen.kernels import text_of
from clnn.graph.ir import Graph, Node
from clnn.layout import TensorLayout
from clnn.ops.launch import KernelText, Launch, Variant
from clnn.ops.problem import Operand, Problem
from clnn.ops.spec import OpSpec
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
from clnn.runtime.run.constants import NamesOnly, Uploaded
from clnn.runtime.run.work import StoredPlan, Work, work_of
from clnn.target import Target
from clnn.types import CARRIERS, DTYPES, STORED_BF16, STORED_F16, DType, TensorType

LARGEST = 2**31 - 1  # of an extent, a pitch or an offset in elements
MOST_BYTES = 2**48
MOST_ROWS = 1_000_000
MOST_AXES = 64
LEAST_INT = 2**31  # of the integers that kernels take as numbers, less 1 the largest
T = TypeVar("T")
_BY_NAME = {dtype.name: dtype for dtype in (*DTYPES, *CARRIERS)}
_STORED = {dtype.name: dtype for dtype in (STORED_F16, STORED_BF16)}
Makers = dict[Uploaded, int]


class BadPlanError(ValueError):
    """Rows are no plan; the text says in what."""


class StoredSpec(OpSpec):
    """Stands for the spec of a node of which only the name of its kind is known."""

    def __init__(self, kind: str) -> None:
        self.__dict__["kind"] = kind


class StoredText(KernelText):
    """A kernel whose text is unpacked when it is asked for."""

    def __init__(
        self,
        texts: Callable[[], Sequence[str]],
        number: int,
        name: str,
        numbers: tuple[int | float, ...],
    ) -> None:
        self.__dict__.update(name=name, numbers=numbers, _texts=texts, _number=number)

    @property
    def source(self) -> str:
        """The kernel's text."""
        texts = self.__dict__["_texts"]()
        number = self.__dict__["_number"]
        if number >= len(texts):
            raise BadPlanError(f"kernel {number} of {len(texts)} is asked for")
        return str(texts[number])


def written(plan: Plan, texts: dict[str, int], makers: Makers) -> dict[str, Any]:
    """Return a plan as JSON data.

    texts: source -> number of the kernels, makers: number of what stands for each packed constant; both
    are added to. Guards cannot be written.
    """
    hosts = {name for port in (*plan.inputs, *plan.outputs) for name in (port.value, port.host)}
    used = {a.storage for one in plan.launches for a in one.args if isinstance(a, TensorArg)}
    used |= {plan.placed[name].storage for name in hosts}
    consts = sorted(used & set(plan.consts))

    def launch(one: PlannedLaunch) -> list[Any]:
        text = text_of(one.launch)
        number = texts.setdefault(text.source, len(texts))
        args = [_arg_row(arg, makers) for arg in one.args]
        sizes = [[int(n) for n in s] for s in (one.launch.global_size, one.launch.local_size)]
        told = [n.hex() if isinstance(n, float) else int(n) for n in text.numbers]
        return [number, text.name, str(one.launch.params["name"]), *sizes, args, one.idle, told]

    return {
        "target": {**asdict(plan.target), "features": sorted(plan.target.features)},
        "inputs": [_port_row(port) for port in plan.inputs],
        "outputs": [_port_row(port) for port in plan.outputs],
        "placed": {name: _placed_row(plan.placed[name]) for name in sorted(hosts)},
        "storages": {
            key: [_dtype_row(s.dtype), _layout_row(s.layout), _float_row(s.fill)]
            for key, s in sorted(plan.storages.items())
            if key in used - set(consts)
        },
        "consts": consts,
        "blocks": {k: [at, plan.block_bytes[k]] for k, at in plan.memory.offsets.items()},
        "bytes": [plan.memory.total, plan.memory.lower_bound, plan.copied_bytes],
        "fills": [launch(one) for one in plan.first_fills],
        "steps": [_step_row(step, launch) for step in plan.scheduled],
        "work": {
            layer: [w.op, w.variant, w.flops, w.nbytes, w.shape, _float_row(w.most)]
            for layer, w in work_of(plan).items()
        },
    }


def _step_row(step: ScheduledNode, launch: Callable[[PlannedLaunch], list[Any]]) -> list[Any]:
    node, out = step.node, step.problem.outputs[0]
    about = [
        node.name,
        node.whole,
        node.origin,
        node.spec.kind,
        step.variant.name,
        step.variant.why,
    ]
    kinds = [list(map(int, out.type.shape)), _dtype_row(out.type.dtype)]
    stored = None if out.stored is None else _dtype_row(out.stored)
    return [
        *about,
        *kinds,
        stored,
        [launch(f) for f in step.fills],
        [launch(x) for x in step.launches],
    ]


def _arg_row(arg: PlannedArg, makers: Makers) -> list[Any]:
    if isinstance(arg, TensorArg):
        return ["tensor", arg.storage, int(arg.offset)]
    if isinstance(arg, ScratchArg):
        return ["scratch", arg.key, arg.itemsize]
    assert isinstance(arg.make, Uploaded), "the plan of a session has no data"
    return ["const", makers.setdefault(arg.make, len(makers))]


def _port_row(port: Port) -> list[Any]:
    return [port.name, port.value, port.host, list(map(int, port.type.shape)), port.type.dtype.name]


def _placed_row(placed: Placed) -> list[Any]:
    return [placed.storage, _layout_row(placed.layout), _float_row(placed.fill)]


def _layout_row(layout: TensorLayout) -> list[Any]:
    axes = layout.shape, layout.pitches, layout.before, layout.after
    return [*([int(n) for n in row] for row in axes), int(layout.offset), int(layout.size)]


def _dtype_row(dtype: DType) -> str:
    return dtype.name


def _float_row(value: float | None) -> str | None:
    return None if value is None else float(value).hex()


def read(
    data: Any, texts: Callable[[], Sequence[str]], makers: Sequence[Uploaded], packed: Sequence[str]
) -> StoredPlan:
    """Return the plan that `written` wrote. Raises BadPlanError for anything else.

    texts: gives the kernels' texts when they are asked for. makers: what stands for packed constants.
    packed: names of the constant tensors that are there.
    """
    try:
        return _Reader(data, texts, makers, packed).plan()
    except BadPlanError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError) as err:
        raise BadPlanError(f"the plan is not as it must be ({type(err).__name__}: {err})") from None


class _Reader:
    """Reads one plan."""

    def __init__(
        self,
        data: Mapping[str, Any],
        texts: Callable[[], Sequence[str]],
        makers: Sequence[Uploaded],
        packed: Sequence[str],
    ) -> None:
        self._data, self._texts, self._makers = data, texts, makers
        self._consts = frozenset(map(str, data["consts"]))
        if not self._consts <= {*packed}:
            raise BadPlanError("a constant of the plan has no data")
        total, bound, self._copied = (whole(n, MOST_BYTES) for n in data["bytes"])
        rows = {
            str(k): (whole(at, total), whole(n, total)) for k, (at, n) in data["blocks"].items()
        }
        for key, (at, nbytes) in rows.items():
            if at + nbytes > total:
                raise BadPlanError(f"memory {key!r} ends behind the arena")
        self._sizes = {key: nbytes for key, (_, nbytes) in rows.items()}
        self._memory = MemoryPlan({key: at for key, (at, _) in rows.items()}, total, bound)
        self._storages = {str(k): self._storage(str(k), r) for k, r in data["storages"].items()}

    def plan(self) -> StoredPlan:
        data, target = self._data, _target(self._data["target"])
        placed = {str(name): self._placed(row) for name, row in data["placed"].items()}
        inputs, outputs = (
            tuple(self._port(row, placed) for row in data[side]) for side in ("inputs", "outputs")
        )
        fills = tuple(self._launch(row) for row in _rows(data["fills"]))
        steps = tuple(self._step(row, target) for row in _rows(data["steps"]))
        work = {str(name): _work(row) for name, row in data["work"].items()}
        if not {step.node.layer for step in steps} <= work.keys():
            raise BadPlanError("a layer says nothing of its work")
        ports = (*inputs, *outputs)
        types = {name: port.type for port in ports for name in (port.value, port.host)}
        graph = Graph(
            (),
            types,
            NamesOnly(self._consts),
            tuple(port.host for port in inputs),
            {port.name: port.value for port in outputs},
        )
        parts = graph, target, steps, placed, self._storages, self._memory, fills, inputs, outputs
        return StoredPlan(*parts, block_bytes=self._sizes, work=work, copied=self._copied)

    def _storage(self, key: str, row: Any) -> Storage:
        dtype, layout = _dtype(row[0]), _layout(row[1])
        made = Storage(key, dtype, layout, _float(row[2]), 0, 0)
        if made.nbytes > self._sizes[key]:
            raise BadPlanError(f"tensor {key!r} is larger than its memory")
        return made

    def _placed(self, row: Any) -> Placed:
        storage, layout, fill = row
        made = Placed(str(storage), _layout(layout), _float(fill))
        known = self._storages.get(made.storage)
        if known is None and made.storage not in self._consts:
            raise BadPlanError(f"a value lies in {storage!r}, which is not there")
        if known is not None and made.layout.size > max(known.layout.size, 1):
            raise BadPlanError(f"a value is larger than {storage!r}, in which it lies")
        return made

    def _port(self, row: Any, placed: Mapping[str, Placed]) -> Port:
        name, value, host, shape, kind = row
        port = Port(str(name), TensorType(_shape(shape), _BY_NAME[kind]), str(value), str(host))
        for at in (port.value, port.host):
            if placed[at].layout.shape != port.type.shape:
                raise BadPlanError(f"{name!r} has two shapes")
        where = placed[port.host]
        storage = self._storages[where.storage]
        itemsize = storage.dtype.itemsize
        if not where.layout.is_dense or itemsize != port.type.dtype.itemsize:
            raise BadPlanError(f"{name!r} does not lie in memory as it is copied")
        if where.layout.offset * itemsize + port.type.nbytes > self._sizes[where.storage]:
            raise BadPlanError(f"{name!r} ends behind its memory")
        return port

    def _step(self, row: Any, target: Target) -> ScheduledNode:
        name, of_layer, origin, kind, variant, why, shape, dtype, stored, fills, launches = row
        kept = TensorType(_shape(shape), _dtype(dtype))
        layout = TensorLayout.make(kept.shape)
        out = Operand(kept, layout, stored=None if stored is None else _dtype(stored))
        return ScheduledNode(
            Node(str(name), StoredSpec(str(kind)), (), (), str(origin), str(of_layer)),
            Problem((), (out,), target),
            Variant(str(variant), (), why=str(why)),
            tuple(self._launch(one) for one in _rows(launches)),
            tuple(self._launch(one) for one in _rows(fills)),
        )

    def _launch(self, row: Any) -> PlannedLaunch:
        number, name, title, global_size, local_size, args, idle, told = row
        items, group = _shape(global_size), _shape(local_size)
        if not 0 < len(items) == len(group) <= 3 or not all((*items, *group)):
            raise BadPlanError(f"kernel {name!r} has work sizes {items} and {group}")
        numbers = tuple(map(_number, _rows(told)))
        text = StoredText(self._texts, whole(number, MOST_ROWS), str(name), numbers)
        launch = Launch("", {"name": str(title)}, (), items, group, text)
        return PlannedLaunch(launch, tuple(self._arg(arg) for arg in args), bool(idle))

    def _arg(self, row: Any) -> PlannedArg:
        kind, what, *number = row
        if kind == "const":
            return ConstArg(self._makers[whole(what, len(self._makers) - 1)])
        offset = whole(number[0])
        if kind == "scratch":
            if what not in self._sizes or offset not in (1, 2, 4, 8, 16):
                raise BadPlanError(f"scratch memory {what!r} is not there")
            return ScratchArg(str(what), offset)
        storage = self._storages.get(what)
        if kind != "tensor" or (storage is None and what not in self._consts):
            raise BadPlanError(f"a kernel takes {kind} {what!r}, which is not there")
        if storage is not None and offset > max(storage.layout.size, 1):
            raise BadPlanError(f"a kernel begins behind the end of {what!r}")
        return TensorArg(str(what), offset)


def _target(row: Any) -> Target:
    """Return the target, of which all fields must be there."""
    names = [field.name for field in fields(Target)]
    if sorted(row) != sorted(names):
        raise BadPlanError("the target is not described as it must be")
    kinds: dict[str, Callable[[Any], Any]] = {
        "str": str,
        "bool": bool,
        "int": whole,
        "frozenset[str]": _words,
    }
    target = Target(**{f.name: kinds[str(f.type)](row[f.name]) for f in fields(Target)})
    if not (1 <= target.compute_units <= 1 << 20 and target.vector <= 64):
        raise BadPlanError("the target has no such vectors or compute units")
    return target


def _words(row: Any) -> frozenset[str]:
    return frozenset(str(word) for word in _rows(row))


def whole(value: Any, most: int = LARGEST, least: int = 0) -> int:
    """Return a number that is whole and within bounds. Raises BadPlanError."""
    if type(value) is not int or not least <= value <= most:
        raise BadPlanError(f"{value!r:.40} is not a whole number from {least} to {most}")
    return value


def _rows(rows: Any) -> list[Any]:
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        raise BadPlanError("a list is none, or too long")
    return rows


def _shape(row: Any) -> tuple[int, ...]:
    if len(_rows(row)) > MOST_AXES:
        raise BadPlanError(f"a shape has {len(row)} axes")
    return tuple(whole(n) for n in row)


def _layout(row: Any) -> TensorLayout:
    """Return a layout whose elements all lie in its storage."""
    shape, before, after = (_shape(row[k]) for k in (0, 2, 3))
    pitches = tuple(whole(n, least=-LARGEST) for n in row[1])
    layout = TensorLayout(shape, pitches, before, after, whole(row[4]), whole(row[5]))
    if not len(shape) == len(pitches) == len(before) == len(after):
        raise BadPlanError("a layout's axes differ in number")
    low, high = layout.span
    if 0 not in shape and not 0 <= low < high <= max(layout.size, 1):
        raise BadPlanError(f"a tensor reaches from {low} to {high} of {layout.size} elements")
    return layout


def _dtype(row: Any) -> DType:
    return {**_BY_NAME, **_STORED}[row]


def _number(told: Any) -> int | float:
    return float.fromhex(told) if isinstance(told, str) else whole(told, LEAST_INT - 1, -LEAST_INT)


def _float(text: Any) -> float | None:
    return None if text is None else float.fromhex(text)


def _work(row: Any) -> Work:
    op, variant, flops, nbytes, shape, most = row
    limit = _float(most)
    numbers = whole(flops, 1 << 62), whole(nbytes, 1 << 62)
    return Work(str(op), str(variant), *numbers, str(shape), math.inf if limit is None else limit)
