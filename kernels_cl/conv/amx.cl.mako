<%doc>
conv/amx: convolution of bytes or bfloat16 by tiles of registers (_common/amx.cl.mako).

A work-item computes tiles of `mr` pixels by `nv` vectors of output channels, one after the other. Each is `ma` by nv
tiles of registers; a left one is rows_a = mr / ma pixels at the same distance from each other, whose channels are read where
they lie.

Tensors  src: image with the border that windows reach, seen as (n, c, h, w), channels innermost where windows are not
         gathered
         dst and operands: images at any pitches
         weights: [groups][blocks][kh][kw][ic / pack_factor][nv][16][pack_factor], output channels padded with zeros;
         of gathered windows [blocks][terms / pack_factor][nv][16][pack_factor]
         table: [rows][groups][blocks][nv * 16], constants of the arithmetic
Launch   global (runs of `each` tiles of pixels by channels, 1, batch)
Params   name, wg, arith, types, rows, src, dst, ic, oc, groups, kernel, strides, dilations, pads, post_ops, operands,
         extra_types, scales, prefetch, loop_epilogue, narrow: as of conv/direct
         vw 16           channels of a vector
         how             of _common/amx.cl.mako
         products        kind of products (_common/amx.cl.mako)
         depth           bytes of channels that a tile takes at a time; a multiple of 4 that divides those of a pixel
         runs            (offset, length) of neighbours in memory that make a window, all of one length, where windows of
                         few channels are gathered in local memory; zeros follow. Else ()
Tunables mr, nv, ma      ma * nv {1..4}
         th              rows of the image in a tile: 1, or ma
         mode            row, flat (_common/pixels.cl.mako); wide: neighbours in a row that reaches from a row of
                         pixels over the border to the next one; what lies on the border is not stored
         each            tiles that a work-item computes
         channels_fastest {0,1}
</%doc>
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="fi" file="/_common/conv_finish.cl.mako"/>
<%namespace name="mx" file="/_common/amx.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%namespace name="px" file="/_common/pixels.cl.mako"/>
<%namespace name="sc" file="/_common/scales.cl.mako"/>
<%!
LINE = 64  # bytes of a cache line
def spans(length):
    """Return (place, width) of vectors that cover so many elements, and no other."""
    width = next(w for w in (16, 8, 4, 2, 1) if w <= length)
    return [(min(at, length - width), width) for at in range(0, length, width)]
