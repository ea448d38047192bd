<%doc>
conv/transpose_bytes: transposed convolution of bytes by bytes, one small dense convolution per output phase.

Phases, and which taps they take, are those of conv/transpose. A work-item holds the sums of a tile of th x tw
pixels of one phase x nv vectors of output channels, exact in 32 bits, as conv/direct does. Results are those of
float32 sums in the order that the arithmetic asks for (_common/tap_sums.cl.mako): what such sums can differ
from the exact one by is known, so that only where the exact result is nearer than that to a tie it is summed again
in that order.

Tensors  src: image with channels innermost, with the border that phases read; seen as (n, c, h, w)
         dst: one phase of the result with channels innermost: every sy-th row, every sx-th column
         weights: [groups][blocks][kh][kw][ic / 4][nv][vw][4], output channels padded with zeros; bytes, which the
         rest of some is added to
         rest_firsts: [groups * blocks * kh * kw + 1], the first rest of each; rest_channels: input channel of a rest;
         rests: [][nv * vw], ints
         starts: [sy][sx][groups][blocks][nv * vw], what sums of a phase begin with
         table: [5][groups][blocks][nv * vw]: what a step of the sum is worth in steps of the result; the bias in
         these; the distance from a whole number above which a result is near a tie, where it is 0; the bias; what a
         step of the weights is worth
         whole: weights as shorts, [groups][blocks][kh][kw][ic][nv * vw]
         stands_for: [256], real numbers that bytes of src are
Launch   global (tiles, phases * blocks, batch), or phases first where `channels_fastest`
Params   name, types, src, dst, groups, kernel, strides, dilations, pads, wg: as of conv/transpose
         arith: RealTaps
         ic, oc: channels of a group
         firsts: (y, x) first tap of each phase
         extents: rows and columns of the result
         steps: from row to row and from column to column of the result
         dot, narrow: as of conv/direct
         has_rests {0,1}
         near: by how much of the result that distance is less
Tunables mr, th, nv, vw: as of conv/direct in mode row
         channels_fastest {0,1}
