"""Concat2D, ExpandDims, Squeeze, Reshape, Flatten, Transpose, Pad."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clnn.apis.espdl.base import Layer
from clnn.apis.espdl.shapes import expanded, order_of, squeezed
from clnn.apis.espdl.tensor import Tensor, settle
from clnn.apis.espdl.values import Value, made
from clnn.errors import ShapeError
from clnn.graph.builder import GraphBuilder
from clnn.ops.movement.pad import Pad as PadOp
from clnn.ops.movement.views import Concat
from clnn.types import Array

CHANNEL = 2


def _joined(build: GraphBuilder, *values: str) -> str:
    return build.add(Concat(CHANNEL), *values)


class JoinedTensor(Tensor):
    """The output of Concat2D: its elements are those of the tensors that lie in its memory."""

    @property
    def pending(self) -> bool:
        """Whether any of the tensors is not computed yet."""
        return self._value is not None or any(m.pending for m in self.members)

    def value(self) -> Value:
        """Return the tensors one after the other along the channels."""
        if self._value is None and any(m.pending for m in self.members):
            return made(("Concat2D",), _joined, *(m.value() for m in self.members))
        return super().value()

    def deliver(self) -> None:
        """Give each tensor its part of this memory, and those that lie in it theirs."""
        memory, offset = self._memory, 0
        assert memory is not None
        for tensor in self.members:
            tensor.element = None
            tensor.set_element(memory[offset:])
            offset += tensor.shape[CHANNEL]
            if isinstance(tensor, JoinedTensor):
                tensor.deliver()

    def settle(self) -> Tensor:
        """Compute the tensors, into this memory."""
        if self._value is not None:
            return super().settle()
        settle(*self.members)
        return self

    @property
    def element(self) -> Array | None:
        """The memory of all of them."""
        if self.pending:
            self.settle()
        return self._memory

    @element.setter
    def element(self, memory: Array | None) -> None:
        self._value, self._memory = None, None
        if memory is not None:
            self.set_element(memory)


class Concat2D(Layer):
    """Images one after the other along the channels, without a copy.

    One memory holds all: calloc_element(), called before the first of the inputs is computed, gives
    each of them its part, `offset` channels from the start (of nested ones, call that of the outer).
    backward() makes all padding as large as the largest, so that rows have one length.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.output: Tensor = JoinedTensor()
        self.offset: list[int] = []
        self.channel: list[int] = []

    def build(self, args: Sequence[Tensor]) -> None:
        """Collect channels and offsets. Raises ShapeError for other sizes or exponents."""
        if not args:
            raise ShapeError(f"{self.name} of nothing.")
        first = args[0]
        wrong = [t.shape for t in args if len(t.shape) != 3 or t.shape[:2] != first.shape[:2]]
        if wrong or any(t.dtype != first.dtype for t in args):
            raise ShapeError(
                f"{self.name} of {[t.shape for t in args]}: height, width and type must be equal."
            )
        self.same_exponents(*args)
        self.channel = [t.shape[CHANNEL] for t in args]
        self.offset = [sum(self.channel[:k]) for k in range(len(args))]
        self.built([*first.shape[:2], sum(self.channel)], *args)
        self.output.members = tuple(args)

    def backward(self) -> None:
        """Give the output and all inputs the largest padding among them, and rows of one length.

        Of nested concatenations, call it of the inner one, the outer one, and the inner one again.
        """
        every = (self.output, *self.output.members)
        padding = [max(t.padding[k] for t in every) for k in range(4)]
        channels = max(t.shape_with_padding[CHANNEL] for t in every)
        for tensor in every:
            tensor.set_padding_size(padding)
            tensor.shape_with_padding[CHANNEL] = channels

    def calloc_element(self) -> None:
        """Make one zeroed memory, and give each input its part of it."""
        self.backward()
        self.output.calloc_element()
        assert isinstance(self.output, JoinedTensor)
        self.output.deliver()

    def apply_element(self) -> None:
        """Do what calloc_element() does."""
        self.calloc_element()

    def call(self, args: Sequence[Tensor]) -> Tensor:
        """Return the output, for inputs that are computed elsewhere than in its memory."""
        return self.run((), _joined, *args)


