<%doc>
Elementwise post_ops: the OpenCL text of each function of clnn/ops/shared/functions.py, and the loop that
applies a chain of them to a value held in a register.

apply(post_ops, v, ctype, width, load)
    v: name of the variable, changed in place. ctype: its scalar type. width: its vector width.
    load: callable (operand index) -> expression of the operand at this place.
NaN propagates: comparisons are written so that a NaN operand comes out, but of thresholded_relu, which is
0 for it as ONNX has it. Integers wrap.

Wide vectors of floats are those of CPUs; there 1 + exp(x), of which the logistic functions are made, is
written out: a power of two, from the bits of a sum that rounds to whole numbers, times a polynomial of what
is left, within 4.3e-7 of itself. It is infinite from x = 88.4 on. gelu(x) is there
relu(x) - a p(a)^4, a = |x| / 2, where the polynomial p is the fourth root of twice the normal distribution's upper
tail, within 1.7e-7 of x; from |x| = 5.64 on p is 0. Of 16 floats AVX-512 has tables (_common/gelu). Sine, cosine and tangent
of floats are functions of _common/trigonometry: some drivers let one element of a vector spoil the others.
byte_steps(step, v, width, load, saturated): a function of bytes (of_bytes in functions.py), whose parameters are the
kernel's scale0, inverse0, scale1, ... (_common/scales), of the float variable v; it becomes steps of the result
within its limits, not rounded yet but to whole ones where zero points are added behind rounding; saturated: a
byte_sum is left to what makes bytes of it, whose limits are its own.
Rational functions (RATIONALS of functions.py) round as ONNX Runtime does on processors with fma.
</%doc>
<%namespace name="ge" file="/_common/gelu.cl.mako"/>
<%namespace name="tr" file="/_common/trigonometry.cl.mako"/>
<%!
from clnn.codegen.filters import S8_BITS, S8_ZERO, scalar
from clnn.ops.shared.functions import FUNCTIONS, RATIONALS
FLOAT = {
    "relu": "{v} = {v} < {T}(0) ? {T}(0) : {v};",
    "leaky_relu": "{v} = {v} < {T}(0) ? {p0} * {v} : {v};",
    "elu": "{v} = {v} < {T}(0) ? {p0} * expm1({v}) : {v};",
    "celu": "{v} = {v} < {T}(0) ? {p0} * expm1({v} / {p0}) : {v};",
    "selu": "{v} = {p1} * ({v} < {T}(0) ? {p0} * expm1({v}) : {v});",
    "thresholded_relu": "{v} = {v} > {p0} ? {v} : {T}(0);",
    "sigmoid": "{v} = {T}(1) / ({T}(1) + exp(-{v}));",
    "hard_sigmoid": "{v} = {p0} * {v} + {p1}; {v} = {v} < {T}(0) ? {T}(0) : {v}; "
                    "{v} = {v} > {T}(1) ? {T}(1) : {v};",
    "hard_swish": "{{ {D} t = {v} / {T}(6) + {T}(0.5f); t = t < {T}(0) ? {T}(0) : t; "
                  "t = t > {T}(1) ? {T}(1) : t; {v} *= t; }}",
    "swish": "{v} = {v} / ({T}(1) + exp(-{p0} * {v}));",
    "shrink": "{v} = {v} < -{p0} ? {v} + {p1} : ({v} > {p0} ? {v} - {p1} : {T}(0));",
    "softplus": "{v} = ({v} > {T}(0) ? {v} : {T}(0)) + log1p(exp(-fabs({v})));",
    "softsign": "{v} = {v} / ({T}(1) + fabs({v}));",
    "gelu": "{v} = {T}(0.5f) * {v} * ({T}(1) + erf({v} * {T}(0.70710678118654752f)));",
    "gelu_tanh": "{v} = {v} / ({T}(1) + exp({T}(-1.59576912160573073f) * "
                 "({v} + {T}(0.044715f) * {v} * {v} * {v})));",
    "mish": "{v} = {v} * tanh(({v} > {T}(0) ? {v} : {T}(0)) + log1p(exp(-fabs({v}))));",
    "tanh": "{v} = tanh({v});",
    "erf": "{v} = erf({v});",
    "exp": "{v} = exp({v});",
    "log": "{v} = log({v});",
    "sqrt": "{v} = sqrt({v});",
    "square": "{v} = {v} * {v};",
    "reciprocal": "{v} = {T}(1) / {v};",
    "floor": "{v} = floor({v});",
    "ceil": "{v} = ceil({v});",
    "round": "{v} = rint({v});",
    "sin": "{v} = sin({v});", "cos": "{v} = cos({v});", "tan": "{v} = tan({v});",  # but of floats
    "asin": "{v} = asin({v});",
    "acos": "{v} = acos({v});",
    "atan": "{v} = atan({v});",
    "sinh": "{v} = sinh({v});",
    "cosh": "{v} = cosh({v});",
    "asinh": "{v} = asinh({v});",
    "acosh": "{v} = acosh({v});",
    "atanh": "{v} = atanh({v});",
    "abs": "{v} = fabs({v});",
    "neg": "{v} = -{v};",
    "sign": "{v} = {v} > {T}(0) ? {T}(1) : ({v} < {T}(0) ? {T}(-1) : {v});",
    "clip": "{v} = {v} < {p0} ? {p0} : {v}; {v} = {v} > {p1} ? {p1} : {v};",
    "at_least": "{v} = {v} < {p0} ? {p0} : {v};",
    "at_most": "{v} = {v} > {p0} ? {p0} : {v};",
    "add": "{v} = {a} + {b};",
    "sub": "{v} = {a} - {b};",
    "mul": "{v} = {a} * {b};",
    "div": "{v} = {a} / {b};",
    "pow": "{v} = pow({a}, {b});",
    "min": "{{ {D} s = {b}, t = {a}; {v} = t < s || t != t ? t : s; }}",
    "max": "{{ {D} s = {b}, t = {a}; {v} = t > s || t != t ? t : s; }}",
    "prelu": "{{ {D} s = {b}, t = {a}; {v} = t < {T}(0) ? s * t : t; }}",
    "replace": "{{ {D} s = {b}, t = {a}; {v} = s < {T}(INFINITY) ? s : t; }}",
}
INTEGER = dict(FLOAT)
INTEGER.update({
    "add": "{v} = {SUM};", "sub": "{v} = {DIFFERENCE};", "mul": "{v} = {PRODUCT};", "neg": "{v} = {MINUS};",
    "square": "{v} = {SQUARE};",
    "abs": "{v} = {v} < {T}(0) ? {MINUS} : {v};",
    "min": "{v} = min({a}, {b});",
    "max": "{v} = max({a}, {b});",
    "div": "{{ {D} s = {b}, t = {a}; {v} = t / (s == {T}(0) ? {T}(1) : s); }}",
    "pow": "{{ {D} s = {b}, t = {a}, r = {T}(1); for (int bit = 0; bit < {BITS}; ++bit, t = {TT}) "
           "r = (s >> {T}(bit) & {T}(1)) != {T}(0) ? {RT} : r; {v} = r; }}",
})
SIGNED = dict(INTEGER)
SIGNED.update({
    # the least value divided by -1 overflows, which stops some processors
    "div": "{{ {D} s = {b}, t = {a}; {D} q = s == {T}(0) || s == {T}(-1) ? {T}(1) : s; q = t / q; "
           "{v} = s == {T}(-1) ? {MINUS_Q} : q; }}",
    "pow": "{{ {D} s = {b}, t = {a}, r = {T}(1), o = t; {D} n = s < {T}(0) ? {MINUS_S} : s; "
           "for (int bit = 0; bit < {BITS}; ++bit, t = {TT}) "
           "r = (n >> {T}(bit) & {T}(1)) != {T}(0) ? {RT} : r; "
           "{v} = s >= {T}(0) || o == {T}(1) || o == {T}(-1) ? r : {T}(0); }}",
})
UNSIGNED = dict(INTEGER)
UNSIGNED.update({"abs": ";", "relu": ";"})
# below = 1 + a power, of a whole number and the rest: 127 more than that number are the bits of its own power of two
HELD = "{{D}} held = {x}; held = held > {{T}}({most}f) ? {{T}}({most}f) : held; held = held < {{T}}({least}f) ? {{T}}({least}f) : held; "
BELOW = (
    "{{D}} power = fma(rest, {{T}}({4}f), {{T}}({3}f)); power = fma(power, rest, {{T}}({2}f)); "
    "power = fma(power, rest, {{T}}({1}f)); power = fma(power, rest, {{T}}({0}f)); "
    "power = fma(power, rest, {{T}}(1.0f)); "
    "const {{D}} below = fma(power, as_{{D}}(as_{{I}}(whole) << 23), {{T}}(1.0f));"
)
# e^-x, within 4.3e-7 of itself: 2.7e-7 where x is at most 20
OF_E = (
    HELD.format(x="{x}", most=88.0, least=-89.0)
    + "const {D} whole = fma(held, {T}(-1.44269504f), {T}(12583039.0f)); "
    "const {D} rest = fma({T}(12583039.0f) - whole, {T}(0.693147182f), -held); "
    + BELOW.format(0.99999976, 0.49999151, 0.16667636, 0.04189793, 0.008290315)
)
# 2^x, where x was rounded before: sums find the rest
OF_TWO = (
    HELD.format(x="{x}", most=128.0, least=-126.9)
    + "const {D} whole = held + {T}(12583039.0f); const {D} rest = held - (whole - {T}(12583039.0f)); "
    + BELOW.format(0.693147, 0.24022242, 0.055507336, 0.009671513, 0.0013264727)
)
LOGISTIC = {
    fn: "{{ " + text.replace("{x}", x) + " {v} = " + over + " / below; }}"
    for fn, text, x, over in (
        ("sigmoid", OF_E, "{v}", "{T}(1.0f)"),
        ("swish", OF_E, "{p0} * {v}", "{v}"),
        ("gelu_tanh", OF_TWO, "{v} * fma({v} * {v}, {T}(-0.10294324f), {T}(-2.3022082f))", "{v}"),
    )
}
GELU = (
    "{{ const {D} h = {T}(0.5f) * {v}; const {D} a = fabs(h) > {T}(2.875f) ? {T}(2.875f) : fabs(h); "
    "{D} tail = fma(a, {T}(-0.0010418608f), {T}(0.008939336f)); "
    "tail = fma(tail, a, {T}(-0.023529315f)); tail = fma(tail, a, {T}(-0.0011566861f)); "
    "tail = fma(tail, a, {T}(0.07208318f)); tail = fma(tail, a, {T}(0.044291034f)); "
    "tail = fma(tail, a, {T}(-0.23879316f)); tail = fma(tail, a, {T}(-0.3989401f)); "
    "tail = fma(tail, a, {T}(1.0f)); tail = tail < {T}(0) ? {T}(0) : tail; "
    "tail *= tail; tail *= tail; "
    "{v} = fma(h < -a ? h : -a, tail, {v} < {T}(0) ? {T}(0) : {v}); }}"
)
def rational(function, over):
    """The text of a quotient of polynomials; over: what becomes of it, `made`."""
    def polynomial(name, coefficients):
        steps = "".join(f" {name} = fma({name}, squared, {{T}}({scalar(c, 'float')}));" for c in coefficients[1:])
        return f"{{D}} {name} = {{T}}({scalar(coefficients[0], 'float')});{steps} "
    limit = scalar(function.limit, "float")
    text = f"{{{{ {{D}} held = {{v}} < {{T}}(-{limit}) ? {{T}}(-{limit}) : {{v}}; "
    text += f"held = held > {{T}}({limit}) ? {{T}}({limit}) : held; const {{D}} squared = held * held; "
    text += polynomial("up", function.above) + polynomial("down", function.below)
    return text + f"{{D}} made = up * held / down; {over} }}}}"
