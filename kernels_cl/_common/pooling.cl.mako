<%doc>
Pooling: how a window takes in one more element, and what becomes of it at the end.

start(mode, ctype)                       the literal that an empty window begins with
take(mode, v, x, ctype, width, power)    statement: variable v takes in variable x
join(mode, v, w, ctype)                  statement: v takes in w, itself a part of a window
beats(x, v, ctype)                       whether x goes before the maximum v: larger, or a NaN
root(v, ctype, width, power)             statement: v becomes the p-th root of itself
</%doc>
<%!
from clnn.codegen.filters import scalar, vec_type

REAL = ("float", "half", "double")
LOWEST = {
    "char": -2**7, "uchar": 0, "short": -2**15, "ushort": 0, "int": -2**31, "uint": 0,
    "long": -2**63, "ulong": 0,
}

def start(mode, ctype):
    if mode != "max":
        return scalar(0, ctype)
    return scalar(-float("inf") if ctype in REAL else LOWEST[ctype], ctype)

def join(mode, v, w, ctype):
    if mode != "max":
        return f"{v} += {w};"
    if ctype not in REAL:
        return f"{v} = max({v}, {w});"
    return f"{v} = {w} > {v} ? {w} : {v}; {v} = {w} != {w} ? {w} : {v};"

def powered(x, ctype, width, power):
    if float(power).is_integer() and 1 <= power <= 8:
        return " * ".join([f"fabs({x})"] * int(power))
    return f"pow(fabs({x}), ({vec_type(ctype, width)})({scalar(power, ctype)}))"

def element(mode, x, ctype, width, power):
    return powered(x, ctype, width, power) if mode == "lp" else x

def take(mode, v, x, ctype, width, power):
    return f"{v} += {powered(x, ctype, width, power)};" if mode == "lp" else join(mode, v, x, ctype)

def beats(x, v, ctype):
    return f"{x} > {v} || ({x} != {x} && {v} == {v})" if ctype in REAL else f"{x} > {v}"

def root(v, ctype, width, power):
    if power == 1:
        return ""
    if power == 2:
        return f"{v} = sqrt({v});"
    return f"{v} = pow({v}, ({vec_type(ctype, width)})({scalar(1 / power, ctype)}));"
%>
