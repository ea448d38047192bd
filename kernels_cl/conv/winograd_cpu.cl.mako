<%doc>
conv/winograd_cpu: 3 x 3 convolution of stride 1 or 2 by Winograd's F(m x m, 3 x 3), in one kernel or two.

A work-item takes `sets` times `mr` tiles of m x m outputs: it transforms their inputs into local
memory, then for each block of output channels multiplies place by place, set by set, and transforms
back. With several sets the weights of a place stay in the nearest cache from set to set. With
`shared` the inputs of all tiles have been transformed before, by conv/winograd_input.

Tensors  src, dst: images with channels innermost; src has a border as wide as the pads; operands: at any pitches
         spread, if shared and in place of src: [places][groups of tiles][tile_pitch], channels of all convs
         weights: [convs][blocks][places][ic][nv * vw], transformed; places: the square of the inputs of a tile
         along an axis, (m - 1) * strides[0] + 3
         bias: [blocks][nv * vw]
Index    inputs beyond the border, which only outputs beyond dst depend on, read the border's last
         row or column instead. Where vw does not divide the channels, the last vector begins earlier, and
         stores what others do not: its weights of other channels are zeros
Launch   global (groups of tiles, parts of the blocks, convs)
Params   name, src, dst, pads, post_ops, operands, extra_types, prefetch, wg: as of conv/direct
         types: of src, of dst the last
         ic, oc: channels of a group
         convs: groups of channels
         strides: (y, x), equal, and 1 where shared
         reach: last row and column of src, border included, counted from src's first
         bt, at: matrices of input and output
         has_bias {0,1}
         near: elements of src or dst above which the next group's inputs, or the lines of results, are asked for
         while a group's products are summed
         pool: how each 2 x 2 results are pooled to one of dst, "max" or "average"; "" for not at all
Tunables m {2,3,4,6}      outputs of a tile along an axis; even where they are pooled
         mr {1..28}       tiles of a register tile
         nv {1,2,3,4}     vectors of output channels
         vw {4,8,16}      channels of a vector, at most ic and oc; divides ic where shared
         sets             of mr tiles that a work-item takes, up to most_sets
         parts            shares of the blocks
         shared {0,1}
         tile_pitch       of a tile's channels when transformed, at least ic
