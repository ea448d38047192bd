"""Quantised models: how far a run is from ONNX Runtime's with and without its graph optimisations.

Those two differ themselves: fused operators round integers once, unfused ones round real numbers at
each step. Where they agree, the result is the one that the model means.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from clnn.importers.onnx.info import read_info
from clnn.records import dataclass
from clnn.types import Array
from clnn.verification.onnxruntime import OnnxRuntime

ROUNDING = (
    1e-5  # of the largest element: what the float32 operators behind the integers may differ by
)
STATIC = ("QuantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd")


@dataclass(frozen=True)
class Shares:
    """What a run has in common with ONNX Runtime's fused and unfused runs.

    equal: share of elements that are those of the fused run. agreed: share in which the two runs
    agree. missed: elements of these that differ here, by more than float32 operators may. error, own:
    largest difference from the fused run, of this run and of the unfused one. top: whether the
    largest elements stand in one place.
    """

    equal: float
    agreed: float
    missed: int
    error: float
    own: float
    top: bool

    @property
    def passed(self) -> bool:
        """Whether agreed elements are met, or the fused run is as near as to the unfused one."""
        return self.missed == 0 or (self.error <= self.own and self.top)

    def line(self) -> str:
        """Return the figures in words."""
        return (
            f"{100 * self.equal:.2f}% equal to the fused run, {100 * self.agreed:.2f}% of which the "
            f"unfused one is; {self.missed} differ where they agree; off by {self.error:.3g}, "
            f"unfused by {self.own:.3g}"
        )


def is_quantised(model: str | os.PathLike[str]) -> bool:
    """Whether a model quantises activations by scales that it holds."""
    return any(node.op.rpartition("::")[2] in STATIC for node in read_info(model).nodes)


def shares(
    model: str | os.PathLike[str], feeds: Mapping[str, Any], got: Mapping[str, Array]
) -> dict[str, Shares]:
    """Return output name -> Shares. Raises MissingPackageError, ModelError."""
    fused, unfused = (OnnxRuntime(model, optimise=way)(feeds) for way in (True, False))
    return {name: compare(got[name], fused[name], unfused[name]) for name in fused}


def compare(got: Array, fused: Array, unfused: Array) -> Shares:
    """Return the shares of one output; all three are of one shape."""
    if got.shape != fused.shape or not got.size:
        same = got.shape == fused.shape
        return Shares(float(same), 1.0, int(not same), 0.0, 0.0, same)
    agreed = fused == unfused
    largest = float(np.abs(np.asarray(fused, np.float64)).max())
    room = ROUNDING * largest if fused.dtype.kind == "f" else 0.0
    away = np.abs(np.asarray(got, np.float64) - np.asarray(fused, np.float64)) > room
    error, own = (
        float(np.abs(np.asarray(a, np.float64) - np.asarray(fused, np.float64)).max())
        for a in (got, unfused)
    )
    return Shares(
        float((got == fused).mean()),
        float(agreed.mean()),
        int((away & agreed).sum()),
        error,
        own,
        bool(got.argmax() == fused.argmax()),
    )
