"""The layers of a sweep: matrix products and convolutions, as networks of one node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

POINTS = 64  # outputs that are compared with sums in double precision
Array = np.ndarray


@dataclass(frozen=True)
class Gemm:
    """A (m, k) input times a constant (k, n)."""

    m: int
    n: int
    k: int

    kind = "gemm"

    @property
    def label(self) -> str:
        return f"gemm {self.m}x{self.n}x{self.k}"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.m, self.k)

    def weights(self) -> Array:
        rng = np.random.default_rng(self.n)
        return rng.standard_normal((self.k, self.n), np.float32) / np.float32(self.k**0.5)

    def model(self) -> onnx.ModelProto:
        return _model(helper.make_node("Gemm", ["x", "w"], ["y"]), self.shape, self.weights())

    def expected(self, x: Array, places: Array) -> Array:
        """Return the outputs at flat `places`, in double precision."""
        w = self.weights()
        rows, columns = np.divmod(places, self.n)
        return np.einsum("pk,pk->p", x[rows].astype(np.float64), w[:, columns].T.astype(np.float64))

    def size(self) -> int:
        return self.m * self.n


@dataclass(frozen=True)
class Conv:
    """A convolution of `n` square images with a border of half the kernel."""

    n: int
    ic: int
    oc: int
    h: int
    k: int = 1
    s: int = 1
    group: int = 1
    origin: str = ""

    @property
    def kind(self) -> str:
        return "depthwise" if self.group > 1 else "conv"

    @property
    def label(self) -> str:
        step = f"/{self.s}" if self.s > 1 else ""
        channels = f"{self.ic}" if self.group > 1 else f"{self.ic}>{self.oc}"
        return f"{self.kind} {self.k}x{self.k}{step} {channels} {self.h}x{self.h} b{self.n}"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.ic, self.h, self.h)

    @property
    def out(self) -> int:
        """Rows and columns of an output image."""
        return (self.h + 2 * (self.k // 2) - self.k) // self.s + 1

    def weights(self) -> Array:
        rng, fan = np.random.default_rng(self.oc), self.ic // self.group * self.k**2
        shape = (self.oc, self.ic // self.group, self.k, self.k)
        return rng.standard_normal(shape, np.float32) / np.float32(fan**0.5)

    def model(self) -> onnx.ModelProto:
        node = helper.make_node(
            "Conv",
            ["x", "w"],
            ["y"],
            kernel_shape=[self.k] * 2,
            strides=[self.s] * 2,
            pads=[self.k // 2] * 4,
            group=self.group,
        )
        return _model(node, self.shape, self.weights())

    def expected(self, x: Array, places: Array) -> Array:
        """Return the outputs at flat `places`, in double precision."""
        w, p = self.weights().astype(np.float64), self.k // 2
        outs, ins = self.oc // self.group, self.ic // self.group
        found = []
        for place in places:
            n, c, i, j = np.unravel_index(place, (self.n, self.oc, self.out, self.out))
            top, left = int(i) * self.s - p, int(j) * self.s - p
            first = int(c) // outs * ins
            window = np.zeros((ins, self.k, self.k))
            rows = slice(max(top, 0), min(top + self.k, self.h))
            columns = slice(max(left, 0), min(left + self.k, self.h))
            inside = x[n, first : first + ins, rows, columns]
            at = (rows.start - top, columns.start - left)
            window[:, at[0] : at[0] + inside.shape[1], at[1] : at[1] + inside.shape[2]] = inside
            found.append(float((window * w[c]).sum()))
        return np.array(found)

    def size(self) -> int:
        return self.n * self.oc * self.out**2


Case = Gemm | Conv


def _model(node: onnx.NodeProto, shape: tuple[int, ...], weights: Array) -> onnx.ModelProto:
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    target = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [node], "layer", [source], [target], [numpy_helper.from_array(weights, "w")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def sampled(case: Case) -> Array:
    """Return some flat places of the output, its first and last among them."""
    last = case.size() - 1
    rng = np.random.default_rng(1)
    return np.unique(np.concatenate([[0, last], rng.integers(0, last + 1, POINTS)]))


SQUARE = tuple(Gemm(n, n, n) for n in (1024, 4096, 2048, 512))
# Few rows, as the fully connected layers of networks have: batch 1, 8 and 64.
SKINNY = (
    *(Gemm(m, 4096, 4096) for m in (64, 1, 8)),
    Gemm(1, 4096, 25088),
    Gemm(1, 1000, 2048),
    Gemm(4096, 64, 256),
    Gemm(49, 2048, 512),
)


def _resnet(n: int) -> tuple[Conv, ...]:
    plain = (
        (64, 64, 56, 3),
        (256, 256, 14, 3),
        (64, 256, 56, 1),
        (1024, 256, 14, 1),
        (128, 128, 28, 3),
        (512, 512, 7, 3),
        (256, 64, 56, 1),
        (512, 128, 28, 1),
        (256, 1024, 14, 1),
        (2048, 512, 7, 1),
    )
    found = [Conv(n, ic, oc, h, k, origin="ResNet-50") for ic, oc, h, k in plain]
    found.insert(4, Conv(n, 3, 64, 224, 7, 2, origin="ResNet-50"))
    return tuple(found)


def _vgg(n: int) -> tuple[Conv, ...]:
    sizes = ((256, 56), (64, 224), (512, 28), (128, 112))
    return tuple(Conv(n, c, c, h, 3, origin="VGG-16") for c, h in sizes)


def _mobilenet(n: int) -> tuple[Conv, ...]:
    deep = ((32, 112, 1), (144, 56, 1), (384, 14, 1), (192, 28, 1), (96, 112, 2), (960, 7, 1))
    found = [Conv(n, c, c, h, 3, s, c, "MobileNetV2") for c, h, s in deep]
    narrow = ((16, 96, 112), (192, 32, 28), (96, 576, 14))
    return (*found, *(Conv(n, ic, oc, h, origin="MobileNetV2") for ic, oc, h in narrow))


SMALL = (Gemm(64, 64, 64), Gemm(1, 100, 64), Conv(1, 8, 16, 10, 3), Conv(2, 16, 16, 9, 3, 2, 16))


def cases(small: bool, batches: tuple[int, ...] = (1, 32)) -> Iterator[Case]:
    """Yield the layers of a sweep, those that say most first."""
    if small:
        yield from SMALL
        return
    rows: list[tuple[Case, ...]] = [SQUARE, SKINNY]
    for n in batches:
        rows += [_resnet(n), _vgg(n), _mobilenet(n)]
    for turn in range(max(map(len, rows))):
        yield from (row[turn] for row in rows if turn < len(row))
