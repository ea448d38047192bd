<%doc>
rows/topk_group: the first `count` elements of each line in order of value, a line per work-group.

The smallest key of the first `count` is found digit by digit: all members count how often each digit
occurs behind the digits that are known. What is not behind it is put aside in any order, and each of
those counts the ones that come before it, which is its place.

Launch   global (lines * group), local (group)
Params   as in rows/topk, without slots and apart; group: members, a power of 2
Scratch  keys and indices that are put aside, `count` for each line
Order    of equal elements the lower index comes first
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="ok" file="/_common/order_keys.cl.mako"/>
<%
    U, size = ok.module.key_type(ctype), ok.module.bits(ctype)
    group = wg[0]
%>
${ok.functions(ctype, [1], largest)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global ${ctype} *values_base, const int values_offset,
    __global long *indices_base, const int indices_offset,
    __global ${U} *keys_base, const int keys_offset,
    __global int *places_base, const int places_offset)
{
    __local int digits[256];
    __local int counts[${group}];
    __local int found[3]; // the digit, how many of it are sought, how many are put aside
    const int line = get_group_id(0), member = get_local_id(0);
    ${lp.offsets("line", extents, pitches, ["s", "v", "i"])}
    __global const ${ctype} *src = src_base + src_offset + s;
    __global ${ctype} *values = values_base + values_offset + v;
    __global long *indices = indices_base + indices_offset + i;
    __global ${U} *keys = keys_base + keys_offset + line * ${count};
    __global int *places = places_base + places_offset + line * ${count};
    ${U} edge = 0;
    int sought = ${count};
% for shift in range(size - 8, -1, -8):
    for (int j = member; j < 256; j += ${group}) digits[j] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int j = member; j < ${length}; j += ${group}) {
        const ${U} k = key1(src[j * ${steps[0]}]);
% if shift + 8 < size:
        if ((k ^ edge) >> ${shift + 8}) continue;
% endif
        atomic_inc(&digits[(int)((k >> ${shift}) & 255)]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (member == 0) {
        int digit = 255, left = sought;
        for (; digit > 0 && digits[digit] < left; --digit) left -= digits[digit];
        found[0] = digit;
        found[1] = left;
        found[2] = 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    edge |= (${U})found[0] << ${shift};
    sought = found[1];
% endfor
    const int crowded = digits[(int)(edge & 255)] > sought;
    const int share = (${length} + ${group - 1}) / ${group};
    const int begin = min(member * share, (int)${length}), end = min(begin + share, (int)${length});
    int before = 0;
    if (crowded) {
        for (int j = begin; j < end; ++j) before += key1(src[j * ${steps[0]}]) == edge;
        counts[member] = before;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int j = member; j < ${length}; j += ${group}) {
        const ${U} k = key1(src[j * ${steps[0]}]);
        if (k < edge || (crowded && k == edge)) continue;
        const int at = atomic_inc(&found[2]);
        keys[at] = k;
        places[at] = j;
    }
    if (crowded) {
        before = 0;
        for (int j = 0; j < member; ++j) before += counts[j];
        for (int j = begin; j < end && before < sought; ++j) {
            if (key1(src[j * ${steps[0]}]) != edge) continue;
            keys[${count} - sought + before] = edge;
            places[${count} - sought + before] = j;
            ++before;
        }
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (int j = member; j < ${count}; j += ${group}) {
        const ${U} k = keys[j];
        const int place = places[j];
        int rank = 0;
        for (int n = 0; n < ${count}; ++n) {
            const ${U} other = keys[n];
            rank += other > k || (other == k && places[n] < place);
        }
        values[rank * ${steps[1]}] = src[place * ${steps[0]}];
        indices[rank * ${steps[2]}] = place;
    }
}
