"""Layers that random quantised networks are drawn from: QDQ, QLinear operators, dynamic quantisation.

A value of such a network is a tensor of bytes with its scale and zero point, which are chosen by the range that
onnxruntime finds for it. Weights are bytes too, per tensor or per output channel. In one network of three all
scales are one number times powers of two, so that many results lie halfway between two steps; products that
onnxruntime adds in float32, by its processor's order, are left out there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from drawing import Drawer, moderate

MICROSOFT = "com.microsoft"
F32 = "float32"
TIES = 1 / 3  # of the networks


@dataclass(frozen=True)
class Bytes:
    """A quantised tensor: names of its bytes, scale and zero point."""

    name: str
    scale: str
    zero: str

    @property
    def parts(self) -> list[str]:
        """As QLinear operators take it."""
        return [self.name, self.scale, self.zero]


class QuantisedDrawer(Drawer):
    """Draws a quantised network; ties: scales may be made for them. kept: its tensors of bytes so far."""

    def __init__(self, seed: int, ties: bool) -> None:
        super().__init__(seed)
        self.kept: list[Bytes] = []
        self.kind = self.one_of(("uint8", "int8"))
        self.weight_kind = self.one_of(("int8", "int8", "uint8"))
        base = self.one_of((1.0, 0.0371)) if self.chance.random() < TIES else None
        self.base = base if ties else None

    def begin(self) -> None:
        """Draw the input: an image, or rows, of floats that are quantised, or of bytes."""
        shape = (
            self.up_to(2),
            self.one_of((1, 2, 3, 4, 8, 16, 19)),
            self.up_to(12, 3),
            self.up_to(12, 3),
        )
        if self.chance.random() < 0.25:
            shape = (self.up_to(5), self.one_of((3, 8, 16, 33)))
        x = self.array(shape, low=self.one_of((-16, -16, 0)))
        self.net.inputs.append(x)
        self.quantised(x)

    def tensor(self, ranks: tuple[int, ...] = (2, 3, 4)) -> Bytes | None:
        """Return a tensor of bytes, more often a late one."""
        fits = [b for b in self.kept if self.of(b.name).ndim in ranks and self.of(b.name).size]
        return fits[-1 - int(len(fits) * self.chance.random() ** 2)] if fits else None

    def like(self, other: Bytes) -> Bytes:
        """Return a tensor of the same shape, another where there is one."""
        shape = self.of(other.name).shape
        fits = [b for b in self.kept if self.of(b.name).shape == shape and b != other]
        return self.one_of(fits) if fits else other

    def real(self, b: Bytes) -> str:
        """Dequantise; return the real numbers' name."""
        return self.node("DequantizeLinear", b.parts)[0]

    def stepped(self, scale: float) -> float:
        """Return a scale for one that would fit: the next larger one where a network has those of a base."""
        if self.base is None:
            return scale
        return float(self.base * 2.0 ** np.ceil(np.log2(scale / self.base)))

    @property
    def has_exact_products(self) -> bool:
        """Whether products in QDQ form are sums of integers, or results seldom at ties."""
        return self.base is None or self.kind == "uint8"

    def steps(self, value: np.ndarray) -> tuple[str, str]:
        """Return scale and zero point for real numbers, at times of less than their range."""
        share = self.one_of((1.0, 1.0, 1.0, 0.6))
        low, high = (share * float(f(0.0, e)) for f, e in ((min, value.min()), (max, value.max())))
        info = np.iinfo(self.kind)
        if self.kind == "int8" and self.chance.random() < 0.4:  # symmetric
            scale, zero = self.stepped(max(-low, high, 1e-3) / 127), 0
        else:
            scale = self.stepped(max(high - low, 1e-3) / 255)
            zero = int(np.clip(np.rint(info.min - low / scale), info.min, info.max))
        return self.const(np.float32(scale), F32), self.const(zero, self.kind)

    def quantised(self, real: str) -> Bytes | None:
        """Quantise real numbers, where there are any; keep and return the tensor."""
        if not self.of(real).size:
            return None
        scale, zero = self.steps(self.of(real))
        return self.keep(self.node("QuantizeLinear", [real, scale, zero]), scale, zero)

    def keep(self, made: list[str], scale: str, zero: str) -> Bytes | None:
        """Keep what a node made of bytes, where the real numbers are moderate."""
        if not made:
            return None
        whole = self.of(made[0]).astype(np.float64) - self.of(zero)
        if not moderate(whole * self.of(scale)):
            return None
        self.kept.append(Bytes(made[0], scale, zero))
        return self.kept[-1]

    def filters(self, shape: tuple[int, ...], axis: int) -> Bytes:
        """Return constant weights with a scale for each index of an axis, or one."""
        info, rows = np.iinfo(self.weight_kind), shape[axis]
        # onnxruntime's products of uint8 by int8 saturate where a CPU has no instruction for them.
        low, high = (-64, 64) if self.weight_kind == "int8" else (info.min, info.max + 1)
        data = self.chance.integers(low, high, shape)
        each = self.chance.random() < 0.5
        steps = self.chance.uniform(0.002, 0.02, rows if each else ()).astype(np.float32)
        steps = steps if self.base is None else np.exp2(np.floor(np.log2(steps)))
        zero = np.zeros(steps.shape, int)
        if self.weight_kind == "uint8":
            zero = zero + 128 if each or self.chance.random() < 0.3 else zero + self.up_to(200, 60)
        names = (
            self.const(a, k)
            for a, k in ((data, self.weight_kind), (steps, F32), (zero, self.weight_kind))
        )
        return Bytes(*names)

    def bias(self, x: Bytes, w: Bytes, rows: int) -> tuple[str, str]:
        """Return constants: a bias of int32 in steps of the sums, and these steps."""
        steps = np.asarray(self.of(x.scale) * self.of(w.scale), np.float32)
        most = 2000
        return self.const(self.chance.integers(-most, most, rows), "int32"), self.const(steps, F32)


