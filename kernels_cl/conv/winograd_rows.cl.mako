<%doc>
conv/winograd_rows: convolution by Winograd's products along lines only, which are rows, or columns.

A line of the window is split into `parts`: taps that meet every stride-th input, few enough for F(m, taps). A
work-item takes `tiles` tiles of m outputs in each line of a band. It transforms their inputs into local memory, those
of a line once for all lines of outputs that they meet. Then, for each vector of output channels, line and part, it
sums the products of all tiles at all places over lines of the window and channels:

                    b         one vector of weights at a place
    a broadcast     a0_place
    input for       a1_place  a{t}_{place} += s * b, for every place of the part
    each tile       a2_place

and makes m outputs of each tile's places in registers; what the first parts make waits in private memory.

Tensors  src: image (n, c, h, w) at any pitches, with a border as wide as the pads; dst: channels innermost;
         operands: images at any pitches
         weights: [blocks][parts][lines][ic][places of the part][vw], transformed along lines
         bias: [oc]
Index    inputs beyond the border, which only outputs beyond dst depend on, are the last ones of the line instead.
         Where vw does not divide the channels, the last vector begins earlier, and stores what others do not: its
         weights of other channels are zeros. In the code lines count along y, and what they hold along x
Launch   global (columns of tiles, bands, batch)
Params   name, src, dst, kernel, strides, pads, post_ops, operands, extra_types, wg: as of conv/direct
         types: of src, of dst the last
         ic, oc: channels
         reach: last row and column of src, border included, counted from src's first
         axis {0,1}: 1 where lines are rows, 0 where they are columns
         parts: (first tap, matrix of outputs, matrix of inputs) of each
         lanes: elements between the parts of a transformed tile, at least a part's places
         has_bias {0,1}
         prefetch {0,1}: lines of results are asked for ahead where dst has more elements than `near`
         loop_epilogue {0,1}: results are finished in a loop over pixels, not in unrolled code
Tunables m {2,3,4}        outputs of a tile
         tiles            of a register tile
         vw {4,8,16}      channels of a vector, at most oc
         band             lines of outputs
