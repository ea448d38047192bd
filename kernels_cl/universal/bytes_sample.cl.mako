<%doc>
universal/bytes_sample: integers of 8 and 16 bits as sums of a few weighted ones along each axis, found in tables: resizing.

    dst[a0 a1 a2 a3] = towards zero(sum over taps t of weight * src[index0[a0][t0] index1[a1][t1] ...]), within the type

Tensors  src, dst: any pitches over four axes, the innermost of dst last
         index, weight: for axis k, from `start`k on, [position][tap]; a first index below 0 is `fill`. Products of
         weights, the last axis' first, and sums are rounded one by one
Launch   global (pieces of axis 3 / band, positions of the other axes)
Params   name     kernel name
         wg       local size
         direct   (an argument) axis 3 is copied as it is, and has no table
         whole    sums of integers, whose weights are whole numbers: `shift` bits of the sum lie behind the point
         low, high    limits of the type
Tunables vw       elements of a vector
         piece    elements of a tile, a multiple of vw
</%doc>
<%namespace name="bc" file="/_common/byte_codes.cl.mako"/>
#define VW ${vw}
${bc.define(vw)}
float typed_at(__global const uchar *s, const int type, const int at)
{
    return type == 0 ? s[at] : type == 1 ? ((__global const char *)s)[at] : type == 2 ? ((__global const ushort *)s)[at] : ((__global const short *)s)[at];
}
void add_weighted(float *tile, int *sums, const float *x, const float w, const int whole, const int count, const int begun)
{
    if (whole)
        for (int at = 0; at < count; ++at) sums[at] += (int)x[at] * (int)w;
    else if (begun)
        for (int at = 0; at < count; ++at) tile[at] = tile[at] + x[at] * w;
    else
        for (int at = 0; at < count; ++at) tile[at] = x[at] * w;
}
${group_size(wg)}
__kernel void ${name}(
    __global const uchar *src_base, const int src_offset,
    __global const int *index,
    __global const float *weight,
    __global uchar *dst_base, const int dst_offset,
    const int band, const int direct, const int whole, const int shift, const int type,
    const float fill, const float low, const float high,
    ${", ".join(f"const int extent{k}, const int taps{k}, const int start{k}, const int s_{k}, const int d_{k}" for k in range(4))})
{
#pragma OPENCL FP_CONTRACT OFF
    int rest = get_global_id(1);
    const int a2 = rest % extent2, a1 = rest / extent2 % extent1, a0 = rest / extent2 / extent1;
    const int size = size_of_type(type);
% for k in range(3):
    __global const int *i${k} = index + start${k} + a${k} * taps${k};
    __global const float *w${k} = weight + start${k} + a${k} * taps${k};
% endfor
    __global uchar *d = dst_base + (long)(dst_offset + a0 * d_0 + a1 * d_1 + a2 * d_2) * size;
    const int outside = i0[0] < 0 || i1[0] < 0 || i2[0] < 0;
    const int first = get_global_id(0) * band * ${piece}, stop = min(first + band * ${piece}, extent3);
    float tile[${piece}], row[${piece}];
    int sums[${piece}];
    for (int i = first; i < stop; i += ${piece}) {
        const int count = min(${piece}, stop - i), all = outside ? 0 : taps0 * taps1 * taps2;
        for (int at = 0; at < ${piece}; ++at) {
            tile[at] = 0.0f;
            sums[at] = 0;
        }
        for (int t = 0; t < all; ++t) {
            const int t2 = t % taps2, t1 = t / taps2 % taps1, t0 = t / taps2 / taps1;
            __global const uchar *s = src_base + (long)(src_offset + i0[t0] * s_0 + i1[t1] * s_1 + i2[t2] * s_2) * size;
            if (direct) {
                read_typed(row, s + i * s_3 * size, type, s_3, count, ${piece});
                add_weighted(tile, sums, row, w2[t2] * w1[t1] * w0[t0], whole, count, t);
            } else
                for (int at = 0; at < count; ++at) {
                    __global const int *i3 = index + start3 + (i + at) * taps3;
                    __global const float *w3 = weight + start3 + (i + at) * taps3;
                    for (int t3 = 0; t3 < taps3; ++t3) {
                        row[0] = typed_at(s, type, max(i3[t3], 0) * s_3);
                        add_weighted(tile + at, sums + at, row, w3[t3] * w2[t2] * w1[t1] * w0[t0], whole, 1, t + t3);
                    }
                }
        }
        for (int at = 0; at < count; ++at) {
            const int is_out = outside || (!direct && index[start3 + (i + at) * taps3] < 0);
            const float v = is_out ? fill : whole ? (float)(sums[at] / (1 << shift)) : tile[at];
            tile[at] = trunc(v > low ? (v < high ? v : high) : low);
        }
        write_typed(d + i * d_3 * size, tile, type, d_3, count);
    }
}
