<%doc>
gemm_dot: matrix product of rows with columns that both lie along k, as sums of vector products.

Tensors  a, b: pitch 1 along k | dst, extras: any pitches
Index    a[i * PM + k]   b[j * PN + k]   dst[i * PM + j * PN]
         The last tile of rows and of columns starts early enough to be whole and stores only what
         no other tile stores.
Launch   global (column tiles, row tiles, batch)
Params   name | m, n, k | a, b, dst: pitches (row, column) | batch: extents and pitches of the outer
         loops, in the order a, b, dst, extras | extras: node input -> (number, pitches) |
         scales: node input -> factor | steps | wg |
         types: of a, b, and dst and extras
Tunables mr, nr: rows of a and columns of b of a tile | vw {1,4,8,16}: lanes along k
</%doc>
<%namespace name="lp" file="_common/loops.cl.mako"/>
<%namespace name="st" file="_common/steps.cl.mako"/>
<%namespace name="tl" file="_common/tile.cl.mako"/>
<%
    V = vec_type("float", vw)
    at_, bt, yt = types
    whole = k - k % vw
    names = ["at_a", "at_b", "at_dst"] + [f"at_extra{place}" for place, _ in extras.values()]
    assert m >= mr and n >= nr and a[1] == 1 and b[0] == 1, (m, n, mr, nr, a, b)
    def start(count, extent, tile):
        return f"min(first_{tile}, {extent - count})" if extent % count else f"first_{tile}"
%>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(at_)} *a_base, const int a_offset, __global const ${cell(bt)} *b_base, const int b_offset,
% for place, _ in extras.values():
    __global const ${cell(yt)} *extra${place}_base, const int extra${place}_offset,
% endfor
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
    const int first_j = get_global_id(0) * ${nr}, first_i = get_global_id(1) * ${mr};
    if (first_j >= ${n}) return;
    ${lp.offsets("get_global_id(2)", batch.extents, batch.pitches, names)}
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
    for (int k = 0; k < ${whole}; k += ${vw}) {
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
% for r in range(mr):
%  for c in range(nr):
    if (i0 + ${r} >= first_i && j0 + ${c} >= first_j) {
        const int i = i0 + ${r}, j = j0 + ${c};
        ${tl.total("sum", f"s{r}_{c}", vw)}
%   if whole < k:
        for (int k = ${whole}; k < ${k}; ++k) sum = fma(${element(at_, "p", f"k + {r * a[0]}")}, ${element(bt, "q", f"k + {c * b[1]}")}, sum);
%   endif
<%
    def operand(which):
        place, pitches = extras[which]
        text = element(yt, f"extra{place}", f"i * {pitches[0]} + j * {pitches[1]}")
        return f"({scalar(scales[which])} * {text})" if which in scales else text
%>\
        ${st.apply(steps, "sum", "float", 1, operand)}
        ${store(1, "sum", "dst", f"i * {dst[0]} + j * {dst[1]}", yt)}
    }
%  endfor
% endfor
}
