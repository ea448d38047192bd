"""The parameters of every node, in the order of the documents, and how each is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clnn.apis.openvx.enums import (
    Activation,
    ConvertPolicy,
    NormType,
    PoolType,
    RoundPolicy,
    SizeRounding,
)
from clnn.apis.openvx.objects import Lut, number
from clnn.apis.openvx.reference import require
from clnn.apis.openvx.status import member, parameters, whole
from clnn.records import dataclass

LARGEST_PAD = 65535


@dataclass(frozen=True)
class Parameter:
    """One parameter. role: "input" or "output" (tensors), "table" or "value"."""

    name: str
    role: str
    check: Callable[[Any, str], Any] = lambda value, what: value
    optional: bool = False
    default: Any = None


def _in(name: str, optional: bool = False) -> Parameter:
    return Parameter(name, "input", optional=optional)


def _out(name: str) -> Parameter:
    return Parameter(name, "output")


def _enum(name: str, group: Any) -> Parameter:
    return Parameter(name, "value", lambda value, what: member(group, value, what))


def _count(name: str, low: int = 0, high: int = LARGEST_PAD, default: Any = None) -> Parameter:
    return Parameter(
        name, "value", lambda value, what: whole(value, low, high, what), default=default
    )


def _number(name: str) -> Parameter:
    return Parameter(name, "value", number)


def _int32(name: str) -> Parameter:
    return _count(name, -(2**31), 2**31 - 1)


def _flag(value: Any, what: str) -> bool:
    if value not in (0, 1):
        raise parameters(f"{what} is {value!r}: it must be true or false.")
    return bool(value)


_POLICIES = (
    _enum("overflow_policy", ConvertPolicy),
    _enum("rounding_policy", RoundPolicy),
)
_SIZE = _enum("down_scale_size_rounding", SizeRounding)
_FILTERS = (_in("inputs"), _in("weights"), _in("biases", True))
_BITS = _count("accumulator_bits", 1, 255)

KERNELS: dict[str, tuple[Parameter, ...]] = {
    "activation": (
        _in("inputs"),
        _enum("func", Activation),
        _int32("a"),
        _int32("b"),
        _out("outputs"),
    ),
    "convolution": (
        *_FILTERS,
        _count("pad_x"),
        _count("pad_y"),
        _BITS,
        *_POLICIES,
        _SIZE,
        _out("outputs"),
        _count("dilation_x", default=0),
        _count("dilation_y", default=0),
    ),
    "deconvolution": (
        *_FILTERS,
        _count("padding_x"),
        _count("padding_y"),
        *_POLICIES,
        _count("a_x"),
        _count("a_y"),
        _out("outputs"),
    ),
    "fully_connected": (*_FILTERS, _count("pad"), _BITS, *_POLICIES, _SIZE, _out("outputs")),
    "normalization": (
        _in("inputs"),
        _enum("type", NormType),
        _count("norm_size", 1),
        _number("alpha"),
        _number("beta"),
        _out("outputs"),
    ),
    "pooling": (
        _in("inputs"),
        _enum("pool_type", PoolType),
        _count("pool_size_x", 1),
        _count("pool_size_y", 1),
        _count("pool_pad_x"),
        _count("pool_pad_y"),
        _enum("rounding", SizeRounding),
        _out("outputs"),
    ),
    "softmax": (_in("inputs"), _out("outputs")),
    "add": (_in("in1"), _in("in2"), _enum("policy", ConvertPolicy), _out("out")),
    "subtract": (_in("in1"), _in("in2"), _enum("policy", ConvertPolicy), _out("out")),
    "multiply": (_in("in1"), _in("in2"), _number("scale"), *_POLICIES, _out("out")),
    "table_lookup": (
        _in("in1"),
        Parameter("lut", "table", lambda v, what: require(Lut, v, what)),
        _out("out"),
    ),
    "transpose": (_in("in"), _out("out"), _count("dim1", 0, 5), _count("dim2", 0, 5)),
    "convert_depth": (
        _in("input"),
        _enum("policy", ConvertPolicy),
        _number("norm"),
        _number("offset"),
        _out("output"),
    ),
    "matrix_multiply": (
        _in("input1"),
        _in("input2"),
        _in("input3", True),
        Parameter("transpose_input1", "value", _flag, default=False),
        Parameter("transpose_input2", "value", _flag, default=False),
        Parameter("transpose_input3", "value", _flag, default=False),
        _out("output"),
    ),
}


def output_of(kernel: str) -> str:
    """Return the name of a kernel's output."""
    return next(p.name for p in KERNELS[kernel] if p.role == "output")
