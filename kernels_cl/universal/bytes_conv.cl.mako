<%doc>
universal/bytes_conv: convolutions and products of bytes with constant weights; all else is arguments.

    sum[pixel][o] = start[o] + sum over k of src[pixel + place(k)] * weights[o][k]
    dst[pixel][o] = steps(rounded(sum * factor[o], as `mode` says))

Tensors  src: at an element begins a window; its terms k are runs of `seg` bytes at pitch `step`, of which
         run r lies at (r / runs) * rows_pitch + r % runs * runs_pitch. flip: 128 of signed bytes, which are
         multiplied as unsigned ones, moved up by that. size, at: of elements of so many bytes this one is read; all other
         places are counted in bytes
         weights: [group][block][limb][word][nv * vw] words of four terms each; wider weights are sums of limbs
         constants: [group][block][4][nv * vw], what sums begin with, and bits of floats: the factor, what it lacks, the
         bias. Zeros behind the last channel
         table: results of bytes, floats, then as bytes. e0, dst: any pitches over (n, c, y, x)
Launch   as universal/conv has it
Params   name     kernel name
         wg       local size
         mode     0: sums as they are, int; 1: requantised, 2: as written (arith/quantised.py)
         step_out, low, high, zero    scale of the result, its limits, its zero point
Tunables vw, nv   vectors of channels of a tile, and their elements
         mr       pixels of a tile; tiles of fewer are computed as mr / 2 or one
         kc       terms that are copied at once, whole words
         most     blocks that share a panel
         dot      how four products are added (_common/dot.cl.mako)
         vbmi     {0,1}: of _common/byte_results
