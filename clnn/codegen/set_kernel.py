"""The universal set as one kernel: it walks through rows of a buffer in place of calls in its text.

A row is one launch: which function it calls, its counts of items, and the function's arguments. The
kernel is otherwise a fused one (clnn.codegen.fused_kernel): the same counters, shares and waits. Its
text depends on the functions alone, so that one program serves every network.

    head    rows, shares of a call, work-groups
    row     function, items, items of a share, of a grain, width, height, width * height, the input
            whose being bound leaves it out (-1: none), arguments
    argument    a buffer takes two words, which memory and at which page of it; numbers take one,
            floats as their bits
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from clnn.codegen.fused_kernel import (
    CLOCK,
    GROUPS,
    IDS,
    LINE,
    MOST_SHARES,
    PIECES,
    each_item,
    parts,
)
from clnn.codegen.kernels import (
    KERNEL,
    MOST_INPUTS,
    FusedKernel,
    input_names,
)
from clnn.errors import TemplateError
from clnn.records import dataclass

HEAD, ROW_HEAD = 4, 8  # words in front of the rows, and of a row's arguments
ARENA_MEMORY, CONSTANT_MEMORY, INPUT_MEMORY = (
    0,
    1,
    2,
)  # memories; inputs are those from INPUT_MEMORY on
PAGE = 4096  # bytes in which places in a memory are counted

Number = int | float


@dataclass(frozen=True)
class SetCall:
    """One launch: its function's source, its work-items, its arguments as words.

    unless: the input whose being bound leaves it out, -1 for none.
    """

    source: str
    extents: tuple[int, ...]
    words: tuple[Number, ...]
    unless: int = -1


@dataclass(frozen=True)
class SetText:
    """The kernel of the set: its text, the names of its parameters, and the words of a row."""

    source: str
    params: tuple[str, ...]
    row: int


@lru_cache
def set_text(sources: tuple[str, ...], timed: bool = False) -> SetText:
    """Return the kernel that calls functions made from these sources. Raises TemplateError.

    timed: it notes when each row's part began and ended.
    """
    texts: list[str] = []
    known: dict[str, str] = {}
    cases, longest = [], 0
    for number, source in enumerate(sources):
        text, arguments, words = _function(source, number, known)
        texts.append(text)
        longest = max(longest, words)
        cases += [f"                case {number}:", f"                    {arguments}", _BREAK]
    params = {"next": "volatile __global int *", "arena": "__global char *"}
    params |= {"stamps": "__global ulong *"} if timed else {}
    params |= {"constants": "__global char *", "numbers": "__global const int *"}
    for k in range(MOST_INPUTS):
        memory, start, bound = input_names(k)
        params |= {memory: "__global char *", start: "const int ", bound: "const int "}
    row = ROW_HEAD + longest
    listed = ", ".join(f"{kind}{name}" for name, kind in params.items())
    source = "\n".join(
        [
            *texts,
            "__attribute__((reqd_work_group_size(1, 1, 1)))",
            f"__kernel void {KERNEL}({listed})",
            "{",
            *_opening(row, timed),
            *cases,
            *_ending(timed),
            "}",
        ]
    )
    return SetText(source + "\n", tuple(params), row)


_BREAK = "                    break;"


def _opening(row: int, timed: bool) -> list[str]:
    """Return what comes before the choice of a function."""
    bases = [
        f"    bases[{INPUT_MEMORY + k}] = input{k} + input{k}_start;" for k in range(MOST_INPUTS)
    ]
    flags = ", ".join(f"input{k}_bound" for k in range(MOST_INPUTS))
    began = [f"        const ulong began = {CLOCK};"] if timed else []
    return [
        "    const int rows = numbers[0], shares = numbers[1], groups = numbers[2];",
        f"    const int last = (rows * (shares + 1) + 1) * {LINE};",
        f"    const int own = atomic_inc(next + last - {LINE}) % shares;",
        f"    __global char *bases[{INPUT_MEMORY + MOST_INPUTS}];",
        f"    const int bound[{MOST_INPUTS}] = {{{flags}}};",
        f"    bases[{ARENA_MEMORY}] = arena;",
        f"    bases[{CONSTANT_MEMORY}] = constants;",
        *bases,
        "    for (int row = 0; row < rows; ++row) {",
        f"        __global const int *n = numbers + {HEAD} + row * {row};",
        "        const int is_out = n[7] >= 0 && bound[max(n[7], 0)];",
        "        const int items = is_out ? 0 : n[1], size = n[2], grain = n[3];",
        f"        volatile __global int *counter = next + row * (shares + 1) * {LINE};",
        "        int mine = 0, at;",
        *began,
        "        for (int k = 0; k < shares; ++k) {",
        "            const int share = (own + k) % shares, from = share * size;",
        "            const int left = min(size, items - from);",
        f"            while ((at = atomic_add(counter + share * {LINE}, grain)) < left) {{",
        "                const int end = from + min(at + grain, left);",
        "                mine += end - from - at;",
        "                switch (n[0]) {",
    ]


def _ending(timed: bool) -> list[str]:
    """Return what comes behind the choice of a function."""
    noted = [
        "        __global ulong *stamp = stamps + 2 * (row * groups + get_group_id(0));",
        f"        const ulong ended = {CLOCK};",
        "        if (mine) {",
        "            stamp[0] = began;",
        "            stamp[1] = ended;",
        "        } else {",
        "            stamp[0] = 0;",
        "            stamp[1] = 0;",
        "        }",
    ]
    return [
        "                }",
        "            }",
        "        }",
        *(noted if timed else []),
        "        mem_fence(CLK_GLOBAL_MEM_FENCE);",
        f"        if (mine) atomic_add(counter + shares * {LINE}, mine);",
        f"        while (atomic_add(counter + shares * {LINE}, 0) < items) ;",
        "        mem_fence(CLK_GLOBAL_MEM_FENCE);",
        "    }",
        "    if (atomic_inc(next + last) == groups - 1)",
        f"        for (int k = 0; k <= last; k += {LINE}) atomic_xchg(next + k, 0);",
    ]


def _function(source: str, number: int, known: dict[str, str]) -> tuple[str, str, int]:
    """Return a source as a function, the statement that calls it for each item, and its words.

    known: definitions of the functions before, by name; those are not repeated. Raises TemplateError.
    """
    definitions, kernel = parts(source)
    new = []
    for name, text in definitions:
        if name not in known:
            known[name] = text
            new.append(text)
        elif known[name] != text:
            raise TemplateError(f"two functions of the universal set define {name} differently.")
    head = kernel[: kernel.index(")\n{")]
    ids = "const int id0, const int id1, const int id2"
    body = re.sub(r"\bget_global_id\(([012])\)", r"id\1", kernel)
    read, at = ["int item = from + at", "const int x = n[4], y = n[5]"], ROW_HEAD
    for k, param in enumerate(head.split(",")):
        kind = param.strip()
        if "*" in kind:
            pointer = f"{kind[: kind.index('*')].strip()} *"
            read.append(f"{pointer}a{k} = ({pointer})(bases[n[{at}]] + n[{at + 1}] * {PAGE}L)")
            at += 2
        else:
            real = "float " in kind
            read.append(
                f"const float a{k} = as_float(n[{at}])" if real else f"const int a{k} = n[{at}]"
            )
            at += 1
    arguments = ", ".join([*IDS, *(f"a{k}" for k in range(len(read) - 2))])
    loop = each_item(f"call_{number}({arguments});", "x", "y", "n[6]")
    call = f"{{ {'; '.join(read)}; {loop} }}"
    text = "".join(new) + f"void call_{number}({ids}, " + body
    return text, call, at - ROW_HEAD


def set_kernel(
    sources: tuple[str, ...], calls: Sequence[SetCall], units: int, timed: bool = False
) -> FusedKernel:
    """Return the kernel of the set with the rows of `calls`, whose sources are among `sources`.

    units: the device's compute units. timed: as in set_text. Raises TemplateError.
    """
    text = set_text(sources, timed)
    shares, groups = min(units, MOST_SHARES), GROUPS * units
    numbers: list[Number] = [len(calls), shares, groups, 0]
    for call in calls:
        width, height, _ = (*call.extents, 1, 1, 1)[:3]
        items = width * height * (*call.extents, 1, 1, 1)[2]
        share, grain = -(-items // shares), max(1, items // (units * PIECES))
        row: list[Number] = [
            sources.index(call.source),
            items,
            share,
            grain,
            width,
            height,
            width * height,
        ]
        row += [call.unless, *call.words]
        numbers += row + [0] * (text.row - len(row))
    stamps = 2 * len(calls) * groups if timed else 0
    last = (len(calls) * (shares + 1) + 1) * LINE
    return FusedKernel(text.source, text.params, last + 1, 64, groups, stamps, tuple(numbers))
