<%doc>
gemm/amx: matrix product of bfloat16 by tiles of registers (_common/amx.cl.mako).

A work-item computes tiles of `mr` rows by `nv` vectors of columns, one after the other. Each is `ma` by nv tiles of
registers.

Tensors  a: rows of pitch 1. b: panels of nv * 16 columns, packed in pairs of rows as gemm/tiled reads them with `dot`
         dst, extras: any pitches
         The last tile of rows starts early enough to be whole and stores only the rows that no other tile stores.
Launch   global (runs of `each` tiles, 1, batch); with joins > 1: global (runs of tiles of all matrices, 1, 1), so that
         each panel meets all of them before the next one
Params   name, wg, m, n, k, a, dst, row, panel, b_moves, types, batch, extras, scales, post_ops: as of gemm/tiled
         shift False     columns beyond n are read from b, packed zeros, and never stored
         vw 16           lanes of a vector
         how             of _common/amx.cl.mako
         depth           bytes of a row of a that a tile takes at a time; a multiple of 4 that divides 2 k
         joins           matrices of the batch whose tiles of rows follow each other, all of them or 1
         prefetch        whether tiles of rows ask for the panel behind theirs; not where channels_fastest
Tunables mr, nv, ma      ma * nv {1..4}, mr a multiple of ma
         each            tiles that a work-item computes
         channels_fastest {0,1}   a work-item takes neighbouring panels, not tiles of rows
</%doc>
<%namespace name="fi" file="/_common/product_finish.cl.mako"/>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="mx" file="/_common/amx.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%!
LINE = 64  # bytes of a cache line
%>
<%
    width = nv * vw
    blocks, tiles = -(-n // width), -(-m // mr)
    at_, bt, yt = types
    V = vec_type("float", vw)
    tiles_of_all = tiles * joins
    total, rows_a = blocks * tiles_of_all, mr // ma
    names = ["at_a", "at_b", "at_dst"] + [f"at_extra{place}" for place, _ in extras.values()]
    sums, lefts, rights = mx.module.registers(ma, nv)
    at_run = (f"run % {blocks}", f"run / {blocks}") if channels_fastest else (f"run / {tiles_of_all}", f"run % {tiles_of_all}")
    chunks = 2 * k // depth
    ahead = -(-2 * panel // LINE // (tiles_of_all * chunks)) if prefetch else 0  # lines that a step asks for
    assert not (channels_fastest and (prefetch or joins > 1)) and not (b_moves and joins > 1)
    assert vw == 16 and a[1] == 1 and m >= mr and not shift, (vw, a, m, mr, shift)
%>
<%def name="left(j, tile)">\
${mx.read(how, tile, f"p + {j * rows_a * a[0]}", 2 * a[0], "a")}\
</%def>
<%def name="right(v, tile)">\
${mx.read(how, tile, f"w + {v * vw * 2}", 2 * row, "b")}\
</%def>
<%def name="at_matrix(which)">\
    ${lp.offsets(which, batch.extents, batch.pitches, names)}
    __global ${cell(yt)} *dst = dst_base + dst_offset + at_dst;
% for place, _ in extras.values():
    __global const ${cell(yt)} *extra${place} = extra${place}_base + extra${place}_offset + at_extra${place};
% endfor
</%def>
${group_size(wg)}
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
    const int from = get_global_id(0) * ${each};
    if (from >= ${total}) return;
% if joins == 1:
    ${at_matrix("get_global_id(2)")}
% endif
    ${V} t[${mr * nv}] __attribute__((aligned(64)));
    const ${V} zero = 0;
    ${mx.begin(how, rows_a, depth, sums, lefts, rights)}
    for (int run = from; run < ${f"min(from + {each}, {total})" if total % each else f"from + {each}"}; ++run) {
    const int block = ${at_run[0]}, at_tile = ${at_run[1]}, tile = at_tile${f" % {tiles}" if joins > 1 else ""}, n0 = block * ${width};
% if joins > 1:
    ${at_matrix(f"at_tile / {tiles}")}
% endif
    const int first = tile * ${mr}, m0 = ${f"min(first, {m - mr})" if m % mr else "first"};
    __global const ${cell(at_)} *p = a_base + a_offset + at_a + m0 * ${a[0]};
    __global const ${cell(bt)} *w = b_base + at_b + block * ${panel}${" + b_offset" if b_moves else ""};
% if ahead:
    __global const ${cell(bt)} *beyond = w + ${panel} + at_tile * ${chunks * ahead * LINE // 2};
% endif
% for s in sums:
    ${mx.read(how, s, "&zero", 0, "a", "__private")}\
% endfor
    for (int chunk = 0; chunk < ${chunks}; ++chunk) {
        ${mx.products(how, "bf16", ma, nv, nv, left, right)}
% for line in range(ahead):
        ${pf.fetch_far(f"beyond + {line * LINE // 2}")}
% endfor
% if ahead:
        beyond += ${ahead * LINE // 2};
% endif
        p += ${depth // 2};
        w += ${depth // 4 * row};
    }
% for s in sums:
    ${mx.write(how, s, f"t + {s // nv * rows_a * nv + s % nv}", nv * 64)}\
% endfor
    ${fi.finish_all(mr, False, True)}
    }
    ${mx.end(how)}
}
