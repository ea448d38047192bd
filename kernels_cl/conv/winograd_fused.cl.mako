<%doc>
conv/winograd_fused: 3 x 3 convolution of stride 1 by Winograd's F(2 x 2, 3 x 3), all of it in a work-group.

A group takes 32 tiles and 32 output channels. For each chunk of input channels its work-items transform
the tiles into local memory, bring the weights beside them, and multiply: 16 work-items a place. In the
end the sums go through local memory, 16 channels at a time, to be transformed back.

Tensors  src: image with a border as wide as the pads
         weights: [blocks][chunks][16 places][bk][32], zeros beyond the channels
         bias: [blocks][32]
         dst, operands: images at any pitches
Index    as of conv/winograd_input and conv/winograd_output
Launch   one group per tile of tiles: local (256), groups (blocks of channels, tiles), or tiles first
         where `channels_fastest` is false
Params   name, src, dst, pads, post_ops, operands, channels_fastest, wg: as of conv/direct
         high, wide: tiles of an image
         reach: last row and column of src, border included, counted from src's first
         bt, matrix: of input and output
         has_bias {0,1}
         fetches: {"a", "b"}: Fetch of a place
Tunables tile: GroupTile of a place; of these, bk {4,8}: input channels of a chunk
</%doc>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%namespace name="wg_" file="/_common/winograd.cl.mako"/>
<%namespace name="wk" file="/_common/workgroup.cl.mako"/>
<%
    t, place_of, aligned = tile, wk.module.place, wk.module.aligned
    places, threads = 16, 16 * t.threads
    batch, oc, oh, ow = dst.shape
    ic, tiles = src.shape[1], batch * high * wide
    chunks, blocks = -(-ic // t.bk), -(-oc // t.bn)
    groups = -(-tiles // t.bm)
    pitch = src.pitches[1] if ic > 1 else 1
    fa, fb = fetches["a"], fetches["b"]
    pairs, vectors = t.bm * t.bk, places * t.bk * t.bn // 4
    wide_ = t.across * t.vc
    room = max(places * (fa.size + fb.size), places * t.bm * wide_)
    ids = ("get_group_id(1)", "get_group_id(0)") if channels_fastest else ("get_group_id(0)", "get_group_id(1)")
    assert wg[0] == threads and pairs <= threads and vectors % threads == 0, (wg, t)
    loads = vectors // threads
    def row_of(axis, name, at):
        first = f"{name} + {at - pads[axis]}"
        last = ((high, wide)[axis] - 1) * 2 + 3 - pads[axis]
        return f"min({first}, {reach[axis]})" if last > reach[axis] else first
    def live(condition):
        return f"if ({condition}) " if condition else ""
    takes = f"item < {pairs}" if pairs < threads else ""
%>
<%def name="fetch(s)">\
    {
        __global const float4 *from = (__global const float4 *)(w + ${s} * ${places * t.bk * t.bn});
% for i in range(loads):
        u${i} = from[item + ${i * threads}];
% endfor
        ${live(takes)}{
        const int channel = ${s} * ${t.bk} + pair_c;
% for i in range(4):
%  for j in range(4):
        d${i}_${j} = ${"" if ic % t.bk == 0 else f"channel >= {ic} ? 0 : "}src[y${i} + x${j} + channel * ${pitch}];
%  endfor
% endfor
        }
    }
</%def>
<%def name="keep()">\
% for i in range(loads):
    {
        const int at = item + ${i * threads};
        *(__local float4 *)(u_local + at / ${t.bn // 4} * ${fb.pitch} + at % ${t.bn // 4} * 4) = u${i};
    }
% endfor
    ${live(takes)}{
        V ${", ".join(f"h{i}_{j}" for i in range(4) for j in range(4))};
% for j in range(4):
        ${wg_.by_rows(bt, lambda i: f"h{i}_{j}", lambda k: f"d{k}_{j}")}
% endfor
        __local float *to = v_local + pair_c * ${fa.pitch} + pair_t;
% for i in range(4):
        {
            V r0, r1, r2, r3;
            ${wg_.by_rows(bt, lambda j: f"r{j}", lambda k: f"h{i}_{k}")}
%  for j in range(4):
            to[${(i * 4 + j) * fa.size}] = r${j};
%  endfor
        }
% endfor
    }
</%def>
<%def name="finish(value, y, x)">\
<%
    def operand(which):
        k, layout = operands[which]
        return f"extra{k}[{index(layout, 'image', 'channel', f'(top + {y})', f'(left + {x})')}]"
    checks = [f"top + {y} < {oh}"] * (oh % 2 and y) + [f"left + {x} < {ow}"] * (ow % 2 and x)
%>\
            ${live(" && ".join(checks))}{
% if has_bias:
                ${value} += bias[channel];
% endif
                ${st.apply(post_ops, value, "float", 1, operand)}
                dst[${index(dst, "image", "channel", f"(top + {y})", f"(left + {x})")}] = ${value};
            }
</%def>
${group_size(wg, tile.mode)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset, __global const float *weights,
% if has_bias:
    __global const float *bias,
% endif
% for k, _ in operands.values():
    __global const float *extra${k}_base, const int extra${k}_offset,
% endfor
    __global float *dst_base, const int dst_offset)
{
    typedef float V;
    __local float4 room[${room // 4}];
    __local float *const v_local = (__local float *)room, *const u_local = v_local + ${places * fa.size};
    const int item = get_local_id(0), place = item / ${t.threads};
    const int across = item % ${t.across}, down = item % ${t.threads} / ${t.across};
    const int first = ${ids[0]} * ${t.bm}, block = ${ids[1]};
    __local const float *const a_local = v_local + place * ${fa.size}, *const b_local = u_local + place * ${fb.size};
    __global const float *w = weights + block * ${chunks * places * t.bk * t.bn};
    __global float *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const float *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    const int pair_c = item % ${t.bk}, pair_t = item / ${t.bk}, source = min(first + pair_t, ${tiles - 1});
    const int from_top = source / ${wide} % ${high} * 2, from_left = source % ${wide} * 2;
    __global const float *src = src_base + src_offset + source / ${high * wide} * ${src.pitches[0]};
% for i in range(4):
    const int y${i} = (${row_of(0, "from_top", i)}) * ${src.pitches[2]}, x${i} = (${row_of(1, "from_left", i)}) * ${src.pitches[3]};
% endfor
    float4 ${", ".join(f"u{i}" for i in range(loads))};
    V ${", ".join(f"d{i}_{j}" for i in range(4) for j in range(4))};
% for r in range(t.tm):
    float4 ${", ".join(f"c{r}_{v} = 0" for v in range(t.nv))};
% endfor
    ${fetch("0")}
    for (int s = 0; s < ${chunks}; ++s) {
        ${keep()}
        barrier(CLK_LOCAL_MEM_FENCE);
        if (s + 1 < ${chunks})
        ${fetch("(s + 1)")}
        ${wk.multiply(t, fetches, 0)}
        barrier(CLK_LOCAL_MEM_FENCE);
    }
% for v in range(t.nv):
%  for r in range(t.tm):
    *(__local float4 *)(v_local + (place * ${t.bm} + ${place_of(r, t.down, t.vr, "down")}) * ${wide_} + across * 4) = c${r}_${v};
%  endfor
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int at = item; at < ${t.bm * wide_}; at += ${threads}) {
        const int channel = block * ${t.bn} + ${v * wide_} + at % ${wide_}, tile = first + at / ${wide_};
        if (tile < ${tiles} && channel < ${oc}) {
            const int image = tile / ${high * wide}, top = tile / ${wide} % ${high} * 2, left = tile % ${wide} * 2;
            V ${", ".join(f"h{y}_{j}" for y in range(2) for j in range(4))};
% for j in range(4):
            ${wg_.by_columns(matrix, lambda y: f"h{y}_{j}", lambda k: f"v_local[at + {(k * 4 + j) * t.bm * wide_}]")}
% endfor
% for y in range(2):
            {
            V r0, r1;
            ${wg_.by_columns(matrix, lambda x: f"r{x}", lambda k: f"h{y}_{k}")}
%  for x in range(2):
            ${finish(f"r{x}", y, x)}
%  endfor
            }
% endfor
        }
    }
%  if v + 1 < t.nv:
    barrier(CLK_LOCAL_MEM_FENCE);
%  endif
% endfor
}
