<%doc>
transformer/rotate: rotary positions, each pair (a, b) of a row turned by the angle of its place.

    a' = a * cos - b * sin        b' = b * cos + a * sin      with a cosine and a sine for a' and for b'

Tensors  src, cosines, sines, dst: all seen with src's shape (pitch 0 where a table is broadcast)
Index    the first values of the pairs, loops as merged by clnn/ops/shared/loops.py; the second ones lie
         `away` from them. swaps: all values, pairs side by side, where a vector has whole pairs
Launch   global (inner / chunk, product of outer extents / band)
Params   name            kernel name
         extents         of the outer loops
         pitches         of those: [src, cosines, sines, dst]
         inner           extent of the innermost loop
         inner_pitches   of the same
         swaps           see above
         away            from the first to the second value of a pair, of the same
         wg              local size
Tunables vw              1, 2, 4, 8 or 16; at most inner; over 1 all inner pitches are 1
         chunk, last, band   as in movement/gather
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%
    rows, (px, pc, ps, pd) = prod(extents), inner_pitches
    ax, ac, as_, ad = away
    assert vw <= inner, (vw, inner)
    assert vw == 1 or inner_pitches == (1, 1, 1, 1), inner_pitches
    assert not swaps or (vw > 1 and inner % 2 == 0), (vw, inner)
    V = vec_type("float", vw)
    def at(pitch, start="0"):
        return f"{start} + k * {pitch}"
    swapped = "s" + "".join("1032547698badcfe"[:vw])
%>
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset, __global const float *cosines_base, const int cosines_offset,
    __global const float *sines_base, const int sines_offset, __global float *dst_base, const int dst_offset)
{
    const int first = get_global_id(0) * ${chunk}, begin = get_global_id(1) * ${band};
    if (first > ${last}) return;
    const int stop = first == ${last} ? ${inner} : first + ${chunk};
    for (int row = begin; row < min(begin + ${band}, ${rows}); ++row) {
        ${lp.offsets("row", extents, pitches, ["at_src", "at_cosines", "at_sines", "at_dst"])}
        __global const float *x = src_base + src_offset + at_src;
        __global const float *c = cosines_base + cosines_offset + at_cosines;
        __global const float *s = sines_base + sines_offset + at_sines;
        __global float *dst = dst_base + dst_offset + at_dst;
        for (int j = first; j < stop; j += ${vw}) {
            const int k = ${f"min(j, {inner - vw})" if vw > 1 else "j"};
% if swaps:
            const ${V} a = ${load("float", vw, "x", "k")};
            const ${V} turned = a.${swapped} * (${V})(${", ".join("-1, 1" for _ in range(vw // 2))});
            const ${V} y = a * ${load("float", vw, "c", "k")} + turned * ${load("float", vw, "s", "k")};
            ${store(vw, "y", "dst", "k", "float")}
% else:
            const ${V} a = ${load("float", vw, "x", at(px))}, b = ${load("float", vw, "x", at(px, ax))};
            const ${V} y = a * ${load("float", vw, "c", at(pc))} - b * ${load("float", vw, "s", at(ps))};
            const ${V} z = b * ${load("float", vw, "c", at(pc, ac))} + a * ${load("float", vw, "s", at(ps, as_))};
            ${store(vw, "y", "dst", at(pd), "float")}
            ${store(vw, "z", "dst", at(pd, ad), "float")}
% endif
        }
    }
}
