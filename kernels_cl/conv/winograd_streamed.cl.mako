<%doc>
conv/winograd_streamed: 3 x 3 convolution by Winograd's F(my x mx, 3 x 3), of weights that stream from memory.

A work-item takes `sets` times `mr` tiles of my x mx outputs and transforms their inputs into local memory. Then
it takes the weights of each block of output channels, row of places by row of places, `chunk` input channels at a
time. Columns of the window are transformed, rows are not: memory gives my + 2 times 3 weights for a pair of channels
where a tile has my + 2 times mx + 2 of them. Those of a chunk are transformed, and multiplied with all tiles while they
are in the nearest cache, as are the sums, which wait in local memory; meanwhile the chunk after the next is read ahead.

Tensors  src, dst: images with channels innermost; src has a border as wide as the pads; operands: at any pitches
         weights: [convs][blocks][my + 2][ic][nv][3][vw]
         bias: [convs][oc]
Index    inputs beyond the border, which only outputs beyond dst depend on, read the border's last
         row or column instead
Launch   global (groups of tiles, parts of the blocks, convs)
Params   name, src, dst, pads, post_ops, operands, extra_types, prefetch, wg: as of conv/direct
         types: of src, of dst the last
         ic, oc: channels of a group
         convs: groups of channels
         reach: last row and column of src, border included, counted from src's first
         bt, at: (along y, along x), matrices of input and output; that of outputs along x takes in what weights are
         not divided by
         g: matrix of weights along x, in integers
         has_bias {0,1}
Tunables my, mx {2,4}     outputs of a tile along each axis
         mr {1..28}       tiles of a register tile
         nv {1,2,3,4}     vectors of output channels
         vw {4,8,16}      channels of a vector, a divisor of ic and oc
         chunk            input channels at a time, a divisor of ic, a multiple of vw
         sets             of mr tiles that a work-item takes
         parts            shares of the blocks
