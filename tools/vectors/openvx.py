"""OpenVX: cases of the conformance suite's tensor and neural-network tests, through clnn.openvx.

A folder holds NAME.json (a list of cases) and NAME.npz (their arrays, CASE__PARAMETER), stored with
dimension 0 innermost. Contexts are made with the conformance option.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from clnn import openvx as vx
from vectors import Case, Outcome

FORMATS = {
    "Q78": ("VX_TYPE_INT16", 8),
    "U8": ("VX_TYPE_UINT8", 0),
    "S8": ("VX_TYPE_INT8", 0),
    "F32": ("VX_TYPE_FLOAT32", 0),
}
BITS = 32
FLOOR = vx.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_FLOOR
CEILING = vx.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_CEILING


def cases(folder: Path) -> Iterator[Case]:
    """Yield every case of a folder."""
    for path in sorted(Path(folder).glob("*.json")):
        arrays = np.load(path.with_suffix(".npz"))
        for about in json.loads(path.read_text("utf-8"))["cases"]:
            prefix = f"{about['id']}__"
            held = {k[len(prefix) :]: arrays[k] for k in arrays.files if k.startswith(prefix)}
            yield Case(path.stem, about["id"], (about, held))


class Call:
    """A context, a graph and the tensors of one case."""

    def __init__(self, about: dict[str, Any], arrays: dict[str, np.ndarray], device: str) -> None:
        self.about, self.arrays = about, arrays
        self.context = shared_context(device)
        self.graph = vx.vxCreateGraph(self.context)
        self.held: list[Any] = [self.graph]

    def tensor(self, name: str) -> Any:
        """Make a tensor; an input holds its data."""
        if name not in self.about:
            return None
        kind, position = FORMATS[self.about[name]["fmt"]]
        dims = self.about[name]["dims"]
        made = vx.vxCreateTensor(self.context, len(dims), dims, getattr(vx, kind), position)
        if name != "output":
            vx.vxCopyTensorPatch(
                made, None, None, np.ascontiguousarray(self.arrays[name]), vx.VX_WRITE_ONLY
            )
        self.held.append(made)
        return made

    def flag(self, name: str, no: Any, yes: Any) -> Any:
        """Choose by a flag of the case."""
        return yes if self.about.get(name) else no

    @property
    def policy(self) -> Any:
        """Overflow policy."""
        return self.flag("wrap", vx.VX_CONVERT_POLICY_SATURATE, vx.VX_CONVERT_POLICY_WRAP)

    @property
    def rounding(self) -> Any:
        """Rounding policy."""
        return self.flag(
            "to_nearest_even", vx.VX_ROUND_POLICY_TO_ZERO, vx.VX_ROUND_POLICY_TO_NEAREST_EVEN
        )


@cache
def shared_context(device: str) -> Any:
    """Return the conformance context of a device."""
    return vx.vxCreateContext(device, conformance=True)


def _activation(c: Call, out: Any) -> None:
    func = list(vx.enums.Activation)[c.about["func"]]
    vx.vxActivationLayer(c.graph, c.tensor("input"), func, c.about["a"], c.about["b"], out)


def _elementwise(c: Call, out: Any) -> None:
    one, two = c.tensor("in0"), c.tensor("in1")
    if c.about["op"] == "mul":
        scale = vx.vxCreateScalar(c.context, vx.VX_TYPE_FLOAT32, c.about["scale"])
        c.held.append(scale)
        vx.vxTensorMultiplyNode(c.graph, one, two, scale, c.policy, c.rounding, out)
    elif c.about["op"] == "add":
        vx.vxTensorAddNode(c.graph, one, two, c.policy, out)
    else:
        vx.vxTensorSubtractNode(c.graph, one, two, c.policy, out)


def _convolution(c: Call, out: Any) -> None:
    about = c.about
    vx.vxConvolutionLayer(
        c.graph,
        c.tensor("input"),
        c.tensor("weights"),
        c.tensor("bias"),
        about["pad_x"],
        about["pad_y"],
        BITS,
        c.policy,
        c.rounding,
        c.flag("ceil", FLOOR, CEILING),
        out,
        about["dilation_x"],
        about["dilation_y"],
    )


def _deconvolution(c: Call, out: Any) -> None:
    about = c.about
    vx.vxDeconvolutionLayer(
        c.graph,
        c.tensor("input"),
        c.tensor("weights"),
        c.tensor("bias"),
        about["pad_x"],
        about["pad_y"],
        c.policy,
        c.rounding,
        about["a_x"],
        about["a_y"],
        out,
    )


def _fully_connected(c: Call, out: Any) -> None:
    vx.vxFullyConnectedLayer(
        c.graph,
        c.tensor("input"),
        c.tensor("weights"),
        c.tensor("bias"),
        0,
        BITS,
        c.policy,
        c.rounding,
        FLOOR,
        out,
    )


def _pooling(c: Call, out: Any) -> None:
    about = c.about
    kind = c.flag(
        "max", vx.VX_CONVOLUTIONAL_NETWORK_POOLING_AVG, vx.VX_CONVOLUTIONAL_NETWORK_POOLING_MAX
    )
    vx.vxPoolingLayer(
        c.graph,
        c.tensor("input"),
        kind,
        about["size_x"],
        about["size_y"],
        about["pad_x"],
        about["pad_y"],
        pooling_rounding(about),
        out,
    )


def pooling_rounding(about: dict[str, Any]) -> Any:
    """Return the rounding of sizes with which a pooling has the strides that its case notes.

    A case does not name its rounding. Sizes can be those of both roundings while the suite's
    stride, the smallest one, differs: of [4] -> [2] by windows of 3 and padding of 1 it is 2 when
    sizes are rounded down, and 3 when they are rounded up.
    """

    def smallest(axis: int, name: str, ceil: bool) -> int | None:
        extent, out = about["input"]["dims"][axis], about["output"]["dims"][axis]
        room = extent + 2 * about[f"pad_{name}"] - about[f"size_{name}"]
        strides = range(1, room + 2)
        return next((s for s in strides if (room + (s - 1) * ceil) // s + 1 == out), None)

    noted = [about["stride_x"], about["stride_y"]]
    up = [smallest(0, "x", True), smallest(1, "y", True)]
    down = [smallest(0, "x", False), smallest(1, "y", False)]
    return CEILING if up == noted and down != noted else FLOOR


def _softmax(c: Call, out: Any) -> None:
    vx.vxSoftmaxLayer(c.graph, c.tensor("input"), out)


def _lut(c: Call, out: Any) -> None:
    table = c.arrays["lut"]
    kind = getattr(vx, FORMATS[c.about["lut"]["fmt"]][0])
    lut = vx.vxCreateLUT(c.context, kind, table.size)
    c.held.append(lut)
    vx.vxCopyLUT(lut, np.ascontiguousarray(table), vx.VX_WRITE_ONLY)
    vx.vxTensorTableLookupNode(c.graph, c.tensor("input"), lut, out)


def _convert_depth(c: Call, out: Any) -> None:
    vx.vxTensorConvertDepthNode(
        c.graph, c.tensor("input"), c.policy, c.about["norm"], c.about["offset"], out
    )


def _matmul(c: Call, out: Any) -> None:
    turned = [bool(c.about.get(f"{name}_transposed")) for name in "abc"]
    vx.vxTensorMatrixMultiplyNode(
        c.graph, c.tensor("a"), c.tensor("b"), c.tensor("c"), out, *turned
    )


NODES: dict[str, Callable[[Call, Any], None]] = {
    "activation": _activation,
    "add": _elementwise,
    "sub": _elementwise,
    "mul": _elementwise,
    "convolution": _convolution,
    "deconvolution": _deconvolution,
    "pooling": _pooling,
    "fully_connected": _fully_connected,
    "softmax": _softmax,
    "lut": _lut,
    "convert_depth": _convert_depth,
    "matmul": _matmul,
}


def run(case: Case, device: str) -> Outcome:
    """Return what became of one case on a device."""
    about, arrays = case.data
    if about["op"] not in NODES:
        return Outcome("skipped", f"no node computes {about['op']}")
    call = Call(about, arrays, device)
    try:
        out = call.tensor("output")
        NODES[about["op"]](call, out)
        vx.vxVerifyGraph(call.graph)
        vx.vxProcessGraph(call.graph)
        got = np.empty_like(arrays["output"])
        vx.vxCopyTensorPatch(out, None, None, got, vx.VX_READ_ONLY)
    finally:
        for reference in call.held:
            vx.vxReleaseReference(reference)
    wrong = int((got != arrays["output"]).sum())
    if wrong:
        return Outcome("failed", f"{wrong} of {got.size} elements differ: {about['test']}")
    return Outcome("exact")
