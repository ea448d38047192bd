<%doc>
gemm/workgroup: matrix product whose work-groups share chunks of both operands in local memory.

                  | chunk of b    bk x bn, local memory
    --------------+---------------------------------
    chunk of a    | sums of a group          bm x bn:
    bm x bk,      | work-items of tm x tn each, in registers
    local memory  |

Tensors  a: rows of any pitches
         b: columns of any pitches, or packed: [blocks][chunks * bk][bn], with zeros beyond n and k
         dst, extras: any pitches; where k_slices > 1 dst is [k_slices][batch][m][n], for
         shared/workgroup_sum
Index    a[i * PM + k * PK]   b[k * PK + j * PN]   dst[i * PM + j * PN]
         Where there are more rows than a tile has, the last tile begins early enough to be whole and
         stores only what no other tile does; else rows beyond m read the last one again. So do
         columns, unless b is packed.
Launch   one group per tile: local (threads), groups (row tiles, blocks of columns, batch * k_slices),
         or blocks first where `channels_fastest`
Params   name, wg
         m, n, k           extents
         matrices          of the batch
         a, b              pitches (row, column); b is None where it is packed
         dst               pitches (row, column)
         b_moves           b has an offset: it is no constant
         aligned           extras by number, and -1 for dst, whose vectors are aligned
         fetches           {"a": Fetch, "b": Fetch}: how chunks are read
         channels_fastest  neighbouring groups take neighbouring blocks of columns, not tiles of rows
         loop_epilogue     sums are finished in a loop
         types             of a, of b, and of dst and extras
         batch             extents and pitches of the outer loops, in the order a, b, dst, extras
         extras            node input -> (number, pitches), of operands of the post-ops
         scales            node input -> factor of such an operand
         post_ops          what is applied to the sums
Tunables tile      GroupTile    bm, bn, bk, tm, tn as drawn; stages {1,2}: chunks in local memory;
                                 mode: what is asked of registers
         k_slices  {1..64}      shares of the chunks, equal but for the last
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="wk" file="/_common/workgroup.cl.mako"/>
<%
    t, (at_, bt, yt) = tile, types
    chunks = -(-k // t.bk)
    share = -(-chunks // k_slices)
    packed = b is None
    rows = wk.module.Ends(m, t.bm, m >= t.bm)
    columns = wk.module.Ends(n, t.bn, not packed and n >= t.bn, t.vc)
    assert share * (k_slices - 1) < chunks and wg[0] == t.threads, (chunks, k_slices, wg)
    ids = ("get_group_id(1)", "get_group_id(0)") if channels_fastest else ("get_group_id(0)", "get_group_id(1)")
    names = ["at_a", "at_b", "at_dst"] + [f"at_extra{place}" for place, _ in extras.values()]
    operands = [("dst", (dst[0],), dst[1], -1 in aligned, None)]
    operands += [(f"extra{place}", (p[0],), p[1], place in aligned, which) for which, (place, p) in extras.items()]
    stored = dict.fromkeys([pointer for pointer, *_ in operands], yt)
    def limited(name, ends, i):
        return f"min({name}_o{i}, {ends.extent - 1})" if not ends.shift and not ends.even else f"{name}_o{i}"
    def chunk(s):
        return capture(one_chunk, s)
%>
<%def name="one_chunk(s)">\
<%
    def there(name):
        return lambda i: f"{s} * {t.bk} + {name}_k{i} < {k}" if k % t.bk else ""
%>\
        ${wk.fetch("a", fetches["a"], lambda i: f"a + (a_at{i} + {s} * {t.bk * a[1]})", there("a"), at_)}
% if packed:
        ${wk.fetch("b", fetches["b"], lambda i: f"b + (b_at{i} + {s} * {t.bk * t.bn})", lambda i: "", bt)}
% else:
        ${wk.fetch("b", fetches["b"], lambda i: f"b + (b_at{i} + {s} * {t.bk * b[0]})", there("b"), bt)}
% endif
</%def>
${group_size(wg, tile.mode)}
__kernel void ${name}(
    __global const ${cell(at_)} *a_base, const int a_offset, __global const ${cell(bt)} *b_base,
% if b_moves:
    const int b_offset,
% endif
% for place, _ in extras.values():
    __global const ${cell(yt)} *extra${place}_base, const int extra${place}_offset,
% endfor
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
    const int tile = ${ids[0]}, block = ${ids[1]}, z = get_group_id(2)${f" / {k_slices}" if k_slices > 1 else ""};
    const int first_m = tile * ${t.bm}, first_n = block * ${t.bn};
    const int m0 = ${rows.start("tile")}, n0 = ${columns.start("block")};
% if k_slices > 1:
    const int part = get_group_id(2) % ${k_slices};
    const int from = part * ${share}, to = min(from + ${share}, ${chunks});
% else:
    const int from = 0, to = ${chunks};
% endif
    ${lp.offsets("z", batch.extents, batch.pitches, names)}
    __global const ${cell(at_)} *a = a_base + a_offset + at_a;
    __global const ${cell(bt)} *b = b_base + at_b${" + b_offset" if b_moves else ""};
% if k_slices > 1:
    __global ${cell(yt)} *dst = dst_base + dst_offset + (part * ${matrices} + z) * ${m * n};
% else:
    __global ${cell(yt)} *dst = dst_base + dst_offset + at_dst;
% endif
% for place, _ in extras.values():
    __global const ${cell(yt)} *extra${place} = extra${place}_base + extra${place}_offset + at_extra${place};
% endfor
    ${wk.begin(t, fetches)}
% for i in range(fetches["a"].loads):
    const int a_at${i} = (m0 + ${limited("a", rows, i)}) * ${a[0]} + a_k${i} * ${a[1]};
% endfor
% for i in range(fetches["b"].loads):
%  if packed:
    const int b_at${i} = block * ${chunks * t.bk * t.bn} + b_k${i} * ${t.bn} + b_o${i};
%  else:
    const int b_at${i} = (n0 + ${limited("b", columns, i)}) * ${b[1]} + b_k${i} * ${b[0]};
%  endif
% endfor
    ${wk.sum_chunks(t, fetches, chunk)}
    ${wk.finish(t, (rows, columns), (m,), operands, post_ops, scales, loop_epilogue, stored)}
}
