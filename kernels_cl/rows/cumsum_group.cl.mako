<%doc>
rows/cumsum_group: running sums or products along one axis, a line per work-group.

Each member adds up a share of the line; with the sums of the members before it, it walks its share
again and writes.

Launch   global (lines * group), local (group)
Params   name            kernel name
         ctype           type of src and dst
         extents         of the lines
         pitches         of those: [src, dst]
         count           elements of a line
         steps           pitch along the line: (src, dst)
         exclusive       the sum in front of each element
         reverse         from the end
         product         a product instead of a sum
         wg              local size
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%
    none, joins = (1, "*=") if product else (0, "+=")
    group = wg[0]
    place = f"({count} - 1 - n)" if reverse else "n"
%>
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global ${ctype} *dst_base, const int dst_offset)
{
    __local ${ctype} sums[${group}];
    const int line = get_group_id(0), member = get_local_id(0);
    ${lp.offsets("line", extents, pitches, ["s", "d"])}
    __global const ${ctype} *src = src_base + src_offset + s;
    __global ${ctype} *dst = dst_base + dst_offset + d;
    const int share = (${count} + ${group - 1}) / ${group};
    const int begin = min(member * share, (int)${count}), end = min(begin + share, (int)${count});
    ${ctype} sum = ${none};
    for (int n = begin; n < end; ++n) sum ${joins} src[${place} * ${steps[0]}];
    sums[member] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    sum = ${none};
    for (int k = 0; k < member; ++k) sum ${joins} sums[k];
    for (int n = begin; n < end; ++n) {
        const ${ctype} v = src[${place} * ${steps[0]}];
% if exclusive:
        dst[${place} * ${steps[1]}] = sum;
        sum ${joins} v;
% else:
        sum ${joins} v;
        dst[${place} * ${steps[1]}] = sum;
% endif
    }
}
