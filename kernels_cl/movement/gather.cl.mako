<%doc>
movement/gather: copies elements from places that an index tensor says.

Index    dst[...] = src[... + sum over picks of index value * pitch]; src and index are seen with
         dst's shape (pitch 0 on axes that they do not have), loops as merged by
         clnn/ops/shared/loops.py
Launch   global (inner / chunk, product of outer extents / band)
Params   name            kernel name
         ctype           type moved
         index_type      type of the indices
         extents         of the outer loops
         pitches         of those: [src, index, dst]
         inner           extent of the innermost loop
         inner_pitches   (src, index, dst)
         picks           for each index value: its place, the extent it counts in, its pitch in src
         checked         values may be negative (from the end) or out of range (the nearest valid
                         one is taken)
         wg              local size
Tunables vw              1, 2, 4, 8 or 16; at most inner; over 1 a run is contiguous and has one index
         chunk           elements of a run that one work-item walks
         last            where the last share of a run begins, which reaches to its end
         band            rows that one work-item walks
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%
    rows = prod(extents)
    ps, pi, pd = inner_pitches
    contiguous = is_one(ps) and is_one(pd) and is_zero(pi)
    assert vw == 1 or contiguous, inner_pitches
    assert is_open(inner) or vw <= inner, (vw, inner)
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
% if is_zero(pi):
    int from = 0;
${look_up("i")}
% endif
% if vw > 1 and is_open(inner):
    int k = first;
    for (; k + ${vw} <= stop; k += ${vw}) {
        ${store(vw, load(ctype, vw, "src", "from + k"), "dst", "k")}
    }
    for (; k < stop; ++k) dst[k] = src[from + k];
% elif is_zero(pi):
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
