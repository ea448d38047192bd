<%doc>
movement/gather: copies elements from places that an index tensor says.

Index    dst[...] = src[... + sum over picks of index value * pitch]; src and index are seen with
         dst's shape (pitch 0 on axes that they do not have), loops as merged by clnn/ops/shared/loops.py
Launch   global (inner / chunk, product of outer extents / band)
Params   name | ctype: type moved | index_type | extents: of the outer loops | pitches: of those, for
         src, index and dst | inner | inner_pitches: for src, index and dst | picks: for each index
         value its place, the extent it counts in, and the pitch in src | checked: values may be
         negative (from the end) or out of range (the nearest valid one is taken) | wg
Tunables vw {1,2,4,8,16}, at most inner; over 1 the run is contiguous and has one index
         chunk, band: share of the inner loop, and rows, that one work-item walks
         last: where the last share begins, which reaches to the end
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%
    rows = 1
    for extent in extents:
        rows *= extent
    ps, pi, pd = inner_pitches
    assert vw == 1 or (ps == 1 and pd == 1 and pi == 0), inner_pitches
    assert vw <= inner, (vw, inner)
%>
<%def name="look_up(where)">\
% for number, (place, extent, pitch) in enumerate(picks):
        {
            ${index_type} at = index[${where} + ${place}];
%  if checked:
            at = at < 0 ? at + ${extent} : at;
            at = at < 0 ? 0 : (at >= ${extent} ? ${extent - 1} : at);
%  endif
            from += (int)at * ${pitch};
        }
% endfor
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global const ${index_type} *index_base, const int index_offset,
    __global ${ctype} *dst_base, const int dst_offset)
{
    const int first = get_global_id(0) * ${chunk}, begin = get_global_id(1) * ${band};
    if (first > ${last}) return;
    const int stop = first == ${last} ? ${inner} : first + ${chunk};
    __global const ${index_type} *index = index_base + index_offset;
    for (int row = begin; row < min(begin + ${band}, ${rows}); ++row) {
    ${lp.offsets("row", extents, pitches, ["s", "i", "d"])}
    __global const ${ctype} *src = src_base + src_offset + s;
    __global ${ctype} *dst = dst_base + dst_offset + d;
% if pi == 0:
    int from = 0;
${look_up("i")}
    for (int j = first; j < stop; j += ${vw}) {
% if vw == 1:
        dst[j * ${pd}] = src[from + j * ${ps}];
% else:
        const int k = min(j, ${inner - vw});
        ${store(vw, load(ctype, vw, "src", "from + k"), "dst", "k")}
% endif
    }
% else:
    for (int j = first; j < stop; ++j) {
        int from = j * ${ps};
${look_up(f"i + j * {pi}")}
        dst[j * ${pd}] = src[from];
    }
% endif
    }
}
