<%doc>
conv/direct: convolution with a register tile of `mr` pixels x `nv` vectors of output channels.

A work-item holds the sums of a tile. For each tap and input channel it adds to all of them:

                 b0    b1      nv vectors of vw weights
    mr inputs    a0_0  a0_1
    s, one by    a1_0  a1_1    a{m}_{v} += s * b{v}
    one          a2_0  a2_1

Tensors  src: image with channels innermost (pitch 1), seen as (n, c, h, w); where ic is at most 4 and
         there is one group, they may lie at any pitch
         dst and operands: images at any pitches
         weights: [groups][blocks][kh][kw][ic / pack_factor][nv][weight_limbs][vw][pack_factor], output
         channels padded with zeros; with a channelwise arithmetic [groups][blocks][ic][kh][kw][nv * vw]
         table: [rows][groups][blocks][nv * vw], constants of the arithmetic
         zeros: [ic], a pixel of padding, in mode checked
Launch   global (pixel tiles, channel blocks, batch), or channel blocks first where `channels_fastest`
Params   name, wg
         arith: Arithmetic
         types: of src, weights, table and dst
         rows: of the table
         src, dst: TensorLayout
         ic, oc: channels of a group
         groups
         kernel, strides, dilations, pads: (y, x)
         post_ops, operands: fused behind the sums; operands: input -> (number, layout broadcast to dst)
         extra_types, scales: how operands and dst are stored (_common/scales.cl.mako)
         prefetch {0,1}: what comes next is read ahead into the cache
         loop_epilogue {0,1}: results are finished in a loop over pixels, not in unrolled code
         narrow: how four vectors of results become bytes at a time (_common/narrow.cl.mako), "" where they do not
