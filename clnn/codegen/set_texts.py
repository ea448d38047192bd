"""The texts of the universal set's functions."""

from __future__ import annotations

from functools import cache

from clnn.codegen.render import render
from clnn.ops.universal.functions import SETS, function_params, template_of
from clnn.settings import setting
from clnn.target import Target

READ = frozenset(("x86_vnni", "x86_madd", "x86_vbmi"))  # features that texts depend on


def set_sources(target: Target, program: str = "floats") -> tuple[str, ...]:
    """Return the texts of the functions of a program of the set, one of SETS."""
    features = target.features & READ if program == "bytes" else frozenset()
    return _sources(program, target.vector, features, str(setting("CLNN_KERNEL_PATH")))


@cache
def _sources(program: str, vector: int, features: frozenset[str], path: str) -> tuple[str, ...]:
    target = Target(vector=vector, features=features)
    return tuple(render(template_of(f), function_params(f, target)) for f in SETS[program])
