"""What every op family provides: a spec, shape inference, a numpy reference and kernel variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar

import numpy.typing as npt

from clnn.errors import ShapeError
from clnn.layout import TensorLayout
from clnn.types import F32, STORED_BF16, STORED_F16, DType, TensorType, dtype_of, narrow

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Border:
    """Padding that an op wants around an input: elements before and after each axis, and its value.

    `fill` None means that any value will do (the memory is read but does not matter).
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    fill: float | None = 0.0

    def covers(self, other: Border) -> bool:
        """Whether a tensor with this border serves a consumer that wants `other`."""
        if not (any(other.before) or any(other.after)):
            return True
        big = all(a >= b for a, b in zip(self.before, other.before, strict=True))
        big = big and all(a >= b for a, b in zip(self.after, other.after, strict=True))
        return big and other.fill in (None, self.fill)


@dataclass(frozen=True)
class Target:
    """What code generation knows of a device: no handle, so that planning needs no device.

    kind: "cpu" or "gpu". vector: preferred float vector width of explicit-vector kernels. winograd:
    whether convolutions may use Winograd's products. cache_way: bytes after which addresses share a
    set of a core's nearest cache. tensor: how products use tensor cores, "ptx" (NVIDIA's instructions)
    or "emulated" (what does the same in plain OpenCL C), "" where there are none. tf32: whether
    products of float32 may round their operands to TF32 there.
    """

    kind: str = "cpu"
    vector: int = 16
    compute_units: int = 2
    max_work_group: int = 256
    local_bytes: int = 32768
    features: frozenset[str] = frozenset()
    winograd: bool = True
    cache_way: int = 4096
    tensor: str = ""
    tf32: bool = False

    def tensor_kind(self, memory: DType) -> str:
        """Return the kind of product that tensor cores have for operands of a type, "" for none."""
        kinds = {STORED_F16: "f16", STORED_BF16: "bf16", F32: "tf32" if self.tf32 else ""}
        kind = "s8" if memory.scale else kinds.get(memory, "")
        return kind if self.tensor else ""

    @property
    def is_cpu(self) -> bool:
        """Whether work-items run as plain loops (explicit vectors, local size 1)."""
        return self.kind == "cpu"


@dataclass(frozen=True)
class Operand:
    """One input or output of a node, placed: type, layout, padding value and constant data.

    aliased: in a ViewSpec's problem, that no data has to move for this operand. stored: the type
    that its float32 values have in memory, None where they lie there as they are.
    """

    type: TensorType
    layout: TensorLayout
    fill: float | None = None
    aliased: bool = False
    const: Array | None = field(default=None, compare=False, hash=False)
    stored: DType | None = None

    @property
    def memory(self) -> DType:
        """The type of elements in memory."""
        return self.stored or self.type.dtype

    @property
    def ctype(self) -> str:
        """The type as templates take it; a clnn.types.Stored where `stored`."""
        return self.memory.cl

    @property
    def plain(self) -> DType:
        """The type of elements in memory, as numbers by themselves."""
        return dtype_of(self.memory.numpy)

    @property
    def label(self) -> str:
        """The type in names of kernels."""
        return self.stored.name if self.stored else self.type.dtype.cl

    def packed(self, make: Callable[[], Array]) -> Const:
        """Return make()'s float32 array, a form of this constant, as the operand is stored."""
        stored = self.stored
        return Const(make) if stored is None else Const(lambda: narrow(make(), stored))

    @property
    def border(self) -> Border:
        """The padding around this operand."""
        return Border(self.layout.before, self.layout.after, self.fill)


@dataclass(frozen=True)
class Problem:
    """A node with everything that kernel generation depends on."""

    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    target: Target

    def input(self, index: int) -> Operand:
        """Return input `index`, which must be there."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        if operand is None:
            raise ShapeError(f"input {index} is missing: this op needs it.")
        return operand

    def has(self, index: int) -> bool:
        """Whether optional input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    @property
    def narrowed(self) -> bool:
        """Whether any operand lies in memory in another type."""
        return any(o is not None and o.stored for o in (*self.inputs, *self.outputs))


@dataclass(frozen=True)
class In:
    """Kernel argument: input `index` of the node, its offset moved by `shift` elements."""

    index: int
    shift: int = 0


@dataclass(frozen=True)
class Out:
    """Kernel argument: output `index` of the node, its offset moved by `shift` elements."""

    index: int = 0
    shift: int = 0


@dataclass(frozen=True)
class Const:
    """Kernel argument: data made once from constants (packed weights, tables)."""

    make: Callable[[], Array]


@dataclass(frozen=True)
class Scratch:
    """Kernel argument: memory of `nbytes` that only this node's launches use.

    itemsize: bytes of the elements in which its offset is counted.
    """

    name: str
    nbytes: int
    itemsize: int = 4


Arg = In | Out | Const | Scratch


