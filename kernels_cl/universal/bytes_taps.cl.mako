<%doc>
universal/bytes_taps: a phase of a transposed convolution of bytes by real weights, summed in a given order.

    dst[pixel][o] = rounded((sum over taps of (sum over channels of real(src) * weights) + offset[o]) / step_out)

Sums are those of RealTaps (clnn/arith/real_taps.py): of each tap, channels one after the other, `apart` at a time, then
these sums, then the taps.

Tensors  src: at an element is the input of the first tap; tap (y, x) lies y * tap_y + x * tap_x on, channel c
         c * pc. flip: 128 of signed bytes
         weights: [group][block][tap][channel][nv * vw], offsets: [group][block][nv * vw], zeros behind the last channel
         dst: any pitches over (n, c, y, x)
Launch   global (tiles of pixels / band, blocks of all groups)
Params   name     kernel name
         wg       local size
         zero_in, step_in             of src
         step_out, low, high, zero    scale of the result, its limits, its zero point
         quads    products are rounded, and added up by fours, the last two and the last one by themselves
Tunables vw, nv   vectors of channels of a tile, and their elements
         mr       pixels of a tile; tiles of fewer are computed as mr / 2 or one
</%doc>
<%namespace name="bc" file="/_common/byte_codes.cl.mako"/>
<%!
from clnn.codegen.filters import S8_ZERO
from clnn.ops.universal.byte_taps import APART
%>
<%
    F, U, wide = vec_type("float", vw), vec_type("uchar", vw), nv * vw
    half = max(1, mr // 2)
    heights = sorted({1, half, mr})
    def is_for(height):
        return f"if (held == {height}) " if height < mr else ""
    chosen = ("\n" + " " * 24 + "else ").join(f"{is_for(h)}tap_sums_{h}(into, panel, w, count);" for h in heights)
%>
#define VW ${vw}
${bc.define(vw)}
#pragma OPENCL FP_CONTRACT OFF
void real_bytes(float *d, __global const uchar *s, const int pitch, const int count, const int flip, const int zero, const float step)
{
    int j = 0;
    if (pitch == 1)
        for (; j + ${vw} <= count; j += ${vw})
            vstore${vw}((convert_${F}(${load("uchar", vw, "s", "j")} ^ (${U})(flip)) - (float)(zero + flip)) * step, 0, d + j);
    for (; j < count; ++j) d[j] = (float)((s[j * pitch] ^ flip) - flip - zero) * step;
}
% for height in heights:
void tap_sums_${height}(float *d, const float *panel, __global const float *w, const int count)
{
% for m in range(height):
    ${F} ${", ".join(f"a{m}_{v} = ({F})(0.0f)" for v in range(nv))};
% endfor
    for (int k = 0; k < count; ++k, w += ${wide}) {
% for v in range(nv):
        const ${F} b${v} = vload${vw}(${v}, w);
% endfor
% for m in range(height):
% for v in range(nv):
        a${m}_${v} = fma((${F})(panel[${m * APART} + k]), b${v}, a${m}_${v});
% endfor
% endfor
    }
% for m in range(height):
% for v in range(nv):
    vstore${vw}(vload${vw}(${m * nv + v}, d) + a${m}_${v}, ${m * nv + v}, d);
% endfor
% endfor
}
% endfor
void quad_sums(float *d, const float *panel, __global const float *w, const int channels)
{
    for (int first = 0; first < channels;) {
        const int left = channels - first, count = left >= 4 ? 4 : left == 3 ? 2 : left;
        for (int j = 0; j < ${wide}; ++j) {
            float part = 0.0f;
            for (int k = first; k < first + count; ++k) part += panel[k] * w[k * ${wide} + j];
            d[j] += part;
        }
        first += count;
    }
}
${group_size(wg)}
__kernel void ${name}(
    __global const uchar *src_base, const int src_offset,
    __global const float *weights, __global const float *offsets,
    __global uchar *dst_base, const int dst_offset,
    const int pixels, const int height, const int width, const int band, const int flip,
    const int sn, const int sy, const int sx, const int group_pitch,
    const int dn, const int dc, const int dy, const int dx,
    const int terms, const int pc, const int high_taps, const int wide_taps, const int tap_y, const int tap_x,
    const int blocks, const int channels, const int quads, const int dst_type,
    const int zero_in, const float step_in, const float step_out, const float low, const float high, const float zero)
{
    const int group = get_global_id(1) / blocks, block = get_global_id(1) % blocks;
    __global const uchar *src = src_base + src_offset + group * group_pitch;
    __global const float *shift = offsets + get_global_id(1) * ${wide};
    const int lanes = min(${wide}, channels - block * ${wide}), channel = group * channels + block * ${wide};
    const int last = min(((int)get_global_id(0) + 1) * band * ${mr}, pixels);
    float panel[${mr * APART}], total[${mr * wide}], part[${mr * wide}];
    int pixel[${mr}], made[${mr}];
    for (int p0 = get_global_id(0) * band * ${mr}; p0 < last; p0 += ${mr}) {
        const int rows = min(${mr}, pixels - p0), held = rows > ${half} ? ${mr} : rows > 1 ? ${half} : 1;
        for (int m = 0; m < held; ++m) {
            const int p = min(p0 + m, pixels - 1), n = p / width / height, y = p / width % height, x = p % width;
            pixel[m] = n * sn + y * sy + x * sx;
            made[m] = n * dn + y * dy + x * dx;
        }
        for (int k = 0; k < ${mr * wide}; ++k) total[k] = 0.0f;
        __global const float *w = weights + (long)get_global_id(1) * high_taps * wide_taps * terms * ${wide};
        for (int tap = 0; tap < high_taps * wide_taps; ++tap) {
            __global const uchar *s = src + tap / wide_taps * tap_y + tap % wide_taps * tap_x;
            const int apart = quads || terms > ${APART};
            float *into = apart ? part : total;
            if (apart)
                for (int k = 0; k < ${mr * wide}; ++k) part[k] = 0.0f;
            for (int from = 0; from < terms; from += ${APART}) {
                const int count = min(${APART}, terms - from);
                for (int m = 0; m < held; ++m) real_bytes(panel + m * ${APART}, s + pixel[m] + from * pc, pc, count, flip, zero_in, step_in);
                if (quads)
                    for (int m = 0; m < held; ++m) quad_sums(into + m * ${wide}, panel + m * ${APART}, w, count);
                else {
                        ${chosen}
                }
                w += count * ${wide};
            }
            if (apart)
                for (int k = 0; k < ${mr * wide}; ++k) total[k] += part[k];
        }
        for (int m = 0; m < rows; ++m) {
% for v in range(nv):
            ${F} x${v} = (vload${vw}(${v}, total + m * ${wide}) + vload${vw}(${v}, shift)) / (${F})(step_out);
            x${v} = x${v} > (${F})(low - zero) ? x${v} : (${F})(low - zero);
            x${v} = x${v} < (${F})(high - zero) ? x${v} : (${F})(high - zero);
            x${v} = (x${v} + (${F})(${scalar(float(S8_ZERO), "float")})) - (${F})(${scalar(float(S8_ZERO), "float")}) + (${F})(zero);
            vstore${vw}(x${v}, ${v}, total + m * ${wide});
% endfor
            write_typed(dst_base + dst_offset + made[m] + channel * dc, total + m * ${wide}, dst_type, dc, lanes);
        }
    }
}
