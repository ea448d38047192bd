<%doc>
conv/winograd_bytes: 3 x 3 convolution of bytes of stride 1 by Winograd's F(4 x 4, 3 x 3), exact.

Inputs and weights are transformed in 16 bits, in matrices of integers: what F(4, 3) divides by is left
for the end. All sums are those of 32 bits that wrap; what they come to is 3 * 3 * 2^k times the plain
sum, so that an inverse of 9 and a shift give the plain sum wherever it fits 26 bits. Bytes count from 128.

A work-item takes `sets` times `mr` tiles of 4 x 4 outputs: it transforms their inputs into local memory,
then for each block of output channels multiplies place by place, set by set, and transforms back.

Tensors  src, dst: images with channels innermost; src has a border as wide as the pads
         weights: [blocks][36 places][ic / 2][nv * vw][2 channels], transformed; pairs in the order of
         pairs_of in clnn/ops/conv/winograd_bytes.py
         table: [rows][blocks][nv * vw], constants of the arithmetic
Index    inputs beyond the border, which only outputs beyond dst depend on, read the border's last
         row or column instead
Launch   global (groups of tiles, parts of the blocks)
Params   name, src, dst, pads, post_ops, operands, extra_types, scales, arith, rows, narrow, prefetch, wg: as
         of conv/direct
         types: of src, weights, table and dst
         ic, oc
         reach: last row and column of src, border included, counted from src's first
         bt, at: matrices of input and output, of integers
         dot: how products of shorts are added (_common/dot.cl.mako)
Tunables mr {1..28}       tiles of a register tile
         nv {1,2,3,4}     vectors of output channels
         vw {8,16}        channels of a vector, divides oc
         lanes {1..16}    words of four input channels that are transformed at once
         sets             of mr tiles that a work-item takes
         parts            shares of the blocks
         tile_pitch       of a tile's pairs when transformed, at least ic / 2
