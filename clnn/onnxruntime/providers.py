"""Execution providers: which names there are, and the device and options that a list of them means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from clnn.errors import ClnnError, SettingError
from clnn.logs import log
from clnn.onnxruntime.errors import ArgumentTypeError
from clnn.onnxruntime.options import asked_threads
from clnn.onnxruntime.process import use_threads
from clnn.options import Options
from clnn.records import dataclass
from clnn.settings import setting

OWN, CPU, CUDA = "ClnnExecutionProvider", "CPUExecutionProvider", "CUDAExecutionProvider"
# Of other packages of onnxruntime: a program may ask for them, and gets the next in its list.
OTHERS = (
    *("TensorrtExecutionProvider", "MIGraphXExecutionProvider", "ROCMExecutionProvider"),
    *("OpenVINOExecutionProvider", "DnnlExecutionProvider", "VitisAIExecutionProvider"),
    *("QNNExecutionProvider", "NnapiExecutionProvider", "JsExecutionProvider"),
    *("CoreMLExecutionProvider", "DmlExecutionProvider", "WebGpuExecutionProvider"),
    *("XnnpackExecutionProvider", "CANNExecutionProvider", "AzureExecutionProvider"),
)
FALLBACKS = ("off", "onnxruntime")


@dataclass(frozen=True)
class Chosen:
    """What a list of providers means. names: those that serve; device: as clnn.compile_model's."""

    names: tuple[str, ...]
    device: str | None
    options: Options = field(default_factory=Options)
    given: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fallback: bool = False


def gpus() -> list[int]:
    """Return the indices of usable OpenCL GPUs; none where there is no OpenCL at all."""
    for count in asked_threads[:1]:  # the driver is loaded here, and the session comes later
        use_threads(count)
    from clnn.runtime.device.device import discover

    try:
        return [d.index for d in discover() if d.type == "gpu" and d.usable]
    except ClnnError:
        return []


def get_available_providers() -> list[str]:
    """Return the names of providers that serve here; CUDA's where there is an OpenCL GPU."""
    return [*([CUDA] if gpus() else []), OWN, CPU]


def get_all_providers() -> list[str]:
    """Return all names of providers that are known."""
    return [CUDA, *OTHERS, OWN, CPU]


def get_device() -> str:
    """Return "GPU" where the device that sessions take by default is one, else "CPU"."""
    wanted = str(setting("CLNN_DEVICE"))
    return "GPU" if gpus() and wanted in ("auto", "gpu") else "CPU"


def listed(providers: Any, provider_options: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return providers with their options. Raises ValueError or TypeError as onnxruntime does."""
    if providers is None:
        return []
    if isinstance(providers, str):
        providers = [providers]
    if not isinstance(providers, Sequence):
        raise ArgumentTypeError(f"providers are a list of names, not {type(providers).__name__}.")
    if provider_options is not None and len(provider_options) != len(providers):
        raise SettingError(
            f"{len(providers)} providers were given and {len(provider_options)} dictionaries of "
            "options. Give one for each."
        )
    rows: dict[str, dict[str, Any]] = {}
    for place, one in enumerate(providers):
        pair = isinstance(one, (tuple, list)) and len(one) == 2
        name, options = one if pair else (one, None)
        if not isinstance(name, str) or not isinstance(options, (Mapping, type(None))):
            raise SettingError(f"provider {one!r} is neither a name nor a name with a dictionary.")
        more = provider_options[place] if provider_options else {}
        rows.setdefault(name, {**(options or {}), **more})
    return list(rows.items())


def choose(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Chosen:
    """Return what providers mean: the first that serves. Raises SettingError for wrong options.

    No list, and ClnnExecutionProvider: the device that CLNN_DEVICE names, or option "device".
    CPUExecutionProvider: the same, of CPUs where nothing is named. CUDAExecutionProvider: an OpenCL
    GPU. Others do not serve; where none does, the CPU's serves.
    """
    served = [name for name, _ in rows if name in (OWN, CPU) or (name == CUDA and gpus())]
    for name, _ in rows:
        if name not in served:
            log.warning("clnn.onnxruntime: %s", _absent(name))
    if not rows:
        return _with(Chosen((OWN, CPU), None), {})
    names = tuple(served) or (CPU,)
    names = names if CPU in names else (*names, CPU)
    given = {name: {k: str(v) for k, v in options.items()} for name, options in rows}
    first, options = names[0], dict(rows).get(names[0], {})
    kept = {name: given.get(name, {}) for name in names}
    if first == CUDA:
        every = gpus()
        place = int(options.get("device_id", 0))
        return Chosen(names, str(every[min(place, len(every) - 1)]), given=kept)
    if first == CPU:
        wanted = str(setting("CLNN_DEVICE"))
        return Chosen(names, "cpu" if wanted == "auto" else wanted, given=kept)
    return _with(Chosen(names, None, given=kept), options)


def _absent(name: str) -> str:
    if name == CUDA:
        return (
            f"{name} is not there: this machine has no usable OpenCL GPU. Another provider serves."
        )
    known = name in OTHERS
    what = "does not serve" if known else "is no provider"
    return f"{name} {what} here: there are {', '.join(get_available_providers())}."


def _with(chosen: Chosen, options: Mapping[str, Any]) -> Chosen:
    """Return the choice with the options of clnn's own provider."""
    own = {f.name: type(f.default) for f in fields(Options)}
    known = (*own, "device", "fallback")
    made: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            raise SettingError(f"{OWN} has no option {name!r}. It has: {', '.join(known)}.")
        if name in own:
            made[name] = _parsed(name, value, own[name])
    fallback = str(options.get("fallback", "off"))
    if fallback not in FALLBACKS:
        raise SettingError(f"option fallback is {fallback!r}, must be one of {FALLBACKS}.")
    return Chosen(
        chosen.names,
        options.get("device", chosen.device),
        Options(**made),
        chosen.given,
        fallback == "onnxruntime",
    )


def _parsed(name: str, value: Any, kind: Any) -> Any:
    try:
        if kind is bool:
            return {"1": True, "true": True, "0": False, "false": False}[str(value).lower()]
        return kind(value)
    except (KeyError, TypeError, ValueError):
        raise SettingError(
            f"option {name} of {OWN} is {value!r}; it is a {kind.__name__}."
        ) from None
