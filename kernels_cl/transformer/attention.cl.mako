<%doc>
transformer/attention: softmax(post_ops(q k)) v, `rows` queries at a time, whose scores stay in local memory.

                 | panels of k    d x n              | v    n x e
    -------------+---------------------      --------+-----------
    rows of q    | scores         rows x n  ->  exp  | results    rows x e
    rows x d     |

Tensors  q, v, dst, extras: any pitches; neighbouring columns of v lie side by side
         panels: k in columns of nv * vw keys, zeros behind the last (gemm/pack)
Index    q[i * PM + t * PK]   panels[j / (nv * vw) * panel + t * (nv * vw) + j % (nv * vw)]   v[j * VJ + c]
         The last tile of rows starts early enough to be whole and stores only the rows that no other
         tile stores; so does the last block of columns of v, which the same work-item stores again.
         Scores beyond the last key are -infinity.
Launch   global (tiles of rows, batch)
Params   name, wg
         m, n, d, e        queries, keys, terms of a score, columns of v
         q, v, dst         pitches (row, column)
         panel             elements from one panel to the next
         pitch             elements from one row of scores to the next, in local memory
         batch             extents and pitches of the outer loops, in the order q, panels, extras, v, dst
         extras            node input -> (number, pitches), of operands of the post-ops
         scales            node input -> factor of such an operand
         post_ops          what is applied to the scores
         zeros_for_nan     rows that are NaN become 0
Tunables rows              of a work-item, a multiple of mr and of out_mr
         mr x nv x vw      the tile of registers that makes scores: rows, vectors of keys, lanes
         out_mr x out_nv x out_vw   the one that makes results: rows, vectors of columns, lanes
