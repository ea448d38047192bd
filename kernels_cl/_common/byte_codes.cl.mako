<%doc>
Functions of quantised tensors by number: what kernels of the universal set do with a tile of floats that hold bytes.

define(width)       functions of a source, of vectors of `width`:
                    byte_op      t = fn(a, b), `count` vectors; given: the step's parameters, table: its entries
                    read_typed   `count` elements of a type (TYPES of clnn/ops/universal/byte_steps.py) at a pitch from
                                 memory to floats; all behind them up to `all` become zeros
                    write_typed  floats back, whole numbers within the type's limits where it is one of integers
params(most)        parameters of a kernel that say which steps it takes
decode(most)        statements that come before those of `apply` in a kernel
apply(tile, other, count, gather, most, tensors)   statements that apply them to `tile`, `count` floats, a multiple of VW;
                    gather(k) gives statements that put operand k into `other`, of so many
The second value of a binary function is a tensor, or its first parameter where its number is -1.
swapped: the running value is the second one. Products and sums are rounded one by one.
</%doc>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%!
from clnn.codegen.filters import S8_ZERO, scalar
from clnn.ops.universal.byte_steps import BINARY, CODES, COMPARED, PARAMS, TYPES
SIZES = {"uchar": 1, "char": 1, "ushort": 2, "short": 2, "int": 4, "float": 4}
ROUND = f"(v + {scalar(float(S8_ZERO), 'float')}) - {scalar(float(S8_ZERO), 'float')}"
HELD = "v = v > {low} ? v : {low}; v = v < {high} ? v : {high};"
def kept(low, high, behind):
    """v within limits, rounded, and what is added behind that."""
    return f"{HELD.format(low=low, high=high)} v = {ROUND} + {behind};"
def written(sign):
    return f"v = (((a - p0) * p1) {sign} ((b - p2) * p3)) / p5; " + kept("p6 - p4", "p7 - p4", "p4")
TEXTS = {
    "add_moved": "v = a + (b + p0);",
    "round_off": kept("p0 - b", "p1 - b", "b"),
    "round_late": kept("p0", "p1", "p2"),
    "byte_sum": "v = fma(a, p0, fma(b, p1, p2)); " + kept("p3", "p4", "0.0f"),
    "shifted_byte_sum": "v = fma(a + 128.0f, p0, fma(b + 128.0f, p1, p2)); " + kept("(p3 + 128.0f)", "(p4 + 128.0f)", "-128.0f"),
    "byte_line": "v = fma(v, p0, p1); " + kept("p3 - p2", "p4 - p2", "p2"),
    "byte_product": "v = ((a - p0) * (b - p1)) * p2 + p3;",
    "not_a_number": "v = v != v ? ONE : ZERO;",
    "as_int": "v = v >= -2147483648.0f && v < 2147483648.0f ? v : -2147483648.0f;",
} | {name: f"v = a {sign} b ? ONE : ZERO;" for name, sign in zip(COMPARED, ("==", ">", ">=", "<", "<="))} | {f"written_{name}": written(sign) for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))}
%>
<%def name="define(width)">\
<%
    F = vec_type("float", width)
    names = {"v": "v", "a": "a", "b": "b", "T": f"({F})", "D": F, "I": f"int{width}", "p0": "p0", "p1": "p1"}
%>\
#pragma OPENCL FP_CONTRACT OFF
void byte_op(const int code, const float *given, __global const float *table, float *t, const float *x, const float *y, const int count)
{
% for k in range(PARAMS):
    const ${F} p${k} = given[${k}];
% endfor
    switch (code) {
% for number, fn in enumerate(CODES):
    case ${number}:
% if fn == "byte_table":
        for (int at = 0; at < count * ${width}; ++at) t[at] = table[(int)x[at] & 255];
% else:
        for (int at = 0; at < count; ++at) {
            ${F} v = vload${width}(at, x);
% if fn in BINARY:
            const ${F} a = v, b = vload${width}(at, y);
% endif
            ${TEXTS[fn].replace("ONE", f"({F})(1.0f)").replace("ZERO", f"({F})(0.0f)") if fn in TEXTS else st.module.FLOAT[fn].format(**names)}
            vstore${width}(v, at, t);
        }
% endif
        break;
% endfor
    }
}
void read_typed(float *d, __global const uchar *s, const int type, const int pitch, const int count, const int all)
{
    int j = 0;
    switch (type) {
% for number, ctype in enumerate(TYPES):
    case ${number}: {
        __global const ${ctype} *p = (__global const ${ctype} *)s;
        if (pitch == 1)
            for (; j + ${width} <= count; j += ${width})
                vstore${width}(${f"convert_{F}" if ctype != "float" else ""}(${load(ctype, width, "p", "j")}), 0, d + j);
        if (pitch == 0)
            for (const float same = p[0]; j < count; ++j) d[j] = same;
        for (; j < count; ++j) d[j] = p[j * pitch];
        break;
    }
% endfor
    }
    for (; j < all; ++j) d[j] = 0.0f;
}
void write_typed(__global uchar *d, const float *s, const int type, const int pitch, const int count)
{
    int j = 0;
    switch (type) {
% for number, ctype in enumerate(TYPES):
    case ${number}: {
        __global ${ctype} *p = (__global ${ctype} *)d;
        if (pitch == 1)
            for (; j + ${width} <= count; j += ${width}) {
% if ctype == "float":
                const ${F} v = vload${width}(0, s + j);
% else:
                const ${vec_type(ctype, width)} v = convert_${vec_type(ctype, width)}(convert_${vec_type("int", width)}(vload${width}(0, s + j)));
% endif
                ${store(width, "v", "p", "j", ctype)}
            }
        for (; j < count; ++j) p[j * pitch] = ${"s[j]" if ctype == "float" else f"({ctype})(int)s[j]"};
        break;
    }
% endfor
    }
}
int size_of_type(const int type)
{
    return type < 2 ? 1 : type < 4 ? 2 : 4;
}
</%def>
<%def name="params(most)">\
    const int steps\
% for k in range(most):
,
    const int code${k}, const int operand${k}, const int swapped${k}, ${", ".join(f"const float g{k}_{j}" for j in range(PARAMS))}\
% endfor
</%def>
<%def name="decode(most)">\
<%
    def listed(name):
        return ", ".join(f"{name}{k}" for k in range(most))
%>\
    const int codes[${most}] = {${listed("code")}}, operands[${most}] = {${listed("operand")}};
    const int swaps[${most}] = {${listed("swapped")}};
    const float given[${most * PARAMS}] = {${", ".join(f"g{k}_{j}" for k in range(most) for j in range(PARAMS))}};
</%def>
<%def name="apply(tile, other, count, gather, most, tensors=1)">\
            for (int op = 0; op < steps; ++op) {
                const int operand = operands[op], swap = swaps[op];
% for which in range(tensors):
                if (operand == ${which}) {
${gather(which)}
                }
% endfor
                if (operand == -1)
                    for (int at = 0; at < ${count}; ++at) ${other}[at] = given[op * ${PARAMS}];
                byte_op(codes[op], given + op * ${PARAMS}, table, ${tile}, swap ? ${other} : ${tile}, swap ? ${tile} : ${other}, (${count}) / VW);
            }
</%def>
