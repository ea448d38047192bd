#!/usr/bin/env python3
"""Random open networks at random shapes: which shapes lack a kernel's text, and are they right all the same?

    python tools/fuzz/open_texts.py [--count N] [--seed S] [--shapes N] [--device D]

Nothing is built: a program is taken for there once a session wanted it before calls, or ahead of them. Each call
that lacks one is computed on the host, as it would be while the program is built, and held against
onnxruntime. Sides are from 1 to 320, small ones as likely as large ones. Printed are networks with such calls;
the exit status is 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import clnn
from clnn.errors import ClnnError
from clnn.graph.evaluate import evaluate
from clnn.runtime.build.program import Device
from clnn.runtime.run.family import KernelsNotReadyError
from clnn.runtime.run.fused_launch import sources_of
from clnn.runtime.run.session import Session

TOLERANCE = 1e-4
Net = Any


class Drawn:
    """A network that is drawn layer by layer; `x` is its last value, of so many channels."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.consts: list[onnx.TensorProto] = []
        self.x, self.channels, self.kinds = "x", 3, list[str]()

    def one_of(self, *choices: Any) -> Any:
        return choices[int(self.chance.integers(len(choices)))]

    def const(self, array: Any) -> str:
        name = f"c{len(self.consts)}"
        self.consts.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int) -> str:
        scale = 1 / np.sqrt(max(1, np.prod(shape[1:])))
        return self.const((scale * self.chance.standard_normal(shape)).astype(np.float32))

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attrs))
        return name

    def conv(
        self, x: str, to: int, side: int = 1, groups: int = 1, of: int = 0, **attrs: Any
    ) -> str:
        of = of or self.channels
        weights = self.weight(to, of // groups, side, side), self.weight(to)
        pads = [attrs.get("dilations", [1])[0] * (side // 2)] * 4
        return self.add("Conv", x, *weights, pads=pads, group=groups, **attrs)

    def model(self) -> onnx.ModelProto:
        dims = ["n", 3, "h", "w"]
        x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, dims)
        y = onnx.ValueInfoProto(name=self.x)
        graph = helper.make_graph(self.nodes, "drawn", [x], [y], self.consts)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def convolution(d: Drawn) -> None:
    to = d.one_of(8, 16, 20, 32, 64)
    d.x = d.conv(d.x, to, d.one_of(1, 3, 3, 5), strides=[d.one_of(1, 1, 2)] * 2)
    d.channels = to


def depthwise(d: Drawn) -> None:
    d.x = d.conv(d.x, d.channels, d.one_of(3, 5), d.channels, strides=[d.one_of(1, 1, 2)] * 2)


def dilated(d: Drawn) -> None:
    d.x = d.conv(d.x, d.channels, 3, dilations=[2, 2])


def activation(d: Drawn) -> None:
    d.x = d.add(d.one_of("Relu", "Sigmoid", "HardSwish", "Tanh", "LeakyRelu"), d.x)


def pool(d: Drawn) -> None:
    side = d.one_of(2, 3)
    more = {"pads": [side // 2] * 4} if side == 3 else {"ceil_mode": 1}
    d.x = d.add(
        d.one_of("MaxPool", "AveragePool"), d.x, kernel_shape=[side] * 2, strides=[2, 2], **more
    )


def normalise(d: Drawn) -> None:
    values = [np.ones(d.channels), np.zeros(d.channels), np.zeros(d.channels), np.ones(d.channels)]
    d.x = d.add("BatchNormalization", d.x, *(d.const(v.astype(np.float32)) for v in values))


def squeeze_and_excite(d: Drawn) -> None:
    inner = max(4, d.channels // 4)
    y = d.add("Relu", d.conv(d.add("GlobalAveragePool", d.x), inner))
    y = d.add(d.one_of("Sigmoid", "HardSigmoid"), d.conv(y, d.channels, of=inner))
    d.x = d.add("Mul", d.x, y)
    if d.one_of(0, 1):
        d.x = d.conv(d.x, d.channels)


def residual(d: Drawn) -> None:
    d.x = d.add("Add", d.x, d.conv(d.add("Relu", d.conv(d.x, d.channels, 3)), d.channels, 3))


def branches(d: Drawn) -> None:
    d.x = d.add("Concat", d.conv(d.x, 8), d.conv(d.x, 16, 3), axis=1)
    d.channels = 24


def larger(d: Drawn) -> None:
    mode = d.one_of("nearest", "linear")
    sizes = d.const(np.array([1, 1, 2, 2], np.float32))
    d.x = d.add(
        "Resize",
        d.x,
        "",
        sizes,
        mode=mode,
        coordinate_transformation_mode=d.one_of("asymmetric", "half_pixel"),
    )


def transposed(d: Drawn) -> None:
    d.x = d.add("ConvTranspose", d.x, d.weight(d.channels, 16, 2, 2), strides=[2, 2])
    d.channels = 16


def softmax(d: Drawn) -> None:
    d.x = d.add("Softmax", d.x, axis=d.one_of(1, 3))


def layer_norm(d: Drawn) -> None:
    y = d.add("Transpose", d.x, perm=[0, 2, 3, 1])
    ones = d.const(np.ones(d.channels, np.float32))
    d.x = d.add("Transpose", d.add("LayerNormalization", y, ones, axis=-1), perm=[0, 3, 1, 2])


def attention(d: Drawn) -> None:
    y = d.add("Reshape", d.x, d.const(np.array([0, d.channels, -1])))
    scores = d.add("Softmax", d.add("MatMul", y, d.add("Transpose", y, perm=[0, 2, 1])), axis=-1)
    y = d.add("MatMul", scores, y)
    d.x = d.add("Reshape", y, d.add("Shape", d.x))


def edges(d: Drawn) -> None:
    d.x = d.add(
        "Pad", d.x, d.const(np.array([0, 0, 1, 0, 0, 0, 0, 1])), mode=d.one_of("constant", "edge")
    )


def cut(d: Drawn) -> None:
    ends = [d.const(np.array([n])) for n in (0, 4, 1)]
    d.x = d.add("Slice", d.x, *ends)
    d.channels = min(4, d.channels)


def means(d: Drawn) -> None:
    d.x = d.add(
        "Sub", d.x, d.add("ReduceMean", d.x, d.const(np.array([d.one_of(2, 3)])), keepdims=1)
    )


KINDS: list[Callable[[Drawn], None]] = [
    *(
        convolution,
        convolution,
        convolution,
        depthwise,
        dilated,
        activation,
        pool,
        normalise,
        residual,
    ),
    *(squeeze_and_excite, squeeze_and_excite, branches, larger, transposed, softmax, layer_norm),
    *(attention, edges, cut, means),
]


def drawn(seed: int) -> Drawn:
    """Return the network of a seed: two to six layers."""
    d = Drawn(seed)
    for _ in range(int(d.chance.integers(2, 7))):
        kind = d.one_of(*KINDS)
        kind(d)
        d.kinds.append(kind.__name__)
    return d


def shape(chance: np.random.Generator) -> tuple[int, int, int, int]:
    """Return the shape of some images; attention over large ones would take long."""
    sides = [int(np.exp(chance.uniform(0, np.log(320)))) for _ in range(2)]
    return int(chance.integers(1, 5)), 3, *sides  # type: ignore[return-value]


class Pretended:
    """Programs that are taken for built, and calls that lacked some."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    def begin(self, session: Any, build: Any, before: Any, times: Any) -> None:
        """Take the place of Session._begin."""
        sources = sources_of(session._plan, session._fused)
        if build is not None:
            build(session._device, sources)
        self.known |= set(sources.values())
        session._counts, session._closed = (0, 0), False
        session._states = _Nothing()
        session._named_outputs, session._output_names = [], []


class _Nothing:
    def close(self) -> None:
        """Close nothing."""


def check(seed: int, shapes: int, device: str) -> tuple[int, int, float]:
    """Return how many of so many calls lacked kernels, how many the network took, and the largest error of these."""
    d = drawn(seed)
    model = d.model().SerializeToString()
    engine = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    fake, lacking, taken, worst = Pretended(), 0, 0, 0.0
    Session._begin = lambda *given: fake.begin(*given)  # type: ignore[method-assign]
    Device.has = lambda self, source: source in fake.known  # type: ignore[method-assign]
    Device.build = lambda self, sources: None  # type: ignore[method-assign]
    Device.build_ahead = lambda self, *given: None  # type: ignore[method-assign]
    with clnn.compile_model(model, device, clnn.Options(specialise="background")) as session:
        gears: Any = session._gears  # type: ignore[union-attr]
        is_first = True
        for _ in range(4 * shapes):
            x = d.chance.standard_normal(shape(d.chance)).astype(np.float32)
            try:
                want = engine.run(None, {"x": x})[0]
            except Exception:  # which onnxruntime says of images that are too small
                continue
            try:
                session._session((x.shape,), patient=is_first)  # type: ignore[union-attr]
            except KernelsNotReadyError as err:
                lacking += 1
                got = next(iter(evaluate(err.graph, {"x": x}).values()))
                worst = max(worst, float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-9)))
                fake.known |= set()
            except ClnnError:
                continue
            if is_first:
                gears.wait(None)
            is_first, taken = False, taken + 1
            if taken > shapes:
                break
    return lacking, taken, worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shapes", type=int, default=16, help="of each network, after the first")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    wrong = networks = calls = 0
    for seed in range(args.seed, args.seed + args.count):
        lacking, taken, worst = check(seed, args.shapes, args.device)
        networks, calls = networks + (lacking > 0), calls + taken
        wrong += worst > TOLERANCE
        if lacking:
            kinds = ", ".join(drawn(seed).kinds)
            print(
                f"{seed}: {lacking} of {taken} calls lack kernels, error {worst:.1e}: {kinds}",
                flush=True,
            )
    print(
        f"{networks} of {args.count} networks lack kernels in some of {calls} calls, {wrong} wrong"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
