#!/usr/bin/env python3
"""Give the light_* models of the onnx package seeded random weights, so that they prove something.

    python tools/benchmarks/make_light_models.py OUT [NAME ...]

As shipped (AlexNet, DenseNet-121, Inception v1 and v2, ResNet-50, ShuffleNet, SqueezeNet, VGG-19,
ZFNet) their weights are constant and their outputs uniform. Here weights are drawn so that the
variance of activations is preserved (He), and statistics of normalisations near one and zero.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper


def light_folder() -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def randomised(path: Path, seed: int = 0) -> onnx.ModelProto:
    """Return the model of `path` with random weights in place of its constant ones."""
    model = onnx.load(path)
    graph = model.graph
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    filled = {n.output[0]: shapes[n.input[0]] for n in graph.node if n.op_type == "ConstantOfShape"}
    roles = _roles(graph)
    rng = np.random.default_rng(seed)
    weights = {name: _draw(rng, roles.get(name, ("", 0)), dims) for name, dims in filled.items()}
    kept = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    used = {name for n in kept for name in n.input}
    arrays = {k: v for k, v in shapes.items() if k in used} | weights
    inputs = [i for i in graph.input if i.name in used and i.name not in arrays]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(kept)
    graph.input.extend(inputs)
    graph.initializer.extend(numpy_helper.from_array(a, k) for k, a in arrays.items())
    return model


def _roles(graph: onnx.GraphProto) -> dict[str, tuple[str, int]]:
    """Return constant -> (op type, input index) of its first reader, seen through Unsqueeze."""
    roles: dict[str, tuple[str, int]] = {}
    through: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "Unsqueeze":
            through[node.output[0]] = node.input[0]
            continue
        for index, name in enumerate(node.input):
            roles.setdefault(through.get(name, name), (node.op_type, index))
    return roles


def _draw(rng: np.random.Generator, role: tuple[str, int], dims: np.ndarray) -> np.ndarray:
    shape = tuple(int(d) for d in dims)
    noise = rng.standard_normal(shape)
    op, index = role
    if op in ("Conv", "Gemm") and index == 1:
        fan = np.prod(shape[1:])
        return (noise * np.sqrt(2.0 / fan)).astype(np.float32)
    near_one = op == "Mul" or (op == "BatchNormalization" and index in (1, 4))
    return (1 + 0.1 * np.abs(noise) if near_one else 0.1 * noise).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="such as squeezenet; default: all")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(light_folder().glob("light_*.onnx")):
        if not args.names or path.stem.removeprefix("light_") in args.names:
            onnx.save(randomised(path), args.out / path.name)
            print(args.out / path.name)


if __name__ == "__main__":
    main()
