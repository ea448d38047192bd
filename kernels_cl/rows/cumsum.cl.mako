<%doc>
rows/cumsum: running sums or products along one axis; a work-item walks whole lines, vw of them side by side.

Launch   global (inner / chunk, product of outer extents / band)
Params   name            kernel name
         ctype           type of src and dst
         extents         of the outer loops
         pitches         of those: [src, dst]
         inner           extent of the innermost loop
         inner_pitches   (src, dst)
         count           elements of a line
         steps           pitch along the line: (src, dst)
         exclusive       the sum in front of each element
         reverse         from the end
         product         a product instead of a sum
         wg              local size
Tunables vw              1, 2, 4, 8 or 16; at most inner
         chunk, last, band   as in movement/gather
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%
    none, joins = (1, "*=") if product else (0, "+=")
    rows = prod(extents)
    ps, pd = inner_pitches
%>
<%def name="lines(width, k)">\
<% V = vec_type(ctype, width) %>\
        const int k = ${k};
        __global const ${ctype} *src = src_base + src_offset + s + k * ${ps};
        __global ${ctype} *dst = dst_base + dst_offset + d + k * ${pd};
        ${V} sum = ${none};
        for (int n = 0; n < ${count}; ++n) {
            const int i = ${f"{count - 1} - n" if reverse else "n"};
            const ${V} v = ${load(ctype, width, "src", f"i * {steps[0]}")};
% if exclusive:
            ${store(width, "sum", "dst", f"i * {steps[1]}")}
            sum ${joins} v;
% else:
            sum ${joins} v;
            ${store(width, "sum", "dst", f"i * {steps[1]}")}
% endif
        }
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global ${ctype} *dst_base, const int dst_offset)
{
    const int first = get_global_id(0) * ${chunk}, begin = get_global_id(1) * ${band};
    if (first > ${last}) return;
    const int stop = first == ${last} ? ${inner} : first + ${chunk};
    for (int row = begin; row < min(begin + ${band}, ${rows}); ++row) {
    ${lp.offsets("row", extents, pitches, ["s", "d"])}
% if vw > 1 and is_open(inner):
    int j = first;
    for (; j + ${vw} <= stop; j += ${vw}) {
${lines(vw, "j")}
    }
    for (; j < stop; ++j) {
${lines(1, "j")}
    }
% else:
    for (int j = first; j < stop; j += ${vw}) {
${lines(vw, f"min(j, {inner - vw})" if vw > 1 else "j")}
    }
% endif
    }
}
