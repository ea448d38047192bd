"""x86's instructions in kernels, as each driver's compiler takes them.

Kernels have them as inline assembly on vectors that lie in registers, written for compilers that know
x86's constraints, "v" and "x":

    __asm__("vpackssdw %2, %1, %0" : "=v"(sum) : "v"(a), "v"(b));

Intel's compiler for CPUs reads kernels before it knows their processor. It takes no constraint of x86, but
any operand, "X", and puts vectors of floats into the first 16 registers there. What a tile's sums stand in
needs all 32: that instruction is called by the name that the compiler's own code has for it.
"""

from __future__ import annotations

import re
from typing import Any

from clnn.runtime.drivers.in_turn import INTEL

_HEAD = re.compile(r'__asm__\("(\w+) ((?:%2, )?%1, %0)" : "([+=])[vx]"\(')
_ENDS = re.compile(r'\) : "[vx]"\(|\), "[vx]"\(|\)\);')
# Instructions that are called by name, and what their operands are.
SUMS = {"vpdpbusd": "bytes{}_", "vpdpwssd": "shorts{}_"}
_SAID = "__attribute__((overloadable, always_inline))"


def _of_width(n: int) -> str:
    """Return the functions of vectors of n ints: as floats, and the instructions that sums are made by."""
    summed = "".join(_sums(n, name, operand) for name, operand in SUMS.items())
    return (
        f"typedef char bytes{n}_ __attribute__((ext_vector_type({4 * n})));\n"
        f"typedef short shorts{n}_ __attribute__((ext_vector_type({2 * n})));\n{summed}"
        f"{_SAID} float{n} clnn_floats(int{n} a) {{ return as_float{n}(a); }}\n"
        f"{_SAID} float{n} clnn_floats(float{n} a) {{ return a; }}\n"
    )


def _sums(n: int, name: str, operand: str) -> str:
    """Return the function of an instruction that adds products to n ints."""
    given, inner = operand.format(n), f"clnn_sums_{name}_{n}"
    left, right = (f"__builtin_astype({operand}, {given})" for operand in "ab")
    return (
        f'int{n} {inner}(int{n}, {given}, {given}) __asm__("llvm.x86.avx512.{name}.{32 * n}");\n'
        f"{_SAID} int{n} clnn_{name}(int{n} sum, int{n} a, int{n} b)"
        f" {{ return {inner}(sum, {left}, {right}); }}\n"
    )


def _of_part(ints: str, zeros: str, kept: str, name: str) -> str:
    """Return the instruction for less than a register."""
    sums, left, right = (f"(int4)({name}{zeros})" for name in ("sum", "a", "b"))
    return (
        f"{_SAID} {ints} clnn_{name}({ints} sum, {ints} a, {ints} b)"
        f" {{ return clnn_{name}({sums}, {left}, {right}).{kept}; }}\n"
    )


FUNCTIONS = "".join(map(_of_width, (16, 8, 4)))
for _name in SUMS:
    FUNCTIONS += _of_part("int2", ", 0, 0", "s01", _name) + _of_part(
        "int", ", 0, 0, 0", "s0", _name
    )


def taken_by(device: Any, source: str) -> str:
    """Return the text of a program as the compiler of a device takes it."""
    return for_intel(source) if device.platform.name.strip() == INTEL else source


def for_intel(source: str) -> str:
    """Return the text of a program with its instructions as Intel's compiler for CPUs takes them."""
    parts, end = [], 0
    for head in _HEAD.finditer(source):
        operands, after = _operands(source, head.end())
        parts += [source[end : head.start()], _statement(head, operands)]
        end = after
    return "".join([FUNCTIONS, *parts, source[end:]]) if parts else source


def _operands(source: str, start: int) -> tuple[list[str], int]:
    """Return the operands of a statement whose first one starts there, and where what follows it does."""
    found, first, depth, place = list[str](), start, 0, start
    while True:
        closed = _ENDS.match(source, place) if not depth else None
        if closed is not None:
            found.append(source[first:place])
            first = place = closed.end()
            if closed[0] == "));":
                return found, first
        else:
            depth += (source[place] == "(") - (source[place] == ")")
            place += 1


def _statement(head: re.Match[str], operands: list[str]) -> str:
    """Return a statement for the instruction of `head`; operands: the result first."""
    name, places, change = head.groups()
    result, *given = operands
    if name in SUMS:
        return f"{result} = clnn_{name}({', '.join(operands)});"
    start = f" = clnn_floats({result})" if change == "+" else ""
    read = ", ".join(f'"X"(clnn_floats({operand}))' for operand in given)
    return (
        f"{{ __typeof__(clnn_floats({result})) held_{start};"
        f' __asm__("{name} {places}" : "{change}X"(held_) : {read});'
        f" {result} = __builtin_astype(held_, __typeof__({result})); }}"
    )
