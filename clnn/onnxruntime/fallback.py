"""The real onnxruntime, for models that clnn refuses, where a program's user asked for that."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

from clnn.errors import MissingPackageError
from clnn.logs import log

NAME = "onnxruntime"
_lock = threading.Lock()
_real: dict[str, ModuleType] = {}


def real_module() -> ModuleType:
    """Return the module onnxruntime of its own package, whatever stands for that name now.

    Raises MissingPackageError where it is not installed.
    """
    with _lock:
        if NAME not in _real:
            current = {
                n: m for n, m in sys.modules.items() if n == NAME or n.startswith(f"{NAME}.")
            }
            ours = current.get(NAME) is not None and current[NAME].__name__ != NAME
            finders = [f for f in sys.meta_path if getattr(f, "stands_for", "") == NAME]
            try:
                for name in current if ours else ():
                    del sys.modules[name]
                for finder in finders:
                    sys.meta_path.remove(finder)
                import onnxruntime

                _real[NAME] = onnxruntime
            except ImportError as err:
                raise MissingPackageError(
                    f"onnxruntime shall run what clnn refuses, but cannot be imported: {err}. Run: "
                    f"{sys.executable} -m pip install onnxruntime"
                ) from err
            finally:
                sys.meta_path[:0] = finders
                if ours:
                    for name in [n for n in sys.modules if n == NAME or n.startswith(f"{NAME}.")]:
                        del sys.modules[name]
                sys.modules.update(current)
        return _real[NAME]


def real_session(source: str | bytes, options: Any, why: Exception) -> Any:
    """Return a session of onnxruntime for a model that clnn refuses, and say so.

    options: a SessionOptions of clnn.onnxruntime.
    """
    module = real_module()
    log.warning(
        "clnn.onnxruntime: clnn refuses this model, and onnxruntime runs it on the CPU, as was asked"
        " for. %s",
        why,
    )
    theirs = module.SessionOptions()
    theirs.intra_op_num_threads = options.intra_op_num_threads
    theirs.inter_op_num_threads = options.inter_op_num_threads
    theirs.enable_profiling = options.enable_profiling
    theirs.profile_file_prefix = options.profile_file_prefix
    level = options.graph_optimization_level.name
    theirs.graph_optimization_level = getattr(module.GraphOptimizationLevel, level)
    for name, extent in options._by_name.items():
        theirs.add_free_dimension_override_by_name(name, extent)
    for name, extent in options._by_denotation.items():
        theirs.add_free_dimension_override_by_denotation(name, extent)
    return module.InferenceSession(source, theirs, providers=["CPUExecutionProvider"])