%>
<%
    (kh, kw), (sy, sx), (dy, dx) = (1, 1) if runs else kernel, strides, dilations
    ocb = nv * vw
    blocks = -(-oc // ocb)
    last_nv = fi.module.last_vectors(oc, nv, vw)
    oh, ow = dst.shape[2:]
    span = src.pitches[2] // src.pitches[3] if mode == "wide" else 0
    at_pixels = px.module.Tiles(mode, oh, ow, mr, th, span=span)
    rows_a = mr // ma
    assert mode in ("row", "flat", "wide") and vw == 16 and th in (1, ma), (mode, vw, th)
    xt, wt, tt, yt = types
    V = vec_type(arith.acc, vw)
    size = size_of(xt)
    move, down = sx * src.pitches[3], sy * src.pitches[2]
    terms = ic if not runs else len(runs) * runs[0][1]  # of a place of the window
    chunks = -(-terms * size // depth)
    row = -(-chunks * depth // LINE) * LINE // size  # elements of a gathered window
    panel, whole = depth // size * ocb, kh * kw * chunks * depth // size * ocb  # weights of a step, and of a block
    # Lines of the next block's weights that a step asks for, where all pixels meet those of a block before.
    passes = at_pixels.count * kh * kw * chunks
    ahead = -(-whole * size // LINE // passes) if prefetch and not channels_fastest else 0
    room = -(-mr // 4) * 4
    total = at_pixels.count * blocks * groups
    sums, lefts, rights = mx.module.registers(ma, nv)
    at_run = f"(run % {blocks * groups})", f"(run / {blocks * groups})"
    if not channels_fastest:
        at_run = f"(run / {at_pixels.count})", f"(run % {at_pixels.count})"
%>
<%def name="left(j, tile)">\
% if runs:
${mx.read(how, tile, f"p + {j * rows_a * row}", row * size, "a", "__local")}\
% else:
${mx.read(how, tile, f"p + {j * down if th > 1 else j * rows_a * move}", move * size, "a")}\
% endif
</%def>
<%def name="gather()">\
    for (int m = 0; m < ${mr}; ++m) {
        __global const ${cell(xt)} *from_ = corner + m / ${at_pixels.tw} * ${down} + m % ${at_pixels.tw} * ${move};
        __local ${cell(xt)} *to_ = window + m * ${row};
% for k, (offset, length) in enumerate(runs):
%  for at, width in spans(length):
        ${copy(width, f"from_ + {offset + at}", f"to_ + {k * length + at}")}
%  endfor
% endfor
    }
</%def>
<%def name="copy(width, source, to)">\
% if width == 1:
*(${to}) = *(${source});\
% else:
${small_vector(vec_type(cell(xt), width), to, "0", "", "__local")} = ${small_vector(vec_type(cell(xt), width), source, "0")};\
% endif
</%def>
<%def name="right(v, tile)">\
${mx.read(how, tile, f"w + {v * vw * 4 // size}", ocb * 4, "b")}\
</%def>
<%def name="multiply(nv_used)">\
% if runs:
    {
        __local const ${cell(xt)} *p = window;
% else:
    for (int ky = 0; ky < ${kh}; ++ky)
    for (int kx = 0; kx < ${kw}; ++kx) {
        __global const ${cell(xt)} *p = corner + ky * ${dy * src.pitches[2]} + kx * ${dx * src.pitches[3]};
% endif
        for (int chunk = 0; chunk < ${chunks}; ++chunk) {
        ${mx.products(how, products, ma, nv, nv_used, left, right)}
% for line in range(ahead):
        ${pf.fetch_far(f"beyond + {line * LINE // size}")}
% endfor
% if ahead:
        beyond += ${ahead * LINE // size};
% endif
        p += ${depth // size};
        w += ${panel};
        }
    }
</%def>
${ar.functions(arith, vw)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(xt)} *src_base, const int src_offset, __global const ${cell(wt)} *weights,
% if rows:
    __global const ${cell(tt)} *table,
% endif
${sc.parameters(scales, extra_types)}\
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
${sc.declare(scales, arith.strict)}\
% if runs:
    __local ${cell(xt)} window[${mr * row}] __attribute__((aligned(64)));
% endif
    const int n = get_global_id(2), from = get_global_id(0) * ${each};
    if (from >= ${total}) return;
    __global const ${cell(xt)} *src = src_base + src_offset;
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    ${V} t[${room * nv}] __attribute__((aligned(64)));
    ${V} begin[${nv}] __attribute__((aligned(64)));
% if runs:
    for (int k = 0; k < ${mr * row}; ++k) window[k] = 0;
% endif
    ${mx.begin(how, rows_a, depth, sums, lefts, rights)}
    for (int run = from; run < ${f"min(from + {each}, {total})" if total % each else f"from + {each}"}; ++run) {
    const int block = ${at_run[0]}, tile = ${at_run[1]}, group = block / ${blocks}, part = block % ${blocks};
    const int oc = group * ${oc} + part * ${ocb};
    __global const ${cell(xt)} *image = src + ${index(src, "n", f"group * {ic}", 0, 0)};
    __global const ${cell(wt)} *w = weights + (long)block * ${whole};
% if ahead:
    __global const ${cell(wt)} *beyond = w + ${whole} + tile * ${kh * kw * chunks * ahead * LINE // size};
% endif
    ${px.begin(mode, "tile", at_pixels)}
    ${px.corner(mode, src, strides, pads, xt)}
% if runs:
${gather()}\
% endif
% for v in range(nv):
    begin[${v}] = ${ar.start(arith, vw, rows, lambda k: capture(fi.table_row, k, v).strip())};
% endfor
% for k in sums:
    ${mx.read(how, k, f"begin + {k % nv}", 0, "a", "__private")}\
% endfor
    ${fi.each_block(last_nv, multiply)}
% for k in sums:
    ${mx.write(how, k, f"t + {k // nv * rows_a * nv + k % nv}", nv * 64)}\
% endfor
    ${fi.finish_all(at_pixels, True, narrow)}
    }
    ${mx.end(how)}
}