</%doc>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%namespace name="wg_" file="/_common/winograd.cl.mako"/>
<%!
import math
AHEAD = 1000  # multiply-adds before its use when a line of results is asked for
from clnn.codegen.filters import scalar
%>
<%
    def turned(pair):
        """A pair of (y, x) as (across lines, along them)."""
        return pair[1 - axis], pair[axis]
    (kh, _), (sy, sx), (pad_y, pad_x) = map(turned, (kernel, strides, pads))
    (oh, ow), (down, right), (_, last) = map(turned, (dst.shape[2:], src.pitches[2:], reach))
    batch = dst.shape[0]
    blocks, over = -(-oc // vw), -oc % vw
    places = [len(bt) for _, _, bt in parts]
    pixel = len(parts) * lanes  # elements of a tile of a channel, transformed
    columns, bands = -(-ow // (m * tiles)), -(-oh // band)
    inputs = max(first + (n - 1) * sx for (first, _, _), n in zip(parts, places)) + 1
    beyond = (columns * tiles - 1) * m * sx + inputs - 1 - pad_x > last
    after = [kh * ic * vw * sum(places[:k]) for k in range(len(parts) + 1)]  # weights in front of each part
    assert max(places) <= lanes and oc >= vw, (places, lanes, oc, vw)
    assert dst.pitches[1] == 1 or oc == 1, "channels must be innermost"
    V, H = vec_type("float", vw), vec_type("float", lanes)
    xt, yt = types[0], types[3]
    is_far = prefetch and math.prod(dst.shape) > near
    lines_ahead = -(-AHEAD // (kh * ic * sum(places) * tiles))
    waits = len(parts) > 1 or loop_epilogue
    def column(bt, k):
        """The factors of input k at a part's places."""
        return f"({H})(" + ", ".join(scalar(bt[i][k] if i < len(bt) else 0, "float") for i in range(lanes)) + ")"
%>
<%def name="finish(value, x)">\
<%
    def operand(which):
        k, layout = operands[which]
        pitch = layout.pitches[1] if layout.shape[1] != 1 else 0
        where = index(layout, "n", "oc", *turned(("y", x)))
        return capture(tl.load_lanes, vw, f"extra{k}", where, pitch, vw, extra_types[k]).strip()
    where = index(dst, "n", "oc", *turned(("y", x)))
%>\
            ${st.apply(post_ops, value, "float", vw, operand)}
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
<%def name="sum_part(part)">\
<% n = places[part] %>\
% for t in range(tiles):
            V ${", ".join(f"a{t}_{p} = (V)(0.0f)" for p in range(n))};
% endfor
            __global const float *w = weights + block * ${after[-1]} + ${after[part]};
            __local const float *a = spread + (y - top) * ${sy * tiles * ic * pixel} + ${part * lanes};
            for (int ky = 0; ky < ${kh}; ++ky) {
                for (int c = 0; c < ${ic}; ++c) {
% for p in range(n):
                    {
                        const V b = ${load("float", vw, "w", str(p * vw))};
%  for t in range(tiles):
                        a${t}_${p} = fma((V)(a[${t * ic * pixel + p}]), b, a${t}_${p});
%  endfor
                    }
% endfor
                    a += ${pixel};
                    w += ${n * vw};
                }
                a += ${(tiles - 1) * ic * pixel};
            }
</%def>
<%def name="fold_part(part)">\
<% last = part == len(parts) - 1 %>\
% for t in range(tiles):
            {
                V ${", ".join(f"r{i}" for i in range(m))};
                ${wg_.by_columns(parts[part][1], lambda i: f"r{i}", lambda p: f"a{t}_{p}")}
%  for i in range(m):
<%
    k = t * m + i
    start = f"out[{k}] + " if part else "start + " if has_bias else ""
%>\
%   if loop_epilogue or not last:
                out[${k}] = ${start}r${i};
%   else:
                ${f"if (left + {k} < {ow})" if ow % (m * tiles) else ""} {
                ${f"r{i} = {start}r{i};" if start else ""}
${finish(f"r{i}", f"(left + {k})")}\
                }
%   endif
%  endfor
            }
% endfor
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
    __local float spread[${((band - 1) * sy + kh) * tiles * ic * pixel}];
    const int left = get_global_id(0) * ${m * tiles}, top = get_global_id(1) * ${band}, n = get_global_id(2);
    if (left >= ${columns * m * tiles} || top >= ${oh} || n >= ${batch}) return;
    __global const ${cell(xt)} *src = src_base + src_offset;
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    const int bottom = ${f"min(top + {band}, {oh})" if oh % band else f"top + {band}"};
    for (int r = 0; r < (bottom - top - 1) * ${sy} + ${kh}; ++r) {
        for (int t = 0; t < ${tiles}; ++t) {
            const int x = (left + t * ${m}) * ${sx} - ${pad_x};
% if beyond:
% for j in range(inputs):
            const int x${j} = min(x + ${j}, ${last}) * ${right};
% endfor
% endif
            for (int c = 0; c < ${ic}; ++c) {
                __global const ${cell(xt)} *from = src + ${index(src, "n", "c", 0, 0)} + (top * ${sy} + r - ${pad_y}) * ${down}${"" if beyond else f" + x * {right}"};
                __local float *to = spread + ((r * ${tiles} + t) * ${ic} + c) * ${pixel};
% for j in range(inputs):
                const float d${j} = ${element(xt, "from", f"x{j}" if beyond else str(j * right))};
% endfor
% for part, (first, _, bt) in enumerate(parts):
                ${H} h${part} = d${first} * ${column(bt, 0)};
%  for k in range(1, places[part]):
                h${part} = fma((${H})(d${first + k * sx}), ${column(bt, k)}, h${part});
%  endfor
                ${store(lanes, f"h{part}", "to", str(part * lanes), "float", "__local")}
% endfor
            }
        }
    }
    for (int block = 0; block < ${blocks}; ++block) {
% if over:
        const int lane = block * ${vw}, oc = min(lane, ${oc - vw});
% else:
        const int oc = block * ${vw};
% endif
% if has_bias:
        const V start = ${load("float", vw, "bias", "oc")};
% endif
        for (int y = top; y < bottom; ++y) {
% if is_far:
%  for k in range(tiles * m):
            ${pf.fetch_to_write(f"dst + ({index(dst, 'n', 'oc', *turned((f'(y + {lines_ahead})', f'(left + {k})')))})")}
%  endfor
% endif
% if waits:
            V out[${tiles * m}];
% endif
% for part in range(len(parts)):
            {
${sum_part(part)}\
${fold_part(part)}\
            }
% endfor
% if loop_epilogue:
            for (int k = 0; k < ${f"min({tiles * m}, {ow} - left)" if ow % (m * tiles) else tiles * m}; ++k) {
            V r = out[k];
${finish("r", "(left + k)")}\
            }
% endif
        }
    }
}