</%doc>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%namespace name="wg_" file="/_common/winograd.cl.mako"/>
<%!
LINE = 16  # floats of a cache line
TAPS = 3  # of a row of the window
%>
<%
    ny, nx = my + 2, mx + 2
    places = ny * nx
    ocb = nv * vw
    blocks = -(-oc // ocb)
    share = -(-blocks // parts)
    tail = -(-(oc - (blocks - 1) * ocb) // vw)
    batch, _, oh, ow = dst.shape
    high, wide = -(-oh // my), -(-ow // mx)
    tiles = batch * high * wide
    held = sets * mr
    groups = -(-tiles // held)
    chunks = ic // chunk
    units = chunk * nv  # of TAPS vectors of weights, in a chunk
    # Lines of weights that each step of a product reads ahead.
    lines = -(-TAPS * ocb // (LINE * nx * sets))
    ahead = max(0, 2 * TAPS * ocb - nx * sets * lines * LINE) * chunk  # the last ones end the chunk after the next
    here = chunk * ocb + vw  # elements from place to place, which share no lines of a cache
    assert ic % chunk == 0 and chunk % vw == 0 and oc % vw == 0, (ic, oc, chunk, vw)
    assert tuple(strides) == (1, 1), strides
    assert src.pitches[1] == 1 and dst.pitches[1] == 1, "channels must be innermost"
    V = vec_type("float", vw)
    xt, yt = types[0], types[3]
    first = f"conv * {oc} + " if convs > 1 else ""  # channel of the output
%>
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
    __local float spread[${places * held * ic}];
    __local float near[${nx * here}];
    __local float products[${places * held * ocb}];
    const int group = get_global_id(0), part = get_global_id(1);
    if (group >= ${groups} || part >= ${parts}) return;
% if convs > 1:
    const int conv = get_global_id(2);
    if (conv >= ${convs}) return;
    weights += conv * ${blocks * ny * ic * TAPS * ocb};
    src_base += conv * ${ic};
% endif
    __global const ${cell(xt)} *src = src_base + src_offset;
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    for (int t = 0; t < ${held}; ++t) {
        const int tile = min(group * ${held} + t, ${tiles - 1});
        const int image = tile / ${high * wide}, top = tile / ${wide} % ${high} * ${my}, left = tile % ${wide} * ${mx};
        int y[${ny}], x[${nx}];
        for (int i = 0; i < ${ny}; ++i) y[i] = min(top + i - ${pads[0]}, ${reach[0]}) * ${src.pitches[2]};
        for (int i = 0; i < ${nx}; ++i) x[i] = min(left + i - ${pads[1]}, ${reach[1]}) * ${src.pitches[3]};
        __global const ${cell(xt)} *from = src + image * ${src.pitches[0]};
        for (int c = 0; c < ${ic}; c += ${vw}) {
            V half_way[${places}];
            for (int j = 0; j < ${nx}; ++j) {
% for i in range(ny):
                const V d${i} = ${load(xt, vw, "from", f"y[{i}] + x[j] + c")};
% endfor
                ${wg_.by_rows(bt[0], lambda i: f"half_way[{i * nx} + j]", lambda k: f"d{k}")}
            }
            __local float *at_chunk = spread + c / ${chunk} * ${nx * held * chunk} + t * ${chunk} + c % ${chunk};
            for (int i = 0; i < ${ny}; ++i) {
                V ${", ".join(f"r{j}" for j in range(nx))};
                ${wg_.by_rows(bt[1], lambda j: f"r{j}", lambda k: f"half_way[i * {nx} + {k}]")}
                __local float *to = at_chunk + i * ${nx * held * ic};
% for j in range(nx):
                ${store(vw, f"r{j}", "to", str(j * held * chunk), "float", "__local")}
% endfor
            }
        }
    }
    const int begin = part * ${share}, end = min(begin + ${share}, ${blocks});
    __global const float *w = weights + begin * ${ny * ic * TAPS * ocb};
    for (int block = begin, step = 0; block < end;) {
    const int row = step / ${chunks};
    __local const float *a = spread + step * ${nx * held * chunk};
    __local const float *b = near;
    __local float *product = products + row * ${nx * held * ocb};
    for (int unit = 0; unit < ${units}; ++unit) {
        V ${", ".join(f"r{j}" for j in range(nx))};
        {
% for k in range(TAPS):
            const V d${k} = ${load("float", vw, "w", str(k * vw))};
% endfor
            ${wg_.by_rows(g, lambda j: f"r{j}", lambda k: f"d{k}")}
        }
        __local float *to = near + unit * ${vw};
% for j in range(nx):
        ${store(vw, f"r{j}", "to", str(j * here), "float", "__local")}
% endfor
        w += ${TAPS * vw};
    }
    for (int place = 0; place < ${nx}; ++place) {
    for (int set = 0; set < ${sets}; ++set) {
        V ${", ".join(f"p{t}_{v}" for t in range(mr) for v in range(nv))};
        if (step % ${chunks} == 0) {
% for t in range(mr):
            ${" ".join(f"p{t}_{v} = (V)(0.0f);" for v in range(nv))}
% endfor
        } else {
% for t in range(mr):
%  for v in range(nv):
            p${t}_${v} = ${load("float", vw, "product", str(t * ocb + v * vw))};
%  endfor
% endfor
        }
% if prefetch:
%  for v in range(mr * chunk, 2 * mr * chunk, LINE):
        ${pf.fetch(f"a + {v}")}
%  endfor
% endif
        for (int k = 0; k < ${chunk}; ++k) {
% if prefetch:
%  for line in range(lines):
            ${pf.fetch(f"w + {ahead + line * LINE} + ((place * {sets} + set) * {chunk} + k) * {lines * LINE}")}
%  endfor
% endif
% for v in range(nv):
            const V b${v} = ${load("float", vw, "b", f"k * {ocb} + {v * vw}")};
% endfor
% for t in range(mr):
            {
                const V s = (V)(a[${t * chunk} + k]);
%  for v in range(nv):
                p${t}_${v} = fma(s, b${v}, p${t}_${v});
%  endfor
            }
% endfor
        }
% for t in range(mr):
%  for v in range(nv):
        ${store(vw, f"p{t}_{v}", "product", str(t * ocb + v * vw), "float", "__local")}
%  endfor
% endfor
        a += ${mr * chunk};
        product += ${mr * ocb};
    }
    b += ${here};
    }
    if (++step < ${ny * chunks}) continue;
    step = 0;
    for (int t = 0; t < ${held}; ++t) {
        const int tile = group * ${held} + t;
        if (tile >= ${tiles}) break;
        const int n = tile / ${high * wide}, top = tile / ${wide} % ${high} * ${my}, left = tile % ${wide} * ${mx};
        const int vectors = ${nv if tail == nv else f"block == {blocks - 1} ? {tail} : {nv}"};
        for (int v = 0; v < vectors; ++v) {
            const int oc = ${first}block * ${ocb} + v * ${vw};
            __local const float *from = products + t * ${ocb} + v * ${vw};
            V half_way[${my * nx}];
            for (int j = 0; j < ${nx}; ++j) {
% for i in range(ny):
                const V d${i} = ${load("float", vw, "from", f"({i * nx} + j) * {held * ocb}")};
% endfor
                ${wg_.by_columns(at[0], lambda i: f"half_way[{i * nx} + j]", lambda k: f"d{k}")}
            }
            for (int y = top; y < min(top + ${my}, ${oh}); ++y) {
                V ${", ".join(f"r{b}" for b in range(mx))};
                ${wg_.by_columns(at[1], lambda b: f"r{b}", lambda k: f"half_way[(y - top) * {nx} + {k}]")}
% for b in range(mx):
%  if ow % mx and b > (ow - 1) % mx:
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
                    ${store(vw, f"r{b}", "dst", index(dst, "n", "oc", "y", f"(left + {b})"), yt)}
                }
% endfor
            }
        }
    }
    ++block;
    }
}
