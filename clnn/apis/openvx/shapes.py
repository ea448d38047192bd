"""What each node demands of the formats and sizes of its tensors, and what it makes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from clnn.apis.openvx.enums import SizeRounding, Status, Type
from clnn.apis.openvx.status import VxError
from clnn.apis.openvx.tensor import LARGEST
from clnn.records import dataclass

BITS = {Type.VX_TYPE_INT8: 8, Type.VX_TYPE_UINT8: 8, Type.VX_TYPE_INT16: 16}
LARGEST_WINDOW = 2**22  # elements of a pooling window
Dims = tuple[int, ...]


@dataclass(frozen=True)
class Meta:
    """Sizes (innermost first), element type and fixed-point position of a tensor."""

    dims: Dims
    kind: Type
    fraction: int = 0

    @property
    def known(self) -> bool:
        """Whether nothing is left open."""
        return bool(self.dims) and 0 not in self.dims and self.kind is not Type.VX_TYPE_INVALID

    def completed(self, other: Meta) -> Meta:
        """Return this with what is left open taken from `other`."""
        dims = self.dims or (0,) * len(other.dims)
        if len(dims) == len(other.dims):
            dims = tuple(o if d == 0 else d for d, o in zip(dims, other.dims, strict=True))
        if self.kind is Type.VX_TYPE_INVALID:
            return Meta(dims, other.kind, other.fraction)
        return Meta(dims, self.kind, self.fraction)

    def __str__(self) -> str:
        kind = self.kind.name.removeprefix("VX_TYPE_").lower()
        return f"{kind}{f' Q.{self.fraction}' if self.fraction else ''} {list(self.dims)}"


@dataclass(frozen=True)
class Call:
    """A node as the checks see it: metas of its tensors (None where left out), values of the rest."""

    label: str
    tensors: dict[str, Meta | None]
    values: dict[str, Any]
    conformance: bool

    def meta(self, name: str) -> Meta:
        """Return the meta of a tensor that is there."""
        meta = self.tensors[name]
        assert meta is not None
        return meta

    def fail(self, status: Status, why: str) -> VxError:
        """Return the error that names this node."""
        return VxError(status, f"{self.label}: {why}")

    def demand(self, holds: bool, why: str) -> None:
        """Raise VxError (invalid dimension) where a condition on sizes does not hold."""
        if not holds:
            raise self.fail(Status.VX_ERROR_INVALID_DIMENSION, why)

    def alike(self, *names: str, positions: bool = False) -> None:
        """Raise VxError (invalid format) where element types (and positions) differ."""
        metas = [(n, m) for n in names if (m := self.tensors[n]) is not None]
        kept = [(n, m) for n, m in metas if m.kind is not Type.VX_TYPE_INVALID]
        kinds = {(m.kind, m.fraction if positions else 0) for _, m in kept}
        if len(kinds) > 1:
            listed = ", ".join(f"{n} {m}" for n, m in kept)
            what = "element types and fixed-point positions" if positions else "element types"
            raise self.fail(Status.VX_ERROR_INVALID_FORMAT, f"{what} must be equal: {listed}.")


def stride(extent: int, out: int, reach: int, pad: int, ceil: bool) -> int | None:
    """Return the smallest stride that makes `out` windows of `reach` over a padded extent."""
    room = extent + 2 * pad - reach
    if room < 0 or out < 1:
        return None
    if out == 1:
        return room + 1 if not ceil or room == 0 else None
    least = -(-room // (out - 1)) if ceil else room // out + 1
    least = max(least, 1)
    count = -(-room // least) if ceil else room // least
    return least if count == out - 1 else None


def pool_stride(
    extent: int, out: int, size: int, pad: int, ceil: bool, conformance: bool
) -> int | None:
    """Return the stride of a pooling, the smallest that gives the sizes with its rounding.

    With `conformance`, sizes of the other rounding serve too, where those of its own do not.
    """
    step = stride(extent, out, size, pad, ceil)
    return stride(extent, out, size, pad, not ceil) if step is None and conformance else step


def _open(call: Call, name: str) -> None:
    """Raise VxError where the sizes of the output, which fix the stride, are left open."""
    dims = call.meta(name).dims
    call.demand(
        bool(dims) and 0 not in dims,
        f"{name} has no sizes, and the stride follows from "
        "them. Give the virtual tensor its sizes.",
    )


def _image(call: Call, name: str) -> Dims:
    dims = call.meta(name).dims
    call.demand(
        len(dims) in (3, 4),
        f"{name} is {list(dims)}: it must be [width, height, maps] or "
        "[width, height, maps, batch].",
    )
    return dims


def _strides(call: Call, out: Dims, reach: Dims, pads: Dims, ceil: bool, ins: Dims) -> None:
    for axis, name in enumerate("xy"):
        step = stride(ins[axis], out[axis], reach[axis], pads[axis], ceil)
        _reached(call, step, (ins[axis], out[axis], reach[axis], pads[axis]), name)
    _padded(call, ins, pads)


def _reached(call: Call, step: int | None, sizes: Dims, name: str) -> None:
    extent, out, reach, pad = sizes
    call.demand(
        step is not None,
        f"no stride makes {out} outputs along {name} of {extent} inputs "
        f"with {pad} padding on each side and a window of {reach}.",
    )


def _padded(call: Call, ins: Dims, pads: Dims) -> None:
    """Raise VxError where the padded input has more elements than kernels count."""
    sides = [d + 2 * p for d, p in zip(ins, pads, strict=False)]
    count = math.prod((*sides, *ins[2:]))
    call.demand(count <= LARGEST, f"the padded input has {count} elements: at most {LARGEST}.")


def _biases(call: Call, ofm: int, places: Dims) -> None:
    bias = call.tensors["biases"]
    if bias is None:
        return
    good = bias.dims in ((ofm,), (*places, ofm))
    call.demand(
        good,
        f"biases are {list(bias.dims)}: they must be [{ofm}], or "
        f"{[*places, ofm]} for one per place.",
    )


def _filter_formats(call: Call) -> None:
    """Check the formats of inputs, weights, biases and outputs, and the accumulator's width."""
    call.alike("inputs", "weights", "biases", "outputs")
    x, w = call.meta("inputs"), call.meta("weights")
    out = call.meta("outputs").completed(x)
    if x.kind not in BITS:
        return
    bias = call.tensors["biases"]
    if bias is not None and bias.fraction != out.fraction:
        raise call.fail(
            Status.VX_ERROR_INVALID_FORMAT,
            f"biases {bias} must have the fixed-point position of outputs {out}.",
        )
    if x.fraction + w.fraction < out.fraction:
        raise call.fail(
            Status.VX_ERROR_INVALID_FORMAT,
            f"outputs {out} have more fraction bits than products of {x} and {w}.",
        )
    bits = call.values.get("accumulator_bits", 32)
    if not BITS[out.kind] <= bits <= 64:
        raise call.fail(
            Status.VX_ERROR_INVALID_VALUE,
            f"accumulator_bits is {bits}: allowed is {BITS[out.kind]} to 64 for these outputs.",
        )