def _around(
    d: QuantisedDrawer, op: str, x: Bytes, w: Bytes, axis: int, rows: int, **attrs: Any
) -> None:
    """A product in QDQ form, at times with a bias and an activation behind it."""
    per = {"axis": axis} if d.of(w.scale).ndim else {}
    weights = d.node("DequantizeLinear", w.parts, **per)
    if not weights:  # too many
        return
    inputs = [d.real(x), *weights]
    if op != "MatMul" and d.chance.random() < 0.6:
        data, steps = d.bias(x, w, rows)
        zero = d.const(np.zeros(d.of(steps).shape), "int32")
        inputs += d.node("DequantizeLinear", [data, steps, zero], **({"axis": 0} if per else {}))
    made = d.node(op, inputs, **attrs)
    if made and d.chance.random() < 0.4:
        act = d.one_of(("Relu", "Clip", "LeakyRelu", "Sigmoid") if d.base is None else ("Relu",))
        limits = [d.const(0, F32), d.const(6, F32)] if act == "Clip" else []
        made = d.node(act, [*made, *limits])
    if made:
        d.quantised(made[0])


def _window(d: QuantisedDrawer, x: Bytes, most: int = 3) -> tuple[tuple[int, int], dict[str, Any]]:
    size = d.of(x.name).shape[2:]
    kernel = tuple(min(d.up_to(most), s) for s in size)
    pads = [d.up_to(k - 1, 0) for k in (*kernel, *kernel)]
    return (kernel[0], kernel[1]), {"strides": [d.up_to(2), d.up_to(2)], "pads": pads}


