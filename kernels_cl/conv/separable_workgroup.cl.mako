<%doc>
conv/separable_workgroup: one filter per channel, then a 1 x 1 convolution of what they make, which stays in a
work-group's local memory.

The second convolution is a product of pixels with weights, as in conv/workgroup. An element of its
left operand is computed where a chunk is fetched: the filter of its channel at its pixel. So each
block of output channels computes the filters of its pixels again. The channels of a work-item are the
same for all pixels that it fetches, so a tap is read once for all of them.

Tensors  src: image seen as (n, c, h, w), channels innermost, with the border that the taps reach
         taps: [kh][kw][c]
         shift: [c]
         weights: [blocks][chunks * bk][bn] over the channels, zeros beyond
         bias: [blocks][bn]
         dst and operands: images at any pitches
Index    src[pixel + ky * down + kx * right + c]; channels behind the last count as zero
Launch   one group per tile: local (threads), groups (pixel tiles, blocks), or blocks of channels first
         where `channels_fastest`
Params   name, pixels, places, base, ic, oc, has_bias, outs, extras, aligned, post_ops, loop_epilogue,
         channels_fastest, wg: as of conv/workgroup
         taps: of a filter along (y, x) and their pitches
         has_shift {0,1}: of the filters
         first_post_ops: behind them
         fetches: {"a", "b"}: Fetch, "a" along terms
Tunables tile: GroupTile
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="wk" file="/_common/workgroup.cl.mako"/>
<%
    t, fa, aligned_at = tile, fetches["a"], wk.module.aligned
    (kh, kw), (down, right) = taps
    V = vec_type("float", fa.vw)
    m = 1
    for extent in pixels:
        m *= extent
    chunks = -(-ic // t.bk)
    rows = wk.module.Ends(m, t.bm, m >= t.bm)
    columns = wk.module.Ends(oc, t.bn, False, t.vc)
    assert fa.along == "terms" and ic % fa.vw == 0 and t.threads % fa.slots == 0, (fa, ic)
    assert wg[0] == t.threads, (wg, t)
    ids = ("get_group_id(1)", "get_group_id(0)") if channels_fastest else ("get_group_id(0)", "get_group_id(1)")
    numbers = [-1, *extras.values()]
    names = ["dst"] + [f"extra{k}" for k in extras.values()]
    operands = [
        (pointer, on, step, number in aligned, source)
        for pointer, (on, step), number, source in zip(names, outs, numbers, [None, *extras])
    ]
    # Vectors behind a chunk's last are computed too, of a pixel that is there, and not kept.
    def pixel(i):
        inside = m >= t.bm and (i + 1) * fa.threads <= fa.vectors
        return f"m0 + a_o{i}" if inside else f"min(m0 + a_o{i}, {m - 1})"
    def chunk(s):
        return capture(one_chunk, s)
    def bias_of(where):
        return aligned_at(t.vc, f"bias + (block * {t.bn} + {where})")
%>
<%def name="filtered(channel)">\
% for i in range(fa.loads):
        a_v${i} = ${aligned_at(fa.vw, f"shift + {channel}") if has_shift else 0};
% endfor
        for (int ky = 0; ky < ${kh}; ++ky) {
            __global const float *row = a + (ky * ${down} + ${channel}), *tap = taps + (ky * ${kw * ic} + ${channel});
% for kx in range(kw):
            {
            const ${V} w_ = ${aligned_at(fa.vw, f"tap + {kx * ic}")};
%  for i in range(fa.loads):
            a_v${i} = fma(${aligned_at(fa.vw, f"row + (a_at{i} + {kx * right})")}, w_, a_v${i});
%  endfor
            }
% endfor
        }
% for i in range(fa.loads):
        ${st.apply(first_post_ops, f"a_v{i}", "float", fa.vw, None)}
% endfor
</%def>
<%def name="one_chunk(s)">\
        const int channel = ${s} * ${t.bk} + a_k0;
% if ic % t.bk:
        if (channel < ${ic}) {
        ${filtered("channel")}
        } else {
%  for i in range(fa.loads):
            a_v${i} = 0;
%  endfor
        }
% else:
        ${filtered("channel")}
% endif
        ${wk.fetch("b", fetches["b"], lambda i: f"w + (b_at{i} + {s} * {t.bk * t.bn})", lambda i: "")}
</%def>
${group_size(wg, tile.mode)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset, __global const float *taps,
% if has_shift:
    __global const float *shift,
% endif
    __global const float *weights,
% if has_bias:
    __global const float *bias,
% endif
% for k in extras.values():
    __global const float *extra${k}_base, const int extra${k}_offset,
% endfor
    __global float *dst_base, const int dst_offset)
{
    const int tile = ${ids[0]}, block = ${ids[1]}, from = 0, to = ${chunks};
    const int first_m = tile * ${t.bm}, m0 = ${rows.start("tile")}, n0 = block * ${t.bn};
    __global const float *a = src_base + src_offset + ${base};
    __global const float *w = weights + block * ${chunks * t.bk * t.bn};
    __global float *dst = dst_base + dst_offset;
% for k in extras.values():
    __global const float *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    ${wk.begin(t, fetches, bias_of if has_bias else None)}
% for i in range(fa.loads):
    int a_at${i};
    {
        ${lp.offsets(f"({pixel(i)})", pixels, [places], ["at_"])}
        a_at${i} = at_;
    }
% endfor
% for i in range(fetches["b"].loads):
    const int b_at${i} = b_k${i} * ${t.bn} + b_o${i};
% endfor
    ${wk.sum_chunks(t, fetches, chunk)}
    ${wk.finish(t, (rows, columns), pixels, operands, post_ops, {}, loop_epilogue)}
}
