<%doc>
conv/direct: convolution with a register tile of `mr` pixels x `nv` vectors of output channels.

Tensors  src: image with channels innermost (pitch 1), seen as (n, c, h, w); where ic is at most 4 and
         there is one group, they may lie at any pitch; dst and operands: images at any pitches
         weights: [groups * blocks][kh][kw][ic / lot][nv][halves][vw][lot], output channels padded
         with zeros; with a channelwise arithmetic [groups * blocks][ic][kh][kw][nv * vw]
         table: [rows][groups * blocks][nv * vw], constants of the arithmetic
Index    row:     a tile is `th` rows of `tw` neighbours, one address for all; the last tiles of a
                  row and of the image lie inside them, and store only what others do not
         flat:    as row, the whole image being one row
         pointer: pixels are counted through rows, one address per pixel
         checked: as pointer, and taps outside of src read from a row of padding instead
Launch   global (pixel tiles, channel blocks, batch), or channel blocks first where `channels_fastest`;
         streamed (chunk > 0): (channel blocks, bands of tiles, batch); a work-item takes `chunk`
         input channels of a tap of its weights through all tiles of its band, which keeps them in
         the nearest cache, before it takes the next, which is read ahead meanwhile; sums wait in
         local memory
Params   name | arith: Arithmetic | types: of src, weights, table and dst | rows: of the table | dot:
         how `lot` products of bytes are added at once, "" for one product at a time (see
         _common/dot.cl.mako) | src, dst: TensorLayout | ic, oc: channels per group | groups |
         kernel, strides, dilations, pads: (y, x) | mode | post_ops, operands: fused post-ops;
         operand layouts are broadcast to dst | extra_types, scales: see _common/scales | channels_fastest | ahead: what comes next is read ahead
         into the cache | wg
Tunables mr {1..30} | th: rows of a tile, divides mr | nv {1,2,3,4} | vw {1,4,8,16} | loop_epilogue: results are finished in a loop
         chunk: 0, or a divisor of ic | bands: of tiles, 1 where chunk is 0
