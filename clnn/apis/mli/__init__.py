"""embARC MLI 2.0 in its own terms: tensors over the caller's memory, kernels that return a status.

from clnn import mli
x = mli.MliTensor(np.zeros(8, np.int16), (8,), mli.MliElementType.MLI_EL_FX_16, mli.FxParams(11))
status = mli.mli_krn_relu_fx16(x, mli.MliReluCfg(mli.MliReluType.MLI_RELU_6), y)
"""

from __future__ import annotations

from typing import Any

from clnn.apis.mli.config import (
    MliArgmaxCfg,
    MliAxisCfg,
    MliConv2dCfg,
    MliFullyConnectedCfg,
    MliMovCfg,
    MliPermuteCfg,
    MliPoolCfg,
    MliReluCfg,
    MliRnnCellCfg,
    MliRnnDenseCfg,
)
from clnn.apis.mli.engine import clear, last_error
from clnn.apis.mli.enums import (
    MliElementType,
    MliReluType,
    MliRnnActivation,
    MliRnnDirection,
    MliRnnResults,
    MliStatus,
)
from clnn.apis.mli.modes import Modes, configure, modes, using
from clnn.apis.mli.tensor import FxParams, MliTensor, SaParams

_ROOMS = ("elementwise", "rows", "mac", "transposed", "pooling", "recurrent", "movement")

__all__ = [
    "FxParams",
    "MliArgmaxCfg",
    "MliAxisCfg",
    "MliConv2dCfg",
    "MliElementType",
    "MliFullyConnectedCfg",
    "MliMovCfg",
    "MliPermuteCfg",
    "MliPoolCfg",
    "MliReluCfg",
    "MliReluType",
    "MliRnnActivation",
    "MliRnnCellCfg",
    "MliRnnDenseCfg",
    "MliRnnDirection",
    "MliRnnResults",
    "MliStatus",
    "MliTensor",
    "Modes",
    "SaParams",
    "clear",
    "configure",
    "last_error",
    "modes",
    "using",
]


def __getattr__(name: str) -> Any:
    if name.startswith("mli_"):
        import importlib

        for room in _ROOMS:
            function = getattr(importlib.import_module(f"clnn.apis.mli.{room}"), name, None)
            if function is not None:
                return function
    raise AttributeError(f"module 'clnn.mli' has no attribute {name!r}")


def functions() -> list[str]:
    """Return the names of all functions of MLI that are here."""
    import importlib

    rooms = [importlib.import_module(f"clnn.apis.mli.{room}") for room in _ROOMS]
    return sorted({name for room in rooms for name in vars(room) if name.startswith("mli_")})


def __dir__() -> list[str]:
    return sorted([*__all__, *functions()])
