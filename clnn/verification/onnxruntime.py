"""ONNX Runtime on the CPU as the engine to compare with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from clnn.errors import MissingPackageError, ModelError
from clnn.runtime.device.processor import lists
from clnn.types import Array


class OnnxRuntime:
    """A model in ONNX Runtime's CPU provider.

    threads: of its pool (0: its own choice). optimise: run its graph optimisations; without them
    every node's result is what that node computes. but: names of those that are left out. Raises
    MissingPackageError where onnxruntime is not installed, ModelError where it refuses the model.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        threads: int = 0,
        optimise: bool = True,
        but: Sequence[str] = (),
    ) -> None:
        ort = _load()
        source = model if isinstance(model, bytes) else os.fspath(model)
        try:
            self._session: Any = _session(ort, source, threads, optimise, but)
        except Exception as err:
            raise ModelError(
                f"onnxruntime {ort.__version__} does not load the model: {err}"
            ) from err
        self.title = f"onnxruntime {ort.__version__}"

    def __call__(
        self, feeds: Mapping[str, Array], names: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Return {output: array} for {input: array}; `names` limits the outputs."""
        wanted = list(names) if names is not None else [o.name for o in self._session.get_outputs()]
        try:
            arrays = self._session.run(wanted, dict(feeds))
        except Exception as err:
            raise ModelError(f"{self.title} does not run the model: {err}") from err
        return {name: np.asarray(array) for name, array in zip(wanted, arrays, strict=True)}


def _session(
    ort: Any, source: str | bytes, threads: int, optimise: bool, but: Sequence[str]
) -> Any:
    """Return a session whose products of bytes are exact.

    Without an instruction for them, they saturate unless that is asked for; then models are refused whose
    products do not saturate anyhow.
    """

    def session(exact: bool) -> Any:
        options = ort.SessionOptions()
        options.log_severity_level = 4 if exact else 3
        options.intra_op_num_threads = threads
        if exact:
            options.add_session_config_entry("session.x64quantprecision", "1")
        if not optimise:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(
            source, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(but)
        )

    if not (lists("avx512_vnni") or lists("avx_vnni")):
        with suppress(ort.capi.onnxruntime_pybind11_state.NotImplemented):
            return session(exact=True)
    return session(exact=False)


def _load() -> Any:
    try:
        import onnxruntime
    except ImportError as err:
        raise MissingPackageError(
            f"onnxruntime cannot be imported: {err}. It is needed to compare with it. "
            "Run: pip install onnxruntime, or compare with 'reference'."
        ) from err
    return onnxruntime
