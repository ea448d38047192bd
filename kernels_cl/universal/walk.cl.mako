<%doc>
universal/walk: elementwise chains with broadcast operands, and copies from one layout to another.

    dst[...] = post_ops(src[...])

Tensors  src, e0, e1 (operands of post-ops), dst: pitches of some outer loops, a middle and an inner one
Launch   global (inner / chunk * middle / rows, product of outer extents), as elementwise/eltwise has it
Params   name     kernel name
         wg       local size
Tunables vw       elements of a vector
         piece    elements of a tile, a multiple of vw
</%doc>
<%namespace name="cd" file="/_common/codes.cl.mako"/>
<%!
from clnn.ops.universal.walk import OUTER
NAMES = ("s", "e0", "e1", "d")
%>
<%
    def gather(k):
        return f"""\
                read_lanes(other, e{k} + i * e{k}i, e{k}i, count, {piece});"""
%>
#define VW ${vw}
${cd.define(vw)}
${cd.lanes(vw)}
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
    __global const float *e0_base, const int e0_offset,
    __global const float *e1_base, const int e1_offset,
    __global float *dst_base, const int dst_offset,
    const int inner, const int chunk, const int middle, const int rows,
% for k in range(OUTER):
    const int extent${k},
% endfor
% for name_ in NAMES:
    ${" ".join(f"const int {name_}{k}," for k in range(OUTER))} const int ${name_}m, const int ${name_}i,
% endfor
${cd.params()})
{
${cd.decode()}\
    const int parts = (inner + chunk - 1) / chunk, part = get_global_id(0);
    const int first = part % parts * chunk, from = part / parts * rows;
    const int stop = min(first + chunk, inner), to = min(from + rows, middle);
    int rest = get_global_id(1), ${", ".join(f"{n}_at = 0" for n in NAMES)};
% for k in reversed(range(OUTER)):
    {
        const int at = rest % extent${k};
        rest /= extent${k};
        ${" ".join(f"{n}_at += at * {n}{k};" for n in NAMES)}
    }
% endfor
    float tile[${piece}], other[${piece}];
    for (int j = from; j < to; ++j) {
        __global const float *s = src_base + src_offset + s_at + j * sm;
        __global const float *e0 = e0_base + e0_offset + e0_at + j * e0m;
        __global const float *e1 = e1_base + e1_offset + e1_at + j * e1m;
        __global float *d = dst_base + dst_offset + d_at + j * dm;
        if (post_ops == 0) {
            int i = first;
            if (si == 1 && di == 1)
                for (; i + ${vw} <= stop; i += ${vw}) vstore${vw}(vload${vw}(0, s + i), 0, d + i);
            for (; i < stop; ++i) d[i * di] = s[i * si];
        } else
            for (int i = first; i < stop; i += ${piece}) {
                const int count = min(${piece}, stop - i);
                read_lanes(tile, s + i * si, si, count, ${piece});
${cd.apply("tile", "other", "(count + VW - 1) / VW * VW", gather)}
                write_lanes(d + i * di, tile, di, count);
            }
    }
}
