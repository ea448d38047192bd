"""What a kernel is to who runs it: its text and numbers, and the names of a fused kernel's parameters.

How they are made is not known here, so that what runs stored kernels does not bring it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from clnn.errors import TemplateError
from clnn.ops.launch import KernelText, Launch
from clnn.records import dataclass

KERNEL = "network"
# Parameters of the fused kernel that it has for itself.
COUNTERS, SCRATCH, STAMPS, NUMBERS = "next", "scratch_base", "stamps", "numbers"
MOST_INPUTS = 8  # of a network on the universal set
INT_LIMIT = 2**31
# Of a fused kernel that can be helped (clnn.codegen.helped_kernel): its parameters, and its ways.
ROLE, TICKS = "role", "ticks"
HELPED_PARAMS = {ROLE: "const int ", TICKS: "const uint "}
ALL, CALLS, HELPS = range(3)
# Where behind its counters caller and helpers tell each other what: ints, and how many in all.
OPENED, CALLER, RUNS, INSIDE, WAITS, PRESENT, DESK = 0, 1, 2, 16, 17, 32, 48
# The lower half of the clock and the processor's number, of x86.
CLOCK = '__asm__ volatile("rdtscp" : "=a"({}), "=c"(here) : : "edx");'


@dataclass(frozen=True)
class FusedKernel:
    """A kernel of many calls: its source, the names of its parameters in order, and what it needs.

    counters: ints, zero before the first run; the kernel leaves zeros. scratch: bytes for each of
    `groups` work-groups. stamps: ulongs that it writes, [calls][groups][begin, end] in cycles, zeros
    where a group had no share; 0 for a kernel that notes no times. numbers: what it reads from its
    buffer of numbers, None for a kernel that has none.
    """

    source: str
    params: tuple[str, ...]
    counters: int
    scratch: int
    groups: int
    stamps: int = 0
    numbers: tuple[int | float, ...] | None = None

    @property
    def is_helped(self) -> bool:
        """Whether it can run in the thread that calls, with helpers (see clnn.codegen.helped_kernel)."""
        return ROLE in self.params

    def groups_on(self, in_caller: bool) -> int:
        """Return the work-groups of a launch. In the thread that calls, others than the first would find all done.

        A kernel that reads numbers may read how many there are.
        """
        return 1 if in_caller and self.numbers is None else self.groups


def input_names(k: int) -> tuple[str, str, str]:
    """Return the parameters of an input: its memory, the byte it begins at, whether it is bound."""
    return f"input{k}", f"input{k}_start", f"input{k}_bound"


# Names of the parameters that say where inputs lie.
INPUT_PARAMS = tuple(name for k in range(MOST_INPUTS) for name in input_names(k))


def as_ints(numbers: Sequence[int | float]) -> list[int]:
    """Return numbers as the 32 bits that kernels read: integers, and floats by their bits.

    Raises TemplateError for an integer of more bits.
    """
    found = []
    for number in numbers:
        if isinstance(number, float):
            number = struct.unpack("i", struct.pack("f", np.float32(number)))[0]
        if not -INT_LIMIT <= number < INT_LIMIT:
            raise TemplateError(
                f"a kernel's number is {number}: more than 32 bits hold. Use a smaller batch or image."
            )
        found.append(number)
    return found


def text_of(launch: Launch) -> KernelText:
    """Return the kernel of a launch. Raises TemplateError."""
    if launch.text is not None:
        return launch.text
    from clnn.codegen.render import rendered

    return rendered(launch)
