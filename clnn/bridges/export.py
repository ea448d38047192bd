"""A simulation in the target's own form: C arrays for MLI, a descriptor file for TIDL; others have modules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clnn.apis.tidl import ElementType, IOTensor, describe, sTIDL_IOBufDesc_t, version_of
from clnn.bridges.layers import Grid, Layer
from clnn.graph.ir import Graph
from clnn.types import Array

WIDTH = 12  # numbers in a line of C
C_TYPES = {"int8": "int8_t", "int16": "int16_t", "int32": "int32_t"}


def identifier(name: str) -> str:
    """Return a name as one of C."""
    plain = re.sub(r"\W", "_", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


def c_array(name: str, values: Array) -> str:
    """Return the definition of an array of integers, flat, as MLI's memory holds it."""
    flat = values.reshape(-1).tolist()
    rows = (flat[k : k + WIDTH] for k in range(0, len(flat), WIDTH))
    text = ",\n    ".join(", ".join(map(str, row)) for row in rows)
    return f"const {C_TYPES[str(values.dtype)]} {name}[{len(flat)}] = {{\n    {text}\n}};\n"


def mli_weights(layer: Layer) -> Array:
    """Return a layer's weights in MLI's order: HWCN, or (inputs, units)."""
    weights: Array = layer.data["weights"]
    if layer.op == "fully_connected":
        return np.ascontiguousarray(weights.reshape(len(weights), -1).T)
    return np.ascontiguousarray(weights.transpose(2, 3, 1, 0))


def mli_sources(layers: Sequence[Layer], title: str) -> tuple[str, str]:
    """Return the text of a header and of a C file with weights, biases and quantisation of all layers."""
    known = [layer for layer in layers if layer.grid is not None]
    guard = f"{identifier(title).upper()}_H"
    declared, defined = [], []
    for layer in known:
        for text in _constants(layer):
            defined.append(text)
            declared.append("extern " + text.partition(" = ")[0] + ";\n")
    table = "".join(f"/* {line} */\n" for layer in known for line in _about(layer))
    header = f"#ifndef {guard}\n#define {guard}\n#include <stdint.h>\n\n{table}\n{''.join(declared)}\n#endif\n"
    return header, f'#include "{title}.h"\n\n' + "\n".join(defined)


def _constants(layer: Layer) -> Iterator[str]:
    """Yield the arrays of one layer."""
    if "weights" not in layer.data:
        return
    name = identifier(layer.name)
    yield c_array(f"{name}_weights", mli_weights(layer))
    yield c_array(f"{name}_bias", layer.data["bias"])
    if "scales" in layer.data:
        scale, frac = (np.array(row) for row in zip(*layer.data["scales"], strict=True))
        yield c_array(f"{name}_weights_scale", scale.astype(np.int16))
        yield c_array(f"{name}_weights_scale_frac_bits", frac.astype(np.int8))
    else:
        for part, bits in zip(("weights", "bias"), layer.data["fractions"], strict=True):
            yield c_array(f"{name}_{part}_frac_bits", np.array([bits], np.int8))


def _about(layer: Layer) -> list[str]:
    """Return comments: a layer's kind, and the quantisation of what it reads and writes."""
    window = layer.data.get("window")
    how = "" if window is None else f", window {window.kernel}, strides {window.strides}"
    how += "" if window is None else f", pads {window.before} and {window.after}"
    activation = layer.data.get("activation")
    lines = [f"{layer.name}: {layer.op}{how}" + (f", {activation}" if activation else "")]
    for what, grid in (*(("in", g) for g in layer.grids), ("out", layer.grid)):
        lines.append(f"    {what}: {_quant(grid)}")
    return [line.replace("*/", "* /") for line in lines]


def _quant(grid: Grid | None) -> str:
    quant = grid.quant if grid else None
    if quant is None:
        return "float"
    if not quant.affine:
        return f"fx{quant.bits}, frac_bits {quant.frac}"
    return f"sa{quant.bits}, scale {quant.scale}, scale_frac_bits {quant.frac}, zero_point {quant.zero}"


def tidl_descriptor(graph: Graph, floats: Graph, layers: Sequence[Layer]) -> sTIDL_IOBufDesc_t:
    """Return the descriptor of a simulation: the inputs' integers, and outputs as integers or floats."""
    made, plain = (
        sTIDL_IOBufDesc_t(version_of("11_01"), numCores=1, numVirtualCores=1),
        describe(graph),
    )
    first = {n: g for layer in layers for n, g in zip(layer.inputs, layer.grids, strict=True)}
    sources = {node.outputs[0]: node for node in graph.nodes}
    for tensor in plain.inputs:
        grid = next((g for n, g in first.items() if _from(sources, n) == tensor.name), None)
        made.add(_tensor("in", tensor.name, floats.types[tensor.name].shape, grid))
    by_value = {layer.value: layer.grid for layer in layers}
    for name, value in floats.outputs.items():
        made.add(_tensor("out", name, floats.types[value].shape, by_value.get(value)))
    return made


def _from(sources: dict[str, Any], name: str) -> str:
    """Return what a value is made of in single steps from the front of the graph."""
    while name in sources and sources[name].inputs[0] is not None:
        name = str(sources[name].inputs[0])
    return name


def _tensor(side: str, name: str, shape: Sequence[int], grid: Grid | None) -> IOTensor:
    if grid is None:
        return IOTensor.make(side, name, shape)
    signed = (
        ElementType.TIDL_SignedShort if grid.dtype.itemsize == 2 else ElementType.TIDL_SignedChar
    )
    kind = ElementType.TIDL_UnsignedChar if grid.zero == -128 else signed
    return IOTensor.make(side, name, shape, element_type=kind, scale=1 / grid.step)


def write(network: Any, folder: Path, title: str) -> list[Path]:
    """Write what the target has as files of its own into a folder; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    if network.target.startswith("tidl"):
        path = folder / f"{title}_io_1.bin"
        tidl_descriptor(network.graph, network.floats, network.layers).write(path)
        return [path]
    if network.target.startswith("openvx"):
        from clnn.bridges.export_openvx import write_graph

        return [write_graph(network, folder / f"{title}.vxbin")]
    if network.target.startswith("espdl"):
        from clnn.bridges.export_espdl import write_model

        return [write_model(network, folder, title)]
    header, source = mli_sources(network.layers, title)
    paths = folder / f"{title}.h", folder / f"{title}.c"
    for path, text in zip(paths, (header, source), strict=True):
        path.write_text(text, "utf-8")
    return list(paths)
