<%doc>
universal/conv: convolutions and products; window, channels, strides and post-ops are arguments.

    dst[pixel][o] = post_ops(clip(bias[o] + sum over k of src[pixel + place(k)] * weights[o][k], low, high))

Tensors  src: at an element begins a window; its terms k are runs of `seg` elements at pitch `step`, of which
         run r lies at (r / runs) * rows_pitch + r % runs * runs_pitch
         weights: [block][k][nv * vw] of each group, bias: [group][block][nv * vw]; what lies behind the last channel
         reaches no result. packed: the same where a run makes them (universal/pack), is_packed then
         e0, e1: operands of post-ops, dst: any pitches over (n, c, y, x) and groups
         of the matrices of a batch, all move on by another pitch: src2, weights2, ...
Launch   global (tiles of pixels / band, blocks of channels / span of all groups, matrices of a batch), across: the first
         two the other way round. A
         work-item copies the terms of `mr` pixels to a panel, kc at a time, so that all its addresses are constant,
         and multiplies them with `span` blocks. Results that lie as vectors and have no post-ops leave the registers
         for their places; others, and sums of several pieces, go through an array
Params   name     kernel name
         wg       local size
Tunables vw, nv   vectors of channels of a tile, and their elements
         mr       pixels of a tile; tiles of fewer are computed as mr / 2 or one
         kc       terms that are copied at once
         most     blocks that share a panel