SHIFTED = ("made = made + {T}(0.5f); made = made < {T}(0) ? {T}(0) : made; "
           "made = made > {T}(1) ? {T}(1) : made; ")
FLOAT["rational_sigmoid"] = rational(RATIONALS["sigmoid"], SHIFTED + "{v} = made;")
FLOAT["rational_swish"] = rational(RATIONALS["sigmoid"], SHIFTED + "{v} = {v} * made;")
FLOAT["rational_tanh"] = rational(RATIONALS["tanh"], "{v} = made;")
# where x is tiny, the product above underflows
TANH = rational(RATIONALS["tanh"], "{v} = fabs({v}) < {T}(0.0002f) ? {v} : made;")
WRITTEN = LOGISTIC | {"gelu": GELU, "tanh": TANH}
WIDE = 8  # elements of vectors from which on WRITTEN is used
SIGNED_TYPES = ("char", "short", "int", "long")
BITS = {"char": 7, "uchar": 8, "short": 15, "ushort": 16, "int": 31, "uint": 32, "long": 63, "ulong": 64}
REAL_TYPES = ("float", "half", "double")
%>
<%def name="byte_steps(step, v, width, load, saturated=False)">\
<%
    F = vec_type("float", width)
    other = "" if step.operand is None else f"convert_{F}({load(step.operand)})"
    a, b = (other, v) if step.swapped else (v, other)
    given = [f"({F})({('scale', 'inverse')[k % 2]}{k // 2})" for k in range(len(step.params))]
    low, high = given[-2:]
    zero = given[2 if step.fn == "byte_line" else 4 % len(given)]
    shift = f"({F})(128.0f)"  # of int8 as uint8