</%doc>
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="dt" file="/_common/dot.cl.mako"/>
<%namespace name="fi" file="/_common/conv_finish.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%namespace name="px" file="/_common/pixels.cl.mako"/>
<%namespace name="sc" file="/_common/scales.cl.mako"/>
<%!
READ_AHEAD = 16  # steps of the inner loop by which weights are read ahead
NEAR_BYTES = 16384  # weights of a block that stay in the nearest cache
%>
<%
    (kh, kw), (sy, sx), (dy, dx), (pad_y, pad_x) = kernel, strides, dilations, pads
    ocb = nv * vw
    blocks = -(-oc // ocb)
    (oh, ow), (ih, iw) = dst.shape[2:], src.shape[2:]
    at_pixels = px.module.Tiles(mode, oh, ow, mr, th)
    tw, constant = at_pixels.tw, at_pixels.even
    assert mode in ("row", "flat", "pointer", "checked"), mode
    assert mode != "flat" or (kh * kw == sy * sx == 1 and pad_y == pad_x == 0 and (ih == 1 or src.pitches[2] == iw * src.pitches[3]))
    planes = src.pitches[1] != 1 and src.shape[1] != 1
    assert not planes or (ic <= 4 and groups == 1 and not dot and mode != "checked"), "channels of src must be innermost"
    xt, wt, tt, yt = types
    P, V = vec_type(arith.product, vw), vec_type(arith.acc, vw)
    lot, halves = dt.module.LOTS[dot], dt.module.HALVES[dot]
    assert ic % lot == 0 and (not dot or (arith.wraps and not arith.channelwise)), "dot products need plain sums"
    share = -(-at_pixels.count // bands)
    passes = kh * kw * ic // chunk if chunk else 1
    assert (constant and not dot and not planes and arith.acc == "float" and ic % chunk == 0) if chunk else bands == 1
    # Lines of the next chunk that a step of the inner loop reads ahead, or steps for each of them.
    line = 64 // size_of(wt)
    pace = max(1, -(-nv * vw // line // share))
    stride = next(u for u in (8, 4, 2, 1) if chunk % u == 0 and (u == 1 or u * nv * vw <= line * share))
    ids = ("get_global_id(1)", "get_global_id(0)") if channels_fastest else ("get_global_id(0)", "get_global_id(1)")
    spans = {"all": kh * kw * ic, "row": kw * ic, "tap": ic, "chunk": dt.module.SPAN}
    flush_after = next(k for k, n in spans.items() if n <= dt.module.SPAN) if halves > 1 else ""
    tap = (dy * src.pitches[2], dx * src.pitches[3])
    move, down = sx * src.pitches[3], sy * src.pitches[2]
    def at(m):
        c = f"c * {src.pitches[1]}" if planes else "c"
        if constant:
            return "p", f"{m // tw * down + m % tw * move} + {c}"
        return ("p", f"f{m} + {c}") if mode == "pointer" else (f"q{m}", "c")
    lines = nv * vw * lot * halves * size_of(wt) // 64 if kh * kw * ic * ocb * size_of(wt) > NEAR_BYTES else 0
    reads = -(-mr * move // max(ic, 1)) if ahead and constant and kh * kw * sy * sx == 1 and not dot and not planes else 0
%>
<%def name="flush(after)">\
% if after == flush_after:
%  for m in range(mr):
%   for v in range(nv):
        t[${m * nv + v}] += ${dt.joined(vw, f"a{m}_{2 * v}", f"a{m}_{2 * v + 1}")};
        a${m}_${2 * v} = a${m}_${2 * v + 1} = 0;
%   endfor
%  endfor
% endif
</%def>
<%def name="multiply()">\
% for v in range(nv * halves):
            const ${P} b${v} = ${dt.weights(dot, wt, arith.product, vw, "w", v * vw * lot)};
% endfor
% for m in range(mr):
            {
                const ${P} s = (${P})(${dt.input(dot, xt, *at(m), src)});
%  for v in range(nv * halves):
%   if dot:
                ${dt.add(dot, vw, f"a{m}_{v}", "s", f"b{v}")}
%   else:
                ${ar.mac(arith, vw, f"a{m}_{v}", "s", f"b{v}")}
%   endif
%  endfor
            }
% endfor
% if ahead and not chunk:
%  for k in range(lines):
            ${pf.fetch(f"w + {READ_AHEAD * ocb * lot * halves + k * 64 // size_of(wt)}")}
%  endfor
%  for k in range(0, reads, 64 // size_of(xt)):
            ${pf.fetch(f"next + c * {reads} + {k}")}
%  endfor
% endif
            w += ${ocb * lot * halves};
</%def>
<%def name="tap_pointers()">\
% if mode == "checked":
%  for m in range(mr):
        const int iy${m} = y${m} * ${sy} - ${pad_y} + ky * ${dy}, ix${m} = x${m} * ${sx} - ${pad_x} + kx * ${dx};
        __global const ${cell(xt)} *q${m} = iy${m} >= 0 && iy${m} < ${ih} && ix${m} >= 0 && ix${m} < ${iw}
            ? image + iy${m} * ${src.pitches[2]} + ix${m} * ${src.pitches[3]} : zeros;
%  endfor
% else:
        __global const ${cell(xt)} *p = corner + ky * ${tap[0]} + kx * ${tap[1]};
% endif
</%def>
<%def name="sum_by_taps()">\
    for (int ky = 0; ky < ${kh}; ++ky)${" {" if flush_after == "row" else ""}
    for (int kx = 0; kx < ${kw}; ++kx) {
        ${tap_pointers()}
% if flush_after == "chunk":
        for (int from = 0; from < ${ic}; from += ${dt.module.SPAN}) {
        for (int c = from; c < min(from + ${dt.module.SPAN}, ${ic}); c += ${lot}) {
            ${multiply()}
        }
        ${flush("chunk")}
        }
% elif ic <= 4:
%  for c in range(0, ic, lot):
        {
            const int c = ${c};
            ${multiply()}
        }
%  endfor
% else:
        for (int c = 0; c < ${ic}; ${"++c" if lot == 1 else f"c += {lot}"}) {
            ${multiply()}
        }
% endif
        ${flush("tap")}
    }
    ${flush("row")}
    ${"}" if flush_after == "row" else ""}
    ${flush("all")}
</%def>
<%def name="sum_chunk()">\
        __global const ${cell(xt)} *p = corner + ky * ${tap[0]} + kx * ${tap[1]} + from;
        __global const ${cell(wt)} *w = chunk, *soon = chunk + ${chunk * ocb} + (tile - first_tile) * ${chunk // stride * line * pace};
        for (int k = 0; k < ${chunk}; k += ${stride}) {
% if ahead:
%  for k in range(pace):
            ${pf.fetch_far(f"soon + {line * k}")}
%  endfor
            soon += ${line * pace};
% endif
% for u in range(stride):
            {
            const int c = k + ${u};
            ${multiply()}
            }
% endfor
        }
</%def>
<%def name="streamed()">\
    for (int pass = 0; pass < ${passes}; ++pass) {
    const int from = pass % ${ic // chunk} * ${chunk};
    const int ky = pass / ${ic // chunk} / ${kw}, kx = pass / ${ic // chunk} % ${kw};
    __global const ${cell(wt)} *chunk = weights + (block * ${passes} + pass) * ${chunk * ocb};
    for (int tile = first_tile; tile < min(first_tile + ${share}, ${at_pixels.count}); ++tile) {
        __local ${arith.acc} *sum = sums + (tile - first_tile) * ${mr * ocb};
        ${px.begin(mode, "tile", at_pixels)}
        ${V} ${", ".join(f"a{m}_{v}" for m in range(mr) for v in range(nv))};
        if (pass == 0) {
% for v in range(nv):
            a0_${v} = ${ar.start(arith, vw, rows, lambda k: capture(fi.table_row, k, v).strip())};
%  for m in range(1, mr):
            a${m}_${v} = a0_${v};
%  endfor
% endfor
        } else {
% for m in range(mr):
%  for v in range(nv):
            a${m}_${v} = ${load(arith.acc, vw, "sum", str(m * ocb + v * vw))};
%  endfor
% endfor
        }
        ${corner()}
        if (pass == ${passes - 1}) {
            ${fi.expect_operands(at_pixels)}
        }
        ${sum_chunk()}
        if (pass < ${passes - 1}) {
% for m in range(mr):
%  for v in range(nv):
            ${store(vw, f"a{m}_{v}", "sum", str(m * ocb + v * vw), arith.acc, "__local")}
%  endfor
% endfor
        } else {
            ${fi.finish_all(at_pixels, halves)}
        }
    }
    }
</%def>
<%def name="corner()">\
% if mode == "row":
    __global const ${cell(xt)} *corner = image + (top * ${sy} - ${pad_y}) * ${src.pitches[2]} + (left * ${sx} - ${pad_x}) * ${src.pitches[3]};
% elif mode == "flat":
    __global const ${cell(xt)} *corner = image + first * ${move};
% endif
</%def>
<%def name="sum_by_channels()">\
    for (int c = 0; c < ${ic}; ++c) {
    for (int ky = 0; ky < ${kh}; ++ky)
    for (int kx = 0; kx < ${kw}; ++kx) {
        ${tap_pointers()}
        {
            ${multiply()}
        }
    }
% for m in range(mr):
%  for v in range(nv):
        ${ar.channel(arith, vw, f"a{m}_{v}")}
%  endfor
% endfor
    }
</%def>
${ar.functions(arith, vw)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(xt)} *src_base, const int src_offset, __global const ${cell(wt)} *weights,
% if rows:
    __global const ${cell(tt)} *table,
% endif
% if mode == "checked":
    __global const ${cell(xt)} *zeros,
% endif
${sc.parameters(scales, extra_types)}\
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
${sc.declare(scales, arith.strict)}\
% if chunk:
    __local ${arith.acc} sums[${share * mr * ocb if passes > 1 else 16}];
    const int block = get_global_id(0), first_tile = get_global_id(1) * ${share}, n = get_global_id(2);
    if (block >= ${blocks * groups} || first_tile >= ${at_pixels.count}) return;
% else:
    const int tile = ${ids[0]}, block = ${ids[1]}, n = get_global_id(2);
    if (tile >= ${at_pixels.count} || block >= ${blocks * groups}) return;
% endif
    __global const ${cell(xt)} *src = src_base + src_offset;
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    const int group = block / ${blocks}, part = block % ${blocks};
    const int oc = group * ${oc} + part * ${ocb};
    __global const ${cell(xt)} *image = src + ${index(src, "n", f"group * {ic}", 0, 0)};
% if chunk:
    ${streamed()}
% else:
    __global const ${cell(wt)} *w = weights + block * ${kh * kw * ic * ocb * halves};
    ${px.begin(mode, "tile", at_pixels)}
% if not constant:
%  for m in range(mr):
    ${px.place(mode, at_pixels, m, str(m))}
%  endfor
% endif
% if halves > 1:
    ${V} t[${mr * nv}];
    for (int k = 0; k < ${mr * nv}; ++k) t[k] = 0;
%  for m in range(mr):
    ${P} ${", ".join(f"a{m}_{v} = 0" for v in range(nv * halves))};
%  endfor
% else:
% for v in range(nv):
    ${V} a0_${v} = ${ar.start(arith, vw, rows, lambda k: capture(fi.table_row, k, v).strip())};
%  for m in range(1, mr):
    ${V} a${m}_${v} = a0_${v};
%  endfor
% endfor
% endif
    ${corner()}
% if mode == "pointer":
    __global const ${cell(xt)} *corner = image - ${pad_y * src.pitches[2] + pad_x * src.pitches[3]};
%  for m in range(mr):
    const int f${m} = y${m} * ${sy * src.pitches[2]} + x${m} * ${move};
%  endfor
% endif
% if reads:
    __global const ${cell(xt)} *next = corner + ${f"(left < {ow - tw} ? {tw * move} : {th * down} - left * {move})" if mode == "row" else mr * move};
% endif
    ${fi.expect_operands(at_pixels)}
    ${sum_by_channels() if arith.channelwise else sum_by_taps()}
    ${fi.finish_all(at_pixels, halves)}
% endif
}