def _filter_sizes(call: Call) -> tuple[Dims, Dims, Dims]:
    """Return the sizes of inputs, weights and outputs of a filter after checking them."""
    ins, weights = _image(call, "inputs"), call.meta("weights").dims
    _open(call, "outputs")
    out = _image(call, "outputs")
    call.demand(
        len(weights) == 4 and weights[2] == ins[2],
        f"weights {list(weights)} must be [kernel_x, kernel_y, {ins[2]}, ofm].",
    )
    wanted = (*out[:2], weights[3], *ins[3:])
    call.demand(out == wanted, f"outputs are {list(out)}, must be {list(wanted)}.")
    return ins, weights, out


def _convolution(call: Call) -> Meta:
    ins, weights, out = _filter_sizes(call)
    values = call.values
    gaps = (values["dilation_x"] + 1, values["dilation_y"] + 1)
    reach = tuple((k - 1) * g + 1 for k, g in zip(weights[:2], gaps, strict=True))
    rounding = values["down_scale_size_rounding"]
    ceil = rounding is SizeRounding.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_CEILING
    _strides(call, out, reach, (values["pad_x"], values["pad_y"]), ceil, ins)
    _biases(call, weights[3], out[:2])
    _filter_formats(call)
    return replace(call.meta("inputs"), dims=out)


