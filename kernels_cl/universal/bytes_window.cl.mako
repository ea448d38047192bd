<%doc>
universal/bytes_window: one filter of bytes per channel, or the maximum or mean of windows; all else is arguments.

    dst[pixel][c] = steps(rounded((start[c] + sum over taps of src * weights[tap][c]) * factor[c]))     (mode 1 and 2)
    dst[pixel][c] = steps(max), steps(rounded(sum * factor of the count of elements))                   (mode 3 and 4)

Tensors  src, dst, e0: any pitches over (n, c, y, x). flip: 128 of signed bytes, which count as unsigned ones, moved up
         by that. weights [tap][c], floats; constants [4][c] as universal/bytes_conv has them, of each channel
         Filters read the border of src, the others leave out what lies outside. counted: as in universal/window
Launch   global (blocks of `vw` channels, bands of tiles of `mx` pixels of a row, images)
Params   name     kernel name
         wg       local size
         mode     1: requantised, 2: as written (arith/quantised.py), 3: maximum, 4: mean
         step_in, zero_in             of a mean: scale and zero point of what it is of
         step_out, low, high, zero    scale of the result, its limits, its zero point
Tunables vw       channels of a block
         mx       pixels of a tile
         vbmi     {0,1}: of _common/byte_results
</%doc>
<%namespace name="bc" file="/_common/byte_codes.cl.mako"/>
<%namespace name="br" file="/_common/byte_results.cl.mako"/>
<%!
from clnn.codegen.filters import S8_ZERO
from clnn.ops.universal.byte_steps import FEW
%>
<%
    F, I, U = (vec_type(t, vw) for t in ("float", "int", "uchar"))
    def gather(k):
        return f"""\
            for (int m = 0; m < pixels; ++m) {{
                __global const uchar *e = e{k}_base + e{k}_offset + n * e{k}n + y * e{k}y + (x0 + m) * e{k}x + first * e{k}c;
                read_typed(other + m * {vw}, e, e{k}_type, e{k}c, lanes, {vw});
            }}"""
