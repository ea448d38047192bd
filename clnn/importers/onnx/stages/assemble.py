"""From placed nodes to the steps of a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from clnn.importers.onnx.order import reads
from clnn.importers.onnx.scope import attribute_value
from clnn.importers.onnx.stages.control import Controls
from clnn.importers.onnx.stages.deciding import SHAPE_OPS, deciding_inputs, host_key, why_on_host
from clnn.importers.onnx.stages.group import Group, groups_of
from clnn.importers.onnx.stages.models import StageModel
from clnn.importers.onnx.stages.parting import Parting, Placed, names_of
from clnn.importers.onnx.stages.program import (
    ON_SHAPES,
    DeviceStage,
    HostStep,
    Program,
    StageInput,
    Step,
)
from clnn.ops.host.registry import HostNode

_TYPE_ATTRIBUTES = {"Cast": "to", "EyeLike": "dtype"}
SHOWN = 3  # names in a reason


def assemble(parting: Parting, name: str, opsets: Sequence[Any], ir_version: int) -> Program:
    """Return the program of a parted graph."""
    build = _Assembly(parting, name, opsets, ir_version)
    steps = build.steps()
    outputs = names_of(parting.graph.output)
    inputs = tuple(n for n in names_of(parting.graph.input) if n in parting.inputs)
    read = {n for step in steps for n in _all_reads(step)} | set(outputs)
    consts = {n: parting.consts.array(n) for n in sorted(read) if _is_const(parting, n)}
    known = {*inputs, *consts, *(n for step in steps for n in step.outputs)}
    captures = tuple(sorted(n for n in read if n and n not in known))
    return Program(name, inputs, outputs, captures, consts, steps)


def _is_const(parting: Parting, name: str) -> bool:
    known = parting.values.get(name)
    return parting.consts.knows(name) if known is None else known.place == "const"


def _all_reads(step: Step) -> tuple[str, ...]:
    """Return what a step reads, with what programs inside of it capture."""
    return tuple(n for n in step.inputs if n)


class _Assembly:
    def __init__(self, parting: Parting, name: str, opsets: Sequence[Any], ir_version: int) -> None:
        self.parting, self.name = parting, name
        self.opsets, self.ir_version = opsets, ir_version
        self.makers = {n: row for row in parting.placed for n in row.node.output if n}
        self.on_host: set[str] = set()  # arithmetic on shapes that the host does

    def steps(self) -> tuple[Step, ...]:
        """Return all steps in order."""
        placed = self.parting.placed
        groups = groups_of(self.parting)
        for row in placed:
            if row.place in ("host", "control"):
                self._demand(reads(row.node))
        self._demand(names_of(self.parting.graph.output))
        for group in groups:
            self._demand(group.from_host)
        used = self._used(groups)
        levels = [row.level for row in placed]
        found: list[Step] = []
        stages = 0
        for level in range(max(levels, default=0) + 1):
            for group in groups:
                if group.level == level:
                    stages += 1
                    found.append(self._device(group, used, f"{self.name}{stages}"))
            found += [
                self._on_host(row) for row in placed if row.level == level and self._is_host(row)
            ]
        return tuple(found)

    def _is_host(self, row: Placed) -> bool:
        lazy = row.place == "shape" and any(n in self.on_host for n in row.node.output)
        return lazy or row.place in ("host", "control")

    def _demand(self, names: Iterable[str]) -> None:
        """Note that the host needs values; arithmetic on shapes is done there then."""
        todo = [n for n in names if n]
        while todo:
            name = todo.pop()
            row = self.makers.get(name)
            if row is not None and row.place == "shape" and name not in self.on_host:
                self.on_host.update(n for n in row.node.output if n)
                todo += [n for n in row.node.input if n]

    def _used(self, groups: Sequence[Group]) -> set[str]:
        """Return the names that are read outside of the group that makes them."""
        names = set(names_of(self.parting.graph.output))
        for row in self.parting.placed:
            if self._is_host(row):
                names |= reads(row.node)
        for group in groups:
            names |= set(group.reads)
        return names

    def _device(self, group: Group, used: set[str], name: str) -> DeviceStage:
        parting = self.parting
        outputs = tuple(n for row in group.rows for n in row.node.output if n in used)
        nodes = tuple(row.node for row in (*group.clones, *group.rows))
        inputs = tuple(self._typed(n) for n in group.reads if n not in group.fixed)
        model = StageModel(
            name, nodes, outputs, parting.consts, tuple(self.opsets), self.ir_version
        )
        names = tuple(row.node.name for row in group.rows)
        return DeviceStage(
            name=f"stage {name}",
            op_type="",
            inputs=tuple(group.reads),
            outputs=outputs,
            why=self._why(group),
            once=group.once,
            nodes=names,
            reads=inputs,
            fixed=tuple(group.fixed),
            makes=tuple(self._typed(n) for n in outputs),
            make_model=model,
        )

    def _typed(self, name: str) -> StageInput:
        return replace(self.parting.values[name].type or StageInput(name), name=name)

    def _why(self, group: Group) -> str:
        """Return what a stage waits for."""
        makers = {}
        for name in group.reads:
            row = self.makers.get(name)
            if row is not None and row.place in ("host", "control"):
                makers[row.node.name] = row.node.op_type
            elif name in group.fixed:
                makers[name] = "value"
        listed = [f"{kind} {name!r}" for name, kind in list(makers.items())[:SHOWN]]
        more = f" and {len(makers) - SHOWN} more" if len(makers) > SHOWN else ""
        return f"waits for {', '.join(listed)}{more}" if listed else ""

    def _on_host(self, row: Placed) -> Step:
        node = row.node
        once = self.parting.lasting.issuperset(n for n in node.output if n)
        if row.place == "control":
            inner = Controls(self.parting, self._inner, self.name)
            return replace(inner.step(node), once=once)
        why = why_on_host(node)
        if not why:
            why = ON_SHAPES if row.place == "shape" else "its inputs are on the host"
        return HostStep(
            name=node.name,
            op_type=node.op_type,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            why=why,
            once=once,
            node=self._host_node(node),
            shape_only=node.op_type in SHAPE_OPS,
        )

    def _inner(self, parting: Parting, name: str) -> Program:
        return assemble(parting, name, self.opsets, self.ir_version)

    def _host_node(self, node: onnx.NodeProto) -> HostNode:
        attrs = {a.name: attribute_value(a, self.parting.consts.reader) for a in node.attribute}
        kind = _TYPE_ATTRIBUTES.get(node.op_type)
        if kind in attrs:
            attrs[kind] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(attrs[kind]))
        return HostNode(host_key(node), self.parting.opset, attrs, len(node.output), node.name)


def decided_by_values(parting: Parting) -> list[str]:
    """Return the names of device nodes whose shapes come from values that only the run knows."""
    return [
        row.node.name
        for row in parting.placed
        if row.place == "device"
        and any(
            parting.values[n].place not in ("const", "shape") for n in deciding_inputs(row.node)
        )
    ]
