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

The kernels' texts are taken apart line by line. All templates keep to this grammar, in which lines
inside of braces and of lists of parameters are indented, and others are not:

    source      ( definition | rounding )* kernel
    rounding    "#pragma OPENCL FP_CONTRACT OFF"
    definition  "#define" NAME ...
                "__constant" TYPE NAME "[" ... ";"
                TYPE NAME "(" ... ")" body
    kernel      "__attribute__((reqd_work_group_size(...)))" "__kernel void" NAME "(" ... ")" body
    body        "{" lines "}"

The line of `rounding` becomes the first of each body behind it, so that it holds for its own source
alone. The number of its source goes behind each defined name. In the kernel, which becomes a
function, get_global_id(0), (1) and (2) become the parameters id0, id1 and id2, and "__local float
NAME[SIZE];" becomes a place in the parameter `scratch`. Definitions use none of the four.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NoReturn

from clnn.codegen import helped_kernel, plain_kernel
from clnn.codegen.kernels import (
    COUNTERS,
    DESK,
    HELPED_PARAMS,
    NUMBERS,
    ROLE,
    SCRATCH,
    STAMPS,
    FusedKernel,
)
from clnn.errors import TemplateError
from clnn.records import dataclass

GROUPS = 4  # work-groups per compute unit: runtimes hand several to the first thread that asks
IDS = ("id0", "id1", "id2")  # what functions take of an item
PIECES = 6  # parts of a call's items per compute unit that groups claim at once
LAST_PIECES = 4  # parts that the last of these is divided into, so that groups end together
MOST_SHARES = 16  # of a call's items, one for each compute unit up to so many
REMEMBERED = (
    256  # sources that have been taken apart, for kernels of the same network at other extents
)
KERNELS = 16  # texts of fused kernels that are kept, for the same network at other extents
APART = 2000  # characters from which a function is no part of the one that calls it
LINE = 16  # ints from counter to counter, a cache line
FLOAT_BYTES = 4
CLOCK = "__builtin_readcyclecounter()"  # of compilers that derive from clang
EACH_ROUNDED = "#pragma OPENCL FP_CONTRACT OFF"  # products and sums behind it, one by one
# What tells of other work-items, or holds for the sources behind it too and has no form for one function.
_UNFIT = re.compile(
    r"\bbarrier\b|\bget_(local|group|num|global_(size|offset))\w*\b"
    rf"|^#pragma\b(?!{EACH_ROUNDED.removeprefix('#pragma')}$)",
    re.M,
)
_LOCAL_ARRAY = re.compile(r"__local [^*;()]*\[")
_LOCAL = re.compile(r"__local float (\w+)\[(\d+)\];")
_KERNEL = re.compile(r"__attribute__\(\(reqd_work_group_size\([^)]*\)\)\)\s*__kernel void \w+\(")
_DEFINITION = re.compile(r"#define (\w+)|__constant [\w ]+ (\w+)\[|\w[\w \t]*?[ \t*]+(\w+)\s*\(")
_GLOBAL_ID = re.compile(r"\bget_global_id\(([012])\)")
_NUMBER = re.compile(r"\bn\d+_\b")
_RESERVED = re.compile(r"\b(get_global_id|scratch|id[012])\b")


@dataclass(frozen=True)
class FusedCall:
    """One launch: its kernel's source, its work-items, its arguments as C expressions.

    unless: a C condition under which it is left out, "" for none. idle: it has nothing to do.
    """

    source: str
    extents: tuple[int, ...]
    args: tuple[str, ...]
    unless: str = ""
    idle: bool = False

    @property
    def items(self) -> int:
        """Work-items."""
        return 0 if self.idle else math.prod(self.extents)


