<%doc>
conv/separable: one filter per channel, then a 1 x 1 convolution of what they make, which stays in a core's
cache.

A work-item takes `band` rows of the output. It filters them into local memory, all channels, and
multiplies that matrix with the weights, a block of output channels after the other, in tiles of mr
pixels x nv vectors.

Tensors  src: image with channels innermost, seen as (n, c, h, w), with the border that the taps reach
         dst and operands: images of any pitches
         taps: [kh][kw][c]
         shift: [c]
         weights: [blocks][c][nv * vw], padded with zeros
         table: [blocks][nv * vw]
Index    where vw does not divide c, the last vector of channels begins earlier; where tx does not
         divide a row, its last columns do, and so does the last tile of a band's pixels, which stores
         what others do not
Launch   global (bands, 1, batch)
Params   name, src, dst, post_ops, operands, extra_types, scales, prefetch, loop_epilogue, wg: as of
         conv/direct; post_ops are behind the products
         arith: float's
         types: of src, both weights, both biases and dst
         ic, oc
         groups: 1
         kernel, strides, dilations, pads: (y, x), of the filters
         first_rows: 1 with a shift, 0 without
         rows: the same of table
         first_post_ops: behind the filters
         gates: their operands, input -> (type, pitch of images, pitch of channels)
         inside {0,1}: as of conv/depthwise
Tunables band             output rows of a work-item
         tx               columns that are filtered at a time
         mode {flat}, mr {1..30}, nv {1,2,3,4}, vw {1,2,4,8,16}: as of conv/direct; vw is at most c
         pitch            of a pixel in local memory, at least c