</%doc>
<%namespace name="bc" file="/_common/byte_codes.cl.mako"/>
<%namespace name="br" file="/_common/byte_results.cl.mako"/>
<%namespace name="dt" file="/_common/dot.cl.mako"/>
<%!
from clnn.codegen.filters import small_vector
from clnn.ops.universal.byte_steps import FEW
%>
<%
    F, I, wide, words = vec_type("float", vw), vec_type("int", vw), nv * vw, kc // 4
    assert kc % 4 == 0, kc
    half = max(1, mr // 2)
    shapes = sorted({(1, nv), (half, nv), (mr, 1), (mr, nv)})
    def is_for(height, vectors):
        if height < mr:
            return f"if (held == {height}) "
        return f"if (lanes <= {vw}) " if vectors < nv else ""
    def chosen(arguments):
        lines = (f"{is_for(*shape)}byte_sums_{shape[0]}_{shape[1]}({arguments});" for shape in shapes)
        return ("\n" + " " * 20 + "else ").join(lines)
    def copied(width, at):
        return small_vector(f"uchar{width}", "to", at, "", "__private") + " = " + small_vector(f"uchar{width}", "s", at) + ";"
    def gather(k):
        return f"""\
                for (int m = 0; m < rows; ++m) {{
                    __global const uchar *e = e{k}_base + e{k}_offset + channel * e{k}c;
                    e += image_of[m] * e{k}n + y_of[m] * e{k}y + x_of[m] * e{k}x;
                    read_typed(other + m * {wide}, e, e{k}_type, e{k}c, lanes, {wide});
                }}"""
%>
#define VW ${vw}
${bc.define(vw)}
${br.define(vw, vbmi)}
void copy_bytes(uchar *to, __global const uchar *s, const int count)
{
    int j = 0;
% for width in (16, 8, 4):
    ${"" if width == 16 else "else "}if (count >= ${width}) {
        for (; j + ${width} <= count; j += ${width}) ${copied(width, "j")}
        if (j < count) ${copied(width, f"count - {width}")}
    }
% endfor
    else
        for (; j < count; ++j) to[j] = s[j];
}
void copy_byte_terms(uchar *panel, __global const uchar *src, const int *pixel, const int rows, const int from, const int terms, const int seg, const int step, const int runs, const int rows_pitch, const int runs_pitch)
{
    int row = from / seg / runs, run = from / seg % runs, c = from % seg;
    for (int at = 0; at < terms;) {
        const int len = min(seg - c, terms - at);
        __global const uchar *first = src + row * rows_pitch + run * runs_pitch + c * step;
        uchar *d = panel + at;
        if (step != 1 || len == 1)
            for (int m = 0; m < rows; ++m)
                for (int j = 0; j < len; ++j) d[m * ${kc} + j] = first[pixel[m] + j * step];
        else
            for (int m = 0; m < rows; ++m) copy_bytes(d + m * ${kc}, first + pixel[m], len);
        at += len;
        c = 0;
        if (++run == runs) {
            run = 0;
            ++row;
        }
    }
    for (int m = 0; m < rows; ++m)
        for (int at = terms; at < (terms + 3 & ~3); ++at) panel[m * ${kc} + at] = 0;
}
% for height, vectors in shapes:
void byte_sums_${height}_${vectors}(int *d, const int *begin, const int pitch, const int *panel, __global const int *w, const int words)
{
% for m in range(height):
% for v in range(vectors):
    ${I} a${m}_${v} = vload${vw}(${v}, begin + ${m} * pitch);
% endfor
% endfor
    for (int k = 0; k < words; ++k, w += ${wide}) {
% for v in range(vectors):
        const ${I} b${v} = vload${vw}(${v}, w);
% endfor
% for m in range(height):
        {
            const ${I} x = (${I})(panel[${m * words} + k]);
% for v in range(vectors):
            ${dt.add(dot, vw, f"a{m}_{v}", "x", f"b{v}")}
% endfor
        }
% endfor
    }
% for m in range(height):
% for v in range(vectors):
    vstore${vw}(a${m}_${v}, ${m * nv + v}, d);
% endfor
% endfor
}
% endfor
#pragma OPENCL FP_CONTRACT OFF
void bytes_of_sums(float *t, const int *sums, __global const float *rows, const int mode, const float step_out, const float low, const float high, const float zero, const int count, const int vectors)
{
    for (int v = vectors; v < ${nv}; ++v)
        for (int m = 0; m < count; ++m) vstore${vw}((${F})(0.0f), m * ${nv} + v, t);
    for (int v = 0; v < vectors; ++v) {
        const ${F} factor = vload${vw}(v + ${nv}, rows), rest = vload${vw}(v + ${2 * nv}, rows), offset = vload${vw}(v + ${3 * nv}, rows);
        for (int m = 0; m < count; ++m)
            vstore${vw}(whole_steps(convert_${F}(vload${vw}(m * ${nv} + v, sums)), factor, rest, offset, mode, step_out, low, high, zero), m * ${nv} + v, t);
    }
}
void put_sums(__global uchar *d, const int *at, const int *sums, __global const float *rows, const int mode, const float step_out, const float low, const float high, const float zero, const int count, const int lanes, const int looks, __global const float *table)
{
    for (int v = 0; v * ${vw} < lanes; ++v) {
        const ${F} factor = vload${vw}(v + ${nv}, rows), rest = vload${vw}(v + ${2 * nv}, rows), offset = vload${vw}(v + ${3 * nv}, rows);
        for (int m = 0; m < count; ++m) {
            const ${F} x = moved_steps(convert_${F}(vload${vw}(m * ${nv} + v, sums)), factor, rest, offset, mode, step_out, low - zero, high - zero);
            put_bytes(d + at[m] + v * ${vw}, x, (int)zero, looks, table, lanes - v * ${vw});
        }
    }
}
${group_size(wg)}
__kernel void ${name}(
    __global const uchar *src_base, const int src_offset,
    __global const int *weights,
    __global const int *constants,
    __global const float *table,
    __global const uchar *e0_base, const int e0_offset,
    __global uchar *dst_base, const int dst_offset,
    const int pixels, const int height, const int width, const int band, const int across, const int flip, const int size, const int at,
    const int sn, const int sy, const int sx, const int group_pitch,
    const int dn, const int dc, const int dy, const int dx,
    const int terms, const int seg, const int step, const int runs, const int rows_pitch, const int runs_pitch,
    const int blocks, const int span, const int channels, const int limbs, const int all_words,
    const int mode, const int dst_type, const float step_out, const float low, const float high, const float zero,
    const int e0_type, const int e0n, const int e0c, const int e0y, const int e0x,
${bc.params(FEW)})
{
${bc.decode(FEW)}\
    const int way = ${br.way()};
    const int along = across ? get_global_id(1) : get_global_id(0), over = across ? get_global_id(0) : get_global_id(1);
    const int spans = (blocks + span - 1) / span, group = over / spans;
    const int first = over % spans * span, here = min(span, blocks - first);
    __global const uchar *src = src_base + (long)src_offset * size + at + group * group_pitch;
    int panel[${mr * words}], sums[${most * mr * wide}];
    float tile[${mr * wide}], other[${mr * wide}];
    int pixel[${mr}], image_of[${mr}], y_of[${mr}], x_of[${mr}], made[${mr}];
    const int last = min((along + 1) * band * ${mr}, pixels);
    for (int p0 = along * band * ${mr}; p0 < last; p0 += ${mr}) {
        const int rows = min(${mr}, pixels - p0), held = rows > ${half} ? ${mr} : rows > 1 ? ${half} : 1;
        int n = p0 / width / height, y = p0 / width % height, x = p0 % width;
        for (int m = 0; m < held; ++m) {
            image_of[m] = n;
            y_of[m] = y;
            x_of[m] = x;
            pixel[m] = n * sn + y * sy + x * sx;
            made[m] = n * dn + y * dy + x * dx;
            if (p0 + m + 1 < pixels && ++x == width) {
                x = 0;
                if (++y == height) {
                    y = 0;
                    ++n;
                }
            }
        }
        for (int from = 0; from < terms || from == 0; from += ${kc}) {
            const int count = min(${kc}, terms - from), words = (count + 3) / 4;
            copy_byte_terms((uchar *)panel, src, pixel, held, from, count, seg, step, runs, rows_pitch, runs_pitch);
            if (flip)
                for (int m = 0; m < held; ++m)
                    for (int k = 0; k < words; ++k) panel[m * ${words} + k] ^= (int)0x80808080;
            for (int b = 0; b < here; ++b) {
                const int block = group * blocks + first + b, lanes = channels - (first + b) * ${wide};
                __global const int *start = constants + block * ${4 * wide};
                int *made_of = sums + b * ${mr * wide}, shift[${wide}];
% for v in range(nv):
                vstore${vw}(vload${vw}(${v}, start), ${v}, shift);
% endfor
                for (int limb = 0; limb < limbs; ++limb) {
                    const int begun = from > 0 || limb > 0, pitch = begun ? ${wide} : 0;
                    const int *begin = begun ? made_of : shift;
                    __global const int *w = weights + ((long)(block * limbs + limb) * all_words + from / 4) * ${wide};
                    ${chosen("made_of, begin, pitch, panel, w, words")}
                }
            }
        }
        for (int b = 0; b < here; ++b) {
            const int c0 = (first + b) * ${wide}, lanes = min(${wide}, channels - c0), channel = group * channels + c0;
            const int *found = sums + b * ${mr * wide};
            if (mode == 0) {
                for (int m = 0; m < rows; ++m) {
                    __global int *d = (__global int *)dst_base + dst_offset + made[m] + channel * dc;
                    for (int j = 0; j < lanes; ++j) d[j * dc] = found[m * ${wide} + j];
                }
                continue;
            }
            __global const float *rules = (__global const float *)constants + (group * blocks + first + b) * ${4 * wide};
            if (way) {
                put_sums(dst_base + dst_offset + channel, made, found, rules, mode, step_out, low, high, zero, rows, lanes, way == 2, table);
                continue;
            }
            bytes_of_sums(tile, found, rules, mode, step_out, low, high, zero, rows, (lanes + VW - 1) / VW);
${bc.apply("tile", "other", f"rows * {wide}", gather, FEW)}
            for (int m = 0; m < rows; ++m) write_typed(dst_base + dst_offset + made[m] + channel * dc, tile + m * ${wide}, dst_type, dc, lanes);
        }
    }
}