</%doc>
<%namespace name="by" file="/_common/conv_bytes.cl.mako"/>
<%namespace name="dt" file="/_common/dot.cl.mako"/>
<%namespace name="na" file="/_common/narrow.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%namespace name="sc" file="/_common/scales.cl.mako"/>
<%namespace name="wg_" file="/_common/winograd.cl.mako"/>
<%!
from clnn.ops.shared.functions import FUNCTIONS
READ_AHEAD = 32  # steps of the inner loop by which weights are read ahead
LINE = 16  # words of a cache line
M, N = 4, 6  # outputs and inputs of a tile along an axis
NINTH = 954437177  # times 9 it is 1, in 32 bits
SHIFTS = (3, 2, 1, 1)  # the power of 2 that each output along an axis is multiplied by
MIDDLE = 128 * 6  # what inputs of 128 are in the second row, with the other sign
%>
<%
    places, pairs = N * N, ic // 2
    ocb = nv * vw
    blocks = -(-oc // ocb)
    share = -(-blocks // parts)
    tail = (oc - (blocks - 1) * ocb) // vw
    batch, _, oh, ow = dst.shape
    high, wide = -(-oh // M), -(-ow // M)
    tiles = batch * high * wide
    held = sets * mr
    groups = -(-tiles // held)
    assert oc % vw == 0 and ic % (4 * lanes) == 0, (ic, oc, vw, lanes)
    assert src.pitches[1] == 1 and dst.pitches[1] == 1, "channels must be innermost"
    assert len(post_ops) <= 1 and narrow, (post_ops, narrow)
    next_inputs = -(-mr * tile_pitch // pairs)
    next_lines = -(-ocb // LINE // sets)  # of the next place's weights, that a step reads ahead with several sets
    beside = 2 if 2 * lanes <= vw else 1  # tiles that are transformed at once
    I, U, S = vec_type("int", vw), vec_type("uint", beside * lanes), vec_type("int", beside * lanes)
    def beyond(extent, k):
        """Whether output k of a tile may lie behind the last one."""
        return is_traced(extent) or (extent % M and k > (extent - 1) % M)
    def words(u, i):
        return small_vector(vec_type("uint", lanes), f"from{u}", f"y{u}[{i}] + x{u}[j] + 4 * c")
    xt, tt, yt = types[0], types[2], types[3]
    tables = [step for step in post_ops if FUNCTIONS[step.fn].looks_up]
    step = post_ops[0] if post_ops and not tables else None
%>
<%def name="transform(of, first)">\
                ${wg_.by_rows(bt, lambda i: f"{of}[{i * N} + j]", lambda k: first.format(k))}
                ${of}[${N} + j] += (V)(${MIDDLE});
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(xt)} *src_base, const int src_offset, __global const short *weights,
    __global const ${cell(tt)} *table,
${sc.parameters(scales, extra_types)}\
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
${sc.declare(scales, arith.strict)}\
    __local int spread[${places * held * tile_pitch}];
    __local int products[${places * held * ocb}];
    const int group = get_global_id(0), part = get_global_id(1);
    if (group >= ${groups} || part >= ${parts}) return;
    __global const ${cell(xt)} *src = src_base + src_offset;
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    {
    typedef short V __attribute__((ext_vector_type(${2 * beside * lanes})));
    for (int t = 0; t < ${held}; t += ${beside}) {
% for u in range(beside):
        const int slot${u} = ${f"min(t + {u}, {held - 1})" if u else "t"}, tile${u} = min(group * ${held} + slot${u}, ${tiles - 1});
        const int top${u} = tile${u} / ${wide} % ${high} * ${M}, left${u} = tile${u} % ${wide} * ${M};
        int y${u}[${N}], x${u}[${N}];
        for (int i = 0; i < ${N}; ++i) {
            y${u}[i] = min(top${u} + i - ${pads[0]}, ${reach[0]}) * ${src.pitches[2]};
            x${u}[i] = min(left${u} + i - ${pads[1]}, ${reach[1]}) * ${src.pitches[3]};
        }
        __global const ${cell(xt)} *from${u} = src + tile${u} / ${high * wide} * ${src.pitches[0]};
% endfor
        for (int c = 0; c < ${ic // 4}; c += ${lanes}) {
            V even[${places}], odd[${places}];
            for (int j = 0; j < ${N}; ++j) {
% for i in range(N):
                ${U} d${i}${" = " + words(0, i) if beside == 1 else ""};
%  for u, part in enumerate(("lo", "hi")[:beside] if beside > 1 else ()):
                d${i}.${part} = ${words(u, i)};
%  endfor
% endfor
% for i in range(N if xt == "char" else 0):
                d${i} ^= (${U})(0x80808080);
% endfor
% for i in range(N):
                const V e${i} = __builtin_astype(d${i}, V) & (V)(255), o${i} = __builtin_astype(d${i}, V) >> (V)(8) & (V)(255);
% endfor
${transform("even", "e{}")}\
${transform("odd", "o{}")}\
            }
            for (int i = 0; i < ${N}; ++i) {
% for side, of in enumerate(("even", "odd")):
                {
                V ${", ".join(f"r{j}" for j in range(N))};
                ${wg_.by_rows(bt, lambda j: f"r{j}", lambda k: f"{of}[i * {N} + {k}]")}
                __local int *to = spread + (i * ${N * held} + t) * ${tile_pitch} + 2 * c + ${side * lanes};
%  for j in range(N):
                {
                const ${S} whole = __builtin_astype(r${j}, ${S});
%   for u, part in enumerate((".lo", ".hi")[:beside] if beside > 1 else ("",)):
                ${store(lanes, f"whole{part}", "to", f"{j * held * tile_pitch} + (slot{u} - t) * {tile_pitch}", "int", "__local")}
%   endfor
                }
%  endfor
                }
% endfor
            }
        }
    }
    }
    for (int block = part * ${share}; block < min(part * ${share} + ${share}, ${blocks}); ++block) {
    for (int place = 0; place < ${places}; ++place) {
    __global const short *here = weights + (block * ${places} + place) * ${2 * pairs * ocb};
    for (int set = 0; set < ${sets}; ++set) {
        __global const short *w = here;
        __local const int *a = spread + (place * ${held} + set * ${mr}) * ${tile_pitch};
% for t in range(mr):
        ${I} ${", ".join(f"p{t}_{v} = ({I})(0)" for v in range(nv))};
% endfor
        for (int k = 0; k < ${pairs}; ++k) {
% for v in range(nv):
            const ${I} b${v} = ${dt.weights(dot, "short", "int", vw, "w", 2 * v * vw)};
% endfor
% for t in range(mr):
            {
                const ${I} s = (${I})(a[${t * tile_pitch} + k]);
%  for v in range(nv):
                ${dt.add(dot, vw, f"p{t}_{v}", "s", f"b{v}")}
%  endfor
            }
% endfor
% if prefetch and sets == 1:
%  for v in range(0, ocb, LINE):
            ${pf.fetch(f"w + {2 * (READ_AHEAD * ocb + v)}")}
%  endfor
% elif prefetch:
%  for line in range(next_lines):
            ${pf.fetch_far(f"here + {2 * pairs * ocb} + ((set * {pairs} + k) * {next_lines * LINE} + {line * LINE}) * 2")}
%  endfor
% endif
% if prefetch:
%  for v in range(0, next_inputs, LINE):
            ${pf.fetch(f"a + {mr * tile_pitch + v} + k * {next_inputs}")}
%  endfor
% endif
            w += ${2 * ocb};
        }
        __local int *product = products + (place * ${held} + set * ${mr}) * ${ocb};
% for t in range(mr):
%  for v in range(nv):
        ${store(vw, f"p{t}_{v}", "product", str(t * ocb + v * vw), "int", "__local")}
%  endfor
% endfor
    }
    }
    typedef ${vec_type("uint", vw)} V;
% if tables:
${na.entries("entries", f"extra{operands[tables[0].operand][0]}")}\
% endif
    for (int t = 0; t < ${held}; ++t) {
        const int tile = group * ${held} + t;
        if (tile >= ${tiles}) break;
        const int n = tile / ${high * wide}, top = tile / ${wide} % ${high} * ${M}, left = tile % ${wide} * ${M};
        const int vectors = ${nv if tail == nv else f"block == {blocks - 1} ? {tail} : {nv}"};
        for (int v = 0; v < vectors; ++v) {
            const int oc = block * ${ocb} + v * ${vw};
% for k in range(rows):
            const ${vec_type(tt, vw)} r${k}_0 = ${load(tt, vw, "table", f"{k * blocks * ocb} + oc")};
% endfor
            __local const int *from = products + t * ${ocb} + v * ${vw};
            V ${", ".join(f"h{k}" for k in range(M * N))};
% for j in range(N):
            {
%  for i in range(N):
                const V d${i} = as_${vec_type("uint", vw)}(${load("int", vw, "from", f"{(i * N + j) * held * ocb}")});
%  endfor
                ${wg_.by_columns(at, lambda i: f"h{i * N + j}", lambda k: f"d{k}")}
            }
% endfor
% for i in range(M):
            ${f"if (top + {i} < {oh})" if beyond(oh, i) else ""} {
                V ${", ".join(f"r{b}" for b in range(M))};
                ${wg_.by_columns(at, lambda b: f"r{b}", lambda k: f"h{i * N + k}")}
%  for b in range(M):
                const int y${b} = top + ${i}, x${b} = ${f"min(left + {b}, {ow - 1})" if beyond(ow, b) else f"left + {b}"};
                const ${I} sum${b} = (as_${I}(r${b} * (V)(${NINTH}u)) >> (${I})(${SHIFTS[i] + SHIFTS[b]})) + r0_0;
${by.steps(b, 0, vw, step, f"sum{b}")}\
                ${na.limited(vw, f"i{b}_0", arith.low, arith.high, arith.zero_out, yt) if not step else ""}
%  endfor
                ${na.quarters(narrow, vw, [f"i{b}_0" for b in range(M)], 0 if step else arith.zero_out, yt, "q0", True, "entries" * len(tables))}
%  for b in range(M):
                ${f"if (left + {b} < {ow})" if beyond(ow, b) else ""} {
${by.store_run(b, 0, 0, b, 1, vw)}\
                }
%  endfor
            }
% endfor
        }
    }
    }
}
