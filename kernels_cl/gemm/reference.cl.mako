<%doc>
gemm/reference: matrix product of any layout and element type, one work-item per output element.

Tensors  a, b, dst, extras: any pitches
Launch   global (m * n, batch)
Params   name, wg
         ctype             type of all tensors
         m, n, k           extents
         a, b, dst         pitches (row, column)
         batch             extents and pitches of the outer loops, in the order a, b, dst, extras
         extras            node input -> (number, pitches), of operands of the post-ops
         scales            node input -> factor of such an operand
         post_ops          what is applied to the sums
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%
    names = ["at_a", "at_b", "at_dst"] + [f"at_extra{place}" for place, _ in extras.values()]
    def operand(which):
        place, pitches = extras[which]
        text = element(ctype, f"extra{place}", f"i * {pitches[0]} + j * {pitches[1]}")
        return f"({scalar(scales[which], ctype)} * {text})" if which in scales else text
%>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(ctype)} *a_base, const int a_offset,
    __global const ${cell(ctype)} *b_base, const int b_offset,
% for place, _ in extras.values():
    __global const ${cell(ctype)} *extra${place}_base, const int extra${place}_offset,
% endfor
    __global ${cell(ctype)} *dst_base, const int dst_offset)
{
    const int flat = get_global_id(0), i = flat / ${n}, j = flat % ${n};
    if (flat >= ${m * n}) return;
    ${lp.offsets("get_global_id(1)", batch.extents, batch.pitches, names)}
% for place, _ in extras.values():
    __global const ${cell(ctype)} *extra${place} = extra${place}_base + extra${place}_offset + at_extra${place};
% endfor
    __global const ${cell(ctype)} *p = a_base + a_offset + at_a + i * ${a[0]};
    __global const ${cell(ctype)} *q = b_base + b_offset + at_b + j * ${b[1]};
    ${ctype} v = 0;
    for (int k = 0; k < ${k}; ++k)
% if ctype == "float":
        v = fma(${element(ctype, "p", f"k * {a[1]}")}, ${element(ctype, "q", f"k * {b[0]}")}, v);
% else:
        v = ${wrapped("v", "+", wrapped(f"p[k * {a[1]}]", "*", f"q[k * {b[0]}]", ctype, 1), ctype, 1)};
% endif
    ${st.apply(post_ops, "v", ctype, 1, operand)}
    ${store(1, "v", "dst_base", f"dst_offset + at_dst + i * {dst[0]} + j * {dst[1]}", ctype)}
}
