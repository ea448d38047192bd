<%doc>
gemm/tiled: matrix product with a register tile of `mr` rows x `nv` vectors of columns.

                  | panel of b    k x (nv * vw)
    --------------+---------------------------
    rows of a     | sums          mr x nv vectors
    mr x k        |

Tensors  a: rows of any pitches
         b: panels of nv * vw columns, packed, or columns of pitch 1 where they lie
         dst, extras: any pitches
Index    a[i * PM + k * PK]   b[block * panel + k * row + column]   dst[i * PM + j * PN]
         with `dot` pairs of bfloat16: a[i * PM + k], b[block * panel + k / 2 * row + column * 2 + k % 2],
         b zero behind the last row where k is odd
         The last tile of rows starts early enough to be whole and stores only the rows that no
         other tile stores. Columns: with `shift` the last panel does the same, else lanes beyond n
         are read from b (packed zeros) and never stored.
         Extents m and n that are read at run time: where there are fewer rows than a tile's, the
         first tile walks them a few at a time; lanes of the last panel are counted.
Launch   global (row tiles, panels, batch), or panels first where `channels_fastest`; with joins > 1: global
         (row tiles of all matrices, panels, 1), so that each panel meets all of them before the next one
         with k_slices > 1: global (panels, row tiles * k_slices, batch), local (lanes, k_slices, 1);
         each work-item along axis 1 of a group sums one slice of k, and the first adds them all
Params   name, wg
         m, n, k           extents
         a, dst            pitches (row, column)
         row, panel        elements of b from row to row and from panel to panel
         b_moves           b has an offset: it is no constant
         types             of a, of b, and of dst and extras
         channels_fastest  neighbouring work-items take neighbouring panels, not tiles of rows
         shift             the last panel starts early enough to be whole
         aligned           vectors of b are
         dot               how pairs of bfloat16 are multiplied (_common/dot.cl.mako), "" for one by one
         ahead             rows of b by which its panels are read ahead into the cache; 0: none
         next_panel        tiles of rows share in reading the panel behind theirs into a core's second cache
         joins             matrices of the batch whose tiles of rows follow each other, all of them or 1
         batch             extents and pitches of the outer loops, in the order a, b, dst, extras
         extras            node input -> (number, pitches), of operands of the post-ops
         scales            node input -> factor of such an operand
         post_ops          what is applied to the sums
Tunables mr        {1..30}        rows of a tile
         nv        {1,2,3,4}      vectors of columns of a tile
         vw        {1,4,8,16}     lanes of a vector
         k_slices  {1,2,4..64}    shares of k; 1 unless channels_fastest
