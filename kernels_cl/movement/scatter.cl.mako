<%doc>
movement/scatter: writes elements to places that an index tensor says, in their order.

Index    dst[... + sum over picks of index value * pitch] takes an update; updates, index and dst are
         seen with the shape of the lines (pitch 0 on axes that they do not have), loops as merged by
         clnn/ops/shared/loops.py. Each line is walked from its first update to the last by one
         work-item, or by several that each write a segment of the places alone
Launch   global (inner / chunk, product of outer extents / band, segments)
Params   name            kernel name
         ctype           type moved, or computed in
         index_type      type of the indices
         reduction       none, add, mul, max or min
         logical         ones and zeros, whose sum is "or" and whose product is "and"
         extents         of the outer loops
         pitches         of those: [updates, index, dst]
         inner           extent of the innermost loop
         inner_pitches   (updates, index, dst)
         walk            axes of the updates of a line: (extent, pitch in updates, pitch in index)
         picks           as in movement/gather, pitches in dst
         checked         as in movement/gather
         segment         places that a work-item writes, 0 for all
         shared          whether a run has one index and is contiguous
         wg              local size
Tunables vw, chunk, last, band   as in movement/gather
NaN      max and min take the update where either is NaN
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%
    rows = prod(extents)
    pu, pi, pd = inner_pitches
    small = ctype in ("char", "uchar", "short", "ushort")
    assert reduction in ("none", "add", "mul", "max", "min"), reduction

    def sum_of(terms):
        return " + ".join(terms) or "0"

    def joined(a, b, width):
        """Text of what takes the place of `a` where the update is `b`."""
        if reduction == "none":
            return b
        if logical:
            return f"{a} {'|' if reduction == 'add' else '&'} {b}"
        if reduction in ("max", "min"):
            return f"{a} {'>' if reduction == 'max' else '<'} {b} ? {a} : {b}"
        sign = "+" if reduction == "add" else "*"
        if small and width == 1:
            return f"({ctype})((uint){a} {sign} (uint){b})"
        return f"{a} {sign} {b}"
%>
<%def name="each(i, body)">\
% for axis, (extent, _, _) in enumerate(walk):
        for (int n${axis} = 0; n${axis} < ${extent}; ++n${axis}) {
% endfor
        const int w = ${sum_of([f"n{a} * {p}" for a, (_, p, _) in enumerate(walk)])};
        const int from = ${sum_of([i, *(f"n{a} * {p}" for a, (_, _, p) in enumerate(walk))])};
        int place = 0, flat = 0;
% for number, (where, extent, pitch) in enumerate(picks):
        {
            ${index_type} at = index[from + ${where}];
%  if checked:
            at = at < 0 ? at + ${extent} : at;
            at = at < 0 ? 0 : (at >= ${extent} ? ${extent - 1} : at);
%  endif
            place += (int)at * ${pitch};
            flat = flat * ${extent} + (int)at;
        }
% endfor
        if (${f"flat >= begins && flat < begins + {segment}" if segment else "flat >= 0"}) {
${body}\
        }
% for _ in walk:
        }
% endfor
</%def>
<%def name="take(width, k)">\
<% V = vec_type(ctype, width) %>\
            const ${V} b = ${load(ctype, width, "updates", f"w + {k}")};
% if reduction != "none":
            const ${V} a = ${load(ctype, width, "dst", f"place + {k}")};
% endif
            ${store(width, joined("a", "b", width), "dst", f"place + {k}")}
</%def>
<%def name="run()">\
            int k = first;
            for (; k + ${vw} <= stop; k += ${vw}) {
${take(vw, "k")}
            }
%  if vw > 1:
            for (; k < stop; ++k) {
${take(1, "k")}
            }
%  endif
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${index_type} *index_base, const int index_offset,
    __global const ${ctype} *updates_base, const int updates_offset,
    __global ${ctype} *dst_base, const int dst_offset)
{
    const int first = get_global_id(0) * ${chunk}, begin = get_global_id(1) * ${band};
    if (first > ${last}) return;
    const int stop = first == ${last} ? ${inner} : first + ${chunk};
% if segment:
    const int begins = get_global_id(2) * ${segment};
% endif
    for (int row = begin; row < min(begin + ${band}, ${rows}); ++row) {
    ${lp.offsets("row", extents, pitches, ["u", "i", "d"])}
    __global const ${index_type} *index = index_base + index_offset + i;
% if shared:
    __global const ${ctype} *updates = updates_base + updates_offset + u;
    __global ${ctype} *dst = dst_base + dst_offset + d;
${each("0", capture(run))}
% else:
    for (int j = first; j < stop; ++j) {
        __global const ${ctype} *updates = updates_base + updates_offset + u + j * ${pu};
        __global ${ctype} *dst = dst_base + dst_offset + d + j * ${pd};
${each(f"j * {pi}", capture(take, 1, "0"))}
    }
% endif
    }
}
