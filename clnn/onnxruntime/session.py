"""InferenceSession: onnxruntime's class over sessions of clnn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from clnn import logs
from clnn.errors import ClnnError, SettingError
from clnn.logs import log
from clnn.onnxruntime import process
from clnn.onnxruntime.binding import IOBinding
from clnn.onnxruntime.engine import Engine
from clnn.onnxruntime.enums import GraphOptimizationLevel
from clnn.onnxruntime.errors import (
    ArgumentTypeError,
    Fail,
    FeedError,
    InvalidArgument,
    InvalidProtobuf,
    MissingFeedError,
    NoSuchFile,
    translated,
    translation,
)
from clnn.onnxruntime.fallback import real_session
from clnn.onnxruntime.feeds import taken
from clnn.onnxruntime.nodes import ModelMetadata, NodeArg
from clnn.onnxruntime.options import FOLDER, RunOptions, SessionOptions, tell_once
from clnn.onnxruntime.profiling import Trace
from clnn.onnxruntime.providers import CPU, OWN, Chosen, choose, get_available_providers, listed
from clnn.onnxruntime.source import Source
from clnn.onnxruntime.values import OrtValue
from clnn.settings import setting
from clnn.types import Array


class InferenceSession:
    """A model, ready to run. Safe to use from several threads.

    Raises NoSuchFile, InvalidProtobuf, InvalidGraph, Fail or InvalidArgument for models that are
    not valid, NotImplemented for those that clnn does not run, EPFail where no device is usable.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        logs.configure(always=True)
        self._source = _source(path_or_bytes)
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise ArgumentTypeError(
                f"sess_options is of type {type(sess_options).__name__}. Pass a SessionOptions."
            )
        for name in kwargs:
            tell_once(
                f"argument {name!r} of InferenceSession", "it is of onnxruntime's own kernels"
            )
        self._options = sess_options or SessionOptions()
        process.use_threads(self._options.intra_op_num_threads)
        self._trace = (
            Trace(self._options.profile_file_prefix) if self._options.enable_profiling else None
        )
        self._began_ns = 0 if self._trace is None else self._trace.begin_ns
        self._make(providers, provider_options)

    def _make(self, providers: Any, provider_options: Any) -> None:
        try:
            rows = listed(providers, provider_options)
        except SettingError as err:
            log.warning("clnn.onnxruntime: %s The CPU's provider serves.", err)
            rows = [(CPU, {})]
        self._chosen = self._with_entries(choose(rows or self._options._providers))
        overrides = dict(self._options._by_name)
        overrides |= {f":{d}": e for d, e in self._options._by_denotation.items()}
        data = {name: value.numpy() for name, value in self._options._initializers.items()}
        with translated(), self._span("session_initialization"):
            source = Source(self._source, self._options._entries.get(FOLDER))
            self._engine = Engine(source, self._chosen, overrides, data, self._real)
        self._feed_names = [p.name for p in self._engine.interface.inputs]
        self._needed = {p.name for p in self._engine.interface.inputs if p.kind != "optional"}
        self._output_names = [p.name for p in self._engine.interface.outputs]
        self._ports = {**self._engine.ports, **self._engine.defaults}
        self._inputs_meta = [NodeArg(p) for p in self._engine.interface.inputs]
        self._outputs_meta = [NodeArg(p) for p in self._engine.outputs]

    def _real(self, why: Exception) -> Any:
        """Return onnxruntime's session of the model."""
        return real_session(self._source, self._options, why)

    def _with_entries(self, chosen: Chosen) -> Chosen:
        """Return the choice with what session options and settings say."""
        options, entries = chosen.options, self._options._entries
        if self._options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL:
            options = type(options)(**{**vars(options), "fuse": False})
        wanted = entries.get("clnn.fallback", setting("CLNN_ORT_FALLBACK"))
        fallback = chosen.fallback or wanted in ("onnxruntime", "1")
        device = entries.get("clnn.device", chosen.device)
        return Chosen(chosen.names, device, options, chosen.given, fallback)

    def _span(self, name: str) -> Any:
        return nullcontext() if self._trace is None else self._trace.span(name)

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs."""
        return list(self._inputs_meta)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, with shapes as far as they follow from the model."""
        return list(self._outputs_meta)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs that have a default in the model."""
        return [NodeArg(p) for p in self._engine.interface.overridable]

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's head data."""
        return ModelMetadata(self._engine.interface.head, self._engine.interface.metadata)

    def get_providers(self) -> list[str]:
        """Return the names of the providers that serve."""
        return list(self._chosen.names)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of each provider, as texts."""
        return {name: dict(self._chosen.given.get(name, {})) for name in self._chosen.names}

    def get_session_options(self) -> SessionOptions:
        """Return the options that the session was made with."""
        return self._options

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
    ) -> None:
        """Make the session anew with other providers. Raises RuntimeError for unknown ones."""
        known = [*get_available_providers(), OWN]
        for name, _ in listed(providers, provider_options):
            if name not in known:
                raise FeedError(f"{name!r} is no provider here: there are {', '.join(known)}.")
        self._make(providers, provider_options)

    def disable_fallback(self) -> None:
        """Have no other provider serve where one fails: there is none that would."""

    def enable_fallback(self) -> None:
        """Do nothing: no provider stands in for another after a session is made."""

    def run(
        self,
        output_names: Sequence[str] | str | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Return the outputs `output_names` (None or empty: all) for arrays by input name."""
        names, feeds = self._read(output_names, input_feed, run_options)
        if self._trace is not None:
            return self._traced(names, feeds)
        try:
            return self._engine.run(names, feeds)
        except ClnnError as err:
            made = translation(err)
            if made is err:
                raise
            raise made from err

    def _read(
        self, names: Any, feeds: Mapping[str, Any], run_options: RunOptions | None
    ) -> tuple[list[str] | None, dict[str, Any]]:
        """Return what a run was asked for. Raises where it does not fit the model."""
        if not self._needed <= feeds.keys():
            missing = sorted(self._needed - feeds.keys())
            raise MissingFeedError(
                f"Required inputs ({missing}) are missing from input feed ({list(feeds)})."
            )
        if run_options is not None:
            self._check_options(run_options)
        wanted = self._names(names)
        ports = self._ports
        if not feeds.keys() <= ports.keys():
            unknown = next(n for n in feeds if n not in ports)
            raise InvalidArgument(
                f"Invalid input name: {unknown}. The model's inputs are {self._feed_names}."
            )
        arrays = {name: taken(ports[name], value) for name, value in feeds.items()}
        if len(arrays) < len(ports):
            for name in self._feed_names:
                arrays.setdefault(name, None)
        return wanted, arrays

    def _check_options(self, run_options: Any) -> None:
        if not isinstance(run_options, RunOptions):
            raise ArgumentTypeError(
                f"run_options is of type {type(run_options).__name__}. Pass a RunOptions."
            )
        if run_options.terminate:
            raise Fail("the run ends at once, since RunOptions.terminate is set.")

    def _names(self, names: Any) -> list[str] | None:
        if names is None:
            return None
        wanted = [names] if isinstance(names, str) else list(names)
        for name in wanted:
            if not isinstance(name, str):
                raise ArgumentTypeError(f"names of outputs are texts; {name!r} is not.")
            if name not in self._output_names:
                raise InvalidArgument(
                    f"Invalid output name: {name}. The model's outputs are {self._output_names}."
                )
        return wanted or None

    def _traced(self, names: list[str] | None, feeds: dict[str, Any]) -> list[Any]:
        """Run with a profile of the layers, where one plan runs the model."""
        from clnn.runtime.run.session import Session

        assert self._trace is not None
        with translated(), self._trace.span("model_run"):
            inner = self._engine.session_at(feeds)
            if not isinstance(inner, Session):
                return self._engine.run(names, feeds)
            began = time.perf_counter_ns()
            plain = {p.name: feeds[p.name] for p in inner.inputs}
            with inner.profile() as profile:
                made = inner.run(names, plain)
            self._trace.add_layers(profile, began)
        return made

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run in another thread, which calls callback(outputs, user_data, error text) then."""
        if not self._needed <= input_feed.keys():
            self._read(output_names, input_feed, run_options)
        feeds = dict(input_feed)

        def work() -> None:
            outputs: list[Any] = []
            text = ""
            try:
                outputs = self.run(output_names, feeds, run_options)
            except Exception as err:
                text = str(err) or type(err).__name__
            callback(outputs, user_data, text)

        process.submit(work)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Return the outputs as OrtValues, for inputs as OrtValues."""
        return [OrtValue(v) for v in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        """Return a new IOBinding of this session."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run on the inputs and into the outputs that are bound."""
        iobinding.run(run_options)

    def device_input(
        self, name: str, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> OrtValue:
        """Return an OrtValue that lies on the device as the network reads it, for an IOBinding.

        shapes: of all inputs, where the model leaves some open.
        """
        given: Any = shapes or {p.name: p.dims for p in self._engine.interface.inputs}
        with translated():
            return OrtValue(None, buffer=self._engine.bound(given).bind_input(name))

    def run_bound(
        self, names: Sequence[str], feeds: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
    ) -> list[Array]:
        """Run with inputs in buffers of the device; `feeds` has the others, `shapes` all."""
        with translated():
            return self._engine.bound(shapes).run(names, feeds)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0
    ) -> OrtValue:
        """Return a tensor of zeros."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)

    def get_profiling_start_time_ns(self) -> int:
        """Return when the session's trace begins, in ns of the system's clock; 0 without one."""
        return self._began_ns

    def end_profiling(self) -> str:
        """Write the trace and return the path of its file; "" where profiling is not enabled."""
        if self._trace is None:
            return ""
        path, self._trace = self._trace.write(), None
        return path

    def get_tuning_results(self) -> list[Any]:
        """Return nothing: clnn keeps its tuning results in its cache."""
        return []

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        """Do nothing: clnn keeps its tuning results in its cache."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Do nothing: no option of a device changes while a session lives."""

    @property
    def _model_path(self) -> str | None:
        """The model's path, under the name by which programs find files beside it."""
        return self._source if isinstance(self._source, str) else None

    def __copy__(self) -> InferenceSession:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            "cannot pickle an InferenceSession: its memory and kernels are of this process. Make one "
            "from the model's path where it is wanted."
        )

    @property
    def clnn_session(self) -> Any:
        """The session of clnn that runs the model; one of onnxruntime's where clnn refuses it."""
        return self._engine.session


def _source(given: Any) -> str | bytes:
    """Return a model's path or bytes. Raises TypeError, NoSuchFile, InvalidProtobuf, ..."""
    if isinstance(given, bytes):
        if not given:
            raise InvalidArgument("No graph was found: the model has no bytes.")
        return given
    if not isinstance(given, (str, os.PathLike)) or given == "":
        raise ArgumentTypeError(
            f"Unable to load from type {type(given).__name__}. Pass a path, or the bytes of a model."
        )
    path = os.fspath(given)
    path = os.fsdecode(path)
    if not os.path.exists(path):
        raise NoSuchFile(f"Load model from {path} failed: File doesn't exist.")
    if os.path.isfile(path) and not os.path.getsize(path):
        raise InvalidArgument(f"No graph was found: {path} is empty.")
    if not os.path.isfile(path):
        raise InvalidProtobuf(f"Load model from {path} failed: it is no file.")
    return path
