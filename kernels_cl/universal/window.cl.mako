<%doc>
universal/window: one filter per channel, or the maximum or mean of windows; all else is arguments.

    dst[pixel][c] = post_ops(bias[c] + sum over taps of src * weights[tap][c])     (mode 0)
    dst[pixel][c] = post_ops(max, sum * scale of what lies in src)                 (modes 1 and 2)

Tensors  src, dst, e0, e1 (operands of post-ops): any pitches over (n, c, y, x). weights [tap][c], bias [c].
         Mode 0 reads the border of src, the others leave out what lies outside. counted: a mean's divisor,
         0 for the number of elements that lie inside, else the extents that it counts are those of counted_h, _w
Launch   global (blocks of `vw` channels, bands of tiles of `mx` pixels of a row, images)
Params   name     kernel name
         wg       local size
Tunables vw       channels of a block
         mx       pixels of a tile
</%doc>
<%namespace name="cd" file="/_common/codes.cl.mako"/>
<%
    V = vec_type("float", vw)
    def gather(k):
        return f"""\
            for (int m = 0; m < pixels; ++m) {{
                __global const float *e = e{k}_base + e{k}_offset + n * e{k}n + y * e{k}y + (x0 + m) * e{k}x + first * e{k}c;
                float *line = other + m * {vw};
                read_lanes(line, e, 0, 0, {vw});
                read_lanes(line + skipped, e + skipped * e{k}c, e{k}c, lanes - skipped, {vw} - skipped);
            }}"""
%>
#define VW ${vw}
${cd.define(vw)}
${cd.lanes(vw)}
${V} lanes_of(__global const float *s, const int pitch, const int lanes)
{
    float t[${vw}];
    for (int j = 0; j < ${vw}; ++j) t[j] = j < lanes ? s[j * pitch] : 0.0f;
    return vload${vw}(0, t);
}
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
    __global const float *weights,
    __global const float *bias,
    __global const float *e0_base, const int e0_offset,
    __global const float *e1_base, const int e1_offset,
    __global float *dst_base, const int dst_offset,
    const int mode, const int channels, const int height, const int width, const int tiles, const int band,
    const int sn, const int sc, const int sy, const int sx, const int src_height, const int src_width,
    const int kernel_y, const int kernel_x, const int stride_y, const int stride_x,
    const int dilation_y, const int dilation_x, const int pad_y, const int pad_x,
    const int counted, const int counted_y, const int counted_x,
    const int dn, const int dc, const int dy, const int dx,
    const int e0n, const int e0c, const int e0y, const int e0x,
    const int e1n, const int e1c, const int e1y, const int e1x,
${cd.params()})
{
${cd.decode()}\
    const int n = get_global_id(2), c0 = get_global_id(0) * ${vw};
    const int whole = sc == 1 && channels >= ${vw};
    const int first = whole ? min(c0, channels - ${vw}) : c0;
    const int skipped = c0 - first, lanes = min(${vw}, channels - first);
    __global const float *image = src_base + src_offset + n * sn + first * sc;
    float tile[${mx * vw}], other[${mx * vw}];
    const int stop = min(((int)get_global_id(1) + 1) * band, height * tiles);
    for (int item = get_global_id(1) * band; item < stop; ++item) {
        const int y = item / tiles, x0 = item % tiles * ${mx}, pixels = min(${mx}, width - x0);
        const int top = y * stride_y - pad_y;
        if (mode == 0) {
            ${V} begin = whole ? vload${vw}(0, bias + first) : lanes_of(bias + first, 1, lanes);
% for m in range(mx):
            ${V} a${m} = begin;
            const int x${m + 1}_ = (min(x0 + ${m}, width - 1) * stride_x - pad_x) * sx;
% endfor
            for (int ky = 0; ky < kernel_y; ++ky) {
                __global const float *line = image + (top + ky * dilation_y) * sy;
                __global const float *w = weights + ky * kernel_x * channels + first;
                for (int kx = 0; kx < kernel_x; ++kx, w += channels) {
                    __global const float *s = line + kx * dilation_x * sx;
                    if (whole) {
                        const ${V} tap = vload${vw}(0, w);
% for m in range(mx):
                        a${m} = fma(vload${vw}(0, s + x${m + 1}_), tap, a${m});
% endfor
                    } else {
                        const ${V} tap = lanes_of(w, 1, lanes);
% for m in range(mx):
                        a${m} = fma(lanes_of(s + x${m + 1}_, sc, lanes), tap, a${m});
% endfor
                    }
                }
            }
% for m in range(mx):
            vstore${vw}(a${m}, ${m}, tile);
% endfor
        } else {
            const int from_y = max(0, (dilation_y - 1 - top) / dilation_y);
            const int to_y = min(kernel_y, (src_height - top + dilation_y - 1) / dilation_y);
            const int high = counted ? min(kernel_y, (counted_y - top + dilation_y - 1) / dilation_y) : to_y - from_y;
            for (int m = 0; m < ${mx}; ++m) {
                const int left = min(x0 + m, width - 1) * stride_x - pad_x;
                const int from_x = max(0, (dilation_x - 1 - left) / dilation_x);
                const int to_x = min(kernel_x, (src_width - left + dilation_x - 1) / dilation_x);
                const int wide = counted ? min(kernel_x, (counted_x - left + dilation_x - 1) / dilation_x) : to_x - from_x;
                ${V} v = mode == 1 ? (${V})(-INFINITY) : (${V})(0.0f);
                for (int ky = from_y; ky < to_y; ++ky)
                    for (int kx = from_x; kx < to_x; ++kx) {
                        __global const float *s = image + (top + ky * dilation_y) * sy + (left + kx * dilation_x) * sx;
                        const ${V} t = whole ? vload${vw}(0, s) : lanes_of(s, sc, lanes);
                        v = mode == 1 ? (t > v || t != t ? t : v) : v + t;
                    }
                vstore${vw}(mode == 1 ? v : v / (float)(high * wide), m, tile);
            }
        }
${cd.apply("tile", "other", f"pixels * {vw}", gather)}
        __global float *d = dst_base + dst_offset + n * dn + y * dy + x0 * dx + first * dc;
        for (int m = 0; m < pixels; ++m) {
            if (dc == 1 && lanes == ${vw} && skipped == 0)
                vstore${vw}(vload${vw}(m, tile), 0, d + m * dx);
            else
                write_lanes(d + m * dx + skipped * dc, tile + m * ${vw} + skipped, dc, lanes - skipped);
        }
    }
}
