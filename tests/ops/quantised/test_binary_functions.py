"""Binary functions between quantised values: each function, order of operands, producer and kind of operand.

A network has one branch for each, with a producer of its own, so that both can be fused.
"""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from onnx import TensorProto, helper, numpy_helper

import clnn

ort = pytest.importorskip("onnxruntime")

SHAPE = (1, 8, 6, 7)
STEP = 0.05
FUNCTIONS = {
    "sums": ["Add", "Sub"],
    "factors": ["Mul", "Div", "Mod"],
    "others": ["Max", "Min", "Pow", "PRelu"],
}
STEEP = ("Div", "Mod", "Pow")  # whose results may differ by more where an operand does by a step
OPERANDS = ["per channel", "scalar", "bytes", "computed"]
PRODUCERS = [
    "input",
    "Conv",
    "depthwise",
    "ConvTranspose",
    "MatMul",
    "MaxPool",
    "Relu",
    "Sigmoid",
    "Concat",
    "Resize",
]
WEIGHTS = {
    "Conv": (8, 8, 3, 3),
    "depthwise": (8, 1, 3, 3),
    "ConvTranspose": (8, 8, 1, 1),
    "MatMul": (7, 7),
}


class Branches:
    """Nodes and constants of a network."""

    def __init__(self, dtype: type) -> None:
        self.dtype, self.middle = dtype, 128 if dtype == np.uint8 else 0
        self.nodes, self.consts, self.random = [], {}, rng(17)

    def const(self, name, array):
        self.consts[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def node(self, op, inputs, name, **attrs):
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def rounded(self, value, name, scale, off):
        """Return a value as QuantizeLinear and DequantizeLinear leave it."""
        scale = self.const(f"{name}_s", np.float32(scale))
        zero = self.const(f"{name}_z", self.dtype(self.middle + off))
        stored = self.node("QuantizeLinear", [value, scale, zero], f"{name}_q")
        return self.node("DequantizeLinear", [stored, scale, zero], name)

    def produced(self, producer, x, name):
        """Return what a producer of its own makes of x, quantised."""
        inputs, attrs, op = [x], {}, producer
        if producer == "input":
            return x
        if producer in WEIGHTS:
            w = self.random.integers(-127, 128, WEIGHTS[producer]).astype(np.int8)
            given = [self.const(f"{name}_w", w), self.const(f"{name}_ws", np.float32(0.01))]
            inputs.append(self.node("DequantizeLinear", given, f"{name}_wd"))
        if producer in ("Conv", "depthwise"):
            op, attrs = "Conv", {"pads": [1] * 4, "group": 8 if producer == "depthwise" else 1}
        elif producer == "MaxPool":
            attrs = {"kernel_shape": [3, 3], "pads": [1] * 4}
        elif producer == "Concat":
            inputs, attrs = [x, x], {"axis": 1}
        elif producer == "Resize":
            size = self.const(f"{name}_size", np.int64([1, 8, 5, 9]))
            inputs, attrs = [x, "", "", size], {"mode": "nearest"}
        made = self.node(op, inputs, f"{name}_made", **attrs)
        return self.rounded(made, f"{name}_p", 0.03, 0 if producer == "Sigmoid" else -2)

    def operand(self, kind, name, channels, x, producer):
        """Return the other operand: away from zero, for quotients."""
        if kind == "per channel":
            signs = self.random.choice([-1, 1], (1, channels, 1, 1))
            values = self.random.uniform(0.5, 2, signs.shape) * signs
            return self.const(name, values.astype(np.float32))
        if kind == "scalar":
            return self.const(name, np.float32(-1.3))
        if kind == "bytes":
            far = self.random.choice([-1, 1], (channels, 1, 1))
            stored = self.middle + 1 + far * self.random.integers(25, 100, far.shape)
            given = [
                self.const(f"{name}_q", stored.astype(self.dtype)),
                self.const(f"{name}_s", np.float32(0.02)),
                self.const(f"{name}_z", self.dtype(self.middle + 1)),
            ]
            return self.node("DequantizeLinear", given, name)
        made = self.produced(producer, x, f"{name}_own")
        return self.rounded(made, name, 0.04, -5)


def network(producer, dtype, functions):
    """Return the bytes of a model, and its outputs' names."""
    b, outputs = Branches(dtype), []
    x, other = b.rounded("x", "x0", 0.02, 3), b.rounded("other", "o0", 0.015, -5)
    channels = 16 if producer == "Concat" else 8
    for fn in functions:
        for kind in OPERANDS:
            for swapped in (False, True):
                if fn == "PRelu" and swapped and kind != "computed":
                    continue
                name = f"{fn}_{kind.replace(' ', '_')}_{int(swapped)}"
                value = b.produced(producer, x, name)
                operand = b.operand(kind, f"{name}_c", channels, other, producer)
                pair = [operand, value] if swapped else [value, operand]
                made = b.node(fn, pair, f"{name}_r", **({"fmod": 1} if fn == "Mod" else {}))
                outputs.append(b.rounded(made, f"{name}_out", STEP, 1))
    graph = helper.make_graph(
        b.nodes,
        "branches",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in ("x", "other")],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        list(b.consts.values()),
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return made.SerializeToString(), outputs


def both(model, feeds):
    """Return what onnxruntime's unfused and its fused run give."""
    found = []
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        found.append(session.run(None, feeds))
    return found


@pytest.mark.parametrize("functions", FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("producer", PRODUCERS)
def test_binary_functions_of_what_bytes_were(device, producer, dtype, functions):
    """A step more or less where an exact value is near a tie, also of what a producer makes; nothing else differs."""
    model, outputs = network(producer, dtype, FUNCTIONS[functions])
    feeds = {
        n: rng(k).uniform(-2, 2, SHAPE).astype(np.float32) for k, n in enumerate(("x", "other"))
    }
    runs = both(model, feeds)
    with clnn.compile_model(model, device) as session:
        got = session.run(None, feeds)
    for name, found, *wanted in zip(outputs, got, *runs, strict=True):
        steps = np.min([np.abs(found - want) / STEP for want in wanted], axis=0)
        assert np.isfinite(steps).all(), name
        assert steps.max() < 1.5 or name.startswith(STEEP), name
        assert (steps > 0.5).mean() < 0.02, name