</%doc>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%namespace name="pl" file="/_common/pooling.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%namespace name="wg_" file="/_common/winograd.cl.mako"/>
<%!
import math
READ_AHEAD = 32  # steps of the inner loop by which weights are read ahead
LINE = 16  # floats of a cache line
%>
<%
    stride = strides[0]
    n = (m - 1) * stride + 3
    places = n * n
    ocb = nv * vw
    blocks = -(-oc // ocb)
    share = -(-blocks // parts)
    tail = -(-(oc - (blocks - 1) * ocb) // vw)
    over = -oc % vw
    batch, _, oh, ow = dst.shape
    if pool:
        oh, ow = 2 * oh, 2 * ow
    assert pool in ("", "max", "average") and not (pool and m % 2), (pool, m)
    high, wide = -(-oh // m), -(-ow // m)
    tiles = batch * high * wide
    held = sets * mr
    groups = -(-tiles // held)
    space, rows = ("__global", f"place * {groups * held} + group * {held}") if shared else ("__local", f"place * {held}")
    assert min(ic, oc) >= vw and not (shared and ic % vw), (ic, oc, vw)
    assert strides[1] == stride and (stride == 1 or not shared), strides
    assert src.pitches[1] == 1 and dst.pitches[1] == 1, "channels must be innermost"
    next_inputs = -(-mr * tile_pitch // ic)
    # Lines of the next place's weights that a step of the inner loop reads ahead, with several sets.
    next_lines = -(-ocb // LINE // (2 if is_traced(sets) else sets))
    # Rows of the next group's inputs that each run of the inner loop reads ahead, tile by tile.
    runs = today(share * places * sets) // today(held)
    rows_ahead = -(-n // max(1, min(n, runs)))
    side = m // 2 if pool else m  # of what a tile writes
    out_rows = -(-today(held) * side // places)
    turns = -(-n // rows_ahead)
    def is_far(image):
        return prefetch and math.prod(map(today, image.shape)) > near
    ahead = is_far(src) and not shared and not is_traced(src.pitches[3]) and src.pitches[3] == ic
    V = vec_type("float", vw)
    xt, yt = "float" if shared else types[0], types[3]
    first = f"conv * {oc} + " if convs > 1 else ""  # channel of the output
%>
<%def name="stored(value, row, column)">\
<% where = index(dst, "n", "oc", row, column) %>\
% if over:
                    if (oc != lane) {
                        ${tl.store_lanes(vw, value, "dst", where, 1, over, vw, yt)}
                    } else {
                        ${store(vw, value, "dst", where, yt)}
                    }
% else:
                    ${store(vw, value, "dst", where, yt)}
% endif
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(xt)} *src_base, const int src_offset, __global const float *weights,
% if has_bias:
    __global const float *bias,
% endif
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k}_base, const int extra${k}_offset,
% endfor
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
    typedef ${V} V;
% if not shared:
    __local float spread[${room(places * held * tile_pitch, places * most_sets * mr * tile_pitch)}];
% endif
    __local float products[${room(places * held * ocb, places * most_sets * mr * ocb)}];
    const int group = get_global_id(0), part = get_global_id(1);
    if (group >= ${groups} || part >= ${parts}) return;
% if convs > 1:
    const int conv = get_global_id(2);
    if (conv >= ${convs}) return;
    weights += conv * ${blocks * places * ic * ocb};
    src_base += conv * ${ic};
% endif
% if shared:
    __global const float *spread = src_base + src_offset;
% else:
    __global const ${cell(xt)} *src = src_base + src_offset;
% endif
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
% if not shared:
    for (int t = 0; t < ${held}; ++t) {
        const int tile = min(group * ${held} + t, ${tiles - 1});
        const int image = tile / ${high * wide}, top = tile / ${wide} % ${high} * ${m * stride}, left = tile % ${wide} * ${m * stride};
        __global const ${cell(xt)} *from = src + image * ${src.pitches[0]};
% for i in range(n):
        __global const ${cell(xt)} *row${i} = from + min(top + ${i - pads[0]}, ${reach[0]}) * ${src.pitches[2]};
        const size_t x${i} = min(left + ${i - pads[1]}, ${reach[1]}) * ${src.pitches[3]};
% endfor
% if ic % vw:
        for (int k = 0; k < ${ic}; k += ${vw}) {
            const int c = min(k, ${ic - vw});
% else:
        for (int c = 0; c < ${ic}; c += ${vw}) {
% endif
            __local float *to = spread + t * ${tile_pitch} + c;
<%
    def input(i, j):
        return load(xt, vw, f"row{i}", f"x{j} + c")
    def keep(i, j, value):
        return store(vw, value, "to", str((i * n + j) * held * tile_pitch), "float", "__local")
%>\
            ${wg_.tile(bt, input, keep)}
        }
    }
% endif
    for (int block = part * ${share}; block < min(part * ${share} + ${share}, ${blocks}); ++block) {
    for (int place = 0; place < ${places}; ++place) {
    __global const float *here = weights + (block * ${places} + place) * ${ic * ocb};
% if is_far(dst):
    for (int row = place * ${out_rows}; row < place * ${out_rows} + ${out_rows}; ++row) {
        const int tile = min(group * ${held} + row / ${side}, ${tiles - 1});
        const int n = tile / ${high * wide}, y = tile / ${wide} % ${high} * ${side} + row % ${side}, left = tile % ${wide} * ${side};
        __global ${cell(yt)} *line = dst + ${index(dst, "n", f"{first}block * {ocb}", "y", "left")};
%  for b in range(side):
%   for v in range(0, ocb, LINE):
        ${pf.fetch_to_write(f"line + {b} * {dst.pitches[3]} + {v}")}
%   endfor
%  endfor
    }
% endif
    for (int set = 0; set < ${sets}; ++set) {
        __global const float *w = here;
        ${space} const float *a = spread + (${rows} + set * ${mr}) * ${tile_pitch};
% if ahead:
        const int turn = ((block - part * ${share}) * ${places} + place) * ${sets} + set;
        const int later = min((group + 1) * ${held} + turn / ${turns}, ${tiles - 1});
        const int low = later / ${wide} % ${high} * ${m * stride} + turn % ${turns} * ${rows_ahead};
        __global const ${cell(xt)} *soon = src + later / ${high * wide} * ${src.pitches[0]}
            + (low - ${pads[0]}) * ${src.pitches[2]} + (later % ${wide} * ${m * stride} + ${n - m * stride - pads[1]}) * ${ic};
% endif
% for t in range(mr):
        V ${", ".join(f"p{t}_{v} = (V)(0.0f)" for v in range(nv))};
% endfor
        for (int k = 0; k < ${ic}; ++k) {
% for v in range(nv):
            const V b${v} = ${load("float", vw, "w", str(v * vw))};
% endfor
% for t in range(mr):
            {
                const V s = (V)(a[${t * tile_pitch} + k]);
%  for v in range(nv):
                p${t}_${v} = fma(s, b${v}, p${t}_${v});
%  endfor
            }
% endfor
% if prefetch and today(sets) == 1:
%  for v in range(0, ocb, LINE):
            ${pf.fetch(f"w + {READ_AHEAD * ocb + v}")}
%  endfor
% elif prefetch:
%  for line in range(next_lines):
            ${pf.fetch_far(f"here + {ic * ocb} + (set * {ic} + k) * {next_lines * LINE} + {line * LINE}")}
%  endfor
% endif
% if prefetch:
%  for v in range(0, next_inputs, LINE):
            ${pf.fetch(f"a + {mr * tile_pitch + v} + k * {next_inputs}")}
%  endfor
% endif
% if ahead:
%  for r in range(rows_ahead):
            ${pf.fetch_far(f"soon + {r} * {src.pitches[2]} + k * {m * stride}")}
%  endfor
% endif
            w += ${ocb};
        }
        __local float *product = products + (place * ${held} + set * ${mr}) * ${ocb};
% for t in range(mr):
%  for v in range(nv):
        ${store(vw, f"p{t}_{v}", "product", str(t * ocb + v * vw), "float", "__local")}
%  endfor
% endfor
    }
    }
    for (int t = 0; t < ${held}; ++t) {
        const int tile = group * ${held} + t;
        if (tile >= ${tiles}) break;
        const int n = tile / ${high * wide}, top = tile / ${wide} % ${high} * ${m}, left = tile % ${wide} * ${m};
        const int vectors = ${nv if tail == nv else f"block == {blocks - 1} ? {tail} : {nv}"};
        for (int v = 0; v < vectors; ++v) {
% if over:
            const int lane = ${first}block * ${ocb} + v * ${vw}, oc = min(lane, ${first}${oc - vw});
% else:
            const int oc = ${first}block * ${ocb} + v * ${vw};
% endif
            __local const float *from = products + t * ${ocb} + v * ${vw};
            V half_way[${m * n}];
            for (int j = 0; j < ${n}; ++j) {
% for i in range(n):
                const V d${i} = ${load("float", vw, "from", f"({i * n} + j) * {held * ocb}")};
% endfor
                ${wg_.by_columns(at, lambda i: f"half_way[{i * n} + j]", lambda k: f"d{k}")}
            }
% if pool:
            V above[${m // 2}];
% endif
            for (int y = top; y < min(top + ${m}, ${oh}); ++y) {
                V ${", ".join(f"r{b}" for b in range(m))};
                ${wg_.by_columns(at, lambda b: f"r{b}", lambda k: f"half_way[(y - top) * {n} + {k}]")}
% for b in range(m):
%  if is_traced(ow) or (ow % m and b > (ow - 1) % m):
                if (left + ${b} < ${ow}) {
%  else:
                {
%  endif
%  if has_bias:
                    r${b} += ${load("float", vw, "bias", "oc")};
%  endif
<%
    def operand(which):
        k, layout = operands[which]
        pitch = layout.pitches[1] if layout.shape[1] != 1 else 0
        where = index(layout, "n", "oc", "y", f"(left + {b})")
        return capture(tl.load_lanes, vw, f"extra{k}", where, pitch, vw, extra_types[k]).strip()
%>\
                    ${st.apply(post_ops, f"r{b}", "float", vw, operand)}
% if not pool:
                    ${stored(f"r{b}", "y", f"(left + {b})")}
% elif b % 2:
                    ${pl.module.join(pool, f"r{b}", f"r{b - 1}", "float")}
                    if (y % 2 == 0) {
                        above[${b // 2}] = r${b};
                    } else {
                        ${pl.module.join(pool, f"r{b}", f"above[{b // 2}]", "float")}
%  if pool == "average":
                        r${b} *= 0.25f;
%  endif
                        ${stored(f"r{b}", "(y / 2)", f"((left + {b}) / 2)")}
                    }
% endif
                }
% endfor
            }
        }
    }
    }
}
