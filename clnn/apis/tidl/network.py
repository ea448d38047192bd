"""A compiled network on buffers of TIDL: in place where they fit, with its own descriptor file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clnn.apis.tidl.buffers import TIDLRT_isSharedMem, allocate, sTIDLRT_Tensor_t
from clnn.apis.tidl.convert import Border, Edges, moving_axes
from clnn.apis.tidl.descriptor import sTIDL_IOBufDesc_t
from clnn.apis.tidl.enums import ELEMENT_TYPES, ElementType, TensorOrder
from clnn.apis.tidl.structure import version_of
from clnn.apis.tidl.tensors import IOTensor
from clnn.compile import Model, Shapes, load_graph, prepare, settled
from clnn.errors import InputNameError, ShapeError
from clnn.graph.ir import Graph
from clnn.options import Options
from clnn.plan.layouts import Hints, place
from clnn.records import dataclass
from clnn.types import Array, DType

if TYPE_CHECKING:
    from clnn.runtime.run.in_place import InPlaceRun


@dataclass(frozen=True)
class CopyReport:
    """What becomes of one buffer in each run.

    in_place: the network's own kernels read or write the caller's memory. reasons: why not, or what
    a kernel of its own does on the way (conversions, other orders); every condition of the document
    that is not met is among them.
    """

    name: str
    side: str
    in_place: bool
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        how = "in place" if self.in_place else "copied"
        return f"{self.side}put {self.name!r}: {how}" + "".join(f"; {r}" for r in self.reasons)


class Network:
    """A model compiled for a device that runs on TIDL's buffers.

    descriptor: how the buffers are laid out, None: as `describe` does. start: see IOTensor.start.
    Inputs and outputs go by name; where no name of the descriptor is one of the model's, by order.
    A descriptor may have fewer outputs than the model. Raises what compile_model raises,
    ModelError for a descriptor that describes no buffers, InputNameError, ShapeError or DTypeError
    for one of another network.
    """

    def __init__(
        self,
        model: Model,
        descriptor: sTIDL_IOBufDesc_t | None = None,
        device: str | int | None = None,
        options: Options | None = None,
        shapes: Shapes | None = None,
        *,
        start: str = "rows",
    ) -> None:
        from clnn.runtime.doctor.selection import select_device
        from clnn.runtime.run.session import Session
        from clnn.tune.choose import chooser

        options = replace(options or Options(), merge=False)
        model, options = settled(model, device, options, shapes)
        graph = prepare(load_graph(model, shapes), options, device=device)
        self.descriptor = _described(graph) if descriptor is None else descriptor
        self.descriptor.check()
        self.start, edges = start, Edges(graph, start)
        outs = _matched(list(graph.outputs), self.descriptor.outputs, complete=False)
        ins = _matched(list(graph.inputs), self.descriptor.inputs, complete=True)
        self._outputs = {name: edges.give(name, tensor) for name, tensor in outs.items()}
        self._inputs = {name: edges.take(name, tensor) for name, tensor in ins.items()}
        info, hints = select_device(device), Hints(layouts=edges.layouts)
        with chooser(info, options.tune) as choose:
            self.session = Session(edges.graph, info, options, choose, hints)
        self._run: InPlaceRun | None = None
        self._moved: list[tuple[sTIDLRT_Tensor_t, sTIDLRT_Tensor_t]] = []
        self.copies: tuple[CopyReport, ...] = ()

    @property
    def inputs(self) -> tuple[IOTensor, ...]:
        """The buffers that it reads, in the descriptor's order."""
        return self.descriptor.inputs

    @property
    def outputs(self) -> tuple[IOTensor, ...]:
        """The buffers that it writes, in the descriptor's order."""
        return self.descriptor.outputs

    def allocate(self) -> tuple[list[sTIDLRT_Tensor_t], list[sTIDLRT_Tensor_t]]:
        """Return zeroed buffers for all inputs and all outputs, which need no copy."""
        return allocate(self.inputs, self.start), allocate(self.outputs, self.start)

    def bind(
        self, inputs: Sequence[sTIDLRT_Tensor_t], outputs: Sequence[sTIDLRT_Tensor_t]
    ) -> tuple[CopyReport, ...]:
        """Take these buffers for all further runs, in order; return what is copied, and why.

        Raises ShapeError for another number of buffers, or one of other extents.
        """
        self._moved, reports = [], list[tuple[Border, str, bool, tuple[str, ...]]]()
        sides = list[dict[str, Array]]()
        for given, edges in ((inputs, self._inputs), (outputs, self._outputs)):
            if len(given) != len(edges):
                raise ShapeError(f"{len(given)} buffers are given, the network has {len(edges)}.")
            memory = dict[str, Array]()
            for buffer, (name, edge) in zip(given, edges.items(), strict=True):
                held, faults = self._held(buffer, edge)
                port = edge.value if edge.tensor.side == "in" else name
                memory[port] = held.memory
                reports.append((edge, port, held is buffer, faults))
            sides.append(memory)
        from clnn.runtime.run.in_place import in_place

        self._run = in_place(self.session, *sides)
        self.copies = tuple(
            _report(edge, faults, kept, port in self._run.shared)
            for edge, port, kept, faults in reports
        )
        return self.copies

    def _held(
        self, buffer: sTIDLRT_Tensor_t, edge: Border
    ) -> tuple[sTIDLRT_Tensor_t, tuple[str, ...]]:
        """Return the buffer that the network works on, and which conditions of the document fail."""
        faults = copy_faults(edge.tensor, buffer)
        if buffer.tensor.shape != edge.tensor.shape:
            raise ShapeError(
                f"the buffer of {edge.tensor} is {buffer.tensor.shape}, must be {edge.tensor.shape}."
            )
        if buffer.start != self.start:
            faults = (*faults, f"its first element is addressed by {buffer.start!r}")
        if not faults:
            return buffer, faults
        held = sTIDLRT_Tensor_t.allocate(edge.tensor, self.start)
        self._moved.append((buffer, held))
        return held, faults

    def run(self) -> None:
        """Run once on the bound buffers. Raises InputNameError before `bind`, else as a session."""
        if self._run is None:
            raise InputNameError("no buffers are bound. Call bind(inputs, outputs) first.")
        for buffer, held in self._moved:
            if held.tensor.side == "in":
                _move(buffer, held)
        self._run({})
        for buffer, held in self._moved:
            if held.tensor.side == "out":
                _move(held, buffer)

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return real numbers by output name for real numbers by input name, through new buffers."""
        inputs, outputs = self.allocate()
        unknown = [n for n in feeds if n not in self._inputs]
        if unknown or len(feeds) != len(self._inputs):
            raise InputNameError(
                f"inputs are {', '.join(self._inputs)}; given are {', '.join(feeds)}."
            )
        for buffer, name in zip(inputs, self._inputs, strict=True):
            buffer.write(feeds[name])
        self.bind(inputs, outputs)
        self.run()
        return {
            name: buffer.read(self._shape(edge))
            for buffer, (name, edge) in zip(outputs, self._outputs.items(), strict=True)
        }

    def _shape(self, edge: Border) -> tuple[int, ...]:
        return self.session.plan.graph.types[edge.value].shape

    def close(self) -> None:
        """Free the device memory."""
        self._run = None
        self.session.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def copy_faults(tensor: IOTensor, buffer: sTIDLRT_Tensor_t) -> tuple[str, ...]:
    """Return which of the document's conditions for a run without copies a buffer does not meet."""
    faults = []
    if not TIDLRT_isSharedMem(buffer.memory):
        faults.append("its memory is not from TIDLRT_allocSharedMem")
    sizes = {tensor.allocation, tensor.nbytes}
    if tensor.buffer_size:
        sizes |= {tensor.buffer_size, tensor.buffer_size * tensor.dtype.itemsize}
    if buffer.bufferSize not in sizes:
        asked = tensor.buffer_size or tensor.nbytes
        faults.append(f"bufferSize is {buffer.bufferSize}, BufSize of the descriptor {asked}")
    ours, theirs = tensor.fields(), buffer.tensor.fields()
    differ = [
        n for n in ours if ours[n] != theirs[n] and n not in ("BufSize", "DataId", "DataName")
    ]
    if differ:
        told = ", ".join(f"{n} {theirs[n]} for {ours[n]}" for n in differ)
        faults.append(f"it differs from the descriptor: {told}")
    return tuple(faults)


