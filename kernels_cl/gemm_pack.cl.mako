<%doc>
gemm_pack: copies matrices into panels of `width` columns, the layout that gemm_tiled reads.

Tensors  src: matrices k x n of any pitches | dst: [batch][panels][k][width], columns beyond n are 0
Launch   global (panels, chunks of k, batch); one work-item packs `chunk` rows of one panel
Params   name | k, n | src: pitches (row, column) | batch: extents and pitches of the outer loops of
         src and dst | wg
Tunables width | vw {1,4,8,16}: lanes of loads and stores where columns have pitch 1, side of the
         squares that are transposed in registers where rows have pitch 1; divides width | chunk
</%doc>
<%namespace name="lp" file="_common/loops.cl.mako"/>
<%namespace name="tl" file="_common/tile.cl.mako"/>
<%
    panels = -(-n // width)
    tail = n - (panels - 1) * width
    V = vec_type("float", vw)
    turned = src[0] == 1 and src[1] != 1 and vw > 1
    assert width % vw == 0 and (not turned or chunk % vw == 0), (width, vw, chunk)
    def woven(a, b, half):
        """Lanes of a and b in turn: the lower or the upper halves."""
        start = 0 if half == 0 else vw // 2
        digits = "0123456789abcdef"
        return ", ".join(f"{x}.s{digits[start + i]}" for i in range(vw // 2) for x in (a, b))
%>
<%def name="row(columns)">\
% for v in range(width // vw):
<% end = min(max(columns - v * vw, 0), vw) %>\
%  if end == 0:
        ${store(vw, f"({V})(0)", "w", f"{v * vw}")}
%  else:
        ${store(vw, capture(tl.load_lanes, vw, "p", str(v * vw * src[1]), src[1], end).strip(), "w", f"{v * vw}")}
%  endif
% endfor
</%def>
<%def name="squares(columns)">\
% for v in range(width // vw):
        {
%  for c in range(vw):
            const ${V} t0_${c} = ${load("float", vw, "p", str((v * vw + c) * src[1])) if v * vw + c < columns else f"({V})(0)"};
%  endfor
<% level = 0 %>\
%  while (1 << level) < vw:
%   for c in range(vw // 2):
            const ${V} t${level + 1}_${2 * c} = (${V})(${woven(f"t{level}_{c}", f"t{level}_{c + vw // 2}", 0)});
            const ${V} t${level + 1}_${2 * c + 1} = (${V})(${woven(f"t{level}_{c}", f"t{level}_{c + vw // 2}", 1)});
%   endfor
<% level += 1 %>\
%  endwhile
%  for c in range(vw):
            ${store(vw, f"t{level}_{c}", "w", str(c * width + v * vw))}
%  endfor
        }
% endfor
</%def>
<%def name="rows(columns)">\
% if turned:
    for (; i + ${vw} <= end; i += ${vw}, p += ${vw}, w += ${vw * width}) {
        ${squares(columns)}
    }
% endif
    for (; i < end; ++i, p += ${src[0]}, w += ${width}) {
        ${row(columns)}
    }
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset, __global float *dst_base, const int dst_offset)
{
    const int panel = get_global_id(0);
    if (panel >= ${panels}) return;
    int i = get_global_id(1) * ${chunk};
    const int end = min(i + ${chunk}, ${k});
    ${lp.offsets("get_global_id(2)", batch.extents, batch.pitches, ["at_src", "at_dst"])}
    __global const float *p = src_base + src_offset + at_src + i * ${src[0]} + panel * ${width * src[1]};
    __global float *w = dst_base + dst_offset + at_dst + (panel * ${k} + i) * ${width};
% if tail == width:
    ${rows(width)}
% elif panels == 1:
    ${rows(tail)}
% else:
    if (panel < ${panels - 1}) {
    ${rows(width)}
    } else {
    ${rows(tail)}
    }
% endif
}
