<%doc>
rows/topk: the first `count` elements of each line in order of value, with their indices.

A work-item walks a line. One element alone is sought in each lane of a vector, then among lanes. Up to KEPT
are kept in order, each further one put in its place, and blocks without a larger key than the last one's
are passed over. For more it puts aside what may be among the first, as keys and indices. When its slots are full, it finds the smallest key of the first `count` bit by
bit and drops what is behind that; blocks without a larger key are passed over from then on. What is left
is sorted.

Launch   global (lines)
Params   name            kernel name
         ctype           type of src and the values
         extents         of the lines
         pitches         of those: [src, values, indices]
         length          elements of a line
         count           of them that are sought
         steps           pitch along the line: (src, values, indices)
         largest         whether the largest elements are sought
         slots           elements put aside at most, a multiple of 16 of at least 2 * count + 64; unused up to KEPT
         apart           slots are in two buffers of scratch memory, else in registers
         wg              local size
Order    of equal elements the lower index comes first
</%doc>
<%!
from clnn.traced import is_one
KEPT = 16  # elements that are kept in order
%>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="ok" file="/_common/order_keys.cl.mako"/>
<%
    lines = prod(extents)
    U, size = ok.module.key_type(ctype), ok.module.bits(ctype)
    S, lanes, block = U[1:], 16 if size == 32 else 8, 64
    by_vectors = size == 32 and is_one(steps[0])
    assert slots % 16 == 0 and slots >= 2 * count + block, (slots, count)
    few, kept = count <= 32, 0 < count <= KEPT
%>
<%def name="first_of_lanes()">\
    ${U}16 best = key16(vload16(0, src));
    const int16 lanes = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int16 at = lanes;
    for (int next = 16; next < ${length}; next += 16) {
        const int from = min(next, ${length - 16});  // the last vector begins among elements that were seen
        const ${U}16 k = key16(vload16(0, src + from));
        at = select(at, lanes + from, k > best);
        best = max(best, k);
    }
    ${U} keys[16];
    int found[16], places[1], filled = 1;
    vstore16(best, 0, keys);
    vstore16(at, 0, found);
    places[0] = found[0];
    for (int j = 1; j < 16; ++j) {
        if (keys[j] > keys[0] || (keys[j] == keys[0] && found[j] < places[0])) places[0] = found[j];
        keys[0] = max(keys[0], keys[j]);
    }
</%def>
<%def name="kept_in_order()">\
    ${U} keys[${count}], edge = 0;
    int places[${count}], filled = 0, next = 0;
    while (next < ${length}) {
% if by_vectors:
        if (filled == ${count} && next + 16 <= ${length} && !any(key16(vload16(0, src + next)) > (${U}16)(edge))) {
            next += 16;
            continue;
        }
% endif
        for (const int stop = min(next + 16, (int)${length}); next < stop; ++next) {
            const ${U} k = key1(src[next * ${steps[0]}]);
            if (filled == ${count} && k <= edge) continue;
            int at = filled < ${count} ? filled++ : ${count - 1};
            for (; at > 0 && keys[at - 1] < k; --at) {
                keys[at] = keys[at - 1];
                places[at] = places[at - 1];
            }
            keys[at] = k;
            places[at] = next;
            if (filled == ${count}) edge = keys[${count - 1}];
        }
    }
</%def>
${ok.functions(ctype, [1, 16] if by_vectors else [1], largest)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global ${ctype} *values_base, const int values_offset,
    __global long *indices_base, const int indices_offset${"," if apart else ")"}
% if apart:
    __global ${U} *keys_base, const int keys_offset,
    __global int *places_base, const int places_offset)
% endif
{
    const int line = get_global_id(0);
    if (line >= ${lines}) return;
    ${lp.offsets("line", extents, pitches, ["s", "v", "i"])}
    __global const ${ctype} *src = src_base + src_offset + s;
    __global ${ctype} *values = values_base + values_offset + v;
    __global long *indices = indices_base + indices_offset + i;
% if count == 1 and by_vectors and not is_traced(length) and length >= 16:
    ${first_of_lanes()}
% elif kept:
    ${kept_in_order()}
% else:
    ${put_aside()}
% endif
    for (int j = 0; j < filled; ++j) {
        values[j * ${steps[1]}] = src[places[j] * ${steps[0]}];
        indices[j * ${steps[2]}] = places[j];
    }
}
<%def name="put_aside()">\
% if apart:
    __global ${U} *keys = keys_base + keys_offset + line * ${slots};
    __global int *places = places_base + places_offset + line * ${slots};
% else:
    ${U} keys[${slots}];
    int places[${slots}];
% endif
    int filled = 0, next = 0, is_cut = 0;
    ${U} edge = 0;
    while (1) {
        while (next < ${length} && filled <= ${slots - block}) {
% if by_vectors:
            if (is_cut && next + ${block} <= ${length}) {
                const ${U}16 k0 = max(key16(vload16(0, src + next)), key16(vload16(0, src + next + 16)));
                const ${U}16 k1 = max(key16(vload16(0, src + next + 32)), key16(vload16(0, src + next + 48)));
                if (!any(max(k0, k1) > (${U}16)(edge))) {
                    next += ${block};
                    continue;
                }
            }
% endif
            const int stop = min(next + ${block}, (int)${length});
            for (; next < stop; ++next) {
                const ${U} k = key1(src[next * ${steps[0]}]);
                if (is_cut && k <= edge) continue;
                keys[filled] = k;
                places[filled] = next;
                ++filled;
            }
        }
        if (filled > ${count}) {
            for (int j = filled; j % ${lanes}; ++j) keys[j] = 0;
            edge = 0;
            for (int bit = ${size - 1}; bit >= 0; --bit) {
                const ${U} trial = edge | ((${U})1 << bit);
                ${S}${lanes} less = 0;
                for (int j = 0; j < filled; j += ${lanes}) less += vload${lanes}(0, keys + j) >= (${U}${lanes})(trial);
                if (-(int)(${' + '.join(f'less.s{n:x}' for n in range(lanes))}) >= ${count}) edge = trial;
            }
            int ties = ${count}, kept = 0;
            for (int j = 0; j < filled; ++j) ties -= keys[j] > edge;
            for (int j = 0; j < filled; ++j) {
                const ${U} k = keys[j];
                const int ties_here = k == edge;
                if (k < edge || (ties_here && ties <= 0)) continue;
                ties -= ties_here;
                keys[kept] = k;
                places[kept] = places[j];
                ++kept;
            }
            filled = kept;
            is_cut = 1;
        }
        if (next >= ${length}) break;
    }
% if few:
    for (int j = 1; j < filled; ++j) {
        const ${U} k = keys[j];
        const int place = places[j];
        int at = j;
        for (; at > 0 && keys[at - 1] < k; --at) {
            keys[at] = keys[at - 1];
            places[at] = places[at - 1];
        }
        keys[at] = k;
        places[at] = place;
    }
% else:
    for (int shift = 0, from = 0, to = ${count}; shift < ${size}; shift += 8) {
        int starts[257];
        for (int j = 0; j < 257; ++j) starts[j] = 0;
        for (int j = 0; j < filled; ++j) ++starts[256 - (int)((keys[from + j] >> shift) & 255)];
        for (int j = 1; j < 257; ++j) starts[j] += starts[j - 1];
        for (int j = 0; j < filled; ++j) {
            const ${U} k = keys[from + j];
            const int at = to + starts[255 - (int)((k >> shift) & 255)]++;
            keys[at] = k;
            places[at] = places[from + j];
        }
        from = to;
        to = ${count} - to;
    }
% endif
</%def>