def upscale(extent: int, out: int, kernel: int, pad: int, extra: int) -> int | None:
    """Return the upscaling of a deconvolution along one axis, or None where none fits."""
    grown = out + 2 * pad - kernel - extra
    if extent == 1:
        return max(extra + 1, 1) if grown == 0 else None
    if grown <= 0 or grown % (extent - 1):
        return None
    factor = grown // (extent - 1)
    return factor if extra < factor else None


def _deconvolution(call: Call) -> Meta:
    ins, weights, out = _filter_sizes(call)
    values = call.values
    for axis, name in enumerate("xy"):
        pad, extra = values[f"padding_{name}"], values[f"a_{name}"]
        call.demand(
            pad < weights[axis],
            f"padding_{name} is {pad}: it must be below the kernel's {weights[axis]}.",
        )
        call.demand(
            upscale(ins[axis], out[axis], weights[axis], pad, extra) is not None,
            f"no upscaling makes {out[axis]} outputs along {name} of "
            f"{ins[axis]} inputs with kernel {weights[axis]}, padding {pad} and a "
            f"{extra}.",
        )
    _biases(call, weights[3], out[:2])
    _filter_formats(call)
    return replace(call.meta("inputs"), dims=out)


def single_input(ins: Dims, weights: Dims, out: Dims, pad: int) -> int | None:
    """Return how many dimensions one input of a fully connected layer has, or None.

    out: empty where it is not known.
    """
    for core in range(1, min(3, len(ins)) + 1):
        size = [d + 2 * pad if a < 2 else d for a, d in enumerate(ins[:core])]
        fits = tuple(size) == weights[:-1] or (math.prod(size),) == weights[:-1]
        batch, ofm = ins[core:], weights[-1]
        if fits and out in ((), (ofm, *batch), ((1,) * (core - 1) + (ofm, *batch))):
            return core
    return None


def _fully_connected(call: Call) -> Meta:
    ins, weights = call.meta("inputs").dims, call.meta("weights").dims
    sizes = call.meta("outputs").dims
    out = () if 0 in sizes else sizes
    call.demand(2 <= len(weights) <= 4, f"weights are {list(weights)}: 2 to 4 dimensions.")
    core = single_input(ins, weights, out, call.values["pad"])
    call.demand(
        core is not None,
        f"inputs {list(ins)} with pad {call.values['pad']}, weights "
        f"{list(weights)} and outputs {list(sizes)} do not fit: outputs must be "
        f"[{weights[-1]}, batch...].",
    )
    bias = call.tensors["biases"]
    if bias is not None:
        good = bias.dims[-1] == weights[-1] == math.prod(bias.dims)
        call.demand(good, f"biases are {list(bias.dims)}, must be [{weights[-1]}].")
    _filter_formats(call)
    x = call.meta("inputs")
    return Meta(out or (weights[-1], *ins[core:]), x.kind, x.fraction)


def _same(call: Call) -> Meta:
    """Return the meta of a node whose output is as its input; positions may differ."""
    call.alike("inputs", "outputs")
    return call.meta("inputs")


def _normalization(call: Call) -> Meta:
    _image(call, "inputs")
    size = call.values["norm_size"]
    if call.meta("inputs").kind in BITS and size > 1024:
        raise call.fail(Status.VX_ERROR_INVALID_VALUE, f"norm_size is {size}: at most 1024.")
    return _same(call)


def _pooling(call: Call) -> Meta:
    ins = _image(call, "inputs")
    _open(call, "outputs")
    out, values = call.meta("outputs").dims, call.values
    wanted = (*out[:2], *ins[2:])
    call.demand(out == wanted, f"outputs are {list(out)}, must be {list(wanted)}.")
    size = (values["pool_size_x"], values["pool_size_y"])
    ceil = values["rounding"] is SizeRounding.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_CEILING
    for axis, name in enumerate("xy"):
        pad = values[f"pool_pad_{name}"]
        step = pool_stride(ins[axis], out[axis], size[axis], pad, ceil, call.conformance)
        _reached(call, step, (ins[axis], out[axis], size[axis], pad), name)
    _padded(call, ins, (values["pool_pad_x"], values["pool_pad_y"]))
    call.demand(math.prod(size) <= LARGEST_WINDOW, f"a window of {list(size)} is too large.")
    call.alike("inputs", "outputs", positions=True)
    return replace(call.meta("inputs"), dims=wanted)


