"""Many ops of the same inputs in one session, which builds faster than one session for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from harness import compare

from clnn.graph.ir import Graph, Node, check
from clnn.ops.onnx_registry import Emit, EmitOutput, OnnxNode, onnx_importers
from clnn.ops.spec import OpSpec
from clnn.options import Options
from clnn.plan.layouts import Hints
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.types import TensorType, dtype_of


def together(specs: Mapping[str, OpSpec], inputs: Sequence[np.ndarray]) -> Graph:
    """Return a graph that applies each spec to the same inputs i0, i1, ...; outputs by name."""
    types = {f"i{k}": TensorType(a.shape, dtype_of(a.dtype)) for k, a in enumerate(inputs)}
    names = tuple(types)
    nodes = []
    for name, spec in specs.items():
        types[name] = spec.infer([types[n] for n in names])[0]
        nodes.append(Node(name, spec, names, (name,)))
    return check(Graph(tuple(nodes), types, {}, names, {name: name for name in specs}))


def run_together(
    device: str,
    specs: Mapping[str, OpSpec],
    inputs: Sequence[np.ndarray],
    orders: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, np.ndarray]:
    """Return the outputs of all specs, run twice, and check that both runs gave the same bytes."""
    graph = together(specs, inputs)
    feeds = {f"i{k}": a for k, a in enumerate(inputs)}
    with Session(
        graph, select(device), Options(fuse=False), hints=Hints({}, orders or {})
    ) as session:
        found, again = session(feeds), session(feeds)
    assert all(found[name].tobytes() == again[name].tobytes() for name in found)
    return found


def check_together(
    device: str,
    specs: Mapping[str, OpSpec],
    inputs: Sequence[np.ndarray],
    tolerance: float = 0.0,
    orders: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Run all specs on a device; compare each with its reference in the inputs' own precision."""
    found = run_together(device, specs, inputs, orders)
    for name, spec in specs.items():
        compare(found[name], spec.reference(*inputs)[0], tolerance, f"{name} on {device}")


def imported(
    op: str,
    inputs: Sequence[np.ndarray | None],
    attrs: Mapping[str, object] | None = None,
    opset: int = 21,
    consts: Sequence[int] = (),
    n_outputs: int = 1,
) -> object:
    """Return what the importer of `op` emits for inputs, of which `consts` are constant."""
    types = tuple(None if a is None else TensorType(a.shape, dtype_of(a.dtype)) for a in inputs)
    known = {k: a for k, a in enumerate(inputs) if k in consts and a is not None}
    return onnx_importers()[op](OnnxNode(op, opset, attrs or {}, types, known, n_outputs))


def evaluate(source: object, inputs: Sequence[np.ndarray | None]) -> np.ndarray:
    """Return the value of an imported source with numpy references only."""
    if isinstance(source, int):
        found = inputs[source]
    elif isinstance(source, np.ndarray):
        found = source
    elif isinstance(source, EmitOutput):
        found = _outputs(source.emit, inputs)[source.index]
    else:
        assert isinstance(source, Emit)
        found = _outputs(source, inputs)[0]
    assert found is not None
    return found


def _outputs(emit: Emit, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    return emit.spec.reference(*[None if s is None else evaluate(s, inputs) for s in emit.inputs])


def chain(source: object) -> list[str]:
    """Return the kinds of the emitted specs, first to last, along first inputs."""
    kinds: list[str] = []
    while isinstance(source, Emit):
        kinds.append(source.spec.kind)
        source = source.inputs[0]
    return kinds[::-1]
