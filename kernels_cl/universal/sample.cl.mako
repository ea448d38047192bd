<%doc>
universal/sample: sums of a few weighted elements along each axis, found in tables: resizing and padding.

    dst[a0 a1 a2 a3] = post_ops(sum over taps t of weight * src[index0[a0][t0] index1[a1][t1] ...])

Tensors  src, e0, e1 (operands of post-ops), dst: any pitches over four axes, the innermost of dst last
         index, weight: for axis k, from `start`k on, [position][tap]; a first index below 0 is `fill`. Products of
         weights, the last axis' first, and sums are rounded one by one
Launch   global (pieces of axis 3 / band, positions of the other axes)
Params   name     kernel name
         wg       local size
         direct   (an argument) axis 3 is copied as it is, and has no table
Tunables vw       elements of a vector
         piece    elements of a tile, a multiple of vw
</%doc>
<%namespace name="cd" file="/_common/codes.cl.mako"/>
<%
    def gather(k):
        return f"""\
            for (int at = 0; at < count; ++at) other[at] = e{k}[(i + at) * e{k}_3];"""
%>
#define VW ${vw}
${cd.define(vw)}
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
    __global const int *index,
    __global const float *weight,
    __global const float *e0_base, const int e0_offset,
    __global const float *e1_base, const int e1_offset,
    __global float *dst_base, const int dst_offset,
    const int band, const int direct, const float fill,
% for k in range(4):
    const int extent${k}, const int taps${k}, const int start${k},
    const int s_${k}, const int e0_${k}, const int e1_${k}, const int d_${k},
% endfor
${cd.params()})
{
#pragma OPENCL FP_CONTRACT OFF
${cd.decode()}\
    int rest = get_global_id(1);
    const int a2 = rest % extent2, a1 = rest / extent2 % extent1, a0 = rest / extent2 / extent1;
% for k in range(3):
    __global const int *i${k} = index + start${k} + a${k} * taps${k};
    __global const float *w${k} = weight + start${k} + a${k} * taps${k};
% endfor
% for k in range(2):
    __global const float *e${k} = e${k}_base + e${k}_offset + a0 * e${k}_0 + a1 * e${k}_1 + a2 * e${k}_2;
% endfor
    __global float *d = dst_base + dst_offset + a0 * d_0 + a1 * d_1 + a2 * d_2;
    const int outside = i0[0] < 0 || i1[0] < 0 || i2[0] < 0;
    const int first = get_global_id(0) * band * ${piece}, stop = min(first + band * ${piece}, extent3);
    float tile[${piece}], other[${piece}];
    for (int i = first; i < stop; i += ${piece}) {
        const int count = min(${piece}, stop - i);
        for (int at = 0; at < ${piece}; ++at) tile[at] = fill;
        const int all = outside ? 0 : taps0 * taps1 * taps2;
        for (int t = 0; t < all; ++t) {
            const int t2 = t % taps2, t1 = t / taps2 % taps1, t0 = t / taps2 / taps1;
            __global const float *s = src_base + src_offset + i0[t0] * s_0 + i1[t1] * s_1 + i2[t2] * s_2;
            if (direct) {
                const float w = w2[t2] * w1[t1] * w0[t0];
                int at = 0;
                if (s_3 == 1)
                    for (; at + ${vw} <= count; at += ${vw}) {
                        const float${vw} v = w * vload${vw}(0, s + i + at);
                        vstore${vw}(t ? vload${vw}(0, tile + at) + v : v, 0, tile + at);
                    }
                for (; at < count; ++at) {
                    const float v = w * s[(i + at) * s_3];
                    tile[at] = t ? tile[at] + v : v;
                }
            } else
                for (int at = 0; at < count; ++at) {
                    __global const int *i3 = index + start3 + (i + at) * taps3;
                    __global const float *w3 = weight + start3 + (i + at) * taps3;
                    if (i3[0] >= 0)
                        for (int t3 = 0; t3 < taps3; ++t3) {
                            const float v = s[i3[t3] * s_3] * (w3[t3] * w2[t2] * w1[t1] * w0[t0]);
                            tile[at] = t + t3 ? tile[at] + v : v;
                        }
                }
        }
        if (post_ops > 0)
            for (int at = 0; at < ${piece}; ++at) other[at] = 0.0f;
${cd.apply("tile", "other", "(count + VW - 1) / VW * VW", gather)}
        int at = 0;
        if (d_3 == 1)
            for (; at + ${vw} <= count; at += ${vw}) vstore${vw}(vload${vw}(0, tile + at), 0, d + i + at);
        for (; at < count; ++at) d[(i + at) * d_3] = tile[at];
    }
}
