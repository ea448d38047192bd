"""Liveness patterns that convolutional networks have, with the sizes of padded tensors."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from clnn.plan.memory import Block

Tensor = tuple[int, int, int, int]


@dataclass
class Net:
    """Tensors in launch order; one lives from the step that writes it to its last reader."""

    itemsize: int = 4
    tensors: list[Tensor] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    scratch: dict[int, int] = field(default_factory=dict)

    def add(self, side: int, channels: int, *inputs: int, pad: int = 1, batch: int = 1) -> int:
        """Add a step that reads `inputs` and writes a tensor; return the tensor's number."""
        step = len(self.tensors)
        self.tensors.append((batch, side, channels, pad))
        self.last.append(step)
        for source in inputs:
            self.last[source] = step
        return step

    def keep(self, *tensors: int) -> Net:
        """Mark outputs of the network: they live to the end."""
        for tensor in tensors:
            self.last[tensor] = len(self.tensors)
        return self

    def with_scratch(self, step: int, size: int) -> None:
        """Give a step work space of its own."""
        self.scratch[step] = size

    def size(self, tensor: Tensor) -> int:
        batch, side, channels, pad = tensor
        return batch * (side + 2 * pad) ** 2 * channels * self.itemsize

    def blocks(self, align: int = 1) -> list[Block]:
        made = [
            Block(f"t{i}", self.size(t), i, self.last[i], align, geometry=t if t[3] else None)
            for i, t in enumerate(self.tensors)
        ]
        scratch = [Block(f"w{i}", size, i, i, align) for i, size in self.scratch.items()]
        return made + scratch


def chain(steps: int = 30, seed: int = 0) -> Net:
    """A plain stack (VGG): channels double where the side halves."""
    chance, net = random.Random(seed), Net()
    side, channels = 224, 16
    at = net.add(side, 3)
    for _ in range(steps):
        if chance.random() < 0.25 and side > 7:
            side, channels = side // 2, channels * 2
        at = net.add(side, channels, at, pad=chance.choice([0, 1, 1, 2]))
    return net.keep(at)


