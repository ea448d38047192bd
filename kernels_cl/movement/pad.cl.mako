<%doc>
movement/pad: a tensor with elements added on the sides of its axes, element by element of dst.

Index    output index i of an axis reads input index i - before; outside of the input `mode` decides
Launch   global (elements of dst / vw); one work-item per vector along the last axis
Params   name            kernel name
         ctype           type moved
         extents         of dst
         sources         extents of src
         before          elements added in front of each axis
         src_pitches, dst_pitches
         mode            constant, reflect (the edge is not repeated), edge or wrap
         value           of "constant", as a number of ctype
         wg              local size
Tunables vw              1, 2, 4, 8 or 16; divides the last axis; over 1 that is contiguous, not padded
</%doc>
<%namespace name="pm" file="/_common/padding.cl.mako"/>
<%
    rank = len(extents)
    count = 1
    for extent in extents:
        count *= extent
    assert vw == 1 or extents[-1] % vw == 0, (extents, vw)
    assert vw == 1 or (src_pitches[-1] == 1 and dst_pitches[-1] == 1 and sources[-1] == extents[-1])
%>
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src, const int src_offset, __global ${ctype} *dst, const int dst_offset)
{
    const int id = get_global_id(0);
    if (id >= ${count // vw}) return;
    int rest = id * ${vw}, to = dst_offset, from = src_offset, inside = 1;
% for a in reversed(range(rank)):
    {
        int i = rest % ${extents[a]};
        rest /= ${extents[a]};
        to += i * ${dst_pitches[a]};
        ${pm.source("i", "inside", before[a], sources[a], extents[a], mode)}
        from += i * ${src_pitches[a]};
    }
% endfor
    ${vec_type(ctype, vw)} v = ${scalar(value, ctype)};
    if (inside) v = ${load(ctype, vw, "src", "from")};
    ${store(vw, "v", "dst", "to")}
}