class Numbers:
    """The numbers that a fused kernel reads from a buffer, in the order in which its calls ask for them."""

    def __init__(self) -> None:
        self.values: list[int | float] = []

    def put(self, value: int | float) -> str:
        """Return the C name that stands for a number."""
        self.values.append(value)
        return f"n{len(self.values) - 1}_"

    @property
    def reals(self) -> frozenset[int]:
        """Which of them are floats."""
        return frozenset(k for k, value in enumerate(self.values) if isinstance(value, float))


def _declared(names: Iterable[str], reals: frozenset[int]) -> str:
    """Return the declarations of names. reals: which numbers are floats."""
    lines = []
    for name in names:
        at = int(name[1:-1])
        real = at in reals
        value = f"as_float({NUMBERS}[{at}])" if real else f"{NUMBERS}[{at}]"
        lines.append(f"        const {'float' if real else 'int'} {name} = {value};")
    return "\n".join(lines)


def can_fuse(source: str, local_size: Sequence[int], global_size: Sequence[int]) -> bool:
    """Whether a launch can be a call: its work-items must not know of each other."""
    alone = set(local_size) == {1} and math.prod(global_size) < 2**31 and len(global_size) <= 3
    return alone and _stands_alone(source)


@lru_cache(REMEMBERED)
def _stands_alone(source: str) -> bool:
    """Whether a kernel's work-items know nothing of each other, as far as its text tells."""
    if _UNFIT.search(source) or len(_KERNEL.findall(source)) != 1:
        return False
    before, _, _ = source.partition(f"\n{EACH_ROUNDED}")
    if before.count("{") != before.count("}") and before != source:
        return False
    return not _LOCAL_ARRAY.search(_LOCAL.sub("", source))


def fuse(
    calls: Sequence[FusedCall],
    units: int,
    params: Mapping[str, str],
    timed: bool = False,
    numbers: Numbers | None = None,
    helpers: int = 0,
) -> FusedKernel:
    """Return the kernel of `calls`.

    params: name -> C type of what the calls' arguments are made of; they stand behind the kernel's
    own. timed: it notes times. units: the device's compute units. numbers: those that the calls'
    arguments are made of, where they are not part of the text. helpers: work-groups beside that of the
    thread that calls, where it can run so (see clnn.codegen.helped_kernel). Raises TemplateError for a
    source that does not follow the grammar.
    """
    units = max(units, helpers + 1)
    put = str if numbers is None else numbers.put
    written = tuple((c.source, c.args, c.unless, _counts(c, units, put)) for c in calls)
    own = {COUNTERS: "volatile __global int *", SCRATCH: "__global char *"}
    whole = {**own, **({STAMPS: "__global ulong *"} if timed else {}), **params}
    if numbers is not None:
        whole[NUMBERS] = "__global const int *"
    if helpers:
        whole |= HELPED_PARAMS
    reals = None if numbers is None else numbers.reals
    source, scratch = _kernel(written, units, tuple(whole.items()), timed, reals)
    groups = GROUPS * units
    stamps = 2 * len(calls) * groups if timed else 0
    read = None if numbers is None else tuple(numbers.values)
    last = _last_counter(len(calls), units)
    counters = last + LINE + DESK if helpers else last + 1
    return FusedKernel(source, tuple(whole), counters, max(scratch, 64), groups, stamps, read)


# A call as the text needs it: source, arguments, condition, and its counts of items.
_Written = tuple[str, tuple[str, ...], str, tuple[str, ...]]