class _Move(Layer):
    """The same elements in another shape."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)

    def shape(self, input: Tensor) -> list[int]:
        """Return the output's shape."""
        raise NotImplementedError

    def build(self, input: Tensor) -> None:
        """Set the output's shape. Raises ShapeError where the input does not fit."""
        self.built(self.shape(input), input)

    def call(self, input: Tensor) -> Tensor:
        """Return the output."""
        shape = tuple(self.output.shape)
        return self.run(shape, lambda build, value: build.reshape(value, shape), input)


class Reshape(_Move):
    """Another shape; one extent may be -1."""

    def __init__(self, shape: Sequence[int], name: str | None = None) -> None:
        super().__init__(name)
        self.wanted = [int(d) for d in shape]

    def shape(self, input: Tensor) -> list[int]:
        """Return the shape with -1 filled in. Raises ShapeError where counts differ."""
        count, known = math.prod(input.shape), math.prod(d for d in self.wanted if d != -1)
        open_ = self.wanted.count(-1)
        if (
            open_ > 1
            or min(self.wanted, default=1) < -1
            or (open_ and (not known or count % known))
        ):
            raise ShapeError(f"{self.name} of {input.shape} to {self.wanted}.")
        found = [count // known if d == -1 else d for d in self.wanted]
        if math.prod(found) != count:
            raise ShapeError(f"{self.name} of {input.shape} to {self.wanted}: counts differ.")
        return found


class Flatten(_Move):
    """One axis."""

    def shape(self, input: Tensor) -> list[int]:
        """Return the number of elements."""
        return [math.prod(input.shape)]


class Squeeze(_Move):
    """Without an axis of extent 1, or without all of them."""

    def __init__(self, axis: int | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.axis = axis

    def shape(self, input: Tensor) -> list[int]:
        """Return the shape that is left."""
        return squeezed(input.shape, self.axis)


class ExpandDims(_Move):
    """With axes of extent 1 at these places of the new shape."""

    def __init__(self, axis: int | Sequence[int], name: str | None = None) -> None:
        super().__init__(name)
        self.axis = axis

    def shape(self, input: Tensor) -> list[int]:
        """Return the longer shape."""
        return expanded(input.shape, self.axis)


class Transpose(_Move):
    """Axes in another order, turned around where none is given."""

    def __init__(self, perm: Sequence[int] = (), name: str | None = None) -> None:
        super().__init__(name)
        self.perm = tuple(perm)

    def shape(self, input: Tensor) -> list[int]:
        """Return the permuted shape."""
        return [input.shape[k] for k in order_of(input.shape, self.perm)]

    def call(self, input: Tensor) -> Tensor:
        """Return the output."""
        order = order_of(input.shape, self.perm)
        return self.run(order, lambda build, value: build.transpose(value, order), input)


class Pad(_Move):
    """Elements added before and after each axis: [before, after] of each in a flat list.

    mode: "constant" with a value, "edge" or "reflect".
    """

    def __init__(
        self,
        paddings: Sequence[int],
        constant_values: int = 0,
        mode: str = "constant",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        flat = [int(p) for p in paddings]
        self.before, self.after = tuple(flat[::2]), tuple(flat[1::2])
        self.value, self.mode = int(constant_values), mode
        if mode not in ("constant", "edge", "reflect"):
            raise ShapeError(
                f"{self.name} with mode {mode!r}: constant, edge and reflect are known."
            )

    def shape(self, input: Tensor) -> list[int]:
        """Return the larger shape. Raises ShapeError where paddings do not fit."""
        if len(self.before) != len(input.shape) or len(self.after) != len(input.shape):
            raise ShapeError(f"{self.name} of {input.shape}: it needs two numbers for each axis.")
        rows = zip(input.shape, self.before, self.after, strict=True)
        return [d + b + a for d, b, a in rows]

    def call(self, input: Tensor) -> Tensor:
        """Return the output."""
        spec = PadOp(self.before, self.after, self.mode, float(self.value))
        return self.run(spec, lambda build, value: build.add(spec, value), input)