def _pair(call: Call, positions: bool) -> Meta:
    one, two = call.meta("in1"), call.meta("in2")
    call.alike("in1", "in2", "out", positions=positions)
    fits = len(one.dims) == len(two.dims) and all(
        a == b or 1 in (a, b) for a, b in zip(one.dims, two.dims, strict=True)
    )
    call.demand(
        fits,
        f"in1 {list(one.dims)} and in2 {list(two.dims)} must have equal sizes, or 1 "
        "where one is repeated.",
    )
    dims = tuple(max(a, b) for a, b in zip(one.dims, two.dims, strict=True))
    return Meta(dims, one.kind, one.fraction)


def _table(call: Call) -> Meta:
    call.alike("in1", "out", positions=True)
    kind, table = call.meta("in1").kind, call.values["lut"].kind
    if kind is not table:
        raise call.fail(
            Status.VX_ERROR_INVALID_TYPE, f"in1 is {kind.name}, the table {table.name}."
        )
    return call.meta("in1")


def _transpose(call: Call) -> Meta:
    call.alike("in", "out", positions=True)
    source, (one, two) = call.meta("in"), (call.values["dim1"], call.values["dim2"])
    if max(one, two) >= len(source.dims):
        raise call.fail(
            Status.VX_ERROR_INVALID_VALUE,
            f"dim1 {one} and dim2 {two} must be below {len(source.dims)}.",
        )
    dims = list(source.dims)
    dims[one], dims[two] = dims[two], dims[one]
    return Meta(tuple(dims), source.kind, source.fraction)


def _depth(call: Call) -> Meta:
    source, out = call.meta("input"), call.meta("output")
    for meta in (source, out):
        if meta.kind is Type.VX_TYPE_INVALID:
            raise call.fail(Status.VX_ERROR_INVALID_FORMAT, "output has no element type.")
    return Meta(source.dims, out.kind, out.fraction)


def _matrices(call: Call) -> Meta:
    call.alike("input1", "input2", "input3", "output")
    turned = {}
    for k in (1, 2, 3):
        meta = call.tensors[f"input{k}"]
        if meta is not None:
            call.demand(len(meta.dims) == 2, f"input{k} is {list(meta.dims)}: it must be a matrix.")
            turned[k] = meta.dims[::-1] if call.values[f"transpose_input{k}"] else meta.dims
    (inner, rows), (columns, depth) = turned[1], turned[2]
    call.demand(inner == depth, f"input1 has {inner} columns, input2 {depth} rows.")
    call.demand(
        turned.get(3, (columns, rows)) == (columns, rows),
        f"input3 is {list(turned.get(3, ()))}, must be {[columns, rows]}.",
    )
    x, out, c = call.meta("input1"), call.meta("output"), call.tensors["input3"]
    product = Meta((columns, rows), x.kind, x.fraction)
    whole = out.completed(product)
    if x.fraction + call.meta("input2").fraction < whole.fraction:
        raise call.fail(
            Status.VX_ERROR_INVALID_FORMAT,
            f"output {whole} has more fraction bits than the products.",
        )
    if c is not None and c.fraction != whole.fraction:
        raise call.fail(
            Status.VX_ERROR_INVALID_FORMAT,
            f"input3 {c} must have the fixed-point position of output {whole}.",
        )
    return product


CHECKS: dict[str, Callable[[Call], Meta]] = {
    "activation": _same,
    "convolution": _convolution,
    "deconvolution": _deconvolution,
    "fully_connected": _fully_connected,
    "normalization": _normalization,
    "pooling": _pooling,
    "softmax": _same,
    "add": lambda call: _pair(call, True),
    "subtract": lambda call: _pair(call, True),
    "multiply": lambda call: _pair(call, False),
    "table_lookup": _table,
    "transpose": _transpose,
    "convert_depth": _depth,
    "matrix_multiply": _matrices,
}