@dataclass(frozen=True)
class Launch:
    """One kernel launch: template, its parameters, arguments and work geometry.

    Each tensor argument (In, Out) is passed as a buffer and an int element offset, Const as a
    buffer, Scratch as a buffer and an int element offset. Work sizes are in work-items;
    the local one is compiled into the kernel.
    """

    template: str
    params: Mapping[str, Any]
    args: tuple[Arg, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


@dataclass(frozen=True)
class Variant:
    """One way to compute a node: its name, launches and estimated cost.

    cost: compares variants of one problem. error: allowed against the reference, relative to the
    largest output, where that is more than the op's tolerance. why: how it was chosen: "ranked" by
    cost, "tuned" on this device, or "default" (measured on devices of its kind).
    """

    name: str
    launches: tuple[Launch, ...]
    cost: float = 0.0
    error: float = 0.0
    why: str = "ranked"


class OpSpec:
    """Attributes of one op, as a frozen dataclass; subclasses are the op families.

    kind: name in listings. layout_rule: "image" (channels innermost on axis 1), "same" (inputs and
    output alike) or "free". fuses_steps: whether elementwise steps may be fused behind it; such a
    spec has a field `steps`, whose operands are inputs from `first_operand` on. narrows: whether all
    kernels take operands of which float32 values are stored in 16 bits (Operand.stored).
    """

    kind: ClassVar[str] = "op"
    layout_rule: ClassVar[str] = "free"
    fuses_steps: ClassVar[bool] = False
    first_operand: ClassVar[int] = 1
    narrows: ClassVar[bool] = False

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output types. Raises ShapeError or DTypeError with the offending values."""
        raise NotImplementedError

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the outputs computed with numpy, independent of the kernels."""
        raise NotImplementedError

    def padding_needs(self, inputs: Sequence[TensorType | None]) -> dict[int, Border]:
        """Return the border that the fast variants want around each input."""
        return {}

    def takes_planes(self, inputs: Sequence[TensorType | None]) -> bool:
        """Whether an image op is as fast where the channels of input 0 lie plane by plane."""
        return False

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the ways to compute this node, best first; the last is always valid."""
        raise NotImplementedError

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return the ways to compute this node that are worth a measurement, by rising cost.

        Names tell the tunables and are unique within a problem.
        """
        return self.variants(problem)

    def by_images(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op for `count` images of a batch, and the inputs of which it takes those alone.

        None where an image of the result depends on more than that image of the inputs, and where
        the first axis is not the batch.
        """
        return None

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Return the arithmetic operations of one run (a fused multiply-add counts two)."""
        return sum(t.size for t in outputs)

    def tolerance(self, inputs: Sequence[TensorType | None]) -> float:
        """Return the error allowed against `reference`, relative to the largest output."""
        return 1e-5


class ViewSpec(OpSpec):
    """An op that moves no data where geometry allows: output and input share a storage.

    `forward` gives the output's layout inside the input's storage; `backward` gives the layout of
    input `index` inside the output's storage. Each returns None where it cannot.
    """

    narrows = True

    def forward(self, source: TensorLayout) -> TensorLayout | None:
        """Return the layout of output 0 as a view of input 0."""
        return None

    def backward(
        self, result: TensorLayout, index: int, inputs: Sequence[TensorType | None]
    ) -> TensorLayout | None:
        """Return the layout of input `index` as a view of output 0."""
        return None


def batched(inputs: Sequence[TensorType | None], rank: int, first: int = 0) -> tuple[int, ...]:
    """Return the inputs from `first` on whose first axis is that of a result of `rank` axes.

    Others are broadcast along it.
    """
    given = [(k, t) for k, t in enumerate(inputs) if k >= first and t is not None]
    return tuple(k for k, t in given if t.rank == rank > 0 and t.shape[0] != 1)


def grid(target: Target, *extents: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (global, local) work sizes for `extents` work-items, first extent fastest.

    CPU devices get local size 1. Others get groups of up to 64: along the first extent, with the
    global size rounded up, so that kernels must return where an id is beyond it; where it is short,
    along divisors of the others.
    """
    sizes = [max(e, 1) for e in extents] or [1]
    if target.is_cpu:
        return tuple(sizes), (1,) * len(sizes)
    local = min(64, target.max_work_group)
    while local > 1 and local // 2 >= sizes[0]:
        local //= 2
    rounded, group = -(-sizes[0] // local) * local, [local]
    for extent in sizes[1:]:
        most = min(64, target.max_work_group) // prod(group)
        group.append(next(d for d in range(most, 0, -1) if extent % d == 0))
    return (rounded, *sizes[1:]), tuple(group)


def vector_width(extent: int, widest: int, operands: Sequence[tuple[int, int]] = ()) -> int:
    """Return the widest of 16, 8, 4, 2, 1 that divides `extent` and is at most `widest`.

    operands: (extent, pitch) of further operands along the same axis; a pitch other than 1 (or 0,
    a broadcast) forces 1.
    """
    if any(pitch not in (0, 1) for _, pitch in operands):
        return 1
    width = 16
    while width > 1 and (width > widest or extent % width):
        width //= 2
    return width


def by_cost(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants by rising cost, those of equal name once."""
    return list({v.name: v for v in sorted(variants, key=lambda v: v.cost)}.values())


_Importer = Callable[..., Any]


def with_fields(spec: OpSpec, **changes: Any) -> OpSpec:
    """Return a copy of a spec (a frozen dataclass) with fields changed."""
    return replace(spec, **changes)  # type: ignore[type-var]
