"""x86's instructions in kernels as functions of OpenCL C, for simulators that know no assembly."""

from __future__ import annotations

import re

OPERAND = r"(\w+|\(int\d+\)\([-\d]+\))"
TWO = re.compile(
    rf'__asm__\("(\w+) %2, %1, %0" : "([+=])\w"\((\w+)\) : "\w"\({OPERAND}\), "\w"\({OPERAND}\)\);'
)
ONE = re.compile(r'__asm__\("vcvtps2dq %1, %0" : "=\w"\((\w+)\) : "\w"\((\w+)\)\);')
CHANGING = ("vpdpbusd", "vpdpwssd", "vpermi2b")  # what their result held before
# What each instruction makes of parts of 128 bits, byte by byte or as shorts.
BODIES = {
    "vpdpbusd": "for (int k = 0; k < 4; ++k) for (int e = 0; e < 4; ++e)"
    " d.i[4 * p + k] += (int)x.u[16 * p + 4 * k + e] * (int)y.s[16 * p + 4 * k + e];",
    "vpdpwssd": "for (int k = 0; k < 4; ++k) for (int e = 0; e < 2; ++e)"
    " d.i[4 * p + k] += (int)x.h[8 * p + 2 * k + e] * (int)y.h[8 * p + 2 * k + e];",
    "vpmaddwd": "for (int k = 0; k < 4; ++k)"
    " d.i[4 * p + k] = (int)x.h[8 * p + 2 * k] * (int)y.h[8 * p + 2 * k]"
    " + (int)x.h[8 * p + 2 * k + 1] * (int)y.h[8 * p + 2 * k + 1];",
    "vpaddd": "for (int k = 4 * p; k < 4 * p + 4; ++k) d.i[k] = x.i[k] + y.i[k];",
    "vpackssdw": "for (int k = 0; k < 4; ++k) { d.h[8 * p + k] = convert_short_sat(x.i[4 * p + k]);"
    " d.h[8 * p + 4 + k] = convert_short_sat(y.i[4 * p + k]); }",
    "vpackuswb": "for (int k = 0; k < 8; ++k) { d.u[16 * p + k] = convert_uchar_sat(x.h[8 * p + k]);"
    " d.u[16 * p + 8 + k] = convert_uchar_sat(y.h[8 * p + k]); }",
    "vpacksswb": "for (int k = 0; k < 8; ++k) { d.s[16 * p + k] = convert_char_sat(x.h[8 * p + k]);"
    " d.s[16 * p + 8 + k] = convert_char_sat(y.h[8 * p + k]); }",
    # Of whole registers of 64 bytes alone.
    "vpermi2b": "for (int k = 16 * p; k < 16 * p + 16; ++k) { const int at = d.u[k] & 127;"
    " d.u[k] = at < 64 ? x.u[at] : y.u[at - 64]; }",
    "vpaddsw": "for (int k = 0; k < 8; ++k)"
    " d.h[8 * p + k] = convert_short_sat((int)x.h[8 * p + k] + (int)y.h[8 * p + k]);",
}
for part, first in (("l", 0), ("h", 1)):
    BODIES[f"vpunpck{part}bw"] = (
        f"for (int k = 0; k < 8; ++k) {{ d.u[16 * p + 2 * k] = x.u[16 * p + {8 * first} + k];"
        f" d.u[16 * p + 2 * k + 1] = y.u[16 * p + {8 * first} + k]; }}"
    )
    BODIES[f"vpunpck{part}wd"] = (
        f"for (int k = 0; k < 4; ++k) {{ d.h[8 * p + 2 * k] = x.h[8 * p + {4 * first} + k];"
        f" d.h[8 * p + 2 * k + 1] = y.h[8 * p + {4 * first} + k]; }}"
    )


def x86_in_c(source: str, width: int) -> tuple[str, int]:
    """Return a kernel with functions in place of instructions on int vectors, and in how many places."""
    used = {found[0] for found in TWO.findall(source)}
    text, count = TWO.subn(r"\3 = x86_\1(\3, \4, \5);", source)
    text, more = ONE.subn(rf"\1 = convert_int{width}_rte(\2);", text)
    functions = "".join(
        _function(name, 16 if name == "vpermi2b" else width) for name in sorted(used)
    )
    return functions + text, count + more


def _function(name: str, width: int) -> str:
    """Return the function of an instruction: of what the result holds, and two operands."""
    union = (
        f"union {{ int{width} v; int i[{width}]; short h[{2 * width}];"
        f" uchar u[{4 * width}]; char s[{4 * width}]; }}"
    )
    return (
        f"int{width} x86_{name}(const int{width} held, const int{width} a, const int{width} b)\n{{\n"
        f"    {union} d, x, y;\n    d.v = {'held' if name in CHANGING else f'(int{width})(0)'};\n"
        f"    x.v = a;\n    y.v = b;\n"
        f"    for (int p = 0; p < {width // 4}; ++p) {BODIES[name]}\n    return d.v;\n}}\n"
    )
