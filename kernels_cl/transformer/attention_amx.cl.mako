<%doc>
transformer/attention_amx: softmax(post_ops(q k)) v of bfloat16 by tiles of registers (_common/amx.cl.mako), `mr` queries at a time.

Scores are floats in local memory. Their exponentials, not yet divided by the sum of a row, are rounded to bfloat16 and
take the place of the row's first half, where they are rows of the second product.

Tensors  q: rows of pitch 1; dst, extras: any pitches
         panels, values: k and v in columns of 32, packed in pairs of rows as gemm/tiled reads them with `dot`; zeros behind
         the last row of v. What is behind the last column makes scores and results that are not used
         The last tile of rows starts early enough to be whole and stores only the rows that no other tile stores.
         Scores beyond the last key are -infinity.
Launch   global (tiles of rows, batch)
Params   name, wg, m, n, d, e, q, dst, batch, extras, scales, post_ops, zeros_for_nan: as of transformer/attention; batch is
                           in the order q, panels, extras, values, dst
         types             of q, and of dst and extras
         panel, v_panel    elements from one panel of k, and of v, to the next
         pitch             elements from one row of scores to the next, in local memory
         how               of _common/amx.cl.mako
         depth             bytes of a row of q that a tile takes at a time; a multiple of 4 that divides 2 d
