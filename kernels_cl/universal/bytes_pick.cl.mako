<%doc>
universal/bytes_pick: elements of any size that tables name along each axis: resizing to the nearest, and padding.

    dst[a0 a1 a2 a3] = src[index0[a0] index1[a1] index2[a2] index3[a3]]

Tensors  src, dst: any pitches over four axes, the innermost of dst last
         index: for axis k, from `start`k on; an index below 0 is `fill`
Launch   global (pieces of axis 3, positions of the other axes)
Params   name     kernel name
         wg       local size
         size     (an argument) bytes of an element; direct: axis 3 is copied as it is
Tunables piece    elements of a piece
</%doc>
<%!
PICKED = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}
%>
% for size, ctype in PICKED.items():
void pick_${ctype}(__global uchar *to, __global const uchar *from, __global const int *index, const int fill, const int outside, const int direct, const int dp, const int sp, const int count)
{
    __global ${ctype} *d = (__global ${ctype} *)to;
    __global const ${ctype} *s = (__global const ${ctype} *)from;
    if (outside)
        for (int i = 0; i < count; ++i) d[i * dp] = fill;
    else if (direct && dp == 1 && sp == 1)
        for (int i = 0; i < count; ++i) d[i] = s[index[0] + i];
    else
        for (int i = 0; i < count; ++i) d[i * dp] = index[i] < 0 ? (${ctype})fill : s[index[i] * sp];
}
% endfor
${group_size(wg)}
__kernel void ${name}(
    __global const uchar *src_base, const int src_offset,
    __global const int *index,
    __global uchar *dst_base, const int dst_offset,
    const int size, const int direct, const int fill,
    ${", ".join(f"const int extent{k}, const int start{k}, const int s_{k}, const int d_{k}" for k in range(4))})
{
    int rest = get_global_id(1);
    const int a2 = rest % extent2, a1 = rest / extent2 % extent1, a0 = rest / extent2 / extent1;
% for k in range(3):
    const int i${k} = index[start${k} + a${k}];
% endfor
    const int outside = i0 < 0 || i1 < 0 || i2 < 0;
    const int first = get_global_id(0) * ${piece}, count = min(${piece}, extent3 - first);
    __global const uchar *s = src_base + (long)(src_offset + (outside ? 0 : i0 * s_0 + i1 * s_1 + i2 * s_2)) * size;
    __global uchar *d = dst_base + (long)(dst_offset + a0 * d_0 + a1 * d_1 + a2 * d_2 + first * d_3) * size;
    __global const int *along = index + start3 + first;
    switch (size) {
% for size, ctype in PICKED.items():
    case ${size}:
        pick_${ctype}(d, s, along, fill, outside, direct, d_3, s_3, count);
        break;
% endfor
    }
}
