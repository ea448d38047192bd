"""What a fused kernel has around its calls: the function that they stand in, and the counters of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clnn.codegen.kernels import KERNEL

# What the function is told of itself.
_ASKED = {"work_group": "get_group_id(0)", "work_groups": "get_num_groups(0)"}


def kernel_of(params: Mapping[str, str], body: Sequence[str]) -> list[str]:
    """Return the lines of a kernel that has the statements `body` done by a function, once in each work-group.

    params: name -> C type. `work_group` is the work-group's number there, of `work_groups` that were enqueued.
    PoCL makes three functions of a kernel, and so would compile three times what stands in it.
    """
    listed = ", ".join(f"{kind}{name}" for name, kind in params.items())
    asked = "".join(f"const int {name}, " for name in _ASKED)
    return [
        f"__attribute__((noinline)) void {KERNEL}_calls({asked}{listed})",
        "{",
        *body,
        "}",
        "__attribute__((reqd_work_group_size(1, 1, 1)))",
        f"__kernel void {KERNEL}({listed})",
        "{",
        f"    {KERNEL}_calls({', '.join([*_ASKED.values(), *params])});",
        "}",
    ]


def around(body: Sequence[str], last: int, line: int, shares: int, scratch: int) -> list[str]:
    """Return the statements of a kernel whose calls are `body`, as helped_kernel.around does."""
    return [
        f"    const int own = atomic_inc(next + {last - line}) % {shares};",
        f"    __global char *scratch = scratch_base + work_group * {scratch};",
        *body,
        f"    if (atomic_inc(next + {last}) == work_groups - 1)",
        f"        for (int k = 0; k <= {last}; k += {line}) atomic_xchg(next + k, 0);",
    ]
