<%doc>
Post-ops by number: what kernels of the universal set do with a finished tile of floats.

define(width)       the function post_op of a source: t = fn(a, b), `count` vectors of `width` floats each; unary
                    functions know `a` alone. first, second: the parameters of clip and others
params()            parameters of a kernel that say which post-ops it applies (clnn/ops/universal/post_ops.py)
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
<%def name="params()">\
    const int post_ops\
% for k in range(MOST):
,
    const int code${k}, const int operand${k}, const int swapped${k}, const float first${k}, const float second${k}\
% endfor
</%def>
<%def name="apply(tile, other, count, gather)">\
% for k in range(MOST):
    if (post_ops > ${k}) {
% for which in range(OPERANDS):
        if (operand${k} == ${which}) {
${gather(which)}
        }
% endfor
        if (operand${k} == -1)
            for (int at = 0; at < ${count}; ++at) ${other}[at] = first${k};
        post_op(code${k}, first${k}, second${k}, ${tile}, swapped${k} ? ${other} : ${tile}, swapped${k} ? ${tile} : ${other}, (${count}) / VW);
    }
% endfor
</%def>
