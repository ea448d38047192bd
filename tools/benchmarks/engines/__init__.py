"""Inference engines to compare with: one module each, run in a process of its own by worker.py.

A module NAME.py has `open_model(setup) -> Loaded`. It imports its engine inside, and raises
ImportError where that is not installed and EngineError where the engine refuses the model.

An engine is named NAME or NAME:OPTION+OPTION..., such as clnn:f16 or torch:cuda+f16+graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("clnn", "onnxruntime", "openvino", "torch", "ncnn", "mnn", "tinygrad")
MODULES = {name: f"engines.engine_{name}" for name in NAMES}
# What numbers an engine computes with, and the error that is right for them, relative to the
# largest output. The first is what an engine takes without an option.
DTYPES = {"f32": 1e-3, "tf32": 1e-2, "f16": 2e-2, "bf16": 1e-1, "int8": 2e-1}
OPTIONS: dict[str, tuple[str, ...]] = {
    "clnn": tuple(DTYPES),
    "openvino": ("f32", "bf16", "f16"),
    "torch": (*DTYPES, "cuda", "channels_last", "eager", "graphs", "compile"),
}
Arrays = Mapping[str, np.ndarray]


class EngineError(RuntimeError):
    """An engine refuses a model, or fails while it converts or runs it."""


def name_of(engine: str) -> str:
    """Return the engine's name without its options."""
    return engine.partition(":")[0]


def options_of(engine: str) -> tuple[str, ...]:
    """Return the options behind an engine's name."""
    return tuple(option for option in engine.partition(":")[2].split("+") if option)


def dtype_of(engine: str) -> str:
    """Return the first of DTYPES that is an option of the engine, else f32."""
    return next((d for d in DTYPES if d in options_of(engine)), "f32")


def refusal(engine: str) -> str:
    """Return what is wrong with an engine's name and options, or ''."""
    name, options = name_of(engine), options_of(engine)
    if name not in NAMES:
        return f"no engine is named {name}; there are {', '.join(NAMES)}"
    allowed = OPTIONS.get(name, ())
    unknown = [option for option in options if option not in allowed]
    if unknown:
        has = f"it has {', '.join(allowed)}" if allowed else "it has none"
        return f"{name} has no option {', '.join(unknown)}; {has}"
    if len(set(DTYPES) & set(options)) > 1:
        return f"{engine} names several kinds of numbers"
    return ""


@dataclass(frozen=True)
class Setup:
    """What to load. shapes: of every input, without symbols. outputs: names in the model's order.

    work: a folder for converted files and caches, empty at a cold start and kept for a warm one.
    options: those behind the engine's name. draws: what drawing.draws says of the inputs.
    """

    model: Path
    shapes: Mapping[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    threads: int
    device: str | None
    work: Path
    options: tuple[str, ...] = ()
    draws: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """What numbers to compute with, of DTYPES."""
        return next((d for d in DTYPES if d in self.options), "f32")


@dataclass(frozen=True)
class Loaded:
    """A model in an engine. call: arrays by input name to outputs in the model's order.

    facts: what else the engine knows, under names that compare_engines.py prints. finish: called
    once at the end, returns more facts; `device_s` is the time of a run without copies from and to
    the host. close: frees what the model holds.
    """

    title: str
    call: Callable[[Arrays], list[np.ndarray]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[Arrays], Mapping[str, Any]] = lambda feeds: {}
    close: Callable[[], None] = lambda: None
