"""Many launches as one kernel, for devices whose work-groups run to their end, each on a thread.

Each work-group walks through all calls in order. The work-items of a call are divided into shares
of neighbours, each with a counter from which groups claim. A group begins with the share that has
its own number, so that from call to call a core works on the same region of the data, much of which
is still in its cache, and goes on with what others have left. It adds how many it has done to one
more counter, and takes the next call when that says that all are done. Nothing is assumed about how
many groups run at once: a group waits only for items that a running group has claimed, so that one
group alone, or all of them one after the other, get through. A launch costs microseconds, and
waking the threads again costs more; between calls neither is due.

For profiles, each group notes the processor's cycle counter when it begins a call and when it has
done its share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

KERNEL = "network"
GROUPS = 4  # work-groups per compute unit: runtimes hand several to the first thread that asks
PIECES = 8  # parts of a call's items per compute unit that groups claim at once
MOST_SHARES = 16  # of a call's items, one for each compute unit up to so many
LINE = 16  # ints from counter to counter, a cache line
FLOAT_BYTES = 4
CLOCK = "__builtin_readcyclecounter()"  # of compilers that derive from clang
_UNFIT = re.compile(r"\bbarrier\b|\bget_(local|group|num|global_(size|offset))\w*\b")
_LOCAL_ARRAY = re.compile(r"__local [^*;()]*\[")
_LOCAL = re.compile(r"__local float (\w+)\[(\d+)\];")
_KERNEL = re.compile(r"__attribute__\(\(reqd_work_group_size\([^)]*\)\)\)\s*__kernel void \w+\(")
_DEFINED = re.compile(
    r"^(?!__kernel\b)\w[\w \t]*?[ \t*]+(\w+)\s*\(|^__constant [\w ]+ (\w+)\[|^#define (\w+)", re.M
)


@dataclass(frozen=True)
class Call:
    """One launch: its kernel's source, its work-items, its arguments as C expressions.

    unless: a C condition under which it is left out, "" for none.
    """

    source: str
    extents: tuple[int, ...]
    args: tuple[str, ...]
    unless: str = ""

    @property
    def items(self) -> int:
        """Work-items."""
        return math.prod(self.extents)


@dataclass(frozen=True)
class Merged:
    """A kernel of many calls: its source, and what it needs besides its arguments.

    counters: ints, zero before the first run; the kernel leaves zeros. scratch: bytes for each of
    `groups` work-groups. stamps: ulongs that it writes, [calls][groups][begin, end] in cycles, zeros
    where a group had no share; 0 for a kernel that notes no times.
    """

    source: str
    counters: int
    scratch: int
    groups: int
    stamps: int = 0


def fits(source: str, local_size: Sequence[int], global_size: Sequence[int]) -> bool:
    """Whether a launch can be a call: its work-items must not know of each other."""
    alone = set(local_size) == {1} and math.prod(global_size) < 2**31 and len(global_size) <= 3
    if not alone or _UNFIT.search(source) or len(_KERNEL.findall(source)) != 1:
        return False
    return not _LOCAL_ARRAY.search(_LOCAL.sub("", source))


def merge(calls: Sequence[Call], units: int, params: Sequence[str], timed: bool = False) -> Merged:
    """Return the kernel of `calls`, with `params` (C declarations) behind its own parameters.

    Its own are: counters, scratch memory, and where it is `timed` the stamps. units: the device's
    compute units.
    """
    functions: dict[str, str] = {}
    texts, scratch = [], 0
    for call in calls:
        if call.source not in functions:
            text, nbytes = _function(call.source, len(functions))
            texts.append(text)
            scratch = max(scratch, nbytes)
            functions[call.source] = f"call_{len(functions)}"
    groups, shares = GROUPS * units, min(units, MOST_SHARES)
    # Counters: of each call its shares and what is done, then groups that began, and that ended.
    last = (len(calls) * (shares + 1) + 1) * LINE
    stamped = groups if timed else 0
    body = [_step(k, call, functions[call.source], units, stamped) for k, call in enumerate(calls)]
    own = ["volatile __global int *next", "__global char *scratch_base"]
    own += ["__global ulong *stamps"] if timed else []
    head = ", ".join([*own, *params])
    source = "\n".join(
        [
            *texts,
            "__attribute__((reqd_work_group_size(1, 1, 1)))",
            f"__kernel void {KERNEL}({head})",
            "{",
            f"    const int own = atomic_inc(next + {last - LINE}) % {shares};",
            f"    __global char *scratch = scratch_base + get_group_id(0) * {scratch};",
            *body,
            f"    if (atomic_inc(next + {last}) == {groups - 1})",
            f"        for (int k = 0; k <= {last}; k += {LINE}) atomic_xchg(next + k, 0);",
            "}",
        ]
    )
    return Merged(source + "\n", last + 1, max(scratch, 64), groups, 2 * len(calls) * stamped)


def _function(source: str, number: int) -> tuple[str, int]:
    """Return a kernel's source as a function, with names of its own, and its scratch memory."""
    start = _KERNEL.search(source)
    assert start is not None
    names = {n for found in _DEFINED.findall(source[: start.start()]) for n in found if n}
    head = (
        f"void call_{number}(__global char *scratch, const int id0, const int id1, const int id2, "
    )
    text = source[: start.start()] + head + source[start.end() :]
    text = re.sub(r"\bget_global_id\((\d)\)", r"id\1", text)
    for name in names:
        text = re.sub(rf"\b{name}\b", f"{name}_{number}", text)
    used = 0

    def placed(found: re.Match[str]) -> str:
        nonlocal used
        at, used = used, used + -(-int(found[2]) * FLOAT_BYTES // 64) * 64
        return f"__global float *{found[1]} = (__global float *)(scratch + {at});"

    return _LOCAL.sub(placed, text).replace("__local ", "__global "), used


def _step(number: int, call: Call, function: str, units: int, stamped: int) -> str:
    """Return the statements that get a call done by all groups together.

    stamped: groups that note their times, 0 where none do.
    """
    begin = f"\n        const ulong began = {CLOCK};" if stamped else ""
    end = (
        f"""
        {{
            const ulong ended = {CLOCK};
            __global ulong *stamp = stamps + 2 * ({number * stamped} + get_group_id(0));
            stamp[0] = mine ? began : 0;
            stamp[1] = mine ? ended : 0;
        }}"""
        if stamped
        else ""
    )
    x, y, _ = (*call.extents, 1, 1, 1)[:3]
    shares = min(units, MOST_SHARES)
    share, grain = -(-call.items // shares), max(1, call.items // (units * PIECES))
    first = number * (shares + 1) * LINE
    done = first + shares * LINE
    ids = f"item % {x}, item / {x} % {y}, item / {x * y}"
    text = f"""    {{
        const int items = {call.items};
        int mine = 0, at;{begin}
        for (int k = 0; k < {shares}; ++k) {{
            const int share = (own + k) % {shares}, from = share * {share};
            const int left = min({share}, items - from);
            while ((at = atomic_add(next + {first} + share * {LINE}, {grain})) < left) {{
                const int end = from + min(at + {grain}, left);
                for (int item = from + at; item < end; ++item)
                    {function}(scratch, {", ".join([ids, *call.args])});
                mine += end - from - at;
            }}
        }}{end}
        mem_fence(CLK_GLOBAL_MEM_FENCE);
        if (mine) atomic_add(next + {done}, mine);
        while (atomic_add(next + {done}, 0) < items) ;
        mem_fence(CLK_GLOBAL_MEM_FENCE);
    }}"""
    return f"    if (!({call.unless}))\n{text}" if call.unless else text