NaN      a row with a NaN, an infinity, or nothing but -infinity among its scores is NaN, unless zeros_for_nan
</%doc>
<%namespace name="ex" file="/_common/exp.cl.mako"/>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="sr" file="/_common/softmax_rows.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%!
ABREAST = 4  # rows whose exponentials are made side by side
%>\
<%
    width, out_width = nv * vw, out_nv * out_vw
    blocks, tiles = -(-n // width), -(-m // rows)
    tail = n - (blocks - 1) * width
    span = -(-n // vw) * vw  # scores of a row, in whole vectors
    uneven = m % rows != 0
    assert rows <= m and rows % mr == 0 == rows % out_mr and out_width <= e, (m, e, rows, mr, out_mr, out_width)
    assert (e == 1 or v[1] == 1) and pitch >= span, (v, pitch, span)
    V, W = vec_type("float", vw), vec_type("float", out_vw)
    names = ["at_q", "at_panels", *(f"at_extra{place}" for place, _ in extras.values()), "at_v", "at_dst"]
    def there(k, tail_block):
        """How many lanes of vector k of a panel are keys."""
        return min(max(tail - k * vw, 0), vw) if tail_block else vw
%>
<%def name="finish_scores(tail_block)">\
<%
    def operand_at(k, count):
        def operand(which):
            place, (down, along) = extras[which]
            at = [] if is_zero(down) else [f"(m0 + r0 + r) * {down}"]
            at += [] if is_zero(along) else [f"(n0 + {k * vw}) * {along}"]
            text = capture(tl.load_lanes, vw, f"extra{place}", " + ".join(at) or "0", along, count).strip()
            return f"({scalar(scales[which])} * {text})" if which in scales else text
        return operand
%>\
        for (int r = 0; r < ${mr}; ++r) {
% for k in range(nv):
<% count = there(k, tail_block) %>\
%  if count:
            {
                ${V} value = t[r * ${nv} + ${k}];
                ${st.apply(post_ops, "value", "float", vw, operand_at(k, count))}
%   if count < vw:
                value = (int${vw})(${", ".join("-1" if lane < count else "0" for lane in range(vw))}) ? value : (${V})(-INFINITY);
%   endif
                ${store(vw, "value", "s", f"r * {pitch} + {k * vw}", "float", "__local")}
            }
%  endif
% endfor
        }
</%def>
<%def name="weights(count)">\
% for r in range(count):
        __local float *s${r} = scores + (r0 + ${r}) * ${pitch};
        ${V} top${r} = ${load("float", vw, f"s{r}", "0")}, sum${r} = 0;
% endfor
        for (int j = ${vw}; j < ${span}; j += ${vw}) {
% for r in range(count):
            const ${V} x${r} = ${load("float", vw, f"s{r}", "j")};
            top${r} = x${r} > top${r} ? x${r} : top${r};
% endfor
        }
        ${sr.exponentials(count, vw, span, pitch, rows * pitch, lambda r: store(vw, f"x{r}", f"s{r}", "j", "float", "__local"))}
</%def>
${ex.define_up_to_zero([vw])}
${group_size(wg)}
__kernel void ${name}(
    __global const float *q_base, const int q_offset, __global const float *panels_base, const int panels_offset,
% for place, _ in extras.values():
    __global const float *extra${place}_base, const int extra${place}_offset,
% endfor
    __global const float *v_base, const int v_offset, __global float *dst_base, const int dst_offset)
{
    const int tile = get_global_id(0);
    if (tile >= ${tiles}) return;
    __local float scores[${rows * (pitch + 1)}];
    ${lp.offsets("get_global_id(1)", batch.extents, batch.pitches, names)}
    const int first = tile * ${rows}, m0 = ${f"min(first, {m - rows})" if uneven else "first"};
% for place, _ in extras.values():
    __global const float *extra${place} = extra${place}_base + extra${place}_offset + at_extra${place};
% endfor
    __global float *dst = dst_base + dst_offset + at_dst;
    for (int block = 0; block < ${blocks}; ++block)
    for (int r0 = 0; r0 < ${rows}; r0 += ${mr}) {
        __global const float *p = q_base + q_offset + at_q + (m0 + r0) * ${q[0]};
        __global const float *w = panels_base + panels_offset + at_panels + block * ${panel};
        __local float *s = scores + r0 * ${pitch} + block * ${width};
        const int n0 = block * ${width};
% for r in range(mr):
        ${V} ${", ".join(f"c{r}_{k} = 0" for k in range(nv))};
% endfor
        for (int i = 0; i < ${d}; ++i) {
% for k in range(nv):
            const ${V} b${k} = ${load("float", vw, "w", str(k * vw))};
% endfor
% for r in range(mr):
            {
                const ${V} a = (${V})(p[${times(r, q[0])}]);
%  for k in range(nv):
                c${r}_${k} = fma(a, b${k}, c${r}_${k});
%  endfor
            }
% endfor
            p += ${q[1]};
            w += ${width};
        }
        ${V} t[${mr * nv}];
% for r in range(mr):
%  for k in range(nv):
        t[${r * nv + k}] = c${r}_${k};
%  endfor
% endfor
% if tail == width:
        ${finish_scores(False)}
% elif blocks == 1:
        ${finish_scores(True)}
% else:
        if (block < ${blocks - 1}) {
        ${finish_scores(False)}
        } else {
        ${finish_scores(True)}
        }
% endif
    }
% for first, count, of in sr.module.row_groups(rows, ABREAST):
    for (int r0 = ${first}; r0 < ${first + count * of}; r0 += ${of}) {
        ${weights(of)}
    }
% endfor
    for (int n0 = 0; n0 < ${e}; n0 += ${out_width})
    for (int r0 = 0; r0 < ${rows}; r0 += ${out_mr}) {
        const int column = ${f"min(n0, {e - out_width})" if e % out_width else "n0"};
        __local const float *s = scores + r0 * ${pitch};
        __global const float *w = v_base + v_offset + at_v + column;
% for r in range(out_mr):
        ${W} ${", ".join(f"c{r}_{k} = 0" for k in range(out_nv))};
% endfor
        for (int j = 0; j < ${n}; ++j) {
% for k in range(out_nv):
            const ${W} b${k} = ${load("float", out_vw, "w", str(k * out_vw))};
% endfor
% for r in range(out_mr):
            {
                const ${W} a = (${W})(s[${r * pitch} + j]);
%  for k in range(out_nv):
                c${r}_${k} = fma(a, b${k}, c${r}_${k});
%  endfor
            }
% endfor
            w += ${v[0]};
        }
        ${W} t[${out_mr * out_nv}];
% for r in range(out_mr):
%  for k in range(out_nv):
        t[${r * out_nv + k}] = c${r}_${k};
%  endfor
% endfor
        for (int r = 0; r < ${out_mr}; ++r) {
% if uneven:
            if (m0 + r0 + r < first) continue;
% endif
            const float share = scores[${rows * pitch} + r0 + r];
% for k in range(out_nv):
            {
                const ${W} value = ${"share != share ? (" + W + ")(0) : " if zeros_for_nan else ""}t[r * ${out_nv} + ${k}] * share;
                ${tl.store_lanes(out_vw, "value", "dst", f"(m0 + r0 + r) * {dst[0]} + (column + {k * out_vw}) * {dst[1]}", dst[1], 0, out_vw)}
            }
% endfor
        }
    }
}
