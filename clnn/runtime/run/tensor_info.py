"""What a session says of its inputs and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from clnn.layout import TensorLayout
from clnn.plan.plan import Plan, Port
from clnn.records import dataclass


@dataclass(frozen=True)
class TensorInfo:
    """An input or output: name, shape, dtype, and the layout that the network itself uses."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    layout: TensorLayout


def tensor_info(plan: Plan, port: Port) -> TensorInfo:
    """Return what a session of a plan says of a port."""
    layout = plan.placed[port.value].layout
    return TensorInfo(port.name, port.type.shape, port.type.dtype.numpy, layout)
