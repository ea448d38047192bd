"""Inference engines to compare with: one module each, run in a process of its own by worker.py.

A module NAME.py has `open_model(setup) -> Loaded`. It imports its engine inside, and raises
ImportError where that is not installed and EngineError where the engine refuses the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("clnn", "onnxruntime", "openvino", "torch", "ncnn", "mnn", "tinygrad")
MODULES = {name: f"engines.engine_{name}" for name in NAMES}
Arrays = Mapping[str, np.ndarray]


class EngineError(RuntimeError):
    """An engine refuses a model, or fails while it converts or runs it."""


@dataclass(frozen=True)
class Setup:
    """What to load. shapes: of every input, without symbols. outputs: names in the model's order.

    work: a folder for converted files and caches, empty at a cold start and kept for a warm one.
    """

    model: Path
    shapes: Mapping[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    threads: int
    device: str | None
    work: Path


@dataclass(frozen=True)
class Loaded:
    """A model in an engine. call: arrays by input name to outputs in the model's order.

    facts: what else the engine knows, under names that compare_engines.py prints. finish: called
    once at the end, returns more facts.
    """

    title: str
    call: Callable[[Arrays], list[np.ndarray]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[Arrays], Mapping[str, Any]] = lambda feeds: {}