%>\
% if step.fn == "byte_sum":
        ${v} = fma(${a}, ${given[0]}, fma(${b}, ${given[1]}, ${given[2]}));
%  if not saturated:
        ${v} = ${v} > ${low} ? ${v} : ${low};
        ${v} = ${v} < ${high} ? ${v} : ${high};
%  endif
% elif step.fn == "shifted_byte_sum":
        ${v} = fma(${a} + ${shift}, ${given[0]}, fma(${b} + ${shift}, ${given[1]}, ${given[2]}));
        ${v} = ${v} > ${low} + ${shift} ? ${v} : ${low} + ${shift};
        ${v} = ${v} < ${high} + ${shift} ? ${v} : ${high} + ${shift};
        ${v} = ${v} + (${F})(${scalar(S8_ZERO, "float")}) - (${F})(${scalar(S8_ZERO, "float")}) - ${shift};
% else:
%  if step.fn == "byte_line":
        ${v} = fma(${v}, ${given[0]}, ${given[1]});
%  else:
        ${v} = ((${a} - ${given[0]}) * ${given[1]} + (${b} - ${given[2]}) * ${given[3]}) / ${given[5]};
%  endif
        ${v} = ${v} > ${low} - ${zero} ? ${v} : ${low} - ${zero};
        ${v} = ${v} < ${high} - ${zero} ? ${v} : ${high} - ${zero};
        ${v} = ${v} + (${F})(${scalar(S8_ZERO, "float")}) - (${F})(${scalar(S8_ZERO, "float")}) + ${zero};