%>
#define VW ${vw}
${bc.define(vw)}
${br.define(vw, vbmi)}
${F} whole_at(__global const uchar *s, const int flip)
{
    return convert_${F}(${load("uchar", vw, "s", "0")} ^ (${U})(flip));
}
${F} bytes_at(__global const uchar *s, const int pitch, const int lanes, const int flip)
{
    if (pitch == 1 && lanes == ${vw}) return whole_at(s, flip);
    float t[${vw}];
    for (int j = 0; j < ${vw}; ++j) t[j] = j < lanes ? s[j * pitch] ^ flip : 0;
    return vload${vw}(0, t);
}
${F} floats_at(__global const float *s, const int lanes)
{
    if (lanes == ${vw}) return vload${vw}(0, s);
    float t[${vw}];
    for (int j = 0; j < ${vw}; ++j) t[j] = j < lanes ? s[j] : 0.0f;
    return vload${vw}(0, t);
}
#pragma OPENCL FP_CONTRACT OFF
void bytes_of_windows(float *t, __global uchar *d, const int dx, const int pixels, const int way, __global const float *table, __global const int *constants, const int channels, const int lanes, const int mode, const float step_out, const float low, const float high, const float zero)
{
    __global const float *rows = (__global const float *)constants;
    const ${I} start = as_${I}(floats_at(rows, lanes));
    const ${F} factor = floats_at(rows + channels, lanes), rest = floats_at(rows + 2 * channels, lanes), offset = floats_at(rows + 3 * channels, lanes);
    for (int m = 0; m < pixels; ++m) {
        const ${F} x = moved_steps(convert_${F}(convert_${I}(vload${vw}(m, t)) + start), factor, rest, offset, mode, step_out, low - zero, high - zero);
        if (way) put_bytes(d + m * dx, x, (int)zero, way == 2, table, lanes);
        else vstore${vw}(x - (${F})(${scalar(float(S8_ZERO), "float")}) + (${F})(zero), m, t);
    }
}
void mean_of_bytes(float *t, const int inside, const int held, const int flip, const float step_in, const float zero_in, const float step_out, const float low, const float high, const float zero)
{
    const float count = (float)max(held, 1), factor = step_in / (step_out * count);
    ${F} x = (vload${vw}(0, t) - (${F})((float)(flip * inside) + zero_in * (float)held)) * (${F})(factor);
    x = x > (${F})(low - zero) ? x : (${F})(low - zero);
    x = x < (${F})(high - zero) ? x : (${F})(high - zero);
    x = (x + (${F})(${scalar(float(S8_ZERO), "float")})) - (${F})(${scalar(float(S8_ZERO), "float")}) + (${F})(zero);
    vstore${vw}(x, 0, t);
}
${group_size(wg)}
__kernel void ${name}(
    __global const uchar *src_base, const int src_offset,
    __global const float *weights,
    __global const int *constants,
    __global const float *table,
    __global const uchar *e0_base, const int e0_offset,
    __global uchar *dst_base, const int dst_offset,
    const int mode, const int channels, const int height, const int width, const int tiles, const int band, const int flip,
    const int sn, const int sc, const int sy, const int sx, const int src_height, const int src_width,
    const int kernel_y, const int kernel_x, const int stride_y, const int stride_x,
    const int dilation_y, const int dilation_x, const int pad_y, const int pad_x,
    const int counted, const int counted_y, const int counted_x,
    const int dn, const int dc, const int dy, const int dx, const int dst_type,
    const float step_in, const float zero_in, const float step_out, const float low, const float high, const float zero,
    const int e0_type, const int e0n, const int e0c, const int e0y, const int e0x,
${bc.params(FEW)})
{
${bc.decode(FEW)}\
    const int way = ${br.way()};
    const int n = get_global_id(2), first = get_global_id(0) * ${vw}, lanes = min(${vw}, channels - first);
    __global const uchar *image = src_base + src_offset + n * sn + first * sc;
    float tile[${mx * vw}], other[${mx * vw}];
    const int stop = min(((int)get_global_id(1) + 1) * band, height * tiles);
    for (int at_tile = get_global_id(1) * band; at_tile < stop; ++at_tile) {
        const int y = at_tile / tiles, x0 = at_tile % tiles * ${mx}, pixels = min(${mx}, width - x0);
        const int top = y * stride_y - pad_y;
        __global uchar *d = dst_base + dst_offset + n * dn + y * dy + x0 * dx + first * dc;
        if (mode < 3) {
% for m in range(mx):
            ${F} a${m} = (${F})(0.0f);
            const int x${m + 1}_ = (min(x0 + ${m}, width - 1) * stride_x - pad_x) * sx;
% endfor
            const int full = sc == 1 && lanes == ${vw};
% for test, tap, element in (("full", f"vload{vw}(0, w)", "whole_at({}, flip)"), ("!full", "floats_at(w, lanes)", "bytes_at({}, sc, lanes, flip)")):
            if (${test})
                for (int ky = 0; ky < kernel_y; ++ky) {
                    __global const uchar *line = image + (top + ky * dilation_y) * sy;
                    __global const float *w = weights + ky * kernel_x * channels + first;
                    for (int kx = 0; kx < kernel_x; ++kx, w += channels) {
                        __global const uchar *s = line + kx * dilation_x * sx;
                        const ${F} tap = ${tap};
% for m in range(mx):
                        a${m} = fma(${element.format(f"s + x{m + 1}_")}, tap, a${m});
% endfor
                    }
                }
% endfor
% for m in range(mx):
            vstore${vw}(a${m}, ${m}, tile);
% endfor
            bytes_of_windows(tile, d, dx, pixels, way, table, constants + first, channels, lanes, mode, step_out, low, high, zero);
            if (way) continue;
        } else {
            const int from_y = max(0, (dilation_y - 1 - top) / dilation_y);
            const int to_y = min(kernel_y, (src_height - top + dilation_y - 1) / dilation_y);
            const int tall = counted ? min(kernel_y, (counted_y - top + dilation_y - 1) / dilation_y) : to_y - from_y;
            for (int m = 0; m < pixels; ++m) {
                const int left = min(x0 + m, width - 1) * stride_x - pad_x;
                const int from_x = max(0, (dilation_x - 1 - left) / dilation_x);
                const int to_x = min(kernel_x, (src_width - left + dilation_x - 1) / dilation_x);
                const int wide = counted ? min(kernel_x, (counted_x - left + dilation_x - 1) / dilation_x) : to_x - from_x;
                ${F} v = (${F})(0.0f);
                for (int ky = from_y; ky < to_y; ++ky)
                    for (int kx = from_x; kx < to_x; ++kx) {
                        __global const uchar *s = image + (top + ky * dilation_y) * sy + (left + kx * dilation_x) * sx;
                        const ${F} t = bytes_at(s, sc, lanes, flip);
                        v = mode == 3 ? (t > v ? t : v) : v + t;
                    }
                vstore${vw}(mode == 3 ? v - (float)flip : v, m, tile);
                if (mode == 4) mean_of_bytes(tile + m * ${vw}, (to_y - from_y) * (to_x - from_x), tall * wide, flip, step_in, zero_in, step_out, low, high, zero);
            }
        }
${bc.apply("tile", "other", f"pixels * {vw}", gather, FEW)}
        for (int m = 0; m < pixels; ++m) write_typed(d + m * dx, tile + m * ${vw}, dst_type, dc, lanes);
    }
}
