"""Kernel objects made quickly: pyopencl's call functions for them are made once, not for each.

pyopencl compiles two Python functions for every kernel object, a third of a millisecond of work, and keeps
their text for tracebacks as long as the process lives; finding a free name for that takes longer with each.
They depend on the kernel's name and its number of arguments alone where types of arguments are not given.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

_MAKER = "generate_enqueue_and_set_args"
_PARAMETERS = (
    "function_name",
    "num_passed_args",
    "num_cl_args",
    "arg_types",
    "work_around_arg_count_bug",
    "warn_about_arg_count_bug",
)


@functools.cache
def keep_invokers() -> None:
    """Have pyopencl take functions again that it made for a kernel with the same name and arguments.

    Does nothing where pyopencl makes them in another way.
    """
    try:
        invoker = importlib.import_module("pyopencl.invoker")
    except ImportError:
        return
    plain = getattr(invoker, _MAKER, None)
    if plain is not None and not hasattr(plain, "kept"):
        setattr(invoker, _MAKER, _keeping(plain))


def _keeping(plain: Any) -> Any:
    """Return what does the work of pyopencl's own function once for equal arguments."""
    kept: dict[Any, Any] = {}

    def made(*args: Any, **named: Any) -> Any:
        given = dict(zip(_PARAMETERS, args, strict=False)) | named
        if given.get("arg_types") is not None or not given.keys() <= {*_PARAMETERS, "devs"}:
            return plain(*args, **named)
        key = tuple(given.get(name) for name in _PARAMETERS)
        functions = kept.get(key)
        if functions is None:
            functions = kept[key] = plain(*args, **named)
        return functions

    made.kept = kept  # type: ignore[attr-defined]
    return made