Tunables mr, ma            rows of a work-item, in ma {1,2} tiles of registers
NaN      as of transformer/attention
</%doc>
<%namespace name="ex" file="/_common/exp.cl.mako"/>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="mx" file="/_common/amx.cl.mako"/>
<%namespace name="sr" file="/_common/softmax_rows.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%!
ABREAST = 4  # rows whose exponentials are made side by side
VW, NV = 16, 2  # lanes of a vector; tiles of registers side by side
ROW = 64  # bytes of a row of weights that a tile takes at a time: 32 keys
%>\
<%
    vw, nv, width = VW, NV, NV * VW
    qt, yt = types
    blocks, tiles, rows_a = -(-n // width), -(-m // mr), mr // ma
    span = blocks * width  # scores of a row
    out_blocks, uneven = -(-e // width), m % mr != 0
    sums, lefts, rights = mx.module.registers(ma, nv)
    assert mr <= m and mr % ma == 0 and q[1] == 1 and pitch >= span and pitch % vw == 0, (m, mr, ma, q, pitch)
    V = vec_type("float", vw)
    names = ["at_q", "at_panels", *(f"at_extra{place}" for place, _ in extras.values()), "at_v", "at_dst"]
    def there(at, end):
        """How many lanes of the vector that begins at `at` are before `end`."""
        return min(max(end - at, 0), vw)
%>
<%def name="q_rows(j, tile)">\
${mx.read(how, tile, f"p + {j * rows_a * q[0]}", 2 * q[0], "a")}\
</%def>
<%def name="weight_rows(j, tile)">\
${mx.read(how, tile, f"s + {j * rows_a * pitch * 2}", pitch * 4, "a", "__local")}\
</%def>
<%def name="columns(v, tile)">\
${mx.read(how, tile, f"w + {v * vw * 2}", width * 4, "b")}\
</%def>
<%def name="finished(r, j, count)">\
<%
    def operand(which):
        place, (down, along) = extras[which]
        at = [] if is_zero(down) else [f"(m0 + r0 + {r}) * {down}"]
        at += [] if is_zero(along) else [f"({j}) * {along}"]
        text = capture(tl.load_lanes, vw, f"extra{place}", " + ".join(at) or "0", along, count, yt).strip()
        return f"({scalar(scales[which])} * {text})" if which in scales else text
%>\
            {
                ${V} value = ${load("float", vw, f"s{r}", j)};
                ${st.apply(post_ops, "value", "float", vw, operand)}
% if count < vw:
                value = (int${vw})(${", ".join("-1" if lane < count else "0" for lane in range(vw))}) ? value : (${V})(-INFINITY);
% endif
                ${store(vw, "value", f"s{r}", j, "float", "__local")}
                top${r} = value > top${r} ? value : top${r};
            }
</%def>
<%def name="weights(count)">\
% for r in range(count):
        __local float *s${r} = scores + (r0 + ${r}) * ${pitch};
        ${V} top${r} = -INFINITY, sum${r} = 0;
% endfor
        for (int j = 0; j < ${n - n % vw}; j += ${vw}) {
% for r in range(count):
${finished(r, "j", vw)}\
% endfor
        }
% for j in range(n - n % vw, span, vw):
%  for r in range(count):
%   if there(j, n):
${finished(r, str(j), there(j, n))}\
%   else:
            ${store(vw, f"({V})(-INFINITY)", f"s{r}", str(j), "float", "__local")}
%   endif
%  endfor
% endfor
        ${sr.exponentials(count, vw, span, pitch, mr * pitch, lambda r: small_vector("ushort16", f"((__local ushort *)s{r})", "j", "", "__local") + f" = convert_ushort16((as_uint16(x{r}) + 0x8000u) >> 16);", how == "plain")}
</%def>
<%def name="results(is_last)">\
        for (int r = 0; r < ${mr}; ++r) {
% if uneven:
            if (m0 + r < first) continue;
% endif
            const float share = scores[${mr * pitch} + r];
% for k in range(nv):
<% count = there((out_blocks - 1) * width + k * vw, e) if is_last else vw %>\
%  if count:
            {
                const ${V} value = ${"share != share ? (" + V + ")(0) : " if zeros_for_nan else ""}t[r * ${nv} + ${k}] * share;
                ${tl.store_lanes(vw, "value", "dst", f"(m0 + r) * {dst[0]} + (block * {width} + {k * vw}) * {dst[1]}", dst[1], 0, count, yt)}
            }
%  endif
% endfor
        }
</%def>
${ex.define_up_to_zero([vw])}
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(qt)} *q_base, const int q_offset, __global const ushort *panels_base, const int panels_offset,
% for place, _ in extras.values():
    __global const ${cell(yt)} *extra${place}_base, const int extra${place}_offset,
% endfor
    __global const ushort *v_base, const int v_offset, __global ${cell(yt)} *dst_base, const int dst_offset)
{
    const int tile = get_global_id(0);
    if (tile >= ${tiles}) return;
    __local float scores[${mr * (pitch + 1)}] __attribute__((aligned(64)));
    ${lp.offsets("get_global_id(1)", batch.extents, batch.pitches, names)}
    const int first = tile * ${mr}, m0 = ${f"min(first, {m - mr})" if uneven else "first"};
% for place, _ in extras.values():
    __global const ${cell(yt)} *extra${place} = extra${place}_base + extra${place}_offset + at_extra${place};
% endfor
    __global ${cell(yt)} *dst = dst_base + dst_offset + at_dst;
    ${V} t[${mr * nv}] __attribute__((aligned(64)));
    const ${V} zero = 0;
    {
    ${mx.begin(how, rows_a, depth, sums, lefts, rights)}
    for (int block = 0; block < ${blocks}; ++block) {
        __global const ${cell(qt)} *p = q_base + q_offset + at_q + m0 * ${q[0]};
        __global const ushort *w = panels_base + panels_offset + at_panels + block * ${panel};
% for s in sums:
        ${mx.read(how, s, "&zero", 0, "a", "__private")}\
% endfor
        for (int chunk = 0; chunk < ${2 * d // depth}; ++chunk) {
            ${mx.products(how, "bf16", ma, nv, nv, q_rows, columns)}
            p += ${depth // 2};
            w += ${depth // 2 * width};
        }
% for s in sums:
        ${mx.write(how, s, f"scores + {s // nv * rows_a * pitch + s % nv * vw} + block * {width}", pitch * 4, "__local")}\
% endfor
    }
    }
% for begin, count, of in sr.module.row_groups(mr, ABREAST):
    for (int r0 = ${begin}; r0 < ${begin + count * of}; r0 += ${of}) {
        ${weights(of)}
    }
% endfor
    ${mx.begin(how, rows_a, ROW, sums, lefts, rights)}
    for (int block = 0; block < ${out_blocks}; ++block) {
        __local const ushort *s = (__local const ushort *)scores;
        __global const ushort *w = v_base + v_offset + at_v + block * ${v_panel};
% for s in sums:
        ${mx.read(how, s, "&zero", 0, "a", "__private")}\
% endfor
        for (int chunk = 0; chunk < ${blocks}; ++chunk) {
            ${mx.products(how, "bf16", ma, nv, nv, weight_rows, columns)}
            s += ${ROW // 2};
            w += ${ROW // 2 * width};
        }
% for s in sums:
        ${mx.write(how, s, f"t + {s // nv * rows_a * nv + s % nv}", nv * 64)}\
% endfor
% if e % width == 0:
        ${results(False)}
% elif out_blocks == 1:
        ${results(True)}
% else:
        if (block < ${out_blocks - 1}) {
        ${results(False)}
        } else {
        ${results(True)}
        }
% endif
    }
    ${mx.end(how)}
}