</%doc>
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="by" file="/_common/conv_bytes.cl.mako"/>
<%namespace name="dt" file="/_common/dot.cl.mako"/>
<%namespace name="na" file="/_common/narrow.cl.mako"/>
<%namespace name="px" file="/_common/pixels.cl.mako"/>
<%namespace name="ts" file="/_common/tap_sums.cl.mako"/>
<%
    from math import gcd
    (kh, kw), (sy, sx), (dy, dx) = kernel, strides, dilations
    oh, ow = extents
    at_pixels = px.module.Tiles("row", *dst.shape[2:], mr, th)
    tw = at_pixels.tw
    ocb = nv * vw
    blocks = -(-oc // ocb)
    all_blocks = blocks * groups
    tail = oc - (blocks - 1) * ocb
    xt, _, _, yt = types
    F, I = vec_type("float", vw), vec_type("int", vw)
    assert dt.module.PACK_FACTORS[dot] == 4 and dt.module.WEIGHT_LIMBS[dot] == 1 and ic % 4 == 0, (dot, ic)
    assert src.pitches[1] == 1 and dst.pitches[1] == 1 and not arith.quads
    ids = ("get_global_id(1)", "get_global_id(0)") if channels_fastest else ("get_global_id(0)", "get_global_id(1)")
    shift = lambda m: m // tw * src.pitches[2] + m % tw * src.pitches[3]
    def weight_of(v):
        """Vector v of the weights of channel c as float32."""
        return f"convert_{F}({load('short', vw, 'w', str(v * vw))}) * r4_{v}"
%>
<%def name="all_taps()">\
    for (int ky = first_ky[py]; ky < ${kh}; ky += ${sy // gcd(sy, dy)})
    for (int kx = first_kx[px]; kx < ${kw}; kx += ${sx // gcd(sx, dx)}) {
        const int iy = top + (py + ${pads[0]} - ky * ${dy}) / ${sy}, ix = left + (px + ${pads[1]} - kx * ${dx}) / ${sx};
        const int place = (block * ${kh} + ky) * ${kw} + kx;
        __global const ${xt} *p = image + iy * ${src.pitches[2]} + ix * ${src.pitches[3]};
</%def>
<%def name="exact()">\
    ${all_taps()}
        __global const char *w = weights + place * ${ic * ocb};
        for (int c = 0; c < ${ic}; c += 4, w += ${4 * ocb}) {
% for v in range(nv):
            const ${I} b${v} = ${dt.weights(dot, "char", "int", vw, "w", v * vw * 4)};
% endfor
% for m in range(mr):
            {
                const ${I} s = (${I})(${dt.input(dot, xt, "p", f"{shift(m)} + c", src)});
%  for v in range(nv):
                ${dt.add(dot, vw, f"a{m}_{v}", "s", f"b{v}")}
%  endfor
            }
% endfor
        }
% if has_rests:
        for (int k = rest_firsts[place]; k < rest_firsts[place + 1]; ++k) {
            const int c = rest_channels[k];
%  for v in range(nv):
            const ${I} b${v} = ${load("int", vw, "rests", f"k * {ocb} + {v * vw}")};
%  endfor
%  for m in range(mr):
            {
                const ${I} s = (${I})(p[${shift(m)} + c]${" + 128" if xt == "char" else ""});
%   for v in range(nv):
                a${m}_${v} += s * b${v};
%   endfor
            }
%  endfor
        }
% endif
    }
</%def>
<%def name="in_order(pixels, used)">\
            ${F} ${", ".join(f"a{j}_{v} = 0" for j in range(pixels) for v in range(used))};
    ${all_taps()}
        __global const short *w = whole + place * ${ic * ocb};
% for j in range(pixels):
<% at = f"min(m + {j}, {mr - 1})" if mr % pixels else f"(m + {j})" %>\
        __global const ${xt} *p${j} = p + ${at} / ${tw} * ${src.pitches[2]} + ${at} % ${tw} * ${src.pitches[3]};
% endfor
        ${ts.taps(arith, ic, vw, [weight_of(v) for v in range(used)], [f"stands_for[(uchar)p{j}[c]]" for j in range(pixels)], ocb)}
    }
% for j in range(pixels):
%  for v in range(used):
            {
            ${ar.scaled(arith, vw, f"a{j}_{v}", lambda k: f"r3_{v}")}
            ${na.rounded(narrow, vw, "steps_", "whole_")}\
            i${j}_${v} = whole_;
            }
%  endfor
% endfor
</%def>
<%def name="finish(channels)">\
<%
    used = -(-channels // vw)
    pixels = next(p for p in (1, 2, 4) if p * used % 4 == 0)
    room = -(-mr // pixels) * pixels
    names = [f"i{j}_{v}" for j in range(pixels) for v in range(used)]
    place = (lambda j: f"(m + {j})" if mr % pixels == 0 else f"min(m + {j}, {mr - 1})")
    ends = [f"y{{}} * {sy} + py < {oh}"] * (not divides(sy, oh)) + [f"x{{}} * {sx} + px < {ow}"] * (not divides(sx, ow))
%>\
% for v in range(used):
%  for k in range(5):
    const ${F} r${k}_${v} = ${load("float", vw, "table", f"{k * all_blocks * ocb} + block * {ocb} + {v * vw}")};
%  endfor
% endfor
    ${I} t[${room * nv}];
% for m in range(room):
%  for v in range(nv):
    t[${m * nv + v}] = a${min(m, mr - 1)}_${v};
%  endfor
% endfor
    for (int m = 0; m < ${mr}; m += ${pixels}) {
        ${I} ${", ".join(names)}, near_ = 0;
% for j in range(pixels):
        ${px.place("row", at_pixels, place(j), str(j))}
%  for v in range(used):
        {
        const ${F} steps_ = fma(convert_${F}(t[(m + ${j}) * ${nv} + ${v}]), r0_${v}, r1_${v});
        ${na.rounded(narrow, vw, "steps_", "whole_")}\
        near_ |= as_${I}(fma(fabs(steps_), (${F})(${scalar(-near, "float")}), r2_${v}) - fabs(steps_ - convert_${F}(whole_)));
        i${j}_${v} = whole_;
        }
%  endfor
% endfor
${na.together(vw, "near_", "any_")}\
        if (any_ < 0) {
${in_order(pixels, used)}\
        }
% for name_ in names:
        ${na.limited(vw, name_, arith.low, arith.high, arith.zero_out, yt)}
% endfor
% for g in range(0, len(names), 4):
        ${na.quarters(narrow, vw, names[g:g + 4], arith.zero_out, yt, f"q{g // 4}")}
% endfor
% for j in range(pixels):
<% conditions = [f"m + {j} < {mr}"] * (mr % pixels != 0) + [capture(px.stored, "row", at_pixels, f"(m + {j})", str(j)).strip()] * (not at_pixels.exact) + [end.format(j) for end in ends] %>\
        ${f"if ({' && '.join(conditions)})" if conditions else ""} {
%  for v, group, at, count in by.module.runs_of(used, j * used):
            ${by.store_run(j, v, group, at, count, channels)}
%  endfor
        }
% endfor
    }
</%def>
__constant int first_ky[${sy}] = {${", ".join(map(str, firsts[0]))}};
__constant int first_kx[${sx}] = {${", ".join(map(str, firsts[1]))}};
${ar.functions(arith, vw)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${xt} *src_base, const int src_offset, __global const char *weights,
    __global const int *starts, __global const float *table, __global const short *whole,
    __global const float *stands_for,
% if has_rests:
    __global const int *rest_firsts, __global const int *rest_channels, __global const int *rests,
% endif
    __global ${yt} *dst_base, const int dst_offset)
{
    const int tile = ${ids[0]}, which = ${ids[1]}, n = get_global_id(2);
    if (tile >= ${at_pixels.count} || which >= ${all_blocks * sy * sx}) return;
    const int block = which % ${all_blocks}, phase = which / ${all_blocks}, py = phase / ${sx}, px = phase % ${sx};
    const int group = block / ${blocks}, part = block % ${blocks}, oc = group * ${oc} + part * ${ocb};
    __global const ${xt} *src = src_base + src_offset, *image = src + ${index(src, "n", f"group * {ic}", 0, 0)};
    __global ${yt} *dst = dst_base + dst_offset + py * ${steps[0]} + px * ${steps[1]};
    ${px.begin("row", "tile", at_pixels)}
% for v in range(nv):
    ${I} a0_${v} = ${load("int", vw, "starts", f"(phase * {all_blocks} + block) * {ocb} + {v * vw}")};
%  for m in range(1, mr):
    ${I} a${m}_${v} = a0_${v};
%  endfor
% endfor
    ${exact()}
% if tail == ocb:
    ${finish(ocb)}
% elif blocks == 1:
    ${finish(tail)}
% else:
    if (part < ${blocks - 1}) {
    ${finish(ocb)}
    } else {
    ${finish(tail)}
    }
% endif
}
