"""The public functions of clnn, by name."""

from __future__ import annotations

from clnn.compile import (
    Model,
    Shapes,
    calibrate,
    load_graph,
    prepare,
    settled,
    tune_model,
)
from clnn.entry import compile_model
from clnn.qdq.option import Calibration
from clnn.runtime.device.device import discover as devices
from clnn.runtime.doctor.doctor import doctor_report as doctor
from clnn.verification.verify import verify

__all__ = [
    "Calibration",
    "Model",
    "Shapes",
    "calibrate",
    "compile_model",
    "devices",
    "doctor",
    "load_graph",
    "prepare",
    "settled",
    "tune_model",
    "verify",
]