</%doc>
<%namespace name="dt" file="/_common/dot.cl.mako"/>
<%namespace name="fi" file="/_common/product_finish.cl.mako"/>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%!
LINE = 64  # bytes of a cache line
FEW = 4  # rows of a tile where there are too few for a whole one, as is told at run time
%>\
<%
    width = nv * vw
    blocks, tiles = -(-n // width), -(-m // mr)
    uneven = not divides(mr, m)
    has_few = is_open(m) and k_slices == 1
    lanes = wg[0]
    V = vec_type("float", vw)
    at_, bt, yt = types
    P = vec_type("int", vw)
    stride = -(-row * size_of(bt) // (tiles * joins))  # bytes of the next panel that a tile reads ahead with each row of b
    wide = dot == "spreadbf16x2"  # rows of a are made floats first
    wide_pitch = k + dt.module.WIDE_GAP
    assert not dot or (k_slices == 1 and not shift and a[1] == 1), (dot, k_slices, shift, a)
    assert (has_few or m >= mr) and (not shift or n >= width), (m, n, mr, nv, vw)
    assert joins == 1 or not (channels_fastest or has_few or b_moves), joins
    assert k_slices == 1 or (channels_fastest and wg[1] == k_slices), (k_slices, wg)
    if k_slices > 1:
        ids = ("get_group_id(1)", "get_global_id(0)")
    else:
        ids = ("get_global_id(1)", "get_global_id(0)") if channels_fastest else ("get_global_id(0)", "get_global_id(1)")
    names = ["at_a", "at_b", "at_dst"] + [f"at_extra{place}" for place, _ in extras.values()]
%>
<%def name="add_slices()">\
    __local ${V} sums[${k_slices * mr * nv * lanes}];
    __local ${V} *mine = sums + get_local_id(0);
% for r in range(mr):
%  for v in range(nv):
    mine[(part * ${mr * nv} + ${r * nv + v}) * ${lanes}] = c${r}_${v};
%  endfor
% endfor
    barrier(CLK_LOCAL_MEM_FENCE);
    if (part || !live) return;
    for (int other = 1; other < ${k_slices}; ++other) {
% for r in range(mr):
%  for v in range(nv):
        c${r}_${v} += mine[(other * ${mr * nv} + ${r * nv + v}) * ${lanes}];
%  endfor
% endfor
    }
</%def>
<%def name="pairs_of(mr, few, element)">\
% for v in range(nv):
        const ${P} b${v} = ${dt.weights(dot, bt, "int", vw, "w", 2 * v * vw)};
% endfor
% if wide:
${dt.apart(vw, mr, nv, lambda r, v: f"c{r}_{v}", wide_pitch, "2 * i")}\
% endif
% for r in range(0 if wide else mr):
        {
            const ${P} s = (${P})(${element(f"o{r}" if few else str(times(r, a[0])))});
%  for v in range(nv):
            ${dt.add(dot, vw, f"c{r}_{v}", "s", f"b{v}")}
%  endfor
        }
% endfor
</%def>
<%def name="sums(mr, few)">\
    __global const ${cell(at_)} *p = a_base + a_offset + at_a + ${'' if few else f'm0 * {a[0]} + '}from * ${a[1]};
    __global const ${cell(bt)} *w = b_base + at_b + from * ${row} + ${"n0" if shift else f"block * {panel}"}${" + b_offset" if b_moves else ""};
% if few:
%  for r in range(mr):
    const int o${r} = min(m0 + ${r}, ${m - 1}) * ${a[0]};
%  endfor
% endif
% if next_panel and not few:
    __global const char *beyond = (__global const char *)(w + ${panel}) + ${'get_global_id(0)' if joins > 1 else 'tile'} * ${times(k, stride)};
% endif
% for r in range(mr):
%  for v in range(nv):
    ${V} c${r}_${v} = (${V})(0);
%  endfor
% endfor
% if aligned:
#pragma unroll 4
% endif
% if wide:
    for (int i = 0; i < ${k}; i += ${vw}) {
%  for r in range(mr):
        ${store(vw, load(at_, vw, "p", (f"o{r}" if few else str(times(r, a[0]))) + " + i"), "wide", f"{r * wide_pitch} + i", "float", "__local")}
%  endfor
    }
% endif
% if dot:
    for (int i = 0; i < ${k // 2}; ++i) {
        ${pairs_of(mr, few, lambda where: small_vector("int", "p", where))}
%  for lane in range(0, 2 * width, LINE // size_of(bt)) if ahead else ():
        ${pf.fetch(f"w + {times(ahead // 2, row)} + {lane}")}
%  endfor
        p += 2;
        w += ${row};
    }
%  if not divides(2, k):
    {
        ${pairs_of(mr, few, lambda where: f"p[{where}]")}
    }
%  endif
% else:
    for (int i = from; i < to; ++i) {
% for v in range(nv):
        const ${V} b${v} = ${f"*(__global const {V} *)(w + {v * vw})" if aligned else load(bt, vw, "w", str(v * vw))};
% endfor
% for r in range(mr):
        {
            const ${V} s = (${V})(${element(at_, "p", f"o{r}" if few else times(r, a[0]))});
%  for v in range(nv):
            c${r}_${v} = fma(s, b${v}, c${r}_${v});
%  endfor
        }
% endfor
% for lane in range(0, width, LINE // size_of(bt)) if ahead else ():
        ${pf.fetch(f"w + {times(ahead, row)} + {lane}")}
% endfor
% if next_panel and not few:
        ${pf.fetch_far("beyond")}
        beyond += ${stride};
% endif
        p += ${a[1]};
        w += ${row};
    }
% endif
% if k_slices > 1:
    ${add_slices()}
% endif
${fi.finish_all(mr, few)}\
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
% if wide:
    __local float wide[${mr * wide_pitch}];
% endif
    const int tile = ${f"get_global_id(0) % {tiles}" if joins > 1 else ids[0]};
% if k_slices > 1:
    const int live = ${ids[1]} < ${blocks}, block = min((int)${ids[1]}, ${blocks - 1});
    const int part = get_local_id(1);
    const int from = part * ${-(-k // k_slices)}, to = min(from + ${-(-k // k_slices)}, ${k});
% else:
    const int block = ${ids[1]}, from = 0, to = ${k};
    if (${f"get_global_id(0) >= {tiles * joins}" if joins > 1 else f"tile >= {tiles}"} || block >= ${blocks}) return;
% endif
    ${lp.offsets(f"(int)get_global_id(0) / {tiles}" if joins > 1 else "get_global_id(2)", batch.extents, batch.pitches, names)}
    const int first = tile * ${mr}, m0 = ${f"min(first, {m - mr})" if uneven else "first"};
    const int n0 = ${f"min(block * {width}, {n - width})" if shift else f"block * {width}"};
    __global ${cell(yt)} *dst = dst_base + dst_offset + at_dst;
% for place, _ in extras.values():
    __global const ${cell(yt)} *extra${place} = extra${place}_base + extra${place}_offset + at_extra${place};
% endfor
% if has_few:
    if (${m} < ${mr}) {
        for (int m0 = 0; m0 < ${m}; m0 += ${min(mr, FEW)}) {
${sums(min(mr, FEW), True)}
        }
        return;
    }
% endif
${sums(mr, False)}\
}