def _report(edge: Border, faults: tuple[str, ...], kept: bool, shared: bool) -> CopyReport:
    """kept: whether the caller's memory is bound; shared: whether the device works in what is bound."""
    reasons = [*faults, *edge.steps]
    if not shared:
        reasons.append("the device does not share memory with the host")
    in_place = kept and shared and not any(step.startswith("copied") for step in edge.steps)
    return CopyReport(edge.tensor.name, edge.tensor.side, in_place, tuple(reasons))


def _move(source: sTIDLRT_Tensor_t, target: sTIDLRT_Tensor_t) -> None:
    """Copy a buffer's tensor to one of another layout, scale or element type."""
    same = ("element_type", "scale", "zero_point")
    if all(getattr(source.tensor, n) == getattr(target.tensor, n) for n in same):
        target.view()[...] = source.view()
    else:
        target.write(source.read())


def _matched(names: list[str], tensors: Sequence[IOTensor], complete: bool) -> dict[str, IOTensor]:
    """Return name of the model -> buffer, in the buffers' order."""
    given = [t.name for t in tensors]
    if not set(given) & set(names) and len(given) <= len(names):
        given = names[: len(given)]
    unknown = [n for n in given if n not in names]
    missing = [n for n in names if n not in given] if complete else []
    if unknown or missing or len(set(given)) != len(given):
        raise InputNameError(
            f"the descriptor has {', '.join(map(repr, given)) or 'none'}, the model"
            f" {', '.join(map(repr, names))}: each name must be one of the model's, once"
            + (", and none may be missing." if complete else ".")
        )
    return dict(zip(given, tensors, strict=True))