def _counts(call: FusedCall, units: int, put: Callable[[int], str]) -> tuple[str, ...]:
    """Return what stands for a call's items, those of a share, its pieces, and its extents.

    Pieces of a share are so many of `grain` items, then smaller ones of `last` items.
    """
    width, height, _ = (*call.extents, 1, 1, 1)[:3]
    share = -(-call.items // min(units, MOST_SHARES))
    grain = max(1, call.items // (units * PIECES))
    large, last = share * (PIECES - 1) // (PIECES * grain), -(-grain // LAST_PIECES)
    pieces = grain, large, last
    return tuple(map(put, (call.items, share, *pieces, width, height, width * height)))


def _last_counter(n_calls: int, units: int) -> int:
    """Return the last counter: behind each call's shares and what is done, and groups that began."""
    return (n_calls * (min(units, MOST_SHARES) + 1) + 1) * LINE


@lru_cache(KERNELS)
def _kernel(
    calls: tuple[_Written, ...],
    units: int,
    params: tuple[tuple[str, str], ...],
    timed: bool,
    reals: frozenset[int] | None,
) -> tuple[str, int]:
    """Return a fused kernel's source, and the bytes of scratch that a group needs.

    params: name and C type of all. reals: which of the numbers read are floats, None for no numbers.
    """
    functions: dict[str, str] = {}
    texts, scratch = [], 0
    for text_of_call, *_ in calls:
        if text_of_call not in functions:
            text, nbytes = _function(text_of_call, len(functions))
            texts.append(text)
            scratch = max(scratch, nbytes)
            functions[text_of_call] = f"call_{len(functions)}"
    shares = min(units, MOST_SHARES)
    last = _last_counter(len(calls), units)
    stamped = GROUPS * units if timed else 0
    body = [
        _call_text(k, call, functions[call[0]], shares, stamped, reals)
        for k, call in enumerate(calls)
    ]
    around = helped_kernel.around if (ROLE, "const int ") in params else plain_kernel.around
    inside = around(body, last, LINE, shares, scratch)
    return "\n".join([*texts, *plain_kernel.kernel_of(dict(params), inside)]) + "\n", scratch


@lru_cache(REMEMBERED)
def _function(source: str, number: int) -> tuple[str, int]:
    """Return a kernel's source as a function, with names of its own, and its scratch memory."""
    definitions, kernel, names = _parts(source)
    apart = "__attribute__((noinline)) " if len(kernel) >= APART else ""
    ids = "const int id0, const int id1, const int id2, "
    head = f"{apart}void call_{number}(__global char *scratch, {ids}"
    text = definitions + head + _GLOBAL_ID.sub(r"id\1", kernel)
    for name in names:
        text = re.sub(rf"\b{name}\b", f"{name}_{number}", text)
    used = 0

    def placed(array: re.Match[str]) -> str:
        nonlocal used
        at, used = used, used + -(-int(array[2]) * FLOAT_BYTES // 64) * 64
        return f"__global float *{array[1]} = (__global float *)(scratch + {at});"

    return _LOCAL.sub(placed, text).replace("__local ", "__global "), used


def parts(source: str) -> tuple[list[tuple[str, str]], str]:
    """Return (name, text) of a source's definitions, and its kernel from the first parameter on.

    Raises TemplateError where the source does not follow the grammar.
    """
    definitions, kernel, _ = _parts(source)
    found: list[tuple[str, str]] = []
    for line in definitions.splitlines(keepends=True):
        defined = None if line[:1].isspace() else _DEFINITION.match(line)
        if defined is not None:
            found.append((next(name for name in defined.groups() if name), line))
        else:
            name, text = found[-1]
            found[-1] = name, text + line
    return found, kernel


def _parts(source: str) -> tuple[str, str, set[str]]:
    """Return (definitions, the kernel from its first parameter on, the defined names)."""
    source = _contained(source)
    start = _KERNEL.search(source)
    assert start is not None, "can_fuse finds one"
    definitions, kernel = source[: start.start()], source[start.end() :]
    names: set[str] = set()
    for line in definitions.splitlines():
        if line[:1].isspace() or line in ("{", "}"):
            continue
        defined = _DEFINITION.match(line)
        if defined is None:
            _refuse(start[0], f"{line!r} is no definition")
        names.update(name for name in defined.groups() if name)
    lines = kernel.splitlines()
    outer = [line for line in lines[1:] if not line[:1].isspace()]
    if outer != ["{", "}"] or lines[-1] != "}":
        _refuse(start[0], "it does not end with its body in braces")
    if word := _RESERVED.search(f"{definitions} {_GLOBAL_ID.sub('', kernel)}"):
        _refuse(start[0], f"it uses {word[0]!r} where fused kernels do")
    return definitions, kernel, names


def _contained(source: str) -> str:
    """Return a source in which EACH_ROUNDED holds for the bodies behind it, and for nothing else."""
    lines, holds, awaited = list[str](), False, False
    for line in source.splitlines(keepends=True):
        if line.rstrip() == EACH_ROUNDED:  # at the margin: one within a body holds for that
            holds = True
            continue
        if not line[:1].isspace() and not line.startswith(("{", "}", "#", "__constant")):
            awaited = holds
        if awaited and "{" in line:
            head, _, rest = line.partition("{")
            line = f"{head}{{\n    {EACH_ROUNDED}\n{rest if rest.strip() else ''}"
            awaited = False
        lines.append(line)
    return "".join(lines)


def _refuse(head: str, why: str) -> NoReturn:
    raise TemplateError(
        f"{head.splitlines()[-1].rstrip('(')} cannot be fused: {why} (see clnn.codegen.fused_kernel)."
        " This is a defect of its template. Options(merge=False) runs every kernel on its own."
    )


def each_item(call: str, x: str, y: str, xy: str) -> str:
    """Return statements that do `call` for items from `item` to before `end`, with IDS of each.

    x, y, xy: the first two extents and their product. Only the first item's ids are divided out.
    """
    ids = f"item % {x}, id1 = item / {x} % {y}, id2 = item / {xy}"
    following = f"if (++id0 == {x}) {{ id0 = 0; if (++id1 == {y}) {{ id1 = 0; ++id2; }} }}"
    return f"for (int id0 = {ids}; item < end; ++item) {{ {call} {following} }}"


def _call_text(
    number: int,
    call: _Written,
    function: str,
    shares: int,
    stamped: int,
    reals: frozenset[int] | None,
) -> str:
    """Return the statements that get a call done by all groups together.

    stamped: groups that note their times, 0 where none do. reals: as in _kernel.
    """
    _, args, unless, counts = call
    begin = f"\n        const ulong began = {CLOCK};" if stamped else ""
    end = (
        f"""
        {{
            const ulong ended = {CLOCK};
            __global ulong *stamp = stamps + 2 * ({number * stamped} + work_group);
            stamp[0] = mine ? began : 0;
            stamp[1] = mine ? ended : 0;
        }}"""
        if stamped
        else ""
    )
    items, share, grain, large, last, x, y, xy = counts
    read = _NUMBER.findall(" ".join([*args, *counts]))
    declared = "" if reals is None else f"\n{_declared(dict.fromkeys(read), reals)}"
    first = number * (shares + 1) * LINE
    done = first + shares * LINE
    text = f"""    {{{declared}
        const int items = {items};
        int mine = 0;{begin}
        for (int k = 0; k < {shares}; ++k) {{
            const int share = (own + k) % {shares}, from = share * {share};
            const int left = min({share}, items - from);
            for (;;) {{
                const int piece = atomic_inc(next + {first} + share * {LINE});
                const int small = max(piece - {large}, 0), at = (piece - small) * {grain} + small * {last};
                if (at >= left) break;
                const int end = from + min(at + (piece < {large} ? {grain} : {last}), left);
                int item = from + at;
                {each_item(f"{function}(scratch, {', '.join([*IDS, *args])});", x, y, xy)}
                mine += end - from - at;
            }}
        }}{end}
        mem_fence(CLK_GLOBAL_MEM_FENCE);
        if (mine) atomic_add(next + {done}, mine);
        while (atomic_add(next + {done}, 0) < items) ;
        mem_fence(CLK_GLOBAL_MEM_FENCE);
    }}"""
    return f"    if (!({unless}))\n{text}" if unless else text
