"""Kernels of a probe's steps behind one kernel, which calls the one that a number names.

A CPU's compiler spends more on each kernel that is launched than on what these do. Only kernels without
barriers, local memory and sizes of their own are called so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

# File -> kernels, each with its arguments in order: n, a number, and pointers.
KERNELS = {
    "saxpy": {"saxpy": "npq"},
    "loops": {"loops": "pqr"},
    "longs": {"longs": "pqr"},
    "far": {"far": "npqr"},
    "fp64": {"double_mad": "pqrs"},
    "prefetch": {"ahead": "pq"},
    "clock": {"ticks": "pqr"},
    "x86_vnni": {"vnni": "pqr", "pack16": "pq"},
    "x86_vbmi": {"lookup": "pqr"},
    "x86_madd": {"madd": "pqr", "pack8": "pq"},
    "x86_bf16": {"pairs": "pqr", "pair_rounds": "npq", "float_rounds": "npq"},
    "x86_amx": dict.fromkeys(("tile_bytes", "tile_signed", "tile_pairs"), "pqr"),
    "x86_wide": {"rounds_of_16": "npq", "rounds_of_8": "npq"},
}
NAME, NONE = "merged", -1
POINTERS = "pqrs"
_HEAD = (
    f"__kernel void {NAME}(const int which, const int n, "
    + ", ".join(f"__global void *{name}" for name in POINTERS)
    + ") {\n  switch (which) {\n"
)


def _named(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    for file in files:
        yield from KERNELS.get(file, {}).items()


def text(files: Sequence[str]) -> str:
    """Return the kernel that calls those of `files`, whose text is in front of it."""
    calls = [
        f"    case {k}: {name}({', '.join(given)}); break;\n"
        for k, (name, given) in enumerate(_named(files))
    ]
    return "".join([_HEAD, *calls, "  }\n}\n"])


class Merged:
    """The kernel of a program.

    nothing: a buffer in place of pointers that a call does not have. group: the size of groups where a call
    leaves it to the driver.
    """

    def __init__(
        self, kernel: Any, files: Sequence[str], nothing: Any, group: tuple[int, ...] | None
    ) -> None:
        self.kernel, self.nothing, self.group = kernel, nothing, group
        self.numbers = {name: k for k, (name, _) in enumerate(_named(files))}

    def launch(self, which: int, queue: Any, size: Any, local: Any, *args: Any) -> Any:
        """Enqueue one of its kernels, which takes these arguments."""
        numbers = [arg for arg in args if isinstance(arg, np.int32)]
        pointers = [arg for arg in args if not isinstance(arg, np.int32)]
        pointers += [self.nothing] * (len(POINTERS) - len(pointers))
        given = np.int32(which), *(numbers or [np.int32(0)]), *pointers
        return self.kernel(queue, size, local or self.group, *given)
