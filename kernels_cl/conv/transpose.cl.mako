<%doc>
conv/transpose: transposed convolution as one small dense convolution per output phase.

Output (y, x) = (qy * sy + py, qx * sx + px) is a sum over the taps k of phase (py, px), those with
p + pad - k * d divisible by the stride, at input pixel q + (p + pad - k * d) / s. A work-item holds
a tile of ty x tx pixels q of one phase x nv vectors of accumulators:

    0 1 0 1 0
    2 3 2 3 2    outputs with a stride of 2, by the phase that they belong to: py * 2 + px
    0 1 0 1 0

Tensors  src, dst: images in any layout, seen as (n, c, h, w); src has channels innermost unless the
         mode is spread
         weights: spread [groups][blocks][kh][kw][ic][nv * vw], output channels padded with zeros;
         depthwise [kh][kw][c]; dot [groups][kh][kw][oc][ic]
         table: constants of the arithmetic, of float the bias: spread [rows][groups][blocks][nv * vw],
         else [c]
         stands_for: [256], real numbers that bytes of src are, where products of a tap are summed apart
Index    src[n, group * ic + c, qy + ey, qx + ex]; with `checked`, zeros where that is outside of src,
         else src has the border. The last tile of an axis (of channels, if depthwise) starts early
         enough to be whole and stores only what no other tile stores.
Launch   global (tiles, phases * blocks, batch), or phases first where `channels_fastest`
Params   name, types, rows, src, dst, groups, kernel, strides, dilations, pads, post_ops, operands,
         loop_epilogue, wg: as of conv/direct
         arith: Arithmetic; the mode is spread unless it is float's
         ic, oc: channels of a group; oc of all if depthwise
         firsts: (y, x) first tap of each phase
         checked {0,1}: zeros is a row of ic elements, read at one place where channels lie apart
         has_bias {0,1}
Tunables mode              what the lanes of a vector are:
             spread        output channels, over which each input value is spread
             depthwise     channels, with one filter each
             dot           input channels, summed at the end for each of nv output channels
         ty, tx            pixels of a tile
         nv {1,2,3,4}      vectors of a tile
         vw {1,2,4,8,16}   lanes
         channels_fastest {0,1}
