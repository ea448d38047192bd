"""Mesa's Rusticl on its software renderer, for child processes: where it is, and the faults that it has."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from common import ROOT

UNPACKED = ROOT / ".cache" / "rusticl"
NAME = "libRusticlOpenCL.so.1"
LIBRARIES = Path("usr/lib/x86_64-linux-gnu")


@dataclass(frozen=True)
class Fault:
    """A driver's fault: OpenCL C that shows it, and what becomes of work-item 0's result.

    wrong: the result in place of `right`; None: the process ends.
    """

    source: str
    right: int
    wrong: int | None = None


FAULTS = {
    "ends loops after 65,535 rounds": Fault(
        """__kernel void k(const int n, __global int *x) {
             int sum = 0;
             for (int i = 0; i < n; ++i) sum = 3 * sum % 7919 + i % 5 + 1;
             x[0] = sum; }""",
        7364,
        4485,
    ),
    "counts the rounds of all loops together": Fault(
        """__kernel void k(const int n, __global int *x) {
             int sum = 0;
             for (int i = 0; i < n / 1000; ++i)
               for (int j = 0; j < 1000; ++j) sum = sum * 5 % 7919 + 1;
             x[0] = sum; }""",
        936,
        7023,
    ),
    "aborts at a prefetch": Fault(
        "__kernel void k(const int n, __global int *x) { __builtin_prefetch(x + n); x[0] = 1; }", 1
    ),
    "aborts at a cycle counter": Fault(
        "__kernel void k(const int n, __global int *x)"
        " { x[0] = __builtin_readcyclecounter() != 0; }",
        1,
    ),
}

N = 70000  # the argument n of the kernels above
RUN = """
import sys, numpy as np, pyopencl as cl
device = cl.get_platforms()[0].get_devices()[0]
queue = cl.CommandQueue(context := cl.Context([device]))
out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
cl.Program(context, sys.argv[1]).build(cache_dir=False).k(queue, (1,), None, np.int32(sys.argv[2]), out)
cl.enqueue_copy(queue, got := np.zeros(1, np.int32), out)
print(got[0])
"""


def library() -> Path | None:
    """Return the driver's library: unpacked by tools/test, else the system's."""
    places = (UNPACKED / LIBRARIES, *(Path("/") / p for p in (LIBRARIES, "usr/lib64", "usr/lib")))
    return next((place / NAME for place in places if (place / NAME).exists()), None)


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a process that sees Rusticl alone, by an .icd file in `folder`."""
    found = library()
    assert found is not None
    (folder / "rusticl.icd").write_text(f"{found}\n", "utf-8")
    beside = [str(found.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        **os.environ,
        "OCL_ICD_VENDORS": str(folder),
        "LD_LIBRARY_PATH": os.pathsep.join(beside),
        "RUSTICL_ENABLE": "llvmpipe",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CLNN_DEVICE": "rusticl",
    }