def _described(graph: Graph, sdk: str = "11_01", cores: int = 1) -> sTIDL_IOBufDesc_t:
    """Return the descriptor of buffers as the network reads and writes them."""
    made = sTIDL_IOBufDesc_t(version_of(sdk, cores), numCores=cores, numVirtualCores=1)
    made.numSuperBatches = 1
    placed = place(graph)
    for k, name in enumerate(graph.inputs):
        made.add(_own("in", name, graph, name, placed[name].layout, k))
    for k, (name, value) in enumerate(graph.outputs.items()):
        made.add(_own("out", name, graph, value, placed[value].layout, k))
    return made


def _own(side: str, name: str, graph: Graph, value: str, layout: Any, number: int) -> IOTensor:
    """Return the buffer in the order, and with the border, that the network has for a value."""
    kind, fields = graph.types[value], dict[str, Any](data_id=number)
    fields["element_type"] = _element_type(kind.dtype)
    rank = layout.rank
    sizes = (1,) * (6 - rank) + kind.shape
    order = moving_axes(layout.order, layout)
    if rank == 4 and order == moving_axes((0, 2, 3, 1), layout) != moving_axes(range(4), layout):
        fields["order"] = TensorOrder.TIDL_LT_NHWC
    if rank >= 2:
        (top, left), (bottom, right) = layout.before[-2:], layout.after[-2:]
        fields["pads"] = left, top, right, bottom
    return IOTensor.make(side, name, sizes, **fields)


def _element_type(dtype: DType) -> ElementType:
    found = ELEMENT_TYPES.get(dtype.numpy.newbyteorder("<"))
    if found is None:
        raise ShapeError(f"elements of {dtype.name} are none that TIDL has.")
    return found


def describe(
    model: Model,
    shapes: Shapes | None = None,
    options: Options | None = None,
    *,
    sdk: str = "11_01",
    cores: int = 1,
) -> sTIDL_IOBufDesc_t:
    """Return the descriptor of a model's own buffers: its `write` makes the model's `io_1.bin`.

    Orders and pads are those in which the compiled network reads and writes, so that nothing is
    copied. Raises what compile_model raises for the model, ModelError for an SDK that is not known.
    """
    model, options = settled(model, None, options, shapes)
    return _described(prepare(load_graph(model, shapes), options), sdk, cores)
