<%doc>
peak_mma: products of fragments that stay in registers, to measure the rate of tensor cores.

Every warp multiplies mi fragments by ni, `rounds` times over, into mi x ni fragments of sums; a
work-item's sums are added up in `out`, so that no work can be left out. words: 4 mi + 2 ni, what
the fragments hold in every lane.
Launch   global (any multiple of wg); one sum of `out` per work-item
Params   name | body: "ptx" or "emulated" | kind {f16,bf16,tf32,s8} | mi, ni >= 1 | wg: (32 * warps,)
</%doc>
<%namespace name="pt" file="../_common/ptx.cl.mako"/>
<%
warps = wg[0] // 32
t = "int" if kind == "s8" else "float"
%>
${pt.declare(body, [kind])}
${group_size(wg)}
__kernel void ${name}(__global const uint *restrict words, __global ${t} *restrict out, const int rounds)
{
% if body == "emulated":
    __local uint memory_[4];
    ${pt.prepare(body, pt.module.exchange_words(mi, ni), warps, "memory_", 16)}
% endif
    uint a[${4 * mi}], b[${2 * ni}];
    ${t} c[${4 * mi * ni}];
% for k in range(4 * mi):
    a[${k}] = words[${k}];
% endfor
% for k in range(2 * ni):
    b[${k}] = words[${4 * mi + k}];
% endfor
% for k in range(4 * mi * ni):
    c[${k}] = 0;
% endfor
    for (int r = 0; r < rounds; ++r) {
        ${pt.mma(body, kind, mi, ni, "a", "b", "c")}
    }
    out[get_global_id(0)] = ${" + ".join(f"c[{k}]" for k in range(4 * mi * ni))};
}