def conv(d: QuantisedDrawer) -> None:
    """A convolution: QDQ, or QLinearConv; dense, in groups or depthwise."""
    x = d.tensor((4,))
    if x is None:
        return
    channels = d.of(x.name).shape[1]
    groups = d.one_of([1, 1, channels, *(g for g in (2, 4) if channels % g == 0)])
    rows = groups * d.up_to(2) if groups > 1 else d.one_of((1, 3, 4, 8, 16, 20))
    kernel, attrs = _window(d, x)
    attrs["group"] = groups
    if d.chance.random() < 0.2:
        attrs["dilations"] = [d.up_to(2), d.up_to(2)]
    w = d.filters((rows, channels // groups, *kernel), 0)
    if d.chance.random() < 0.6 and d.has_exact_products:
        _around(d, "Conv", x, w, 0, rows, **attrs)
        return
    step, zero = _scale_like(d, x, channels // groups * kernel[0] * kernel[1], w)
    more = [d.bias(x, w, rows)[0]] * (d.chance.random() < 0.5)
    d.keep(d.node("QLinearConv", [*x.parts, *w.parts, step, zero, *more], **attrs), step, zero)


def _scale_like(d: QuantisedDrawer, x: Bytes, terms: int, w: Bytes) -> tuple[str, str]:
    """Return scale and zero point for sums of so many products."""
    scale = float(d.of(x.scale)) * float(d.of(w.scale).mean()) * 60 * terms**0.5
    info = np.iinfo(d.kind)
    scale = d.stepped(scale)
    return d.const(np.float32(scale), F32), d.const(d.up_to(info.max // 2, info.min // 2), d.kind)


def transposed(d: QuantisedDrawer) -> None:
    """A transposed convolution in QDQ form."""
    x = d.tensor((4,))
    if x is not None:
        channels, rows = d.of(x.name).shape[1], d.one_of((1, 2, 4, 8))
        kernel = (d.up_to(4), d.up_to(4))
        w = d.filters((channels, rows, *kernel), 1)
        _around(d, "ConvTranspose", x, w, 1, rows, strides=[d.up_to(2), d.up_to(2)])


def dense(d: QuantisedDrawer) -> None:
    """A product with constant weights: MatMul, Gemm, QLinearMatMul, QGemm."""
    x = d.tensor((2, 3))
    if x is None:
        return
    terms, rows = d.of(x.name).shape[-1], d.one_of((1, 5, 8, 16, 32))
    written = ("MatMul", "Gemm") if d.has_exact_products else ()
    way = d.one_of((*written, "QLinearMatMul", "QGemm"))
    turned = way in ("Gemm", "QGemm") and d.chance.random() < 0.5
    w = d.filters((rows, terms) if turned else (terms, rows), 0 if turned else 1)
    if way in ("MatMul", "Gemm"):
        attrs = {"transB": int(turned)} if way == "Gemm" else {}
        _around(d, way, x, w, 0 if turned else 1, rows, **attrs)
        return
    step, zero = _scale_like(d, x, terms, w)
    if way == "QLinearMatMul":
        d.keep(d.node(way, [*x.parts, *w.parts, step, zero]), step, zero)
        return
    bias = d.bias(x, w, rows)[0] if d.chance.random() < 0.5 else ""
    made = d.node(way, [*x.parts, *w.parts, bias, step, zero], domain=MICROSOFT, transB=int(turned))
    d.keep(made, step, zero)


def between(d: QuantisedDrawer) -> None:
    """Two tensors of one shape, or one and a constant: Add, Mul, Sub, Div in QDQ form, QLinearAdd and -Mul."""
    x = d.tensor()
    if x is None:
        return
    y = d.like(x)
    way = d.one_of(("Add", "Add", "Mul", "Sub", "QLinearAdd", "QLinearMul", "MatMul"))
    if way == "MatMul":
        if d.of(x.name).ndim == 2:
            turned = d.node("Transpose", [d.real(y)], perm=[1, 0])
            made = d.node("MatMul", [d.real(x), *turned])
            d.quantised(made[0]) if made else None
        return
    if not way.startswith("Q"):
        made = d.node(way, [d.real(x), d.real(y)])
        if made and d.chance.random() < 0.3:
            made = d.node("Relu", made)
        d.quantised(made[0]) if made else None
        return
    a, b = (d.of(t.name).astype(float) - d.of(t.zero) for t in (x, y))
    a, b = a * d.of(x.scale), b * d.of(y.scale)
    scale, zero = d.steps(np.asarray(a + b if way == "QLinearAdd" else a * b))
    d.keep(d.node(way, [*x.parts, *y.parts, scale, zero], domain=MICROSOFT), scale, zero)


def joined(d: QuantisedDrawer) -> None:
    """Concatenation along channels: QDQ or QLinearConcat."""
    x = d.tensor((2, 4))
    if x is None:
        return
    tail = d.of(x.name).shape[2:], d.of(x.name).shape[0], d.of(x.name).ndim
    fits = [
        b
        for b in d.kept
        if (d.of(b.name).shape[2:], d.of(b.name).shape[0], d.of(b.name).ndim) == tail
    ]
    some = [x, *(d.one_of(fits) for _ in range(d.up_to(2)))]
    if d.chance.random() < 0.6:
        made = d.node("Concat", [d.real(b) for b in some], axis=1)
        d.quantised(made[0]) if made else None
        return
    step, zero = x.scale, x.zero
    parts = [part for b in some for part in b.parts]
    d.keep(d.node("QLinearConcat", [step, zero, *parts], domain=MICROSOFT, axis=1), step, zero)


def pooled(d: QuantisedDrawer) -> None:
    """Maxima and averages of windows and images: QDQ and QLinear."""
    x = d.tensor((4,))
    if x is None:
        return
    kernel, attrs = _window(d, x)
    way = d.one_of(
        (
            "MaxPool",
            "AveragePool",
            "GlobalAveragePool",
            "QLinearAveragePool",
            "QLinearGlobalAveragePool",
        )
    )
    if "Global" in way:
        attrs = {}
    else:
        if "Average" in way:
            attrs["count_include_pad"] = d.up_to(1, 0)
            if d.chance.random() < 0.3:  # all of the image, which onnxruntime adds in another way
                kernel, attrs["pads"] = d.of(x.name).shape[2:], [0] * 4
        attrs["kernel_shape"] = list(kernel)
    if way.startswith("Q"):
        step, zero = d.steps((d.of(x.name).astype(float) - d.of(x.zero)) * d.of(x.scale))
        more = {"channels_last": 0} if "Global" in way else {}
        made = d.node(way, [*x.parts, step, zero], domain=MICROSOFT, **attrs, **more)
        d.keep(made, step, zero)
        return
    made = d.node(way, [d.real(x)], **attrs)
    d.quantised(made[0]) if made else None


def moved(d: QuantisedDrawer) -> None:
    """What keeps or moves elements: Transpose, Reshape, Slice, Pad, Resize, in QDQ form with either steps."""
    x = d.tensor()
    if x is None:
        return
    shape, real = d.of(x.name).shape, d.real(x)
    way = d.one_of(("Transpose", "Flatten", "Slice", "Pad", "Resize", "Resize", "Split"))
    if way == "Transpose":
        made = d.node(way, [real], perm=[0, *range(len(shape) - 1, 0, -1)])
    elif way == "Flatten":
        made = d.node(way, [real], axis=1)
    elif way == "Slice":
        made = d.node(way, [real, d.const([0]), d.const([max(shape[-1] - 1, 1)]), d.const([-1])])
    elif way == "Split":
        made = d.node(way, [real], 2, axis=1, num_outputs=2)[:1] if shape[1] > 1 else []
    elif way == "Pad":
        made = d.node(way, [real, d.const([0, 0, *[1] * (len(shape) - 2)] * 2)])
    elif len(shape) == 4:
        scales = d.const([1, 1, d.one_of((2, 1.5, 1)), d.one_of((2, 0.5, 1))], F32)
        mode = d.one_of(("nearest", "linear"))
        made = d.node(way, [real, "", scales], mode=mode)
    else:
        made = []
    if not made:
        return
    if d.chance.random() < 0.6:
        d.keep(d.node("QuantizeLinear", [made[0], x.scale, x.zero]), x.scale, x.zero)
    else:
        d.quantised(made[0])


FUNCTIONS = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "HardSwish",
    "HardSigmoid",
    "Softmax",
    "Sqrt",
    "Erf",
    "Gelu",
    "Elu",
)


def function(d: QuantisedDrawer) -> None:
    """A function of one tensor: QDQ, or QLinearSigmoid, QLinearLeakyRelu, QLinearSoftmax."""
    x = d.tensor()
    if x is None:
        return
    way = d.one_of((*FUNCTIONS, "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"))
    if not way.startswith("Q"):
        made = d.node(way, [d.real(x)])
        d.quantised(made[0]) if made else None
        return
    real = (d.of(x.name).astype(float) - d.of(x.zero)) * d.of(x.scale)
    step, zero = d.steps(real if way == "QLinearLeakyRelu" else np.array([0.0, 1.0]))
    attrs: dict[str, Any] = {"alpha": 0.1} if way == "QLinearLeakyRelu" else {}
    if way == "QLinearSoftmax":
        attrs = {"axis": -1, "opset": d.net.opset}
    d.keep(d.node(way, [*x.parts, step, zero], domain=MICROSOFT, **attrs), step, zero)


def dynamic(d: QuantisedDrawer) -> None:
    """Real numbers that are quantised by their own range, and multiplied."""
    x = d.tensor((2, 3, 4))
    if x is None:
        return
    real, shape = d.real(x), d.of(x.name).shape
    way = d.one_of(("MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"))
    if len(shape) == 4:
        way = "ConvInteger"
    rows = d.one_of((1, 4, 8, 16))
    if way == "ConvInteger":
        kernel, attrs = _window(d, x)
        w = d.filters((rows, shape[1], *kernel), 0)
    else:
        w, attrs = d.filters((shape[-1], rows), 1), {}
    w = Bytes(
        w.name,
        d.const(np.float32(d.of(w.scale).mean()), F32),
        d.const(d.of(w.zero).flat[0], d.weight_kind),
    )
    if way == "DynamicQuantizeMatMul":
        made = d.node(way, [real, *w.parts], domain=MICROSOFT)
        d.quantised(made[0]) if made else None
        return
    bytes_, scale, zero = d.node("DynamicQuantizeLinear", [real], 3)
    if way == "MatMulIntegerToFloat":
        made = d.node(way, [bytes_, w.name, scale, w.scale, zero, w.zero], domain=MICROSOFT)
    else:
        sums = d.node(way, [bytes_, w.name, zero, w.zero], **attrs)
        made = d.node("Cast", sums, to=1) if sums else []
        factor = d.node("Mul", [scale, w.scale]) if made else []
        made = d.node("Mul", [made[0], factor[0]]) if factor else []
    d.quantised(made[0]) if made else None


KINDS: tuple[Callable[[QuantisedDrawer], None], ...] = (
    conv,
    conv,
    conv,
    transposed,
    dense,
    between,
    between,
    joined,
    pooled,
    moved,
    function,
    dynamic,
)