def resnet(depths: tuple[int, ...] = (3, 4, 6, 3), bottleneck: bool = True, batch: int = 1) -> Net:
    """ResNet with the residual add fused into the last convolution of each block."""
    net = Net()
    at = net.add(224, 3, pad=3, batch=batch)
    at = net.add(112, 64, at, batch=batch)
    at = net.add(56, 64, at, batch=batch)
    side, width = 56, 64
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            at = _residual(net, at, side, side // stride, width, bottleneck, not block, batch)
            side //= stride
        width *= 2
    return net.keep(net.add(1, 1000, net.add(1, width * 2, at, pad=0), pad=0))


def _residual(net, at, side, out, width, bottleneck, project, batch):
    wide = width * 4 if bottleneck else width
    short = net.add(out, wide, at, pad=0, batch=batch) if project else at
    if bottleneck:
        inner = net.add(side, width, at, batch=batch)
        inner = net.add(out, width, inner, pad=0, batch=batch)
    else:
        inner = net.add(out, width, at, batch=batch)
    return net.add(out, wide, inner, short, batch=batch)


def mobilenet(width: int = 1) -> Net:
    """MobileNetV2: inverted residuals, wide inside and narrow between."""
    net = Net()
    at = net.add(112, 32 * width, net.add(224, 3))
    side, channels = 112, 32 * width
    for expand, out, repeat, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for index in range(repeat):
            step = stride if index == 0 else 1
            inner = net.add(side, channels * expand, at)
            inner = net.add(side // step, channels * expand, inner, pad=0)
            same = step == 1 and channels == out * width
            at = net.add(side // step, out * width, inner, *([at] if same else []), pad=0)
            side, channels = side // step, out * width
    return net.keep(net.add(1, 1000, net.add(side, 1280, at, pad=0), pad=0))


def densenet(depths: tuple[int, ...] = (6, 12, 24, 16), growth: int = 32) -> Net:
    """DenseNet whose concatenations copy: each layer reads all that were made before it."""
    net = Net()
    at = net.add(56, 64, net.add(112, 64, net.add(224, 3, pad=3)))
    side, channels = 56, 64
    for depth in depths:
        parts = [at]
        for _ in range(depth):
            joined = net.add(side, channels, *parts, pad=0) if len(parts) > 1 else at
            inner = net.add(side, 4 * growth, joined)
            parts.append(net.add(side, growth, inner, pad=0))
            channels += growth
        joined = net.add(side, channels, *parts, pad=0)
        side, channels = max(side // 2, 7), channels // 2
        at = net.add(side, channels, joined, pad=0)
    return net.keep(at)


def dense_aliased(depths: tuple[int, ...] = (6, 12, 24, 16), growth: int = 32) -> Net:
    """DenseNet whose dense blocks are one buffer each, written part by part."""
    net = Net()
    at = net.add(56, 64, net.add(112, 64, net.add(224, 3, pad=3)))
    side, channels = 56, 64
    for depth in depths:
        joined = net.add(side, channels + depth * growth, at)
        for _ in range(depth):
            inner = net.add(side, 4 * growth, joined)
            net.add(1, 1, inner, joined, pad=0)
        side, channels = max(side // 2, 7), (channels + depth * growth) // 2
        at = net.add(side, channels, joined)
    return net.keep(at)


def unet(side: int = 512, depth: int = 5, width: int = 32, copies: bool = True) -> Net:
    """U-Net: a skip from each level of the way down to the same level of the way up."""
    net, skips = Net(), []
    at = net.add(side, 3)
    for level in range(depth):
        at = net.add(side >> level, width << level, at)
        at = net.add(side >> level, width << level, at)
        skips.append(at)
        at = net.add(side >> (level + 1), width << level, at)
    at = net.add(side >> depth, width << depth, at)
    at = net.add(side >> depth, width << depth, at)
    for level in reversed(range(depth)):
        at = net.add(side >> level, width << level, at, pad=0)
        if copies:
            at = net.add(side >> level, 2 * width << level, at, skips[level])
            at = net.add(side >> level, width << level, at)
        else:
            at = net.add(side >> level, width << level, at, skips[level])
        at = net.add(side >> level, width << level, at)
    return net.keep(net.add(side, 2, at, pad=0))


def inception(blocks: int = 9, seed: int = 0) -> Net:
    """Inception: branches of different depths, joined by a copying concatenation."""
    chance, net = random.Random(seed), Net()
    side = 35
    at = net.add(side, 192, net.add(71, 64, net.add(149, 32, net.add(299, 3))))
    for index in range(blocks):
        ends, channels = [], 0
        for length in (1, 2, 3, 2):
            inner = at
            for _ in range(length):
                inner = net.add(side, chance.choice([48, 64, 96, 128]), inner)
            ends.append(inner)
            channels += net.tensors[inner][2]
        if index % 3 == 2 and side > 8:
            side //= 2
        at = net.add(side, channels, *ends, pad=0)
    return net.keep(net.add(1, 1000, at, pad=0))


def pyramid(heads: int = 3) -> Net:
    """A detector: a backbone, top-down and bottom-up paths, heads that all stay to the end."""
    net, levels, outputs = Net(), [], []
    at = net.add(640, 3)
    for level, channels in enumerate((32, 64, 128, 256, 512)):
        side = 320 >> level
        at = net.add(side, channels, at)
        inner = net.add(side, channels // 2, at, pad=0)
        inner = net.add(side, channels // 2, inner)
        at = net.add(side, channels, inner, at)
        levels.append(at)
    top, paths = levels[-1], []
    for level in (3, 2):
        up = net.add(320 >> level, 128, top, pad=0)
        top = net.add(320 >> level, 256, up, levels[level])
        paths.append(top)
    for level, path in zip((2, 3), reversed(paths), strict=True):
        down = net.add(320 >> (level + 1), 128, path)
        net.add(320 >> (level + 1), 256, down, path if level == 3 else paths[0])
    for _ in range(heads):
        for level, source in ((2, paths[1]), (3, paths[0]), (4, levels[4])):
            outputs.append(net.add(320 >> level, 85, net.add(320 >> level, 128, source), pad=0))
    return net.keep(*outputs)


def high_resolution(stages: int = 4, modules: int = 2) -> Net:
    """HRNet: branches of several resolutions in parallel, each fused from all of them."""
    net = Net()
    branches = [net.add(64, 32, net.add(128, 64, net.add(256, 3)))]
    for stage in range(1, stages):
        branches.append(net.add(64 >> stage, 32 << stage, branches[-1]))
        for _ in range(modules):
            branches = [_basic(net, b) for b in branches]
            branches = [_fuse(net, branches, level) for level in range(len(branches))]
    return net.keep(*branches)


def _basic(net, at):
    _, side, channels, _ = net.tensors[at]
    for _ in range(2):
        at = net.add(side, channels, net.add(side, channels, at), at)
    return at


def _fuse(net, branches, level):
    _, side, channels, _ = net.tensors[branches[level]]
    total = branches[level]
    for other, source in enumerate(branches):
        if other != level:
            total = net.add(side, channels, net.add(side, channels, source, pad=0), total)
    return total


def cells(count: int = 12, seed: int = 0) -> Net:
    """NASNet-like cells: five random pairs each, wired over two cells, sizes all alike."""
    chance, net = random.Random(seed), Net()
    side, channels = 56, 32
    before = now = net.add(side, channels, net.add(112, 32, net.add(224, 3)))
    for index in range(count):
        states = [before, now]
        if index % 4 == 3:
            side, channels = side // 2, channels * 2
        for _ in range(5):
            pair = [net.add(side, channels, s) for s in chance.sample(states, 2)]
            states.append(net.add(side, channels, *pair))
        before, now = now, net.add(side, channels * 3, *states[2:], pad=0)
    return net.keep(now)


def attention(layers: int = 6, tokens: int = 14, width: int = 96) -> Net:
    """Transformer blocks: three projections, scores, and a residual around each half."""
    net = Net()
    at = net.add(tokens, width, net.add(224, 3))
    for _ in range(layers):
        query, key, value = (net.add(tokens, width, at, pad=0) for _ in range(3))
        scores = net.add(tokens, tokens * tokens * 3, query, key, pad=0)
        mixed = net.add(tokens, width, net.add(tokens, tokens**2 * 3, scores, pad=0), value, pad=0)
        at = net.add(tokens, width, mixed, at, pad=0)
        at = net.add(tokens, width, net.add(tokens, 4 * width, at, pad=0), at, pad=0)
    return net.keep(at)


def with_work_space(net: Net, seed: int = 0) -> Net:
    """Give a third of the steps work space between a tenth and thrice their output."""
    chance = random.Random(seed)
    for step, tensor in enumerate(net.tensors):
        if chance.random() < 0.33:
            net.with_scratch(step, int(net.size(tensor) * chance.uniform(0.1, 3)))
    return net


def random_blocks(count: int, seed: int, spread: int = 12) -> list[Block]:
    """Blocks with random sizes and lives (most short, a few long): harder than any network."""
    chance, blocks = random.Random(seed), []
    for index in range(count):
        life = chance.choice([1, 1, 2, 2, 3, spread, chance.randrange(1, count)])
        size = int(2 ** chance.uniform(6, 20))
        last = min(count, index + life)
        blocks.append(Block(f"b{index}", size, index, last, chance.choice([1, 16, 64])))
    return blocks


NETS: dict[str, Callable[[], Net]] = {
    "chain": chain,
    "long chain": lambda: chain(120, 1),
    "resnet50": resnet,
    "resnet50 batch 8": lambda: resnet(batch=8),
    "resnet18": lambda: resnet((2, 2, 2, 2), bottleneck=False),
    "resnet152": lambda: resnet((3, 8, 36, 3)),
    "mobilenet": mobilenet,
    "mobilenet wide": lambda: mobilenet(4),
    "densenet121": densenet,
    "densenet aliased": dense_aliased,
    "densenet small": lambda: densenet((4, 4, 4), 12),
    "unet": unet,
    "unet add": lambda: unet(copies=False),
    "unet deep": lambda: unet(1024, 7, 16),
    "inception": inception,
    "inception 1": lambda: inception(12, 1),
    "inception 2": lambda: inception(15, 2),
    "pyramid": pyramid,
    "pyramid heads": lambda: pyramid(8),
    "hrnet": high_resolution,
    "hrnet large": lambda: high_resolution(4, 5),
    "cells": cells,
    "cells 1": lambda: cells(12, 1),
    "cells 2": lambda: cells(20, 2),
    "attention": attention,
    "resnet50 work space": lambda: with_work_space(resnet()),
    "mobilenet work space": lambda: with_work_space(mobilenet(), 1),
    "unet work space": lambda: with_work_space(unet(), 2),
    "inception work space": lambda: with_work_space(inception(), 3),
    "cells work space": lambda: with_work_space(cells(), 4),
}