Tunables mr {1..30}      pixels of a tile
         th              rows of a tile, divides mr; 1 unless the mode is row
         nv {1,2,3,4}    vectors of output channels
         vw {1,2,4,8,16} channels of a vector
         mode            how the pixels of a tile are addressed:
             row         th rows of tw neighbours from one address; the last tiles of a row and of the
                         image lie inside them, and store only what others do not
             flat        the same, the whole image being one row
             pointer     pixels are counted through rows, each has its address
             checked     the same, and taps outside of src read from `zeros` instead
         dot             how products are added several at a time (_common/dot.cl.mako), "" for one by one
         channels_fastest {0,1}
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
LINE = 64  # bytes of a cache line
%>
<%
    (kh, kw), (sy, sx), (dy, dx), (pad_y, pad_x) = kernel, strides, dilations, pads
    ocb = nv * vw
    blocks = -(-oc // ocb)
    last_nv = fi.module.last_vectors(oc, nv, vw)
    (oh, ow), (ih, iw) = dst.shape[2:], src.shape[2:]
    at_pixels = px.module.Tiles(mode, oh, ow, mr, th)
    tw, constant = at_pixels.tw, at_pixels.even
    assert mode in ("row", "flat", "pointer", "checked"), mode
    assert mode != "flat" or (kh * kw == sy * sx == 1 and pad_y == pad_x == 0 and (ih == 1 or src.pitches[2] == iw * src.pitches[3]))
    any_order = ic <= 4 and groups == 1 and not dot and mode != "checked"
    planes = src.shape[1] != 1 and not (is_one(src.pitches[1]) if any_order else src.pitches[1] == 1)
    assert any_order or not planes, "channels of src must be innermost"
    xt, wt, tt, yt = types
    P, V = vec_type(arith.product, vw), vec_type(arith.acc, vw)
    pack_factor, limbs = dt.module.PACK_FACTORS[dot], dt.module.WEIGHT_LIMBS[dot]
    sums = 1 if dot in dt.module.ONE_SUM else limbs  # of each vector of outputs
    step = ocb * pack_factor * limbs  # weights of a step of the inner loop
    assert ic % pack_factor == 0 and (not dot or arith.wraps or arith.pairs) and not (dot and arith.channelwise), "packed products need plain sums"
    ids = ("get_global_id(1)", "get_global_id(0)") if channels_fastest else ("get_global_id(0)", "get_global_id(1)")
    # Sums of limbs hold SPAN products: they join sums of 64 bits behind the longest loop with no more.
    loops = {"window": kh * kw * ic, "row": kw * ic, "tap": ic, "span": dt.module.SPAN}
    join_after = next(k for k, n in loops.items() if n <= dt.module.SPAN) if sums > 1 else ""
    tap = (dy * src.pitches[2], dx * src.pitches[3])
    move, down = sx * src.pitches[3], sy * src.pitches[2]
    # Where the distance of planes is read at run time, each plane has an address: compilers would add it to each pixel's.
    addressed = planes and is_traced(src.pitches[1])
    def at(m):
        base, c = ("plane", "") if addressed else ("p", f" + c * {src.pitches[1]}" if planes else " + c")
        if constant:
            return base, f"{m // tw * down + m % tw * move}{c}"
        return (base, f"f{m}{c}") if mode == "pointer" else (f"q{m}", "c")
    # Weights that do not stay near are read ahead by lines; windows of one pixel read each input once, so
    # that each step of a tile also reads ahead its part of the next one's inputs.
    far = kh * kw * ic * ocb * size_of(wt) > NEAR_BYTES
    weight_lines = step * size_of(wt) // LINE if prefetch and far else 0
    once = constant and kh * kw * sy * sx == 1 and (not dot or arith.pairs) and not planes
    wide = dot == "spreadbf16x2"  # inputs are made floats first, for all sums of the tile
    wide_pitch = ic + dt.module.WIDE_GAP
    assert not wide or (kh * kw == 1 and mode != "checked" and ic % vw == 0), (kernel, mode, ic)
    next_inputs = -(-mr * move // max(ic, 1)) if prefetch and once else 0
%>
<%def name="join_limbs(after)">\
% if after == join_after:
%  for m in range(mr):
%   for v in range(nv):
        t[${m * nv + v}] += ${dt.joined(vw, f"a{m}_{2 * v}", f"a{m}_{2 * v + 1}")};
        a${m}_${2 * v} = a${m}_${2 * v + 1} = 0;
%   endfor
%  endfor
% endif
</%def>
<%def name="multiply(nv)">\
% if addressed:
            __global const ${cell(xt)} *plane = p + c * ${src.pitches[1]};
% endif
% for v in range(nv * limbs):
            const ${P} b${v} = ${dt.weights(dot, wt, arith.product, vw, "w", v * vw * pack_factor)};
% endfor
% if wide:
${dt.apart(vw, mr, nv, lambda m, v: f"a{m}_{v}", wide_pitch, "c")}\
% endif
% for m in range(0 if wide else mr):
            {
                const ${P} s = (${P})(${dt.input(dot, xt, *at(m), src)});
%  for v in range(nv * limbs):
%   if dot:
                ${dt.add(dot, vw, f"a{m}_{v * sums // limbs}", dt.module.of_limb(dot, "s", v % limbs), f"b{v}")}
%   else:
                ${ar.mac(arith, vw, f"a{m}_{v}", "s", f"b{v}")}
%   endif
%  endfor
            }
% endfor
% for k in range(weight_lines):
            ${pf.fetch(f"w + {READ_AHEAD * step + k * LINE // size_of(wt)}")}
% endfor
% for k in range(0, next_inputs * pack_factor, LINE // size_of(xt)):
            ${pf.fetch(f"next + c * {next_inputs} + {k}")}
% endfor
            w += ${step};
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
<%def name="sum_by_taps(nv)">\
    for (int ky = 0; ky < ${kh}; ++ky)${" {" if join_after == "row" else ""}
    for (int kx = 0; kx < ${kw}; ++kx) {
        ${tap_pointers()}
% if wide:
        for (int c = 0; c < ${ic}; c += ${vw}) {
%  for m in range(mr):
            ${store(vw, load(xt, vw, *at(m)), "wide", f"{m * wide_pitch} + c", "float", "__local")}
%  endfor
        }
% endif
% if join_after == "span":
        for (int from = 0; from < ${ic}; from += ${dt.module.SPAN}) {
        for (int c = from; c < min(from + ${dt.module.SPAN}, ${ic}); c += ${pack_factor}) {
            ${multiply(nv)}
        }
        ${join_limbs("span")}
        }
% elif ic <= 4:
%  for c in range(0, ic, pack_factor):
        {
            const int c = ${c};
            ${multiply(nv)}
        }
%  endfor
% else:
        for (int c = 0; c < ${ic}; ${"++c" if pack_factor == 1 else f"c += {pack_factor}"}) {
            ${multiply(nv)}
        }
% endif
        ${join_limbs("tap")}
    }
    ${join_limbs("row")}
    ${"}" if join_after == "row" else ""}
    ${join_limbs("window")}
</%def>
<%def name="sum_by_channels(nv)">\
    for (int c = 0; c < ${ic}; ++c) {
    for (int ky = 0; ky < ${kh}; ++ky)
    for (int kx = 0; kx < ${kw}; ++kx) {
        ${tap_pointers()}
        {
            ${multiply(nv)}
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
% if wide:
    __local float wide[${mr * wide_pitch}];
% endif
    const int tile = ${ids[0]}, block = ${ids[1]}, n = get_global_id(2);
    if (tile >= ${at_pixels.count} || block >= ${blocks * groups}) return;
    __global const ${cell(xt)} *src = src_base + src_offset;
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    const int group = block / ${blocks}, part = block % ${blocks};
    const int oc = group * ${oc} + part * ${ocb};
    __global const ${cell(xt)} *image = src + ${index(src, "n", f"group * {ic}", 0, 0)};
    __global const ${cell(wt)} *w = weights + block * ${kh * kw * ic * ocb * limbs};
    ${px.begin(mode, "tile", at_pixels)}
% if not constant:
%  for m in range(mr):
    ${px.place(mode, at_pixels, m, str(m))}
%  endfor
% endif
% if sums > 1:
    ${V} t[${mr * nv}];
    for (int k = 0; k < ${mr * nv}; ++k) t[k] = 0;
%  for m in range(mr):
    ${P} ${", ".join(f"a{m}_{v} = 0" for v in range(nv * sums))};
%  endfor
% else:
% for v in range(nv):
    ${V} a0_${v} = ${ar.start(arith, vw, rows, lambda k: capture(fi.table_row, k, v).strip())};
%  for m in range(1, mr):
    ${V} a${m}_${v} = a0_${v};
%  endfor
% endfor
% endif
% if constant:
    ${px.corner(mode, src, strides, pads, xt)}
% elif mode == "pointer":
    __global const ${cell(xt)} *corner = image - ${pad_y * src.pitches[2] + pad_x * src.pitches[3]};
%  for m in range(mr):
    const int f${m} = y${m} * ${sy * src.pitches[2]} + x${m} * ${move};
%  endfor
% endif
% if next_inputs:
    __global const ${cell(xt)} *next = corner + ${f"(left < {ow - tw} ? {tw * move} : {th * down} - left * {move})" if mode == "row" else mr * move};
% endif
    ${fi.expect_operands(at_pixels)}
    ${fi.each_block(last_nv, sum_by_channels if arith.channelwise else sum_by_taps)}
    ${fi.finish_all(at_pixels, sums > 1, narrow)}
}