</%doc>
<%! from clnn.traced import is_one %>\
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%namespace name="ts" file="/_common/tap_sums.cl.mako"/>
<%
    from math import gcd
    kh, kw = kernel
    sy, sx = strides
    dy, dx = dilations
    ih, iw = src.shape[2:]
    oh, ow = dst.shape[2:]
    qh, qw = -(-oh // sy), -(-ow // sx)
    down, across = -(-qh // ty), -(-qw // tx)
    unit = 1 if mode == "dot" else vw
    ocb = nv * unit
    blocks = -(-oc // ocb)
    tail = oc - (blocks - 1) * ocb
    all_blocks = blocks if mode == "depthwise" else blocks * groups
    xt, wt, tt, yt = types
    V, P = vec_type(arith.acc, vw), vec_type(arith.product, vw)
    less = f" - ({arith.fill})" if arith.fill else ""
    real = arith.plain_bias  # float's arithmetic
    ids = ("get_global_id(1)", "get_global_id(0)") if channels_fastest else ("get_global_id(0)", "get_global_id(1)")
    pixels = [(r, c) for r in range(ty) for c in range(tx)]
    assert mode in ("spread", "depthwise", "dot") and (real or mode == "spread"), mode
    assert ty <= qh and tx <= qw and (mode != "depthwise" or (nv == 1 and oc >= vw)), (ty, tx, nv, vw)
    assert mode != "dot" or (blocks == 1 and ic >= vw), (oc, nv, ic, vw)
    assert mode == "spread" or src.pitches[1] == 1 or src.shape[1] == 1, "channels must be innermost"
    planes = checked and mode == "spread" and not is_one(src.pitches[1])  # channels lie apart
    def pixel(m):
        """Pointer to a pixel of the tile and a fixed element offset."""
        r, c = pixels[m]
        return (f"q{m}", 0) if checked else ("p", r * src.pitches[2] + c * src.pitches[3])
    def row_of(v):
        """Callable: table row -> vector v of it."""
        where = "oc" if mode == "depthwise" else f"block * {ocb} + {v * vw}"
        return lambda k: load(tt, vw, "table", f"{k * all_blocks * ocb} + {where}")
    def guards(r, c):
        """Conditions under which pixel (r, c) of a tile is stored."""
        found = [
            (not divides(ty, qh), f"qy0 + {r} >= first_qy"),
            (not divides(tx, qw), f"qx0 + {c} >= first_qx"),
            (not divides(sy, oh), f"(qy0 + {r}) * {sy} + py < {oh}"),
            (not divides(sx, ow), f"(qx0 + {c}) * {sx} + px < {ow}"),
        ]
        return " && ".join(text for needed, text in found if needed)
    def stored(v, channels):
        """First and end lane of vector v that a block with `channels` channels stores."""
        if mode == "depthwise":
            return vw - channels, vw
        return 0, min(max(channels - v * unit, 0), unit)
%>
<%def name="finish(v, lanes, name_)">\
<%
    lane = f"oc + {v * unit}"
    def operand(which):
        k, layout = operands[which]
        pitch = layout.pitches[1] if layout.shape[1] != 1 else 0
        where = index(layout, "n", lane, "y", "x")
        return capture(tl.load_lanes, unit, f"extra{k}", where, pitch, lanes[1], yt).strip()
    held = "sum" if mode == "dot" else arith.result(name_, "result")
%>\
% if mode == "dot":
        ${tl.total("sum", name_, vw)}
%  if has_bias:
        sum += table[oc + ${v}];
%  endif
% endif
% if not real:
        ${ar.finish(arith, unit, name_, "result", row_of(v))}
% endif
        ${st.apply(post_ops, held, yt, unit, operand)}
        ${tl.store_lanes(unit, held, "dst", index(dst, "n", lane, "y", "x"), dst.pitches[1], lanes[0], lanes[1], yt)}
</%def>
<%def name="finish_pixel(r, c, channels, values)">\
<% guard = guards(r, c) %>\
    ${f"if ({guard}) " if guard else ""}{
        const int y = (qy0 + ${r}) * ${sy} + py, x = (qx0 + ${c}) * ${sx} + px;
% for v in range(nv):
<% lanes = stored(v, channels) %>\
%  if lanes[0] < lanes[1]:
        {
        ${finish(v, lanes, values[v])}
        }
%  endif
% endfor
    }
</%def>
<%def name="finish_tile(channels)">\
% for m, (r, c) in enumerate(pixels):
    ${finish_pixel(r, c, channels, [f"a{m}_{v}" for v in range(nv)])}
% endfor
</%def>
<%def name="finish_in_loop(channels)">\
    ${V} t[${len(pixels) * nv}];
% for m in range(len(pixels)):
%  for v in range(nv):
    t[${m * nv + v}] = a${m}_${v};
%  endfor
% endfor
    for (int m = 0; m < ${len(pixels)}; ++m) {
        const int r = m / ${tx}, c = m % ${tx};
% for v in range(nv):
        ${V} value${v} = t[m * ${nv} + ${v}];
% endfor
        ${finish_pixel("r", "c", channels, [f"value{v}" for v in range(nv)])}
    }
</%def>
<%def name="spread()">\
<%
    loads = [load(wt, vw, "w", str(v * vw)) for v in range(nv)]
    loads = loads if arith.acc == "float" else [f"convert_{P}({b})" for b in loads]
    elements = [
        element(xt, at, f"{fixed} + c * {f'step{m}' if planes else src.pitches[1]}")
        for m, (at, fixed) in enumerate(map(pixel, range(len(pixels))))
    ]
%>\
        __global const ${wt} *w = weights + ((block * ${kh} + ky) * ${kw} + kx) * ${ic * ocb};
% if arith.apart:
        ${ts.taps(arith, ic, vw, loads, [f"stands_for[(uchar){e}]" for e in elements], ocb)}
% else:
        for (int c = 0; c < ${ic}; ++c, w += ${ocb}) {
%  for v in range(nv):
            const ${P} b${v} = ${loads[v]};
%  endfor
%  for m in range(len(pixels)):
            {
                const ${P} s = (${P})(${elements[m]}${less});
%   for v in range(nv):
                ${ar.mac(arith, vw, f"a{m}_{v}", "s", f"b{v}")}
%   endfor
            }
%  endfor
        }
% endif
</%def>
<%def name="depthwise()">\
        const ${V} b = ${load("float", vw, "weights", f"(ky * {kw} + kx) * {oc} + oc")};
% for m in range(len(pixels)):
        a${m}_0 = fma(${load(xt, vw, pixel(m)[0], str(pixel(m)[1]))}, b, a${m}_0);
% endfor
</%def>
<%def name="dot_lanes(c, start, count)">\
<%
    width, part = (vw, "") if count == vw else (count, "." + tl.attr.lanes(start, count))
    T = vec_type("float", width)
%>\
% for v in range(nv):
            const ${T} b${v} = ${load("float", width, "w", f"{v * ic} + {c}")};
% endfor
% for m in range(len(pixels)):
            {
                const ${T} s = ${load(xt, width, pixel(m)[0], f"{pixel(m)[1]} + {c}")};
%  for v in range(nv):
                a${m}_${v}${part} = fma(s, b${v}, a${m}_${v}${part});
%  endfor
            }
% endfor
</%def>
<%def name="dot()">\
        __global const float *w = weights + ((group * ${kh} + ky) * ${kw} + kx) * ${oc * ic};
        for (int c = 0; c < ${ic - ic % vw}; c += ${vw}) {
            ${dot_lanes("c", 0, vw)}
        }
% for start, count in tl.attr.runs(0, ic % vw):
        {
            ${dot_lanes(str(ic - ic % vw + start), start, count)}
        }
% endfor
</%def>
__constant int first_ky[${sy}] = {${", ".join(map(str, firsts[0]))}};
__constant int first_kx[${sx}] = {${", ".join(map(str, firsts[1]))}};
${ar.functions(arith, vw)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(xt)} *src_base, const int src_offset, __global const ${wt} *weights,
% if rows:
    __global const ${tt} *table,
% endif
% if arith.apart:
    __global const float *stands_for,
% endif
% if checked:
    __global const ${cell(xt)} *zeros,
% endif
% for k, _ in operands.values():
    __global const ${cell(yt)} *extra${k}_base, const int extra${k}_offset,
% endfor
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
    const int tile = ${ids[0]}, which = ${ids[1]}, n = get_global_id(2);
    if (tile >= ${down * across} || which >= ${all_blocks * sy * sx}) return;
    __global const ${cell(xt)} *src = src_base + src_offset;
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const ${cell(yt)} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    const int block = which % ${all_blocks}, py = which / ${all_blocks * sx}, px = which / ${all_blocks} % ${sx};
% if mode == "depthwise":
    const int oc = min(block * ${vw}, ${oc - vw}), part = block;
    __global const ${cell(xt)} *image = src + ${index(src, "n", "oc", 0, 0)};
% else:
    const int group = block / ${blocks}, part = block % ${blocks}, oc = group * ${oc} + part * ${ocb};
    __global const ${cell(xt)} *image = src + ${index(src, "n", f"group * {ic}", 0, 0)};
% endif
    const int first_qy = tile / ${across} * ${ty}, first_qx = tile % ${across} * ${tx};
    const int qy0 = min(first_qy, ${qh - ty}), qx0 = min(first_qx, ${qw - tx});
% for v in range(nv):
    ${V} a0_${v} = ${ar.start(arith, vw, 0 if mode == "dot" else rows, row_of(v))};
%  for m in range(1, len(pixels)):
    ${V} a${m}_${v} = a0_${v};
%  endfor
% endfor
    for (int ky = first_ky[py]; ky < ${kh}; ky += ${sy // gcd(sy, dy)})
    for (int kx = first_kx[px]; kx < ${kw}; kx += ${sx // gcd(sx, dx)}) {
        const int iy = qy0 + (py + ${pads[0]} - ky * ${dy}) / ${sy}, ix = qx0 + (px + ${pads[1]} - kx * ${dx}) / ${sx};
% if checked:
%  for m, (r, c) in enumerate(pixels):
        const int inside${m} = iy + ${r} >= 0 && iy + ${r} < ${ih} && ix + ${c} >= 0 && ix + ${c} < ${iw};
        __global const ${cell(xt)} *q${m} = inside${m} ? image + (iy + ${r}) * ${src.pitches[2]} + (ix + ${c}) * ${src.pitches[3]} : zeros;
%   if planes:
        const int step${m} = inside${m} ? ${src.pitches[1]} : 0;
%   endif
%  endfor
% else:
        __global const ${cell(xt)} *p = image + iy * ${src.pitches[2]} + ix * ${src.pitches[3]};
% endif
        ${{"spread": spread, "depthwise": depthwise, "dot": dot}[mode]()}
    }
<% do_finish = finish_in_loop if loop_epilogue else finish_tile %>\
% if tail == ocb:
    ${do_finish(ocb)}
% elif blocks == 1:
    ${do_finish(tail)}
% else:
    if (part < ${blocks - 1}) {
    ${do_finish(ocb)}
    } else {
    ${do_finish(tail)}
    }
% endif
}