% endif
</%def>
<%def name="looked_up(step, v, ctype, width)">\
<%
    table = f"extra{operands[step.operand][0]}"
    entries = [f"{table}[as_uchar{'' if width == 1 else width}({v}){lane}]" for lane in ([""] if width == 1 else [f".s{d:x}" for d in range(width)])]
%>\
        ${v} = (${vec_type(ctype, width)})(${", ".join(entries)});
</%def>
<%def name="of_bytes(step, v, ctype, width, load)">\
        {
        ${vec_type("float", width)} steps_ = convert_${vec_type("float", width)}(${v});
${byte_steps(step, "steps_", width, load)}\
        ${v} = convert_${vec_type(ctype, width)}(as_${vec_type("int", width)}(steps_ + (${vec_type("float", width)})(${scalar(S8_ZERO, "float")})) - (${vec_type("int", width)})(${S8_BITS}));
        }
</%def>
<%def name="one(step, v, ctype, width, load)">\
<%
    table = FLOAT if ctype in REAL_TYPES else SIGNED if ctype in SIGNED_TYPES else UNSIGNED
    vector = vec_type(ctype, width)
    cast = f"({vector})"
    params = [f"{cast}({scalar(p, ctype)})" for p in step.params]
    other = params[0] if step.operand is None and params else (
        load(step.operand) if step.operand is not None else None)
    a, b = (other, v) if step.swapped else (v, other)
    names = {f"p{i}": p for i, p in enumerate(params)}
    own = ctype == "float" and step.fn in tr.module.FUNCTIONS
    written = WRITTEN if ctype == "float" and width >= WIDE else {}
    own_gelu = ctype == "float" and step.fn == "gelu"
    if ctype not in REAL_TYPES:
        operations = {"SUM": (a, "+", b), "DIFFERENCE": (a, "-", b), "PRODUCT": (a, "*", b), "SQUARE": (v, "*", v),
                      "TT": ("t", "*", "t"), "RT": ("r", "*", "t"), "MINUS": (f"{cast}(0)", "-", v),
                      "MINUS_Q": (f"{cast}(0)", "-", "q"), "MINUS_S": (f"{cast}(0)", "-", "s")}
        names |= {key: wrapped(*parts, ctype, width) for key, parts in operations.items()}
    made = written.get(step.fn, table[step.fn])
    text = (ge.module.text(made, width) if own_gelu else made).format(
        v=v, a=a, b=b, T=cast, D=vector, I=f"int{width}", BITS=BITS.get(ctype, 0), **names)
%>${tr.apply(step.fn, v, width) if own else text}\
</%def>
<%def name="apply(post_ops, v, ctype, width, load)">\
% for step in post_ops:
%  if FUNCTIONS[step.fn].looks_up:
    ${looked_up(step, v, ctype, width)}
%  else:
    ${of_bytes(step, v, ctype, width, load) if FUNCTIONS[step.fn].of_bytes else one(step, v, ctype, width, load)}
%  endif
% endfor
</%def>