</%doc>
<%namespace name="cd" file="/_common/codes.cl.mako"/>
<%
    V, wide = vec_type("float", vw), nv * vw
    half = max(1, mr // 2)
    shapes = sorted({(1, nv), (half, nv), (mr, 1), (mr, nv)})
    tall = [shape for shape in shapes if shape[0] > 1]
    forms = [(*shape, "sums") for shape in shapes] + [(*shape, "results") for shape in tall]
    def is_for(height, vectors):
        if height < mr:
            return f"if (held == {height}) "
        return f"if (lanes <= {vw}) " if vectors < nv else ""
    def chosen(kind, among, arguments):
        lines = (f"{is_for(*shape)}{kind}_{shape[0]}_{shape[1]}({arguments});" for shape in among)
        return ("\n" + " " * 20 + "else ").join(lines)
    def gather(k):
        return f"""\
                for (int m = 0; m < rows; ++m) {{
                    __global const float *e = e{k}_base + e{k}_offset + group * e{k}g + matrix * e{k}2 + c0 * e{k}c;
                    e += image_of[m] * e{k}n + y_of[m] * e{k}y + x_of[m] * e{k}x;
                    read_lanes(other + m * {wide}, e, e{k}c, lanes, {wide});
                }}"""
%>
#define VW ${vw}
${cd.define(vw)}
${cd.lanes(vw)}
void copy_terms(float *panel, __global const float *src, const int *pixel, const int rows, const int from, const int terms, const int seg, const int step, const int runs, const int rows_pitch, const int runs_pitch)
{
    int row = from / seg / runs, run = from / seg % runs, c = from % seg;
    for (int at = 0; at < terms;) {
        const int len = min(seg - c, terms - at);
        __global const float *first = src + row * rows_pitch + run * runs_pitch + c * step;
        float *d = panel + at;
        if (step != 1 || len == 1)
            for (int m = 0; m < rows; ++m)
                for (int j = 0; j < len; ++j) d[m * ${kc} + j] = first[pixel[m] + j * step];
% for width in (4, 2):
%  if width < vw:
        else if (len <= ${width * 2} && len >= ${width})
            for (int m = 0; m < rows; ++m) {
                vstore${width}(vload${width}(0, first + pixel[m]), 0, d + m * ${kc});
                vstore${width}(vload${width}(0, first + pixel[m] + len - ${width}), 0, d + m * ${kc} + len - ${width});
            }
%  endif
% endfor
        else
            for (int m = 0; m < rows; ++m) read_lanes(d + m * ${kc}, first + pixel[m], 1, len, 0);
        at += len;
        c = 0;
        if (++run == runs) {
            run = 0;
            ++row;
        }
    }
}
% for height, vectors, kind in forms:
void ${kind}_${height}_${vectors}(\
% if kind == "sums":
float *d, \
% else:
__global float *d, const int *at, \
% endif
const float *begin, const int pitch, const float *panel, __global const float *w, const int terms, const float low, const float high)
{
% for m in range(height):
% for v in range(vectors):
    ${V} a${m}_${v} = vload${vw}(${v}, begin + ${m} * pitch);
% endfor
% endfor
    for (int k = 0; k < terms; ++k, w += ${wide}) {
% for v in range(vectors):
        const ${V} b${v} = vload${vw}(${v}, w);
% endfor
% for m in range(height):
% for v in range(vectors):
        a${m}_${v} = fma((${V})(panel[${m * kc} + k]), b${v}, a${m}_${v});
% endfor
% endfor
    }
% for m in range(height):
% for v in range(vectors):
    a${m}_${v} = a${m}_${v} < low ? (${V})(low) : a${m}_${v};
    a${m}_${v} = a${m}_${v} > high ? (${V})(high) : a${m}_${v};
% if kind == "sums":
    vstore${vw}(a${m}_${v}, ${m * nv + v}, d);
% else:
    vstore${vw}(a${m}_${v}, ${v}, d + at[${m}]);
% endif
% endfor
% endfor
}
% endfor
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
    __global const float *weights,
    __global const float *packed_base, const int packed_offset,
    __global const float *bias,
    __global const float *e0_base, const int e0_offset,
    __global const float *e1_base, const int e1_offset,
    __global float *dst_base, const int dst_offset,
    const int pixels, const int height, const int width, const int band, const int across,
    const int sn, const int sy, const int sx, const int group_pitch,
    const int dn, const int dc, const int dy, const int dx,
    const int terms, const int seg, const int step, const int runs, const int rows_pitch, const int runs_pitch,
    const int blocks, const int span, const int channels, const float low, const float high,
    const int e0n, const int e0c, const int e0y, const int e0x,
    const int e1n, const int e1c, const int e1y, const int e1x,
    const int is_packed, const int weights_pitch, const int dst_pitch, const int e0g, const int e1g,
    const int src2, const int weights2, const int dst2, const int e02, const int e12,
${cd.params()})
{
${cd.decode()}\
    const int along = across ? get_global_id(1) : get_global_id(0), over = across ? get_global_id(0) : get_global_id(1);
    const int spans = (blocks + span - 1) / span, group = over / spans;
    const int first = over % spans * span, here = min(span, blocks - first), matrix = get_global_id(2);
    __global const float *src = src_base + src_offset + group * group_pitch + matrix * src2;
    __global const float *own = (is_packed ? packed_base + packed_offset : weights) + (long)group * weights_pitch + (long)matrix * weights2;
    __global float *to = dst_base + dst_offset + group * dst_pitch + matrix * dst2;
    float panel[${mr * kc}], tiles[${most * mr * wide}], other[${mr * wide}];
    int pixel[${mr}], image_of[${mr}], y_of[${mr}], x_of[${mr}], made[${mr}];
    const int last = min((along + 1) * band * ${mr}, pixels), straight = post_ops == 0 && dc == 1;
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
            const int count = min(${kc}, terms - from), whole = from + count >= terms;
            const float lo = whole ? low : -INFINITY, hi = whole ? high : INFINITY;
            copy_terms(panel, src, pixel, held, from, count, seg, step, runs, rows_pitch, runs_pitch);
            for (int b = 0; b < here; ++b) {
                const int block = group * blocks + first + b, lanes = channels - (first + b) * ${wide};
                __global const float *w = own + ((long)(first + b) * terms + from) * ${wide};
                float *tile = tiles + b * ${mr * wide};
                float shift[${wide}];
% for v in range(nv):
                vstore${vw}(vload${vw}(block * ${nv} + ${v}, bias), ${v}, shift);
% endfor
                const float *begin = from == 0 ? shift : tile;
                const int pitch = from == 0 ? 0 : ${wide};
                __global float *d = to + (first + b) * ${wide};
                if (straight && whole && (held > 1 && lanes >= ${wide} || held == ${mr} && lanes == ${vw})) {
                    ${chosen("results", tall, "d, made, begin, pitch, panel, w, count, lo, hi")}
                } else {
                    ${chosen("sums", shapes, "tile, begin, pitch, panel, w, count, lo, hi")}
                }
            }
        }
        for (int b = 0; b < here; ++b) {
            const int c0 = (first + b) * ${wide}, lanes = min(${wide}, channels - c0);
            if (straight && (held > 1 && lanes == ${wide} || held == ${mr} && lanes == ${vw})) continue;
            float *tile = tiles + b * ${mr * wide};
${cd.apply("tile", "other", f"rows * {wide}", gather)}
            for (int m = 0; m < rows; ++m) write_lanes(to + made[m] + c0 * dc, tile + m * ${wide}, dc, lanes);
        }
    }
}
