<%doc>
Post-ops by number: what kernels of the universal set do with a finished tile of floats.

define(width)       the function post_op of a source: t = fn(a, b), `count` vectors of `width` floats each; unary
                    functions know `a` alone. first, second: the parameters of clip and others
lanes(vw)           the functions read_lanes and write_lanes of a source: `count` elements at a pitch from memory to an
                    array, of which all behind them up to `all` become zeros, and back
params()            parameters of a kernel that say which post-ops it applies (clnn/ops/universal/post_ops.py)
decode()            statements that come before those of `apply` in a kernel
apply(tile, other, count, gather)   statements that apply them to `tile`, `count` vectors; gather(k) gives
                    statements that put operand k into `other`
The second value of a binary function is a tensor (operand 0 or 1), or its first parameter where that is -1.
swapped: the running value is the second one.
</%doc>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%!
from clnn.ops.shared.functions import FUNCTIONS
from clnn.ops.universal.post_ops import CODES, MOST, OPERANDS
%>
<%def name="define(width)">\
<%
    vector = vec_type("float", width)
    table = st.module.FLOAT | st.module.WRITTEN
    names = {"v": "v", "a": "v", "b": "w", "T": f"({vector})", "D": vector, "I": f"int{width}", "p0": "p0", "p1": "p1"}
%>\
void post_op(const int code, const float first, const float second, float *t, const float *a, const float *b, const int count)
{
    const ${vector} p0 = first, p1 = second;
    switch (code) {
% for number, fn in enumerate(CODES):
    case ${number}:
        for (int at = 0; at < count; ++at) {
            ${vector} v = vload${width}(at, a);
% if FUNCTIONS[fn].binary:
            const ${vector} w = vload${width}(at, b);
% endif
            ${table[fn].format(**names)}
            vstore${width}(v, at, t);
        }
        break;
% endfor
    }
}
</%def>
<%def name="lanes(vw)">\
<%
    halves = [width for width in (8, 4, 2) if width < vw]
%>\
void read_lanes(float *d, __global const float *s, const int pitch, const int count, const int all)
{
    int j = 0;
    if (pitch == 1 && count >= ${vw}) {
        for (; j + ${vw} <= count; j += ${vw}) vstore${vw}(vload${vw}(0, s + j), 0, d + j);
        if (j < count) vstore${vw}(vload${vw}(0, s + count - ${vw}), 0, d + count - ${vw});
        j = count;
% for width in halves:
    } else if (pitch == 1 && count >= ${width}) {
        vstore${width}(vload${width}(0, s), 0, d);
        vstore${width}(vload${width}(0, s + count - ${width}), 0, d + count - ${width});
        j = count;
% endfor
    } else if (pitch == 0 && count >= ${vw}) {
        const float same = s[0];
        for (; j + ${vw} <= count; j += ${vw}) vstore${vw}((${vec_type("float", vw)})(same), 0, d + j);
    }
    for (; j < count; ++j) d[j] = s[j * pitch];
    for (; j < all; ++j) d[j] = 0.0f;
}
void write_lanes(__global float *d, const float *s, const int pitch, const int count)
{
    int j = 0;
    if (pitch == 1 && count >= ${vw}) {
        for (; j + ${vw} <= count; j += ${vw}) vstore${vw}(vload${vw}(0, s + j), 0, d + j);
        if (j < count) vstore${vw}(vload${vw}(0, s + count - ${vw}), 0, d + count - ${vw});
        j = count;
% for width in halves:
    } else if (pitch == 1 && count >= ${width}) {
        vstore${width}(vload${width}(0, s), 0, d);
        vstore${width}(vload${width}(0, s + count - ${width}), 0, d + count - ${width});
        j = count;
% endfor
    }
    for (; j < count; ++j) d[j * pitch] = s[j];
}
</%def>
<%def name="params()">\
    const int post_ops\
% for k in range(MOST):
,
    const int code${k}, const int operand${k}, const int swapped${k}, const float first${k}, const float second${k}\
% endfor
</%def>
<%def name="decode()">\
<%
    def listed(name):
        return ", ".join(f"{name}{k}" for k in range(MOST))
%>\
    const int codes[${MOST}] = {${listed("code")}}, operands[${MOST}] = {${listed("operand")}};
    const int swaps[${MOST}] = {${listed("swapped")}};
    const float firsts[${MOST}] = {${listed("first")}}, seconds[${MOST}] = {${listed("second")}};
</%def>
<%def name="apply(tile, other, count, gather)">\
            for (int op = 0; op < post_ops; ++op) {
                const int operand = operands[op], swap = swaps[op];
% for which in range(OPERANDS):
                if (operand == ${which}) {
${gather(which)}
                }
% endfor
                if (operand == -1)
                    for (int at = 0; at < ${count}; ++at) ${other}[at] = firsts[op];
                post_op(codes[op], firsts[op], seconds[op], ${tile}, swap ? ${other} : ${tile}, swap ? ${tile} : ${other}, (${count}) / VW);
            }
</%def>
