<%doc>
conv/depthwise: convolution with one filter per channel, `tx` output columns at a time in registers; or
with `each` filters per channel, whose outputs lie side by side in a vector that spreads fewer inputs; or
of groups of `taken` input channels, one of which at a time is spread over its group's outputs:

    inputs of a vector, groups of 2   a b | c d | e f | g h
    spread, first inputs              a a | c c | e e | g g     then b b | d d | f f | h h

A work-item takes a vector of channels. Taps of neighbouring outputs share the inputs they read; with up
to 9 taps the filter stays in registers too:

    inputs of a row    i0  i1  i2  i3  i4     each read once
    outputs, tx = 3    o0  o1  o2             o0 = i0 w0 + i1 w1 + i2 w2, o1 = i1 w0 + ...

Tensors  src: image with channels innermost, seen as (n, c, h, w), with the border that the taps reach
         dst, operands: images of any pitches
         weights: [kh][kw][taken][c], c those of the output; or, unless tile_per_item, [vectors][kh][kw][taken][vw],
                  so that the weights of a vector lie in a few lines and pages, and not in a few sets of a cache
         table: [rows][c], constants of the arithmetic
Index    where vw does not divide c, the last vector begins earlier and stores what others do not
Launch   global (channel vectors, row bands, batch): a work-item walks all columns of a band; or, where
         tile_per_item, (channel vectors x column tiles x row bands, 1, batch): it takes one tile of
         columns. Then neighbours read and write neighbouring vectors of a pixel, and a GPU's groups are
         full however few channels there are; what taps share is left to the cache, since it is read
         a few times only, and a barrier would cost more
Params   name, arith, types, rows, src, dst, kernel, strides, dilations, pads, post_ops, operands,
         extra_types, scales, wg: as of conv/direct
         each {1,2,4,8}: outputs of a group; more than one divide vw, which divides the channels
         taken {1,2,4,8}: inputs of a group, 1 or `each`
         tile_per_item {0,1}
         aligned {0,1}: vectors of src and of weights are
         inside {0,1}: taps that meet the border are left out, and it is not read. Tiles of columns that meet it are
                       written out, so extents are known. With one filter per channel of floats, not with near or
                       tile_per_item
         prefetch {0,1}: as of conv/direct
Tunables vw {1,2,4,8,16}  channels of a vector, at most c
         tx               output columns at a time
         band             output rows of a work-item
         near             0, or vectors of the input: rows that taps reach are copied to private memory of so
                          many at most, each once, and read there, since pixels lie in many pages. The row after
                          them and the lines of results are asked for meanwhile. With one filter per channel, not
                          with tile_per_item
