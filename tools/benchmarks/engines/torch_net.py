"""ONNX networks as PyTorch modules: each node one function of torch, sizes and windows fixed.

Nothing reads a tensor back to the host, so that modules can be recorded and compiled. Networks with
other nodes are converted by onnx2torch where that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from engines import EngineError

Attributes = Mapping[str, Any]
Weights = Mapping[str, np.ndarray]


def build(path: Path) -> Any:
    """Return the module of an .onnx file. Raises EngineError, or ImportError without onnx2torch."""
    model = onnx.load(path)
    fixed = {t.name for t in model.graph.initializer}
    unknown = sorted({_reason(node, fixed) for node in model.graph.node} - {""})
    if not unknown:
        return _network(model.graph)
    try:
        from onnx2torch import convert
    except ImportError as err:
        raise ImportError(f"onnx2torch, for {', '.join(unknown)}") from err
    try:
        return convert(str(path))
    except NotImplementedError as err:
        raise EngineError(f"onnx2torch does not convert the model: {err}") from err


def _network(graph: onnx.GraphProto) -> Any:
    from torch import nn

    weights = {t.name: np.array(onnx.numpy_helper.to_array(t)) for t in graph.initializer}
    steps = [(_step(node, weights), node) for node in graph.node]
    names = [v.name for v in graph.input if v.name not in weights]
    return _module(nn, steps, weights, names, [v.name for v in graph.output])


def _module(
    nn: Any, steps: list[Any], weights: Weights, inputs: list[str], outputs: list[str]
) -> Any:
    import torch

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            floats = {n: w for n, w in weights.items() if w.dtype == np.float32 and w.ndim}
            self.held = {name: f"w{k}" for k, name in enumerate(floats)}
            for name, array in floats.items():
                given = nn.Parameter(torch.from_numpy(array), requires_grad=False)
                self.register_parameter(self.held[name], given)

        def forward(self, *given: Any) -> Any:
            values = dict(zip(inputs, given, strict=True))
            values |= {name: getattr(self, held) for name, held in self.held.items()}
            for call, node in steps:
                found = call(*(values.get(name) for name in node.input))
                many = found if isinstance(found, tuple) else (found,)
                values |= dict(zip(node.output, many, strict=True))
            return tuple(values[name] for name in outputs)

    return Network()


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _reason(node: onnx.NodeProto, fixed: set[str]) -> str:
    """Return '' for a node that _step knows, else the name of its op."""
    a = _attributes(node)
    pads = list(a.get("pads", ()))
    known = (
        node.op_type in _STEPS
        and pads[: len(pads) // 2] == pads[len(pads) // 2 :]
        and _text(a.get("auto_pad", "NOTSET")) == "NOTSET"
        and len(a.get("kernel_shape", (1, 1))) == 2
        and not a.get("ceil_mode")
        and not any(a.get("output_padding", ()))
        and (node.op_type not in _FIXED or _sizes_fixed(node, fixed))
        and (
            node.op_type != "Resize"
            or (_text(a.get("mode", b"")), _text(a.get("coordinate_transformation_mode", b"")))
            == ("nearest", "asymmetric")
        )
        and (node.op_type != "MaxPool" or len(node.output) == 1)
    )
    return "" if known else node.op_type


def _sizes_fixed(node: onnx.NodeProto, fixed: set[str]) -> bool:
    rest = [name for name in node.input[1:] if name]
    return bool(rest) and all(name in fixed for name in rest)


def _step(node: onnx.NodeProto, weights: Weights) -> Callable[..., Any]:
    """Return the function of a node over its inputs."""
    return _STEPS[node.op_type](_attributes(node), [weights.get(name) for name in node.input])


def _pads(a: Attributes) -> list[int]:
    pads = list(a.get("pads", [0, 0, 0, 0]))
    return pads[: len(pads) // 2]


def _conv(a: Attributes, w: list[Any]) -> Callable[..., Any]:
    from torch.nn import functional as f

    fixed = (list(a.get("strides", [1, 1])), _pads(a), list(a.get("dilations", [1, 1])))
    group = a.get("group", 1)
    return lambda x, weight, bias=None: f.conv2d(x, weight, bias, *fixed, group)


def _conv_transpose(a: Attributes, w: list[Any]) -> Callable[..., Any]:
    from torch.nn import functional as f

    strides, pads, group = list(a.get("strides", [1, 1])), _pads(a), a.get("group", 1)
    return lambda x, weight, bias=None: f.conv_transpose2d(x, weight, bias, strides, pads, 0, group)


def _max_pool(a: Attributes, w: list[Any]) -> Callable[..., Any]:
    from torch.nn import functional as f

    return lambda x: f.max_pool2d(x, list(a["kernel_shape"]), list(a["strides"]), _pads(a))


def _average_pool(a: Attributes, w: list[Any]) -> Callable[..., Any]:
    from torch.nn import functional as f

    sizes, pads = (list(a["kernel_shape"]), list(a["strides"])), _pads(a)
    counted = bool(a.get("count_include_pad", 0))
    return lambda x: f.avg_pool2d(x, *sizes, pads, False, counted)


def _gemm(a: Attributes, w: list[Any]) -> Callable[..., Any]:
    import torch

    flip_a, flip_b = a.get("transA", 0), a.get("transB", 0)
    alpha, beta = a.get("alpha", 1.0), a.get("beta", 1.0)

    def product(x: Any, y: Any, c: Any = None) -> Any:
        x, y = (x.t() if flip_a else x), (y.t() if flip_b else y)
        if c is None:
            return (x @ y) * alpha
        return torch.addmm(c, x, y, alpha=alpha, beta=beta)

    return product


def _clip(a: Attributes, w: list[Any]) -> Callable[..., Any]:
    import torch

    low, high = ([*w, None, None][k] for k in (1, 2))
    bounds = [None if v is None else float(v) for v in (low, high)]
    return lambda x, *rest: torch.clamp(x, *bounds)


def _batch_norm(a: Attributes, w: list[Any]) -> Callable[..., Any]:
    from torch.nn import functional as f

    eps = a.get("epsilon", 1e-5)
    return lambda x, scale, bias, mean, var: f.batch_norm(
        x, mean, var, scale, bias, False, 0.0, eps
    )


def _resize(a: Attributes, w: list[Any]) -> Callable[..., Any]:
    from torch.nn import functional as f

    scales = [float(v) for v in w[2]][2:]
    return lambda x, *rest: f.interpolate(x, scale_factor=scales, mode="nearest")


def _sizes(a: Attributes, w: list[Any]) -> Callable[..., Any]:
    shape = [int(v) for v in w[1]]
    return lambda x, *rest: x.reshape([v or x.shape[k] for k, v in enumerate(shape)])


def _split(a: Attributes, w: list[Any]) -> Callable[..., Any]:
    sizes, axis = [int(v) for v in w[1]], a.get("axis", 0)
    return lambda x, *rest: x.split(sizes, axis)


def _plain(name: str) -> Callable[[Attributes, list[Any]], Callable[..., Any]]:
    def make(a: Attributes, w: list[Any]) -> Callable[..., Any]:
        import torch

        function: Callable[..., Any] = getattr(torch, name)
        return function

    return make


def _concat(a: Attributes, w: list[Any]) -> Callable[..., Any]:
    import torch

    return lambda *parts: torch.cat(parts, a["axis"])


# Ops whose further inputs must be constants.
_FIXED = ("Clip", "Reshape", "Resize", "Split")
_STEPS: dict[str, Callable[[Attributes, list[Any]], Callable[..., Any]]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "Gemm": _gemm,
    "Clip": _clip,
    "BatchNormalization": _batch_norm,
    "Resize": _resize,
    "Reshape": _sizes,
    "Split": _split,
    "Concat": _concat,
    "Relu": _plain("relu"),
    "Sigmoid": _plain("sigmoid"),
    "Add": _plain("add"),
    "Mul": _plain("mul"),
    "GlobalAveragePool": lambda a, w: lambda x: x.mean((2, 3), keepdim=True),
    "Flatten": lambda a, w: lambda x: x.flatten(a.get("axis", 1)),
    "Transpose": lambda a, w: lambda x: x.permute(list(a["perm"])),
}
