"""Drivers that lie: pyopencl, changed in a process so that kernels or devices are not what they should be."""

from __future__ import annotations

import re
from typing import Any

import pyopencl as cl

# name -> (pattern, text in its place) of the sources that such a driver compiles.
EDITS = {
    "forgets long sums": (r"sum \+= terms\[", "if (b < 65536) sum += terms["),
    "ends each loop": (r"b < inner", "b < min(inner, 65535u)"),
    "ends loops soon": (r"b < inner; \+\+b", "b < inner && left; ++b, left -= 1"),
    "ends loops": (r"b < inner; \+\+b", "b < inner && left; ++b, left -= 1"),
    "has no barriers": (r"barrier\(.*?\);", ";"),
    "multiplies 32 bits": (r"x \* y;", "(uint)x * (uint)y;"),
    "shifts 32 bits": (r"x << by", "x << (by & 31)"),
    "has little local memory": (r"words\[k\]", "words[k % 1000]"),
    "flushes denormals": (r"a \* x\[i\] \+ y\[i\]", "a * (fabs(x[i]) < 1e-37f ? 0 : x[i]) + y[i]"),
    "wraps at 2 GiB": (r"large\[places\[i\]\]", "large[places[i] & 0x7fffffff]"),
}
ROUNDS = {"ends loops soon": 1000, "ends loops": 65535}  # done in all loops of a work-item


def lie(name: str) -> None:
    """Change pyopencl for the rest of this process."""
    if name == "returns wrong sums":
        cl.enqueue_copy = _spoiling(cl.enqueue_copy)
    elif name == "states large groups":
        cl.Kernel.get_work_group_info = lambda kernel, what, device: 1 << 20
    else:
        pattern, text = EDITS[name]
        cl.Program = _editing(cl.Program, pattern, text, ROUNDS.get(name, 0))


def _spoiling(copy: Any) -> Any:
    def spoilt(queue: Any, dest: Any, src: Any, **how: Any) -> Any:
        event = copy(queue, dest, src, **how)
        dest.reshape(-1)[-1:] += 1
        return event

    return spoilt


def _editing(program: Any, pattern: str, text: str, rounds: int) -> Any:
    def make(context: Any, source: str) -> Any:
        if rounds:  # an outer round counts as two, with the test that ends the inner loop
            source = source.replace("uint state = i;", f"uint state = i, left = {rounds};")
            source = source.replace(
                "a < outer; ++a", "a < outer && left; ++a, left -= min(left, 2u)"
            )
        return program(context, re.sub(pattern, text, source))

    return make
