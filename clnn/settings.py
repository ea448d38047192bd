"""Environment variables: every one that clnn reads, with type, default and meaning, in one table."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from clnn.errors import SettingError
from clnn.records import dataclass


@dataclass(frozen=True)
class Setting:
    """One environment variable: name, default text, parser and one-line meaning."""

    name: str
    default: str
    parse: Callable[[str], Any]
    meaning: str


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return parse


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return parse


SETTINGS: dict[str, Setting] = {
    s.name: s
    for s in (
        Setting(
            "CLNN_DEVICE",
            "auto",
            str,
            "device when none is named: auto, cpu, gpu, index or part of a name",
        ),
        Setting(
            "CLNN_DEVICE_KIND",
            "auto",
            _choice("auto", "cpu", "gpu"),
            "kernels that devices get: auto: by the device's type, where a CPU's driver states no vectors"
            " by a measurement; cpu: of wide vectors; gpu: of work-groups",
        ),
        Setting(
            "CLNN_CPU_VECTOR",
            "auto",
            _choice("auto", "8", "16"),
            "floats in a vector of kernels for CPUs: auto: as the processor's registers have; 8: for 16"
            " registers of 256 bits (AVX2); 16: for 32 of 512 bits (AVX-512)",
        ),
        Setting(
            "CLNN_DRIVERS",
            "needed",
            _choice("needed", "all"),
            "OpenCL drivers that a process loads: those of the devices it uses, or all",
        ),
        Setting(
            "CLNN_CACHE_DIR",
            "",
            str,
            "folder of the cache; empty: clnn's place in the user's cache folder",
        ),
        Setting(
            "CLNN_CACHE",
            "rw",
            _choice("off", "ro", "rw"),
            "cache of programs and tuning results: off, read only, read and write",
        ),
        Setting(
            "CLNN_CACHE_MAX_BYTES",
            str(1 << 30),
            _whole(0, 1 << 50),
            "size above which old cache entries go",
        ),
        Setting(
            "CLNN_DEBUG",
            "0",
            _whole(0, 4),
            "1 device and plan, 2 kernel times, 3 variants, 4 sources",
        ),
        Setting(
            "CLNN_KERNEL_PATH",
            "",
            str,
            "folder searched for kernel templates before the built-in ones",
        ),
        Setting(
            "CLNN_ARENA",
            "shared",
            _choice("shared", "separate"),
            "separate: each tensor in its own buffer",
        ),
        Setting(
            "CLNN_BUILD_JOBS",
            "0",
            _whole(0, 256),
            "processes that build kernels; 0: one per CPU, at most 8",
        ),
        Setting(
            "CLNN_SPECIALISE",
            "background",
            _choice("background", "always", "never"),
            "kernels for shapes that are met often: made while calls go on, for each shape at once, or"
            " not at all",
        ),
        Setting(
            "CLNN_PIN_THREADS",
            "auto",
            _choice("auto", "off"),
            "auto: each of PoCL's threads stays on a processor of its own, where there are as many"
            " as the process may use; off: where the system puts it",
        ),
        Setting(
            "CLNN_CALLING_THREAD",
            "auto",
            _choice("auto", "never", "always"),
            "models whose kernels run in the thread that calls, on PoCL: auto: small ones, and small shapes of"
            " others, which run sooner than PoCL's threads wake; always: all; never: none",
        ),
        Setting(
            "CLNN_TENSOR_CORES",
            "auto",
            _choice("auto", "off", "emulated"),
            "auto: where the device has them; off: never; emulated: in plain OpenCL C (for tests)",
        ),
        Setting(
            "CLNN_TIMEOUT",
            "0",
            _whole(0, 1_000_000),
            "seconds that a call waits for its device where Options.timeout is None; 0: without end",
        ),
        Setting(
            "CLNN_BUILD_TIMEOUT",
            "600",
            _whole(0, 1_000_000),
            "seconds that a device's compiler may take for a program, or child processes for all of"
            " theirs; 0: without end",
        ),
        Setting(
            "CLNN_ORT_FALLBACK",
            "off",
            _choice("off", "onnxruntime"),
            "onnxruntime: clnn.onnxruntime has the real onnxruntime run a model that clnn refuses",
        ),
        Setting(
            "CLNN_MAX_BYTES",
            str(1 << 33),
            _whole(1, 1 << 60),
            "largest tensor that a model may ask for",
        ),
        Setting(
            "CLNN_ESPDL_CHIP",
            "auto",
            str,
            "chip that .espdl models are for, which says how they round: auto (the file's name, else"
            " esp32s3), c, esp32s3, esp32s3+lanes (with its accumulators of 20 bits), esp32p4, ...",
        ),
    )
}


# Variables of others that clnn sets in its own process, unless they are set: name -> (value, why).
GIVEN: dict[str, tuple[str, str]] = {
    "PYOPENCL_NO_CACHE": ("1", "clnn keeps built programs itself"),
    "POCL_CACHE_DIR": (
        "",
        "a folder of the process alone: PoCL's own cache races between processes",
    ),
    "POCL_WORK_GROUP_SPECIALIZATION": (
        "0",
        "kernels fix their work-group size, so PoCL gains nothing by compiling each one twice",
    ),
    "CL_CONFIG_CPU_VECTORIZER_MODE": (
        "1",
        "kernels for CPUs have vectors of their own; Intel's compiler takes nine times as long, and"
        " has crashed, where it looks for more across work-items",
    ),
    "OCL_ICD_VENDORS": ("", "a folder that registers forgotten drivers beside the others"),
}


def setting(name: str, env: Mapping[str, str] | None = None) -> Any:
    """Return the parsed value of environment variable `name`.

    Raises SettingError when its text is not allowed.
    """
    entry = SETTINGS[name]
    text = (os.environ if env is None else env).get(name, "") or entry.default
    try:
        return entry.parse(text)
    except ValueError as err:
        raise SettingError(f"{name} is {text!r}: {err}. It sets: {entry.meaning}.") from None


def warn_unknown(env: Mapping[str, str] | None = None) -> list[str]:
    """Warn of CLNN_* variables that clnn does not know; return their names."""
    names = [n for n in (os.environ if env is None else env) if n.startswith("CLNN_")]
    unknown = [n for n in names if n not in SETTINGS]
    for name in unknown:
        from difflib import get_close_matches

        close = get_close_matches(name, SETTINGS, n=1)
        hint = f" Did you mean {close[0]}?" if close else " See docs/environment.md."
        warnings.warn(f"environment variable {name} is not one of clnn's.{hint}", stacklevel=2)
    return unknown