</%doc>
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="fi" file="/_common/conv_finish.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%namespace name="px" file="/_common/pixels.cl.mako"/>
<%namespace name="sc" file="/_common/scales.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%!
from clnn.ops.conv.edges import Edges, column_tiles
READ_AHEAD = 16  # steps of the inner loop by which weights are read ahead
NEAR_BYTES = 16384  # weights of a block that stay in the nearest cache
FIRST_LINES = 3  # at most, of the first block's weights, asked for beside a vector of filters
%>
<%
    kh, kw = kernel
    sy, sx = strides
    dy, dx = dilations
    oh, ow = dst.shape[2:]
    ocb = nv * vw
    blocks = -(-oc // ocb)
    last_nv = fi.module.last_vectors(oc, nv, vw)
    bands = -(-oh // band)
    pixels, last = band * ow, (oh - (bands - 1) * band) * ow
    xt, wt, tt, yt = types
    V = vec_type("float", vw)
    narrow = is_traced(ow)  # so that images may be of fewer columns than tx, and bands of fewer pixels than mr
    at_pixels = px.module.Tiles(mode, oh, ow, mr, 1, "end" if narrow or is_traced(oh) else "")
    at_pixels.exact = divides(mr, pixels) and divides(mr, last)
    assert mode == "flat" and groups == 1 and (at_pixels.end or mr <= last), (mode, groups, mr, last)
    assert src.pitches[1] == 1 and vw <= ic <= pitch and (narrow or tx <= ow), (src.pitches, vw, ic, pitch, tx, ow)
    over = -ic % vw
    def gate(k):
        gt, _, pitch_c = gates[k]
        return load(gt, vw, f"gate{k}", f"c * {pitch_c}", pitch_c)
    line = 64 // size_of(wt)
    lines = range(0, ocb, line) if prefetch and ic * ocb * size_of(wt) > NEAR_BYTES else ()
    # Elements by which each step of a tile moves on in the next block's weights, each vector of filters in the first's.
    step = first_step = 0
    if lines and not (narrow or is_traced(oh)):
        step, first_step = -(-ocb // -(-pixels // mr)), -(-ocb // (band * -(-ow // tx)))
        step, first_step = step if step <= line else 0, first_step if first_step * vw <= FIRST_LINES * line else 0
    edges = Edges.of(src, dst, dict(kernel=kernel, strides=strides, dilations=dilations, pads=pads)) if inside else None
    assert not (inside and narrow), (inside, ow)
    runs = [*edges.runs(column_tiles(ow, tx, overlap=True))] if inside else ()
%>
<%def name="filtered(tx, start=None)">\
% for t in range(tx):
                ${V} a${t} = ${load(tt, vw, "from_shift", "0") if first_rows else f"({V})(0)"};
% endfor
% for ky in range(kh):
<%
    taps_of = {}
    condition = edges.row_condition(ky) if inside else ""
%>\
                ${f"if ({condition})" if condition else ""} {
%  for kx in range(kw):
                const ${V} w${kx} = ${load(wt, vw, "from_taps", str((ky * kw + kx) * ic))};
%   for t in range(tx):
%    if start is None or edges.has_column(start + t, kx):
<% taps_of.setdefault(t * sx + kx * dx, []).append((t, kx)) %>\
%    endif
%   endfor
%  endfor
%  for column in sorted(taps_of):
                {
                    const ${V} s = ${load(xt, vw, "from_p", str(ky * dy * src.pitches[2] + column * src.pitches[3]))};
%   for t, kx in taps_of[column]:
                    a${t} = fma(s, w${kx}, a${t});
%   endfor
                }
%  endfor
                }
% endfor
% for t in range(tx):
                {
                    ${st.apply(first_post_ops, f"a{t}", "float", vw, gate)}
                    ${store(vw, f"a{t}", "to_row", str(t * pitch), "float", "__local")}
                }
% endfor
</%def>
<%def name="columns(count, start=None)">\
            __global const ${cell(xt)} *p = image + y * ${sy * src.pitches[2]} + x * ${sx * src.pitches[3]};
            __local float *row = between + ((y - from) * ${ow} + x) * ${pitch};
            for (int lane = 0; lane < ${ic}; lane += ${vw}) {
                const int c = ${f"min(lane, {ic - vw})" if over else "lane"};
                __global const ${cell(xt)} *from_p = p + c;
                __global const ${cell(wt)} *from_taps = taps + c;
% if first_rows:
                __global const ${cell(tt)} *from_shift = shift + c;
% endif
                __local float *to_row = row + c;
% for k in range(0, first_step * vw, line):
                ${pf.fetch_far(f"weights + (((y - from) * {-(-ow // tx)} + x / {tx}) * {ic} + lane) * {first_step} + {k}")}
% endfor
                ${filtered(count, start)}
            }
</%def>
<%def name="multiplied(nv)">\
        for (int c = 0; c < ${ic}; ++c) {
% for v in range(nv):
            const ${V} b${v} = ${load(wt, vw, "w", str(v * vw))};
% endfor
% for m in range(mr):
            {
                const ${V} s = (${V})(p[${m * pitch} + c]);
%  for v in range(nv):
                a${m}_${v} = fma(s, b${v}, a${m}_${v});
%  endfor
            }
% endfor
% for line in lines:
            ${pf.fetch(f"w + {READ_AHEAD * ocb + line}")}
% endfor
% if step:
            ${pf.fetch_far(f"following + c * {step}")}
% endif
            w += ${ocb};
        }
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(xt)} *src_base, const int src_offset,
% for k, (gt, _, _) in gates.items():
    __global const ${cell(gt)} *gate${k}_base, const int gate${k}_offset,
% endfor
    __global const ${cell(wt)} *taps,
% if first_rows:
    __global const ${cell(tt)} *shift,
% endif
    __global const ${cell(wt)} *weights,
% if rows:
    __global const ${cell(tt)} *table,
% endif
${sc.parameters(scales, extra_types)}\
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
${sc.declare(scales, arith.strict)}\
    __local float between[${room((pixels + mr if at_pixels.end else pixels) * pitch, most_floats)}];
    const int from = get_global_id(0) * ${band}, n = get_global_id(2);
    if (from >= ${oh}) return;
    const int to = ${f"min(from + {band}, {oh})" if not divides(band, oh) else f"from + {band}"};
    __global const ${cell(xt)} *image = src_base + src_offset + ${index(src, "n", 0, 0, 0)} - ${pads[0] * src.pitches[2] + pads[1] * src.pitches[3]};
% for k, (gt, pitch_n, _) in gates.items():
    __global const ${cell(gt)} *gate${k} = gate${k}_base + gate${k}_offset + n * ${pitch_n};
% endfor
    for (int y = from; y < to; ++y) {
% for first, last, count, free in runs:
        for (int x = ${first}; x <= ${last}; x += ${count}) {
            ${columns(count, None if free else first)}
        }
% endfor
% for count in () if inside else (tx, 1) if narrow else (tx,):
        ${f"if ({ow} {'>=' if count == tx else '<'} {tx}) " if narrow else ""}for (int start_x = 0; start_x < ${ow}; start_x += ${count}) {
            const int x = ${f"min(start_x, {ow - count})" if not divides(count, ow) else "start_x"};
            ${columns(count)}
        }
% endfor
    }
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    const int begin = from * ${ow}, end = to * ${ow};
    for (int part = 0; part < ${blocks}; ++part) {
    const int block = part, oc = part * ${ocb};
    for (int start = begin; start < end; start += ${mr}) {
        const int first = ${"start" if at_pixels.exact else f"max(min(start, end - {mr}), begin)" if at_pixels.end else f"min(start, end - {mr})"};
        ${px.origin(at_pixels)}
        ${fi.expect_operands(at_pixels)}
        __local const float *p = between + (first - begin) * ${pitch};
        __global const ${cell(wt)} *w = weights + part * ${ic * ocb};
% if step:
        __global const ${cell(wt)} *following = w + ${ic * ocb} + (start - begin) / ${mr} * ${ic * step};
% endif
% for m in range(mr):
%  for v in range(nv):
        ${V} a${m}_${v} = ${ar.start(arith, vw, rows, lambda k: capture(fi.table_row, k, v).strip())};
%  endfor
% endfor
        ${fi.each_block(last_nv, multiplied)}
        ${fi.finish_all(at_pixels)}
    }
    }
}
