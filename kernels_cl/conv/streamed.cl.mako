<%doc>
conv/streamed: the direct convolution of floats where weights do not stay close to a core.

A work-item takes `chunk` input channels of a tap of its weights through all tiles of its band, which
keeps them in the nearest cache, before it takes the next chunk, which is read ahead meanwhile. So each
weight comes from memory once for every band. Sums wait in local memory from chunk to chunk:

    pass 0, chunk 0 of tap 0:  tile 0, tile 1, ... tile last     sums = start + products
    pass 1, chunk 1 of tap 0:  tile 0, tile 1, ... tile last     sums += products
    ...
    last pass:                 tile 0, tile 1, ... tile last     results are finished and stored

Tensors  as of conv/direct
Launch   global (channel blocks, bands of tiles, batch)
Params   as of conv/direct, without channels_fastest; dot: "" or pairs of bfloat16
Tunables mr, th, nv, vw   as of conv/direct
         mode {row,flat}
         chunk            input channels of a pass, a divisor of ic
         bands            of tiles
</%doc>
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="dt" file="/_common/dot.cl.mako"/>
<%namespace name="fi" file="/_common/conv_finish.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%namespace name="px" file="/_common/pixels.cl.mako"/>
<%namespace name="sc" file="/_common/scales.cl.mako"/>
<%!
LINE = 64  # bytes of a cache line
LARGE = 16  # sums of a tile, whose steps stay apart: compilers that join two move sums from register to register
UNSHARED = 16  # elements of local memory where no sums wait: there must be some
%>
<%
    (kh, kw), (sy, sx), (dy, dx), (pad_y, pad_x) = kernel, strides, dilations, pads
    ocb = nv * vw
    blocks = -(-oc // ocb)
    last_nv = fi.module.last_vectors(oc, nv, vw)
    t = px.module.Tiles(mode, *dst.shape[2:], mr, th)
    xt, wt, tt, yt = types
    P, V = vec_type(arith.product, vw), vec_type(arith.acc, vw)
    share = -(-t.count // bands)
    passes = kh * kw * ic // chunk
    chunks = ic // chunk
    row, column = src.pitches[2:]
    assert t.even and arith.acc == "float" and ic % chunk == 0, (mode, arith, ic, chunk)
    assert src.pitches[1] == 1 or src.shape[1] == 1, "channels of src must be innermost"
    # While a chunk goes through the tiles of a band, each tile asks for its share of the next chunk: every
    # `unroll` steps of the inner loop for `lines` cache lines of it. Few tiles ask for several lines in
    # each step, many tiles for one in several steps.
    line, at_once = LINE // size_of(wt), dt.module.PACK_FACTORS[dot]
    step, steps = ocb * at_once, chunk // at_once
    lines = max(1, -(-step // line // today(share)))
    unroll = next(u for u in (8, 4, 2, 1) if steps % u == 0 and (u == 1 or u * step <= line * today(share)))
    assert chunk % at_once == 0 and (not dot or arith.pairs), (dot, chunk)
%>
<%def name="multiply(nv)">\
% for v in range(nv):
            const ${P} b${v} = ${dt.weights(dot, wt, arith.product, vw, "w", v * vw * at_once)};
% endfor
% for m in range(mr):
            {
                const ${P} s = (${P})(${dt.input(dot, xt, "p", f"{m // t.tw * sy * row + m % t.tw * sx * column} + c", src)});
%  for v in range(nv):
%   if dot:
                ${dt.add(dot, vw, f"a{m}_{v}", "s", f"b{v}")}
%   else:
                ${ar.mac(arith, vw, f"a{m}_{v}", "s", f"b{v}")}
%   endif
%  endfor
            }
% endfor
            w += ${step};
</%def>
<%def name="add_chunk(nv)">\
        for (int k = 0; k < ${steps}; k += ${unroll}) {
% if prefetch:
%  for k in range(lines):
            ${pf.fetch_far(f"next_chunk + {line * k}")}
%  endfor
            next_chunk += ${line * lines};
% endif
% if unroll > 1 and mr * nv >= LARGE:
            #pragma clang loop unroll(disable)
<% at = "k" if at_once == 1 else f"{at_once} * k" %>\
            for (int c = ${at}; c < ${at} + ${unroll * at_once}; c += ${at_once}) {
            ${multiply(nv)}
            }
% else:
%  for u in range(unroll):
            {
            const int c = ${f"k + {u}" if at_once == 1 else f"{at_once} * (k + {u})"};
            ${multiply(nv)}
            }
%  endfor
% endif
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
    __local ${arith.acc} sums[${room(share * mr * ocb, most_sums) if passes > 1 else UNSHARED}];
    const int block = get_global_id(0), first_tile = get_global_id(1) * ${share}, n = get_global_id(2);
    if (block >= ${blocks * groups} || first_tile >= ${t.count}) return;
    __global const ${cell(xt)} *src = src_base + src_offset;
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    const int group = block / ${blocks}, part = block % ${blocks};
    const int oc = group * ${oc} + part * ${ocb};
    __global const ${cell(xt)} *image = src + ${index(src, "n", f"group * {ic}", 0, 0)};
    for (int pass = 0; pass < ${passes}; ++pass) {
    const int from = pass % ${chunks} * ${chunk};
    const int ky = pass / ${chunks} / ${kw}, kx = pass / ${chunks} % ${kw};
    __global const ${cell(wt)} *chunk = weights + (block * ${passes} + pass) * ${chunk * ocb};
    for (int tile = first_tile; tile < min(first_tile + ${share}, ${t.count}); ++tile) {
        __local ${arith.acc} *sum = sums + (tile - first_tile) * ${mr * ocb};
        ${px.begin(mode, "tile", t)}
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
    ${px.corner(mode, src, strides, pads, xt)}
        if (pass == ${passes - 1}) {
            ${fi.expect_operands(t)}
        }
        __global const ${cell(xt)} *p = corner + ky * ${dy * row} + kx * ${dx * column} + from;
        __global const ${cell(wt)} *w = chunk, *next_chunk = chunk + ${chunk * ocb} + (tile - first_tile) * ${steps // unroll * line * lines};
        ${fi.each_block(last_nv, add_chunk)}
        if (pass < ${passes - 1}) {
% for m in range(mr):
%  for v in range(nv):
            ${store(vw, f"a{m}_{v}", "sum", str(m * ocb + v * vw), arith.acc, "__local")}
%  endfor
% endfor
        } else {
            ${fi.finish_all(t)}
        }
    }
    }
}
