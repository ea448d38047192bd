<%doc>
rows/topk: the first `count` elements of each line in order of value, with their indices.

Way      ranks: each element counts those that come before it, which is its place
         inserts: elements are put one after the other into the sorted output
Launch   ranks: global (length, lines); inserts: global (lines)
Params   name            kernel name
         ctype           type of src and the values
         way             ranks or inserts
         extents         of the lines
         pitches         of those: [src, values, indices]
         length          elements of a line
         count           of them that are sought
         steps           pitch along the line: (src, values, indices)
         largest         whether the largest elements are sought
         wg              local size
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%
    lines = prod(extents)
    real = ctype in ("float", "half", "double")
    order = ">" if largest else "<"
    def better(a, b):
        """Text of: value a comes before b, whatever their indices."""
        text = f"{a} {order} {b}"
        if not real:
            return f"({text})"
        first, second = (a, b) if largest else (b, a)
        return f"({text} || ({first} != {first} && {second} == {second}))"
%>
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global ${ctype} *values_base, const int values_offset,
    __global long *indices_base, const int indices_offset)
{
    const int line = get_global_id(${1 if way == "ranks" else 0});
    if (line >= ${lines}) return;
    ${lp.offsets("line", extents, pitches, ["s", "v", "i"])}
    __global const ${ctype} *src = src_base + src_offset + s;
    __global ${ctype} *values = values_base + values_offset + v;
    __global long *indices = indices_base + indices_offset + i;
% if way == "ranks":
    const int mine = get_global_id(0);
    if (mine >= ${length}) return;
    const ${ctype} a = src[mine * ${steps[0]}];
    int place = 0;
    for (int k = 0; k < ${length}; ++k) {
        const ${ctype} b = src[k * ${steps[0]}];
        place += ${better("b", "a")} || (k < mine && !${better("a", "b")});
    }
    if (place < ${count}) {
        values[place * ${steps[1]}] = a;
        indices[place * ${steps[2]}] = mine;
    }
% else:
    int filled = 0;
    for (int k = 0; k < ${length}; ++k) {
        const ${ctype} a = src[k * ${steps[0]}];
        int at = filled;
        while (at > 0) {
            const ${ctype} b = values[(at - 1) * ${steps[1]}];
            if (!${better("a", "b")}) break;
            if (at < ${count}) {
                values[at * ${steps[1]}] = b;
                indices[at * ${steps[2]}] = indices[(at - 1) * ${steps[2]}];
            }
            --at;
        }
        if (at < ${count}) {
            values[at * ${steps[1]}] = a;
            indices[at * ${steps[2]}] = k;
            filled = min(filled + 1, ${count});
        }
    }
% endif
}
