<%doc>
conv/workgroup: convolution as a matrix product of pixels with weights, shared by a work-group.

Rows of the product are the pixels of all images, columns the output channels of a group, terms the
taps with their input channels. Nothing is copied: a term lies at an offset from its pixel that is the
same for all pixels, since the border is in memory. Each work-item works out once where the pixels lie
that it fetches, and keeps these offsets in registers.

Tensors  src: image seen as (n, c, h, w), with the border that the taps reach; channels innermost, or at
         any pitch where they are few
         weights: [groups][blocks][chunks * bk][bn] over the terms (ky, kx, c), zeros beyond
         bias: [groups][blocks][bn]
         dst and operands: images at any pitches; where k_slices > 1 dst is [k_slices][pixels][oc * groups],
         for shared/workgroup_sum
Index    src[pixel + ky * down + kx * right + c * pitch]; terms that are neighbours make a run:
         runs:  bk divides a run, so all terms of a chunk lie at one offset
         terms: each vector of terms finds its tap by division, and the last chunk may lack some
Launch   one group per tile: local (threads), groups (pixel tiles, blocks, k_slices), or blocks of
         channels first where `channels_fastest`
Params   name, wg
         pixels: extents of the loops over pixels
         places: pitches of src on them
         base: of the first pixel's first tap
         ic, oc: channels of a group
         groups
         channel: pitch of src's channels
         run: terms in a row
         taps: runs along (y, x) and their pitches
         has_bias {0,1}
         outs: pitches of dst and operands on the pixels, and of their channels
         extras: input -> number
         types: of src, weights, table and dst; extra_types: of operands by number
         aligned: operands by number, and -1 for dst, whose vectors are aligned
         post_ops
         loop_epilogue {0,1}: sums are finished in a loop
         fetches: {"a", "b"}: Fetch
Tunables tile: GroupTile, with what is asked of registers
         k_slices: shares of the chunks of terms
         channels_fastest {0,1}
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="wk" file="/_common/workgroup.cl.mako"/>
<%
    t = tile
    (down, right), pitches = taps
    terms = down * right * run
    m = 1
    for extent in pixels:
        m *= extent
    chunks = -(-terms // t.bk)
    share = -(-chunks // k_slices)
    run_chunks = run // t.bk if run % t.bk == 0 else 0
    rows = wk.module.Ends(m, t.bm, m >= t.bm)
    columns = wk.module.Ends(oc, t.bn, False, t.vc)
    blocks = columns.count
    assert share * (k_slices - 1) < chunks and wg[0] == t.threads, (chunks, k_slices, wg)
    assert channel == 1 or (fetches["a"].along == "rows" and fetches["a"].vw == 1 and not run_chunks)
    ids = ("get_group_id(1)", "get_group_id(0)") if channels_fastest else ("get_group_id(0)", "get_group_id(1)")
    names = ["dst"] + [f"extra{k}" for k in extras.values()]
    inputs = [None, *extras]
    aligned_one = [-1, *extras.values()]
    operands = [
        (pointer, on, step, which in aligned, source)
        for pointer, (on, step), which, source in zip(names, outs, aligned_one, inputs)
    ]
    (xt, wt, _, yt), stored = types, {"dst": types[3]} | {f"extra{k}": extra_types[k] for k in extras.values()}
    def offset(tap, rest):
        terms_ = [f"{tap} / {right} * {pitches[0]} + {tap} % {right} * {pitches[1]}" if right > 1 else f"{tap} * {pitches[0]}"] if down * right > 1 else []
        return " + ".join([*terms_, rest])
    def chunk(s):
        return capture(one_chunk, s)
    def bias(where):
        return wk.module.aligned(t.vc, f"bias + (block * {t.bn} + {where})")
%>
<%def name="one_chunk(s)">\
% if run_chunks:
        __global const ${cell(xt)} *q = a + (${offset(f"({s} / {run_chunks})", f"{s} % {run_chunks} * {t.bk}")});
        ${wk.fetch("a", fetches["a"], lambda i: f"q + a_at{i}", lambda i: "", xt)}
% else:
%  for i in range(fetches["a"].loads):
        const int k${i} = ${s} * ${t.bk} + a_k${i}, f${i} = a_at${i} + ${offset(f"(k{i} / {run})", f"k{i} % {run} * {channel}")};
%  endfor
        ${wk.fetch("a", fetches["a"], lambda i: f"a + f{i}", lambda i: f"k{i} < {terms}" if terms % t.bk else "", xt)}
% endif
        ${wk.fetch("b", fetches["b"], lambda i: f"w + (b_at{i} + {s} * {t.bk * t.bn})", lambda i: "", wt)}
</%def>
${group_size(wg, tile.mode)}
__kernel void ${name}(
    __global const ${cell(xt)} *src_base, const int src_offset, __global const ${cell(wt)} *weights,
% if has_bias:
    __global const float *bias,
% endif
% for k in extras.values():
    __global const ${cell(extra_types[k])} *extra${k}_base, const int extra${k}_offset,
% endfor
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
    const int tile = ${ids[0]}, block = ${ids[1]}, group = block / ${blocks};
    const int first_m = tile * ${t.bm}, m0 = ${rows.start("tile")}, n0 = block % ${blocks} * ${t.bn};
% if k_slices > 1:
    const int part = get_group_id(2);
    const int from = part * ${share}, to = min(from + ${share}, ${chunks});
% else:
    const int from = 0, to = ${chunks};
% endif
    __global const ${cell(xt)} *a = src_base + src_offset + group * ${ic * channel} + ${base};
    __global const ${cell(wt)} *w = weights + block * ${chunks * t.bk * t.bn};
    __global ${cell(yt)} *dst = dst_base + dst_offset + group * ${oc * outs[0][1]}${f" + part * {m * oc * groups}" if k_slices > 1 else ""};
% for k in extras.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset + group * ${oc * outs[k + 1][1]};
% endfor
    ${wk.begin(t, fetches, bias if has_bias else None)}
% for i in range(fetches["a"].loads):
    int a_at${i} = ${f"a_k{i}" if run_chunks else 0};
    {
        const int row = m0 + ${f"min(a_o{i}, {m - 1})" if m < t.bm else f"a_o{i}"};
        ${lp.offsets("row", pixels, [places], ["at_"])}
        a_at${i} += at_;
    }
% endfor
% for i in range(fetches["b"].loads):
    const int b_at${i} = b_k${i} * ${t.bn} + b_o${i};
% endfor
    ${wk.sum_chunks(t, fetches, chunk)}
    ${wk.finish(t, (rows, columns), pixels, operands, post_ops, {}, loop_epilogue, stored)}
}
