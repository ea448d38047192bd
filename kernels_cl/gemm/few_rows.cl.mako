<%doc>
gemm/few_rows: matrix product of rows with columns that both lie along k, as sums of vector products.

    a column of b, members = 2:   | 0 0 0 0 | 1 1 1 1 | 0 0 0 0 | 1 1 1 1 | ..     k
                                  work-item 0 reads a vector, work-item 1 its neighbour

Tensors  a, b: pitch 1 along k
         dst, extras: any pitches
Index    a[i * PM + k]   b[j * PN + k]   dst[i * PM + j * PN]
         The last tile of rows and of columns starts early enough to be whole and stores only what
         no other tile stores. With several members, each adds and stores some of the tile's sums in
         the end.
Launch   global (column tiles, row tiles, batch)
         with members > 1: global (members, column tiles, row tiles * batch),
         local (members, tiles of columns, 1)
Params   name, wg
         m, n, k           extents
         a, b, dst         pitches (row, column)
         types             of a, of b, and of dst and extras
         batch             extents and pitches of the outer loops, in the order a, b, dst, extras
         extras            node input -> (number, pitches), of operands of the post-ops
         scales            node input -> factor of such an operand
         post_ops          what is applied to the sums
Tunables mr       {1..4}         rows of a tile
         nr       {1..8}         columns of a tile
         vw       {1,4,8,16}     lanes along k
         members  {1,2,4,8,16}   work-items of a tile
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%
    V = vec_type("float", vw)
    at_, bt, yt = types
    whole = k - k % vw
    names = ["at_a", "at_b", "at_dst"] + [f"at_extra{place}" for place, _ in extras.values()]
    tiles, rows, sums = -(-n // nr), -(-m // mr), mr * nr
    z = f"get_global_id(2) / {rows}" if members > 1 and rows > 1 else "get_global_id(2)"
    first = f"member * {vw}" if members > 1 else "0"
    assert members == 1 or wg[0] == members, (members, wg)
    assert m >= mr and n >= nr and a[1] == 1 and b[0] == 1, (m, n, mr, nr, a, b)
    def start(count, extent, tile):
        return f"min(first_{tile}, {extent - count})" if extent % count else f"first_{tile}"
%>
<%def name="rest(r, c)">\
for (int k = ${whole}; k < ${k}; ++k) sum = fma(${element(at_, "p", f"k + {r * a[0]}")}, ${element(bt, "q", f"k + {c * b[1]}")}, sum);\
</%def>
<%def name="finish()">\
<%
    def operand(which):
        place, pitches = extras[which]
        text = element(yt, f"extra{place}", f"i * {pitches[0]} + j * {pitches[1]}")
        return f"({scalar(scales[which])} * {text})" if which in scales else text
%>\
        ${st.apply(post_ops, "sum", "float", 1, operand)}
        ${store(1, "sum", "dst", f"i * {dst[0]} + j * {dst[1]}", yt)}\
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(at_)} *a_base, const int a_offset, __global const ${cell(bt)} *b_base, const int b_offset,
% for place, _ in extras.values():
    __global const ${cell(yt)} *extra${place}_base, const int extra${place}_offset,
% endfor
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
% if members > 1:
    __local float shared_[${wg[1] * members * sums}];
    const int member = get_local_id(0), live = get_global_id(1) < ${tiles};
    const int first_j = min((int)get_global_id(1), ${tiles - 1}) * ${nr}, first_i = ${f"get_global_id(2) % {rows} * {mr}" if rows > 1 else 0};
% else:
    const int first_j = get_global_id(0) * ${nr}, first_i = get_global_id(1) * ${mr};
    if (first_j >= ${n}) return;
% endif
    ${lp.offsets(z, batch.extents, batch.pitches, names)}
    const int i0 = ${start(mr, m, "i")}, j0 = ${start(nr, n, "j")};
    __global ${cell(yt)} *dst = dst_base + dst_offset + at_dst;
% for place, _ in extras.values():
    __global const ${cell(yt)} *extra${place} = extra${place}_base + extra${place}_offset + at_extra${place};
% endfor
    __global const ${cell(at_)} *p = a_base + a_offset + at_a + i0 * ${a[0]};
    __global const ${cell(bt)} *q = b_base + b_offset + at_b + j0 * ${b[1]};
% for r in range(mr):
%  for c in range(nr):
    ${V} s${r}_${c} = (${V})(0);
%  endfor
% endfor
    for (int k = ${first}; k < ${whole}; k += ${members * vw}) {
% for r in range(mr):
        const ${V} a${r} = ${load(at_, vw, "p", f"k + {r * a[0]}")};
% endfor
% for c in range(nr):
        {
            const ${V} b${c} = ${load(bt, vw, "q", f"k + {c * b[1]}")};
%  for r in range(mr):
            s${r}_${c} = fma(a${r}, b${c}, s${r}_${c});
%  endfor
        }
% endfor
    }
% if members > 1:
    {
        __local float *mine = shared_ + get_local_id(1) * ${members * sums} + member;
%  for r in range(mr):
%   for c in range(nr):
        {
        ${tl.total("sum", f"s{r}_{c}", vw)}
%    if not divides(vw, k):
        if (member == 0) {
            ${rest(r, c)}
        }
%    endif
        mine[${(r * nr + c) * members}] = sum;
        }
%   endfor
%  endfor
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int which = member; which < ${sums}; which += ${members}) {
        const int i = i0 + which / ${nr}, j = j0 + which % ${nr};
        __local const float *terms = shared_ + (get_local_id(1) * ${sums} + which) * ${members};
        float sum = terms[0];
        for (int other = 1; other < ${members}; ++other) sum += terms[other];
        if (live && i >= first_i && j >= first_j) {
            ${finish()}
        }
    }
% else:
%  for r in range(mr):
%   for c in range(nr):
    if (i0 + ${r} >= first_i && j0 + ${c} >= first_j) {
        const int i = i0 + ${r}, j = j0 + ${c};
        ${tl.total("sum", f"s{r}_{c}", vw)}
%    if not divides(vw, k):
        ${rest(r, c)}
%    endif
        ${finish()}
    }
%   endfor
%  endfor
% endif
}
