#!/usr/bin/env python3
"""Write the benchmark networks as ONNX files with seeded random weights.

    python tools/benchmarks/make_bench_models.py OUT [NAME ...] [--batch N]

Weights are drawn so that the variance of activations is preserved through the network (He), so
that outputs are finite, varied and comparable between engines.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """Builds one network: each method adds nodes and returns the name of the new value."""

    def __init__(self, name: str, shape: tuple[int, ...], seed: int = 0) -> None:
        self.name, self.shape = name, shape
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.channels = {"x": shape[1]}

    def add(self, op: str, inputs: list[str], channels: int = 0, **attrs: object) -> str:
        out = f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, inputs, [out], name=f"{op}_{len(self.nodes)}", **attrs)
        )
        self.channels[out] = channels or self.channels.get(inputs[0], 0)
        return out

    def const(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def random(self, *shape: int, gain: float = 2.0) -> str:
        fan = int(np.prod(shape[1:]))
        return self.const(
            (self.rng.standard_normal(shape) * np.sqrt(gain / fan)).astype(np.float32)
        )

    def conv(
        self,
        x: str,
        oc: int,
        k: int = 1,
        s: int = 1,
        group: int = 1,
        pad: int | None = None,
        gain: float = 2.0,
    ) -> str:
        ic = self.channels[x]
        p = (k - 1) // 2 if pad is None else pad
        bias = self.const((self.rng.standard_normal(oc) * 0.1).astype(np.float32))
        w = self.random(oc, ic // group, k, k, gain=gain)
        return self.add(
            "Conv",
            [x, w, bias],
            oc,
            kernel_shape=[k, k],
            strides=[s, s],
            pads=[p, p, p, p],
            group=group,
        )

    def relu(self, x: str) -> str:
        return self.add("Relu", [x])

    def relu6(self, x: str) -> str:
        low, high = self.const(np.float32(0)), self.const(np.float32(6))
        return self.add("Clip", [x, low, high])

    def swish(self, x: str) -> str:
        return self.add("Mul", [x, self.add("Sigmoid", [x])])

    def pool(self, x: str, k: int, s: int, pad: int = 0, op: str = "MaxPool") -> str:
        return self.add(op, [x], kernel_shape=[k, k], strides=[s, s], pads=[pad] * 4)

    def concat(self, *xs: str) -> str:
        return self.add("Concat", list(xs), sum(self.channels[x] for x in xs), axis=1)

    def upsample(self, x: str, factor: int = 2) -> str:
        scales = self.const(np.array([1, 1, factor, factor], np.float32))
        return self.add(
            "Resize",
            [x, "", scales],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )

    def head(self, x: str, classes: int = 1000) -> str:
        flat = self.add("Flatten", [self.add("GlobalAveragePool", [x])])
        return self.linear(flat, classes, self.channels[x])

    def linear(self, x: str, outs: int, ins: int) -> str:
        return self.add(
            "Gemm", [x, self.random(outs, ins, gain=1.0), self.random(outs)], outs, transB=1
        )

    def model(self, *outputs: str) -> onnx.ModelProto:
        info = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
        source = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        graph = helper.make_graph(self.nodes, self.name, [source], info, self.weights)
        opset = [helper.make_opsetid("", 13)]
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=opset, ir_version=8)
        )


def resnet50(n: int) -> onnx.ModelProto:
    net = Net("resnet50", (n, 3, 224, 224))
    x = net.pool(net.relu(net.conv("x", 64, 7, 2)), 3, 2, 1)
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(count):
            s = 2 if stage and block == 0 else 1
            y = net.relu(net.conv(x, width))
            y = net.relu(net.conv(y, width, 3, s))
            y = net.conv(y, 4 * width, gain=1.0)
            x = net.conv(x, 4 * width, 1, s, gain=1.0) if block == 0 else x
            x = net.relu(net.add("Add", [y, x]))
    return net.model(net.head(x))


def resnet18(n: int) -> onnx.ModelProto:
    net = Net("resnet18", (n, 3, 224, 224))
    x = net.pool(net.relu(net.conv("x", 64, 7, 2)), 3, 2, 1)
    for stage, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            s = 2 if stage and block == 0 else 1
            y = net.conv(net.relu(net.conv(x, width, 3, s)), width, 3, gain=1.0)
            x = net.conv(x, width, 1, s, gain=1.0) if s == 2 else x
            x = net.relu(net.add("Add", [y, x]))
    return net.model(net.head(x))


def mobilenet_v1(n: int) -> onnx.ModelProto:
    net = Net("mobilenet_v1", (n, 3, 224, 224))
    x = net.relu(net.conv("x", 32, 3, 2))
    for width, s in (
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        *[(512, 1)] * 5,
        (1024, 2),
        (1024, 1),
    ):
        x = net.relu(net.conv(x, net.channels[x], 3, s, group=net.channels[x]))
        x = net.relu(net.conv(x, width))
    return net.model(net.head(x))


def mobilenet_v2(n: int) -> onnx.ModelProto:
    net = Net("mobilenet_v2", (n, 3, 224, 224))
    x = net.relu6(net.conv("x", 32, 3, 2))
    for t, c, count, s in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for block in range(count):
            ic, step = net.channels[x], s if block == 0 else 1
            y = net.relu6(net.conv(x, ic * t)) if t > 1 else x
            y = net.relu6(net.conv(y, ic * t, 3, step, group=ic * t))
            y = net.conv(y, c, gain=1.0)
            x = net.add("Add", [y, x]) if step == 1 and ic == c else y
    return net.model(net.head(net.relu6(net.conv(x, 1280))))


def squeezenet(n: int) -> onnx.ModelProto:
    net = Net("squeezenet1_1", (n, 3, 224, 224))
    x = net.relu(net.conv("x", 64, 3, 2, pad=0))
    for squeeze, expand, pool in (
        (16, 64, 1),
        (16, 64, 0),
        (32, 128, 1),
        (32, 128, 0),
        (48, 192, 1),
        (48, 192, 0),
        (64, 256, 0),
        (64, 256, 0),
    ):
        x = net.pool(x, 3, 2) if pool else x
        x = net.relu(net.conv(x, squeeze))
        x = net.concat(net.relu(net.conv(x, expand)), net.relu(net.conv(x, expand, 3)))
    x = net.relu(net.conv(x, 1000))
    return net.model(net.add("Flatten", [net.add("GlobalAveragePool", [x])]))


def vgg16(n: int) -> onnx.ModelProto:
    net = Net("vgg16", (n, 3, 224, 224))
    x = "x"
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = net.relu(net.conv(x, width, 3))
        x = net.pool(x, 2, 2)
    x = net.add("Flatten", [x])
    x = net.relu(net.linear(x, 4096, 512 * 49))
    x = net.relu(net.linear(x, 4096, 4096))
    return net.model(net.linear(x, 1000, 4096))


def unet(n: int) -> onnx.ModelProto:
    net = Net("unet", (n, 3, 224, 224))

    def double(x: str, width: int) -> str:
        return net.relu(net.conv(net.relu(net.conv(x, width, 3)), width, 3))

    skips, x = [], "x"
    for width in (32, 64, 128):
        x = double(x, width)
        skips.append(x)
        x = net.pool(x, 2, 2)
    x = double(x, 256)
    for width in (128, 64, 32):
        ic = net.channels[x]
        w = net.random(ic, width, 2, 2)
        up = net.add("ConvTranspose", [x, w], width, kernel_shape=[2, 2], strides=[2, 2])
        x = double(net.concat(up, skips.pop()), width)
    return net.model(net.conv(x, 2, 1))


def densenet121(n: int) -> onnx.ModelProto:
    net = Net("densenet121", (n, 3, 224, 224))

    def norm_relu(x: str) -> str:
        c = net.channels[x]
        stats = [
            np.ones(c) + 0.1 * net.rng.standard_normal(c),
            0.1 * net.rng.standard_normal(c),
            0.1 * net.rng.standard_normal(c),
            np.ones(c) + 0.1 * net.rng.random(c),
        ]
        names = [net.const(s.astype(np.float32)) for s in stats]
        return net.relu(net.add("BatchNormalization", [x, *names]))

    x = net.pool(net.relu(net.conv("x", 64, 7, 2)), 3, 2, 1)
    for stage, count in enumerate((6, 12, 24, 16)):
        parts = [x]
        for _ in range(count):
            joined = net.concat(*parts) if len(parts) > 1 else parts[0]
            y = net.conv(norm_relu(joined), 128)
            parts.append(net.conv(norm_relu(y), 32, 3))
        x = norm_relu(net.concat(*parts))
        if stage < 3:
            x = net.pool(net.conv(x, net.channels[x] // 2), 2, 2, op="AveragePool")
    return net.model(net.head(x))


def efficientnet_b0(n: int) -> onnx.ModelProto:
    net = Net("efficientnet_b0", (n, 3, 224, 224))
    x = net.swish(net.conv("x", 32, 3, 2))
    for t, c, count, s, k in (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ):
        for block in range(count):
            ic, step = net.channels[x], s if block == 0 else 1
            y = net.swish(net.conv(x, ic * t)) if t > 1 else x
            y = net.swish(net.conv(y, ic * t, k, step, group=ic * t))
            gate = net.swish(net.conv(net.add("GlobalAveragePool", [y]), max(1, ic // 4)))
            y = net.add("Mul", [y, net.add("Sigmoid", [net.conv(gate, ic * t)])])
            y = net.conv(y, c, gain=1.0)
            x = net.add("Add", [y, x]) if step == 1 and ic == c else y
    return net.model(net.head(net.swish(net.conv(x, 1280))))


def detector(n: int) -> onnx.ModelProto:
    net = Net("detector", (n, 3, 320, 320))

    def block(x: str, width: int, s: int = 1) -> str:
        return net.swish(net.conv(x, width, 3, s))

    def split(x: str) -> tuple[str, str]:
        c = net.channels[x] // 2
        sizes = net.const(np.array([c, c], np.int64))
        outs = [f"s{len(net.nodes)}a", f"s{len(net.nodes)}b"]
        net.nodes.append(
            helper.make_node("Split", [x, sizes], outs, axis=1, name=f"Split_{len(net.nodes)}")
        )
        net.channels.update(dict.fromkeys(outs, c))
        return outs[0], outs[1]

    def csp(x: str, width: int) -> str:
        a, b = split(net.swish(net.conv(x, width)))
        c = net.add("Add", [b, block(block(b, width // 2), width // 2)])
        return net.swish(net.conv(net.concat(a, b, c), width))

    x = block(block("x", 16, 2), 32, 2)
    p3 = csp(block(csp(x, 32), 64, 2), 64)
    p4 = csp(block(p3, 128, 2), 128)
    p5 = csp(block(p4, 256, 2), 256)
    p4 = csp(net.concat(net.upsample(p5), p4), 128)
    p3 = csp(net.concat(net.upsample(p4), p3), 64)
    rows = []
    for level in (p3, p4, p5):
        y = net.conv(block(level, 64), 84, gain=1.0)
        shape = net.const(np.array([n, 84, -1], np.int64))
        rows.append(net.add("Reshape", [y, shape], 84))
    joined = net.add("Concat", rows, axis=2)
    return net.model(net.add("Transpose", [joined], perm=[0, 2, 1]))


def shufflenet_v2(n: int) -> onnx.ModelProto:
    net = Net("shufflenet_v2", (n, 3, 224, 224))

    def shuffle(x: str, size: int) -> str:
        c = net.channels[x]
        five = net.const(np.array([n, 2, c // 2, size, size], np.int64))
        four = net.const(np.array([n, c, size, size], np.int64))
        y = net.add("Transpose", [net.add("Reshape", [x, five], c)], perm=[0, 2, 1, 3, 4])
        return net.add("Reshape", [y, four], c)

    def branch(x: str, width: int, s: int) -> str:
        y = net.relu(net.conv(x, width))
        return net.relu(net.conv(net.conv(y, width, 3, s, group=width), width))

    x = net.pool(net.relu(net.conv("x", 24, 3, 2)), 3, 2, 1)
    size = 56
    for width, count in ((116, 4), (232, 8), (464, 4)):
        half, size = width // 2, size // 2
        left = net.conv(x, net.channels[x], 3, 2, group=net.channels[x])
        x = shuffle(net.concat(net.relu(net.conv(left, half)), branch(x, half, 2)), size)
        for _ in range(count - 1):
            outs = [f"h{len(net.nodes)}a", f"h{len(net.nodes)}b"]
            sizes = net.const(np.array([half, half], np.int64))
            net.nodes.append(
                helper.make_node("Split", [x, sizes], outs, axis=1, name=f"Split_{len(net.nodes)}")
            )
            net.channels.update(dict.fromkeys(outs, half))
            x = shuffle(net.concat(outs[0], branch(outs[1], half, 1)), size)
    return net.model(net.head(net.relu(net.conv(x, 1024))))


MODELS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "resnet50": resnet50,
    "resnet18": resnet18,
    "mobilenet_v1": mobilenet_v1,
    "mobilenet_v2": mobilenet_v2,
    "squeezenet1_1": squeezenet,
    "vgg16": vgg16,
    "unet": unet,
    "densenet121": densenet121,
    "efficientnet_b0": efficientnet_b0,
    "detector": detector,
    "shufflenet_v2": shufflenet_v2,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args()
    unknown = set(args.names) - set(MODELS)
    if unknown:
        parser.error(f"no model is named {', '.join(unknown)}; there are {', '.join(MODELS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or MODELS:
        path = args.out / f"{name}.onnx"
        onnx.save(MODELS[name](args.batch), path)
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
