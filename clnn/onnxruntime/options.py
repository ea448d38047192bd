"""SessionOptions and RunOptions: every attribute of onnxruntime's, those of no meaning here told once."""

from __future__ import annotations

import operator
import os
from typing import Any, ClassVar

from clnn.logs import log
from clnn.onnxruntime.enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from clnn.onnxruntime.errors import ArgumentTypeError, Fail, FeedError

# Where a model's data lies in other files, where it was given as bytes.
FOLDER = "session.model_external_initializers_file_folder_path"
LONGEST_KEY = 1024  # characters of a configuration entry's key, as in onnxruntime
_told: set[str] = set()
asked_threads: list[int] = []  # numbers of threads that options were given, as they came


def tell_once(what: str, why: str) -> None:
    """Log that something which a program asks for has no meaning here, the first time."""
    if what not in _told:
        _told.add(what)
        log.info("clnn.onnxruntime: %s is accepted and has no effect: %s", what, why)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, (bool, int)):
        raise TypeError
    return bool(value)


def _member(kind: Any) -> Any:
    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return read


class _Record:
    """Attributes of fixed names and types, as those of onnxruntime's options."""

    _fields: ClassVar[dict[str, tuple[Any, Any, str]]] = {}

    def __init__(self) -> None:
        values = {name: default for name, (_, default, _) in self._fields.items()}
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_entries", {})

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fields:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        read, default, why = self._fields[name]
        try:
            self._values[name] = read(value)
        except TypeError:
            raise ArgumentTypeError(
                f"{type(self).__name__}.{name} is set to {value!r} of type {type(value).__name__}. "
                f"Its values are such as {default!r}."
            ) from None
        if why:
            tell_once(f"{type(self).__name__}.{name}", why)

    def __dir__(self) -> list[str]:
        return sorted([*object.__dir__(self), *self._fields])

    def _add(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise ArgumentTypeError(
                f"a configuration entry has two texts; {key!r}, {value!r} were given."
            )
        if not 0 < len(key) <= LONGEST_KEY:
            raise FeedError(
                f"a configuration entry's key has {len(key)} characters; it has 1 to {LONGEST_KEY}."
            )
        self._entries[key] = value

    def _get(self, key: str) -> str:
        if key not in self._entries:
            raise FeedError(
                f"{type(self).__name__} has no configuration with key {key!r}. There are: "
                f"{sorted(self._entries)}."
            )
        text: str = self._entries[key]
        return text


_ARENA = "one arena of planned offsets holds all tensors of a run"
_ORDER = "the planner orders the launches of a network"


class SessionOptions(_Record):
    """How a session is made. docs/onnxruntime.md says of each attribute what it does here."""

    _fields: ClassVar[dict[str, tuple[Any, Any, str]]] = {
        "enable_cpu_mem_arena": (_truth, True, _ARENA),
        "enable_mem_pattern": (_truth, True, _ARENA),
        "enable_mem_reuse": (_truth, True, _ARENA),
        "enable_profiling": (_truth, False, ""),
        "execution_mode": (_member(ExecutionMode), ExecutionMode.ORT_SEQUENTIAL, _ORDER),
        "execution_order": (_member(ExecutionOrder), ExecutionOrder.DEFAULT, _ORDER),
        "graph_optimization_level": (
            _member(GraphOptimizationLevel),
            GraphOptimizationLevel.ORT_ENABLE_ALL,
            "",
        ),
        "inter_op_num_threads": (operator.index, 0, _ORDER),
        "intra_op_num_threads": (operator.index, 0, ""),
        "log_severity_level": (operator.index, -1, "CLNN_DEBUG sets what is logged"),
        "log_verbosity_level": (operator.index, 0, "CLNN_DEBUG sets what is logged"),
        "logid": (_text, "", "messages name what they are about"),
        "optimized_model_filepath": (_text, "", "a plan is no ONNX model; no file is written"),
        "profile_file_prefix": (_text, "onnxruntime_profile_", ""),
        "use_deterministic_compute": (
            _truth,
            False,
            "results are the same in each run with the same cache",
        ),
        "use_per_session_threads": (_truth, True, "the device's driver has the threads"),
    }

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_by_name", {})
        object.__setattr__(self, "_by_denotation", {})
        object.__setattr__(self, "_providers", [])
        object.__setattr__(self, "_initializers", {})

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "intra_op_num_threads":
            asked_threads.append(self._values[name])

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep a text by name. "clnn.fallback", "clnn.device" and FOLDER mean something here."""
        self._add(key, value)
        if not key.startswith("clnn.") and key != FOLDER:
            tell_once(
                f"session_config_entry {key!r}", "it is an entry of onnxruntime's own kernels"
            )

    def get_session_config_entry(self, key: str) -> str:
        """Return a text by name. Raises RuntimeError where there is none."""
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
        """Give the symbolic dimension `name` an extent."""
        self._by_name.setdefault(_text(name), operator.index(extent))

    def add_free_dimension_override_by_denotation(self, denotation: str, extent: int) -> None:
        """Give dimensions that the model denotes so, such as DATA_BATCH, an extent."""
        self._by_denotation.setdefault(_text(denotation), operator.index(extent))

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        """Add a provider, as `providers` of InferenceSession does."""
        self._providers.append((_text(name), dict(options)))

    def has_providers(self) -> bool:
        """Whether providers were added."""
        return bool(self._providers)

    def add_initializer(self, name: str, value: Any) -> None:
        """Replace the data of an initializer by an OrtValue."""
        self._initializers[_text(name)] = value

    def add_external_initializers(self, names: list[str], values: list[Any]) -> None:
        """Replace the data of initializers by OrtValues."""
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def register_custom_ops_library(self, path: str) -> None:
        """Refuse: libraries of operators hold code for onnxruntime's own kernels."""
        if not os.path.exists(path):
            raise Fail(f"Failed to load library {path}: there is no such file.")
        raise FeedError(
            f"{path!r} is a library of operators for onnxruntime's CPU kernels, which clnn cannot "
            "run. Export the model with operators of ONNX, or run it with onnxruntime."
        )


class RunOptions(_Record):
    """How one run is done."""

    _fields: ClassVar[dict[str, tuple[Any, Any, str]]] = {
        "log_severity_level": (operator.index, -1, "CLNN_DEBUG sets what is logged"),
        "log_verbosity_level": (operator.index, 0, "CLNN_DEBUG sets what is logged"),
        "logid": (_text, "", "messages name what they are about"),
        "only_execute_path_to_fetches": (_truth, False, "a plan runs as a whole"),
        "terminate": (_truth, False, ""),
    }

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep a text by name; none has a meaning here."""
        self._add(key, value)
        tell_once(f"run_config_entry {key!r}", "it is an entry of onnxruntime's own kernels")

    def get_run_config_entry(self, key: str) -> str:
        """Return a text by name. Raises RuntimeError where there is none."""
        return self._get(key)
