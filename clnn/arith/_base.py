"""What an arithmetic provides: parameters, a numpy reference and the name of its Mako library.

An op that multiplies and accumulates takes an `Arithmetic`; an elementwise op takes an
`Elementwise`. Both are frozen dataclasses whose fields are the integer parameters of the
computation, so that equal ones make equal kernels. Geometry (windows, layouts, tiles) belongs to
the op and its template; the template calls the defs of the library.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from clnn.errors import DTypeError
from clnn.types import F32, DType

Array = npt.NDArray[Any]


class Arithmetic:
    """How sums of products are computed; subclasses are frozen dataclasses.

    library: template with the defs functions, start, mac, channel and finish. channelwise: the
    accumulator changes after each input channel, so channels are the outermost loop. tapwise: products
    are added window row by row, column by column, and channels are the innermost loop. wraps:
    accumulation is plain wrapping addition of integer products, in any order, and row 0 of the
    table is what it begins with. product: OpenCL type that operands are widened to. plain_bias:
    the table is the bias as it is, so that it may also be computed by another node. strict: no
    product and sum of floats are to be contracted. pairs: operands are pairs of bfloat16 in an int.
    apart: of transposed convolutions, products of a tap are summed by themselves, so many channels
    at a time, before they are added; 0: all in one sum. fours: so are products of a convolution by fours, which are
    rounded; inputs are real numbers, `step_in` for a step from `zero`.
    """

    library: ClassVar[str] = ""
    product: ClassVar[str] = "int"
    channelwise: ClassVar[bool] = False
    tapwise: ClassVar[bool] = False
    wraps: ClassVar[bool] = False
    plain_bias: ClassVar[bool] = False
    strict: ClassVar[bool] = False
    pairs: ClassVar[bool] = False
    apart: ClassVar[int] = 0
    fours: ClassVar[bool] = False

    @property
    def halves(self) -> bool:
        """Whether all weights of 16 bits are sums of two bytes."""
        return False

    @property
    def name(self) -> str:
        """Name in kernels."""
        raise NotImplementedError

    @property
    def acc(self) -> str:
        """OpenCL type of the accumulator."""
        return "int"

    @property
    def fill(self) -> int:
        """The value of input elements in the border, for which products count nothing."""
        return 0

    def output(self, x: DType, w: DType) -> DType:
        """Return the type of results. Raises DTypeError where it has none for these operands."""
        raise NotImplementedError

    def bias(self, x: DType, w: DType) -> DType:
        """Return the type that a bias must have."""
        raise NotImplementedError

    def refine(self, weights: Array, bias: Array | None) -> Arithmetic:
        """Return the same arithmetic with what is known of these constants: less work, same results.

        weights (oc, ...), bias (oc) or None.
        """
        return self

    def packed_products(self) -> Arithmetic:
        """Return the same arithmetic as kernels take it that add several products at once."""
        return self

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return constants per output channel as (rows, oc), for `start` and `finish`, or None.

        weights (oc, ...): one output channel each. bias (oc) or None.
        """
        raise NotImplementedError

    def result(self, acc: str, result: str) -> str:
        """Return the name of the variable that holds the result after `finish`."""
        return result

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return results (n, group, oc / group, outs...) computed with numpy.

        columns (n, group, channel, tap, outs...): what each window sees. weights (group,
        oc / group, channel, tap). bias (oc) or None.
        """
        raise NotImplementedError


class Float32(Arithmetic):
    """Single precision: fused multiply-adds that begin with the bias."""

    name = "f32"
    acc = "float"
    library = "_arith/float.cl.mako"
    product = "float"
    plain_bias = True

    def output(self, x: DType, w: DType) -> DType:
        """Return float32. Raises DTypeError for other operands."""
        if x != F32 or w != F32:
            raise DTypeError(f"product of {x.name} with {w.name}: both must be float32.")
        return F32

    def bias(self, x: DType, w: DType) -> DType:
        """Return float32."""
        return F32

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return the bias as the only row."""
        return None if bias is None else bias.reshape(1, -1)

    def result(self, acc: str, result: str) -> str:
        """Return the accumulator: sums need no finish."""
        return acc

    def packed_products(self) -> Arithmetic:
        """Return the arithmetic of pairs."""
        return PAIRS


class Bf16Pairs(Float32):
    """Single precision, of operands that are pairs of bfloat16 in an int: two products at a time."""

    product = "int"
    pairs = True


FLOAT, PAIRS = Float32(), Bf16Pairs()


class Elementwise:
    """An elementwise function of one system over one or more operands; a frozen dataclass.

    name: def of the library that computes it, and part of kernel names. library: its template.
    """

    name: ClassVar[str] = ""
    library: ClassVar[str] = ""

    def output(self, types: Sequence[DType]) -> DType:
        """Return the type of the result. Raises DTypeError where operands do not fit."""
        raise NotImplementedError

    def tables(self) -> tuple[Array, ...]:
        """Return look-up tables that the function reads, each of one axis."""
        return ()

    def on(self, features: Set[str]) -> Elementwise:
        """Return the same function as kernels of a device with such features compute it."""
        return self

    def reference(self, *operands: Array) -> Array:
        """Return the result for operands of equal shape, computed with numpy."""
        raise NotImplementedError


class IntegerMap(Elementwise):
    """A function of integers whose operands and result have fixed types."""

    @property
    def types(self) -> tuple[DType, ...]:
        """The types of the operands, then of the result."""
        raise NotImplementedError

    def output(self, types: Sequence[DType]) -> DType:
        """Return the type of the result. Raises DTypeError where operands do not fit."""
        *wanted, result = self.types
        if list(types) != wanted:
            given, needed = (", ".join(t.name for t in found) for found in (types, wanted))
            raise DTypeError(f"{self.name} of {given}: its operands must be {needed}.")
        return result

    def reference(self, *operands: Array) -> Array:
        """Return the result with numpy."""
        wide = [o if o.dtype.kind == "f" else o.astype(np.int64) for o in operands]
        return np.asarray(self.compute(*wide)).astype(self.types[-1].numpy)

    def compute(self, *operands: Array) -> Array:
        """Return the result for operands as int64."""
        raise NotImplementedError


class Averaging:
    """How a window's sum becomes its average; subclasses are frozen dataclasses.

    library: template with the defs functions(rule, width) and finish(rule, width, total, count,
    table, result), which declares `result` from a vector `total` and an int `count`. acc: what elements are
    added in, "int", or "float" for the real numbers that they stand for: of those, and in numpy, `element`.
    """

    library: ClassVar[str] = ""
    acc: ClassVar[str] = "int"

    @property
    def name(self) -> str:
        """Name in kernels."""
        raise NotImplementedError

    def accepts(self, dtype: DType) -> bool:
        """Whether this is the type of the elements, and of their average."""
        raise NotImplementedError

    def table(self, most: int) -> Array:
        """Return int32 constants (most + 1, columns) for windows of 0..most elements."""
        raise NotImplementedError

    def element(self, x: Array) -> Array:
        """Return what is added of elements: themselves, as int64."""
        return x.astype(np.int64)

    def finish(self, total: Array, count: Array) -> Array:
        """Return the averages of sums over `count` elements with numpy."""
        raise NotImplementedError
