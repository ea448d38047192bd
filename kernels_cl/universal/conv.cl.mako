<%doc>
universal/conv: convolutions and products with constant weights; window, channels, strides and post-ops are arguments.

    dst[pixel][o] = post_ops(bias[o] + sum over k of src[pixel + place(k)] * weights[o][k])

Tensors  src: at an element begins a window; its terms k are runs of `seg` elements at pitch `step`, of which
         run r lies at (r / runs) * rows_pitch + r % runs * runs_pitch
         weights: [group][block][k][nv * vw], bias: [group][block][nv * vw], zeros behind the last channel
         e0, e1: operands of post-ops, dst: any pitches over (n, c, y, x)
Launch   global (tiles of pixels / band, blocks of channels of all groups): a work-item copies the terms of `mr`
         pixels to registers' reach, kc at a time, so that all its addresses are constant, and multiplies them
Params   name     kernel name
         wg       local size
Tunables vw, nv   vectors of channels of a tile, and their elements
         mr       pixels of a tile
         kc       terms that are copied at once
</%doc>
<%namespace name="cd" file="/_common/codes.cl.mako"/>
<%
    V, wide = vec_type("float", vw), nv * vw
    def gather(k):
        return f"""\
            for (int m = 0; m < rows; ++m) {{
                const int p = p0 + m, q = p % image;
                __global const float *e = e{k}_base + e{k}_offset + channel * e{k}c;
                e += p / image * e{k}n + q / width * e{k}y + q % width * e{k}x;
                for (int j = 0; j < lanes; ++j) other[m * {wide} + j] = e[j * e{k}c];
            }}"""
%>
#define VW ${vw}
${cd.define(vw)}
void copy_terms(float *panel, __global const float *src, const int *pixel, const int from, const int terms, const int seg, const int step, const int runs, const int rows_pitch, const int runs_pitch)
{
    int run = from / seg, c = from % seg, at = 0;
    while (at < terms) {
        const int len = min(seg - c, terms - at);
        __global const float *first = src + run / runs * rows_pitch + run % runs * runs_pitch + c * step;
        for (int m = 0; m < ${mr}; ++m) {
            __global const float *s = first + pixel[m];
            float *d = panel + m * ${kc} + at;
            int j = 0;
            if (step == 1) {
                for (; j + 16 <= len; j += 16) vstore16(vload16(0, s + j), 0, d + j);
% for width in (8, 4):
                if (j + ${width} <= len) {
                    vstore${width}(vload${width}(0, s + j), 0, d + j);
                    j += ${width};
                }
% endfor
            }
            for (; j < len; ++j) d[j] = s[j * step];
        }
        at += len;
        c = 0;
        ++run;
    }
}
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
    __global const float *weights,
    __global const float *bias,
    __global const float *e0_base, const int e0_offset,
    __global const float *e1_base, const int e1_offset,
    __global float *dst_base, const int dst_offset,
    const int pixels, const int image, const int width, const int band,
    const int sn, const int sy, const int sx, const int group_pitch,
    const int dn, const int dc, const int dy, const int dx,
    const int terms, const int seg, const int step, const int runs, const int rows_pitch, const int runs_pitch,
    const int blocks, const int channels,
    const int e0n, const int e0c, const int e0y, const int e0x,
    const int e1n, const int e1c, const int e1y, const int e1x,
${cd.params()})
{
    const int block = get_global_id(1), group = block / blocks, c0 = block % blocks * ${wide};
    const int lanes = min(${wide}, channels - c0), channel = group * channels + c0;
    __global const float *src = src_base + src_offset + group * group_pitch;
    float panel[${mr * kc}], tile[${mr * wide}], other[${mr * wide}];
    const int last = min(((int)get_global_id(0) + 1) * band * ${mr}, pixels);
    for (int p0 = get_global_id(0) * band * ${mr}; p0 < last; p0 += ${mr}) {
        int pixel[${mr}], out[${mr}];
        const int rows = min(${mr}, pixels - p0);
        for (int m = 0; m < ${mr}; ++m) {
            const int p = min(p0 + m, pixels - 1), q = p % image;
            pixel[m] = p / image * sn + q / width * sy + q % width * sx;
        }
% for v in range(nv):
        const ${V} begin${v} = vload${vw}(block * ${nv} + ${v}, bias);
% for m in range(mr):
        ${V} a${m}_${v} = begin${v};
% endfor
% endfor
        __global const float *w = weights + (long)block * terms * ${wide};
        for (int from = 0; from < terms; from += ${kc}) {
            const int here = min(${kc}, terms - from);
            copy_terms(panel, src, pixel, from, here, seg, step, runs, rows_pitch, runs_pitch);
            for (int k = 0; k < here; ++k, w += ${wide}) {
% for v in range(nv):
                const ${V} b${v} = vload${vw}(${v}, w);
% endfor
% for m in range(mr):
% for v in range(nv):
                a${m}_${v} = fma((${V})(panel[${m * kc} + k]), b${v}, a${m}_${v});
% endfor
% endfor
            }
        }
% for m in range(mr):
% for v in range(nv):
        vstore${vw}(a${m}_${v}, ${m * nv + v}, tile);
% endfor
% endfor
        if (post_ops > 0) {
            for (int j = 0; j < ${mr * wide}; ++j) other[j] = 0;
        }
${cd.apply("tile", "other", mr * wide, gather)}
        for (int m = 0; m < rows; ++m) {
            const int p = p0 + m, q = p % image;
            __global float *d = dst_base + dst_offset + p / image * dn + q / width * dy + q % width * dx + channel * dc;
            if (dc == 1 && lanes == ${wide}) {
% for v in range(nv):
                vstore${vw}(vload${vw}(m * ${nv} + ${v}, tile), ${v}, d);
% endfor
            } else
                for (int j = 0; j < lanes; ++j) d[j * dc] = tile[m * ${wide} + j];
        }
    }
}
