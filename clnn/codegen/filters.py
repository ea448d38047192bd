"""Typed text for templates: what may be printed into OpenCL source, and index expressions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index as index_of
from typing import Any

import numpy as np

from clnn.layout import TensorLayout
from clnn.target import LARGE_REGISTERS, RegisterMode
from clnn.traced import Traced, divides, is_one, is_open, is_traced, is_zero, room, times, today
from clnn.types import Stored

SMALL = ("char", "uchar", "short", "ushort")
WIDE = 8  # halves of a vector whose address has to be aligned for some compilers
S8_ZERO = 3 << 22  # 1.5 * 2**23: float32 numbers around it are integers
S8_BITS = 0x4B400000  # of that float32 number


def cl_text(value: Any) -> str:
    """Default filter: integers and text as they are; refuses None, bool and floats.

    Raises TypeError, so that `${x}` never prints "None" or an invalid literal.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Traced) and not isinstance(value.value, float):
        return str(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return str(int(value))
    raise TypeError(f"a template printed {value!r}: use scalar() for numbers, i() for integers")


def scalar(value: Any, ctype: str = "float") -> str:
    """Return a literal of OpenCL type `ctype`. Raises TypeError for what is not a number."""
    if value is None or isinstance(value, (bool, str)):
        raise TypeError(f"{value!r} is not a number")
    if isinstance(value, Traced):
        return f"(({ctype}){value})"
    if ctype not in ("float", "half", "double"):
        return _integer(int(value), ctype)
    number = float(value)
    suffix = "" if ctype == "double" else "f"
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "(-INFINITY)"
    with np.errstate(over="ignore"):
        text = repr(number) if ctype == "double" else repr(float(np.float32(number)))
    if ctype != "double" and math.isinf(float(text)):
        return "INFINITY" if number > 0 else "(-INFINITY)"
    text = f"{text}{suffix}" if any(s in text for s in ".en") else f"{text}.0{suffix}"
    return f"({text})" if text.startswith("-") else text


def _integer(value: int, ctype: str) -> str:
    if ctype == "long" and value == -(2**63):
        return "LONG_MIN"
    if ctype == "int" and value == -(2**31):
        return "INT_MIN"
    suffix = {"long": "L", "ulong": "UL", "uint": "u"}.get(ctype, "")
    return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"


def index(layout: TensorLayout, *ids: str | int) -> str:
    """Return the element index of logical index `ids` relative to the first real element.

    Axes of extent 1 and axes with pitch 0 drop out; integers fold.
    """
    if len(ids) != layout.rank:
        raise TypeError(f"{len(ids)} indices for a layout of rank {layout.rank}")
    fixed, terms = 0, []
    for which, extent, pitch in zip(ids, layout.shape, layout.pitches, strict=True):
        if isinstance(which, (int, Traced)):
            fixed += which * pitch
        elif not is_zero(pitch) and not (is_one(extent) and not _pads(layout)):
            terms.append(which if is_one(pitch) else f"({which}) * {pitch}")
    if isinstance(fixed, Traced) or fixed or not terms:
        terms.append(str(fixed))
    return " + ".join(terms)


def _pads(layout: TensorLayout) -> bool:
    return layout.has_padding


def image(layout: TensorLayout) -> TensorLayout:
    """Return a layout of rank 3 (N, C, W) as (N, C, 1, W); rank 4 as it is."""
    if layout.rank == 4:
        return layout
    if layout.rank != 3:
        raise TypeError(f"an image has 3 or 4 axes, not {layout.rank}")

    def widen(values: Sequence[int], middle: int) -> tuple[int, ...]:
        return (values[0], values[1], middle, values[2])

    return TensorLayout(
        widen(layout.shape, 1),
        widen(layout.pitches, 0),
        widen(layout.before, 0),
        widen(layout.after, 0),
        layout.offset,
        layout.size,
    )


SIZES = {
    "char": 1,
    "uchar": 1,
    "short": 2,
    "ushort": 2,
    "half": 2,
    "int": 4,
    "uint": 4,
    "float": 4,
    "long": 8,
    "ulong": 8,
    "double": 8,
}


def size_of(ctype: str) -> int:
    """Return the bytes of one OpenCL scalar in memory."""
    return SIZES[cell(ctype)]


def vec_type(ctype: str, width: int) -> str:
    """Return the OpenCL vector type of `width` elements."""
    width = index_of(width)
    return ctype if width == 1 else f"{ctype}{width}"


def load(ctype: str, width: int, pointer: str, where: str, pitch: int = 1) -> str:
    """Return an expression that loads `width` elements at pointer[where] (pitch 0: one, spread)."""
    width = index_of(width)
    if width != 1 and is_traced(pitch):
        pitch = index_of(pitch)  # by which one the text is made
    if is_zero(pitch):
        return f"({vec_type(ctype, width)})({element(ctype, pointer, where)})"
    if width != 1 and pitch != 1:
        raise TypeError(f"cannot load {width} elements of pitch {pitch} at once")
    if width == 1:
        return element(ctype, pointer, where)
    if stored_as(ctype) == "half":
        return load_half(width, pointer, where)
    text = f"vload{width}(0, {pointer} + ({where}))"
    if cell(ctype) in SMALL:
        text = small_vector(vec_type(cell(ctype), width), pointer, where)
    if not isinstance(ctype, Stored):
        return text
    return f"as_{ctype}{width}(convert_uint{width}({text}) << 16)"


def element(ctype: str, pointer: str, where: str) -> str:
    """Return an expression of the one element pointer[where]."""
    if stored_as(ctype) == "half":
        return f"vload_half({where}, {pointer})"
    text = f"{pointer}[{where}]"
    if not isinstance(ctype, Stored):
        return text
    return f"as_{ctype}((uint){text} << 16)"


def store(
    width: int, value: str, pointer: str, where: str, ctype: str = "", space: str = "__global"
) -> str:
    """Return a statement that stores `width` elements of `ctype` at pointer[where] in `space`.

    To fewer bits values are rounded to nearest, ties to even. ctype may be left out where elements
    lie in memory as they are.
    """
    width = index_of(width)
    n = "" if width == 1 else str(width)
    if isinstance(ctype, Stored):
        if ctype.cell == "half":
            return store_half(width, value, pointer, where)
        plain = store(width, f"convert_ushort{n}(b_ >> 16)", pointer, where, "ushort")
        return (
            f"{{ const {ctype}{n} f_ = {value}; uint{n} b_ = as_uint{n}(f_); "
            f"b_ = f_ != f_ ? b_ | 0x400000u : b_ + 0x7fffu + (b_ >> 16 & 1u); {plain} }}"
        )
    if width == 1:
        return f"{pointer}[{where}] = {value};"
    if ctype in SMALL or (ctype == "float" and width >= WIDE):
        at = small_vector(vec_type(ctype, width), pointer, where, "", space)
        return f"{at} = {value};"
    return f"vstore{width}({value}, 0, {pointer} + ({where}));"


def load_half(width: int, pointer: str, where: str) -> str:
    """Return an expression of `width` halves at pointer[where] in global memory as floats.

    Wide vectors go through registers: a CPU compiler takes their addresses for aligned.
    """
    if width == 1:
        return f"vload_half({where}, {pointer})"
    if width < WIDE:
        return f"vload_half{width}(0, {pointer} + ({where}))"
    bits = small_vector(f"ushort{width}", pointer, where)
    return f"({{ ushort{width} h_ = {bits}; vload_half{width}(0, (__private const half *)&h_); }})"


def store_half(width: int, value: str, pointer: str, where: str) -> str:
    """Return a statement that stores floats as `width` halves, rounded to nearest, ties to even."""
    if width == 1:
        return f"vstore_half_rte({value}, {where}, {pointer});"
    if width < WIDE:
        return f"vstore_half{width}_rte({value}, 0, {pointer} + ({where}));"
    bits = f"ushort{width} h_; vstore_half{width}_rte({value}, 0, (__private half *)&h_);"
    at = small_vector(f"ushort{width}", pointer, where, const="")
    return f"{{ {bits} {at} = h_; }}"


def small_vector(
    vector: str, pointer: str, where: str, const: str = "const ", space: str = "__global"
) -> str:
    """Return the vector of elements at pointer[where] in `space`, of any alignment.

    As a member of a packed structure, for CPU compilers make vloadn of bytes one by one, and of
    vstore16 of floats three stores.
    """
    packed = f"{const}struct {{ {vector} v; }} __attribute__((packed))"
    return f"(({space} {packed} *)({pointer} + ({where})))->v"


def stored_as(ctype: str) -> str:
    """Return the smaller OpenCL type that values of `ctype` are stored in, "" where there is none."""
    return ctype.cell if isinstance(ctype, Stored) else ""


def cell(ctype: str) -> str:
    """Return the OpenCL type of elements in memory whose values in registers are of `ctype`."""
    return stored_as(ctype) or ctype


SIGNED = ("char", "short", "int", "long")


def wrapped(a: str, operator: str, b: str, ctype: str, width: int) -> str:
    """Return the sum, difference or product of `ctype` values modulo 2 to the power of its bits.

    C leaves the overflow of signed integers undefined, and that of a ushort product, which is an int.
    """
    own = vec_type(ctype, width)
    if ctype in SIGNED:
        unsigned = vec_type(f"u{ctype}", width)
        a, b = f"as_{unsigned}({a})", f"as_{unsigned}({b})"
    if width == 1 and operator == "*" and ctype in ("short", "ushort"):
        a = f"(uint){a}"
    if ctype in SIGNED:
        return f"as_{own}(({unsigned})({a} {operator} {b}))"
    return f"({own})({a} {operator} {b})" if ctype in ("uchar", "ushort") else f"{a} {operator} {b}"


def group_size(local: Sequence[int], mode: RegisterMode | None = None) -> str:
    """Return the attributes that fix a kernel's work-group size, and what it asks of registers."""
    sizes = [*local, 1, 1, 1][:3]
    fixed = f"__attribute__((reqd_work_group_size({sizes[0]}, {sizes[1]}, {sizes[2]})))"
    return (asked_of_registers(mode) if mode else "") + fixed


def asked_of_registers(mode: RegisterMode) -> str:
    """Return the lines in front of a kernel that ask for a mode, "" for what the compiler does unasked."""
    lines = [LARGE_REGISTERS] if mode.large else []
    if mode.lanes == 64:
        lines.append('__attribute__((target("wavefrontsize64")))')
    elif mode.lanes:
        lines.append(f"__attribute__((intel_reqd_sub_group_size({mode.lanes})))")
    return "".join(f"{line}\n" for line in lines)


HELPERS: dict[str, Any] = {
    "scalar": scalar,
    "index": index,
    "image": image,
    "size_of": size_of,
    "vec_type": vec_type,
    "load": load,
    "store": store,
    "load_half": load_half,
    "store_half": store_half,
    "element": element,
    "small_vector": small_vector,
    "cell": cell,
    "stored_as": stored_as,
    "prod": math.prod,
    "divides": divides,
    "is_one": is_one,
    "is_open": is_open,
    "is_traced": is_traced,
    "is_zero": is_zero,
    "room": room,
    "times": times,
    "today": today,
    "group_size": group_size,
    "wrapped": wrapped,
}