</%doc>
<%!
from clnn.arith.real_fours import ends_of_fours
from clnn.ops.conv.edges import Edges, column_tiles
%>\
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="dt" file="/_common/dot.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%namespace name="sc" file="/_common/scales.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%
    kh, kw = kernel
    sy, sx = strides
    dy, dx = dilations
    channels = dst.shape[1]
    oh, ow = dst.shape[2:]
    xt, wt, tt, yt = types
    P, V = vec_type(arith.product, vw), vec_type(arith.acc, vw)
    assert channels >= vw, (channels, vw)
    over = -channels % vw
    pitch = dst.pitches[1] if channels > 1 else 1
    assert src.pitches[1] == 1 or channels == 1, "channels of src must be innermost"
    in_registers = kh * kw <= 9 and taken == 1
    whole = ow - ow % tx
    tiles, vectors = -(-ow // tx), -(-channels // vw)
    shared = tile_per_item and ow % tx != 0
    assert not tile_per_item or tx <= ow, (tx, ow)
    assert each == 1 or (vw > each and vw % each == over == 0 and not tile_per_item), (vw, each, channels)
    assert taken in (1, each), (taken, each)
    assert not near or each == taken == 1 and not tile_per_item, (each, taken, tile_per_item)
    assert not inside or each == taken == 1 and not (near or tile_per_item or is_traced(ow)), (each, near, tile_per_item)
    reach, columns_read = (kh - 1) * dy + 1, (ow - 1) * sx + (kw - 1) * dx + 1
    step = channels if tile_per_item else vw  # from tap to tap in weights
    ahead = -(-columns_read // tiles)  # columns of the next row that a tile asks for
    assert not aligned or (xt == wt == arith.product and not over), (xt, wt, over)
    def weight(ky, kx):
        return f"w{ky}_{kx}" if in_registers else loaded(wt, "w", (ky * kw + kx) * step)
    def loaded(ctype, pointer, where):
        if aligned:
            return f"*(__global const {P} *)({pointer} + {where})"
        return capture(dt.weights, "", ctype, arith.product, vw, pointer, where).strip()
    def inputs(where, pointer="p", i=0):
        if each == 1:
            return loaded(xt, pointer, where)
        spread = "".join(f"{k // each * taken + i:x}" for k in range(vw))
        return f"({load(xt, vw // each * taken, pointer, where)}).s{spread}"
    def tap(ky, column):
        if near:
            return f"r{ky}[{column}]"
        found = inputs(ky * dy * src.pitches[2] + column * src.pitches[3])
        return f"({found} - {scalar(float(arith.zero))}) * {scalar(arith.step_in)}" if arith.fours else found
    edges = Edges.of(src, dst, dict(kernel=kernel, strides=strides, dilations=dilations, pads=pads)) if inside else None
    ends = list(ends_of_fours(kh * kw))
    assert not arith.fours or each == 1 and not near, (each, near)
    def row(k):
        return load(tt, vw, "table", f"{k * channels} + c" if k else "c")
    def operand(which):
        k, layout = operands[which]
        pitch = layout.pitches[1] if layout.shape[1] != 1 else 0
        where = index(layout, "n", "c", "y", "xo")
        return capture(tl.load_lanes, vw, f"extra{k}", where, pitch, vw, extra_types[k]).strip()
%>
<%def name="row_by_inputs(taps)">\
        for (int ky = 0; ky < ${kh}; ++ky) {
        __global const ${cell(xt)} *q = p + ky * ${dy * src.pitches[2]};
        __global const ${cell(wt)} *f = w + ky * ${kw * taken * step};
% for i in range(taken):
        {
%  for kx in range(kw):
            const ${P} w${kx} = ${loaded(wt, "f", (kx * taken + i) * step)};
%  endfor
%  for column in sorted(taps):
            {
                const ${P} s = ${inputs(column * src.pitches[3], "q", i)};
%   for t, kx in taps[column]:
                ${ar.mac(arith, vw, f"a{t}", "s", f"w{kx}")}
%   endfor
            }
%  endfor
        }
% endfor
        }
</%def>
<%def name="asked(count)">\
<% place = index(dst, "n", "c", "y", f"(x + k)") %>\
% for r in range(min(sy, reach)):
        for (int k = 0; k < ${ahead}; ++k) ${pf.fetch_far(f"image + (y * {sy} + {sy + reach - 1 - r}) * {src.pitches[2]} + (x / {tx} * {ahead} + k) * {src.pitches[3]}")}
% endfor
        for (int k = 0; k < ${count}; ++k) ${pf.fetch_to_write(f"dst + {place}")}
</%def>
<%def name="pixels()">\
% if near:
%  for ky in range(kh):
        const ${P} *r${ky} = lines + (y * ${sy} + ${ky * dy}) % ${reach} * ${columns_read} + x * ${sx};
%  endfor
% else:
        __global const ${cell(xt)} *p = row + x * ${sx * src.pitches[3]};
% endif
</%def>
<%def name="add(t, ky, kx)">\
% if arith.fours:
p${t} = p${t} + s * ${weight(ky, kx)};\
%  if ends[ky * kw + kx]:
 a${t} = a${t} + p${t}, p${t} = 0.0f;\
%  endif
% else:
${ar.mac(arith, vw, f"a{t}", "s", weight(ky, kx))}\
% endif
</%def>
<%def name="columns(count, start=None)">\
% if near and prefetch:
        ${asked(count)}
% endif
% for t in range(count):
        ${V} a${t} = first${f", p{t} = 0.0f" if arith.fours else ""};
% endfor
<% taps = {} %>\
% for t in range(count):
%  for kx in range(kw):
%   if start is None or edges.has_column(start + t, kx):
<% taps.setdefault(t * sx + kx * dx, []).append((t, kx)) %>\
%   endif
%  endfor
% endfor
% if taken > 1:
        ${row_by_inputs(taps)}
% endif
% for ky in range(kh if taken == 1 else 0):
<% condition = edges.row_condition(ky) if inside else "" %>\
        ${f"if ({condition})" if condition else ""} {
%  for column in sorted(taps):
        {
            const ${P} s = ${tap(ky, column)};
%   for t, kx in taps[column]:
            ${add(t, ky, kx)}
%   endfor
        }
%  endfor
        }
% endfor
% for t in range(count):
        {
            const int xo = x + ${t};
            ${ar.finish(arith, vw, f"a{t}", "result", row)}
<% value = arith.result(f"a{t}", "result") %>\
            ${st.apply(post_ops, value, yt, vw, operand)}
% if shared:
            if (xo >= first_x)
% endif
% if over:
            if (c != lane) {
                ${tl.store_lanes(vw, value, "dst", index(dst, "n", "c", "y", "xo"), pitch, over, vw, yt)}
            } else
% endif
            {
                ${tl.store_lanes(vw, value, "dst", index(dst, "n", "c", "y", "xo"), pitch, 0, vw, yt)}
            }
        }
% endfor
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
% if tile_per_item:
    const int id = get_global_id(0), n = get_global_id(2);
    const int lane = id % ${vectors} * ${vw}, tile = id / ${vectors} % ${tiles};
% else:
    const int lane = get_global_id(0) * ${vw}, n = get_global_id(2);
% endif
    const int c = ${f"min(lane, {channels - vw})" if over else "lane"};
% if tile_per_item:
    const int from = id / ${vectors * tiles} * ${band}, to = min(from + ${band}, ${oh});
    if (from >= ${oh}) return;
% else:
    const int from = get_global_id(1) * ${band}, to = min(from + ${band}, ${oh});
    if (lane >= ${channels}) return;
% endif
    __global const ${cell(wt)} *w = weights + ${"c" if tile_per_item else f"get_global_id(0) * {kh * kw * taken * vw}"};
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
% if in_registers:
%  for ky in range(kh):
%   for kx in range(kw):
    const ${P} w${ky}_${kx} = ${loaded(wt, "w", (ky * kw + kx) * step)};
%   endfor
%  endfor
% endif
    const ${V} first = ${ar.start(arith, vw, rows, row)};
    __global const ${cell(xt)} *image = src_base + src_offset + ${index(src, "n", f"c / {each // taken}" if each > taken else "c", 0, 0)} - ${pads[0] * src.pitches[2] + pads[1] * src.pitches[3]};
% if near:
    ${P} lines[${room(reach * columns_read, near)}];
% endif
    for (int y = from; y < to; ++y) {
% if near:
    for (int r = y == from ? y * ${sy} : max(y * ${sy}, (y - 1) * ${sy} + ${reach}); r < y * ${sy} + ${reach}; ++r) {
        __global const ${cell(xt)} *q = image + r * ${src.pitches[2]};
        ${P} *line = lines + r % ${reach} * ${columns_read};
        for (int x = 0; x < ${columns_read}; ++x) line[x] = ${inputs(f"x * {src.pitches[3]}", "q")};
    }
% else:
    __global const ${cell(xt)} *row = image + y * ${sy * src.pitches[2]};
% endif
% if tile_per_item:
    {
        const int first_x = tile * ${tx}, x = ${f"min(first_x, {ow - tx})" if shared else "first_x"};
        __global const ${cell(xt)} *p = row + x * ${sx * src.pitches[3]};
        ${columns(tx)}
    }
% elif is_traced(ow):
    if (${ow} >= ${tx}) {
        for (int start_x = 0; start_x < ${ow}; start_x += ${tx}) {
            const int x = min(start_x, ${ow - tx});
            ${pixels()}
            ${columns(tx)}
        }
    } else {
        for (int x = 0; x < ${ow}; ++x) {
            ${pixels()}
            ${columns(1)}
        }
    }
% elif inside:
%  for first, last, count, free in edges.runs(column_tiles(ow, tx)):
    for (int x = ${first}; x <= ${last}; x += ${tx}) {
        ${pixels()}
        ${columns(count, None if free else first)}
    }
%  endfor
% elif whole:
    for (int x = 0; x < ${whole}; x += ${tx}) {
        ${pixels()}
        ${columns(tx)}
    }
% endif
% if not is_traced(ow) and ow % tx and not (tile_per_item or inside):
    {
        const int x = ${whole};
        ${pixels()}
        ${columns(ow % tx)}
    }
% endif
    }
}
