"""The texts of the universal set's functions."""

from __future__ import annotations

from functools import cache

from clnn.codegen.render import render
from clnn.ops.universal.functions import FUNCTIONS, function_params, template_of
from clnn.settings import setting
from clnn.target import Target


def set_sources(target: Target) -> tuple[str, ...]:
    """Return the texts of the functions of the set."""
    return _sources(target.vector, str(setting("CLNN_KERNEL_PATH")))


@cache
def _sources(vector: int, path: str) -> tuple[str, ...]:
    target = Target(vector=vector)
    return tuple(render(template_of(f), function_params(f, target)) for f in FUNCTIONS)
