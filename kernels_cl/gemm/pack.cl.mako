<%doc>
gemm/pack: copies matrices into panels of `nv * vw` columns, as gemm/tiled reads them.

A work-item packs a strip of `vw` columns. Where they lie side by side they are copied, zeros behind
the last; else each is read on its own, the last one again for those behind it, and where rows lie
side by side squares of vw x vw elements are transposed in registers.

Tensors  src: matrices k x n of any pitches
         dst: panels of float, see Index
Index    src[i * PK + j * PN]   dst[j / (nv * vw) * panel + i * row + j % (nv * vw)]
Launch   global (strips, chunks of k, batch); one work-item packs `chunk` rows of a strip
Params   name, wg
         ctype             type of src
         k, n              extents
         src               pitches (row, column)
         batch             extents and pitches of the outer loops, in the order src, dst
         row, panel        elements of dst from row to row and from panel to panel
         strips            of a matrix
Tunables nv     {1,2,3,4}             vectors of columns of a panel
         vw     {1,4,8,16}            lanes of a vector
         chunk  {vw, 2 vw, 3 vw..}    rows that a work-item packs
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%
    V = vec_type("float", vw)
    copies, squares = is_one(src[1]), is_one(src[0]) and vw > 1
    whole = n - n % vw if not is_open(n) else f"({n} & ~{vw - 1})"
    assert chunk % vw == 0, (chunk, vw)
    def sides(block):
        """Swizzles of the lanes in the lower and in the upper half of each 2 * block lanes."""
        digits = "0123456789abcdef"[:vw]
        low = "".join(d for i, d in enumerate(digits) if not i & block)
        return "s" + low, "s" + "".join(d for d in digits if d not in low)
%>
<%def name="copy(text)">\
        for (; i < end; ++i, p += ${src[0]}, w += ${row}) {
            ${store(vw, text, "w", "0")}
        }
</%def>
<%def name="transpose()">\
% for c in range(vw):
        ${V} t${c} = ${load(ctype, vw, "p", f"o{c}")};
% endfor
<% block = vw // 2 %>\
% while block:
<%
    low, high = sides(block)
    half = vec_type("float", vw // 2)
%>\
%  for c in range(vw):
%   if not c & block:
        { const ${half} s = t${c}.${high}; t${c}.${high} = t${c + block}.${low}; t${c + block}.${low} = s; }
%   endif
%  endfor
<% block //= 2 %>\
% endwhile
% for c in range(vw):
        ${store(vw, f"t{c}", "w", times(c, row))}
% endfor
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(ctype)} *src_base, const int src_offset, __global float *dst_base, const int dst_offset)
{
    const int strip = get_global_id(0), column = strip * ${vw};
    if (strip >= ${strips}) return;
    int i = get_global_id(1) * ${chunk};
    const int end = min(i + ${chunk}, ${k});
    ${lp.offsets("get_global_id(2)", batch.extents, batch.pitches, ["at_src", "at_dst"])}
    __global const ${cell(ctype)} *p = src_base + src_offset + at_src + i * ${src[0]};
    __global float *w = dst_base + dst_offset + at_dst + strip / ${nv} * ${panel} + strip % ${nv} * ${vw} + i * ${row};
% if copies:
    p += column;
    if (column < ${whole}) {
        ${copy(load(ctype, vw, "p", "0"))}
    }
%  if is_open(n):
    if (column >= ${whole} && column < ${n}) {
        const int there = ${n} - column;
        ${copy(f"({V})(" + ", ".join(f"{c} < there ? {element(ctype, 'p', str(c))} : 0.0f" for c in range(vw)) + ")")}
    }
%  elif n > whole:
    if (column == ${whole}) {
        ${copy(capture(tl.load_lanes, vw, "p", "0", 1, n - whole, ctype).strip())}
    }
%  endif
    if (column >= ${n}) {
        ${copy(f"({V})(0)")}
    }
% else:
%  for c in range(vw):
    const int o${c} = min(column + ${c}, ${n - 1}) * ${src[1]};
%  endfor
%  if squares:
    for (; i + ${vw} <= end; i += ${vw}, p += ${vw}, w += ${times(vw, row)}) {
        ${transpose()}
    }
%  endif
    ${copy(f"({V})(" + ", ".join(element(ctype, "p", f"o{c}") for c in range(vw)) + ")")}
% endif
}
