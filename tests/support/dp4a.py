"""NVIDIA's dp4a as a function of what it does, for devices without it."""

from __future__ import annotations

import re

DP4A = re.compile(
    r'__asm__\("dp4a.u32.s32 %0, %1, %2, %0;" : "\+r"\(sum_\) : "r"\(([\w.]+)\), "r"\(([\w.]+)\)\);'
)
FOUR = """int four(int a, int b)
{
    const uchar4 x = as_uchar4(a);
    const char4 y = as_char4(b);
    return x.s0 * y.s0 + x.s1 * y.s1 + x.s2 * y.s2 + x.s3 * y.s3;
}
"""


def dp4a_in_c(source: str) -> tuple[str, int]:
    """Return a kernel with a function of what dp4a does in its place, and in how many places."""
    text, count = DP4A.subn(r"sum_ += four(\1, \2);", source)
    return FOUR + text if count else text, count
